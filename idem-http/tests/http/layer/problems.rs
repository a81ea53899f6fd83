//! The layer's own responses.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use idem_core::Idempotency;
use idem_http::Problem;
use serde_json::json;

use crate::support::{Site, layer, request, send};

#[tokio::test]
async fn a_store_that_fails_is_503_with_a_hint_and_no_secret() {
    let server = idem_testkit::RedisServer::start().await.unwrap();
    let store = idem_redis::RedisStore::connect(&server.url())
        .await
        .unwrap();
    let site = Site::over(Idempotency::new(store));
    let app = site.router(layer(&site.idempotency));
    // Its port stays held, so that nobody else answers there.
    server.kill().unwrap();
    let refused = send(
        &app,
        request("very-secret").body(Body::from("secret")).unwrap(),
    )
    .await;
    assert_eq!(
        (refused.status, refused.code()),
        (StatusCode::SERVICE_UNAVAILABLE, "store".into())
    );
    assert_eq!(refused.headers[RETRY_AFTER], "1");
    assert!(
        !refused.text.contains("secret") && !refused.text.contains("127.0.0.1"),
        "{}",
        refused.text
    );
    assert_eq!(site.runs.load(SeqCst), 0);
}

#[tokio::test]
async fn a_problem_has_a_type_of_its_own_and_the_error_that_clients_look_for() {
    let site = Site::new();
    let app = site.router(layer(&site.idempotency).required(true));
    let refused = send(&app, Request::post("/charges").body(Body::empty()).unwrap())
        .await
        .json();
    assert!(refused["type"].as_str().unwrap().ends_with("#missing_key"));
    assert_eq!(
        (&refused["status"], &refused["error"]["type"]),
        (&json!(400), &json!("idempotency_error"))
    );
    let custom = |problem: &Problem| {
        let mut response = http::Response::new(problem.code.to_owned());
        *response.status_mut() = problem.status;
        response
    };
    let app = site.router(layer(&site.idempotency).required(true).problem(custom));
    assert_eq!(
        send(&app, Request::post("/charges").body(Body::empty()).unwrap())
            .await
            .text,
        "missing_key"
    );
}

#[tokio::test]
async fn an_error_of_a_handler_is_the_response_that_other_frameworks_get() {
    use idem_core::{Error, StoreError, StoreErrorKind};
    let errors = [
        Error::in_flight("o", "k", Duration::from_secs(30)),
        Error::fingerprint_mismatch("o", "k"),
        Error::already_done("o", "k"),
        Error::missing_key("o"),
        Error::throttled("o", "k", Duration::from_millis(1500)),
        Error::lease_lost("o", "k", 1),
        Error::store(
            "o",
            "k",
            StoreError::new(StoreErrorKind::Refused, "WRONGPASS"),
        ),
    ];
    for error in errors {
        let by_hand = idem_http::problem(&error);
        let (parts, body) = error.into_response().into_parts();
        let text = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        assert_eq!(
            (parts.status, &text[..]),
            (by_hand.status(), by_hand.body().as_bytes())
        );
        for name in [CONTENT_TYPE, RETRY_AFTER] {
            assert_eq!(
                parts.headers.get(&name),
                by_hand.headers().get(&name),
                "{name} {text:?}"
            );
        }
    }
}
