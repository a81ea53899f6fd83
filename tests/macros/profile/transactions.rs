//! The profile for payments in the caller's own transaction, over a file of SQLite.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use idem::sqlx::sqlite::{SqlitePool, SqlitePoolOptions};
use idem::sqlx::{self, SqliteTransaction};
use idem::{Error, Idempotency, Outcome, RecordState, SqliteStore, idempotent};

use crate::support::{LEASE, LONG, eventually};

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("declined")]
    Declined,
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] Error),
}

struct Shop {
    pool: SqlitePool,
    idempotency: Idempotency,
    runs: AtomicU32,
}

impl Shop {
    async fn open() -> Self {
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .connect("sqlite::memory:")
            .await
            .unwrap();
        let store = SqliteStore::new(pool.clone());
        store.migrate().await.unwrap();
        sqlx::raw_sql("CREATE TABLE charges (cents INTEGER NOT NULL)")
            .execute(&pool)
            .await
            .unwrap();
        Self {
            pool,
            idempotency: Idempotency::builder(store).strict().build(),
            runs: AtomicU32::new(0),
        }
    }

    fn charge(&self, key: &'static str) -> idem::Operation<'static> {
        self.idempotency
            .operation("profile.tx")
            .key(key)
            .lease(LEASE)
            .wait(LONG)
    }

    async fn body(
        &self,
        tx: &mut SqliteTransaction<'_>,
        answer: Result<u32, Failure>,
    ) -> Result<u32, Failure> {
        self.runs.fetch_add(1, SeqCst);
        sqlx::query("INSERT INTO charges VALUES (150)")
            .execute(&mut **tx)
            .await?;
        answer
    }

    async fn charges(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM charges")
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}

fn is_refused(answer: Result<Outcome<u32>, Failure>) -> bool {
    matches!(answer, Err(Failure::Idempotency(Error::Config { reason, .. })) if reason.contains("fingerprint"))
}

#[idempotent(key = key, name = "profile.tx.careless", transaction = tx, runtime = shop.idempotency)]
async fn careless(shop: &Shop, tx: &mut SqliteTransaction<'_>, key: &str) -> Result<u32, Failure> {
    shop.body(tx, Ok(1)).await
}

#[idempotent(
    key = key,
    name = "profile.tx.stated",
    fingerprint = cents,
    transaction = tx,
    runtime = shop.idempotency,
)]
async fn stated(
    shop: &Shop,
    tx: &mut SqliteTransaction<'_>,
    key: &str,
    cents: u32,
) -> Result<u32, Failure> {
    shop.body(tx, Ok(cents)).await
}

#[tokio::test]
async fn p7_strict_refuses_a_transaction_without_a_fingerprint_before_anything_is_written() {
    let shop = Shop::open().await;
    assert!(is_refused(
        shop.charge("k")
            .transaction(&shop.pool, async |tx| shop.body(tx, Ok(1)).await)
            .await
    ));
    let mut tx = shop.pool.begin().await.unwrap();
    assert!(is_refused(
        shop.charge("k")
            .run_in(&mut tx, async |tx| shop.body(tx, Ok(1)).await)
            .await
    ));
    assert!(is_refused(
        careless(&shop, &mut tx, "k").await.map(|_| unreachable!())
    ));
    // The refused calls left the caller's transaction as it was.
    assert_eq!(stated(&shop, &mut tx, "k", 150).await.unwrap(), 150);
    tx.commit().await.unwrap();
    let mut tx = shop.pool.begin().await.unwrap();
    let other = stated(&shop, &mut tx, "k", 151).await;
    assert!(
        matches!(
            other,
            Err(Failure::Idempotency(Error::FingerprintMismatch { .. }))
        ),
        "{other:?}"
    );
    assert_eq!(stated(&shop, &mut tx, "k", 150).await.unwrap(), 150);
    tx.rollback().await.unwrap();
    assert_eq!((shop.charges().await, shop.runs.load(SeqCst)), (1, 1));
}

#[tokio::test]
async fn p6_strict_rolls_an_unlisted_error_of_a_transaction_back_and_rejects_what_a_lease_left_abandoned()
 {
    let shop = Shop::open().await;
    let charge = |key| shop.charge(key).fingerprint(&150);
    // Nothing of it is written, so its outcome is known: the key is free.
    let declined = charge("tx")
        .transaction(&shop.pool, async |tx| {
            shop.body(tx, Err(Failure::Declined)).await
        })
        .await;
    assert!(matches!(declined, Err(Failure::Declined)));
    let mut tx = shop.pool.begin().await.unwrap();
    let declined = charge("tx")
        .run_in(&mut tx, async |tx| {
            shop.body(tx, Err(Failure::Declined)).await
        })
        .await;
    assert!(matches!(declined, Err(Failure::Declined)));
    // The caller commits all the same.
    tx.commit().await.unwrap();
    assert_eq!(shop.charges().await, 0);
    charge("tx")
        .transaction(&shop.pool, async |tx| shop.body(tx, Ok(1)).await)
        .await
        .unwrap();
    assert_eq!(shop.charges().await, 1);

    // With a lease, an unlisted error leaves the key to a person, also where a transaction comes
    // next.
    let failed = charge("lease")
        .run(async || Err::<u32, _>(Failure::Declined))
        .await;
    assert!(matches!(failed, Err(Failure::Declined)));
    drop(charge("crash").begin().await.unwrap());
    eventually("the lease runs out", async || {
        charge("crash").inspect().await.unwrap().unwrap().state == RecordState::Abandoned
    })
    .await;
    for key in ["lease", "crash"] {
        let rejected = charge(key)
            .transaction(&shop.pool, async |tx| shop.body(tx, Ok(1)).await)
            .await;
        assert!(
            matches!(rejected, Err(Failure::Idempotency(Error::Abandoned { .. }))),
            "{rejected:?}"
        );
        let mut tx = shop.pool.begin().await.unwrap();
        let rejected = charge(key)
            .run_in(&mut tx, async |tx| shop.body(tx, Ok(1)).await)
            .await;
        assert!(
            matches!(rejected, Err(Failure::Idempotency(Error::Abandoned { .. }))),
            "{rejected:?}"
        );
        tx.commit().await.unwrap();
    }
    assert_eq!((shop.charges().await, shop.runs.load(SeqCst)), (1, 3));
}
