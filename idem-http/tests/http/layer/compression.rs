//! The layer with compression around it, and inside of it.

use std::convert::Infallible;
use std::sync::atomic::Ordering::SeqCst;

use axum::Router;
use axum::body::Body;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, VARY};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tower::{ServiceExt as _, service_fn};
use tower_http::compression::CompressionLayer;
use tower_http::decompression::Decompression;

use crate::support::{Site, layer, request};

/// A response as a client with these encodings gets it.
struct Decoded {
    status: StatusCode,
    encoding: Option<String>,
    is_replay: bool,
    /// Whether caches are told that it depends on what the client accepts.
    varies: bool,
    text: String,
}

async fn send(app: &Router, accepts: &str) -> Decoded {
    let request = request("k")
        .header(ACCEPT_ENCODING, accepts)
        .body(Body::from("cents=1999"))
        .unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let encoding = response
        .headers()
        .get(CONTENT_ENCODING)
        .map(|value| value.to_str().unwrap().to_owned());
    let is_replay = response.headers().contains_key("idempotent-replayed");
    let varies = response
        .headers()
        .get_all(VARY)
        .iter()
        .any(|value| value == "accept-encoding");
    let mut response = Some(response);
    let network = service_fn(|_: Request<Body>| {
        std::future::ready(Ok::<_, Infallible>(response.take().unwrap()))
    });
    let decoded = Decompression::new(network)
        .oneshot(Request::new(Body::empty()))
        .await
        .unwrap();
    let status = decoded.status();
    let bytes = axum::body::to_bytes(Body::new(decoded.into_body()), usize::MAX)
        .await
        .unwrap();
    Decoded {
        status,
        encoding,
        is_replay,
        varies,
        text: String::from_utf8(bytes.to_vec()).unwrap(),
    }
}

fn text() -> String {
    (0..1000)
        .map(|line| line.to_string())
        .collect::<Vec<_>>()
        .join(" charge\n")
}

/// The encodings of a request, and that of its response.
const ACCEPTED: [(&str, Option<&str>); 4] = [
    ("gzip", Some("gzip")),
    ("deflate", Some("deflate")),
    ("identity", None),
    ("gzip, deflate", Some("gzip")),
];

#[tokio::test]
async fn a_replay_through_compression_outside_of_the_layer_decodes_to_the_same_bytes_in_every_encoding()
 {
    let site = Site::new();
    let app = site
        .app(|_| text().into_response())
        .layer(CompressionLayer::new());
    for (place, (accepts, encoding)) in ACCEPTED.into_iter().enumerate() {
        let got = send(&app, accepts).await;
        assert_eq!(
            (got.status, got.encoding.as_deref()),
            (StatusCode::OK, encoding)
        );
        assert_eq!((got.is_replay, got.varies), (place > 0, true), "{accepts}");
        assert!(got.text == text(), "{accepts}: {} bytes", got.text.len());
    }
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[tokio::test]
async fn compression_inside_of_the_layer_passes_complete_and_leaves_nothing_to_replay() {
    async fn charge() -> Response {
        text().into_response()
    }
    let site = Site::new();
    let inside = Router::new().route("/charges", post(charge).layer(CompressionLayer::new()));
    let app = inside.layer(layer(&site.idempotency));
    let first = send(&app, "gzip").await;
    assert_eq!(first.encoding.as_deref(), Some("gzip"));
    assert!(first.text == text(), "{} bytes", first.text.len());
    // It has no known length, so it might never end.
    for accepts in ["gzip", "deflate", "identity"] {
        let again = send(&app, accepts).await;
        assert_eq!((again.status, again.encoding), (StatusCode::CONFLICT, None));
        assert!(again.text.contains("already_done"), "{}", again.text);
    }
}
