//! Steps beside transactions, and in them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem::sqlx::{self, SqlitePool, SqliteTransaction};
use idem::{Error, Idempotency, SqliteStore};
use tokio::sync::Notify;

use crate::support::{LEASE, LONG};

#[derive(Debug, thiserror::Error)]
enum OrderError {
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] Error),
    #[error("declined")]
    Declined,
}

struct Shop {
    pool: SqlitePool,
    idempotency: Idempotency,
    _folder: tempfile::TempDir,
}

impl Shop {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/shop.db?mode=rwc", folder.path().display());
        let pool = SqlitePool::connect(&url).await.unwrap();
        let store = SqliteStore::builder(pool.clone()).time_limit(LONG).build();
        store.migrate().await.unwrap();
        sqlx::raw_sql("CREATE TABLE orders (item TEXT NOT NULL)")
            .execute(&pool)
            .await
            .unwrap();
        Self {
            pool,
            idempotency: Idempotency::new(store),
            _folder: folder,
        }
    }

    fn order(&self) -> idem::Operation<'static> {
        self.idempotency.operation("shop.order").key("o-1")
    }

    async fn orders(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM orders")
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}

async fn insert(tx: &mut SqliteTransaction<'_>, item: &str) -> Result<(), OrderError> {
    sqlx::query("INSERT INTO orders VALUES (?)")
        .bind(item)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_step_with_a_transaction_of_its_own_writes_its_rows_once() {
    let shop = Shop::open().await;
    for fails in [true, false] {
        let placed = shop.order().run(|| async {
            let pool = shop.pool.clone();
            idem::step_with("rows")
                .transaction(&pool, async |tx| insert(tx, "pen").await)
                .await?;
            let mut tx = pool.begin().await?;
            idem::step_with("more")
                .run_in(&mut tx, async |tx| insert(tx, "ink").await)
                .await?;
            tx.commit().await?;
            if fails {
                Err(OrderError::Declined)
            } else {
                Ok(())
            }
        });
        assert_eq!(placed.await.is_err(), fails);
        assert_eq!(shop.orders().await, 2);
    }
}

/// Its call may have the only connection, in each attempt, and its record stays as long as the step.
#[tokio::test]
async fn a_first_step_may_be_in_a_transaction_that_writes_already() {
    let shop = Shop::open().await;
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
    let pool = pool.connect_with((*shop.pool.connect_options()).clone());
    let pool = pool.await.unwrap();
    let idempotency = Idempotency::new(SqliteStore::new(pool.clone()));
    let order = || idempotency.operation("shop.order").key("o-1").ttl("5m");
    // In an attempt that has found a record, too, whose run has no steps.
    let failed = order().run(async || Err::<(), _>(OrderError::Declined));
    failed.await.unwrap_err();
    for fails in [true, true, false] {
        let placed = order().run(|| async {
            let mut tx = pool.begin().await?;
            insert(&mut tx, "pen").await?;
            idem::step_with("rows")
                .run_in(&mut tx, async |tx| insert(tx, "ink").await)
                .await?;
            tx.commit().await?;
            if fails {
                Err(OrderError::Declined)
            } else {
                Ok(())
            }
        });
        assert_eq!(placed.await.is_err(), fails);
        let info = order().inspect().await.unwrap().unwrap();
        let month = Duration::from_secs(29 * 86_400);
        assert_eq!(info.expires_in > month, fails, "{info:?}");
    }
    // Three times the pen, which is in no step.
    assert_eq!(shop.orders().await, 4);
}

#[tokio::test]
async fn after_a_transaction_has_recorded_the_outcome_a_body_may_begin_its_first_step() {
    let shop = Shop::open().await;
    let mails = AtomicU32::new(0);
    let place = async |key: &'static str, fails: bool| {
        let placed = shop.order().key(key).ttl("5m").run(|| async {
            if fails {
                return Err(OrderError::Declined);
            }
            let mut tx = shop.pool.begin().await?;
            let call = idem::current().expect("a body");
            call.commit_in(&mut tx, &7_u32).await?;
            tx.commit().await?;
            let mail = idem::step("mail", async || {
                mails.fetch_add(1, Ordering::SeqCst);
                Ok::<_, OrderError>(())
            });
            mail.await?;
            Ok(7_u32)
        });
        placed.await.map(idem::Outcome::into_inner)
    };
    assert_eq!(place("one", false).await.unwrap(), 7);
    assert_eq!(mails.load(Ordering::SeqCst), 1);
    // In a later attempt, an earlier one may have sent the mail.
    place("two", true).await.unwrap_err();
    let refused = place("two", false).await.unwrap_err();
    assert!(
        matches!(refused, OrderError::Idempotency(Error::LeaseLost { .. })),
        "{refused:?}"
    );
    assert_eq!(mails.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_step_in_the_transaction_of_its_call_is_rolled_back_with_it() {
    let shop = Shop::open().await;
    let runs = AtomicU32::new(0);
    for fails in [true, false] {
        let placed = shop.order().transaction(&shop.pool, async |tx| {
            idem::step_with("rows")
                .run_in(tx, async |tx| {
                    runs.fetch_add(1, Ordering::SeqCst);
                    insert(tx, "pen").await
                })
                .await?;
            if fails {
                Err(OrderError::Declined)
            } else {
                Ok(())
            }
        });
        assert_eq!(placed.await.is_err(), fails);
        assert_eq!(shop.orders().await, i64::from(!fails));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn where_nobody_can_write_beside_the_transaction_a_step_must_be_in_it() {
    let shop = Shop::open().await;
    let placed = shop.order().transaction(&shop.pool, async |tx| {
        insert(tx, "pen").await?;
        idem::step("charge", async || Ok::<_, OrderError>(1)).await
    });
    let Err(OrderError::Idempotency(Error::Config {
        operation, reason, ..
    })) = placed.await
    else {
        panic!("the step was not refused");
    };
    assert_eq!(&*operation, "shop.order/charge");
    assert!(reason.contains("run_in(tx, ..)"), "{reason}");
    assert_eq!(shop.orders().await, 0);
}

#[tokio::test]
async fn a_step_that_cannot_be_beside_the_transaction_is_refused_before_it_begins_one() {
    let shop = Shop::open().await;
    // It would wait for the only connection.
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
    let pool = pool
        .connect_with((*shop.pool.connect_options()).clone())
        .await
        .unwrap();
    let placed = shop.order().transaction(&pool, async |_| {
        let step = idem::step_with("rows");
        step.transaction(&pool, async |tx| insert(tx, "pen").await)
            .await
    });
    let refused = placed.await.unwrap_err();
    let OrderError::Idempotency(Error::Config { .. }) = refused else {
        panic!("{refused:?}")
    };
}

#[tokio::test]
async fn a_step_that_was_rolled_back_may_begin_again_in_the_same_try_and_none_replays_in_it() {
    let shop = Shop::open().await;
    let placed = shop.order().run(|| async {
        for commits in [false, true] {
            let mut tx = shop.pool.begin().await?;
            idem::step_with("rows")
                .run_in(&mut tx, async |tx| insert(tx, "pen").await)
                .await?;
            if commits {
                tx.commit().await?;
            } else {
                tx.rollback().await?;
            }
        }
        assert_eq!(shop.orders().await, 1);
        let mut tx = shop.pool.begin().await?;
        idem::step_with("rows")
            .run_in(&mut tx, async |tx| insert(tx, "ink").await)
            .await
    });
    let refused = placed.await.unwrap_err();
    let OrderError::Idempotency(Error::Config { reason, .. }) = &refused else {
        panic!("{refused:?}")
    };
    assert!(reason.contains("a step of the same name"), "{reason}");
    assert_eq!(shop.orders().await, 1);
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn beside_a_transaction_a_step_is_recorded_at_once_and_removed_after_its_commit() {
    let url = idem_testkit::PostgresServer::shared().await.unwrap().url();
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    let store = idem::PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    let idempotency = Idempotency::new(store);
    let runs = AtomicU32::new(0);
    let order = || idempotency.operation("steps.beside").key("o-1");
    for fails in [true, false] {
        let placed = order().transaction(&pool, async |_| {
            let charge = idem::step("charge", async || {
                runs.fetch_add(1, Ordering::SeqCst);
                Ok::<_, OrderError>(1)
            });
            charge.await?;
            if fails {
                Err(OrderError::Declined)
            } else {
                Ok(())
            }
        });
        assert_eq!(placed.await.is_err(), fails);
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    idempotency.shutdown(LONG).await.unwrap();
    assert!(!has_run(order()).await);
}

/// Whether a next attempt would see steps.
async fn has_run(order: idem::Operation<'_>) -> bool {
    match order.of_step("charge").inspect().await {
        Ok(_) => true,
        Err(Error::Config { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_step_in_the_transaction_of_its_call_goes_on_with_the_run_of_an_earlier_attempt() {
    let shop = Shop::open().await;
    let runs = AtomicU32::new(0);
    let charge = || {
        idem::step("charge", async || {
            Ok::<_, OrderError>(runs.fetch_add(1, Ordering::SeqCst) + 1)
        })
    };
    // One that fails, and one that is cut off.
    let failed = shop.order().run(|| async {
        charge().await?;
        Err::<u32, _>(OrderError::Declined)
    });
    failed.await.unwrap_err();
    let charged = Notify::new();
    let cut = shop.order().lease(LEASE * 3).run(|| async {
        charge().await?;
        charged.notify_one();
        std::future::pending::<Result<u32, OrderError>>().await
    });
    tokio::select! {
        cut = cut => panic!("{cut:?}"),
        () = charged.notified() => {}
    }
    for fails in [true, false] {
        let order = shop.order().wait(LONG);
        let placed = order.transaction(&shop.pool, async |tx| {
            let step = idem::step_with("charge").run_in(tx, async |_| {
                Ok::<_, OrderError>(runs.fetch_add(1, Ordering::SeqCst) + 1)
            });
            let charge = step.await?;
            if fails {
                return Err(OrderError::Declined);
            }
            Ok(charge)
        });
        assert_eq!(placed.await.is_err(), fails);
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert!(!has_run(shop.order()).await);
}

#[tokio::test]
async fn in_the_callers_transaction_steps_are_rolled_back_with_it() {
    let shop = Shop::open().await;
    let runs = AtomicU32::new(0);
    for commits in [false, true] {
        let mut tx = shop.pool.begin().await.unwrap();
        let placed = shop.order().run_in(&mut tx, async |tx| {
            idem::step_with("rows")
                .run_in(tx, async |tx| {
                    runs.fetch_add(1, Ordering::SeqCst);
                    insert(tx, "pen").await
                })
                .await
        });
        placed.await.unwrap();
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        assert!(!has_run(shop.order()).await);
        assert_eq!(shop.orders().await, i64::from(commits));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

/// Steps on a connection of their own, beside a transaction of each database that has several
/// writers.
macro_rules! over {
    ($($module:ident $feature:literal $Pool:ident $Store:ident $server:ident;)+) => {$(
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
                    assert!(futures_util::poll!(&mut one).is_pending());
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
        }
    )+};
}

over! {
    postgres "postgres" PgPool PostgresStore PostgresServer;
    mysql "mysql" MySqlPool MySqlStore MariaDbServer;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_snapshot_that_is_older_than_its_steps_commits_their_end() {
    let url = idem_testkit::PostgresServer::shared().await.unwrap().url();
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    let store = idem::PostgresStore::new(pool.clone());
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
