//! Statuses of gRPC, whose status of HTTP is always 200.

use std::sync::atomic::Ordering::SeqCst;

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tower::ServiceExt as _;

use crate::support::{Site, layer, request};

/// A response with this status in its head, as for a call that failed, or in its trailers.
fn response(status: u8, in_trailers: bool) -> Response {
    let status = HeaderMap::from_iter([("grpc-status".parse().unwrap(), u16::from(status).into())]);
    let head = [(CONTENT_TYPE, "application/grpc+proto")];
    if !in_trailers {
        return (head, status, Body::empty()).into_response();
    }
    let frames = [
        Frame::data(Bytes::from_static(b"\0\0\0\0\x03one")),
        Frame::trailers(status),
    ];
    let frames = futures::stream::iter(frames.map(Ok::<_, std::io::Error>));
    (head, Body::new(StreamBody::new(frames))).into_response()
}

/// The statuses that two equal requests get, and how often the service ran.
async fn sent_twice(status: u8, in_trailers: bool, site: &Site, app: axum::Router) -> usize {
    for _ in 0..2 {
        let got = app
            .clone()
            .oneshot(request("k").body(Body::empty()).unwrap())
            .await
            .unwrap();
        let head = got.headers().get("grpc-status").cloned();
        let body = got.into_body().collect().await.unwrap();
        let found = head.or_else(|| body.trailers()?.get("grpc-status").cloned());
        assert_eq!(found.unwrap(), status.to_string(), "{in_trailers}");
        assert_eq!(body.to_bytes().len(), if in_trailers { 8 } else { 0 });
    }
    site.runs.load(SeqCst)
}

#[tokio::test]
async fn a_call_of_grpc_that_may_succeed_later_releases_the_key_and_other_answers_are_kept() {
    let kept = [0, 3, 5, 9, 11];
    for (status, in_trailers) in (0..=16).flat_map(|status| [(status, false), (status, true)]) {
        let site = Site::new();
        let app = site.app(move |_| response(status, in_trailers));
        let expected = if kept.contains(&status) { 1 } else { 2 };
        assert_eq!(
            sent_twice(status, in_trailers, &site, app).await,
            expected,
            "{status} {in_trailers}"
        );
    }
}

#[tokio::test]
async fn an_author_who_says_what_is_kept_decides_for_grpc_too() {
    for in_trailers in [false, true] {
        let site = Site::new();
        let app = site.router_of(layer(&site.idempotency).keep(|_| true), move |_| {
            response(14, in_trailers)
        });
        assert_eq!(sent_twice(14, in_trailers, &site, app).await, 1);
    }
}

#[tokio::test]
async fn an_invalid_argument_releases_the_key_if_validation_errors_do() {
    for in_trailers in [false, true] {
        for (status, runs) in [(3, 2), (9, 1)] {
            let site = Site::new();
            let layer = layer(&site.idempotency)
                .keep(|_| true)
                .release_validation_errors();
            let app = site.router_of(layer, move |_| response(status, in_trailers));
            assert_eq!(
                sent_twice(status, in_trailers, &site, app).await,
                runs,
                "{status} {in_trailers}"
            );
        }
    }
}
