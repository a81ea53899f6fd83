//! Records in a transaction of MariaDB and of MySQL: what only these two can get wrong.

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use idem_core::{Begin, Error, Idempotency, InFlight, Key, Lookup, Outcome};
use idem_sqlx::MySqlStore;
use idem_sqlx::guard;
use idem_sqlx::sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use idem_sqlx::sqlx::{self, AssertSqlSafe, ConnectOptions as _, Executor as _, MySqlTransaction};
use idem_testkit::{MariaDbServer, MySqlServer};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::failed::Failed;
use crate::observing::ask_each_thread;
use crate::pools::{insert, on_mariadb, over_both_servers, rows};
use crate::{LONG, Server as _};

const SECOND: Duration = Duration::from_secs(1);
const LEVELS: [&str; 4] = [
    "READ UNCOMMITTED",
    "READ COMMITTED",
    "REPEATABLE READ",
    "SERIALIZABLE",
];

over_both_servers! {
    a_wait_that_cost_the_whole_transaction_is_no_in_flight("--innodb-rollback-on-timeout=ON");
    no_level_replays_what_is_not_committed;
    a_double_submit_with_a_token_is_replayed;
    calls_on_released_and_expired_keys_meet_no_deadlock;
    a_key_of_any_characters_is_recorded;
    an_outcome_as_large_as_a_message_is_recorded("--max-allowed-packet=1M");
    a_body_that_swallows_a_deadlock_fails_and_its_transaction_writes_no_more;
    an_owner_that_is_too_late_learns_so_whatever_its_transaction_has_read;
}

async fn write(tx: &mut MySqlTransaction<'_>, name: &str) -> Result<u32, Failed> {
    sqlx::raw_sql(insert(name)).execute(&mut **tx).await?;
    Ok(7)
}

async fn call(
    idempotency: &Idempotency,
    tx: &mut MySqlTransaction<'_>,
    key: &str,
) -> Result<Outcome<u32>, Failed> {
    let operation = idempotency.operation("tx").key(key).wait(SECOND);
    operation.run_in(tx, async |tx| write(tx, key).await).await
}

async fn a_wait_that_cost_the_whole_transaction_is_no_in_flight(url: &str) {
    let (pool, idempotency) = on_mariadb(url, "REPEATABLE READ").await;
    let mut owner = pool.begin().await.unwrap();
    call(&idempotency, &mut owner, "open").await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    write(&mut tx, "before").await.unwrap();
    let refused = call(&idempotency, &mut tx, "open").await.unwrap_err();
    assert!(
        matches!(&refused, Failed::Idem(error @ Error::Store { .. }) if error.is_retryable()),
        "{refused}"
    );
    // Whoever goes on all the same.
    assert!(write(&mut tx, "after").await.is_err());
    let _ = tx.commit().await;
    assert_eq!(
        (rows(&pool, "before").await, rows(&pool, "after").await),
        (0, 0)
    );
    owner.commit().await.unwrap();
    // Without the caller's rows at stake, the same wait is a rejection as everywhere.
    let mut owner = pool.begin().await.unwrap();
    call(&idempotency, &mut owner, "open too").await.unwrap();
    let refused = idempotency.operation("tx").key("open too").wait(SECOND);
    let refused = refused
        .transaction(&pool, async |tx| write(tx, "open too").await)
        .await
        .unwrap_err();
    assert!(
        matches!(refused, Failed::Idem(Error::InFlight { .. })),
        "{refused}"
    );
}

async fn no_level_replays_what_is_not_committed(url: &str) {
    for level in LEVELS {
        let (pool, idempotency) = on_mariadb(url, level).await;
        let token = idempotency
            .operation("tx.token")
            .issue("alice", LONG)
            .await
            .unwrap();
        let operation = || idempotency.operation("tx.token").token(&token, "alice");
        let mut owner = pool.begin().await.unwrap();
        operation()
            .run_in(&mut owner, async |tx| write(tx, "rolled back").await)
            .await
            .unwrap();

        let looked = operation().lookup::<u32>().await.unwrap();
        assert!(matches!(looked, Lookup::Unknown), "{level}: {looked:?}");
        let duplicate = || operation().in_flight(InFlight::Reject);
        let answer = duplicate()
            .transaction(&pool, async |tx| write(tx, "duplicate").await)
            .await;
        assert!(
            matches!(answer, Err(Failed::Idem(Error::InFlight { .. }))),
            "{level}: {answer:?}"
        );
        let mut tx = pool.begin().await.unwrap();
        let answer = duplicate()
            .run_in(&mut tx, async |tx| write(tx, "duplicate").await)
            .await;
        assert!(
            matches!(answer, Err(Failed::Idem(Error::InFlight { .. }))),
            "{level}: {answer:?}"
        );
        tx.rollback().await.unwrap();
        // With the usual limit, a step does not wait for long.
        let usual = Idempotency::new(MySqlStore::builder(pool.clone()).time_limit(LONG).build());
        let separate = usual.operation("tx.token").token(&token, "alice");
        let separate = separate.in_flight(InFlight::Reject);
        let answer = separate.run(async || Ok::<u32, Error>(1)).await;
        assert!(answer.is_err(), "{level}: {answer:?}");

        // Without a token the key was claimed here before, so that a record is expected.
        let plain = || idempotency.operation("tx").key("plain");
        plain()
            .run_in(&mut owner, async |tx| write(tx, "rolled back").await)
            .await
            .unwrap();
        let answer = plain()
            .in_flight(InFlight::Reject)
            .transaction(&pool, async |tx| write(tx, "duplicate").await)
            .await;
        assert!(
            matches!(answer, Err(Failed::Idem(Error::InFlight { .. }))),
            "{level}: {answer:?}"
        );

        owner.rollback().await.unwrap();
        let answer = operation()
            .transaction(&pool, async |tx| write(tx, level).await)
            .await
            .unwrap();
        assert!(!answer.is_replayed(), "{level}");
        assert_eq!(rows(&pool, level).await, 1, "{level}");
    }
}

async fn a_double_submit_with_a_token_is_replayed(url: &str) {
    for level in LEVELS {
        let (pool, idempotency) = on_mariadb(url, level).await;
        let token = idempotency
            .operation("tx.token")
            .issue("alice", LONG)
            .await
            .unwrap();
        let mut submits = JoinSet::new();
        for _ in 0..8 {
            let pool = pool.clone();
            let idempotency = idempotency.clone();
            let token = token.clone();
            submits.spawn(async move {
                let operation = idempotency
                    .operation("tx.token")
                    .token(&token, "alice")
                    .wait(LONG);
                operation
                    .transaction(&pool, async |tx| write(tx, level).await)
                    .await
                    .unwrap()
                    .is_replayed()
            });
        }
        let executed = submits
            .join_all()
            .await
            .into_iter()
            .filter(|is_replayed| !is_replayed)
            .count();
        assert_eq!((executed, rows(&pool, level).await), (1, 1), "{level}");
        let operation = idempotency.operation("tx.token").token(&token, "alice");
        // A transaction that has read before.
        let mut tx = pool.begin().await.unwrap();
        tx.execute(sqlx::raw_sql("SELECT count(*) FROM idem_records"))
            .await
            .unwrap();
        assert!(
            operation
                .run_in(&mut tx, async |tx| write(tx, level).await)
                .await
                .unwrap()
                .is_replayed()
        );
        tx.commit().await.unwrap();
    }
}

async fn calls_on_released_and_expired_keys_meet_no_deadlock(url: &str) {
    for level in LEVELS {
        let (pool, idempotency) = on_mariadb(url, level).await;
        let mut met = 0;
        for (state, expires_at) in [
            ("released", "2099-01-01"),
            ("released", "2001-01-01"),
            ("done", "2001-01-01"),
        ] {
            for key in 0..10 {
                let key = format!("{state} {expires_at} {key} {level}");
                let encoded = Key::encode(&key).unwrap();
                let row = format!(
                    "INSERT INTO idem_records (operation, `key`, state, attempt, expires_at, \
                     revision) \
                     VALUES ('tx', '{}', '{state}', 1, '{expires_at}', 1)",
                    encoded.as_str()
                );
                sqlx::raw_sql(AssertSqlSafe(row))
                    .execute(&pool)
                    .await
                    .unwrap();
                let begun = Arc::new(Barrier::new(4));
                let mut calls = JoinSet::new();
                for _ in 0..4 {
                    let pool = pool.clone();
                    let idempotency = idempotency.clone();
                    let key = key.clone();
                    let begun = begun.clone();
                    calls.spawn(async move {
                        let mut tx = pool.begin().await.unwrap();
                        begun.wait().await;
                        let operation = idempotency.operation("tx").key(&key).wait(LONG);
                        let answer = operation
                            .run_in(&mut tx, async |tx| write(tx, &key).await)
                            .await;
                        match answer {
                            Ok(outcome) => tx
                                .commit()
                                .await
                                .map(|()| outcome.is_replayed())
                                .map_err(Failed::from),
                            Err(error) => Err(error),
                        }
                    });
                }
                for answer in calls.join_all().await {
                    if let Err(error) = answer {
                        assert!(guard::is_conflict(&error), "{level}: {error}");
                        met += 1;
                    }
                }
                assert_eq!(rows(&pool, &key).await, 1, "{key}");
            }
        }
        assert_eq!(met, 0, "{level}: deadlocks of 120 calls");
    }
}

async fn a_key_of_any_characters_is_recorded(url: &str) {
    let (pool, idempotency) = on_mariadb(url, "REPEATABLE READ").await;
    for key in [
        "🦀",
        "𠮷野家",
        "é",
        "a'b\\c\"d`e",
        "\u{0}",
        "%_",
        " trailing ",
    ] {
        for replayed in [false, true] {
            let mut tx = pool.begin().await.unwrap();
            let operation = idempotency.operation("tx").key(key);
            let outcome = operation
                .run_in(&mut tx, async |_| Ok::<u32, Error>(1))
                .await
                .unwrap();
            tx.commit().await.unwrap();
            assert_eq!(outcome.is_replayed(), replayed, "{key:?}");
        }
        let looked = idempotency
            .operation("tx")
            .key(key)
            .lookup::<u32>()
            .await
            .unwrap();
        assert!(matches!(looked, Lookup::Outcome(1)), "{key:?}: {looked:?}");
    }
}

async fn an_outcome_as_large_as_a_message_is_recorded(url: &str) {
    let (pool, idempotency) = on_mariadb(url, "REPEATABLE READ").await;
    for length in [1, 16 * 1024, 17 * 1024, 600 * 1024, 1020 * 1024] {
        let key = format!("{length}");
        let value = "x".repeat(length);
        for replayed in [false, true] {
            let mut tx = pool.begin().await.unwrap();
            let operation = idempotency.operation("tx").key(&key);
            let outcome = operation
                .run_in(&mut tx, async |_| Ok::<_, Error>(value.clone()))
                .await
                .unwrap();
            tx.commit().await.unwrap();
            assert_eq!(
                (outcome.is_replayed(), outcome.get() == &value),
                (replayed, true),
                "{length}"
            );
        }
    }
    let mut tx = pool.begin().await.unwrap();
    write(&mut tx, "before").await.unwrap();
    let operation = idempotency.operation("tx").key("too large");
    let refused = operation
        .run_in(&mut tx, async |_| Ok::<_, Error>("x".repeat(1100 * 1024)))
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("max_allowed_packet") && !refused.is_retryable(),
        "{refused}"
    );
    // The transaction stays usable.
    tx.commit().await.unwrap();
    assert_eq!(rows(&pool, "before").await, 1);
    assert!(
        idempotency
            .operation("tx")
            .key("too large")
            .inspect()
            .await
            .unwrap()
            .is_none()
    );
}

async fn a_body_that_swallows_a_deadlock_fails_and_its_transaction_writes_no_more(url: &str) {
    let (pool, idempotency) = on_mariadb(url, "REPEATABLE READ").await;
    let add = |account: u32| {
        AssertSqlSafe(format!(
            "UPDATE accounts SET cents = cents + 1 WHERE id = {account}"
        ))
    };
    // The server ends the smaller of the two transactions.
    let mut larger = pool.begin().await.unwrap();
    for number in 0..100 {
        write(&mut larger, &format!("larger {number}"))
            .await
            .unwrap();
    }
    larger.execute(sqlx::raw_sql(add(1))).await.unwrap();
    let meet = Barrier::new(2);
    let mut tx = pool.begin().await.unwrap();
    let called = idempotency
        .operation("tx")
        .key("swallowed")
        .run_in(&mut tx, async |tx| {
            tx.execute(sqlx::raw_sql(add(2))).await?;
            meet.wait().await;
            let deadlock = tx
                .execute(sqlx::raw_sql(add(1)))
                .await
                .map_err(Failed::from)
                .unwrap_err();
            assert!(guard::is_conflict(&deadlock), "{deadlock}");
            Ok::<u32, Failed>(1)
        });
    let (called, added) = tokio::join!(called, async {
        meet.wait().await;
        larger.execute(sqlx::raw_sql(add(2))).await
    });
    added.unwrap();
    let refused = called.unwrap_err();
    assert!(
        matches!(&refused, Failed::Idem(error @ Error::Store { .. }) if error.is_retryable()),
        "{refused}"
    );
    assert!(write(&mut tx, "after").await.is_err());
    let _ = tx.commit().await;
    larger.rollback().await.unwrap();
    assert_eq!(rows(&pool, "after").await, 0);
    assert!(
        idempotency
            .operation("tx")
            .key("swallowed")
            .inspect()
            .await
            .unwrap()
            .is_none()
    );
}

async fn an_owner_that_is_too_late_learns_so_whatever_its_transaction_has_read(url: &str) {
    for level in LEVELS {
        let (pool, idempotency) = on_mariadb(url, level).await;
        let begin = || idempotency.operation("tx").key(level).begin();
        let Begin::Execute(late) = begin().await.unwrap() else {
            panic!("a replay")
        };
        let mut tx = pool.begin().await.unwrap();
        // SERIALIZABLE would lock the record.
        let read = if level == "SERIALIZABLE" {
            "business"
        } else {
            "idem_records"
        };
        let read = AssertSqlSafe(format!("SELECT count(*) FROM {read}"));
        tx.execute(sqlx::raw_sql(read)).await.unwrap();
        late.release().await.unwrap();
        let Begin::Execute(owner) = begin().await.unwrap() else {
            panic!("a replay")
        };
        let refused = late.commit_in(&mut tx, &1_u32).await.unwrap_err();
        assert!(
            matches!(refused, Error::LeaseLost { .. }),
            "{level}: {refused}"
        );
        drop(tx);
        owner.commit(&2).await.unwrap();
    }
}

/// The texts of what sqlx logs at WARN.
#[derive(Clone, Default)]
pub(crate) struct Statements(pub(crate) Arc<Mutex<String>>);

impl Visit for &mut Statements {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0.lock().unwrap(), "{}={value:?} ", field.name());
    }
}

impl Subscriber for Statements {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "sqlx::query" && *metadata.level() == Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut &mut self.clone());
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

pub(crate) fn hex(text: &str) -> String {
    text.bytes()
        .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

/// A claim that waits for another transaction, and a commit that waits for a row.
async fn a_slow_statement_is_logged_without_key_and_outcome(url: &str) {
    let (pool, idempotency) = on_mariadb(url, "REPEATABLE READ").await;
    let options: MySqlConnectOptions = url.parse().unwrap();
    let options = options.log_statements("off".parse().unwrap());
    let options = options.log_slow_statements("warn".parse().unwrap(), Duration::from_millis(300));
    let logging = MySqlPoolOptions::new()
        .max_connections(2)
        .connect_with(options)
        .await
        .unwrap();
    let logged = Statements::default();
    ask_each_thread();
    let _logging = tracing::subscriber::set_default(logged.clone());

    // First without a habit, and then with the habit to find nothing.
    for (habit, key) in [(0, "private"), (10, "private by habit")] {
        for first in 0..habit {
            let mut tx = pool.begin().await.unwrap();
            call(&idempotency, &mut tx, &first.to_string())
                .await
                .unwrap();
            tx.commit().await.unwrap();
        }
        let mut owner = pool.begin().await.unwrap();
        // Of another process: the key is new to this one.
        let other = Idempotency::new(MySqlStore::builder(pool.clone()).time_limit(LONG).build());
        call(&other, &mut owner, key).await.unwrap();
        let mut tx = logging.begin().await.unwrap();
        let begun = Instant::now();
        let refused = call(&idempotency, &mut tx, key).await.unwrap_err();
        assert!(
            matches!(refused, Failed::Idem(Error::InFlight { .. })) && begun.elapsed() > SECOND / 2,
            "{refused}"
        );
        drop(tx);
        let operation = idempotency.operation("tx").key(key).wait(SECOND);
        let refused = operation
            .transaction(&logging, async |tx| write(tx, key).await)
            .await
            .unwrap_err();
        assert!(
            matches!(refused, Failed::Idem(Error::InFlight { .. })),
            "{refused}"
        );
        owner.rollback().await.unwrap();
    }
    assert!(logged.0.lock().unwrap().matches("slow statement").count() >= 4);

    // A body that ends its transaction, after which another one claims the key.
    let mut tx = logging.begin().await.unwrap();
    let other = Idempotency::new(MySqlStore::builder(pool.clone()).time_limit(LONG).build());
    let ended = idempotency
        .operation("tx")
        .key("private and ended")
        .run_in(&mut tx, async |tx| {
            sqlx::raw_sql("ROLLBACK; START TRANSACTION")
                .execute(&mut **tx)
                .await?;
            let mut holder = pool.begin().await?;
            call(&other, &mut holder, "private and ended").await?;
            tokio::spawn(async move {
                tokio::time::sleep(3 * SECOND).await;
                holder.rollback().await.unwrap();
            });
            Ok::<_, Failed>("secret".to_owned())
        })
        .await;
    assert!(
        matches!(ended, Err(Failed::Idem(Error::Store { .. }))),
        "{ended:?}"
    );
    drop(tx);

    let Begin::Execute(lease) = idempotency
        .operation("tx")
        .key("private")
        .begin()
        .await
        .unwrap()
    else {
        panic!("a replay")
    };
    let mut holder = pool.begin().await.unwrap();
    holder
        .execute(sqlx::raw_sql("SELECT 1 FROM idem_records FOR UPDATE"))
        .await
        .unwrap();
    let mut tx = logging.begin().await.unwrap();
    let value = "secret".to_owned();
    let (committed, ()) = tokio::join!(lease.commit_in(&mut tx, &value), async {
        tokio::time::sleep(3 * SECOND).await;
        holder.rollback().await.unwrap();
    });
    committed.unwrap();
    tx.commit().await.unwrap();

    let text = logged.0.lock().unwrap().clone();
    assert!(text.matches("slow statement").count() >= 6, "{text}");
    for private in ["private", "secret"] {
        assert!(
            !text.contains(private) && !text.contains(&hex(private)),
            "{private}: {text}"
        );
    }
}

// Only what waits for a lock may be slow.
mod quiet {
    use super::*;

    // The log is that of this thread.
    #[tokio::test]
    async fn a_slow_statement_of_mariadb_is_logged_without_key_and_outcome() {
        a_slow_statement_is_logged_without_key_and_outcome(&MariaDbServer::empty().await.url())
            .await;
    }

    #[tokio::test]
    async fn a_slow_statement_of_real_mysql_is_logged_without_key_and_outcome() {
        a_slow_statement_is_logged_without_key_and_outcome(&MySqlServer::empty().await.url()).await;
    }
}
