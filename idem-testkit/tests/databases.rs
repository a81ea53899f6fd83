//! The private databases that stand behind something.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::process::Command;
use std::time::Duration;

use idem_testkit::{PgBouncerServer, PostgresServer};

fn ask(url: &str, statement: &str) -> String {
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

#[tokio::test]
async fn pgbouncer_answers_for_its_server_and_pools_as_its_settings_say() {
    let server = PostgresServer::start().await.unwrap();
    for (settings, mode) in [
        (&[][..], "transaction"),
        (&["pool_mode = session"][..], "session"),
    ] {
        let bouncer = PgBouncerServer::start_with(&server, settings)
            .await
            .unwrap();
        assert_eq!(ask(&bouncer.url(), "SELECT current_database()"), "postgres");
        let admin = bouncer.url().strip_suffix("postgres").unwrap().to_owned() + "pgbouncer";
        let config = ask(&admin, "SHOW CONFIG");
        assert!(
            config
                .lines()
                .any(|line| line.starts_with(&format!("pool_mode|{mode}"))),
            "{config}"
        );
        bouncer.restart().await.unwrap();
        assert_eq!(ask(&bouncer.url(), "SELECT 1"), "1");
    }
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
    for _ in 0..500 {
        if !is_there(segment) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("segment {segment} is still there after 5 s");
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
