//! Steps end in time, whatever they wait for.

use std::time::{Duration, Instant};

use idem_core::{Error, Idempotency};
use idem_sqlx::sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use idem_sqlx::sqlx::{self};
use idem_sqlx::{SqliteStore, guard};

use super::{opened, order, url};
use crate::failed::Failed;

#[tokio::test]
async fn a_step_may_take_for_ever() {
    let (dir, _) = opened().await;
    let pool = SqlitePoolOptions::new()
        .max_connections(2)
        .connect(&url(dir.path()))
        .await
        .unwrap();
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

/// To wait would be a deadlock: the other writer cannot commit while this one reads. So whoever
/// began the transaction must run it again.
#[tokio::test]
async fn a_transaction_that_has_read_and_cannot_become_the_writer_is_a_conflict() {
    const LONG: Duration = Duration::from_secs(30);

    let (dir, store) = opened().await;
    let idempotency = Idempotency::new(store);
    order(&idempotency, "k", 1).await.unwrap();
    let pool = SqlitePool::connect(&url(dir.path())).await.unwrap();
    let reads = "CREATE TABLE accounts (id INTEGER PRIMARY KEY); SELECT * FROM accounts";
    sqlx::raw_sql(reads).execute(&pool).await.unwrap();
    for has_written in [false, true] {
        let mut tx = pool.begin().await.unwrap();
        let read = sqlx::raw_sql("SELECT * FROM accounts");
        read.execute(&mut *tx).await.unwrap();
        let mut writer = Some(pool.begin_with("BEGIN IMMEDIATE").await.unwrap());
        if has_written && let Some(mut writer) = writer.take() {
            let write = sqlx::raw_sql("INSERT INTO accounts VALUES (NULL)");
            write.execute(&mut *writer).await.unwrap();
            writer.commit().await.unwrap();
        }
        let operation = idempotency.operation("tx").key("reads").wait(LONG);
        let called = operation.run_in(&mut tx, async |_| Ok::<_, Failed>(1));
        let error = called.await.unwrap_err();
        assert!(guard::is_conflict(&error), "{error}");
        let accounts = guard::Rows::new("accounts", "id");
        let error = accounts.lock(&mut tx, 1_i64, LONG).await.unwrap_err();
        assert!(guard::is_conflict(&error), "{error}");
        drop(writer);
    }
    // One that has not read waits.
    let writer = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let operation = idempotency.operation("tx").key("waits");
    let soon = operation.wait(Duration::from_millis(50));
    let error = soon.run_in(&mut tx, async |_| Ok::<_, Failed>(1)).await;
    assert!(
        matches!(error, Err(Failed::Idem(Error::InFlight { .. }))),
        "{error:?}"
    );
    drop(writer);
}

mod quiet {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_exhausted_pool_is_an_error_in_time() {
        let (dir, _) = opened().await;
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .connect(&url(dir.path()))
            .await
            .unwrap();
        let idempotency = Idempotency::new(SqliteStore::new(pool.clone()));
        let held = pool.acquire().await.unwrap();
        let begun = Instant::now();
        let error = order(&idempotency, "k", 1).await.unwrap_err();
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "{:?}",
            begun.elapsed()
        );
        assert!(
            error.is_retryable()
                && error
                    .to_string()
                    .contains("all connections of the pool are in use"),
            "{error}"
        );
        drop(held);
        order(&idempotency, "k", 2).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_writer_that_stands_still_is_an_error_in_time() {
        let (dir, store) = opened().await;
        let idempotency = Idempotency::new(store);
        order(&idempotency, "k", 1).await.unwrap();
        let pool = SqlitePool::connect(&url(dir.path())).await.unwrap();
        let mut writer = pool.acquire().await.unwrap();
        sqlx::raw_sql("BEGIN IMMEDIATE")
            .execute(&mut *writer)
            .await
            .unwrap();
        let begun = Instant::now();
        let error = order(&idempotency, "new", 2).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "{:?}",
            begun.elapsed()
        );
        sqlx::raw_sql("ROLLBACK")
            .execute(&mut *writer)
            .await
            .unwrap();
        order(&idempotency, "new", 3).await.unwrap();
    }

    /// Where `BEGIN IMMEDIATE` waits for longer than the connections are told to.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_transaction_that_cannot_become_the_writer_says_what_it_waited_for() {
        let (dir, store) = opened().await;
        let idempotency = Idempotency::new(store);
        let options: SqliteConnectOptions = url(dir.path()).parse().unwrap();
        let pool = SqlitePoolOptions::new()
            .connect_with(options.busy_timeout(Duration::from_secs(2)))
            .await
            .unwrap();
        let transfer = async || {
            let operation = idempotency.operation("transfers").key("k");
            operation
                .transaction(&pool, async |_| Ok::<u32, idem_core::Error>(1))
                .await
        };
        let other = SqlitePool::connect(&url(dir.path())).await.unwrap();
        let writer = other.begin_with("BEGIN IMMEDIATE").await.unwrap();
        let begun = Instant::now();
        let error = transfer().await.unwrap_err();
        // As long as the connection's own limit, and once.
        assert!(
            (2..4).contains(&begun.elapsed().as_secs()),
            "{:?}",
            begun.elapsed()
        );
        let idem_core::Error::Store { source, .. } = &error else {
            panic!("{error}")
        };
        assert!(error.is_retryable() && !source.is_unknown(), "{error}");
        for word in [
            "another transaction",
            "one writer",
            "short",
            "`busy_timeout`",
        ] {
            assert!(error.to_string().contains(word), "{word}: {error}");
        }
        for word in [
            "no connection",
            "cannot connect",
            "check that the database runs",
        ] {
            assert!(!error.to_string().contains(word), "{word}: {error}");
        }
        writer.rollback().await.unwrap();
        assert!(!transfer().await.unwrap().is_replayed());
    }
}
