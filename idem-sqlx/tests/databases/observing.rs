//! Observe mode in a transaction: every body runs, the record is written with it, and what a
//! guarded call would have done is said.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use idem_core::{Duplicate, Error, Idempotency, InFlight, RecordState};
use idem_sqlx::guard;
use idem_sqlx::sqlx::{self, AssertSqlSafe};
use idem_testkit::{MariaDbServer, PostgresServer};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::NoSubscriber;
use tracing::{Dispatch, Event, Metadata, Subscriber};

use crate::Server as _;
use crate::failed::{Failed, action};
use crate::pools::insert;
use crate::pools::{on_mariadb, on_postgres, on_sqlite};

/// What was decided, each with one more field, for example what an observing call `would` have come
/// to.
#[derive(Clone)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>, &'static str);

/// With one subscriber alone, `tracing` asks the thread that reaches an event first whether it is
/// wanted. That may be the thread of another test, which has none.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));

/// Makes `tracing` ask the subscriber of each thread. With one subscriber, only the first thread is
/// asked.
pub(crate) fn ask_each_thread() {
    LazyLock::force(&SECOND);
}

impl Log {
    pub(crate) fn with(field: &'static str) -> Self {
        ask_each_thread();
        Self(Arc::default(), field)
    }

    pub(crate) fn decisions(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

struct Fields<'a>(&'a mut Vec<String>, &'static str);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}").trim_matches('"').to_owned();
        match (field.name(), self.0.last_mut()) {
            ("decision", _) => self.0.push(text),
            (name, Some(decision)) if name == self.1 => *decision = format!("{decision}: {text}"),
            _ => {}
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "idem"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut Fields(&mut self.0.lock().unwrap(), self.1));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn observed(would: &str) -> String {
    if would == "executed" {
        would.to_owned()
    } else {
        format!("observed: {would}")
    }
}

macro_rules! observes {
    ($observes:ident, $Tx:path, $connect:path, $begin:literal) => {
        #[allow(clippy::too_many_lines)]
        async fn $observes(url: &str) {
            let log = Log::with("would");
            let _logging = tracing::subscriber::set_default(log.clone());
            let (pool, idempotency) = $connect(url, "READ COMMITTED").await;
            let call = |idempotency: &Idempotency, key: &'static str| {
                let operation = idempotency
                    .operation("observed")
                    .key(key)
                    .observe()
                    .errors(action);
                operation.wait(Duration::from_secs(60))
            };
            let write = async |tx: &mut $Tx, name: &str, answer: Result<u32, Failed>| {
                sqlx::raw_sql(insert(name)).execute(&mut **tx).await?;
                answer
            };
            let rows = async |name: &str| -> i64 {
                let text = AssertSqlSafe(format!(
                    "SELECT count(*) FROM business WHERE name = '{name}'"
                ));
                sqlx::query_scalar(text).fetch_one(&pool).await.unwrap()
            };
            let state = async |key: &str| {
                let found = idempotency
                    .operation("observed")
                    .key(key)
                    .inspect()
                    .await
                    .unwrap();
                found.map(|found| found.state)
            };
            drop(log.decisions());

            // The owner records; a duplicate runs its body, and the record stays the owner's.
            for answer in [1, 2] {
                let mut tx = pool.begin_with($begin).await.unwrap();
                let body = async |tx: &mut $Tx| {
                    assert_eq!(idem_core::current().unwrap().attempt(), 0);
                    write(tx, "twice", Ok(answer)).await
                };
                let outcome = call(&idempotency, "twice")
                    .run_in(&mut tx, body)
                    .await
                    .unwrap();
                assert_eq!(
                    (outcome.is_replayed(), outcome.into_inner()),
                    (false, answer)
                );
                tx.commit().await.unwrap();
            }
            let mut tx = pool.begin_with($begin).await.unwrap();
            let plain = || idempotency.operation("observed").key("twice").observe();
            let text = plain().run_in(&mut tx, async |_| Ok::<_, Error>("no number".to_owned()));
            assert_eq!(text.await.unwrap().into_inner(), "no number");
            let rejecting = plain()
                .duplicate(Duplicate::Reject)
                .run_in(&mut tx, async |_| Ok::<u32, Error>(3));
            assert_eq!(rejecting.await.unwrap().into_inner(), 3);
            tx.commit().await.unwrap();
            let expected = [
                "executed",
                "replayed",
                "replayed",
                "unreadable",
                "rejected_duplicate",
            ];
            assert_eq!(log.decisions(), expected.map(observed));
            assert_eq!(rows("twice").await, 2);
            let guarded = idempotency
                .operation("observed")
                .key("twice")
                .run(async || Ok::<u32, Error>(0))
                .await
                .unwrap();
            assert_eq!((guarded.is_replayed(), guarded.into_inner()), (true, 1));
            drop(log.decisions());

            // Nobody waits for an open transaction, except for the writer of the file.
            if $begin == "BEGIN" {
                let mut owner = pool.begin_with($begin).await.unwrap();
                call(&idempotency, "open")
                    .run_in(&mut owner, async |tx| write(tx, "open", Ok(1)).await)
                    .await
                    .unwrap();
                for in_flight in [InFlight::Wait, InFlight::Reject] {
                    let mut tx = pool.begin_with($begin).await.unwrap();
                    let beside = call(&idempotency, "open").in_flight(in_flight);
                    let beside = beside
                        .run_in(&mut tx, async |tx| write(tx, "open", Ok(2)).await)
                        .await
                        .unwrap();
                    assert_eq!(beside.into_inner(), 2);
                    tx.commit().await.unwrap();
                }
                owner.commit().await.unwrap();
                assert_eq!(
                    log.decisions(),
                    [
                        "executed",
                        "observed: waited",
                        "observed: rejected_in_flight"
                    ]
                );
                assert_eq!(
                    (rows("open").await, state("open").await),
                    (3, Some(RecordState::Committed))
                );
            }

            // Errors leave the body's rows to the caller, as without idem.
            for (key, error, recorded) in [
                ("released", Failed::Down, None),
                ("kept", Failed::Declined, Some(RecordState::Committed)),
            ] {
                let mut tx = pool.begin_with($begin).await.unwrap();
                let mut error = Some(error);
                let body = async |tx: &mut $Tx| write(tx, key, Err(error.take().unwrap())).await;
                let failed = call(&idempotency, key).run_in(&mut tx, body).await;
                assert!(matches!(failed, Err(Failed::Down | Failed::Declined)));
                tx.commit().await.unwrap();
                assert_eq!((rows(key).await, state(key).await), (1, recorded), "{key}");
            }
            assert_eq!(log.decisions(), ["released", "error_kept"]);

            // If the library ends the transaction, it rolls them back.
            for (key, recorded) in [
                ("released by us", None),
                ("kept by us", Some(RecordState::Committed)),
            ] {
                let failed = call(&idempotency, key).transaction(&pool, async |tx| {
                    write(
                        tx,
                        key,
                        Err(if recorded.is_none() {
                            Failed::Down
                        } else {
                            Failed::Declined
                        }),
                    )
                    .await
                });
                assert!(matches!(failed.await, Err(Failed::Down | Failed::Declined)));
                assert_eq!((rows(key).await, state(key).await), (0, recorded), "{key}");
            }
            assert_eq!(log.decisions(), ["released", "error_kept"]);
            let outcome = call(&idempotency, "by us")
                .transaction(&pool, async |tx| write(tx, "by us", Ok(5)).await);
            assert_eq!(outcome.await.unwrap().into_inner(), 5);
            assert_eq!(
                (rows("by us").await, state("by us").await),
                (1, Some(RecordState::Committed))
            );

            // A call inside of its own key.
            drop(log.decisions());
            let mut tx = pool.begin_with($begin).await.unwrap();
            let outer = call(&idempotency, "inside").run_in(&mut tx, async |tx| {
                let inner = call(&idempotency, "inside")
                    .run_in(tx, async |tx| write(tx, "inside", Ok(1)).await);
                Ok::<u32, Failed>(10 + inner.await?.into_inner())
            });
            assert_eq!(outer.await.unwrap().into_inner(), 11);
            tx.commit().await.unwrap();
            assert_eq!(
                log.decisions(),
                ["observed: rejected_reentrant", "executed"]
            );
            let kept = idempotency
                .operation("observed")
                .key("inside")
                .run(async || Ok::<u32, Error>(0))
                .await
                .unwrap();
            assert_eq!(kept.into_inner(), 11);

            // A store that fails changes nothing but the record.
            drop(log.decisions());
            sqlx::raw_sql("DROP TABLE idem_records")
                .execute(&pool)
                .await
                .unwrap();
            let mut tx = pool.begin_with($begin).await.unwrap();
            let outcome = call(&idempotency, "no table")
                .run_in(&mut tx, async |tx| write(tx, "no table", Ok(1)).await);
            assert_eq!(outcome.await.unwrap().into_inner(), 1);
            tx.commit().await.unwrap();
            assert_eq!(rows("no table").await, 1);
            assert_eq!(log.decisions(), ["store_failed", "observed: store_failed"]);
        }
    };
}

observes!(
    observes_on_postgres,
    sqlx::PgTransaction<'_>,
    on_postgres,
    "BEGIN"
);
observes!(
    observes_on_mariadb,
    sqlx::MySqlTransaction<'_>,
    on_mariadb,
    "BEGIN"
);
observes!(
    observes_on_sqlite,
    sqlx::SqliteTransaction<'_>,
    on_sqlite,
    "BEGIN IMMEDIATE"
);

#[tokio::test]
async fn an_observing_call_in_a_transaction_runs_and_says_what_it_would_have_done_on_postgres() {
    observes_on_postgres(&PostgresServer::empty().await.url()).await;
}

#[tokio::test]
async fn an_observing_call_in_a_transaction_runs_and_says_what_it_would_have_done_on_mariadb() {
    observes_on_mariadb(&MariaDbServer::empty().await.url()).await;
}

#[tokio::test]
async fn an_observing_call_in_a_transaction_runs_and_says_what_it_would_have_done_on_sqlite() {
    let dir = crate::own::temporary();
    observes_on_sqlite(&format!("sqlite://{}/shop.db", dir.path().display())).await;
}

/// At REPEATABLE READ, a transaction that began before the first call committed cannot see its
/// record.
#[tokio::test]
async fn a_transaction_that_met_another_one_is_a_conflict_and_not_a_store_that_failed() {
    let (pool, store) = crate::pools::postgres().await;
    let idempotency = Idempotency::new(store);
    let log = Log::with("would");
    let _guard = tracing::subscriber::set_default(log.clone());
    let call = || idempotency.operation("conflicts").key("one");

    let mut late = pool
        .begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ")
        .await
        .unwrap();
    sqlx::raw_sql("SELECT 1").execute(&mut *late).await.unwrap();
    call()
        .transaction(&pool, async |_| Ok::<u32, Error>(1))
        .await
        .unwrap();
    assert_eq!(log.decisions(), ["executed"]);

    let error = call()
        .run_in(&mut late, async |_| Ok::<u32, Error>(2))
        .await
        .unwrap_err();
    assert!(
        error.is_retryable() && guard::is_conflict(&error),
        "{error}"
    );
    assert_eq!(log.decisions(), ["conflict"]);
    late.rollback().await.unwrap();

    let mut again = pool.begin().await.unwrap();
    let outcome = call()
        .run_in(&mut again, async |_| Ok::<u32, Error>(2))
        .await
        .unwrap();
    assert!(outcome.is_replayed());

    // Another failure of a database is none.
    let missing = sqlx::raw_sql("SELECT * FROM no_such_table")
        .execute(&mut *again)
        .await
        .unwrap_err();
    assert!(!guard::is_conflict(&missing), "{missing}");
}

/// The error type that the guides show: its sources are those of the `sqlx::Error` inside.
#[derive(Debug, thiserror::Error)]
enum Transparent {
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] Error),
}

#[tokio::test]
async fn a_conflict_in_a_transparent_error_of_the_body_runs_the_transaction_again() {
    let (pool, idempotency) =
        on_postgres(&PostgresServer::empty().await.url(), "REPEATABLE READ").await;
    sqlx::raw_sql("CREATE TABLE counted (n int); INSERT INTO counted VALUES (0)")
        .execute(&pool)
        .await
        .unwrap();
    let runs = AtomicU32::new(0);
    let body = async |tx: &mut sqlx::PgTransaction<'_>| {
        sqlx::raw_sql("SELECT n FROM counted")
            .execute(&mut **tx)
            .await?;
        if runs.fetch_add(1, Ordering::SeqCst) == 0 {
            sqlx::raw_sql("UPDATE counted SET n = n + 1")
                .execute(&pool)
                .await?; // another transaction
        }
        let updated = sqlx::raw_sql("UPDATE counted SET n = n + 10")
            .execute(&mut **tx)
            .await;
        if let Err(error) = updated {
            let error = Transparent::from(error);
            assert!(guard::is_conflict(&error), "{error:?}");
            return Err(error);
        }
        Ok::<u32, Transparent>(1)
    };
    idempotency
        .operation("conflicts")
        .key("transparent")
        .transaction(&pool, body)
        .await
        .unwrap();
    assert_eq!(runs.into_inner(), 2);
    let n: i32 = sqlx::query_scalar("SELECT n FROM counted")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(n, 11);
}

/// Each run of the body meets a transaction that has read what it writes, and has written what it
/// read.
#[tokio::test]
async fn a_conflict_that_does_not_pass_is_reported_once_as_a_store_that_failed() {
    let (pool, idempotency) =
        on_postgres(&PostgresServer::empty().await.url(), "SERIALIZABLE").await;
    sqlx::raw_sql(
        "CREATE TABLE skew (id int PRIMARY KEY, n int); INSERT INTO skew VALUES (1, 0), (2, 0)",
    )
    .execute(&pool)
    .await
    .unwrap();
    let log = Log::with("would");
    let _logging = tracing::subscriber::set_default(log.clone());
    let body = async |tx: &mut sqlx::PgTransaction<'_>| {
        let mut other = pool.begin().await?;
        sqlx::raw_sql("SELECT n FROM skew WHERE id = 1")
            .execute(&mut **tx)
            .await?;
        sqlx::raw_sql("SELECT n FROM skew WHERE id = 2")
            .execute(&mut *other)
            .await?;
        sqlx::raw_sql("UPDATE skew SET n = n + 1 WHERE id = 1")
            .execute(&mut *other)
            .await?;
        sqlx::raw_sql("UPDATE skew SET n = n + 1 WHERE id = 2")
            .execute(&mut **tx)
            .await?;
        other.commit().await?;
        Ok::<u32, Failed>(1)
    };
    let error = idempotency
        .operation("conflicts")
        .key("skew")
        .transaction(&pool, body)
        .await
        .unwrap_err();
    assert!(
        guard::is_conflict(&error) && matches!(error, Failed::Idem(Error::Store { .. })),
        "{error}"
    );
    let decisions = log.decisions();
    let times = |decision: &str| decisions.iter().filter(|made| *made == decision).count();
    assert_eq!(
        (times("retried"), times("conflict"), times("store_failed")),
        (20, 21, 1),
        "{decisions:?}"
    );
}
