//! Other processes at the same keys, and their deaths.

use std::process::Stdio;

use idem_testkit::{MariaDbServer, PostgresServer};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::cut::{At, Cutter, Heard};
use super::rows::{mariadb, postgres, sqlite};
use crate::{LONG, Server as _};

/// A process of its own, which is killed when this is dropped.
struct Worker {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts one that does this with the key.
    fn start(url: &str, what: &str, key: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "events::workers::worker",
                "--ignored",
                "--nocapture",
            ])
            .env("EVENTS_URL", url)
            .env("EVENTS_DO", what)
            .env("EVENTS_KEY", key)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, said }
    }

    /// Waits until it says this.
    async fn says(&mut self, word: &str) {
        let lines =
            async { while self.said.next_line().await.unwrap().expect("it ended") != word {} };
        tokio::time::timeout(LONG, lines)
            .await
            .expect("the worker hung");
    }

    async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

fn says(word: &str) {
    println!("\n{word}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "this is another process of the tests beside it, which start it"]
async fn worker() {
    let variable = |name: &str| std::env::var(format!("EVENTS_{name}")).unwrap();
    let url = variable("URL");
    let what = variable("DO");
    let key = variable("KEY");
    match url.split(':').next() {
        Some("postgres") => works_on_postgres(&url, &what, &key).await,
        Some("mysql") => works_on_mariadb(&url, &what, &key).await,
        _ => works_on_sqlite(&url, &what, &key).await,
    }
}

macro_rules! works {
    ($works:ident, $dies:ident, $stormed:ident, $module:ident, $level:literal, $begin:literal) => {
        async fn $works(url: &str, what: &str, key: &str) {
            let world = $module::World::new(url, $level, $begin).await;
            match what {
                // Says where it is, and stays there.
                "begun" | "in the body" | "after the call" => {
                    let mut tx = world.pool.begin_with($begin).await.unwrap();
                    if what == "begun" {
                        return stay(what).await;
                    }
                    let operation = world.idempotency.operation("events").key(key);
                    let called = operation.run_in(&mut tx, async |tx| {
                        let written = $module::write(tx, key).await;
                        if what == "in the body" {
                            stay(what).await;
                        }
                        written
                    });
                    called.await.unwrap();
                    stay(what).await;
                }
                "committed" => {
                    world.answer(key).await;
                    stay(what).await;
                }
                "ready" => {
                    world.answer(&format!("{key}, before")).await;
                    says("ready");
                    let mut go = String::new();
                    tokio::io::AsyncBufReadExt::read_line(
                        &mut BufReader::new(tokio::io::stdin()),
                        &mut go,
                    )
                    .await
                    .unwrap();
                    let operation = world.idempotency.operation("events").key(key);
                    let called = operation
                        .transaction(&world.pool, async |tx| $module::write(tx, key).await);
                    let _ = called.await;
                    stay("done").await;
                }
                _ => {
                    // All keys, again and again.
                    says("storm");
                    loop {
                        for number in 0..KEYS {
                            world.answer(&format!("{key} {number}")).await;
                        }
                        says("round");
                    }
                }
            }
        }

        /// A process that dies at each of its steps, while another one wants the key.
        async fn $dies(url: &str) {
            let world = $module::World::new(url, $level, $begin).await;
            for what in ["begun", "in the body", "after the call", "committed"] {
                let key = format!("killed: {what}");
                let mut worker = Worker::start(url, what, &key);
                worker.says(what).await;
                let waiter = tokio::spawn({
                    let world = world.clone();
                    let key = key.clone();
                    async move { world.answer(&key).await.is_replayed() }
                });
                if matches!(what, "in the body" | "after the call") {
                    world.waits(&key, 0).await;
                    assert!(
                        !waiter.is_finished(),
                        "{what}: it waits for the other process"
                    );
                }
                worker.kill().await;
                assert_eq!(waiter.await.unwrap(), what == "committed", "{what}");
                assert!(world.is_done(&key).await, "{what}");
            }
        }

        /// Processes with the same keys; one after the other is killed in the midst of it.
        async fn $stormed(url: &str) {
            let world = $module::World::new(url, $level, $begin).await;
            for round in 0..ROUNDS {
                let key = format!("storm {round}");
                let mut workers: Vec<_> =
                    (0..3).map(|_| Worker::start(url, "storm", &key)).collect();
                for worker in &mut workers {
                    worker.says("storm").await;
                }
                workers.pop().unwrap().kill().await;
                workers[0].says("round").await;
                workers.pop().unwrap().kill().await;
                for number in 0..KEYS {
                    let key = format!("{key} {number}");
                    assert!(world.is_done(&key).await, "{key}");
                    assert!(world.answer(&key).await.is_replayed(), "{key}");
                }
            }
        }
    };
}

/// Keys and rounds of a storm.
const KEYS: u32 = 30;
const ROUNDS: u32 = 5;

async fn stay(what: &str) {
    says(what);
    std::future::pending::<()>().await;
}

works!(
    works_on_postgres,
    dies_on_postgres,
    stormed_on_postgres,
    postgres,
    "REPEATABLE READ",
    "BEGIN"
);
works!(
    works_on_mariadb,
    dies_on_mariadb,
    stormed_on_mariadb,
    mariadb,
    "REPEATABLE READ",
    "BEGIN"
);
works!(
    works_on_sqlite,
    dies_on_sqlite,
    stormed_on_sqlite,
    sqlite,
    "",
    "BEGIN IMMEDIATE"
);

/// Whoever waits for a process that dies runs the body, or gets its outcome.
mod a_waiter_of_another_process_goes_on_when_that_is_killed {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn on_postgres() {
        dies_on_postgres(&PostgresServer::empty().await.url()).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn on_mariadb() {
        dies_on_mariadb(&MariaDbServer::empty().await.url()).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn on_sqlite() {
        let dir = crate::own::temporary();
        dies_on_sqlite(&format!("sqlite://{}/shop.db", dir.path().display())).await;
    }
}

/// Minutes: in a full run alone.
mod thorough {
    use super::*;

    macro_rules! killed {
        ($name:ident, $module:ident, $Server:ident, $level:literal) => {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let server = $Server::empty().await;
                let cutter = Cutter::start(server.port()).await;
                let world = $module::World::new(&server.url(), $level, "BEGIN").await;
                for heard in [Heard::Yes, Heard::No] {
                    for message in 0.. {
                        let key = format!("killed at {message}, heard: {heard:?}");
                        let mut worker =
                            Worker::start(&server.url_through(cutter.port()), "ready", &key);
                        worker.says("ready").await;
                        cutter.cut(At::Message(message), heard, true);
                        drop(worker.child.stdin.take());
                        // Its last message was before that one.
                        let was_cut = tokio::select! {
                            () = cutter.done.notified() => true,
                            () = worker.says("done") => false,
                        };
                        worker.kill().await;
                        cutter.cut(At::Message(usize::MAX), heard, false);
                        let is_done = world.is_done(&key).await;
                        assert!(was_cut || is_done, "{key}");
                        assert_eq!(world.answer(&key).await.is_replayed(), is_done, "{key}");
                        assert!(world.is_done(&key).await, "{key}");
                        if !was_cut {
                            assert!(message > 4, "a call has {message} messages");
                            break;
                        }
                    }
                }
            }
        };
    }

    killed!(
        a_process_killed_at_any_message_leaves_rows_and_record_or_neither_on_postgres,
        postgres,
        PostgresServer,
        "REPEATABLE READ"
    );
    killed!(
        a_process_killed_at_any_message_leaves_rows_and_record_or_neither_on_mariadb,
        mariadb,
        MariaDbServer,
        "REPEATABLE READ"
    );

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn processes_that_are_killed_at_the_same_keys_run_each_body_once_on_postgres() {
        stormed_on_postgres(&PostgresServer::empty().await.url()).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn processes_that_are_killed_at_the_same_keys_run_each_body_once_on_mariadb() {
        stormed_on_mariadb(&MariaDbServer::empty().await.url()).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn processes_that_are_killed_at_the_same_keys_run_each_body_once_on_sqlite() {
        let dir = crate::own::temporary();
        stormed_on_sqlite(&format!("sqlite://{}/shop.db", dir.path().display())).await;
    }
}
