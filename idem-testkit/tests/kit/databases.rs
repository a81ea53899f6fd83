//! A private PostgreSQL: what it leaves behind, and its pauses.

use std::fs;
use std::process::{Command, Stdio};

use idem_testkit::PostgresServer;

use crate::until::until;

pub(crate) fn ask(url: &str, statement: &str) -> String {
    let output = Command::new("psql")
        .args([url, "--no-psqlrc", "-tAc", statement])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The segment of shared memory that a PostgreSQL names in its file.
fn segment(server: &PostgresServer) -> String {
    let file = fs::read_to_string(server.dir().join("data/postmaster.pid")).unwrap();
    let line = file.lines().nth(6).unwrap();
    line.split_whitespace().last().unwrap().to_owned()
}

fn is_there(segment: &str) -> bool {
    let all = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    all.lines()
        .any(|line| line.split_whitespace().nth(1) == Some(segment))
}

/// The segment ends with the last process of the server, which may end after the first.
async fn until_it_is_gone(segment: &str) {
    until(&format!("segment {segment} is gone"), || !is_there(segment)).await;
}

/// A host has 4,096 of them.
#[tokio::test]
async fn a_postgres_that_is_killed_or_dropped_leaves_no_shared_memory() {
    let server = PostgresServer::start().await.unwrap();
    assert_eq!(
        ask(&server.url(), "SHOW dynamic_shared_memory_type"),
        "mmap",
        "others are not in the directory that is removed"
    );
    let killed = segment(&server);
    assert!(is_there(&killed));
    server.kill().unwrap();
    until_it_is_gone(&killed).await;

    server.restart().await.unwrap();
    let restarted = segment(&server);
    server.restart().await.unwrap();
    until_it_is_gone(&restarted).await;

    server.pause().unwrap();
    let dropped = segment(&server);
    drop(server);
    until_it_is_gone(&dropped).await;
}

/// Not only soon: what a test sends at once must find nobody.
#[tokio::test]
async fn a_paused_postgres_stands_still_when_the_pause_returns() {
    let server = PostgresServer::start().await.unwrap();
    let busy = "DO 'BEGIN LOOP END LOOP; END'";
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = Command::new("psql");
        client.args([&server.url(), "--no-psqlrc", "-tAc", busy]);
        clients.push(
            client
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        );
    }
    let working = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active'";
    until("all work", || ask(&server.url(), working) == "5").await;
    let file = fs::read_to_string(server.dir().join("data/postmaster.pid")).unwrap();
    let first = file.lines().next().unwrap();
    let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap();
    for _ in 0..20 {
        server.pause().unwrap();
        for process in children.split_whitespace().chain([first]) {
            // One that served a client of the test may have ended.
            let status = fs::read_to_string(format!("/proc/{process}/status"));
            assert!(!status.unwrap_or_default().contains("(running)"));
        }
        server.resume().unwrap();
    }
    drop(server);
    for mut client in clients {
        client.wait().unwrap();
    }
}
