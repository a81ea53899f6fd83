//! The faulty network.

use std::io;
use std::time::Duration;

use idem_testkit::{Gate, Mishap, Passing, Proxy, RedisServer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// A moment in which a reply comes that is not held back.
const MOMENT: Duration = Duration::from_millis(200);
/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address()).await.unwrap()
}

/// Sends a command and gives the first bytes of the reply; none if the connection ended.
async fn ask(stream: &mut TcpStream, command: &str) -> io::Result<String> {
    stream
        .write_all(format!("{command}\r\n").as_bytes())
        .await?;
    answer(stream).await
}

async fn answer(stream: &mut TcpStream) -> io::Result<String> {
    let mut reply = [0; 64];
    let length = timeout(LONG, stream.read(&mut reply)).await??;
    Ok(String::from_utf8_lossy(&reply[..length]).into_owned())
}

/// Whether a connection ended, with or without an error.
fn ended(answer: io::Result<String>) -> bool {
    answer.map_or_else(
        |error| error.kind() != io::ErrorKind::TimedOut,
        |text| text.is_empty(),
    )
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
async fn led_to_another_server_new_connections_reach_that_one_and_others_stay() {
    let one = RedisServer::start().await.unwrap();
    let two = RedisServer::start().await.unwrap();
    let proxy = Proxy::start(&one.url()).await.unwrap();
    let mut first = connect(&proxy).await;
    assert_eq!(ask(&mut first, "SET a 1").await.unwrap(), "+OK\r\n");
    proxy.lead_to(&two.url());
    let mut second = connect(&proxy).await;
    assert_eq!(ask(&mut second, "EXISTS a").await.unwrap(), ":0\r\n");
    assert_eq!(ask(&mut first, "EXISTS a").await.unwrap(), ":1\r\n");
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
    assert_eq!(
        ask(&mut connect(&proxy).await, "PING").await.unwrap(),
        "+PONG\r\n"
    );
}

#[tokio::test]
async fn swallowed_replies_are_to_requests_that_were_carried_out() {
    let server = RedisServer::start().await.unwrap();
    let proxy = Proxy::start(&server.url()).await.unwrap();
    let mut stream = connect(&proxy).await;
    assert_eq!(ask(&mut stream, "PING").await.unwrap(), "+PONG\r\n");
    proxy.swallow_replies(true);
    stream.write_all(b"SET a 1\r\n").await.unwrap();
    let carried_out = async {
        while server.cli(&["GET", "a"]).await.unwrap().bytes() != Some(&b"1"[..]) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, carried_out).await.unwrap();
    assert!(timeout(MOMENT, answer(&mut stream)).await.is_err());
    proxy.restore();
    // A reply that comes now would answer another request.
    assert!(ended(answer(&mut stream).await));
    assert_eq!(
        ask(&mut connect(&proxy).await, "PING").await.unwrap(),
        "+PONG\r\n"
    );
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
    assert_eq!(
        ask(&mut connect(&proxy).await, "PING").await.unwrap(),
        "+PONG\r\n"
    );
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

/// The requests that count something up.
fn increments(proxy: &Proxy) -> Passing {
    proxy.passing(|words| words.first() == Some(&&b"INCR"[..]))
}

async fn counted(server: &RedisServer) -> Option<i64> {
    let reply = server.cli(&["GET", "n"]).await.unwrap();
    reply
        .bytes()
        .map(|digits| std::str::from_utf8(digits).unwrap().parse().unwrap())
}

#[tokio::test]
async fn a_single_request_or_reply_is_lost_with_its_connection() {
    let server = RedisServer::start().await.unwrap();
    let proxy = Proxy::start(&server.url()).await.unwrap();
    let increments = increments(&proxy);
    for mishap in [Mishap::Pass, Mishap::LoseRequest, Mishap::LoseReply] {
        increments.next(mishap);
    }
    let mut stream = connect(&proxy).await;
    // Bytes that come with it, but before it, are passed on.
    assert_eq!(
        ask(&mut stream, "PING\r\nINCR n").await.unwrap(),
        "+PONG\r\n:1\r\n"
    );
    assert!(ended(ask(&mut stream, "INCR n").await));
    assert_eq!(counted(&server).await, Some(1));
    assert!(ended(
        ask(&mut connect(&proxy).await, "*2\r\n$4\r\nINCR\r\n$1\r\nn").await
    ));
    assert_eq!((counted(&server).await, increments.calls()), (Some(2), 3));
    assert_eq!(
        ask(&mut connect(&proxy).await, "INCR n").await.unwrap(),
        ":3\r\n"
    );
}

#[tokio::test]
async fn a_request_that_hangs_arrives_when_the_gate_opens_even_if_its_sender_is_gone() {
    let server = RedisServer::start().await.unwrap();
    let proxy = Proxy::start(&server.url()).await.unwrap();
    let increments = increments(&proxy);
    let gate = Gate::new();
    increments.next(Mishap::Hang(gate.clone()));
    let mut stream = connect(&proxy).await;
    stream.write_all(b"INCR n\r\n").await.unwrap();
    gate.reached().await;
    drop(stream);
    assert_eq!(counted(&server).await, None);
    gate.open();
    let arrived = async {
        while counted(&server).await.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, arrived).await.unwrap();
}

#[tokio::test]
async fn a_reply_that_hangs_holds_up_those_behind_it() {
    let server = RedisServer::start().await.unwrap();
    let proxy = Proxy::start(&server.url()).await.unwrap();
    let increments = increments(&proxy);
    let gate = Gate::new();
    increments.next(Mishap::HangReply(gate.clone()));
    let mut stream = connect(&proxy).await;
    stream
        .write_all(b"PING\r\nINCR n\r\nPING\r\n")
        .await
        .unwrap();
    assert_eq!(answer(&mut stream).await.unwrap(), "+PONG\r\n");
    gate.reached().await;
    assert_eq!(counted(&server).await, Some(1));
    assert!(timeout(MOMENT, answer(&mut stream)).await.is_err());
    gate.open();
    assert_eq!(answer(&mut stream).await.unwrap(), ":1\r\n+PONG\r\n");
}

#[tokio::test]
async fn what_is_pushed_is_no_reply_to_anybody() {
    let server = RedisServer::start().await.unwrap();
    let proxy = Proxy::start(&server.url()).await.unwrap();
    let increments = increments(&proxy);
    increments.next(Mishap::LoseReply);
    let mut stream = connect(&proxy).await;
    stream
        .write_all(b"HELLO 3\r\nSUBSCRIBE c\r\n")
        .await
        .unwrap();
    let mut said = String::new();
    while !said.ends_with("$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n") {
        said += &answer(&mut stream).await.unwrap();
    }
    server.cli(&["PUBLISH", "c", "x"]).await.unwrap();
    assert!(answer(&mut stream).await.unwrap().contains("message"));
    assert!(ended(ask(&mut stream, "INCR n").await));
    assert_eq!(counted(&server).await, Some(1));
}
