//! Steps beside transactions, and in them.

use std::sync::atomic::{AtomicU32, Ordering};

use idem::sqlx::{self, SqlitePool, SqliteTransaction};
use idem::{Error, Idempotency, SqliteStore};

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
        let store = SqliteStore::new(pool.clone());
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
    idempotency.shutdown(crate::support::LONG).await.unwrap();
    assert!(order().of_step("charge").inspect().await.unwrap().is_none());
}

#[tokio::test]
async fn in_the_callers_transaction_steps_are_rolled_back_with_it_and_removed_after_its_commit() {
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
            // Its step is committed with it, and removed by a look after that.
            shop.idempotency
                .shutdown(crate::support::LONG)
                .await
                .unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        let step = shop.order().of_step("rows").inspect().await.unwrap();
        assert!(step.is_none(), "{step:?}");
        assert_eq!(shop.orders().await, i64::from(commits));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[cfg(feature = "postgres")]
mod beside_the_callers_transaction {
    use idem::ErrorAction;
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::support::LONG;

    #[derive(Debug, thiserror::Error, Serialize, Deserialize)]
    enum Failure {
        #[error("declined")]
        Declined,
        #[error("{0}")]
        Other(String),
    }

    impl From<Error> for Failure {
        fn from(error: Error) -> Self {
            Self::Other(error.to_string())
        }
    }

    struct Bank {
        pool: sqlx::PgPool,
        idempotency: Idempotency,
        operation: &'static str,
        charges: AtomicU32,
    }

    impl Bank {
        async fn open(operation: &'static str) -> Self {
            let url = idem_testkit::PostgresServer::shared().await.unwrap().url();
            let pool = sqlx::PgPool::connect(&url).await.unwrap();
            let store = idem::PostgresStore::new(pool.clone());
            store.migrate().await.unwrap();
            Self {
                pool,
                idempotency: Idempotency::new(store),
                operation,
                charges: AtomicU32::new(0),
            }
        }

        fn order(&self) -> idem::Operation<'static> {
            self.idempotency.operation(self.operation).key("o-1")
        }

        async fn charge(&self) -> Result<u32, Failure> {
            idem::step("charge", async || {
                Ok(self.charges.fetch_add(1, Ordering::SeqCst) + 1)
            })
            .await
        }

        async fn is_charge_recorded(&self) -> bool {
            let step = self.order().of_step("charge").inspect().await.unwrap();
            step.is_some()
        }

        /// Charges in a transaction that the caller ends.
        async fn place(&self, commits: bool) {
            let mut tx = self.pool.begin().await.unwrap();
            let placed = self
                .order()
                .run_in(&mut tx, async |_| self.charge().await)
                .await;
            assert_eq!(placed.unwrap().into_inner(), 1);
            assert!(self.is_charge_recorded().await);
            if commits {
                tx.commit().await.unwrap();
            } else {
                tx.rollback().await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn steps_are_replayed_after_a_rollback_and_removed_after_a_commit() {
        let bank = Bank::open("steps.caller").await;
        for commits in [false, true] {
            bank.place(commits).await;
            // All looks of the background are over.
            bank.idempotency.shutdown(LONG).await.unwrap();
            assert_eq!(bank.is_charge_recorded().await, !commits);
        }
        assert_eq!(bank.charges.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn an_error_that_is_kept_after_a_rollback_leaves_the_steps_to_the_body_after_it() {
        let bank = Bank::open("steps.kept").await;
        bank.place(false).await;
        let declined = bank
            .order()
            .errors(|_: &Failure| ErrorAction::Keep)
            .run(|| async { Err::<u32, _>(Failure::Declined) })
            .await;
        assert!(matches!(declined, Err(Failure::Declined)), "{declined:?}");
        bank.idempotency.shutdown(LONG).await.unwrap();
        assert!(bank.is_charge_recorded().await);
    }
}
