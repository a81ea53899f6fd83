//! The HTTP layer over SQL stores: a handler and the store meet in one database, perhaps in one
//! pool.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::StreamExt as _;
use idem::http::IdempotencyLayer;
use idem::sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use idem::{Idempotency, SqliteStore, sqlx};
use tempfile::TempDir;
use tokio::sync::Notify;
use tower::ServiceExt as _;

use crate::support::connected;

const LONG: Duration = Duration::from_secs(20);

/// A response, read as far as it goes.
#[derive(Debug)]
struct Received {
    status: StatusCode,
    headers: HeaderMap,
    /// `None`: it broke off.
    body: Option<Bytes>,
}

impl Received {
    fn text(&self) -> &str {
        std::str::from_utf8(self.body.as_ref().unwrap()).unwrap()
    }

    fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }
}

fn request(key: &str) -> Request<Body> {
    Request::post("/charges")
        .header("idempotency-key", key)
        .body(Body::from("10"))
        .unwrap()
}

async fn send(app: &Router, request: Request<Body>) -> Received {
    let response = app.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.ok();
    Received {
        status: parts.status,
        headers: parts.headers,
        body,
    }
}

fn layer(idempotency: &Idempotency) -> IdempotencyLayer<idem::http::Scoped> {
    IdempotencyLayer::new(idempotency.clone())
        .name("tests")
        .unscoped()
}

/// The application's pool, in which its store is too.
async fn pool(dir: &Path, connections: u32) -> SqlitePool {
    let file = SqliteConnectOptions::new()
        .filename(dir.join("shop.db"))
        .create_if_missing(true);
    let options = SqlitePoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(LONG);
    let pool = options.connect_with(file).await.unwrap();
    patient(&pool).migrate().await.unwrap();
    sqlx::query("CREATE TABLE IF NOT EXISTS charges (number INTEGER)")
        .execute(&pool)
        .await
        .unwrap();
    pool
}

/// A store in it whose steps wait for a busy machine.
fn patient(pool: &SqlitePool) -> SqliteStore {
    SqliteStore::builder(pool.clone()).time_limit(LONG).build()
}

async fn charges(pool: &SqlitePool) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM charges")
        .fetch_one(pool)
        .await
        .unwrap()
}

/// A handler that holds a connection of the pool from its beginning to its end, and writes a row.
fn app(
    pool: &SqlitePool,
    layer: IdempotencyLayer<idem::http::Scoped>,
    may_end: &Arc<Notify>,
    begun: &Arc<Notify>,
) -> Router {
    let pool = pool.clone();
    let may_end = may_end.clone();
    let begun = begun.clone();
    let handler = async move || -> Response {
        let mut connection = pool.acquire().await.unwrap();
        begun.notify_one();
        may_end.notified().await;
        sqlx::query("INSERT INTO charges VALUES (1)")
            .execute(&mut *connection)
            .await
            .unwrap();
        "charged".into_response()
    };
    Router::new().route("/charges", post(handler)).layer(layer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_a_handler_that_takes_the_last_connection_of_the_stores_pool_is_recorded_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), 1).await;
    let idempotency = Idempotency::new(patient(&pool));
    let may_end = Arc::new(Notify::new());
    let begun = Arc::new(Notify::new());
    let app = app(
        &pool,
        layer(&idempotency).wait(Duration::ZERO),
        &may_end,
        &begun,
    );
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, request("k")).await }
    });
    begun.notified().await;
    // A duplicate in another process: its store has no connection, and nothing runs.
    let other = Idempotency::new(SqliteStore::new(pool.clone()));
    let unanswered = send(
        &self::app(&pool, layer(&other), &may_end, &begun),
        request("k"),
    )
    .await;
    assert_eq!(
        unanswered.status,
        StatusCode::SERVICE_UNAVAILABLE,
        "{unanswered:?}"
    );
    may_end.notify_one();
    let first = first.await.unwrap();
    assert_eq!((first.status, first.text()), (StatusCode::OK, "charged"));
    idempotency.shutdown(LONG).await.unwrap();
    let duplicate = send(&app, request("k")).await;
    assert!(duplicate.is_replay(), "{duplicate:?}");
    assert_eq!((duplicate.text(), charges(&pool).await), ("charged", 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_a_handler_that_keeps_the_last_connection_for_longer_than_its_lease_is_stopped_and_none_runs_beside_it()
 {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), 1).await;
    let idempotency = Idempotency::new(
        SqliteStore::builder(pool.clone())
            .time_limit(Duration::from_millis(300))
            .build(),
    );
    let may_end = Arc::new(Notify::new());
    let begun = Arc::new(Notify::new());
    let app = app(
        &pool,
        layer(&idempotency).lease(Duration::from_millis(1500)),
        &may_end,
        &begun,
    );
    // Nothing lets it go on, so only the end of its lease ends it.
    let first = tokio::time::timeout(LONG, send(&app, request("k")))
        .await
        .expect("it is not stopped");
    assert!(
        first.status.is_server_error() || first.status == StatusCode::CONFLICT,
        "{first:?}"
    );
    may_end.notify_one();
    // The default lease is long enough for a slow machine.
    let other = Idempotency::new(patient(&pool));
    let app = self::app(&pool, layer(&other), &may_end, &begun);
    let second = send(&app, request("k")).await;
    assert_eq!((second.text(), charges(&pool).await), ("charged", 1));
    assert!(send(&app, request("k")).await.is_replay());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_a_response_that_streams_rows_over_the_last_connection_is_recorded_as_done_once_it_is_read()
 {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), 1).await;
    let idempotency = Idempotency::new(patient(&pool));
    let handler = {
        let pool = pool.clone();
        async move || -> Response {
            let mut connection = pool.acquire().await.unwrap();
            sqlx::query("INSERT INTO charges VALUES (1)")
                .execute(&mut *connection)
                .await
                .unwrap();
            // The connection goes with the body, as that of a cursor does.
            let rows = futures_util::stream::iter(0..3).map(move |row| {
                let _in_use = &connection;
                Ok::<_, std::io::Error>(format!("row {row};"))
            });
            Body::from_stream(rows).into_response()
        }
    };
    let app = Router::new()
        .route("/charges", post(handler))
        .layer(layer(&idempotency).wait(LONG));
    let first = send(&app, request("k")).await;
    assert_eq!(
        (first.status, first.text()),
        (StatusCode::OK, "row 0;row 1;row 2;")
    );
    let duplicate = send(&app, request("k")).await;
    assert!(
        duplicate.status == StatusCode::CONFLICT && duplicate.text().contains("already_done"),
        "{duplicate:?}"
    );
    idempotency.shutdown(LONG).await.unwrap();
    assert_eq!(charges(&pool).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_duplicates_at_once_run_one_handler_whatever_the_pool_is() {
    for connections in [1, 2, 5] {
        let dir = tempfile::tempdir().unwrap();
        let pool = pool(dir.path(), connections).await;
        let runs = Arc::new(AtomicUsize::new(0));
        let app = |pool: &SqlitePool| {
            let idempotency = Idempotency::new(patient(pool));
            let pool = pool.clone();
            let runs = runs.clone();
            let handler = async move || -> Response {
                runs.fetch_add(1, SeqCst);
                let mut tx = pool.begin().await.unwrap();
                sqlx::query("INSERT INTO charges VALUES (1)")
                    .execute(&mut *tx)
                    .await
                    .unwrap();
                tx.commit().await.unwrap();
                "charged".into_response()
            };
            Router::new()
                .route("/charges", post(handler))
                .layer(layer(&idempotency).wait(LONG))
        };
        // Two processes, as far as that can be had inside one.
        let apps = [app(&pool), app(&pool)];
        let all = (0..50).map(|n| send(&apps[n % 2], request("k")));
        for received in futures_util::future::join_all(all).await {
            assert_eq!(
                (received.status, received.text()),
                (StatusCode::OK, "charged"),
                "{connections}"
            );
        }
        assert_eq!((runs.load(SeqCst), charges(&pool).await), (1, 1));
    }
}

async fn opened() -> (TempDir, Idempotency) {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/idem.db", dir.path().display());
    let store = connected(async || SqliteStore::connect(&url).await).await;
    (dir, Idempotency::new(store))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p8_a_client_that_is_gone_finds_its_answer_and_what_was_no_answer_is_not_replayed() {
    let (_dir, idempotency) = opened().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let may_end = Arc::new(Notify::new());
    let begun = Arc::new(Notify::new());
    let handler = {
        let runs = runs.clone();
        let may_end = may_end.clone();
        let begun = begun.clone();
        async move |headers: HeaderMap| -> Response {
            runs.fetch_add(1, SeqCst);
            begun.notify_one();
            if headers.contains_key("x-held") {
                may_end.notified().await;
            }
            if headers.contains_key("x-breaks") {
                let parts = [
                    Ok(Bytes::from_static(b"char")),
                    Err(std::io::Error::other("cut")),
                ];
                return Body::from_stream(futures_util::stream::iter(parts)).into_response();
            }
            "charged".into_response()
        }
    };
    let app = Router::new()
        .route("/charges", post(handler))
        .layer(layer(&idempotency).max_body(16));
    let with = |key: &str, header: &'static str| {
        let mut request = request(key);
        request.headers_mut().insert(header, "yes".parse().unwrap());
        request
    };

    // The client goes away while the handler runs.
    let gone = tokio::spawn({
        let app = app.clone();
        let request = with("gone", "x-held");
        async move { send(&app, request).await }
    });
    begun.notified().await;
    gone.abort();
    assert!(gone.await.is_err_and(|error| error.is_cancelled()));
    may_end.notify_one();
    let again = send(&app, request("gone")).await;
    assert_eq!(
        (again.text(), again.is_replay(), runs.swap(0, SeqCst)),
        ("charged", true, 1)
    );

    // A body above the limit runs nothing, and its key is still free.
    let mut large = request("large");
    *large.body_mut() = Body::from("x".repeat(17));
    assert_eq!(
        send(&app, large).await.status,
        StatusCode::PAYLOAD_TOO_LARGE
    );
    assert_eq!(runs.load(SeqCst), 0);
    assert!(!send(&app, request("large")).await.is_replay());
    assert_eq!(runs.swap(0, SeqCst), 1);

    // A response that fails midway: the work is done, and no answer can be replayed.
    begun.notified().await;
    let broken = send(&app, with("broken", "x-breaks")).await;
    assert_eq!((broken.status, broken.body), (StatusCode::OK, None));
    let again = send(&app, request("broken")).await;
    assert_eq!(
        (again.status, runs.load(SeqCst)),
        (StatusCode::CONFLICT, 1),
        "{again:?}"
    );
    assert!(again.text().contains("already_done"), "{again:?}");
}

/// Responses that are larger than the messages that the server takes. It answers the first one, and
/// closes the connection in the middle of the second.
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_a_response_that_is_too_large_for_the_store_is_recorded_as_done_without_its_answer() {
    // The setting is that of the whole server.
    let server = idem_testkit::MariaDbServer::start().await.unwrap();
    let url = server.url();
    let pool = sqlx::MySqlPool::connect(&url).await.unwrap();
    sqlx::query("SET GLOBAL max_allowed_packet = 1048576")
        .execute(&pool)
        .await
        .unwrap();
    // A connection has the setting that the server had when it was opened.
    let pool = sqlx::MySqlPool::connect(&url).await.unwrap();
    let store = idem::MySqlStore::builder(pool).time_limit(LONG).build();
    store.migrate().await.unwrap();
    let idempotency = Idempotency::new(store);
    for size in [1_100_000, 20_000_000] {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = runs.clone();
        let handler = async move || -> Response {
            counted.fetch_add(1, SeqCst);
            "x".repeat(size).into_response()
        };
        let layer = layer(&idempotency)
            .max_body(64 << 20)
            .lease(Duration::from_secs(3));
        let app = Router::new().route("/charges", post(handler)).layer(layer);
        let key = &*size.to_string();
        let first = send(&app, request(key)).await;
        assert_eq!((first.status, first.text().len()), (StatusCode::OK, size));
        idempotency.shutdown(Duration::from_secs(60)).await.unwrap();
        let again = send(&app, request(key)).await;
        assert_eq!((again.status, runs.load(SeqCst)), (StatusCode::CONFLICT, 1));
        assert!(again.text().contains("already_done"), "{again:?}");
    }
}
