//! Claims in a transaction that expect what the last ones of their operation found, and replays
//! without a transaction: where that is wrong, they answer as any other claim does.

use std::time::Duration;

use idem_core::store::record::{Claim, Claimed};
use idem_core::store::{Began, OwnRow, Transaction as _};
use idem_core::{Error, Idempotency, InFlight, Lookup, Store};
use idem_sqlx::sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use idem_sqlx::sqlx::postgres::PgPool;
use idem_sqlx::sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use idem_sqlx::sqlx::{self, Executor as _};
use idem_sqlx::{MySqlStore, PostgresStore, SqliteStore};

use crate::LONG;
use crate::expected::{AT_KEY, Found, accustom, claim_of, is_answer, write};
use crate::failed::Failed;
use crate::observing::Log;
use crate::pools::{CREATE, insert, mariadb, postgres, real_mysql, sqlite};
use crate::{own, until};

const WAIT: Duration = Duration::from_secs(2);

/// What [`Store::claim`] answers where a claim in a transaction answers this.
fn as_of_store(began: Began<OwnRow>) -> Claimed {
    match began {
        Began::Owner(OwnRow { attempt, from }) => Claimed::Owned { attempt, from },
        Began::Answered(claimed) => claimed,
        Began::LeaseHolds { attempt, left } => Claimed::InFlight {
            attempt,
            lease_left: left,
        },
    }
}

/// Whether others get the answer that belongs to this one.
async fn is_seen(others: &impl Store, name: &str, claimed: &Claimed) -> bool {
    let seen = others.claim(&claim_of(name)).await.unwrap();
    match claimed {
        Claimed::Owned { attempt, .. } => {
            matches!(seen, Claimed::InFlight { attempt: other, .. } if other == *attempt)
        }
        _ => std::mem::discriminant(claimed) == std::mem::discriminant(&seen),
    }
}

macro_rules! on {
    ($($database:ident: $Store:ident, $begin:literal, $limits:expr, $stray:literal,
        $read_only:literal;)+) => {
        $(
            mod $database {
                use super::*;

                #[tokio::test]
                async fn a_claim_answers_whatever_is_expected_and_leaves_no_limit_and_no_lock() {
                    let (pool, _) = super::$database().await;
                    for found in [Found::Nothing, Found::Records, Found::ThisKey] {
                        for at_key in AT_KEY {
                            let name = format!("within, {found:?}, {at_key:?}");
                            let store = $Store::builder(pool.clone()).time_limit(LONG).build();
                            accustom(&store, &$Store::builder(pool.clone()).time_limit(LONG).build(), found, &name).await;
                            let claim: Claim = claim_of(&name);
                            let others = $Store::builder(pool.clone()).time_limit(LONG).build();
                            write(&others, at_key, &claim).await;
                            let mut tx = pool.begin_with($begin).await.unwrap();
                            let limits = || sqlx::query_scalar::<_, String>($limits);
                            let before = limits().fetch_one(&mut *tx).await.unwrap();
                            let began = tx.claim(&store, &claim, WAIT).await.unwrap();
                            let claimed = as_of_store(began);
                            assert!(is_answer(at_key, &claimed), "{name}: {claimed:?}");
                            let after = limits().fetch_one(&mut *tx).await.unwrap();
                            assert_eq!(after, before, "{name}");
                            tx.commit().await.unwrap();
                            assert!(is_seen(&others, &name, &claimed).await, "{name}");
                        }
                    }
                }

                #[tokio::test]
                async fn a_replay_without_a_transaction_is_of_what_is_committed_now() {
                    let (pool, store) = super::$database().await;
                    let idempotency = Idempotency::new(store);
                    let operation = |key| idempotency.operation("found").key(key);
                    let run = async |key: &'static str| {
                        let operation = operation(key).in_flight(InFlight::Reject);
                        operation
                            .transaction(&pool, async |tx| {
                                sqlx::raw_sql(insert("found")).execute(&mut **tx).await?;
                                Ok::<_, Failed>(7_u32)
                            })
                            .await
                    };
                    for replays in [false, true, true] {
                        assert_eq!(run("removed").await.unwrap().is_replayed(), replays);
                    }
                    // What is expected is there no more.
                    assert!(operation("removed").forget().await.unwrap());
                    assert!(!run("removed").await.unwrap().is_replayed());
                    assert!(run("removed").await.unwrap().is_replayed());

                    let mut owner = pool.begin_with($begin).await.unwrap();
                    operation("open")
                        .run_in(&mut owner, async |_| Ok::<_, Failed>(7_u32))
                        .await
                        .unwrap();
                    let refused = run("open").await;
                    assert!(
                        matches!(
                            refused,
                            Err(Failed::Idem(Error::InFlight { .. } | Error::Store { .. }))
                        ),
                        "{refused:?}"
                    );
                    owner.rollback().await.unwrap();
                    assert!(!run("open").await.unwrap().is_replayed());

                    let brief = || operation("expired").ttl(Duration::from_millis(50));
                    let again = async || {
                        let answer = brief().transaction(&pool, async |_| Ok::<_, Failed>(7_u32));
                        answer.await.unwrap().is_replayed()
                    };
                    assert!(!again().await);
                    until("the record expires", async || {
                        brief().inspect().await.unwrap().is_none()
                    })
                    .await;
                    assert!(!again().await);

                    let written = operation("mismatch").fingerprint(&2);
                    written
                        .transaction(&pool, async |_| Ok::<_, Failed>(7_u32))
                        .await
                        .unwrap();
                    let mismatch = operation("mismatch").fingerprint(&3);
                    let answer = mismatch
                        .transaction(&pool, async |_| Ok::<_, Failed>(7_u32))
                        .await;
                    assert!(
                        matches!(answer, Err(Failed::Idem(Error::FingerprintMismatch { .. }))),
                        "{answer:?}"
                    );
                }

                /// Its pool has a connection that came back with an open transaction.
                #[tokio::test]
                async fn a_replay_without_a_transaction_is_not_of_an_older_snapshot() {
                    let (pool, store) = super::$database().await;
                    let idempotency = Idempotency::new(store);
                    let options = pool.options().clone().max_connections(1);
                    let options = options.test_before_acquire(false);
                    let one = options.connect_with((*pool.connect_options()).clone());
                    let one = one.await.unwrap();
                    let run = async |key: &'static str| {
                        let operation = idempotency.operation("found").key(key);
                        let answer = operation.transaction(&one, async |_| Ok::<_, Failed>(7_u32));
                        answer.await.unwrap().is_replayed()
                    };
                    for (key, is_forgotten) in [("stays", false), ("goes", true)] {
                        assert!(!run(key).await);
                        assert!(run(key).await);
                        // sqlx does not count it.
                        sqlx::raw_sql($stray).fetch_all(&one).await.unwrap();
                        if is_forgotten {
                            let operation = idempotency.operation("found").key(key);
                            assert!(operation.forget().await.unwrap());
                        }
                        assert_eq!(run(key).await, !is_forgotten, "{key}");
                        assert!(run(key).await);
                    }
                    // A claim would be refused.
                    sqlx::raw_sql($read_only).execute(&one).await.unwrap();
                    assert!(run("goes").await);
                }

                #[tokio::test]
                async fn a_replay_without_a_transaction_is_reported_as_any_other() {
                    let log = Log::with("none");
                    let _logging = tracing::subscriber::set_default(log.clone());
                    let (pool, store) = super::$database().await;
                    let idempotency = Idempotency::new(store);
                    let operation = || idempotency.operation("found").key("reported");
                    for decided in ["executed", "replayed", "replayed"] {
                        drop(log.decisions());
                        let answer =
                            operation().transaction(&pool, async |_| Ok::<_, Failed>(7_u32));
                        answer.await.unwrap();
                        let mut decisions = log.decisions();
                        // On a busy machine, a claim may take as long as it may wait for a lock.
                        decisions.retain(|decision| decision != "waited");
                        assert_eq!(decisions, [decided]);
                    }
                }

                #[tokio::test]
                async fn a_body_that_has_ended_its_transaction_owns_no_record_of_another_call() {
                    let (pool, store) = super::$database().await;
                    let idempotency = Idempotency::new(store);
                    let other = Idempotency::new($Store::builder(pool.clone()).time_limit(LONG).build());
                    let mut tx = pool.begin_with($begin).await.unwrap();
                    let ended = idempotency
                        .operation("found")
                        .key("ended")
                        .run_in(&mut tx, async |tx| {
                            let again = concat!("ROLLBACK; ", $begin);
                            sqlx::raw_sql(again).execute(&mut **tx).await?;
                            let operation = other.operation("found").key("ended");
                            let won = operation.transaction(&pool, async |_| Ok::<_, Failed>(1_u32));
                            assert_eq!(*won.await?.get(), 1);
                            Ok::<_, Failed>(2_u32)
                        })
                        .await;
                    assert!(ended.is_err(), "{ended:?}");
                    drop(tx);
                    let operation = other.operation("found").key("ended");
                    let replayed = operation.transaction(&pool, async |_| Ok::<_, Failed>(3_u32));
                    assert_eq!(*replayed.await.unwrap().get(), 1);
                }
            }
        )+
    };
}

on! {
    postgres: PostgresStore, "BEGIN", "SELECT current_setting('lock_timeout')",
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM idem_records",
        "SET default_transaction_read_only = on";
    mariadb: MySqlStore, "BEGIN", MYSQL_LIMITS, "BEGIN; SELECT count(*) FROM idem_records",
        "SET SESSION TRANSACTION READ ONLY";
    real_mysql: MySqlStore, "BEGIN", MYSQL_LIMITS, "BEGIN; SELECT count(*) FROM idem_records",
        "SET SESSION TRANSACTION READ ONLY";
    sqlite: SqliteStore, "BEGIN", "SELECT CAST(timeout AS TEXT) FROM pragma_busy_timeout",
        "BEGIN; SELECT count(*) FROM idem_records", "PRAGMA query_only = 1";
}

/// The limit for locks, and who holds the server's lock of the last claim.
const MYSQL_LIMITS: &str = "SELECT CONCAT(@@SESSION.innodb_lock_wait_timeout, ' ', \
    COALESCE(IS_USED_LOCK(COALESCE(@idem_lock, 'none')), 'free'))";

/// A pool whose connections begin a transaction with any read, and keep it open.
async fn no_snapshot_is_kept(pool: &MySqlPool) {
    let options = MySqlPoolOptions::new()
        .max_connections(1)
        .after_connect(|on, _| {
            Box::pin(async move { on.execute("SET autocommit = 0").await.map(drop) })
        });
    let one = options
        .connect_with((*pool.connect_options()).clone())
        .await
        .unwrap();
    let idempotency = Idempotency::new(MySqlStore::builder(pool.clone()).time_limit(LONG).build());
    let operation = || idempotency.operation("found").key("no autocommit");
    let run = async || {
        let answer = operation().transaction(&one, async |_| Ok::<_, Failed>(7_u32));
        answer.await.unwrap().is_replayed()
    };
    assert!(!run().await);
    assert!(run().await);
    assert!(operation().forget().await.unwrap());
    assert!(!run().await);
}

#[tokio::test]
async fn mariadb_keeps_no_snapshot_for_replays() {
    no_snapshot_is_kept(&mariadb().await.0).await;
}

#[tokio::test]
async fn real_mysql_keeps_no_snapshot_for_replays() {
    no_snapshot_is_kept(&real_mysql().await.0).await;
}

/// Two pools of one store's type lead to two tables. A replay is of what is in the table to which
/// the transaction's own pool leads.
macro_rules! replays_of_two_tables {
    ($store:expr, $pools:expr) => {
        let idempotency = Idempotency::new($store);
        for pool in $pools {
            for replays in [false, true, true] {
                let operation = idempotency.operation("found").key("tenants");
                let answer = operation.transaction(pool, async |_| Ok::<_, Failed>(7_u32));
                assert_eq!(answer.await.unwrap().is_replayed(), replays);
            }
        }
    };
}

#[tokio::test]
async fn a_replay_is_read_in_the_database_of_the_transaction() {
    let (pool, store) = sqlite().await;
    let (other, other_store) = sqlite().await;
    drop(other_store);
    replays_of_two_tables!(store, [&pool, &other]);
}

#[tokio::test]
async fn a_replay_is_read_in_the_schema_of_the_transaction() {
    let (pool, store) = postgres().await;
    let create = "CREATE SCHEMA IF NOT EXISTS tenant";
    sqlx::raw_sql(create).execute(&pool).await.unwrap();
    let options = (*pool.connect_options()).clone();
    let other = PgPool::connect_with(options.options([("search_path", "tenant")]));
    let other = other.await.unwrap();
    crate::connected(async || PostgresStore::new(other.clone()).migrate().await).await;
    replays_of_two_tables!(store, [&pool, &other]);
}

async fn a_replay_is_read_in_the_database_of_its_pool(pool: &MySqlPool, store: MySqlStore) {
    let create = "CREATE DATABASE IF NOT EXISTS tenant";
    sqlx::raw_sql(create).execute(pool).await.unwrap();
    let options = (*pool.connect_options()).clone().database("tenant");
    let other = MySqlPool::connect_with(options).await.unwrap();
    crate::connected(async || MySqlStore::new(other.clone()).migrate().await).await;
    replays_of_two_tables!(store, [pool, &other]);
}

#[tokio::test]
async fn a_replay_is_read_in_the_database_of_mariadb_of_the_transaction() {
    let (pool, store) = mariadb().await;
    a_replay_is_read_in_the_database_of_its_pool(&pool, store).await;
}

#[tokio::test]
async fn a_replay_is_read_in_the_database_of_real_mysql_of_the_transaction() {
    let (pool, store) = real_mysql().await;
    a_replay_is_read_in_the_database_of_its_pool(&pool, store).await;
}

#[tokio::test]
async fn a_connection_to_a_shared_cache_that_reads_what_is_not_committed_replays_none_of_it() {
    let options = SqliteConnectOptions::new()
        .filename(own::folder().join("shop.db"))
        .create_if_missing(true)
        .shared_cache(true)
        .pragma("read_uncommitted", "1")
        .busy_timeout(Duration::from_millis(100));
    let pool = SqlitePoolOptions::new()
        .max_connections(4)
        .connect_with(options)
        .await
        .unwrap();
    let store = SqliteStore::builder(pool.clone()).time_limit(LONG).build();
    crate::connected(async || store.migrate().await).await;
    sqlx::raw_sql(CREATE).execute(&pool).await.unwrap();
    let idempotency = Idempotency::new(store);
    let operation = || {
        let operation = idempotency.operation("found").key("shared");
        operation.in_flight(InFlight::Reject)
    };
    let mut owner = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    operation()
        .run_in(&mut owner, async |_| Ok::<_, Failed>(7_u32))
        .await
        .unwrap();
    let looked = operation().lookup::<u32>().await;
    assert!(!matches!(looked, Ok(Lookup::Outcome(_))), "{looked:?}");
    let separate = operation().run(async || Ok::<_, Failed>(8_u32)).await;
    separate.unwrap_err();
    // The owner's own transaction sees its row.
    let again = operation().run_in(&mut owner, async |_| Ok::<_, Failed>(8_u32));
    assert!(again.await.unwrap().is_replayed());
    let duplicate = operation().transaction(&pool, async |_| Ok::<_, Failed>(8_u32));
    let answer = tokio::time::timeout(WAIT, duplicate).await;
    assert!(!matches!(answer, Ok(Ok(_))), "{answer:?}");
    owner.rollback().await.unwrap();
    for replays in [false, true, true] {
        let separate = operation().run(async || Ok::<_, Failed>(8_u32)).await;
        assert_eq!(separate.unwrap().is_replayed(), replays);
    }
    let looked = operation().lookup::<u32>().await;
    assert!(matches!(looked, Ok(Lookup::Outcome(8))), "{looked:?}");
}
