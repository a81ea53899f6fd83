//! Transactions that meet others, and those whose `COMMIT` gets no answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem_core::Idempotency;
use idem_macros::idempotent;
use idem_sqlx::guard::{self, Isolation};
use idem_sqlx::sqlx::mysql::MySqlPool;
use idem_sqlx::sqlx::postgres::PgPool;
use idem_sqlx::sqlx::sqlite::SqlitePool;
use idem_sqlx::sqlx::{self, AssertSqlSafe, MySql, Postgres, Sqlite, Transaction, raw_sql};
use idem_testkit::{MariaDbServer, Mishap, PostgresServer, Proxy};
use tokio::sync::Barrier;

use super::chain;
use crate::Server as _;
use crate::failed::Failed;
use crate::pools::{insert, mariadb, mysql_at, postgres, postgres_at, sqlite};

/// Rows that transactions change in opposite order: two for each test.
const PURSES: &str =
    "CREATE TABLE IF NOT EXISTS purses (id int PRIMARY KEY, cents bigint NOT NULL)";

macro_rules! between_servers {
    ($module:ident, $Db:ty, $Pool:ty, $setup:path, $connect:path, $Server:ty) => {
        mod $module {
            use super::*;

            type Tx<'a> = Transaction<'a, $Db>;

            pub(super) async fn purses(pool: &$Pool, ids: [i32; 2]) {
                let _ = raw_sql(PURSES).execute(pool).await;
                for id in ids {
                    let open = format!("INSERT INTO purses VALUES ({id}, 0)");
                    raw_sql(AssertSqlSafe(open)).execute(pool).await.unwrap();
                }
            }

            pub(super) async fn cents(pool: &$Pool, id: i32) -> i64 {
                let select = AssertSqlSafe(format!("SELECT cents FROM purses WHERE id = {id}"));
                sqlx::query_scalar(select).fetch_one(pool).await.unwrap()
            }

            pub(super) async fn add(tx: &mut Tx<'_>, id: i32) -> Result<(), sqlx::Error> {
                let update = format!("UPDATE purses SET cents = cents + 1 WHERE id = {id}");
                raw_sql(AssertSqlSafe(update))
                    .execute(&mut **tx)
                    .await
                    .map(drop)
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn of_two_transactions_that_deadlock_one_runs_again_and_both_are_committed() {
                let (pool, _) = $setup().await;
                purses(&pool, [11, 12]).await;
                let both_hold_one = Arc::new(Barrier::new(2));
                let runs = Arc::new(AtomicU32::new(0));
                let calls = [[11, 12], [12, 11]].map(|[first, second]| {
                    let (pool, runs) = (pool.clone(), runs.clone());
                    let both_hold_one = both_hold_one.clone();
                    tokio::spawn(async move {
                        let is_first_run = AtomicU32::new(1);
                        guard::transaction(&pool, async |tx| {
                            runs.fetch_add(1, Ordering::Relaxed);
                            add(tx, first).await?;
                            if is_first_run.swap(0, Ordering::Relaxed) == 1 {
                                both_hold_one.wait().await;
                            }
                            add(tx, second).await
                        })
                        .await
                    })
                });
                for call in calls {
                    call.await.unwrap().unwrap();
                }
                assert_eq!((cents(&pool, 11).await, cents(&pool, 12).await), (2, 2));
                assert!(runs.load(Ordering::Relaxed) >= 3);
            }

            /// Both read the sum of the rows, and then each writes another row. Returns how often
            /// they ran in all.
            async fn write_skew(pool: &$Pool, isolation: Isolation) -> u32 {
                let both_have_read = Arc::new(Barrier::new(2));
                let runs = Arc::new(AtomicU32::new(0));
                let calls = [21, 22].map(|id| {
                    let (pool, runs) = (pool.clone(), runs.clone());
                    let both_have_read = both_have_read.clone();
                    tokio::spawn(async move {
                        let is_first_run = AtomicU32::new(1);
                        let settings = guard::transaction_with().isolation(isolation);
                        let call = settings.run(&pool, async |tx: &mut Tx<'_>| {
                            runs.fetch_add(1, Ordering::Relaxed);
                            raw_sql("SELECT sum(cents) FROM purses WHERE id IN (21, 22)")
                                .execute(&mut **tx)
                                .await?;
                            if is_first_run.swap(0, Ordering::Relaxed) == 1 {
                                both_have_read.wait().await;
                            }
                            add(tx, id).await
                        });
                        call.await
                    })
                });
                for call in calls {
                    call.await.unwrap().unwrap();
                }
                runs.load(Ordering::Relaxed)
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_serialization_failure_runs_again_and_the_level_is_that_of_one_transaction() {
                let (pool, _) = $setup().await;
                purses(&pool, [21, 22]).await;
                // On one and the same connection for each of the two.
                let two = pool.options().clone().max_connections(2);
                let options = (*pool.connect_options()).clone();
                let pool = two.connect_with(options).await.unwrap();
                assert!(write_skew(&pool, Isolation::Serializable).await >= 3);
                assert_eq!(write_skew(&pool, Isolation::RepeatableRead).await, 2);
                assert_eq!(write_skew(&pool, Isolation::ReadCommitted).await, 2);
                assert_eq!((cents(&pool, 21).await, cents(&pool, 22).await), (3, 3));
            }

            #[idempotent(name = "begun.lost", key = key, transaction = tx, crate = "::idem_core")]
            async fn pay(tx: &mut Tx<'_>, key: &str, runs: &AtomicU32) -> Result<u32, Failed> {
                runs.fetch_add(1, Ordering::Relaxed);
                raw_sql(insert(key)).execute(&mut **tx).await?;
                Ok(7)
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_commit_without_an_answer_does_not_run_again_and_the_next_call_finds_out() {
                let server = <$Server>::empty().await;
                let proxy = Proxy::start(&server.url()).await.unwrap();
                let url = server.url_through(proxy.address().port());
                let (pool, store) = $connect(&url).await;
                let idempotency = Idempotency::new(store);
                let commits = proxy.passing(|words| words.first() == Some(&&b"COMMIT"[..]));
                for (key, mishap, runs_in_all) in [
                    ("reply", Mishap::LoseReply, 1),
                    ("request", Mishap::LoseRequest, 2),
                ] {
                    commits.next(mishap);
                    let runs = AtomicU32::new(0);
                    let call = || guard::transaction(&pool, async |tx| pay(tx, key, &runs).await);
                    let lost = idem_core::scope(idempotency.clone(), call()).await;
                    let why = chain(&lost.unwrap_err());
                    assert!(why.contains("lost during COMMIT"), "{key}: {why}");
                    assert_eq!(runs.load(Ordering::Relaxed), 1, "{key}");
                    let found = idem_core::scope(idempotency.clone(), call()).await;
                    assert_eq!(found.unwrap(), 7);
                    assert_eq!(runs.load(Ordering::Relaxed), runs_in_all, "{key}");
                    let count = format!("SELECT count(*) FROM business WHERE name = '{key}'");
                    let rows: i64 = sqlx::query_scalar(AssertSqlSafe(count))
                        .fetch_one(&pool)
                        .await
                        .unwrap();
                    assert_eq!(rows, 1, "{key}");
                }
            }
        }
    };
}

between_servers!(
    with_postgres,
    Postgres,
    PgPool,
    postgres,
    postgres_at,
    PostgresServer
);
between_servers!(
    with_mariadb,
    MySql,
    MySqlPool,
    mariadb,
    mysql_at,
    MariaDbServer
);

/// The other transaction is committed while the body runs, so `COMMIT` finds the conflict.
#[tokio::test]
async fn a_serialization_failure_at_commit_runs_again() {
    use with_postgres::{add, cents, purses};

    let sum = "SELECT sum(cents) FROM purses WHERE id IN (31, 32)";
    let (pool, _) = postgres().await;
    purses(&pool, [31, 32]).await;
    let runs = AtomicU32::new(0);
    let settings = guard::transaction_with().isolation(Isolation::Serializable);
    let call = settings.run(&pool, async |tx: &mut Transaction<'_, Postgres>| {
        raw_sql(sum).execute(&mut **tx).await?;
        add(tx, 31).await?;
        if runs.fetch_add(1, Ordering::Relaxed) == 0 {
            let begin = "BEGIN ISOLATION LEVEL SERIALIZABLE";
            let mut other = pool.begin_with(begin).await?;
            raw_sql(sum).execute(&mut *other).await?;
            add(&mut other, 32).await?;
            other.commit().await?;
        }
        Ok::<_, sqlx::Error>(())
    });
    call.await.unwrap();
    assert_eq!(runs.into_inner(), 2);
    assert_eq!((cents(&pool, 31).await, cents(&pool, 32).await), (1, 1));
}

/// The file's writer is another transaction for as long as it is tried.
#[tokio::test]
async fn a_writer_that_never_comes_is_a_conflict_after_the_last_attempt() {
    let (pool, _) = sqlite().await;
    let options = (*pool.connect_options()).clone();
    let options = options.busy_timeout(Duration::from_millis(1));
    let hasty = SqlitePool::connect_with(options).await.unwrap();
    let writer = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let call = || {
        let settings = guard::transaction_with().attempts(3);
        settings.run(&hasty, async |tx: &mut Transaction<'_, Sqlite>| {
            raw_sql(insert("hasty"))
                .execute(&mut **tx)
                .await
                .map(|done| done.rows_affected())
        })
    };
    let error = call().await.unwrap_err();
    assert!(guard::is_conflict(&error), "{error}");
    writer.commit().await.unwrap();
    assert_eq!(call().await.unwrap(), 1);
}

#[cfg(feature = "sqlx-08")]
#[tokio::test]
async fn sqlx_0_8_has_it_too() {
    use idem_sqlx::v08::{SqliteStore, guard, sqlx};

    let dir = crate::own::temporary();
    let url = format!("sqlite://{}/shop.db?mode=rwc", dir.path().display());
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    let store = SqliteStore::builder(pool.clone())
        .time_limit(crate::LONG)
        .build();
    crate::connected(async || store.migrate().await).await;
    let runs = AtomicU32::new(0);
    let idempotency = Idempotency::new(store);
    let call = guard::transaction(&pool, async |tx: &mut sqlx::SqliteTransaction<'_>| {
        let call = idempotency.operation("begun").key("k");
        let call = call.run_in(tx, async |_| {
            runs.fetch_add(1, Ordering::Relaxed);
            Ok::<_, idem_core::Error>(7)
        });
        call.await
            .map_err(|error| sqlx::Error::Io(std::io::Error::other(error)))
    });
    assert_eq!(call.await.unwrap().into_inner(), 7);
    assert_eq!(runs.into_inner(), 1);
}
