//! A file that is taken away or replaced under open connections. Where it has a rollback journal,
//! SQLite looks before it writes (`SQLITE_READONLY_DBMOVED`). The connection never writes again.

use std::fs;
use std::path::{Path, PathBuf};

use idem_core::{Idempotency, Store as _, StoreErrorKind};
use idem_sqlx::SqliteStore;
use idem_sqlx::sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
};
use tempfile::TempDir;

use super::{order, url};
use crate::failed::Failed;
use crate::{LONG, id};

const CONNECTIONS: u32 = 4;

/// A file, and a pool all of whose connections are open.
struct Opened {
    dir: TempDir,
    pool: SqlitePool,
    store: SqliteStore,
}

impl Opened {
    async fn new() -> Self {
        let dir = crate::own::temporary();
        let options: SqliteConnectOptions = url(dir.path()).parse().unwrap();
        let options = options.journal_mode(SqliteJournalMode::Delete);
        created(&options).await;
        let pool = SqlitePoolOptions::new()
            .max_connections(CONNECTIONS)
            .test_before_acquire(false)
            .connect_with(options)
            .await
            .unwrap();
        let store = SqliteStore::builder(pool.clone()).time_limit(LONG).build();
        store.migrate().await.unwrap();
        let opened = Self { dir, pool, store };
        opened.fill().await;
        opened
    }

    /// Opens all connections of the pool, each of which has read the file.
    async fn fill(&self) {
        let mut all = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut on = self.pool.acquire().await.unwrap();
            let read = "SELECT count(*) FROM idem_records";
            let read = idem_sqlx::sqlx::raw_sql(read).execute(&mut *on);
            read.await.unwrap();
            all.push(on);
        }
        for mut on in all {
            on.return_to_pool().await;
        }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("idem.db")
    }

    fn idempotency(&self) -> Idempotency {
        Idempotency::new(self.store.clone())
    }

    /// Puts another file in the place of this one.
    fn replace(&self, by: impl FnOnce(&Path)) {
        let other = self.dir.path().join("other.db");
        by(&other);
        fs::rename(other, self.file()).unwrap();
    }

    /// Replaces the file by its copy, as one is that was restored, or made smaller.
    fn replace_by_copy(&self) {
        self.replace(|other| {
            fs::copy(self.file(), other).unwrap();
        });
    }

    /// A process that starts now.
    async fn other_process(&self) -> Idempotency {
        let pool = SqlitePool::connect(&url(self.dir.path())).await.unwrap();
        Idempotency::new(SqliteStore::builder(pool).time_limit(LONG).build())
    }
}

async fn created(options: &SqliteConnectOptions) {
    let options = options.clone().create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await.unwrap();
    pool.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_taken_away_is_an_error_until_it_is_there_again() {
    let opened = Opened::new().await;
    let idempotency = opened.idempotency();
    order(&idempotency, "before", 1).await.unwrap();
    opened.fill().await;
    let away = opened.dir.path().join("away.db");
    fs::rename(opened.file(), &away).unwrap();
    for key in ["new", "other"] {
        let operation = idempotency.operation("orders").key(key);
        let called = operation
            .run(async || -> Result<u32, idem_core::Error> { panic!("there is no claim") });
        let error = called.await.unwrap_err();
        assert!(error.to_string().contains("check the path"), "{error}");
        let operation = idempotency.operation("orders").key(key);
        let called = operation.transaction(&opened.pool, async |_| Ok::<_, Failed>(2));
        called.await.unwrap_err();
    }
    assert!(!opened.file().exists(), "an empty file was created");
    fs::rename(&away, opened.file()).unwrap();
    assert!(
        order(&idempotency, "before", 3)
            .await
            .unwrap()
            .is_replayed()
    );
    for key in ["new", "other"] {
        assert!(!order(&idempotency, key, 4).await.unwrap().is_replayed());
        let other = opened.other_process().await;
        assert!(order(&other, key, 5).await.unwrap().is_replayed());
    }
}

/// The body has run, and its outcome waits for the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_whose_file_is_taken_away_is_recorded_when_it_is_there_again() {
    let opened = Opened::new().await;
    let idempotency = opened.idempotency();
    let away = opened.dir.path().join("away.db");
    let body = async || {
        opened.fill().await;
        fs::rename(opened.file(), &away).unwrap();
        Ok::<_, idem_core::Error>(1)
    };
    let outcome = idempotency.operation("orders").key("k").run(body).await;
    assert_eq!(outcome.unwrap().into_inner(), 1);
    fs::rename(&away, opened.file()).unwrap();
    let other = opened.other_process().await;
    let again = other.operation("orders").key("k").wait(LONG);
    let again = again.run(async || Ok::<_, idem_core::Error>(2)).await;
    let again = again.unwrap();
    assert!(again.is_replayed() && again.into_inner() == 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_go_on_in_the_file_that_is_in_the_place_of_another() {
    let opened = Opened::new().await;
    let idempotency = opened.idempotency();
    order(&idempotency, "before", 1).await.unwrap();
    // Its commit meets the new file, as each of the calls that follow does.
    let body = async || {
        opened.fill().await;
        opened.replace_by_copy();
        Ok::<_, idem_core::Error>(2)
    };
    let during = idempotency.operation("orders").key("during").run(body);
    assert_eq!(during.await.unwrap().into_inner(), 2);
    for number in 0..2 * CONNECTIONS {
        opened.fill().await;
        opened.replace_by_copy();
        let called = order(&idempotency, &format!("after, {number}"), 3).await;
        assert!(!called.unwrap().is_replayed());
    }
    // In a transaction, a call may fail once for each connection, and then no more.
    opened.fill().await;
    opened.replace_by_copy();
    let mut failures = 0;
    for number in 0..3 * CONNECTIONS {
        let key = format!("transaction, {number}");
        let operation = idempotency.operation("orders").key(&key);
        let called = operation.transaction(&opened.pool, async |_| Ok::<u32, Failed>(4));
        match called.await {
            Ok(outcome) => assert!(!outcome.is_replayed()),
            Err(Failed::Idem(error)) => {
                assert!(error.is_retryable(), "{error}");
                failures += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(failures <= CONNECTIONS, "{failures}");
    let other = opened.other_process().await;
    for (key, number) in [("before", 1), ("during", 2), ("after, 0", 3)] {
        let outcome = order(&other, key, 9).await.unwrap();
        assert!(
            outcome.is_replayed() && outcome.into_inner() == number,
            "{key}"
        );
    }
    let last = format!("transaction, {}", 3 * CONNECTIONS - 1);
    assert!(order(&other, &last, 9).await.unwrap().is_replayed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_file_in_the_place_of_another_is_an_error_that_names_migrate() {
    let opened = Opened::new().await;
    let idempotency = opened.idempotency();
    order(&idempotency, "before", 1).await.unwrap();
    opened.fill().await;
    opened.replace(|other| drop(fs::File::create(other).unwrap()));
    let error = order(&idempotency, "k", 2).await.unwrap_err();
    assert!(error.to_string().contains("`migrate()`"), "{error}");
    let error = opened.store.inspect(&id("k")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    opened.store.migrate().await.unwrap();
    assert!(!order(&idempotency, "k", 3).await.unwrap().is_replayed());
    assert!(order(&idempotency, "k", 4).await.unwrap().is_replayed());
}
