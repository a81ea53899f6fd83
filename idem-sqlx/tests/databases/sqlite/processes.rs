//! Several processes share a file.

use std::collections::HashMap;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use idem_core::store::record::RecordId;
use idem_core::{Idempotency, Key, Store as _};
use idem_sqlx::SqliteStore;
use idem_sqlx::sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool};

use super::{opened, order, url};
use crate::faults::{BURSTS, each_of_a_burst_fails_in_time};
use crate::{LONG, connected, until};

/// The file and the worker's name, for a process that
/// [`several_processes_share_a_file_and_one_is_killed`] starts.
const WORKER: &str = "IDEM_SQLITE_WORKER";
const KEYS: u32 = 60;

/// Opens a file that is there, with long limits.
async fn patient(file: &str) -> Idempotency {
    let options: SqliteConnectOptions = file.parse().unwrap();
    let options = options.busy_timeout(LONG);
    let pool = SqlitePool::connect_with(options).await.unwrap();
    Idempotency::new(SqliteStore::builder(pool).time_limit(LONG).build())
}

/// Calls every key once; each body leaves a line, before its outcome is committed.
async fn work(file: &str, name: &str) {
    let idempotency = patient(file).await;
    let effects = format!("{}.effects", file.trim_start_matches("sqlite://"));
    for key in 0..KEYS {
        let call = idempotency
            .operation("orders")
            .key(&key)
            .lease(Duration::from_secs(5))
            .wait(LONG);
        let run = call.run(async || {
            let mut file = fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(&effects)
                .unwrap();
            writeln!(file, "{key} {name}").unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
            Ok::<_, idem_core::Error>(key)
        });
        // A database that is busy for too long is an error that may be retried.
        match run.await {
            Ok(outcome) => assert_eq!(outcome.into_inner(), key),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

fn worker(file: &str, name: &str) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([
        "--exact",
        "sqlite::processes::several_processes_share_a_file_and_one_is_killed",
        "--nocapture",
    ]);
    command
        .env(WORKER, format!("{file} {name}"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_processes_share_a_file_and_one_is_killed() {
    if let Ok(worker) = env::var(WORKER) {
        let (file, name) = worker.split_once(' ').unwrap();
        return work(file, name).await;
    }
    let dir = crate::own::temporary();
    let file = url(dir.path());
    connected(async || SqliteStore::connect(&file).await).await;
    let mut victim = worker(&file, "victim");
    let others: Vec<_> = ["one", "two"].map(|name| worker(&file, name)).into();
    // In the middle of its work: some bodies have run.
    let effects = dir.path().join("idem.db.effects");
    let lines = || fs::read_to_string(&effects).unwrap_or_default();
    let begun = Instant::now();
    while !lines().contains("victim") && lines().lines().count() < 40 {
        assert!(begun.elapsed() < Duration::from_secs(60), "no body ran");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    victim.kill().unwrap();
    victim.wait().unwrap();
    for mut other in others {
        assert!(
            tokio::task::spawn_blocking(move || other.wait())
                .await
                .unwrap()
                .unwrap()
                .success()
        );
    }
    let mut bodies: HashMap<String, Vec<String>> = HashMap::new();
    for line in lines().lines() {
        let (key, name) = line.split_once(' ').unwrap();
        bodies
            .entry(key.to_owned())
            .or_default()
            .push(name.to_owned());
    }
    // The victim's last body may have been cut off before its commit: that one alone may have run
    // again.
    let again: Vec<_> = bodies.iter().filter(|(_, names)| names.len() > 1).collect();
    assert!(
        again.len() <= 1
            && again
                .iter()
                .all(|(_, names)| names[0] == "victim" && names.len() == 2),
        "{again:?}"
    );
    let idempotency = patient(&file).await;
    for key in 0..KEYS {
        let answer = idempotency
            .operation("orders")
            .key(&key)
            .run(async || Ok::<_, idem_core::Error>(key))
            .await
            .unwrap();
        assert_eq!(answer.into_inner(), key);
    }
}

mod quiet {
    use super::*;

    /// SQLite waits for no lock while a new file gets its WAL mode.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn stores_that_create_one_file_at_once_all_open_it() {
        for _ in 0..20 {
            let dir = crate::own::temporary();
            let file = url(dir.path());
            let opening: Vec<_> = (0..8)
                .map(|_| {
                    let file = file.clone();
                    tokio::spawn(async move { SqliteStore::connect(file).await })
                })
                .collect();
            for opened in opening {
                opened.await.unwrap().unwrap();
            }
        }
    }

    /// Each waits for its turn and for the file, on connections that wait shorter or longer than a
    /// step may, and in both journal modes.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn each_call_of_a_burst_fails_in_time_while_another_process_has_the_file_locked() {
        let wal = opened().await;
        let dir = crate::own::temporary();
        let options: SqliteConnectOptions = url(dir.path()).parse().unwrap();
        let options = options
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Delete);
        let pool = SqlitePool::connect_with(options).await.unwrap();
        let rollback = SqliteStore::new(pool);
        crate::connected(async || rollback.migrate().await).await;
        // Under a rollback journal, the lock of the one who writes to the file keeps readers out.
        for ((dir, store), lock) in [
            (wal, "BEGIN IMMEDIATE"),
            ((dir, rollback), "BEGIN EXCLUSIVE"),
        ] {
            let idempotency = Idempotency::new(store);
            let other = SqlitePool::connect(&url(dir.path())).await.unwrap();
            for burst in BURSTS {
                until("it answers", async || {
                    order(&idempotency, "warm", 1).await.is_ok()
                })
                .await;
                let writer = other.begin_with(lock).await.unwrap();
                each_of_a_burst_fails_in_time(&idempotency, burst).await;
                writer.rollback().await.unwrap();
            }
        }
    }

    /// Steps that only read are answered meanwhile. They must not make the others wait on.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn calls_fail_in_time_while_another_process_writes() {
        let (dir, store) = opened().await;
        let idempotency = Idempotency::new(store.clone());
        order(&idempotency, "k", 1).await.unwrap();
        let pool = SqlitePool::connect(&url(dir.path())).await.unwrap();
        let writer = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
        let calls: Vec<_> = (0..200)
            .map(|number| {
                let idempotency = idempotency.clone();
                let store = store.clone();
                tokio::spawn(async move {
                    let begun = Instant::now();
                    if number % 4 == 0 {
                        order(&idempotency, &number.to_string(), number)
                            .await
                            .unwrap_err();
                    } else {
                        let id = RecordId::new("orders", &Key::encode(&number).unwrap()).unwrap();
                        let _ = store.remove(&id).await;
                        let _ = store.inspect(&id).await;
                    }
                    (number % 4 == 0).then(|| begun.elapsed())
                })
            })
            .collect();
        for call in calls {
            if let Some(took) = call.await.unwrap() {
                assert!(took < Duration::from_secs(2), "took {took:?}");
            }
        }
        writer.rollback().await.unwrap();
        order(&idempotency, "0", 1).await.unwrap();
    }
}
