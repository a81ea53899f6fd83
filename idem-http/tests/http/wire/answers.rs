//! Responses as they are on the wire, the first time and as replays.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{ETAG, LOCATION};
use axum::response::IntoResponse as _;
use http::StatusCode;
use idem_core::{Idempotency, MemoryStore, StoreErrorKind};
use idem_http::{Fingerprints, IdempotencyClient, IdempotencyLayer, RequestKey};
use idem_testkit::{Fault, FaultStore, Step};
use reqwest::Client;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::serve;
use crate::support::{Site, layer};

fn head(key: &str, more: &str) -> String {
    format!(
        "POST /charges HTTP/1.1\r\nhost: x\r\nx-user: alice\r\nidempotency-key: {key}\r\n{more}"
    )
}

/// All that a server sends for these bytes, until it ends the connection.
async fn exchange(address: SocketAddr, sent: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(sent.as_bytes()).await.unwrap();
    let mut text = Vec::new();
    // A connection that is reset has sent what it has sent.
    let _ = stream.read_to_end(&mut text).await;
    String::from_utf8_lossy(&text).into_owned()
}

fn http2() -> Client {
    super::reqwest_builder()
        .http2_prior_knowledge()
        .no_proxy()
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_response_without_a_body_is_replayed_without_one_and_the_connection_goes_on() {
    for status in [
        StatusCode::NO_CONTENT,
        StatusCode::NOT_MODIFIED,
        StatusCode::SEE_OTHER,
    ] {
        let site = Site::new();
        let app =
            site.app(move |_| (status, [(ETAG, "\"7\""), (LOCATION, "/c/7")]).into_response());
        let address = serve(app).await;
        let whole = head("k", "content-length: 2\r\n\r\n10");
        let last = head("k", "connection: close\r\ncontent-length: 2\r\n\r\n10");
        let text = exchange(address, &[whole.as_str(), &whole, &last].concat()).await;
        let answers: Vec<_> = text.split("HTTP/1.1 ").skip(1).collect();
        assert_eq!(answers.len(), 3, "{text}");
        for (place, answer) in answers.into_iter().enumerate() {
            assert!(
                answer.starts_with(status.as_str()) && answer.ends_with("\r\n\r\n"),
                "{text}"
            );
            assert_eq!(
                answer.contains("idempotent-replayed: true"),
                place > 0,
                "{text}"
            );
            assert!(
                answer.contains("etag: \"7\"") && answer.contains("location: /c/7"),
                "{text}"
            );
            assert!(
                status != StatusCode::NO_CONTENT || !answer.contains("content-length"),
                "{text}"
            );
        }
        assert_eq!(site.runs.load(SeqCst), 1);
    }
}

#[tokio::test]
async fn a_refused_request_leaves_its_connection_to_the_next_one() {
    let site = Site::new();
    let address = serve(site.router(layer(&site.idempotency).max_body(8))).await;
    let next = head("k", "connection: close\r\ncontent-length: 2\r\n\r\n10");
    for (refused, status) in [
        (head("not valid", "content-length: 2\r\n\r\n10"), "400"),
        (head("l", "content-length: 9\r\n\r\n123456789"), "413"),
        (
            head(
                "m",
                "transfer-encoding: chunked\r\n\r\n9\r\n123456789\r\n0\r\n\r\n",
            ),
            "413",
        ),
        (
            head("n", "content-length: 2\r\n\r\n10").replace("alice", ""),
            "401",
        ),
    ] {
        let text = exchange(address, &[&refused, next.as_str()].concat()).await;
        assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{text}");
        assert!(
            text.contains("HTTP/1.1 200") && text.ends_with("\r\n\r\n1"),
            "{text}"
        );
    }
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[tokio::test]
async fn a_client_whose_body_is_far_above_the_limit_gets_the_413_and_not_a_lost_connection() {
    let site = Site::new();
    let address = serve(site.router(layer(&site.idempotency))).await;
    let idempotent = IdempotencyClient::new("t").tries(1);
    let http1 = super::reqwest_builder().no_proxy().build().unwrap();
    for reqwest in [http1, http2()] {
        let client = reqwest_middleware::ClientBuilder::new(reqwest)
            .with(idempotent.clone())
            .build();
        for chunked in [false, true] {
            let request = client
                .post(format!("http://{address}/charges"))
                .header("x-user", "alice");
            let chunks = futures::stream::iter((0..64).map(|_| {
                let data = http_body::Frame::data(bytes::Bytes::from(vec![b'x'; 1 << 16]));
                Ok::<_, std::io::Error>(data)
            }));
            let body = if chunked {
                reqwest::Body::wrap(http_body_util::StreamBody::new(chunks))
            } else {
                reqwest::Body::from(vec![b'x'; 1 << 22])
            };
            let got = request.body(body).send().await;
            assert_eq!(
                got.unwrap().status(),
                StatusCode::PAYLOAD_TOO_LARGE,
                "chunked: {chunked}"
            );
        }
    }
    assert_eq!(site.runs.load(SeqCst), 0);
}

#[tokio::test]
async fn a_duplicate_of_a_large_upload_gets_the_replay_and_not_a_lost_connection() {
    let site = Site::new();
    let by_url = layer(&site.idempotency).fingerprint(Fingerprints::url());
    let address = serve(site.router(by_url)).await;
    let http1 = super::reqwest_builder().no_proxy().build().unwrap();
    for reqwest in [http1, http2()] {
        for _ in ["the first, or a duplicate", "a duplicate"] {
            let request = reqwest
                .post(format!("http://{address}/charges"))
                .header("x-user", "alice")
                .header("idempotency-key", "k")
                .body(vec![b'x'; 1 << 23]);
            let got = request.send().await.unwrap();
            assert_eq!(got.text().await.unwrap(), "1");
        }
    }
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[tokio::test]
async fn a_response_that_breaks_off_is_cut_on_the_wire_and_its_request_is_done() {
    let site = Site::new();
    let app = site.app(|_| {
        let frames = [Ok("half"), Err(std::io::Error::other("cut"))];
        Body::from_stream(futures::stream::iter(frames)).into_response()
    });
    let address = serve(app).await;
    let text = exchange(address, &head("k", "content-length: 2\r\n\r\n10")).await;
    // The server ends the connection, maybe before it has sent the head.
    assert!(!text.ends_with("0\r\n\r\n"), "{text}");
    let again = exchange(
        address,
        &head("k", "connection: close\r\ncontent-length: 2\r\n\r\n10"),
    )
    .await;
    assert!(
        again.starts_with("HTTP/1.1 409") && again.contains("already_done"),
        "{again}"
    );
    let client = http2();
    let sent = || {
        let request = client
            .post(format!("http://{address}/charges"))
            .header("x-user", "alice");
        request.header("idempotency-key", "h2").body("10").send()
    };
    // The stream is reset, maybe before its head is read.
    let first = sent().await;
    assert!(first.is_err() || first.unwrap().text().await.is_err());
    assert_eq!(sent().await.unwrap().status(), StatusCode::CONFLICT);
    assert_eq!(site.runs.load(SeqCst), 2);
}

#[tokio::test]
async fn a_client_of_http2_that_drops_a_response_in_its_middle_gets_all_of_it_next_time() {
    let site = Site::new();
    let large = "x".repeat(900_000);
    let answer = large.clone();
    let address = serve(site.app(move |n| format!("{n} {answer}").into_response())).await;
    let client = http2();
    let sent = || {
        let request = client
            .post(format!("http://{address}/charges"))
            .header("x-user", "alice");
        request.header("idempotency-key", "k").body("10").send()
    };
    let mut first = sent().await.unwrap();
    assert!(!first.chunk().await.unwrap().unwrap().is_empty());
    drop(first);
    let again = sent().await.unwrap();
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert!(again.text().await.unwrap() == format!("1 {large}"));
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[tokio::test]
async fn a_handler_that_panics_ends_its_connection_or_stream_and_frees_the_key() {
    let site = Site::new();
    let app = site.app(|n| {
        if n % 2 == 1 {
            panic!("a bug")
        } else {
            "well".into_response()
        }
    });
    let address = serve(app).await;
    let whole = head("k", "connection: close\r\ncontent-length: 2\r\n\r\n10");
    assert_eq!(exchange(address, &whole).await, "");
    assert!(exchange(address, &whole).await.ends_with("well"));
    let client = http2();
    let sent = || {
        let request = client
            .post(format!("http://{address}/charges"))
            .header("x-user", "alice");
        request.header("idempotency-key", "h2").body("10").send()
    };
    assert!(sent().await.is_err());
    assert_eq!(sent().await.unwrap().text().await.unwrap(), "well");
    assert_eq!(site.runs.load(SeqCst), 4);
}

#[tokio::test]
async fn what_a_duplicate_asks_for_in_its_headers_changes_nothing_of_its_replay() {
    let site = Site::new();
    let address =
        serve(site.app(|n| ([(ETAG, "\"7\"")], format!("charge {n}")).into_response())).await;
    let end = "connection: close\r\ncontent-length: 2\r\n\r\n10";
    let first = exchange(address, &head("k", end)).await;
    for asks in [
        "range: bytes=0-1\r\n",
        "if-none-match: \"7\"\r\n",
        "if-match: \"8\"\r\n",
        "accept-encoding: gzip, br\r\n",
        "accept: application/json\r\naccept-language: de\r\n",
        "cookie: a=b\r\nuser-agent: other\r\ntraceparent: 00-0-0-00\r\n",
    ] {
        let again = exchange(address, &head("k", &format!("{asks}{end}"))).await;
        let without_mark: String = again
            .split_inclusive("\r\n")
            .filter(|line| !line.contains("replayed"))
            .collect();
        let without_date = |text: &str| -> Vec<String> {
            let mut lines: Vec<_> = text
                .lines()
                .filter(|line| !line.starts_with("date"))
                .map(str::to_owned)
                .collect();
            lines.sort();
            lines
        };
        assert!(
            again.contains("idempotent-replayed: true"),
            "{asks}: {again}"
        );
        assert_eq!(without_date(&without_mark), without_date(&first), "{asks}");
    }
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[tokio::test]
async fn a_response_that_the_store_does_not_take_is_delivered_and_recorded_once_the_store_is_back()
{
    let store = FaultStore::new(MemoryStore::new());
    let faults = store.faults();
    let site = Site::over(
        Idempotency::builder(store)
            .wait(Duration::from_millis(20))
            .build(),
    );
    let address = serve(site.app(|n| n.to_string().into_response())).await;
    let whole = head("k", "connection: close\r\ncontent-length: 2\r\n\r\n10");
    faults.always(Step::Commit, Fault::Fail(StoreErrorKind::Unavailable));
    let first = exchange(address, &whole).await;
    assert!(
        first.starts_with("HTTP/1.1 200") && first.ends_with("\r\n\r\n1"),
        "{first}"
    );
    let early = exchange(address, &whole).await;
    assert!(
        early.starts_with("HTTP/1.1 409") && early.contains("retry-after: 1"),
        "{early}"
    );
    faults.clear();
    // It is recorded in the background.
    site.idempotency
        .shutdown(Duration::from_secs(30))
        .await
        .unwrap();
    let again = exchange(address, &whole).await;
    assert!(
        again.contains("idempotent-replayed: true") && again.ends_with("\r\n\r\n1"),
        "{again}"
    );
    assert_eq!(site.runs.load(SeqCst), 1);
}

#[tokio::test]
async fn a_redirect_that_keeps_the_method_carries_the_key_to_its_target() {
    let site = Site::new();
    // Credentials do not go from host to host, so the sender is not asked for them.
    let address =
        serve(site.router(IdempotencyLayer::new(site.idempotency.clone()).unscoped())).await;
    let moved = move |uri: axum::http::Uri| async move {
        (
            StatusCode::TEMPORARY_REDIRECT,
            [(LOCATION, format!("http://{address}{uri}"))],
        )
    };
    let front = serve(axum::Router::new().fallback(moved)).await;
    let reqwest = super::reqwest_builder().no_proxy().build().unwrap();
    let client = reqwest_middleware::ClientBuilder::new(reqwest)
        .with(IdempotencyClient::new("t"))
        .build();
    for host in [front, address] {
        let sent = client
            .post(format!("http://{host}/charges"))
            .with_extension(RequestKey::new("order-7"));
        let answer = sent.body("10").send().await.unwrap();
        let status = answer.status();
        let text = answer.text().await.unwrap();
        assert!(status == StatusCode::OK && text == "1", "{status} {text}");
    }
    assert_eq!(site.runs.load(SeqCst), 1);
}
