//! Transactions of MySQL and MariaDB that wait for each other at each isolation level.

use idem_core::Idempotency;
use idem_sqlx::sqlx::mysql::{MySqlPool, MySqlTransaction};
use idem_sqlx::sqlx::{self, AssertSqlSafe};
use idem_sqlx::{MySqlStore, guard};
use tokio::task::JoinSet;

use crate::failed::Failed;
use crate::pools::{insert, on_mariadb, over_both_servers, rows};
use crate::{LONG, until};

const WAITERS: usize = 8;

/// Begins a transaction whose level the variables of its session do not show.
async fn begin_at(pool: &MySqlPool, level: &str) -> MySqlTransaction<'static> {
    let begin = format!("SET TRANSACTION ISOLATION LEVEL {level}; BEGIN");
    pool.begin_with(AssertSqlSafe(begin)).await.unwrap()
}

/// Of several inserts that wait for one row, all but one meet a deadlock when its owner rolls back,
/// unless they queue for a lock of the server. A call in its own transaction does not run again.
async fn waiters_meet_no_deadlock(url: &str) {
    let (pool, idempotency) = on_mariadb(url, "REPEATABLE READ").await;
    for (level, habit) in [
        ("REPEATABLE READ", 0),
        ("REPEATABLE READ", 10),
        ("READ COMMITTED", 10),
        ("SERIALIZABLE", 0),
        ("SERIALIZABLE", 10),
    ] {
        let key = format!("{level}, {habit}");
        for first in 0..habit {
            let mut tx = begin_at(&pool, level).await;
            let first = format!("{key}, {first}");
            call(&idempotency, &mut tx, &first).await.unwrap();
            tx.commit().await.unwrap();
        }
        // In another process: a key that this one has claimed is expected to have a record.
        let other = Idempotency::new(MySqlStore::builder(pool.clone()).time_limit(LONG).build());
        let mut owner = begin_at(&pool, level).await;
        call(&other, &mut owner, &key).await.unwrap();
        let mut waiters = JoinSet::new();
        for _ in 0..WAITERS {
            let pool = pool.clone();
            let idempotency = idempotency.clone();
            let key = key.clone();
            waiters.spawn(async move {
                let mut tx = begin_at(&pool, level).await;
                let is_replayed = call(&idempotency, &mut tx, &key).await?;
                tx.commit().await?;
                Ok::<_, Failed>(is_replayed)
            });
        }
        until("all waiters wait", async || queries(&pool).await >= WAITERS).await;
        owner.rollback().await.unwrap();
        let mut replays = 0;
        for is_replayed in waiters.join_all().await {
            replays += usize::from(is_replayed.unwrap_or_else(|error| panic!("{key}: {error}")));
        }
        assert_eq!(replays, WAITERS - 1, "{key}");
        assert_eq!(rows(&pool, &key).await, 1, "{key}");
    }
}

/// Two transactions claim two keys in opposite order, and a third one stands between them in the
/// queue of a key. So one of them waits for a lock of the server, which sees no circle in that.
async fn a_circle_through_a_waiter_ends_in_a_conflict(url: &str) {
    let (pool, idempotency) = on_mariadb(url, "REPEATABLE READ").await;
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let keys = [format!("a, {level}"), format!("b, {level}")];
        let [a, b] = &keys;
        let mut first = begin_at(&pool, level).await;
        let mut second = begin_at(&pool, level).await;
        call(&idempotency, &mut first, a).await.unwrap();
        call(&idempotency, &mut second, b).await.unwrap();
        let goes_on = async |mut tx: MySqlTransaction<'static>, key: &str| {
            let called = call(&idempotency, &mut tx, key).await;
            match called {
                Ok(_) => tx.commit().await.unwrap(),
                Err(_) => tx.rollback().await.unwrap(),
            }
            called
        };
        let third = async {
            let tx = begin_at(&pool, level).await;
            goes_on(tx, b).await
        };
        let first = async {
            until("the third one waits", async || queries(&pool).await >= 1).await;
            goes_on(first, b).await
        };
        let second = async {
            until("both wait", async || queries(&pool).await >= 2).await;
            goes_on(second, a).await
        };
        let all = async { tokio::join!(first, second, third) };
        let ended = tokio::time::timeout(LONG / 2, Box::pin(all)).await;
        let (first, second, third) = ended.expect("they wait for each other");
        let results = [first, second, third];
        let conflicts = results.iter().filter(|result| result.is_err()).count();
        for result in &results {
            if let Err(error) = result {
                assert!(guard::is_conflict(error), "{level}: {error}");
            }
        }
        assert!((1..=2).contains(&conflicts), "{level}: {results:?}");
    }
}

/// Each moves money, and begins again after a conflict.
async fn workers_at_serializable_get_their_answers(url: &str) {
    let (pool, idempotency) = on_mariadb(url, "READ COMMITTED").await;
    let mut workers = JoinSet::new();
    for worker in 0..8_u32 {
        let (pool, idempotency) = (pool.clone(), idempotency.clone());
        workers.spawn(async move {
            for number in 0..40_u32 {
                // Two or three workers make each transfer.
                let key = format!("transfer {}", (number * 8 + worker) / 3);
                let (to, from) = if number % 2 == 0 { (1, 2) } else { (2, 1) };
                loop {
                    let mut tx = begin_at(&pool, "SERIALIZABLE").await;
                    let operation = idempotency.operation("tx").key(&key).wait(LONG);
                    let body = async |tx: &mut MySqlTransaction<'_>| {
                        for (account, sign) in [(to, '+'), (from, '-')] {
                            let add = format!(
                                "UPDATE accounts SET cents = cents {sign} 1 WHERE id = {account}"
                            );
                            sqlx::raw_sql(AssertSqlSafe(add)).execute(&mut **tx).await?;
                        }
                        sqlx::raw_sql(insert(&key)).execute(&mut **tx).await?;
                        Ok::<_, Failed>(7_u32)
                    };
                    let done = match operation.run_in(&mut tx, body).await {
                        Ok(_) => tx.commit().await.map_err(Failed::from),
                        Err(error) => Err(error),
                    };
                    match done {
                        Ok(()) => break,
                        Err(error) => assert!(guard::is_conflict(&error), "{key}: {error}"),
                    }
                }
            }
        });
    }
    tokio::time::timeout(LONG * 8, workers.join_all())
        .await
        .expect("they wait for each other");
    let twice = "SELECT COUNT(*) - COUNT(DISTINCT name) FROM business";
    let twice: i64 = sqlx::query_scalar(twice).fetch_one(&pool).await.unwrap();
    let sum = "SELECT CAST(SUM(cents) AS SIGNED) FROM accounts";
    let sum: i64 = sqlx::query_scalar(sum).fetch_one(&pool).await.unwrap();
    assert_eq!((twice, sum), (0, 0));
}

over_both_servers! {
    waiters_meet_no_deadlock;
    a_circle_through_a_waiter_ends_in_a_conflict;
    workers_at_serializable_get_their_answers;
}

async fn call(
    idempotency: &Idempotency,
    tx: &mut MySqlTransaction<'_>,
    key: &str,
) -> Result<bool, Failed> {
    let operation = idempotency.operation("tx").key(key).wait(LONG);
    let body = async |tx: &mut MySqlTransaction<'_>| {
        sqlx::raw_sql(insert(key)).execute(&mut **tx).await?;
        Ok::<_, Failed>(7_u32)
    };
    Ok(operation.run_in(tx, body).await?.is_replayed())
}

/// How many other connections to this database carry a statement out.
async fn queries(pool: &MySqlPool) -> usize {
    let text = "SELECT COUNT(*) FROM information_schema.processlist \
        WHERE command = 'Query' AND db = DATABASE() AND id <> CONNECTION_ID()";
    let count: i64 = sqlx::query_scalar(text).fetch_one(pool).await.unwrap();
    usize::try_from(count).unwrap()
}
