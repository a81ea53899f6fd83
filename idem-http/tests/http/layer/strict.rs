//! The layer over a runtime with the profile for payments.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use idem_core::{Idempotency, MemoryStore};
use idem_http::IdempotencyLayer;
use tower::{Layer as _, ServiceExt as _};

use crate::support::{Site, layer, request, send};

fn strict() -> Idempotency {
    Idempotency::builder(MemoryStore::new()).strict().build()
}

#[tokio::test]
async fn a_response_that_is_not_kept_releases_the_key_under_the_strict_profile() {
    for status in [
        StatusCode::INTERNAL_SERVER_ERROR,
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::UNAUTHORIZED,
    ] {
        let site = Site::over(strict());
        let app =
            site.app(move |n| if n == 1 { status } else { StatusCode::CREATED }.into_response());
        let statuses = [status, StatusCode::CREATED, StatusCode::CREATED];
        for expected in statuses {
            let got = send(&app, request("k").body(Body::from("10")).unwrap()).await;
            assert_eq!(got.status, expected, "{}", got.text);
        }
        assert_eq!(site.runs.load(SeqCst), 2);
    }
}

#[tokio::test]
async fn a_success_is_replayed_and_another_request_refused_under_the_strict_profile() {
    let site = Site::over(strict());
    let app = site.app(|n| n.to_string().into_response());
    for replayed in [false, true] {
        let got = send(&app, request("k").body(Body::from("10")).unwrap()).await;
        assert_eq!((got.status, &*got.text), (StatusCode::OK, "1"));
        assert_eq!(got.headers.contains_key("idempotent-replayed"), replayed);
    }
    let other = send(&app, request("k").body(Body::from("11")).unwrap()).await;
    assert_eq!(other.code(), "fingerprint_mismatch");
}

#[tokio::test]
async fn a_layer_that_replays_on_mismatch_needs_no_fingerprint_under_the_strict_profile() {
    let site = Site::over(strict());
    let app = site.router(layer(&site.idempotency).replay_on_mismatch());
    for body in ["10", "11"] {
        let got = send(&app, request("k").body(Body::from(body)).unwrap()).await;
        assert_eq!(
            (got.status, &*got.text),
            (StatusCode::OK, "1"),
            "{}",
            got.text
        );
    }
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[tokio::test]
async fn an_error_of_the_service_itself_is_unlisted_released_by_default_and_abandoned_under_the_strict_profile()
 {
    for (idempotency, runs) in [(strict(), 1), (Idempotency::new(MemoryStore::new()), 2)] {
        let calls = AtomicUsize::new(0);
        let calls: &'static AtomicUsize = Box::leak(Box::new(calls));
        let service = tower::service_fn(move |_: Request<idem_http::Body>| async move {
            if calls.fetch_add(1, SeqCst) == 0 {
                Err("timed out")
            } else {
                Ok(Response::new(Body::from("done")))
            }
        });
        let app = IdempotencyLayer::new(idempotency).unscoped().layer(service);
        assert_eq!(
            app.clone()
                .oneshot(request("k").body(Body::empty()).unwrap())
                .await
                .unwrap_err(),
            "timed out"
        );
        let again = app
            .oneshot(request("k").body(Body::empty()).unwrap())
            .await
            .unwrap();
        assert_eq!(
            again.status() == StatusCode::CONFLICT,
            runs == 1,
            "{}",
            again.status()
        );
        assert_eq!(calls.load(SeqCst), runs);
    }
}
