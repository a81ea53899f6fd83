//! Promises between real processes, with faults made for real: killed and stopped owners, a Redis that is killed or stopped.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, missing_docs)]

mod support;

use std::process::Stdio;
use std::time::{Duration, Instant};

use idem::{Error, Idempotency};
use idem_redis::RedisStore;
use idem_testkit::RedisServer;
use support::{LEASE, LONG, eventually};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

type Res<T = u64> = Result<T, Error>;

/// The other process: begins a body that ticks for ever, and says how the call ended.
#[tokio::test]
#[ignore = "this is the other process of the tests below, which start it"]
async fn owner() {
    let variable = |name| std::env::var(name).unwrap();
    let idempotency = Idempotency::new(RedisStore::connect(variable("OWNER_REDIS")).await.unwrap());
    let ended = idempotency
        .operation(variable("OWNER_OPERATION"))
        .key("k")
        .lease(LEASE)
        .run(async || {
            println!("\nbegun");
            loop {
                tokio::time::sleep(Duration::from_millis(10)).await;
                println!("tick");
            }
            #[allow(unreachable_code)]
            Res::Ok(0)
        })
        .await;
    println!("ended {}", matches!(ended, Err(Error::LeaseLost { .. })));
}

struct Owner {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Owner {
    /// Starts the other process, and waits until its body has begun.
    async fn begin(server: &RedisServer, operation: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "owner", "--ignored", "--nocapture"])
            .env("OWNER_REDIS", server.url())
            .env("OWNER_OPERATION", operation)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut owner = Self { child, lines };
        while owner.line().await != "begun" {}
        owner
    }

    async fn line(&mut self) -> String {
        tokio::time::timeout(LONG, self.lines.next_line()).await.unwrap().unwrap().expect("the owner has ended")
    }

    async fn signal(&self, signal: &str) {
        let pid = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().await.unwrap().success());
    }

    /// Stops the process, and returns when it stands still.
    async fn stop(&mut self) {
        self.signal("-STOP").await;
        let stat = format!("/proc/{}/stat", self.child.id().unwrap());
        eventually("the process is stopped", async || {
            let stat = tokio::fs::read_to_string(&stat).await.unwrap();
            stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
        })
        .await;
        // What it said before.
        while let Ok(line) = tokio::time::timeout(Duration::from_millis(200), self.lines.next_line()).await {
            assert!(line.unwrap().is_some());
        }
    }
}

#[tokio::test]
async fn p5_the_body_of_a_killed_process_is_run_by_another_as_the_second_attempt() {
    let server = RedisServer::start().await.unwrap();
    let idempotency = Idempotency::new(RedisStore::connect(server.url()).await.unwrap());
    let mut owner = Owner::begin(&server, "killed").await;
    owner.child.kill().await.unwrap();
    let outcome = idempotency
        .operation("killed")
        .key("k")
        .wait(LONG)
        .run(async || Res::Ok(idem::current().unwrap().attempt()))
        .await
        .unwrap();
    assert_eq!(outcome.into_inner(), 2);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn p1_a_process_that_was_stopped_for_longer_than_its_lease_does_not_poll_its_body_once_more() {
    let server = RedisServer::start().await.unwrap();
    let idempotency = Idempotency::new(RedisStore::connect(server.url()).await.unwrap());
    let mut owner = Owner::begin(&server, "stopped").await;
    owner.stop().await;
    let outcome = idempotency
        .operation("stopped")
        .key("k")
        .wait(LONG)
        .run(async || {
            owner.signal("-CONT").await;
            assert_eq!(owner.line().await, "ended true", "the stopped owner went on");
            Res::Ok(idem::current().unwrap().attempt())
        })
        .await
        .unwrap();
    assert_eq!(outcome.into_inner(), 2);
}

#[tokio::test]
async fn p4_a_stopped_and_a_killed_redis_fail_calls_soon_and_calls_go_on_when_it_is_back() {
    let server = RedisServer::start().await.unwrap();
    let idempotency = Idempotency::new(RedisStore::connect(server.url()).await.unwrap());
    let call = |key: &'static str| idempotency.operation("server").key(key).run(async || Res::Ok(1));
    assert!(!call("before").await.unwrap().is_replayed());
    for fault in ["stopped", "killed"] {
        if fault == "stopped" {
            server.pause().unwrap();
        } else {
            server.kill().unwrap();
        }
        let begun = Instant::now();
        let failed = call(fault).await;
        // Promised are 2 s; the rest is for a busy machine.
        assert!(begun.elapsed() < Duration::from_secs(4), "{fault}: {:?}", begun.elapsed());
        assert!(matches!(&failed, Err(error @ Error::Store { .. }) if error.is_retryable()), "{fault}: {failed:?}");
        if fault == "stopped" {
            server.resume().unwrap();
        } else {
            server.restart().await.unwrap();
        }
        eventually("calls go on", async || call(fault).await.is_ok()).await;
    }
}
