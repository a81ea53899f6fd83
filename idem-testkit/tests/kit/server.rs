//! The private `redis-server`: started, stopped for a while, killed, started again, and never left
//! behind.

use std::io;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use idem_testkit::{RedisServer, Reply};

use crate::until::until;

fn listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[tokio::test]
async fn it_answers_and_is_empty() {
    let server = RedisServer::start().await.unwrap();
    assert_eq!(
        server.url(),
        format!("redis://127.0.0.1:{}/", server.port())
    );
    assert_eq!(server.cli(&["DBSIZE"]).await.unwrap(), Reply::Number(0));
    assert_eq!(
        server.cli(&["SET", "a", "b\r\nc"]).await.unwrap(),
        Reply::Status("OK".into())
    );
    assert_eq!(
        server.cli(&[&b"GET"[..], b"a"]).await.unwrap(),
        Reply::Value(b"b\r\nc".into())
    );
    assert_eq!(server.cli(&["GET", "missing"]).await.unwrap(), Reply::Nil);
    assert!(
        matches!(server.cli(&["NONSENSE"]).await.unwrap(), Reply::Error(error) if error.starts_with("ERR"))
    );
    let list = server.cli(&["CONFIG", "GET", "appendonly"]).await.unwrap();
    assert_eq!(
        list,
        Reply::List(vec![
            Reply::Value(b"appendonly".into()),
            Reply::Value(b"no".into())
        ])
    );
}

#[tokio::test]
async fn two_are_apart_and_each_ends_when_it_is_dropped() {
    let one = RedisServer::start().await.unwrap();
    let two = RedisServer::start().await.unwrap();
    assert_ne!(one.port(), two.port());
    let dir = one
        .cli(&["CONFIG", "GET", "dir"])
        .await
        .unwrap()
        .to_string();
    let dir = dir.lines().nth(1).unwrap().to_owned();
    let port = one.port();
    drop(one);
    assert!(!listens(port));
    assert!(!std::path::Path::new(&dir).exists());
    assert!(listens(two.port()));
}

#[tokio::test]
async fn paused_it_answers_nothing_until_it_is_resumed() {
    let server = RedisServer::start().await.unwrap();
    server.pause().unwrap();
    assert!(
        tokio::time::timeout(Duration::from_millis(200), server.cli(&["PING"]))
            .await
            .is_err()
    );
    server.resume().unwrap();
    assert_eq!(
        server.cli(&["PING"]).await.unwrap(),
        Reply::Status("PONG".into())
    );
}

#[tokio::test]
async fn paused_it_can_be_dropped() {
    let server = RedisServer::start().await.unwrap();
    let port = server.port();
    server.pause().unwrap();
    drop(server);
    assert!(!listens(port));
}

#[tokio::test]
async fn killed_it_is_gone_and_started_again_it_is_empty_at_the_same_port() {
    let server = RedisServer::start().await.unwrap();
    server.cli(&["SET", "a", "1"]).await.unwrap();
    server.kill().unwrap();
    assert!(!listens(server.port()));
    assert!(server.pause().is_err());
    server.kill().unwrap();
    server.restart().await.unwrap();
    assert_eq!(server.cli(&["DBSIZE"]).await.unwrap(), Reply::Number(0));
    server.restart().await.unwrap();
    assert_eq!(
        server.cli(&["PING"]).await.unwrap(),
        Reply::Status("PONG".into())
    );
}

#[tokio::test]
async fn with_a_log_of_its_data_it_remembers_across_a_restart() {
    let builder = RedisServer::builder()
        .arg("--appendonly")
        .arg("yes")
        .arg("--appendfsync")
        .arg("always");
    let server = builder.start().await.unwrap();
    server.cli(&["SET", "a", "1"]).await.unwrap();
    server.restart().await.unwrap();
    assert_eq!(
        server.cli(&["GET", "a"]).await.unwrap(),
        Reply::Value(b"1".into())
    );
}

#[tokio::test]
async fn the_shared_one_is_one() {
    let (one, two) = tokio::join!(RedisServer::shared(), RedisServer::shared());
    assert_eq!(one.unwrap().port(), two.unwrap().port());
}

#[tokio::test]
async fn a_missing_program_is_an_error_that_says_what_to_do() {
    let error = RedisServer::builder()
        .program("no-such-redis-server")
        .start()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(error.to_string().contains("cargo xtask test"), "{error}");
}

#[tokio::test]
async fn a_server_that_does_not_start_says_why() {
    let error = RedisServer::builder()
        .arg("--no-such-option")
        .arg("1")
        .start()
        .await
        .unwrap_err();
    assert!(error.to_string().contains("no-such-option"), "{error}");
}

/// Not a test of its own: the process that [`the_death_of_its_process_is_its_own`] kills.
#[tokio::test]
#[ignore = "started by another test"]
async fn a_process_with_a_server_that_never_ends() {
    let server = RedisServer::start().await.unwrap();
    // On a line of its own, after what the harness writes.
    println!("\nport {}", server.port());
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn the_death_of_its_process_is_its_own() {
    use std::io::{BufRead as _, BufReader};

    let mut process = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "server::a_process_with_a_server_that_never_ends",
            "--ignored",
            "--nocapture",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let port = lines
        .find_map(|line| line.strip_prefix("port ")?.parse().ok())
        .expect("the process says its server's port");
    assert!(listens(port));
    // By SIGKILL: nothing in the process can see to anything.
    process.kill().unwrap();
    process.wait().unwrap();
    until("the end of the server", || !listens(port)).await;
}
