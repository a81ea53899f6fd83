//! Steps beside transactions: on connections of their own.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::poll_immediate;
use idem::{Error, ErrorAction, Idempotency, RecordState, UnkeptAction, sqlx};

use super::{OrderError, has_run};
use crate::support::LONG;

/// Each database that has several writers, its name of a session, and the end of one.
macro_rules! over {
    ($($module:ident $feature:literal $Pool:ident $Store:ident $server:ident
        $session:literal $kill:literal;)+) => {$(
        #[cfg(feature = $feature)]
        mod $module {
            use idem::{sqlx::$Pool as Pool, $Store as Store};

            use super::*;

            struct Bank {
                pool: Pool,
                idempotency: Idempotency,
                operation: &'static str,
                charges: AtomicU32,
            }

            impl Bank {
                async fn open(operation: &'static str) -> Self {
                    let url = idem_testkit::$server::shared().await.unwrap().url();
                    let pool = Pool::connect(&url).await.unwrap();
                    let store = Store::builder(pool.clone()).time_limit(LONG).build();
                    store.migrate().await.unwrap();
                    Self {
                        pool,
                        idempotency: Idempotency::new(store),
                        operation,
                        charges: AtomicU32::new(0),
                    }
                }

                fn order(&self) -> idem::Operation<'static> {
                    let order = self.idempotency.operation(self.operation).key("o-1");
                    order.ttl("500ms").wait(LONG)
                }

                async fn charge(&self) -> Result<u32, OrderError> {
                    idem::step("charge", async || {
                        Ok(self.charges.fetch_add(1, Ordering::SeqCst) + 1)
                    })
                    .await
                }

                /// Charges in a transaction that the library ends.
                async fn place(&self, commits: bool) {
                    let placed = self.order().transaction(&self.pool, async |_| {
                        let charge = self.charge().await?;
                        if commits { Ok(charge) } else { Err(OrderError::Declined) }
                    });
                    assert_eq!(placed.await.is_ok(), commits);
                }

                /// Charges in a transaction that the caller ends.
                async fn place_in(&self, commits: bool) {
                    let mut tx = self.pool.begin().await.unwrap();
                    let placed = self.order().run_in(&mut tx, async |_| self.charge().await);
                    placed.await.unwrap();
                    assert!(has_run(self.order()).await);
                    if commits {
                        tx.commit().await.unwrap();
                    } else {
                        tx.rollback().await.unwrap();
                    }
                }

                fn charges(&self) -> u32 {
                    self.charges.load(Ordering::SeqCst)
                }

                /// Waits until the outcome is no longer valid.
                async fn is_free(&self) {
                    let found = async || self.order().inspect().await.unwrap();
                    while found().await.is_some() {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }

            #[tokio::test]
            async fn steps_beside_a_transaction_outlive_its_rollback_and_end_with_its_outcome() {
                let bank = Bank::open("steps.beside.library").await;
                for round in 1..=2 {
                    bank.place(false).await;
                    bank.place(false).await;
                    bank.place(true).await;
                    assert_eq!(bank.charges(), round);
                    assert!(!has_run(bank.order()).await);
                    bank.is_free().await;
                }
            }

            #[tokio::test]
            async fn steps_beside_the_callers_transaction_outlive_its_rollback_and_end_with_its_outcome()
            {
                let bank = Bank::open("steps.beside.caller").await;
                for round in 1..=2 {
                    for commits in [false, true] {
                        bank.place_in(commits).await;
                    }
                    assert_eq!(bank.charges(), round);
                    bank.is_free().await;
                }
            }

            #[tokio::test]
            async fn a_step_in_the_transaction_of_its_call_goes_on_after_other_calls_in_it() {
                let bank = Bank::open("steps.inside.others").await;
                let failed = bank.order().run(|| async {
                    bank.charge().await?;
                    Err::<u32, _>(OrderError::Declined)
                });
                failed.await.unwrap_err();
                let other = bank.idempotency.operation("steps.inside.other").key("k");
                let other = std::sync::Mutex::new(Some(other));
                let placed = bank.order().transaction(&bank.pool, async |tx| {
                    let other = other.lock().unwrap().take();
                    if let Some(other) = other {
                        other.run_in(tx, async |_| Ok::<_, OrderError>(1)).await?;
                    }
                    let charge = idem::step_with("charge").run_in(tx, async |_| {
                        Ok::<_, OrderError>(bank.charges.fetch_add(1, Ordering::SeqCst) + 1)
                    });
                    charge.await
                });
                assert_eq!(placed.await.unwrap().into_inner(), 1);
                assert_eq!(bank.charges(), 1);
            }

            #[tokio::test]
            async fn beside_a_step_with_a_transaction_nothing_is_recorded() {
                let bank = Bank::open("steps.beside.step").await;
                let placed = bank.order().run(|| async {
                    let rows = idem::step_with("rows").transaction(&bank.pool, async |_| {
                        bank.charge().await
                    });
                    rows.await
                });
                let Err(OrderError::Idempotency(Error::Config {
                    operation, reason, ..
                })) = placed.await
                else {
                    panic!("the step was not refused");
                };
                assert_eq!(&*operation, "steps.beside.step/rows/charge");
                assert!(reason.contains("run_in(tx, ..)"), "{reason}");
                assert_eq!(bank.charges(), 0);
            }

            #[tokio::test]
            async fn a_key_that_is_forgotten_after_a_rollback_begins_a_new_run() {
                let bank = Bank::open("steps.beside.forgotten").await;
                let forget = async |noted: bool| {
                    let order = bank.order();
                    let order = if noted { order.audit("jane", "a test") } else { order };
                    order.forget().await.unwrap()
                };
                for (round, noted) in [(1, false), (2, true)] {
                    bank.place(false).await;
                    assert_eq!(bank.charges(), round);
                    assert!(forget(noted).await);
                    assert!(!forget(noted).await);
                }
                bank.place(true).await;
                assert_eq!(bank.charges(), 3);
            }

            #[tokio::test]
            async fn a_first_step_beside_a_transaction_that_is_not_polled_holds_up_no_other() {
                let bank = Bank::open("steps.beside.parked").await;
                let placed = bank.order().transaction(&bank.pool, async |_| {
                    let mut one = std::pin::pin!(idem::step("one", async || Ok::<_, Error>(1)));
                    assert!(poll_immediate(&mut one).await.is_none());
                    let two = idem::step("two", async || Ok::<_, Error>(2));
                    let two = tokio::time::timeout(LONG, two).await.expect("not held up")?;
                    Ok::<_, OrderError>(two + one.await?)
                });
                assert_eq!(placed.await.unwrap().into_inner(), 3);
            }

            #[tokio::test]
            async fn a_step_beside_a_transaction_goes_on_with_the_run_of_an_earlier_lease() {
                let bank = Bank::open("steps.beside.lease").await;
                let failed = bank.order().run(|| async {
                    bank.charge().await?;
                    Err::<u32, _>(OrderError::Declined)
                });
                failed.await.unwrap_err();
                bank.place(false).await;
                bank.place(true).await;
                assert_eq!(bank.charges(), 1);
            }

            #[tokio::test]
            async fn an_error_that_a_guard_keeps_after_its_rollback_ends_the_run() {
                let bank = Bank::open("steps.beside.kept").await;
                for round in 1..=2 {
                    let kept = idem::guard::transaction(&bank.pool, async |tx| {
                        let order = bank.order().errors(|_: &OrderError| ErrorAction::Keep);
                        let declined = order.run_in(tx, async |_| {
                            bank.charge().await?;
                            Err::<u32, _>(OrderError::Declined)
                        });
                        declined.await
                    });
                    assert!(matches!(kept.await, Err(OrderError::Declined)));
                    assert_eq!(bank.charges(), round);
                    bank.is_free().await;
                }
            }

            /// Nothing stops a body whose transaction the server has ended.
            #[tokio::test]
            async fn a_body_whose_session_has_ended_repeats_no_step_of_another_attempt() {
                let bank = Bank::open("steps.beside.session").await;
                let other = Store::builder(bank.pool.clone()).time_limit(LONG);
                let other = Idempotency::new(other.build());
                // Whether it has begun a step before, and whether an earlier attempt had a lease.
                for (key, begins_before, goes_on) in [
                    ("before", true, false),
                    ("after", false, false),
                    ("before, later", true, true),
                    ("after, later", false, true),
                ] {
                    let effects = Mutex::new(Vec::new());
                    let step = |name: &'static str| {
                        let effects = &effects;
                        idem::step(name, async move || {
                            effects.lock().unwrap().push(name);
                            Ok::<_, OrderError>(())
                        })
                    };
                    let order = |idempotency: &Idempotency| {
                        idempotency.operation(bank.operation).key(key).wait(LONG)
                    };
                    if goes_on {
                        let failed = order(&bank.idempotency).run(|| async {
                            step("charge").await?;
                            Err::<(), _>(OrderError::Declined)
                        });
                        failed.await.unwrap_err();
                    }
                    let mut tx = bank.pool.begin().await.unwrap();
                    let session = sqlx::query_scalar($session).fetch_one(&mut *tx).await;
                    let session: i64 = session.unwrap();
                    let placed = order(&bank.idempotency).run_in_local(&mut tx, async |_| {
                        if begins_before {
                            step("charge").await?;
                        }
                        let kill = sqlx::AssertSqlSafe(format!($kill, session));
                        sqlx::raw_sql(kill).execute(&bank.pool).await?;
                        // Another process does all of it, and removes what it would.
                        let placed = order(&other).transaction_local(&bank.pool, async |_| {
                            step("charge").await?;
                            step("mail").await
                        });
                        placed.await?;
                        other.shutdown(LONG).await.unwrap();
                        if !begins_before {
                            step("charge").await?;
                        }
                        step("mail").await
                    });
                    let ended = placed.await;
                    assert!(
                        matches!(ended, Err(OrderError::Idempotency(Error::Store { .. }))),
                        "{key}: {ended:?}"
                    );
                    assert_eq!(*effects.lock().unwrap(), ["charge", "mail"], "{key}");
                }
            }

            #[tokio::test]
            async fn an_abandoned_record_stays_as_long_as_a_first_step_in_a_transaction() {
                let bank = Bank::open("steps.inside.abandoned").await;
                let order = bank.order().errors(|_: &OrderError| UnkeptAction::Abandon);
                let placed = order.run(|| async {
                    let mut tx = bank.pool.begin().await?;
                    let rows = idem::step_with("rows");
                    rows.run_in(&mut tx, async |_| Ok::<_, OrderError>(())).await?;
                    tx.commit().await?;
                    Err::<u32, _>(OrderError::Declined)
                });
                placed.await.unwrap_err();
                let info = bank.order().inspect().await.unwrap().unwrap();
                let month = Duration::from_secs(29 * 86_400);
                assert_eq!(
                    (info.state, info.expires_in > month),
                    (RecordState::Abandoned, true),
                    "{info:?}"
                );
            }
        }
    )+};
}

over! {
    postgres "postgres" PgPool PostgresStore PostgresServer
        "SELECT pg_backend_pid()::bigint" "SELECT pg_terminate_backend({})";
    mysql "mysql" MySqlPool MySqlStore MariaDbServer
        "SELECT CAST(connection_id() AS SIGNED)" "KILL {}";
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_snapshot_that_is_older_than_its_steps_commits_their_end() {
    let url = idem_testkit::PostgresServer::shared().await.unwrap().url();
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    let store = idem::PostgresStore::builder(pool.clone())
        .time_limit(LONG)
        .build();
    store.migrate().await.unwrap();
    let idempotency = Idempotency::new(store);
    let order = || {
        idempotency
            .operation("steps.snapshot")
            .key("o-1")
            .ttl("1ms")
    };
    let charges = AtomicU32::new(0);
    for round in 1..=3 {
        for commits in [false, true] {
            let mut tx = pool.begin().await.unwrap();
            sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
                .execute(&mut *tx)
                .await
                .unwrap();
            let placed = order().run_in(&mut tx, async |_| {
                idem::step("charge", async || {
                    charges.fetch_add(1, Ordering::SeqCst);
                    Ok::<_, OrderError>(1)
                })
                .await
            });
            placed.await.unwrap();
            if commits {
                tx.commit().await.unwrap();
            } else {
                tx.rollback().await.unwrap();
            }
        }
        assert_eq!(charges.load(Ordering::SeqCst), round);
        while order().inspect().await.unwrap().is_some() {}
    }
}
