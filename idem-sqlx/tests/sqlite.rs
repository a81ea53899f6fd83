//! SQLite: what only a file can get wrong.
// Tests measure how long things take, and stop where they cannot go on: the helpers too.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(feature = "sqlite")]

use std::collections::HashMap;
use std::io::Write as _;
use std::path::Path;
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use idem_core::store::record::{RecordId, Removed};
use idem_core::{Idempotency, Key, Store as _, StoreErrorKind};
use idem_sqlx::SqliteStore;
use idem_sqlx::sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use idem_sqlx::sqlx::{self, AssertSqlSafe, Executor as _};
use tempfile::TempDir;

fn url(dir: &Path) -> String {
    format!("sqlite://{}/idem.db", dir.display())
}

async fn opened() -> (TempDir, SqliteStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::connect(url(dir.path())).await.unwrap();
    (dir, store)
}

async fn order(idempotency: &Idempotency, key: &str, number: u32) -> Result<idem_core::Outcome<u32>, idem_core::Error> {
    idempotency.operation("orders").key(key).run(async || Ok::<_, idem_core::Error>(number)).await
}

async fn execute(dir: &Path, statement: &str) {
    let pool = SqlitePool::connect(&url(dir)).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&pool).await.unwrap();
    pool.close().await;
}

#[tokio::test]
async fn records_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..2 {
        let idempotency = Idempotency::new(SqliteStore::connect(url(dir.path())).await.unwrap());
        assert_eq!(order(&idempotency, "k", round).await.unwrap().into_inner(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_a_thousand_calls_is_answered() {
    let (_dir, store) = opened().await;
    let idempotency = Idempotency::new(store);
    let mut calls = tokio::task::JoinSet::new();
    for number in (0..600).chain(0..400) {
        let idempotency = idempotency.clone();
        calls.spawn(async move { (number, order(&idempotency, &number.to_string(), number).await) });
    }
    while let Some(call) = calls.join_next().await {
        let (number, answer) = call.unwrap();
        assert_eq!(answer.unwrap().into_inner(), number);
    }
}

/// A place in a queue belongs to a future whether it is polled or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p11_a_step_whose_caller_is_not_polled_holds_up_no_other() {
    let (dir, store) = opened().await;
    let idempotency = Idempotency::new(store.clone());
    for (key, number) in [("first", 1), ("second", 2)] {
        order(&idempotency, key, number).await.unwrap();
    }
    let pool = SqlitePool::connect(&url(dir.path())).await.unwrap();
    let writer = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let id = |key: &str| RecordId::new("orders", &Key::encode(key).unwrap()).unwrap();
    let ids = [id("first"), id("second")];
    // The first step has its turn, and waits for the writer, since there is a row to delete. The
    // second waits for its turn.
    let (mut first, mut second) = (pin!(store.remove(&ids[0])), pin!(store.remove(&ids[1])));
    for step in [&mut first, &mut second] {
        tokio::select! {
            biased;
            answer = step => panic!("there is another writer: {answer:?}"),
            () = std::future::ready(()) => {}
        }
    }
    writer.rollback().await.unwrap();
    assert_eq!(first.await.unwrap(), Removed::Removed);
    assert_eq!(order(&idempotency, "third", 3).await.unwrap().into_inner(), 3);
    assert_eq!(second.await.unwrap(), Removed::Removed);
}

#[tokio::test]
async fn a_missing_table_is_an_error_that_names_migrate() {
    let dir = tempfile::tempdir().unwrap();
    let pool = SqlitePoolOptions::new().connect(&format!("{}?mode=rwc", url(dir.path()))).await.unwrap();
    let store = SqliteStore::builder(pool).table("shop_records").build();
    let idempotency = Idempotency::new(store.clone());
    let error = order(&idempotency, "k", 1).await.unwrap_err();
    assert!(error.to_string().contains("`migrate()`"), "{error}");
    store.migrate().await.unwrap();
    order(&idempotency, "k", 1).await.unwrap();
    execute(dir.path(), "DROP TABLE shop_records").await;
    let error = order(&idempotency, "k", 1).await.unwrap_err();
    assert!(error.to_string().contains("`migrate()`"), "{error}");
}

#[tokio::test]
async fn a_table_of_another_version_or_of_others_is_refused() {
    for table in
        ["CREATE TABLE idem_records (operation TEXT)", "CREATE TABLE idem_records ( -- idem schema 2\n key TEXT)"]
    {
        let dir = tempfile::tempdir().unwrap();
        fs::File::create(dir.path().join("idem.db")).unwrap();
        execute(dir.path(), table).await;
        let error = SqliteStore::connect(url(dir.path())).await.unwrap_err();
        assert!(error.kind() == StoreErrorKind::Refused && error.to_string().contains("idem schema 1"), "{error}");
    }
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("idem.db");
    fs::write(&file, "somebody's letter, long enough to be read as the header of a database; ".repeat(20)).unwrap();
    let error = SqliteStore::connect(url(dir.path())).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    assert!(fs::read_to_string(&file).unwrap().starts_with("somebody's letter"));
}

#[tokio::test]
async fn a_missing_directory_and_a_malformed_url_are_refused() {
    for url in ["sqlite:///nowhere/at/all/idem.db", "postgres://host/", "sqlite://x?mode=sometimes", "sqlite::memory:"]
    {
        let error = SqliteStore::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{url}: {error}");
    }
}

#[tokio::test]
async fn a_read_only_file_is_refused_and_nothing_runs() {
    let (dir, store) = opened().await;
    order(&Idempotency::new(store), "k", 1).await.unwrap();
    let pool = SqlitePool::connect(&format!("{}?mode=ro", url(dir.path()))).await.unwrap();
    let idempotency = Idempotency::new(SqliteStore::new(pool));
    let error = order(&idempotency, "other", 2).await.unwrap_err();
    assert!(error.to_string().contains("read-only"), "{error}");
}

#[tokio::test]
async fn a_full_disk_takes_no_new_key_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let options: SqliteConnectOptions = url(dir.path()).parse().unwrap();
    // As a disk with no room for more pages.
    let pool = SqlitePoolOptions::new().max_connections(1);
    let pool = pool.connect_with(options.create_if_missing(true).pragma("max_page_count", "16")).await.unwrap();
    let store = SqliteStore::new(pool);
    store.migrate().await.unwrap();
    let idempotency = Idempotency::new(store.clone());
    order(&idempotency, "first", 1).await.unwrap();
    let text = "x".repeat(20_000);
    let mut full = None;
    for number in 0..200 {
        let call = idempotency.operation("texts").key(&number);
        // What does not fit any more is either the claim or the commit.
        if let Err(error) = call.run(async || Ok::<_, idem_core::Error>(text.clone())).await {
            full = Some(error);
            break;
        }
        let claim = order(&idempotency, &format!("small {number}"), number).await;
        if let Err(error) = claim {
            full = Some(error);
            break;
        }
    }
    let full = full.expect("it was never full");
    assert!(full.is_retryable() && full.to_string().contains("space"), "{full}");
    assert!(order(&idempotency, "first", 2).await.unwrap().is_replayed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exhausted_pool_is_an_error_in_time() {
    let (dir, _) = opened().await;
    let pool = SqlitePoolOptions::new().max_connections(1).connect(&url(dir.path())).await.unwrap();
    let idempotency = Idempotency::new(SqliteStore::new(pool.clone()));
    let held = pool.acquire().await.unwrap();
    let begun = Instant::now();
    let error = order(&idempotency, "k", 1).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(error.is_retryable() && error.to_string().contains("all connections of the pool are in use"), "{error}");
    drop(held);
    order(&idempotency, "k", 2).await.unwrap();
}

#[tokio::test]
async fn a_damaged_row_is_unreadable_names_the_column_and_stays() {
    let (dir, store) = opened().await;
    let idempotency = Idempotency::new(store);
    order(&idempotency, "k", 7).await.unwrap();
    for (damage, repair, column) in [
        ("codec = NULL", "codec = 'j'", "codec"),
        ("attempt = -1", "attempt = 1", "attempt"),
        ("state = 'later'", "state = 'committed'", "state"),
    ] {
        execute(dir.path(), &format!("UPDATE idem_records SET {damage}")).await;
        let error = order(&idempotency, "k", 8).await.unwrap_err();
        assert!(matches!(error, idem_core::Error::Codec { .. }), "{damage}: {error}");
        assert!(error.to_string().contains(&format!("`{column}`")), "{damage}: {error}");
        execute(dir.path(), &format!("UPDATE idem_records SET {repair}")).await;
        assert_eq!(order(&idempotency, "k", 9).await.unwrap().into_inner(), 7, "{repair}");
    }
}

#[tokio::test]
async fn the_longest_keys_and_names_fit() {
    let (_dir, store) = opened().await;
    let idempotency = Idempotency::new(store);
    let name = "n".repeat(128);
    for length in [255, 256, 257, 100_000] {
        let key = "k".repeat(length);
        for replayed in [false, true] {
            let call = idempotency.operation(&name).key(&key).run(async || Ok::<_, idem_core::Error>(length));
            let answer = call.await.unwrap();
            assert!(answer.is_replayed() == replayed && answer.into_inner() == length, "{length}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_stands_still_is_an_error_in_time() {
    let (dir, store) = opened().await;
    let idempotency = Idempotency::new(store);
    order(&idempotency, "k", 1).await.unwrap();
    let pool = SqlitePool::connect(&url(dir.path())).await.unwrap();
    let mut writer = pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut *writer).await.unwrap();
    let begun = Instant::now();
    let error = order(&idempotency, "new", 2).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    sqlx::raw_sql("ROLLBACK").execute(&mut *writer).await.unwrap();
    order(&idempotency, "new", 3).await.unwrap();
}

/// Where `BEGIN IMMEDIATE` waits for longer than the connections are told to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_cannot_become_the_writer_says_what_it_waited_for() {
    let (dir, store) = opened().await;
    let idempotency = Idempotency::new(store);
    let options: SqliteConnectOptions = url(dir.path()).parse().unwrap();
    let pool = SqlitePoolOptions::new().connect_with(options.busy_timeout(Duration::from_secs(2))).await.unwrap();
    let transfer = async || {
        let operation = idempotency.operation("transfers").key("k");
        operation.transaction(&pool, async |_| Ok::<u32, idem_core::Error>(1)).await
    };
    let other = SqlitePool::connect(&url(dir.path())).await.unwrap();
    let writer = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let begun = Instant::now();
    let error = transfer().await.unwrap_err();
    // As long as the connection's own limit, and once.
    assert!((2..4).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    let idem_core::Error::Store { source, .. } = &error else { panic!("{error}") };
    assert!(error.is_retryable() && !source.is_unknown(), "{error}");
    for word in ["another transaction", "one writer", "short", "`busy_timeout`"] {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
    for word in ["no connection", "cannot connect", "check that the database runs"] {
        assert!(!error.to_string().contains(word), "{word}: {error}");
    }
    writer.rollback().await.unwrap();
    assert!(!transfer().await.unwrap().is_replayed());
}

#[tokio::test]
async fn what_expired_is_swept() {
    let (_dir, store) = opened().await;
    let idempotency = Idempotency::new(store.clone());
    let call = idempotency.operation("orders").key("k").ttl(Duration::from_millis(20));
    call.run(async || Ok::<_, idem_core::Error>(1)).await.unwrap();
    let id = RecordId::new("orders", &Key::encode("k").unwrap()).unwrap();
    let expiring = async {
        while store.inspect(&id).await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), expiring).await.expect("it never expired");
    assert_eq!(store.sweep().await.unwrap(), 1);
    assert_eq!(store.sweep().await.unwrap(), 0);
}

/// The file and the worker's name, for a process that
/// [`several_processes_share_a_file_and_one_is_killed`] starts.
const WORKER: &str = "IDEM_SQLITE_WORKER";
const KEYS: u32 = 60;

/// Calls every key once; each body leaves a line, before its outcome is committed.
async fn work(file: &str, name: &str) {
    let idempotency = Idempotency::new(SqliteStore::connect(file).await.unwrap());
    let effects = format!("{}.effects", file.trim_start_matches("sqlite://"));
    for key in 0..KEYS {
        let call =
            idempotency.operation("orders").key(&key).lease(Duration::from_millis(900)).wait(Duration::from_secs(20));
        let run = call.run(async || {
            let mut file = fs::OpenOptions::new().create(true).append(true).open(&effects).unwrap();
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
    command.args(["--exact", "several_processes_share_a_file_and_one_is_killed", "--nocapture"]);
    command.env(WORKER, format!("{file} {name}")).stdout(Stdio::null()).spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_processes_share_a_file_and_one_is_killed() {
    if let Ok(worker) = env::var(WORKER) {
        let (file, name) = worker.split_once(' ').unwrap();
        return work(file, name).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = url(dir.path());
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
        assert!(tokio::task::spawn_blocking(move || other.wait()).await.unwrap().unwrap().success());
    }
    let mut bodies: HashMap<String, Vec<String>> = HashMap::new();
    for line in lines().lines() {
        let (key, name) = line.split_once(' ').unwrap();
        bodies.entry(key.to_owned()).or_default().push(name.to_owned());
    }
    // The victim's last body may have been cut off before its commit: that one alone may have run
    // again.
    let again: Vec<_> = bodies.iter().filter(|(_, names)| names.len() > 1).collect();
    assert!(again.len() <= 1 && again.iter().all(|(_, names)| names[0] == "victim" && names.len() == 2), "{again:?}");
    let idempotency = Idempotency::new(SqliteStore::connect(&file).await.unwrap());
    for key in 0..KEYS {
        let answer =
            idempotency.operation("orders").key(&key).run(async || Ok::<_, idem_core::Error>(key)).await.unwrap();
        assert_eq!(answer.into_inner(), key);
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
                    order(&idempotency, &number.to_string(), number).await.unwrap_err();
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

#[tokio::test]
async fn a_step_may_take_for_ever() {
    let (dir, _) = opened().await;
    let pool = SqlitePoolOptions::new().max_connections(2).connect(&url(dir.path())).await.unwrap();
    let store = SqliteStore::builder(pool).time_limit(Duration::MAX).build();
    let idempotency = Idempotency::new(store);
    let calls = (0..10).map(|number| {
        let idempotency = idempotency.clone();
        tokio::spawn(async move { order(&idempotency, &number.to_string(), number).await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().unwrap();
    }
}

/// The application's file in one journal mode, with one attached in another, where the table is.
async fn attached(dir: &Path, main: &str, other: &str) -> SqlitePool {
    let attach = format!(
        "ATTACH '{}/other.db' AS other; PRAGMA main.journal_mode = {main}; PRAGMA other.journal_mode = {other}",
        dir.display()
    );
    let options = SqlitePoolOptions::new().max_connections(2).after_connect(move |on, _| {
        let attach = AssertSqlSafe(attach.clone());
        Box::pin(async move { on.execute(sqlx::raw_sql(attach)).await.map(drop) })
    });
    let url: SqliteConnectOptions = url(dir).parse().unwrap();
    options.connect_with(url.create_if_missing(true)).await.unwrap()
}

#[tokio::test]
async fn a_table_in_an_attached_file_is_refused_where_a_crash_could_part_rows_and_record() {
    for (main, other, is_atomic) in
        [("WAL", "WAL", false), ("WAL", "DELETE", false), ("DELETE", "WAL", false), ("DELETE", "DELETE", true)]
    {
        let dir = tempfile::tempdir().unwrap();
        let pool = attached(dir.path(), main, other).await;
        let store = SqliteStore::builder(pool.clone()).table("other.idem_records").build();
        let migrated = store.migrate().await;
        assert_eq!(migrated.is_ok(), is_atomic, "{main}, {other}: {migrated:?}");
        // As a team that runs its own migrations: a transaction may be the first to look.
        let ddl = SqliteStore::SCHEMA.replace("EXISTS idem_records_", "EXISTS other.idem_records_");
        let ddl = ddl.replace("EXISTS idem_records (", "EXISTS other.idem_records (");
        sqlx::raw_sql(AssertSqlSafe(ddl)).execute(&pool).await.unwrap();
        let idempotency = Idempotency::new(SqliteStore::builder(pool.clone()).table("other.idem_records").build());
        let operation = idempotency.operation("orders").key("k");
        let called = operation.transaction(&pool, async |_| Ok::<u32, idem_core::Error>(1)).await;
        match called {
            Ok(_) => assert!(is_atomic, "{main}, {other}"),
            Err(error) => {
                assert!(!is_atomic && error.to_string().contains("attached"), "{main}, {other}: {error}");
                assert!(!error.is_retryable(), "{error}");
            }
        }
    }
}
