//! Records in the caller's own transaction: each row of the table of events, on each database.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use idem_core::{Begin, Error, Idempotency, InFlight, MemoryStore, Outcome, RecordState};
use idem_sqlx::sqlx::mysql::MySqlPool;
use idem_sqlx::sqlx::postgres::PgPool;
use idem_sqlx::sqlx::sqlite::SqlitePool;
use idem_sqlx::sqlx::{self, MySql, Postgres, Sqlite, Transaction};
use idem_sqlx::{MySqlStore, PostgresStore, SqliteStore};
use tokio::sync::Notify;

use crate::failed::{Failed, action};
use crate::pools::{insert, mariadb, postgres, real_mysql, rows, sqlite};
use crate::{LONG, in_use, until};

macro_rules! over {
    ($module:ident, $Db:ty, $Pool:ty, $Store:ty, $setup:path, $begin:literal, $levels:expr) => {
        mod $module {
            use super::*;

            /// How the tests begin, one for each isolation level.
            const LEVELS: &[&str] = &$levels;

            async fn setup() -> ($Pool, Idempotency) {
                let (pool, store) = $setup().await;
                (pool, Idempotency::new(store))
            }

            /// As another process has it: this one expects a record at a key that it has claimed.
            fn another(pool: &$Pool) -> Idempotency {
                let builder = <$Store>::builder(pool.clone());
                Idempotency::new(builder.time_limit(LONG).build())
            }

            async fn begin(pool: &$Pool) -> Transaction<'static, $Db> {
                pool.begin_with($begin).await.unwrap()
            }

            async fn write(tx: &mut Transaction<'_, $Db>, name: &str) -> Result<u32, Failed> {
                sqlx::raw_sql(insert(name)).execute(&mut **tx).await?;
                Ok(7)
            }

            async fn call(
                idempotency: &Idempotency,
                tx: &mut Transaction<'_, $Db>,
                key: &str,
            ) -> Result<Outcome<u32>, Failed> {
                idempotency
                    .operation("tx")
                    .key(key)
                    .run_in(tx, async |tx| write(tx, key).await)
                    .await
            }

            #[tokio::test]
            async fn rows_and_record_are_committed_together_and_a_duplicate_changes_no_row() {
                let (pool, idempotency) = setup().await;
                for (index, level) in LEVELS.iter().enumerate() {
                    let key = &format!("together-{index}");
                    for replayed in [false, true] {
                        let mut tx = pool.begin_with(*level).await.unwrap();
                        let outcome = call(&idempotency, &mut tx, key).await.unwrap();
                        assert_eq!((outcome.is_replayed(), *outcome.get()), (replayed, 7));
                        tx.commit().await.unwrap();
                    }
                    assert_eq!(rows(&pool, key).await, 1);
                    // An ordinary record.
                    let outcome = idempotency
                        .operation("tx")
                        .key(key)
                        .run(async || Ok::<u32, Error>(0))
                        .await
                        .unwrap();
                    assert_eq!(outcome.into_inner(), 7);
                }
            }

            #[tokio::test]
            async fn a_body_that_takes_longer_than_its_record_is_kept_is_recorded() {
                let (pool, idempotency) = setup().await;
                let short = Duration::from_millis(100);
                let operation = || {
                    idempotency
                        .operation("tx")
                        .key("slow")
                        .ttl(short)
                        .lease(short)
                };
                let operation = || operation().abandoned(idem_core::Abandoned::Rerun);
                let mut tx = begin(&pool).await;
                let slow = operation().run_in(&mut tx, async |tx| {
                    tokio::time::sleep(short * 4).await;
                    write(tx, "slow").await
                });
                assert_eq!(slow.await.unwrap().into_inner(), 7);
                tx.commit().await.unwrap();
                assert_eq!(rows(&pool, "slow").await, 1);
            }

            #[tokio::test]
            async fn a_transaction_that_is_rolled_back_leaves_nothing() {
                let (pool, idempotency) = setup().await;
                let mut tx = begin(&pool).await;
                call(&idempotency, &mut tx, "rolled back").await.unwrap();
                tx.rollback().await.unwrap();
                assert_eq!(rows(&pool, "rolled back").await, 0);
                assert!(
                    idempotency
                        .operation("tx")
                        .key("rolled back")
                        .inspect()
                        .await
                        .unwrap()
                        .is_none()
                );
            }

            #[tokio::test]
            async fn a_released_error_leaves_neither_rows_nor_record_and_the_transaction_stays_usable()
             {
                let (pool, idempotency) = setup().await;
                let mut tx = begin(&pool).await;
                let failed = idempotency
                    .operation("tx")
                    .key("released")
                    .errors(action)
                    .run_in(&mut tx, async |tx| {
                        write(tx, "released").await?;
                        Err::<u32, _>(Failed::Down)
                    });
                assert!(matches!(failed.await, Err(Failed::Down)));
                write(&mut tx, "released, after").await.unwrap();
                tx.commit().await.unwrap();
                assert_eq!(
                    (
                        rows(&pool, "released").await,
                        rows(
                            &pool,
                            "released, after"
                        )
                        .await
                    ),
                    (0, 1)
                );
                assert!(
                    idempotency
                        .operation("tx")
                        .key("released")
                        .inspect()
                        .await
                        .unwrap()
                        .is_none()
                );
            }

            #[tokio::test]
            async fn a_kept_error_is_recorded_without_the_rows_of_the_body() {
                let (pool, idempotency) = setup().await;
                for _ in 0..2 {
                    let mut tx = begin(&pool).await;
                    let failed = idempotency
                        .operation("tx")
                        .key("kept")
                        .errors(action)
                        .run_in(&mut tx, async |tx| {
                            write(tx, "kept").await?;
                            Err::<u32, _>(Failed::Declined)
                        });
                    assert!(matches!(failed.await, Err(Failed::Declined)));
                    tx.commit().await.unwrap();
                }
                for _ in 0..2 {
                    let failed = idempotency
                        .operation("tx")
                        .key("kept by us")
                        .errors(action)
                        .transaction(&pool, async |tx| {
                            write(tx, "kept by us").await?;
                            Err::<u32, _>(Failed::Declined)
                        });
                    assert!(matches!(failed.await, Err(Failed::Declined)));
                }
                for key in ["kept by us", "kept"] {
                    assert_eq!(rows(&pool, key).await, 0, "{key}");
                    let found = idempotency.operation("tx").key(key).inspect().await;
                    let found = found.unwrap().unwrap();
                    assert_eq!(
                        (found.state, found.is_error),
                        (RecordState::Committed, true)
                    );
                }
            }

            #[tokio::test]
            async fn a_dropped_body_leaves_nothing_even_if_the_caller_commits() {
                let (pool, idempotency) = setup().await;
                let mut tx = begin(&pool).await;
                let written = Notify::new();
                let body = async |tx: &mut Transaction<'_, $Db>| {
                    write(tx, "dropped").await?;
                    written.notify_one();
                    std::future::pending::<Result<u32, Failed>>().await
                };
                let called = idempotency
                    .operation("tx")
                    .key("dropped")
                    .run_in(&mut tx, body);
                tokio::select! {
                    _ = called => panic!("the body does not end"),
                    () = written.notified() => {}
                }
                write(&mut tx, "dropped, after").await.unwrap();
                tx.commit().await.unwrap();
                assert_eq!(
                    (
                        rows(&pool, "dropped").await,
                        rows(&pool, "dropped, after").await
                    ),
                    (0, 1)
                );
                assert!(
                    idempotency
                        .operation("tx")
                        .key("dropped")
                        .inspect()
                        .await
                        .unwrap()
                        .is_none()
                );
            }

            #[tokio::test]
            async fn a_call_dropped_at_any_poll_leaves_rows_and_record_or_neither_and_a_usable_connection()
             {
                let (pool, idempotency) = setup().await;
                let one = pool.options().clone().max_connections(1);
                let one = one
                    .connect_with((*pool.connect_options()).clone())
                    .await
                    .unwrap();
                for errors in [false, true] {
                    for polls in 0..30 {
                        let key = &format!("dropped at {polls}, {errors}");
                        let mut tx = begin(&one).await;
                        let operation = idempotency.operation("tx").key(key).errors(action);
                        let called =
                            operation.run_in(&mut tx, async |tx| match write(tx, key).await {
                                Ok(_) if errors => Err(Failed::Declined),
                                written => written,
                            });
                        let ended = crate::pools::polled(called, polls).await;
                        // Whoever commits all the same.
                        let _ = tx.commit().await;
                        let found = idempotency
                            .operation("tx")
                            .key(key)
                            .inspect()
                            .await
                            .unwrap();
                        let is_recorded =
                            found.is_some_and(|found| found.state == RecordState::Committed);
                        let is_written = rows(&one, key).await == 1;
                        assert_eq!(is_written, is_recorded && !errors, "{key}");
                        assert!(is_recorded || !ended, "{key}");
                        // A duplicate, which rolls back to its savepoint, and whose caller goes.
                        let mut tx = begin(&one).await;
                        let operation = idempotency.operation("tx").key(key).errors(action);
                        let again =
                            operation.run_in(&mut tx, async |_| Err::<u32, _>(Failed::Down));
                        crate::pools::polled(again, polls).await;
                        drop(tx);
                    }
                }
            }

            #[tokio::test]
            async fn a_key_of_an_open_transaction_is_in_flight_after_the_wait_and_the_caller_goes_on()
             {
                let (pool, idempotency) = setup().await;
                let mut owner = begin(&pool).await;
                call(&idempotency, &mut owner, "open").await.unwrap();
                for in_flight in [InFlight::Reject, InFlight::Wait] {
                    // Not one that writes from its beginning: in SQLite, that would wait there.
                    let mut tx = pool.begin().await.unwrap();
                    let duplicate = idempotency
                        .operation("tx")
                        .key("open")
                        .wait(Duration::from_secs(1))
                        .in_flight(in_flight);
                    let refused = duplicate
                        .run_in(&mut tx, async |tx| write(tx, "open").await)
                        .await
                        .unwrap_err();
                    assert!(
                        matches!(refused, Failed::Idem(Error::InFlight { .. })),
                        "{refused}"
                    );
                    let one: i64 = sqlx::query_scalar(
                        "SELECT count(*) FROM business",
                    )
                    .fetch_one(&mut *tx)
                    .await
                    .unwrap();
                    assert!(one >= 0);
                    tx.rollback().await.unwrap();
                }
                owner.commit().await.unwrap();
                assert_eq!(rows(&pool, "open").await, 1);
            }

            /// A row of the table of events for waiters, with eight of them. Before, so many first
            /// calls have found nothing.
            async fn waiters(key: &'static str, commits: bool, habit: u32) {
                let (pool, idempotency) = setup().await;
                for first in 0..habit {
                    let mut tx = begin(&pool).await;
                    call(&idempotency, &mut tx, &format!("{key}, {first}"))
                        .await
                        .unwrap();
                    tx.commit().await.unwrap();
                }
                let mut owner = begin(&pool).await;
                call(&another(&pool), &mut owner, key).await.unwrap();
                let ran = Arc::new(AtomicU32::new(0));
                let waiters: Vec<_> = (0..8)
                    .map(|_| {
                        let pool = pool.clone();
                        let idempotency = idempotency.clone();
                        let ran = ran.clone();
                        tokio::spawn(async move {
                            let operation = idempotency
                                .operation("tx")
                                .key(key)
                                .wait(Duration::from_secs(20));
                            operation
                                .transaction(&pool, async |tx| {
                                    ran.fetch_add(1, Ordering::Relaxed);
                                    write(tx, key).await
                                })
                                .await
                        })
                    })
                    .collect();
                // With a connection, each of them waits for the owner of the key, or is about to.
                until("nine transactions are open", async || in_use(&pool) >= 9).await;
                if commits {
                    owner.commit().await.unwrap()
                } else {
                    owner.rollback().await.unwrap()
                }
                let mut replayed = 0;
                for waiter in waiters {
                    let outcome = waiter.await.unwrap().unwrap();
                    assert_eq!(*outcome.get(), 7);
                    replayed += u32::from(outcome.is_replayed());
                }
                assert_eq!(replayed, if commits { 8 } else { 7 });
                assert_eq!(rows(&pool, key).await, 1);
                if commits {
                    assert_eq!(ran.load(Ordering::Relaxed), 0);
                }
            }

            #[tokio::test]
            async fn waiters_replay_what_another_transaction_commits() {
                waiters("waited, committed", true, 0).await;
                waiters("waited by habit, committed", true, 10).await;
            }

            #[tokio::test]
            async fn of_the_waiters_of_a_transaction_that_is_rolled_back_one_runs_the_body() {
                waiters("waited, rolled back", false, 0).await;
                waiters("waited by habit, rolled back", false, 10).await;
            }

            #[tokio::test]
            async fn duplicates_on_a_pool_of_few_connections_do_not_wait_for_themselves() {
                let (pool, idempotency) = setup().await;
                let small = pool
                    .options()
                    .clone()
                    .max_connections(2)
                    .connect_with((*pool.connect_options()).clone())
                    .await
                    .unwrap();
                let begun = Instant::now();
                let calls: Vec<_> = (0..24)
                    .map(|_| {
                        let small = small.clone();
                        let idempotency = idempotency.clone();
                        tokio::spawn(async move {
                            let operation = idempotency.operation("tx").key("crowd");
                            operation
                                .transaction(&small, async |tx| write(tx, "crowd").await)
                                .await
                        })
                    })
                    .collect();
                for call in calls {
                    assert_eq!(call.await.unwrap().unwrap().into_inner(), 7);
                }
                assert!(begun.elapsed() < Duration::from_secs(20));
                assert_eq!(rows(&pool, "crowd").await, 1);
            }

            #[tokio::test]
            async fn a_call_that_this_process_refuses_needs_no_connection() {
                let (pool, idempotency) = setup().await;
                let one = pool.options().clone().max_connections(1);
                let one = one
                    .connect_with((*pool.connect_options()).clone())
                    .await
                    .unwrap();
                let own = || idempotency.operation("tx").key("own");
                let outer = own().transaction(&one, async |_| {
                    let inner = own().transaction(&one, async |tx| write(tx, "own").await);
                    let inner = inner.await;
                    assert!(
                        matches!(inner, Err(Failed::Idem(Error::Reentrant { .. }))),
                        "{inner:?}"
                    );
                    let forged = idempotency.operation("tx").token("no token", "alice");
                    let forged = forged.transaction(&one, async |tx| write(tx, "own").await);
                    let forged = forged.await;
                    assert!(
                        matches!(forged, Err(Failed::Idem(Error::UnknownToken { .. }))),
                        "{forged:?}"
                    );
                    Ok::<_, Failed>(1)
                });
                assert_eq!(outer.await.unwrap().into_inner(), 1);
                assert_eq!(rows(&pool, "own").await, 0);
            }

            #[tokio::test]
            async fn nested_calls_undo_their_own_rows_alone() {
                let (pool, idempotency) = setup().await;
                let mut tx = begin(&pool).await;
                let outer = idempotency
                    .operation("tx")
                    .key("outer")
                    .run_in(&mut tx, async |tx| {
                        write(tx, "outer").await?;
                        let inner =
                            idempotency
                                .operation("tx")
                                .key("inner")
                                .run_in(tx, async |tx| {
                                    write(tx, "inner").await?;
                                    Err::<u32, _>(Failed::Down)
                                });
                        assert!(matches!(inner.await, Err(Failed::Down)));
                        let again = idempotency
                            .operation("tx")
                            .key("outer")
                            .run_in(tx, async |tx| write(tx, "outer").await);
                        assert!(matches!(
                            again.await,
                            Err(Failed::Idem(Error::Reentrant { .. }))
                        ));
                        Ok::<_, Failed>(1)
                    });
                outer.await.unwrap();
                tx.commit().await.unwrap();
                assert_eq!(
                    (rows(&pool, "outer").await, rows(&pool, "inner").await),
                    (1, 0)
                );
            }

            #[tokio::test]
            async fn commit_in_commits_with_the_rows_and_a_late_owner_writes_nothing() {
                let (pool, idempotency) = setup().await;
                // What is left of the late owner's transaction is met by the next one.
                let one = pool.options().clone().max_connections(1);
                let pool = one
                    .connect_with((*pool.connect_options()).clone())
                    .await
                    .unwrap();
                let outcome = idempotency.operation("tx").key("external").run(async || {
                    let mut tx = begin(&pool).await;
                    write(&mut tx, "external").await?;
                    idem_core::current()
                        .unwrap()
                        .commit_in(&mut tx, &9_u32)
                        .await?;
                    tx.commit().await?;
                    Ok::<_, Failed>(9_u32)
                });
                assert!(!outcome.await.unwrap().is_replayed());
                let again = idempotency
                    .operation("tx")
                    .key("external")
                    .run(async || Ok::<u32, Error>(0))
                    .await
                    .unwrap();
                assert_eq!(
                    (
                        again.is_replayed(),
                        again.into_inner(),
                        rows(&pool, "external").await
                    ),
                    (true, 9, 1)
                );

                let lease = Duration::from_secs(10);
                let begin_call = || idempotency.operation("tx").key("late").lease(lease).begin();
                let Begin::Execute(late) = begin_call().await.unwrap() else {
                    panic!("a replay")
                };
                late.release().await.unwrap();
                let Begin::Execute(owner) = begin_call().await.unwrap() else {
                    panic!("a replay")
                };
                let mut tx = begin(&pool).await;
                write(&mut tx, "late").await.unwrap();
                let refused = late.commit_in(&mut tx, &1_u32).await.unwrap_err();
                assert!(matches!(refused, Error::LeaseLost { .. }), "{refused}");
                // Whoever does not look at the error.
                let _ = write(&mut tx, "late, after").await;
                let _ = tx.commit().await;
                assert_eq!(
                    (rows(&pool, "late").await, rows(&pool, "late, after").await),
                    (0, 0)
                );
                let mut tx = begin(&pool).await;
                write(&mut tx, "late").await.unwrap();
                owner.commit_in(&mut tx, &2_u32).await.unwrap();
                tx.commit().await.unwrap();
                assert_eq!(rows(&pool, "late").await, 1);
            }

            #[tokio::test]
            async fn a_runtime_with_another_store_is_a_configuration_error() {
                let (pool, _) = setup().await;
                let mut tx = begin(&pool).await;
                let error = call(&Idempotency::new(MemoryStore::new()), &mut tx, "other")
                    .await
                    .unwrap_err();
                assert!(
                    matches!(error, Failed::Idem(Error::Config { .. })),
                    "{error}"
                );
            }
        }
    };
}

over!(
    on_postgres,
    Postgres,
    PgPool,
    PostgresStore,
    postgres,
    "BEGIN",
    [
        "BEGIN ISOLATION LEVEL READ COMMITTED",
        "BEGIN ISOLATION LEVEL REPEATABLE READ",
        "BEGIN ISOLATION LEVEL SERIALIZABLE"
    ]
);
over!(
    on_mariadb,
    MySql,
    MySqlPool,
    MySqlStore,
    mariadb,
    "BEGIN",
    ["BEGIN"]
);
over!(
    on_real_mysql,
    MySql,
    MySqlPool,
    MySqlStore,
    real_mysql,
    "BEGIN",
    ["BEGIN"]
);
over!(
    on_sqlite,
    Sqlite,
    SqlitePool,
    SqliteStore,
    sqlite,
    "BEGIN IMMEDIATE",
    ["BEGIN IMMEDIATE", "BEGIN"]
);
