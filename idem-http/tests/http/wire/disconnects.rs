//! A client that disconnects, at every stage of its request.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::SeqCst;

use axum::response::IntoResponse as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::serve;
use crate::support::Site;

const BODY: &str = "cents=1999";

fn request(key: usize) -> String {
    let headers =
        format!("host: x\r\nconnection: close\r\nx-user: alice\r\nidempotency-key: {key}\r\n");
    format!(
        "POST /charges HTTP/1.1\r\n{headers}content-length: {}\r\n\r\n{BODY}",
        BODY.len()
    )
}

async fn whole(address: SocketAddr, key: usize) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request(key).as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn a_client_that_is_gone_after_any_number_of_bytes_finds_its_key_free_or_answered() {
    let site = Site::new();
    let address = serve(site.app(|n| n.to_string().into_response())).await;
    let length = request(100).len();
    let keys = 100..100 + length + 1;
    for (key, sent) in keys.clone().zip(0..) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(&request(key).as_bytes()[..sent])
            .await
            .unwrap();
        drop(stream);
    }
    for (key, expected) in keys.zip(0..) {
        let answer = whole(address, key).await;
        assert!(
            answer.starts_with("HTTP/1.1 200"),
            "gone after {expected} bytes: {answer}"
        );
    }
    // Each ran once: for the client that was gone, or for the one that came again.
    assert_eq!(site.runs.load(SeqCst), length + 1);
}

#[tokio::test]
async fn a_client_that_is_gone_while_its_request_runs_or_within_the_response_gets_it_next_time() {
    let site = Site::new();
    let large = "x".repeat(200_000);
    let answer = large.clone();
    let address = serve(site.app(move |n| format!("{n} {answer}").into_response())).await;
    site.close();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request(1).as_bytes()).await.unwrap();
    site.entered().await;
    drop(stream);
    site.open();
    assert!(whole(address, 1).await.ends_with(&large));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request(2).as_bytes()).await.unwrap();
    stream.read_exact(&mut [0; 1000]).await.unwrap();
    drop(stream);
    let again = whole(address, 2).await;
    assert!(again.contains("idempotent-replayed: true") && again.ends_with(&format!("2 {large}")));
    assert_eq!(site.runs.load(SeqCst), 2);
}
