//! First claims in a transaction that wait for nobody, because nothing is expected at the key: where
//! something is, they claim again, and nothing of the first try stays.

use std::sync::Arc;
use std::time::Duration;

use idem_core::store::Store as _;
use idem_core::store::record::Claimed;
use idem_core::{Error, Idempotency, InFlight};
use idem_sqlx::MySqlStore;
use idem_sqlx::sqlx::mysql::{MySqlPool, MySqlPoolOptions, MySqlTransaction};
use idem_sqlx::sqlx::{self, Executor as _};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::expected::{AT_KEY, AtKey, Found, accustom, claim_of, write};
use crate::failed::Failed;
use crate::pools::{insert, on_mariadb, over_both_servers, rows};
use crate::{LONG, until};

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

over_both_servers! {
    a_transaction_that_begins_with_a_claim_answers_whatever_is_at_the_key;
    // These count the deadlocks of their whole server.
    of_the_first_calls_of_a_key_at_once_one_runs_its_body();
    first_calls_on_keys_that_are_written_over_meet_no_deadlock();
    a_first_claim_that_meets_an_open_one_costs_no_row_of_its_caller(
        "--innodb-rollback-on-timeout=ON"
    );
    a_commit_that_meets_a_lock_costs_no_row_of_its_caller("--innodb-rollback-on-timeout=ON");
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// The caller begins and commits.
    Caller,
    Library,
}

async fn body(tx: &mut MySqlTransaction<'_>, key: &str) -> Result<u32, Failed> {
    sqlx::raw_sql(insert(key)).execute(&mut **tx).await?;
    Ok(7)
}

/// Whether a call is replayed.
async fn call(
    idempotency: &Idempotency,
    pool: &MySqlPool,
    key: &str,
    by: By,
) -> Result<bool, Failed> {
    let operation = idempotency.operation("expected").key(key).wait(LONG);
    if by == By::Library {
        let whole = operation.transaction(pool, async |tx| body(tx, key).await);
        return Ok(whole.await?.is_replayed());
    }
    let mut tx = pool.begin().await?;
    let outcome = operation.run_in(&mut tx, async |tx| body(tx, key).await);
    let is_replayed = outcome.await?.is_replayed();
    tx.commit().await?;
    Ok(is_replayed)
}

/// Another process, whose last calls have found nothing.
async fn accustomed(pool: &MySqlPool, name: &str) -> Idempotency {
    let store = MySqlStore::builder(pool.clone()).time_limit(LONG).build();
    accustom(&store, &store, Found::Nothing, name).await;
    Idempotency::new(store)
}

/// Calls of a key at once, each by another process whose last calls have found nothing. Whether each
/// is replayed.
async fn all_at_once(pool: &MySqlPool, key: &str, by: &[By]) -> Vec<bool> {
    let begun = Arc::new(Barrier::new(by.len()));
    let mut calls = JoinSet::new();
    for (caller, by) in by.iter().copied().enumerate() {
        let idempotency = accustomed(pool, &format!("{key}, {caller}")).await;
        let pool = pool.clone();
        let key = key.to_owned();
        let begun = begun.clone();
        calls.spawn(async move {
            begun.wait().await;
            let is_replayed = call(&idempotency, &pool, &key, by).await;
            is_replayed.unwrap_or_else(|error| panic!("{key}, {by:?}: {error}"))
        });
    }
    calls.join_all().await
}

async fn deadlocks(pool: &MySqlPool) -> i64 {
    let text = "SELECT CAST(count AS SIGNED) FROM information_schema.innodb_metrics \
        WHERE name = 'lock_deadlocks'";
    sqlx::query_scalar(text).fetch_one(pool).await.unwrap()
}

/// Whether a transaction waits. The table is renewed only if nobody has read it for a while.
async fn waits(pool: &MySqlPool) -> bool {
    tokio::time::sleep(Duration::from_millis(200)).await;
    let text = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
    let count: i64 = sqlx::query_scalar(text).fetch_one(pool).await.unwrap();
    count > 0
}

/// On one connection, so that each transaction finds what the one before has left in the session.
async fn a_transaction_that_begins_with_a_claim_answers_whatever_is_at_the_key(url: &str) {
    let (pool, _) = on_mariadb(url, "REPEATABLE READ").await;
    let others = MySqlStore::builder(pool.clone()).time_limit(LONG).build();
    let one = MySqlPoolOptions::new().max_connections(1);
    let one = one.connect(url).await.unwrap();
    one.execute("SET SESSION innodb_lock_wait_timeout = 31")
        .await
        .unwrap();
    for at_key in AT_KEY {
        let name = format!("begins, {at_key:?}");
        // The key that the session knows is another one.
        let other = Idempotency::new(others.clone());
        let last = format!("{name}, last");
        assert!(!call(&other, &one, &last, By::Caller).await.unwrap());
        let idempotency = accustomed(&pool, &name).await;
        write(&others, at_key, &claim_of(&name)).await;
        let operation = idempotency.operation("expected").key(&name);
        let operation = operation.in_flight(InFlight::Reject);
        let answer = operation
            .transaction(&one, async |tx| body(tx, &name).await)
            .await;
        let is_right = match at_key {
            AtKey::InFlight | AtKey::Own => {
                matches!(&answer, Err(Failed::Idem(Error::InFlight { .. })))
            }
            AtKey::Committed => matches!(&answer, Ok(outcome) if outcome.is_replayed()),
            _ => matches!(&answer, Ok(outcome) if !outcome.is_replayed()),
        };
        assert!(is_right, "{name}: {answer:?}");
        let ran = i64::from(matches!(&answer, Ok(outcome) if !outcome.is_replayed()));
        assert_eq!(rows(&pool, &name).await, ran, "{name}");
        let seen = others.claim(&claim_of(&name)).await.unwrap();
        let is_committed = matches!(seen, Claimed::Committed { .. });
        assert_eq!(is_committed, answer.is_ok(), "{name}: {seen:?}");
        let limit = "SELECT CAST(@@SESSION.innodb_lock_wait_timeout AS SIGNED)";
        let limit: i64 = sqlx::query_scalar(limit).fetch_one(&one).await.unwrap();
        assert_eq!(limit, 31, "{name}");
    }
}

async fn of_the_first_calls_of_a_key_at_once_one_runs_its_body(url: &str) {
    for level in LEVELS {
        let (pool, _) = on_mariadb(url, level).await;
        for number in 0..10 {
            let key = format!("at once, {level}, {number}");
            let by = [By::Caller, By::Library].repeat(3);
            let replayed = all_at_once(&pool, &key, &by).await;
            let ran = replayed.iter().filter(|is_replayed| !**is_replayed).count();
            assert_eq!(ran, 1, "{key}");
            assert_eq!(rows(&pool, &key).await, 1, "{key}");
        }
        assert_eq!(deadlocks(&pool).await, 0, "{level}");
    }
}

async fn first_calls_on_keys_that_are_written_over_meet_no_deadlock(url: &str) {
    for level in LEVELS {
        let (pool, _) = on_mariadb(url, level).await;
        let others = MySqlStore::builder(pool.clone()).time_limit(LONG).build();
        for number in 0..20 {
            let at_key = [AtKey::Released, AtKey::Expired][number % 2];
            let by = [By::Caller, By::Library][number / 2 % 2];
            let key = format!("over, {level}, {number}");
            write(&others, at_key, &claim_of(&key)).await;
            all_at_once(&pool, &key, &[by; 4]).await;
            assert_eq!(rows(&pool, &key).await, 1, "{key}");
        }
        assert_eq!(deadlocks(&pool).await, 0, "{level}");
    }
}

/// There, a lock that is not free ends the whole transaction, if it is asked for with a limit.
async fn a_first_claim_that_meets_an_open_one_costs_no_row_of_its_caller(url: &str) {
    let (pool, _) = on_mariadb(url, "REPEATABLE READ").await;
    let idempotency = accustomed(&pool, "at stake").await;
    let other = Idempotency::new(MySqlStore::builder(pool.clone()).time_limit(LONG).build());
    let operation = |idempotency: &Idempotency| {
        let operation = idempotency.operation("expected").key("at stake");
        operation.wait(LONG)
    };
    let mut owner = pool.begin().await.unwrap();
    operation(&other)
        .run_in(&mut owner, async |tx| body(tx, "at stake").await)
        .await
        .unwrap();
    let mut tx = pool.begin().await.unwrap();
    body(&mut tx, "before").await.unwrap();
    let waiting = tokio::spawn(async move {
        let operation = operation(&idempotency);
        let outcome = operation
            .run_in(&mut tx, async |tx| body(tx, "at stake").await)
            .await;
        (outcome, tx)
    });
    until("the duplicate waits", async || {
        waits(&pool).await || waiting.is_finished()
    })
    .await;
    owner.commit().await.unwrap();
    let (outcome, tx) = waiting.await.unwrap();
    assert!(outcome.unwrap().is_replayed());
    tx.commit().await.unwrap();
    assert_eq!(rows(&pool, "before").await, 1);
    assert_eq!(rows(&pool, "at stake").await, 1);
}

/// An outcome that is kept for a shorter time than its record in flight moves in the index of
/// sweeps, to a place that others may have locked.
async fn a_commit_that_meets_a_lock_costs_no_row_of_its_caller(url: &str) {
    let (pool, idempotency) = on_mariadb(url, "REPEATABLE READ").await;
    let next = "INSERT INTO idem_records (operation, `key`, state, attempt, expires_at, revision, \
        sweep_at) VALUES ('next', 'next', 'done', 1, '2099-01-01', 1, \
        UTC_TIMESTAMP(6) + INTERVAL 30 SECOND)";
    sqlx::raw_sql(next).execute(&pool).await.unwrap();
    let mut other = pool.begin().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    body(&mut tx, "before").await.unwrap();
    let operation = idempotency.operation("expected").key("moves");
    let operation = operation.ttl(Duration::from_secs(5)).lease(LONG);
    let outcome = operation.run_in(&mut tx, async |tx| {
        let lock = "SELECT 1 FROM idem_records FORCE INDEX (idem_records_sweep_at) WHERE sweep_at \
            BETWEEN UTC_TIMESTAMP(6) AND UTC_TIMESTAMP(6) + INTERVAL 20 SECOND FOR UPDATE";
        sqlx::raw_sql(lock).execute(&mut *other).await?;
        let pool = pool.clone();
        tokio::spawn(async move {
            while !waits(&pool).await {}
            other.rollback().await.unwrap();
        });
        body(tx, "moves").await
    });
    outcome.await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(rows(&pool, "before").await, 1);
    assert_eq!(rows(&pool, "moves").await, 1);
}
