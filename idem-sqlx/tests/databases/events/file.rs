//! SQLite has no connection that can be cut. What can happen to it instead: the process dies at a
//! write, a write fails, the file is full, removed or replaced.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Stdio;

use idem_core::{Error, Idempotency};
use idem_sqlx::SqliteStore;
use idem_sqlx::sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
};
use idem_sqlx::sqlx::{self, SqliteTransaction};
use tokio::process::Command;

use super::rows::sqlite::{World, write};
use crate::LONG;
use crate::failed::Failed;
use crate::pools::{CREATE, insert};

/// The signal of a write beyond the longest file that a process may have. Not everywhere the same,
/// but on Linux and macOS.
const SIGXFSZ: i32 = 25;
const BEGIN: &str = "BEGIN IMMEDIATE";

fn url(dir: &Path) -> String {
    format!("sqlite://{}/shop.db", dir.display())
}

/// What [`limited`] starts: one call.
#[tokio::test]
#[ignore = "this is another process of the tests beside it, which start it"]
async fn caller() {
    let url = std::env::var("EVENTS_URL").unwrap();
    let key = std::env::var("EVENTS_KEY").unwrap();
    let world = World::new(&url, "", BEGIN).await;
    let called = world.idempotency.operation("events").key(&key);
    let called = called
        .transaction(&world.pool, async |tx| write(tx, &key).await)
        .await;
    // The process ends with the result, without a checkpoint.
    std::process::exit(match called {
        Ok(_) => 0,
        Err(Failed::Idem(Error::Store { .. }) | Failed::Sql(_)) => 3,
        Err(error) => panic!("{error}"),
    });
}

/// Runs one call in a process whose files may have so many blocks of 512 bytes. A write beyond that
/// kills the process, or fails.
async fn limited(dir: &Path, blocks: u64, is_killed: bool, key: &str) -> std::process::ExitStatus {
    let shell = format!(
        "ulimit -c 0; ulimit -f {blocks}; {}exec \"$0\" \"$@\"",
        if is_killed { "" } else { "trap '' XFSZ; " }
    );
    let mut command = Command::new("sh");
    command
        .args(["-c", &shell])
        .arg(std::env::current_exe().unwrap());
    command.args(["--exact", "events::file::caller", "--ignored"]);
    command.env("EVENTS_URL", url(dir)).env("EVENTS_KEY", key);
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .await
        .unwrap()
}

/// One call after the other, each in a process whose files may be longer, until one succeeds.
async fn at_each_write(is_killed: bool) {
    let dir = crate::own::temporary();
    // While this is open, the log only grows. It has to be the longest file.
    let world = World::new(&url(dir.path()), "", BEGIN).await;
    let length = |suffix: &str| {
        std::fs::metadata(dir.path().join(format!("shop.db{suffix}")))
            .unwrap()
            .len()
            / 512
    };
    for number in 0.. {
        world.answer(&format!("before {number}")).await;
        if length("-wal") > length("").max(length("-shm")) {
            break;
        }
    }
    let mut stopped = 0;
    // By a little less than a page each time.
    for more in (0..).step_by(7) {
        let key = format!("{more} blocks");
        let status = limited(dir.path(), length("-wal") + more, is_killed, &key).await;
        let is_done = world.is_done(&key).await;
        match (status.code(), status.signal()) {
            (Some(0), _) => assert!(is_done, "{key}: it said so"),
            (Some(3), _) if !is_killed => stopped += 1,
            (None, Some(SIGXFSZ)) if is_killed => stopped += 1,
            _ => panic!("{key}: {status}"),
        }
        assert_eq!(world.answer(&key).await.is_replayed(), is_done, "{key}");
        if status.success() {
            break;
        }
        assert!(more < 1000, "it never succeeded");
    }
    // The pages of a call: at least its row, its record, and an index.
    assert!(stopped >= 3, "{stopped} writes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_at_any_write_of_its_commit_leaves_rows_and_record_or_neither_on_sqlite() {
    at_each_write(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_write_fails_leaves_rows_and_record_or_neither_on_sqlite() {
    at_each_write(false).await;
}

/// A file with room for so many more pages. The pool has one connection.
async fn nearly_full(dir: &Path, room: i64) -> (SqlitePool, Idempotency) {
    let options: SqliteConnectOptions = url(dir).parse().unwrap();
    let options = options
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .connect_with(options)
        .await
        .unwrap();
    let store = SqliteStore::builder(pool.clone()).time_limit(LONG).build();
    store.migrate().await.unwrap();
    sqlx::raw_sql(CREATE).execute(&pool).await.unwrap();
    let pages: i64 = sqlx::query_scalar("PRAGMA page_count")
        .fetch_one(&pool)
        .await
        .unwrap();
    allow(&pool, pages + room).await;
    (pool, Idempotency::new(store))
}

async fn allow(pool: &SqlitePool, pages: i64) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "PRAGMA max_page_count = {pages}"
    )))
    .execute(pool)
    .await
    .unwrap();
}

async fn rows(pool: &SqlitePool) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM business")
        .fetch_one(pool)
        .await
        .unwrap()
}

/// SQLite may roll the whole transaction back then, with its savepoints.
#[tokio::test]
async fn a_full_file_leaves_rows_and_record_or_neither_and_the_connection_usable_on_sqlite() {
    let text = "x".repeat(40_000);
    // No room for the outcome; no room for the row either.
    for (case, (outcome, row)) in [(text.as_str(), "row"), ("", text.as_str())]
        .into_iter()
        .enumerate()
    {
        let dir = crate::own::temporary();
        let (pool, idempotency) = nearly_full(dir.path(), 2).await;
        let body = async |tx: &mut SqliteTransaction<'_>| {
            sqlx::raw_sql(insert(row)).execute(&mut **tx).await?;
            Ok::<_, Failed>(outcome.to_owned())
        };
        let operation = || idempotency.operation("events").key("full");
        let error = operation().transaction(&pool, body).await.unwrap_err();
        match &error {
            Failed::Idem(error) if case == 0 => {
                assert!(
                    error.is_retryable() && error.to_string().contains("space"),
                    "{error}"
                );
            }
            Failed::Sql(_) if case == 1 => {}
            error => panic!("{case}: {error}"),
        }
        assert!(operation().inspect().await.unwrap().is_none(), "{case}");
        assert_eq!(rows(&pool).await, 0, "{case}");
        // In a transaction that the caller holds too. It commits all the same.
        let mut tx = pool.begin_with(BEGIN).await.unwrap();
        assert!(operation().run_in(&mut tx, body).await.is_err(), "{case}");
        let _ = tx.commit().await;
        assert!(operation().inspect().await.unwrap().is_none(), "{case}");
        assert_eq!(rows(&pool).await, 0, "{case}");
        allow(&pool, 10_000).await;
        assert!(
            !operation()
                .transaction(&pool, body)
                .await
                .unwrap()
                .is_replayed(),
            "{case}"
        );
        assert!(
            operation()
                .transaction(&pool, body)
                .await
                .unwrap()
                .is_replayed(),
            "{case}"
        );
        assert_eq!(rows(&pool).await, 1, "{case}");
    }
}

/// A connection that is open keeps the file that it has; one that is opened then has the new one.
#[tokio::test]
async fn a_file_that_is_removed_or_replaced_has_rows_and_record_or_neither_on_sqlite() {
    for is_replaced in [false, true] {
        let dir = crate::own::temporary();
        let other = crate::own::temporary();
        let (pool, idempotency) = nearly_full(dir.path(), 10_000).await;
        let call = async |pool: &SqlitePool, idempotency: &Idempotency, key: &str| {
            let operation = idempotency.operation("events").key(key);
            operation
                .transaction(pool, async |tx| write(tx, key).await)
                .await
        };
        assert!(
            !call(&pool, &idempotency, "before")
                .await
                .unwrap()
                .is_replayed()
        );
        for suffix in ["", "-wal", "-shm"] {
            std::fs::remove_file(dir.path().join(format!("shop.db{suffix}"))).unwrap();
        }
        if is_replaced {
            let (another, its) = nearly_full(other.path(), 10_000).await;
            call(&another, &its, "elsewhere").await.unwrap();
            another.close().await;
            std::fs::rename(other.path().join("shop.db"), dir.path().join("shop.db")).unwrap();
        }
        // Written to the file that is gone, or refused.
        let during = call(&pool, &idempotency, "during").await;
        let is_recorded = idempotency
            .operation("events")
            .key("during")
            .inspect()
            .await
            .unwrap()
            .is_some();
        assert_eq!(
            (is_recorded, rows(&pool).await),
            (during.is_ok(), 1 + i64::from(during.is_ok())),
            "{during:?}"
        );
        // A process that starts now knows nothing of either.
        let new = World::new(&url(dir.path()), "", BEGIN).await;
        assert_eq!(new.is_done("elsewhere").await, is_replaced);
        for key in ["before", "during"] {
            assert!(!new.is_done(key).await, "{key}");
            assert!(!new.answer(key).await.is_replayed(), "{key}");
        }
        pool.close().await;
        assert!(new.is_done("before").await && new.is_done("during").await);
    }
}
