//! Where the key of a request comes from, and requests without one.

use std::sync::atomic::Ordering::SeqCst;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use serde_json::{Value, json};

use crate::support::{Site, USER, layer, request, send};

#[tokio::test]
async fn keys_that_are_missing_or_invalid_are_refused_and_nothing_runs() {
    let site = Site::new();
    let app = site.router(layer(&site.idempotency).required(true));
    let missing = Request::post("/charges")
        .header(USER, "alice")
        .body(Body::empty())
        .unwrap();
    let missing = send(&app, missing).await;
    assert_eq!(
        (missing.status, missing.code()),
        (StatusCode::BAD_REQUEST, "missing_key".into())
    );
    let twice = request("a")
        .header("idempotency-key", "a")
        .body(Body::empty())
        .unwrap();
    assert_eq!(send(&app, twice).await.code(), "invalid_key");
    // Invalid also where no key is required.
    for app in [app, site.router(layer(&site.idempotency))] {
        for key in ["", " ", "a b", "\"", &"x".repeat(256)] {
            let refused = send(&app, request(key).body(Body::empty()).unwrap()).await;
            assert_eq!(
                (refused.status, refused.code()),
                (StatusCode::BAD_REQUEST, "invalid_key".into()),
                "{key}"
            );
            assert_eq!(refused.headers[CONTENT_TYPE], "application/problem+json");
            assert!(
                key.trim().is_empty() || key == "\"" || !refused.text.contains(key),
                "{}",
                refused.text
            );
        }
    }
    assert_eq!(site.runs.load(SeqCst), 0);
}

#[tokio::test]
async fn requests_without_a_key_and_other_methods_pass_unguarded() {
    let site = Site::new();
    let app = site.app(|n| n.to_string().into_response());
    for n in 1..=2 {
        assert_eq!(
            send(&app, Request::post("/charges").body(Body::empty()).unwrap())
                .await
                .text,
            n.to_string()
        );
    }
    for n in 3..=4 {
        let get = Request::get("/charges")
            .header("idempotency-key", "k")
            .body(Body::empty())
            .unwrap();
        assert_eq!(send(&app, get).await.text, n.to_string());
    }
}

#[tokio::test]
async fn the_key_can_be_in_the_body_of_a_form_or_json() {
    let site = Site::new();
    let app = site.router(
        layer(&site.idempotency)
            .body_field("/meta/key")
            .required(true),
    );
    let json = |body: Value| {
        request("unused")
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()))
            .unwrap()
    };
    assert_eq!(
        send(&app, json(json!({ "meta": { "key": "a" } })))
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(
        send(&app, json(json!({ "meta": { "key": "a" } })))
            .await
            .headers["idempotent-replayed"],
        "true"
    );
    assert_eq!(
        send(&app, json(json!({ "meta": {} }))).await.code(),
        "missing_key"
    );
    assert_eq!(
        send(&app, json(json!({ "meta": { "key": 7 } })))
            .await
            .code(),
        "invalid_key"
    );
    // A field at the top needs no slash.
    let app = site.router(
        layer(&site.idempotency)
            .name("top")
            .body_field("key")
            .required(true),
    );
    assert_eq!(
        send(&app, json(json!({ "key": "a" }))).await.status,
        StatusCode::OK
    );
    assert_eq!(
        send(&app, json(json!({ "key": "a" }))).await.headers["idempotent-replayed"],
        "true"
    );
    let app = site.router(
        layer(&site.idempotency)
            .name("forms")
            .body_field("/idempotency_key")
            .required(true),
    );
    let form = |body: &'static str| {
        request("unused")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Body::from(body))
            .unwrap()
    };
    assert_eq!(
        send(&app, form("cents=1&idempotency_key=b%2F1"))
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(
        send(&app, form("cents=1&idempotency_key=b%2F1"))
            .await
            .headers["idempotent-replayed"],
        "true"
    );
    assert_eq!(send(&app, form("cents=1")).await.code(), "missing_key");
    assert_eq!(
        send(&app, form("idempotency_key=a&idempotency_key=b"))
            .await
            .code(),
        "invalid_key"
    );
}
