//! Handlers that take the key themselves.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::routing::post;
use idem_core::{Error, Idempotency, MemoryStore};
use idem_http::{IdempotencyKey, MarkReplays};

use crate::support::send;

fn with(keys: &[&str], body: &'static str) -> Request<Body> {
    let request = Request::post("/transfers");
    let request = keys.iter().fold(request, |request, key| {
        request.header("idempotency-key", *key)
    });
    request.body(Body::from(body)).unwrap()
}

const INVALID: [&[&str]; 9] = [
    &[""],
    &["a b"],
    &["\"a"],
    &["a", "a"],
    &["\"a\"", "a"],
    &["\u{e4}"],
    &["a,b"],
    &["k;v=1"],
    &["\"a\", \"b\""],
];

#[tokio::test]
async fn a_handler_that_takes_a_key_gets_no_request_without_a_valid_one() {
    let runs: Arc<AtomicUsize> = Arc::default();
    let counted = runs.clone();
    let handler = move |key: IdempotencyKey| async move {
        counted.fetch_add(1, SeqCst);
        key.to_string()
    };
    let app = Router::new().route("/transfers", post(handler));
    let missing = send(&app, with(&[], "")).await;
    assert_eq!(
        (missing.status, &*missing.code()),
        (StatusCode::BAD_REQUEST, "missing_key")
    );
    assert_eq!(missing.headers[CONTENT_TYPE], "application/problem+json");
    let long = "x".repeat(256);
    for keys in INVALID.into_iter().chain([&[&*long][..]]) {
        let refused = send(&app, with(keys, "")).await;
        assert_eq!(
            (refused.status, &*refused.code()),
            (StatusCode::BAD_REQUEST, "invalid_key"),
            "{keys:?}"
        );
    }
    assert_eq!(runs.load(SeqCst), 0);
    for key in ["k", "\"k\"", "\"k\";v=1"] {
        assert_eq!(send(&app, with(&[key], "")).await.text, "k");
    }
}

#[tokio::test]
async fn a_handler_for_which_a_key_is_optional_gets_none_or_a_valid_one() {
    let handler = async |key: Option<IdempotencyKey>| {
        key.map_or_else(|| "none".to_owned(), |key| key.to_string())
    };
    let app = Router::new().route("/transfers", post(handler));
    assert_eq!(send(&app, with(&[], "")).await.text, "none");
    assert_eq!(send(&app, with(&["k"], "")).await.text, "k");
    for keys in INVALID {
        assert_eq!(
            send(&app, with(keys, "")).await.code(),
            "invalid_key",
            "{keys:?}"
        );
    }
}

#[tokio::test]
async fn p7_a_guarded_handler_keeps_users_apart_and_answers_a_mismatch_as_the_layer_does() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let runs: Arc<AtomicUsize> = Arc::default();
    let counted = runs.clone();
    let handler = move |headers: HeaderMap, key: IdempotencyKey, cents: String| {
        let idempotency = idempotency.clone();
        let runs = counted.clone();
        async move {
            let user = headers["authorization"].to_str().unwrap();
            let transfer = idempotency
                .operation("transfers.create")
                .key(&(user, &key))
                .fingerprint(&cents);
            let done = transfer
                .run(|| async { Ok::<_, Error>(runs.fetch_add(1, SeqCst) + 1) })
                .await?;
            Ok::<_, Error>((StatusCode::CREATED, done.into_inner().to_string()))
        }
    };
    let app = Router::new()
        .route("/transfers", post(handler))
        .layer(MarkReplays);
    let sent = async |user: &'static str, key: &'static str, cents: &'static str| {
        let mut request = with(&[key], cents);
        request
            .headers_mut()
            .insert("authorization", user.parse().unwrap());
        send(&app, request).await
    };
    for (user, key, expected, replayed) in [
        ("alice", "k", "1", false),
        ("alice", "\"k\"", "1", true),
        ("bob", "k", "2", false),
    ] {
        let got = sent(user, key, "10").await;
        assert_eq!((got.status, &*got.text), (StatusCode::CREATED, expected));
        assert_eq!(
            got.headers.contains_key("idempotent-replayed"),
            replayed,
            "{user} {key}"
        );
    }
    let other = sent("alice", "k", "11").await;
    assert_eq!(
        (other.status, &*other.code()),
        (StatusCode::UNPROCESSABLE_ENTITY, "fingerprint_mismatch")
    );
    assert!(!other.headers.contains_key("idempotent-replayed"));
    assert_eq!(runs.load(SeqCst), 2);
}
