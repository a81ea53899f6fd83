//! Steps in transactions.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::poll_immediate;
use idem::sqlx::{self, SqlitePool, SqliteTransaction};
use idem::{Error, Idempotency, RecordState, SqliteStore, UnkeptAction};
use tokio::sync::Notify;

use super::{OrderError, has_run};
use crate::support::{LEASE, LONG};

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

/// Whether the caller has committed is not seen, so no step is removed: a removal would wait for the
/// rows of a transaction that is open, and would take from the next attempt what it is to replay.
#[tokio::test]
async fn nothing_is_left_to_wait_for_after_a_call_in_the_callers_transaction() {
    let shop = Shop::open().await;
    for commits in [false, false, true] {
        let mut tx = shop.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
        let placed = shop.order().run_in(&mut tx, async |tx| {
            let rows = idem::step_with("rows");
            rows.run_in(tx, async |tx| insert(tx, "pen").await).await
        });
        placed.await.unwrap();
        // Polled once: a removal that has begun would not have ended.
        let waits = || poll_immediate(shop.idempotency.shutdown(LONG));
        assert_eq!(waits().await, Some(Ok(())), "the transaction is open");
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        assert_eq!(waits().await, Some(Ok(())), "it has ended");
    }
    assert_eq!(shop.orders().await, 1);
}

/// Its call may have the only connection, in each attempt, and its record stays as long as the step.
#[tokio::test]
async fn a_first_step_may_be_in_a_transaction_that_writes_already() {
    let shop = Shop::open().await;
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
    let pool = pool.connect_with((*shop.pool.connect_options()).clone());
    let pool = pool.await.unwrap();
    let idempotency = Idempotency::new(SqliteStore::builder(pool.clone()).time_limit(LONG).build());
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
async fn an_abandoned_record_stays_as_long_as_a_first_step_in_a_transaction() {
    let shop = Shop::open().await;
    let order = || shop.order().ttl("5m");
    let abandons = order().errors(|_: &OrderError| UnkeptAction::Abandon);
    let placed = abandons.run(|| async {
        let mut tx = shop.pool.begin().await?;
        let rows = idem::step_with("rows");
        rows.run_in(&mut tx, async |tx| insert(tx, "pen").await)
            .await?;
        tx.commit().await?;
        Err::<(), _>(OrderError::Declined)
    });
    placed.await.unwrap_err();
    let info = order().inspect().await.unwrap().unwrap();
    let month = Duration::from_secs(29 * 86_400);
    assert_eq!(
        (info.state, info.expires_in > month),
        (RecordState::Abandoned, true),
        "{info:?}"
    );
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
