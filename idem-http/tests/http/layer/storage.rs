//! Recorded responses, as codecs and stores have them.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{AppendHeaders, IntoResponse, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use idem_core::store::{Codec, CodecContext, CodecFailure, CodecId};
use idem_core::{Idempotency, MemoryStore, erased_serde};
use idem_http::header;
use tower::ServiceExt as _;

use super::rows::logged;
use crate::support::{Site, layer, request, send};

/// JSON, through the objects that other codecs than the default are given.
struct ByObjects;

impl Codec for ByObjects {
    fn id(&self) -> CodecId {
        CodecId::parse(b"objects").unwrap()
    }

    fn encode(
        &self,
        _: CodecContext<'_>,
        value: &dyn erased_serde::Serialize,
    ) -> Result<Vec<u8>, CodecFailure> {
        Ok(serde_json::to_vec(value)?)
    }

    fn decode(
        &self,
        _: CodecContext<'_>,
        bytes: &[u8],
        read: &mut dyn FnMut(
            &mut dyn erased_serde::Deserializer<'_>,
        ) -> Result<(), erased_serde::Error>,
    ) -> Result<(), CodecFailure> {
        let mut json = serde_json::Deserializer::from_slice(bytes);
        Ok(read(&mut <dyn erased_serde::Deserializer<'_>>::erase(
            &mut json,
        ))?)
    }
}

#[tokio::test]
async fn a_codec_of_the_author_replays_bytes_headers_and_trailers() {
    let site = Site::over(
        Idempotency::builder(MemoryStore::new())
            .codec(ByObjects)
            .build(),
    );
    let app = site.app(|_| {
        let trailers =
            HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), "0".parse().unwrap())]);
        let frames = [
            Frame::data(Bytes::from_static(b"\x00\0\0\0\x01\xff")),
            Frame::trailers(trailers),
        ];
        let frames = futures::stream::iter(frames.map(Ok::<_, std::io::Error>));
        let raw = HeaderValue::from_bytes(b"\xff").unwrap();
        let mut headers =
            HeaderMap::from_iter([(CONTENT_TYPE, "application/grpc".parse().unwrap())]);
        headers.append("x-raw", raw);
        headers.append("x-raw", "two".parse().unwrap());
        (
            StatusCode::CREATED,
            headers,
            Body::new(StreamBody::new(frames)),
        )
            .into_response()
    });
    for replayed in [false, true] {
        let response = app
            .clone()
            .oneshot(request("k").body(Body::empty()).unwrap())
            .await
            .unwrap();
        assert_eq!(
            (
                response.status(),
                response.headers().contains_key("idempotent-replayed")
            ),
            (StatusCode::CREATED, replayed)
        );
        let raw: Vec<_> = response
            .headers()
            .get_all("x-raw")
            .iter()
            .map(HeaderValue::as_bytes)
            .collect();
        assert_eq!(raw, [&b"\xff"[..], b"two"]);
        let body = response.into_body().collect().await.unwrap();
        assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(&body.to_bytes()[..], b"\x00\0\0\0\x01\xff");
    }
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[tokio::test]
async fn a_response_is_read_back_as_it_was_recorded() {
    let frames = |ends: Vec<Frame<Bytes>>| {
        let frames = ends.into_iter().map(Ok::<_, std::io::Error>);
        Body::new(StreamBody::new(futures::stream::iter(frames)))
    };
    let message = || Frame::data(Bytes::from_static(b"\x00\0\0\0\x01\xff"));
    let status = |code: &'static str| {
        HeaderMap::from_iter([(
            HeaderName::from_static("grpc-status"),
            HeaderValue::from_static(code),
        )])
    };
    let grpc = || [(CONTENT_TYPE, "application/grpc")];
    let headers = AppendHeaders([("link", "</b>"), ("link", "</a>"), ("x-raw", "a\tb")]);
    let responses: [Box<dyn Fn() -> Response + Send + Sync>; 9] = [
        Box::new(|| ().into_response()),
        Box::new(|| "text".into_response()),
        Box::new(move || (StatusCode::CREATED, headers, "[2,1]").into_response()),
        Box::new(|| vec![0, 0xff].into_response()),
        Box::new(|| (StatusCode::NOT_IMPLEMENTED, "kept").into_response()),
        Box::new(|| "x".repeat(2000).into_response()),
        Box::new(move || frames(vec![message()]).into_response()),
        Box::new(move || {
            let trailers = Frame::trailers(status("0"));
            (grpc(), frames(vec![message(), trailers])).into_response()
        }),
        Box::new(move || (grpc(), status("0")).into_response()),
    ];
    let responses = Arc::new(responses);
    let site = Site::over(
        Idempotency::builder(MemoryStore::new())
            .check_outcomes()
            .build(),
    );
    let layer = layer(&site.idempotency).max_body(1000).keep(|_| true);
    let count = responses.len();
    let app = site.router_of(layer, move |run| responses[run - 1]());
    let (logs, _logging) = logged(tracing::Level::DEBUG);
    for key in (0..count).map(|index| index.to_string()) {
        for _ in 0..2 {
            send(&app, request(&key).body(Body::empty()).unwrap()).await;
        }
    }
    let text = logs.text();
    assert_eq!(site.runs.load(SeqCst), count);
    assert_eq!(
        text.matches("decision=\"executed\"").count(),
        count,
        "{text}"
    );
    assert!(!text.contains("WARN"), "{text}");
}

#[test]
fn a_tokio_runtime_that_ends_leaves_its_requests_to_their_leases() {
    let site = Arc::new(Site::new());
    let app = site.router_of(
        layer(&site.idempotency)
            .lease(Duration::from_secs(3))
            .wait(Duration::from_secs(20)),
        |n| n.to_string().into_response(),
    );
    let lookup = idem_http::lookup(site.idempotency.clone())
        .name("tests")
        .route("POST", "/charges");
    let app = app.route_service(
        "/charges/{key}",
        lookup.scope(|parts| header(parts, crate::support::USER)),
    );
    site.close();
    let first = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    first.block_on(async {
        // One is being served, and the client of the other is gone.
        let served = tokio::spawn({
            let app = app.clone();
            async move { send(&app, request("served").body(Body::empty()).unwrap()).await }
        });
        site.entered().await;
        let gone = tokio::spawn({
            let app = app.clone();
            async move { send(&app, request("gone").body(Body::empty()).unwrap()).await }
        });
        site.entered().await;
        gone.abort();
        assert!(gone.await.is_err_and(|error| error.is_cancelled()) && !served.is_finished());
    });
    drop(first);
    site.open();
    let second = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    second.block_on(async {
        site.idempotency.shutdown(Duration::ZERO).await.unwrap();
        for (key, expected) in [("served", "3"), ("gone", "4")] {
            assert_eq!(
                send(&app, request(key).body(Body::empty()).unwrap())
                    .await
                    .text,
                expected
            );
        }
    });
}
