//! Requests byte by byte, as no library would send them.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::SeqCst;

use axum::http::{HeaderName, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::serve;
use crate::support::{Site, layer};

/// Sends a head and a body, and reads until the server ends the connection.
async fn answer(address: SocketAddr, head: &str, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("{head}host: x\r\nconnection: close\r\nx-user: alice\r\n\r\n");
    stream
        .write_all(&[head.as_bytes(), body].concat())
        .await
        .unwrap();
    let mut text = Vec::new();
    stream.read_to_end(&mut text).await.unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn two_keys_in_any_spelling_and_keys_with_foreign_bytes_are_refused_and_nothing_runs() {
    let site = Site::new();
    let address = serve(site.router(layer(&site.idempotency))).await;
    let post = "POST /charges HTTP/1.1\r\ncontent-length: 2\r\n";
    for keys in [
        "idempotency-key: a\r\nIdempotency-Key: b\r\n",
        "idempotency-key: a\r\nIDEMPOTENCY-KEY: a\r\n",
        "idempotency-key: a\r\nidempotency-key:\r\n",
        "idempotency-key: a, b\r\n",
        "idempotency-key: \"a\", \"b\"\r\n",
        // The same of a proxy that leaves the space out, and a parameter of a raw key.
        "idempotency-key: a,b\r\n",
        "idempotency-key: a;owner=bob\r\n",
        "idempotency-key: a\0b\r\n",
        "idempotency-key: a\r\n b\r\n",
        "idempotency-key: \u{1d7d8}\r\n",
        "idempotency-key: \u{a0}a\r\n",
    ] {
        let refused = answer(address, &format!("{post}{keys}"), b"10").await;
        assert!(refused.starts_with("HTTP/1.1 400"), "{keys:?}: {refused}");
    }
    let long = format!("{post}idempotency-key: {}\r\n", "k".repeat(70_000));
    let refused = answer(address, &long, b"10").await;
    assert!(refused.starts_with("HTTP/1.1 4"), "{refused}");
    assert_eq!(site.runs.load(SeqCst), 0);
}

#[tokio::test]
async fn a_key_in_a_trailer_is_none_and_one_in_the_head_stays_the_key() {
    let site = Site::new();
    let address = serve(site.router(layer(&site.idempotency).required(true))).await;
    let post =
        "POST /charges HTTP/1.1\r\ntransfer-encoding: chunked\r\ntrailer: idempotency-key\r\n";
    let body = b"2\r\n10\r\n0\r\nidempotency-key: b\r\n\r\n";
    let missing = answer(address, post, body).await;
    assert!(
        missing.starts_with("HTTP/1.1 400") && missing.contains("missing_key"),
        "{missing}"
    );
    for replayed in [false, true] {
        let got = answer(address, &format!("{post}idempotency-key: a\r\n"), body).await;
        assert_eq!(got.contains("idempotent-replayed: true"), replayed, "{got}");
    }
    // It is the key `b` that is free.
    let other = "POST /charges HTTP/1.1\r\ncontent-length: 2\r\nidempotency-key: b\r\n";
    assert!(
        !answer(address, other, b"10")
            .await
            .contains("idempotent-replayed")
    );
    assert_eq!(site.runs.load(SeqCst), 2);
}

#[tokio::test]
async fn a_client_that_expects_100_is_asked_for_its_body_only_if_its_request_is_let_in() {
    let site = Site::new();
    let address = serve(site.app(|n| n.to_string().into_response())).await;
    let head = |key: &str| {
        let headers = "host: x\r\nconnection: close\r\nexpect: 100-continue\r\nx-user: alice\r\n";
        format!(
            "POST /charges HTTP/1.1\r\n{headers}content-length: 2\r\nidempotency-key: {key}\r\n\r\n"
        )
    };
    let mut refused = String::new();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(head("not valid").as_bytes())
        .await
        .unwrap();
    stream.read_to_string(&mut refused).await.unwrap();
    assert!(refused.starts_with("HTTP/1.1 400"), "{refused}");
    for replayed in [false, true] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(head("k").as_bytes()).await.unwrap();
        let mut asked = [0; 25];
        stream.read_exact(&mut asked).await.unwrap();
        assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(b"10").await.unwrap();
        let mut got = String::new();
        stream.read_to_string(&mut got).await.unwrap();
        assert!(
            got.starts_with("HTTP/1.1 200") && got.ends_with("\r\n\r\n1"),
            "{got}"
        );
        assert_eq!(got.contains("idempotent-replayed: true"), replayed);
    }
    assert_eq!(site.runs.load(SeqCst), 1);
}

/// The head of an answer, without what belongs to one response or marks a replay.
fn lasting_headers(answer: &str) -> Vec<&str> {
    let (head, _) = answer.split_once("\r\n\r\n").unwrap();
    let of_one = ["date:", "idempotent-replayed:", "connection:"];
    let is_lasting = |line: &&str| !of_one.iter().any(|name| line.starts_with(name));
    let mut lines: Vec<_> = head.lines().filter(is_lasting).collect();
    lines.sort_unstable();
    lines
}

#[tokio::test]
async fn a_replay_has_all_headers_of_the_first_response_with_a_body_and_without() {
    let heads: [&[(&str, &str)]; 7] = [
        &[],
        &[("content-type", "text/x"), ("x-kept", "1")],
        &[("content-length", "4")],
        &[("content-length", "1234"), ("content-type", "text/x")],
        &[("content-length", "0")],
        &[("transfer-encoding", "chunked")],
        &[
            ("content-range", "bytes 0-3/9"),
            ("etag", "\"7\""),
            ("vary", "a, b"),
        ],
    ];
    let statuses = [200, 201, 202, 204, 205, 206, 304, 308, 400, 404, 410, 422];
    for (status, head) in statuses
        .into_iter()
        .flat_map(|status| heads.map(|head| (status, head)))
    {
        for (method, body) in [
            ("POST", "text"),
            ("POST", ""),
            ("HEAD", "text"),
            ("HEAD", ""),
        ] {
            // What a server sends of it: of a proxy's answer to HEAD, only the head.
            let has_no_body = method == "HEAD" || status == 304;
            let is_framed = head.iter().any(|(name, value)| {
                *name == "transfer-encoding"
                    || *name == "content-length" && *value != body.len().to_string()
            });
            if [204, 304].contains(&status) && !body.is_empty() || is_framed && !has_no_body {
                continue;
            }
            let site = Site::new();
            let methods = [Method::POST, Method::HEAD];
            let app = site.router_of(layer(&site.idempotency).methods(methods), move |_| {
                let mut response = Response::new(body.into());
                *response.status_mut() = StatusCode::from_u16(status).unwrap();
                let head = head
                    .iter()
                    .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
                response.headers_mut().extend(head);
                response
            });
            let address = serve(app).await;
            let request = format!(
                "{method} /charges HTTP/1.1\r\ncontent-length: 0\r\nidempotency-key: k\r\n"
            );
            let first = answer(address, &request, b"").await;
            let again = answer(address, &request, b"").await;
            let case = format!("{method} {status} {body:?} {head:?}: {again}");
            assert_eq!(site.runs.load(SeqCst), 1, "{case}");
            assert!(again.contains("idempotent-replayed: true"), "{case}");
            assert_eq!(lasting_headers(&again), lasting_headers(&first), "{case}");
        }
    }
}
