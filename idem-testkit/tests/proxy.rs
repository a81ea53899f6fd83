//! The faulty network.

#![allow(clippy::unwrap_used)]

use std::io;
use std::time::Duration;

use idem_testkit::{Proxy, RedisServer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// A moment in which a reply comes that is not held back.
const MOMENT: Duration = Duration::from_millis(200);
/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(10);

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address()).await.unwrap()
}

/// Sends a command and gives the first bytes of the reply; none if the connection ended.
async fn ask(stream: &mut TcpStream, command: &str) -> io::Result<String> {
    stream.write_all(format!("{command}\r\n").as_bytes()).await?;
    answer(stream).await
}

async fn answer(stream: &mut TcpStream) -> io::Result<String> {
    let mut reply = [0; 64];
    let length = timeout(LONG, stream.read(&mut reply)).await??;
    Ok(String::from_utf8_lossy(&reply[..length]).into_owned())
}

/// Whether a connection ended, with or without an error.
fn ended(answer: io::Result<String>) -> bool {
    answer.map_or_else(|error| error.kind() != io::ErrorKind::TimedOut, |text| text.is_empty())
}

#[tokio::test]
async fn it_passes_on_what_is_said() {
    let server = RedisServer::start().await.unwrap();
    let proxy = Proxy::start(&server.url()).await.unwrap();
    let mut stream = connect(&proxy).await;
    assert_eq!(ask(&mut stream, "PING").await.unwrap(), "+PONG\r\n");
    assert_eq!(ask(&mut stream, "SET a 1").await.unwrap(), "+OK\r\n");
    assert!(proxy.url().starts_with("redis://127.0.0.1:"));
}

#[tokio::test]
async fn cut_it_ends_connections_until_it_is_restored() {
    let server = RedisServer::start().await.unwrap();
    let proxy = Proxy::start(&server.url()).await.unwrap();
    let mut stream = connect(&proxy).await;
    assert_eq!(ask(&mut stream, "PING").await.unwrap(), "+PONG\r\n");
    proxy.cut();
    assert!(ended(answer(&mut stream).await));
    let mut refused = connect(&proxy).await;
    assert!(ended(ask(&mut refused, "PING").await));
    proxy.restore();
    assert_eq!(ask(&mut connect(&proxy).await, "PING").await.unwrap(), "+PONG\r\n");
}

#[tokio::test]
async fn swallowed_replies_are_to_requests_that_were_carried_out() {
    let server = RedisServer::start().await.unwrap();
    let proxy = Proxy::start(&server.url()).await.unwrap();
    let mut stream = connect(&proxy).await;
    assert_eq!(ask(&mut stream, "PING").await.unwrap(), "+PONG\r\n");
    proxy.swallow_replies(true);
    assert!(timeout(MOMENT, ask(&mut stream, "SET a 1")).await.is_err());
    assert_eq!(server.cli(&["GET", "a"]).await.unwrap().bytes(), Some(&b"1"[..]));
    proxy.restore();
    // What comes now would answer another request.
    assert!(ended(answer(&mut stream).await));
    assert_eq!(ask(&mut connect(&proxy).await, "PING").await.unwrap(), "+PONG\r\n");
}

#[tokio::test]
async fn replies_can_be_late() {
    let server = RedisServer::start().await.unwrap();
    let proxy = Proxy::start(&server.url()).await.unwrap();
    let mut stream = connect(&proxy).await;
    proxy.delay(MOMENT);
    // Tests measure what the library is not to: see clippy.toml.
    #[allow(clippy::disallowed_methods)]
    let began = Instant::now();
    assert_eq!(ask(&mut stream, "PING").await.unwrap(), "+PONG\r\n");
    #[allow(clippy::disallowed_methods)]
    let took = began.elapsed();
    assert!(took >= MOMENT, "{took:?}");
}

#[tokio::test]
async fn a_server_that_is_down_looks_as_if_the_connection_ended() {
    let server = RedisServer::start().await.unwrap();
    let proxy = Proxy::start(&server.url()).await.unwrap();
    server.kill().unwrap();
    assert!(ended(ask(&mut connect(&proxy).await, "PING").await));
    server.restart().await.unwrap();
    assert_eq!(ask(&mut connect(&proxy).await, "PING").await.unwrap(), "+PONG\r\n");
}

#[tokio::test]
async fn dropped_it_takes_its_connections_along() {
    let server = RedisServer::start().await.unwrap();
    let proxy = Proxy::start(&server.url()).await.unwrap();
    let mut stream = connect(&proxy).await;
    assert_eq!(ask(&mut stream, "PING").await.unwrap(), "+PONG\r\n");
    drop(proxy);
    assert!(ended(answer(&mut stream).await));
}
