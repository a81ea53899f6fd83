//! The layer over HTTP/2.

use std::sync::atomic::Ordering::SeqCst;

use axum::response::IntoResponse as _;
use bytes::Bytes;
use futures::StreamExt as _;
use http::HeaderMap;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use reqwest::{Body, Client, RequestBuilder};
use tokio::sync::mpsc;

use super::serve;
use crate::support::{Site, layer};

/// A client that has all of its requests on one connection.
fn client() -> Client {
    super::reqwest_builder()
        .http2_prior_knowledge()
        .no_proxy()
        .build()
        .unwrap()
}

fn post(client: &Client, address: std::net::SocketAddr, key: &str) -> RequestBuilder {
    let request = client.post(format!("http://{address}/charges"));
    request
        .header("x-user", "alice")
        .header("idempotency-key", key)
}

#[tokio::test]
async fn duplicates_on_one_connection_run_one_body() {
    let site = Site::new();
    let address = serve(site.app(|n| n.to_string().into_response())).await;
    let client = client();
    site.close();
    let calls: Vec<_> = (0..100)
        .map(|_| tokio::spawn(post(&client, address, "k").body("10").send()))
        .collect();
    site.entered().await;
    site.open();
    let mut replayed = 0;
    for call in calls {
        let response = call.await.unwrap().unwrap();
        assert_eq!(response.version(), http::Version::HTTP_2);
        replayed += usize::from(response.headers().contains_key("idempotent-replayed"));
        assert_eq!(response.text().await.unwrap(), "1");
    }
    assert_eq!((replayed, site.runs.load(SeqCst)), (99, 1));
}

#[tokio::test]
async fn a_stream_that_is_reset_stops_nothing() {
    let site = Site::new();
    let address = serve(site.app(|n| n.to_string().into_response())).await;
    let client = client();
    site.close();
    let call = tokio::spawn(post(&client, address, "k").body("10").send());
    site.entered().await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    site.open();
    let again = post(&client, address, "k").body("10").send().await.unwrap();
    assert!(again.headers().contains_key("idempotent-replayed"));
    assert_eq!(
        (again.text().await.unwrap().as_str(), site.runs.load(SeqCst)),
        ("1", 1)
    );
}

#[tokio::test]
async fn requests_that_are_reset_at_any_moment_run_once() {
    const REQUESTS: usize = 60;
    let site = Site::new();
    let address = serve(site.app(|n| n.to_string().into_response())).await;
    let client = client();
    // A connection that is open already, so that the resets meet all stages of the requests.
    post(&client, address, "warm")
        .body("10")
        .send()
        .await
        .unwrap();
    for number in 0..REQUESTS {
        let call = tokio::spawn(
            post(&client, address, &format!("k{number}"))
                .body("10")
                .send(),
        );
        for _ in 0..number {
            tokio::task::yield_now().await;
        }
        call.abort();
    }
    for number in 0..REQUESTS {
        let again = post(&client, address, &format!("k{number}"))
            .body("10")
            .send()
            .await
            .unwrap();
        assert_eq!(again.status(), 200, "{number}");
    }
    assert_eq!(site.runs.load(SeqCst), REQUESTS + 1);
}

#[tokio::test]
async fn a_request_that_is_reset_in_its_body_was_not_carried_out() {
    let site = Site::new();
    let address = serve(site.app(|n| n.to_string().into_response())).await;
    let client = client();
    let (chunks, receiver) = mpsc::channel::<Result<Frame<Bytes>, std::io::Error>>(1);
    let body = StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(receiver));
    let call = tokio::spawn(post(&client, address, "k").body(Body::wrap(body)).send());
    for _ in 0..3 {
        chunks
            .send(Ok(Frame::data(Bytes::from("half"))))
            .await
            .unwrap();
    }
    chunks
        .send(Err(std::io::Error::other("cut")))
        .await
        .unwrap();
    assert!(call.await.unwrap().is_err());
    // The key is free, also for another body.
    let whole = post(&client, address, "k")
        .body("whole")
        .send()
        .await
        .unwrap();
    assert!(!whole.headers().contains_key("idempotent-replayed"));
    assert_eq!(
        (whole.text().await.unwrap().as_str(), site.runs.load(SeqCst)),
        ("1", 1)
    );
}

#[tokio::test]
async fn streaming_bodies_of_both_directions_pass_complete() {
    let site = Site::new();
    let streaming = site.router_of(layer(&site.idempotency), |_| {
        let chunks = futures::stream::iter(0..100).map(|_| Ok::<_, std::io::Error>("x"));
        axum::body::Body::from_stream(chunks).into_response()
    });
    let address = serve(streaming).await;
    let client = client();
    let frames = || {
        futures::stream::iter(
            (0..10).map(|_| Ok::<_, std::io::Error>(Frame::data(Bytes::from("ten bytes!")))),
        )
    };
    let body = || Body::wrap(StreamBody::new(frames()));
    let first = post(&client, address, "k")
        .body(body())
        .send()
        .await
        .unwrap();
    assert_eq!(first.text().await.unwrap(), "x".repeat(100));
    // The same body in one piece is the same request.
    let again = post(&client, address, "k")
        .body("ten bytes!".repeat(10))
        .send()
        .await
        .unwrap();
    assert_eq!((again.status().as_u16(), site.runs.load(SeqCst)), (409, 1));
}

#[tokio::test]
async fn a_response_of_grpc_is_replayed_with_its_trailers() {
    let site = Site::new();
    let app = site.router_of(layer(&site.idempotency), |n| {
        let trailers = HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-status"),
            "0".parse().unwrap(),
        )]);
        let frames = [
            Frame::data(Bytes::from(n.to_string())),
            Frame::trailers(trailers),
        ];
        let frames = futures::stream::iter(frames.map(Ok::<_, std::io::Error>));
        (
            [("content-type", "application/grpc")],
            axum::body::Body::new(StreamBody::new(frames)),
        )
            .into_response()
    });
    let address = serve(app).await;
    let client = client();
    for is_replayed in [false, true] {
        let response = post(&client, address, "k")
            .body("message")
            .send()
            .await
            .unwrap();
        assert_eq!(
            response.headers().contains_key("idempotent-replayed"),
            is_replayed
        );
        let body = http::Response::from(response)
            .into_body()
            .collect()
            .await
            .unwrap();
        assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(body.to_bytes(), "1");
    }
}
