//! Lookups of calls that timed out.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::support::{Received, Site, USER, layer, request, send};
use axum::Router;
use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, LOCATION, RETRY_AFTER};
use axum::http::{Method, Request, StatusCode};
use axum::response::IntoResponse;
use idem_core::{Idempotency, MemoryStore};
use idem_http::header;

/// The site, with the lookup of its charges.
fn with_lookup(site: &Site, app: Router) -> Router {
    let lookup = idem_http::lookup(site.idempotency.clone())
        .name("tests")
        .route("POST", "/charges")
        .scope(|parts| header(parts, USER));
    app.route_service("/charges/{key}", lookup)
}

async fn ask(app: &Router, key: &str, user: &str) -> Received {
    send(
        app,
        Request::get(format!("/charges/{key}"))
            .header(USER, user)
            .body(Body::empty())
            .unwrap(),
    )
    .await
}

#[tokio::test]
async fn the_answer_to_head_is_looked_up_without_the_length_of_a_body_that_it_has_not() {
    let site = Site::new();
    let app = site.router_of(
        layer(&site.idempotency).methods([Method::HEAD]),
        move |_| [(CONTENT_LENGTH, "1234"), (LOCATION, "/c/1")].into_response(),
    );
    let lookup = idem_http::lookup(site.idempotency.clone()).name("tests");
    let lookup = lookup.route("HEAD", "/charges");
    let lookup = lookup.scope(|parts| header(parts, USER));
    let app = app.route_service("/charges/{key}", lookup);
    let head = request("k").method(Method::HEAD).body(Body::empty());
    assert_eq!(
        send(&app, head.unwrap()).await.headers[CONTENT_LENGTH],
        "1234"
    );
    let found = ask(&app, "k", "alice").await;
    assert_eq!((found.status, &*found.text), (StatusCode::OK, ""));
    assert_eq!(found.headers[LOCATION], "/c/1");
    assert!(
        found
            .headers
            .get(CONTENT_LENGTH)
            .is_none_or(|length| length == "0")
    );
}

#[tokio::test]
async fn the_recorded_response_is_given_to_its_owner_alone() {
    let site = Site::new();
    let app = with_lookup(
        &site,
        site.app(|n| (StatusCode::CREATED, [(LOCATION, "/c/1")], n.to_string()).into_response()),
    );
    assert_eq!(
        ask(&app, "a%2F1", "alice").await.status,
        StatusCode::NOT_FOUND
    );
    send(&app, request("a/1").body(Body::from("10")).unwrap()).await;
    let found = ask(&app, "a%2F1", "alice").await;
    assert_eq!((found.status, &*found.text), (StatusCode::CREATED, "1"));
    assert_eq!(
        (
            &found.headers[LOCATION],
            &found.headers["idempotent-replayed"]
        ),
        (&"/c/1".parse().unwrap(), &"true".parse().unwrap())
    );
    assert_eq!(
        ask(&app, "a%2F1", "bob").await.status,
        StatusCode::NOT_FOUND
    );
    let unknown = Request::get("/charges/a%2F1").body(Body::empty()).unwrap();
    assert_eq!(send(&app, unknown).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(ask(&app, "a%20b", "alice").await.code(), "invalid_key");
    send(&app, request("\"a,b\"").body(Body::empty()).unwrap()).await;
    for key in ["a,b", "%22a%2Cb%22"] {
        assert_eq!(ask(&app, key, "alice").await.text, "2", "{key}");
    }
    let post = Request::builder()
        .method(Method::POST)
        .uri("/charges/a%2F1")
        .body(Body::empty())
        .unwrap();
    assert_eq!(
        send(&app, post).await.status,
        StatusCode::METHOD_NOT_ALLOWED
    );
    assert_eq!(site.runs.load(SeqCst), 2);
}

#[tokio::test]
async fn a_request_in_flight_is_202_and_is_not_claimed_by_asking() {
    let site = Site::new();
    let app = with_lookup(&site, site.app(|n| n.to_string().into_response()));
    site.close();
    let first = tokio::spawn({
        let app = app.clone();
        async move {
            send(&app, request("k").body(Body::empty()).unwrap())
                .await
                .text
        }
    });
    site.entered().await;
    let asked = ask(&app, "k", "alice").await;
    assert_eq!(
        (asked.status, &asked.headers[RETRY_AFTER]),
        (StatusCode::ACCEPTED, &"1".parse().unwrap())
    );
    site.open();
    assert_eq!(first.await.unwrap(), "1");
    assert_eq!(ask(&app, "k", "alice").await.text, "1");
}

#[tokio::test]
async fn a_released_request_is_unknown_and_one_without_a_recorded_answer_is_gone() {
    let site = Site::new();
    let app = with_lookup(&site, site.app(|_| StatusCode::BAD_GATEWAY.into_response()));
    send(&app, request("k").body(Body::empty()).unwrap()).await;
    assert_eq!(ask(&app, "k", "alice").await.status, StatusCode::NOT_FOUND);
    let app = with_lookup(
        &site,
        site.router_of(layer(&site.idempotency).max_body(1), |_| {
            "long".into_response()
        }),
    );
    send(&app, request("k").body(Body::empty()).unwrap()).await;
    assert_eq!(ask(&app, "k", "alice").await.status, StatusCode::GONE);
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_request_is_a_conflict() {
    let site = Site::over(Idempotency::new(MemoryStore::new()));
    let app = with_lookup(&site, site.app(|n| n.to_string().into_response()));
    let lease = site
        .idempotency
        .operation("tests.POST/charges")
        .key(&("alice", "k"))
        .lease(Duration::from_secs(1));
    // Held by hand and dropped: abandoned.
    drop(lease.begin().await.unwrap());
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(ask(&app, "k", "alice").await.code(), "abandoned");
}

#[tokio::test]
async fn a_store_that_is_gone_is_503() {
    let server = idem_testkit::RedisServer::start().await.unwrap();
    let site = Site::over(Idempotency::new(
        idem_redis::RedisStore::connect(&server.url())
            .await
            .unwrap(),
    ));
    let app = with_lookup(&site, site.app(|n| n.to_string().into_response()));
    // Its port stays held, so that nobody else answers there.
    server.kill().unwrap();
    let asked = ask(&app, "k", "alice").await;
    assert_eq!(
        (asked.status, &asked.headers[RETRY_AFTER]),
        (StatusCode::SERVICE_UNAVAILABLE, &"1".parse().unwrap())
    );
}
