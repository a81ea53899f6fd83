//! The records of kept errors, which outlive the rows of their transaction.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use idem_core::{Idempotency, Outcome};
use idem_sqlx::guard;
use idem_sqlx::sqlx::mysql::MySqlPool;
use idem_sqlx::sqlx::pool::PoolOptions;
use idem_sqlx::sqlx::postgres::PgPool;
use idem_sqlx::sqlx::sqlite::SqlitePool;
use idem_sqlx::sqlx::{MySql, Postgres, Sqlite, Transaction, raw_sql};
use idem_sqlx::{MySqlStore, PostgresStore, SqliteStore};
use idem_testkit::{MariaDbServer, Mishap, PostgresServer, Proxy};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::bodies::{Outer, pay_on_mariadb, pay_on_postgres, pay_on_sqlite};
use super::{chain, has_record};
use crate::failed::Failed;
use crate::pools::{insert, mariadb, mysql_at, postgres, postgres_at, rows, sqlite};
use crate::{Server as _, in_use, until};

/// An event between the roll-back of a transaction and the one that records its kept errors.
type Between = Box<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

macro_rules! over {
    ($module:ident, $Db:ty, $Pool:ty, $Store:ident, $setup:path, $pay:ident) => {
        mod $module {
            use super::$pay as pay;
            use super::*;

            type Tx<'a> = Transaction<'a, $Db>;

            async fn setup() -> ($Pool, Idempotency) {
                let (pool, store) = $setup().await;
                (pool, Idempotency::new(store))
            }

            async fn write(tx: &mut Tx<'_>, name: &str) -> Result<(), Failed> {
                raw_sql(insert(name)).execute(&mut **tx).await?;
                Ok(())
            }

            /// A duplicate gets the kept error, and its body does not run.
            async fn replays_declined(pool: &$Pool, idempotency: &Idempotency, name: &str) {
                let runs = AtomicU32::new(0);
                let call = guard::transaction(pool, async |tx| pay(tx, name, &runs).await);
                let declined = idem_core::scope(idempotency.clone(), call).await;
                assert!(matches!(declined, Err(Failed::Declined)), "{declined:?}");
                assert_eq!(runs.into_inner(), 0, "{name}");
                assert_eq!(rows(pool, name).await, 0, "{name}");
            }

            /// A pool of one connection, and a flag. Once the flag is set, `between` happens before
            /// the next transaction begins.
            async fn hooked(pool: &$Pool, between: Between) -> ($Pool, Arc<AtomicBool>) {
                let is_due = Arc::new(AtomicBool::new(false));
                let between = Arc::new(between);
                let due = is_due.clone();
                let options = PoolOptions::<$Db>::new().max_connections(1);
                let options = options.before_acquire(move |_, _| {
                    let due = due.clone();
                    let between = between.clone();
                    Box::pin(async move {
                        if due.swap(false, Ordering::Relaxed) {
                            between().await;
                        }
                        Ok(true)
                    })
                });
                let same = (*pool.connect_options()).clone();
                (options.connect_with(same).await.unwrap(), is_due)
            }

            #[tokio::test]
            async fn a_kept_error_is_recorded_and_the_rows_of_the_transaction_are_not() {
                let (pool, idempotency) = setup().await;
                let name = "kept, declined";
                let runs = AtomicU32::new(0);
                for _ in 0..2 {
                    let call = guard::transaction(&pool, async |tx: &mut Tx<'_>| {
                        write(tx, "kept, before").await?;
                        pay(tx, name, &runs).await
                    });
                    let declined = idem_core::scope(idempotency.clone(), call).await;
                    assert!(matches!(declined, Err(Failed::Declined)), "{declined:?}");
                    let body = async |tx: &mut Tx<'_>| Ok::<_, Outer>(pay(tx, name, &runs).await?);
                    let call = guard::transaction(&pool, body);
                    let declined = idem_core::scope(idempotency.clone(), call).await;
                    assert!(
                        matches!(declined, Err(Outer::Call(Failed::Declined))),
                        "{declined:?}"
                    );
                }
                assert_eq!(runs.into_inner(), 1);
                assert_eq!(rows(&pool, name).await, 0);
                assert_eq!(rows(&pool, "kept, before").await, 0);
            }

            #[tokio::test]
            async fn a_call_in_the_same_transaction_is_rolled_back_with_its_record_and_runs_again()
            {
                let (pool, idempotency) = setup().await;
                let runs = [AtomicU32::new(0), AtomicU32::new(0)];
                for _ in 0..2 {
                    let call = guard::transaction(&pool, async |tx: &mut Tx<'_>| {
                        pay(tx, "kept, first", &runs[0]).await?;
                        pay(tx, "kept, second, declined", &runs[1]).await
                    });
                    let declined = idem_core::scope(idempotency.clone(), call).await;
                    assert!(matches!(declined, Err(Failed::Declined)), "{declined:?}");
                    assert_eq!(rows(&pool, "kept, first").await, 0);
                    assert!(!has_record(&idempotency, "kept, first").await);
                }
                assert_eq!(runs.map(AtomicU32::into_inner), [2, 1]);
                replays_declined(&pool, &idempotency, "kept, second, declined").await;
            }

            #[tokio::test]
            async fn a_body_that_ignores_a_kept_error_and_fails_leaves_its_record_and_no_row() {
                let (pool, idempotency) = setup().await;
                let runs = AtomicU32::new(0);
                let at_once = "kept, at once, declined";
                let call = guard::transaction(&pool, async |tx: &mut Tx<'_>| {
                    write(tx, "kept, before").await?;
                    let _ = pay(tx, at_once, &runs).await;
                    // Nothing is awaited in between.
                    Err::<u32, Failed>(Failed::Down)
                });
                let failed = idem_core::scope(idempotency.clone(), call).await;
                assert!(matches!(failed, Err(Failed::Down)), "{failed:?}");

                let statement = "kept, statement, declined";
                let call = guard::transaction(&pool, async |tx: &mut Tx<'_>| {
                    let _ = pay(tx, statement, &runs).await;
                    write(tx, "kept, after").await?;
                    raw_sql("SELECT nothing FROM nowhere")
                        .execute(&mut **tx)
                        .await?;
                    Ok::<u32, Failed>(7)
                });
                let failed = idem_core::scope(idempotency.clone(), call).await;
                assert!(matches!(failed, Err(Failed::Sql(_))), "{failed:?}");

                let [first, second] = ["kept, one, declined", "kept, two, declined"];
                let call = guard::transaction(&pool, async |tx: &mut Tx<'_>| {
                    let _ = pay(tx, first, &runs).await;
                    pay(tx, "kept, later", &runs).await?;
                    let _ = pay(tx, second, &runs).await;
                    Err::<u32, Failed>(Failed::Down)
                });
                let failed = idem_core::scope(idempotency.clone(), call).await;
                assert!(matches!(failed, Err(Failed::Down)), "{failed:?}");

                for name in [at_once, statement, first, second] {
                    replays_declined(&pool, &idempotency, name).await;
                }
                for name in ["kept, before", "kept, after", "kept, later"] {
                    assert_eq!(rows(&pool, name).await, 0, "{name}");
                    assert!(!has_record(&idempotency, name).await, "{name}");
                }
            }

            #[tokio::test]
            async fn a_body_that_catches_a_kept_error_and_succeeds_commits_rows_and_record() {
                let (pool, idempotency) = setup().await;
                let runs = AtomicU32::new(0);
                let name = "kept, caught, declined";
                let call = guard::transaction(&pool, async |tx: &mut Tx<'_>| {
                    write(tx, "kept, with caught").await?;
                    let declined = pay(tx, name, &runs).await;
                    assert!(matches!(declined, Err(Failed::Declined)), "{declined:?}");
                    write(tx, "kept, with caught").await?;
                    Ok::<_, Failed>(())
                });
                idem_core::scope(idempotency.clone(), call).await.unwrap();
                assert_eq!(rows(&pool, "kept, with caught").await, 2);
                replays_declined(&pool, &idempotency, name).await;
            }

            #[tokio::test]
            async fn an_error_that_another_transaction_kept_is_not_recorded_by_this_one() {
                let (pool, idempotency) = setup().await;
                let runs = AtomicU32::new(0);
                let name = "kept elsewhere, declined";
                // SQLite has at most one open transaction that writes in a file.
                let (elsewhere, other) = setup().await;
                let call = guard::transaction(&pool, async |tx: &mut Tx<'_>| {
                    write(tx, "kept here").await?;
                    let mut nested = elsewhere.begin().await?;
                    let kept = pay(&mut nested, name, &runs).await;
                    nested.rollback().await?;
                    kept
                });
                let declined = idem_core::scope(idempotency.clone(), call).await;
                assert!(matches!(declined, Err(Failed::Declined)), "{declined:?}");
                assert_eq!(rows(&pool, "kept here").await, 0);
                assert!(!has_record(&idempotency, name).await);
                assert!(!has_record(&other, name).await);
            }

            #[tokio::test]
            async fn a_kept_error_that_a_call_around_it_rolled_back_is_not_recorded() {
                let (pool, idempotency) = setup().await;
                let runs = AtomicU32::new(0);
                let released = "kept inside of released, declined";
                let dropped = "kept inside of dropped, declined";
                let is_reached = Notify::new();
                let call = guard::transaction(&pool, async |tx: &mut Tx<'_>| {
                    let outer = idempotency.operation("begun.around").key("released");
                    let failed = outer
                        .run_in(tx, async |tx| pay(tx, released, &runs).await)
                        .await;
                    assert!(matches!(failed, Err(Failed::Declined)), "{failed:?}");
                    let outer = idempotency.operation("begun.around").key("dropped");
                    let running = outer.run_in(tx, async |tx| {
                        let _ = pay(tx, dropped, &runs).await;
                        is_reached.notify_one();
                        std::future::pending::<Result<u32, Failed>>().await
                    });
                    tokio::select! {
                        ended = running => panic!("{ended:?}"),
                        () = is_reached.notified() => {}
                    }
                    Err::<u32, Failed>(Failed::Down)
                });
                let failed = idem_core::scope(idempotency.clone(), call).await;
                assert!(matches!(failed, Err(Failed::Down)), "{failed:?}");
                assert_eq!(runs.into_inner(), 2);
                for name in [released, dropped] {
                    assert!(!has_record(&idempotency, name).await, "{name}");
                }
            }

            #[tokio::test]
            async fn a_transaction_inside_of_another_ones_body_records_what_is_its_own() {
                let (pool, idempotency) = setup().await;
                let runs = AtomicU32::new(0);
                let (elsewhere, other) = setup().await;
                let call = guard::transaction(&pool, async |tx: &mut Tx<'_>| {
                    let _ = pay(tx, "kept in outer, declined", &runs).await;
                    let call = guard::transaction(&elsewhere, async |nested: &mut Tx<'_>| {
                        pay(nested, "kept in inner, declined", &runs).await
                    });
                    let declined = call.await;
                    assert!(matches!(declined, Err(Failed::Declined)), "{declined:?}");
                    Err::<u32, Failed>(Failed::Down)
                });
                let failed = idem_core::scope(idempotency.clone(), call).await;
                assert!(matches!(failed, Err(Failed::Down)), "{failed:?}");
                replays_declined(&pool, &idempotency, "kept in outer, declined").await;
                replays_declined(&elsewhere, &other, "kept in inner, declined").await;
                assert_eq!(runs.into_inner(), 2);
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn duplicates_at_the_same_time_all_get_the_kept_error() {
                let (pool, idempotency) = setup().await;
                let name = "kept, together, declined";
                let runs = Arc::new(AtomicU32::new(0));
                let mut calls = JoinSet::new();
                for _ in 0..8 {
                    let pool = pool.clone();
                    let runs = runs.clone();
                    let idempotency = idempotency.clone();
                    calls.spawn(async move {
                        let call = guard::transaction(&pool, async |tx| pay(tx, name, &runs).await);
                        idem_core::scope(idempotency, call).await
                    });
                }
                for declined in calls.join_all().await {
                    assert!(matches!(declined, Err(Failed::Declined)), "{declined:?}");
                }
                let runs = runs.load(Ordering::Relaxed);
                assert!((1..=8).contains(&runs), "{runs}");
                replays_declined(&pool, &idempotency, name).await;
            }

            /// Another call claims the key between the two transactions, and records this value. Or
            /// it fails, and releases the key.
            async fn overtaken(
                name: &'static str,
                value: Option<u32>,
            ) -> ($Pool, Idempotency, Arc<AtomicBool>) {
                let (pool, idempotency) = setup().await;
                let other = idempotency.clone();
                let between: Between = Box::new(move || {
                    let other = other.clone();
                    Box::pin(async move {
                        let call = other.operation("begun").key(name);
                        let ended = call.run(async || value.ok_or(Failed::Down)).await;
                        assert_eq!(ended.ok().map(Outcome::into_inner), value);
                    })
                });
                let (hooked, is_due) = hooked(&pool, between).await;
                (hooked, idempotency, is_due)
            }

            #[tokio::test]
            async fn if_another_call_claims_the_key_in_between_all_of_it_runs_again() {
                let name = "kept, overtaken, declined";
                let (pool, idempotency, is_due) = overtaken(name, Some(9)).await;
                let runs = [AtomicU32::new(0), AtomicU32::new(0)];
                let call = guard::transaction(&pool, async |tx: &mut Tx<'_>| {
                    write(tx, "kept, overtaken").await?;
                    if runs[0].fetch_add(1, Ordering::Relaxed) == 0 {
                        is_due.store(true, Ordering::Relaxed);
                    }
                    pay(tx, name, &runs[1]).await
                });
                let replayed = idem_core::scope(idempotency, call).await;
                assert_eq!(replayed.unwrap(), 9);
                assert_eq!(runs.map(AtomicU32::into_inner), [2, 1]);
                assert_eq!(rows(&pool, "kept, overtaken").await, 1);
                assert_eq!(rows(&pool, name).await, 0);
            }

            /// An encrypted outcome is bound to its attempt.
            #[tokio::test]
            async fn if_another_call_was_released_in_between_all_of_it_runs_again() {
                let name = "kept, released in between, declined";
                let (pool, idempotency, is_due) = overtaken(name, None).await;
                let runs = AtomicU32::new(0);
                let call = guard::transaction(&pool, async |tx: &mut Tx<'_>| {
                    let is_first = runs.load(Ordering::Relaxed) == 0;
                    is_due.store(is_first, Ordering::Relaxed);
                    pay(tx, name, &runs).await
                });
                let declined = idem_core::scope(idempotency.clone(), call).await;
                assert!(matches!(declined, Err(Failed::Declined)), "{declined:?}");
                assert_eq!(runs.into_inner(), 2);
                let call = idempotency.operation("begun").key(name);
                assert_eq!(call.inspect().await.unwrap().unwrap().attempt, 2);
                replays_declined(&pool, &idempotency, name).await;
            }

            #[tokio::test]
            async fn if_another_call_has_the_key_after_the_last_attempt_the_error_says_so() {
                let name = "kept, overtaken once, declined";
                let (pool, idempotency, is_due) = overtaken(name, Some(9)).await;
                let runs = AtomicU32::new(0);
                let settings = guard::transaction_with().attempts(1);
                let call = settings.run(&pool, async |tx: &mut Tx<'_>| {
                    is_due.store(true, Ordering::Relaxed);
                    pay(tx, name, &runs).await
                });
                let error = idem_core::scope(idempotency.clone(), call)
                    .await
                    .unwrap_err();
                let why = chain(&error);
                assert!(why.contains("another call has claimed its key"), "{why}");
                assert!(guard::is_conflict(&error), "{why}");
                let call = guard::transaction(&pool, async |tx| pay(tx, name, &runs).await);
                assert_eq!(idem_core::scope(idempotency, call).await.unwrap(), 9);
                assert_eq!(runs.into_inner(), 1);
            }

            #[tokio::test]
            async fn if_the_record_cannot_be_written_the_error_says_so() {
                let (pool, _) = setup().await;
                let store = $Store::builder(pool.clone())
                    .table("begun_and_gone")
                    .time_limit(crate::LONG)
                    .build();
                crate::connected(async || store.migrate().await).await;
                let other = pool.clone();
                let between: Between = Box::new(move || {
                    let pool = other.clone();
                    Box::pin(async move {
                        raw_sql("DROP TABLE begun_and_gone")
                            .execute(&pool)
                            .await
                            .map(drop)
                            .unwrap();
                    })
                });
                let (hooked, is_due) = hooked(&pool, between).await;
                let runs = AtomicU32::new(0);
                let name = "kept, not written, declined";
                let call = guard::transaction(&hooked, async |tx: &mut Tx<'_>| {
                    write(tx, name).await?;
                    is_due.store(true, Ordering::Relaxed);
                    pay(tx, name, &runs).await
                });
                let error = idem_core::scope(Idempotency::new(store), call)
                    .await
                    .unwrap_err();
                let why = chain(&error);
                assert!(why.contains("which records the error"), "{why}");
                assert!(why.contains("Declined"), "{why}");
                assert!(why.contains("begun_and_gone"), "{why}");
                assert!(!guard::is_conflict(&error), "{why}");
                assert_eq!(rows(&pool, name).await, 0);
                assert_eq!(runs.into_inner(), 1);
            }

            #[tokio::test]
            async fn dropped_before_the_record_is_written_it_leaves_nothing() {
                let (pool, idempotency) = setup().await;
                let is_reached = Arc::new(Notify::new());
                let reached = is_reached.clone();
                let between: Between = Box::new(move || {
                    reached.notify_one();
                    Box::pin(std::future::pending())
                });
                let (hooked, is_due) = hooked(&pool, between).await;
                let runs = AtomicU32::new(0);
                let name = "kept, dropped, declined";
                let call = guard::transaction(&hooked, async |tx: &mut Tx<'_>| {
                    is_due.store(true, Ordering::Relaxed);
                    pay(tx, name, &runs).await
                });
                tokio::select! {
                    ended = idem_core::scope(idempotency.clone(), call) => panic!("{ended:?}"),
                    () = is_reached.notified() => {}
                }
                assert_eq!(rows(&pool, name).await, 0);
                assert!(!has_record(&idempotency, name).await);
                until("the connection is back", async || in_use(&hooked) == 0).await;
                let call = guard::transaction(&hooked, async |tx| pay(tx, name, &runs).await);
                let declined = idem_core::scope(idempotency.clone(), call).await;
                assert!(matches!(declined, Err(Failed::Declined)), "{declined:?}");
                assert_eq!(runs.into_inner(), 2);
                replays_declined(&pool, &idempotency, name).await;
            }
        }
    };
}

over!(
    on_postgres,
    Postgres,
    PgPool,
    PostgresStore,
    postgres,
    pay_on_postgres
);
over!(
    on_mariadb,
    MySql,
    MySqlPool,
    MySqlStore,
    mariadb,
    pay_on_mariadb
);
over!(
    on_sqlite,
    Sqlite,
    SqlitePool,
    SqliteStore,
    sqlite,
    pay_on_sqlite
);

macro_rules! through_a_proxy {
    ($name:ident, $connect:path, $Server:ty, $pay:ident) => {
        /// The body's transaction ends without a `COMMIT`, so the first one is that of the record.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let server = <$Server>::empty().await;
            let proxy = Proxy::start(&server.url()).await.unwrap();
            let url = server.url_through(proxy.address().port());
            let (pool, store) = $connect(&url).await;
            let idempotency = Idempotency::new(store);
            let commits = proxy.passing(|words| words.first() == Some(&&b"COMMIT"[..]));
            for (key, mishap, runs_in_all) in [
                ("reply, declined", Mishap::LoseReply, 1),
                ("request, declined", Mishap::LoseRequest, 2),
            ] {
                commits.next(mishap);
                let runs = AtomicU32::new(0);
                let call = || guard::transaction(&pool, async |tx| $pay(tx, key, &runs).await);
                let lost = idem_core::scope(idempotency.clone(), call()).await;
                let why = chain(&lost.unwrap_err());
                assert!(why.contains("which records the error"), "{key}: {why}");
                assert!(why.contains("lost during COMMIT"), "{key}: {why}");
                assert_eq!(runs.load(Ordering::Relaxed), 1, "{key}");
                let found = idem_core::scope(idempotency.clone(), call()).await;
                assert!(matches!(found, Err(Failed::Declined)), "{key}: {found:?}");
                assert_eq!(runs.load(Ordering::Relaxed), runs_in_all, "{key}");
            }
        }
    };
}

through_a_proxy!(
    a_commit_of_the_record_without_an_answer_is_an_error_with_postgres,
    postgres_at,
    PostgresServer,
    pay_on_postgres
);
through_a_proxy!(
    a_commit_of_the_record_without_an_answer_is_an_error_with_mariadb,
    mysql_at,
    MariaDbServer,
    pay_on_mariadb
);
