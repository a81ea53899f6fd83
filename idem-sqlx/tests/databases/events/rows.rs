//! One function for each row of the table, and all of them at once at each isolation level.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem_core::{Error, Idempotency, InFlight, Outcome, RecordState};
use idem_sqlx::sqlx::mysql::MySqlPool;
use idem_sqlx::sqlx::postgres::PgPool;
use idem_sqlx::sqlx::sqlite::SqlitePool;
use idem_sqlx::sqlx::{self, AssertSqlSafe, Connection as _, MySql, Postgres, Sqlite, Transaction};
use idem_testkit::{MariaDbServer, MySqlServer, PostgresServer};
use tokio::sync::{Barrier, Notify};

use crate::failed::{Failed, action};
use crate::pools::{insert, on_mariadb, on_postgres, on_sqlite};
use crate::{LONG, Server as _, in_use, until};

/// How many calls wait for a key.
const WAITERS: usize = 4;

fn add(account: u32) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!(
        "UPDATE accounts SET cents = cents + 1 WHERE id = {account}"
    ))
}

/// The rows of the table, for one database.
macro_rules! rows {
    (
        $module:ident, $Db:ty, $Pool:ty, $connect:path, $one_writer:literal, $claiming:literal,
        $kill:expr
    ) => {
        pub(super) mod $module {
            use super::*;

            /// A database at one isolation level.
            #[derive(Clone)]
            pub(crate) struct World {
                pub(crate) pool: $Pool,
                pub(crate) idempotency: Idempotency,
                level: &'static str,
                /// How the tests begin a transaction themselves.
                begin: &'static str,
            }

            impl World {
                pub(crate) async fn new(
                    url: &str,
                    level: &'static str,
                    begin: &'static str,
                ) -> Self {
                    let (pool, idempotency) = $connect(url, level).await;
                    Self {
                        pool,
                        idempotency,
                        level,
                        begin,
                    }
                }

                fn key(&self, row: &str) -> String {
                    format!("{row}, {}", self.level)
                }

                async fn begin(&self) -> Transaction<'static, $Db> {
                    self.pool.begin_with(self.begin).await.unwrap()
                }

                async fn call(
                    &self,
                    tx: &mut Transaction<'_, $Db>,
                    key: &str,
                ) -> Result<Outcome<u32>, Failed> {
                    let operation = self.idempotency.operation("events").key(key).wait(LONG);
                    operation.run_in(tx, async |tx| write(tx, key).await).await
                }

                /// Calls until there is an answer, as a caller does.
                pub(crate) async fn answer(&self, key: &str) -> Outcome<u32> {
                    loop {
                        let mut tx = self.begin().await;
                        match self.call(&mut tx, key).await {
                            Ok(outcome) if tx.commit().await.is_ok() => return outcome,
                            Ok(_) => {}
                            Err(Failed::Idem(error)) if error.is_retryable() => {}
                            Err(error) => panic!("{key}: {error}"),
                        }
                    }
                }

                /// Rows and record exist both, once, or neither. Where reads see what is not
                /// committed, a row may be one that is being rolled back.
                pub(crate) async fn is_done(&self, key: &str) -> bool {
                    let reads_uncommitted = self.level == "READ UNCOMMITTED";
                    let agree = async || {
                        let (rows, is_recorded) = self.rows_and_record(key).await;
                        !reads_uncommitted || (rows == 1) == is_recorded
                    };
                    until(&format!("{key}: rows and record"), agree).await;
                    let (rows, is_recorded) = self.rows_and_record(key).await;
                    assert!(rows <= 1, "{key}: {rows} rows");
                    assert_eq!(rows == 1, is_recorded, "{key}: rows and record");
                    is_recorded
                }

                /// Asks again while the store is busy, as a caller does: a killed process may have left
                /// work for the next one at the file of SQLite.
                async fn rows_and_record(&self, key: &str) -> (i64, bool) {
                    loop {
                        let text = format!("SELECT count(*) FROM business WHERE name = '{key}'");
                        let rows: i64 = sqlx::query_scalar(AssertSqlSafe(text))
                            .fetch_one(&self.pool)
                            .await
                            .unwrap();
                        let operation = self.idempotency.operation("events").key(key);
                        match operation.inspect().await {
                            Ok(found) => {
                                let state = found.map(|found| found.state);
                                return (rows, state == Some(RecordState::Committed));
                            }
                            Err(error) if error.is_retryable() => {}
                            Err(error) => panic!("{key}: {error}"),
                        }
                    }
                }

                /// Calls of other connections, which wait for the owner of the key where the
                /// database can tell.
                async fn waiters(
                    &self,
                    key: &str,
                    ran: &Arc<AtomicU32>,
                ) -> Vec<tokio::task::JoinHandle<Outcome<u32>>> {
                    let calls = (0..WAITERS).map(|_| {
                        let world = self.clone();
                        let key = key.to_owned();
                        let ran = ran.clone();
                        tokio::spawn(async move {
                            let operation =
                                world.idempotency.operation("events").key(&key).wait(LONG);
                            let answer = operation.transaction(&world.pool, async |tx| {
                                ran.fetch_add(1, Ordering::Relaxed);
                                write(tx, &key).await
                            });
                            answer.await.unwrap()
                        })
                    });
                    let calls = calls.collect();
                    self.waits(key, 1).await;
                    calls
                }

                /// Waits until another connection is in a claim. Statements do not show their keys.
                /// Where nobody can see a claim, because it waits for a file: until this pool has
                /// lent more connections than the test itself holds.
                pub(crate) async fn waits(&self, key: &str, held: usize) {
                    let claims = async || {
                        if $one_writer {
                            return in_use(&self.pool) > held;
                        }
                        // MySQL does not show a statement of another test that has a character of
                        // four bytes, and fails.
                        let claiming = sqlx::query_scalar::<_, i64>($claiming);
                        let claiming = claiming.fetch_one(&self.pool).await;
                        claiming.is_ok_and(|claiming| claiming > 0)
                    };
                    until(&format!("{key}: somebody waits"), claims).await;
                }
            }

            pub(crate) async fn write(
                tx: &mut Transaction<'_, $Db>,
                name: &str,
            ) -> Result<u32, Failed> {
                sqlx::raw_sql(insert(name)).execute(&mut **tx).await?;
                Ok(7)
            }

            /// All rows at once, each at a key of its own. Serializable transactions meet also over
            /// keys that are near each other, and SQLite has one writer: there it is one after the
            /// other.
            pub(crate) async fn all(world: &World) {
                if world.level == "SERIALIZABLE" || $one_writer {
                    an_open_key(world).await;
                    a_key_that_is_committed(world).await;
                    a_key_that_is_rolled_back(world).await;
                    a_key_whose_connection_dies(world).await;
                    a_released_error(world).await;
                    a_kept_error(world).await;
                    a_panic(world).await;
                    a_dropped_future(world).await;
                    a_caller_that_rolls_back(world).await;
                    return conflicts(world).await;
                }
                tokio::join!(
                    an_open_key(world),
                    a_key_that_is_committed(world),
                    a_key_that_is_rolled_back(world),
                    a_key_whose_connection_dies(world),
                    a_released_error(world),
                    a_kept_error(world),
                    a_panic(world),
                    a_dropped_future(world),
                    a_caller_that_rolls_back(world),
                    conflicts(world),
                );
            }

            async fn an_open_key(world: &World) {
                let key = &world.key("open");
                let mut owner = world.begin().await;
                world.call(&mut owner, key).await.unwrap();
                for in_flight in [InFlight::Reject, InFlight::Wait] {
                    // A transaction that writes from its beginning would wait there in SQLite.
                    let mut tx = world.pool.begin_with("BEGIN").await.unwrap();
                    let operation = world
                        .idempotency
                        .operation("events")
                        .key(key)
                        .wait(Duration::from_millis(300));
                    let refused = operation
                        .in_flight(in_flight)
                        .run_in(&mut tx, async |tx| write(tx, key).await);
                    let refused = refused.await.unwrap_err();
                    assert!(
                        matches!(refused, Failed::Idem(Error::InFlight { .. })),
                        "{key}: {refused}"
                    );
                    // The transaction goes on.
                    if !$one_writer {
                        write(&mut tx, &format!("{key}, after")).await.unwrap();
                    }
                    tx.commit().await.unwrap();
                }
                owner.commit().await.unwrap();
                assert!(world.is_done(key).await);
            }

            async fn a_key_that_is_committed(world: &World) {
                let key = &world.key("committed");
                let ran = Arc::default();
                let mut owner = world.begin().await;
                world.call(&mut owner, key).await.unwrap();
                let waiters = world.waiters(key, &ran).await;
                owner.commit().await.unwrap();
                for waiter in waiters {
                    assert!(waiter.await.unwrap().is_replayed(), "{key}");
                }
                assert_eq!(ran.load(Ordering::Relaxed), 0, "{key}");
                // In the caller's own transaction too.
                assert!(world.answer(key).await.is_replayed(), "{key}");
                assert!(world.is_done(key).await);
            }

            async fn a_key_that_is_rolled_back(world: &World) {
                let key = &world.key("rolled back");
                let ran = Arc::default();
                let mut owner = world.begin().await;
                world.call(&mut owner, key).await.unwrap();
                let waiters = world.waiters(key, &ran).await;
                owner.rollback().await.unwrap();
                one_of_them_runs(world, key, waiters).await;
            }

            async fn a_key_whose_connection_dies(world: &World) {
                let key = &world.key("dead");
                let ran = Arc::default();
                if $one_writer {
                    // The connection is a file, which nobody else can cut. Its process can close
                    // it, or be killed as in `workers.rs`.
                    let mut connection = world.pool.acquire().await.unwrap().detach();
                    let mut owner = connection.begin_with(world.begin).await.unwrap();
                    world.call(&mut owner, key).await.unwrap();
                    let waiters = world.waiters(key, &ran).await;
                    drop(owner);
                    connection.close_hard().await.unwrap();
                    return one_of_them_runs(world, key, waiters).await;
                }
                let mut owner = world.begin().await;
                world.call(&mut owner, key).await.unwrap();
                let [own, kill] = $kill;
                let id: i64 = sqlx::query_scalar(own)
                    .fetch_one(&mut *owner)
                    .await
                    .unwrap();
                let waiters = world.waiters(key, &ran).await;
                let kill = AssertSqlSafe(kill.replace("{}", &id.to_string()));
                sqlx::raw_sql(kill).execute(&world.pool).await.unwrap();
                one_of_them_runs(world, key, waiters).await;
            }

            async fn one_of_them_runs(
                world: &World,
                key: &str,
                waiters: Vec<tokio::task::JoinHandle<Outcome<u32>>>,
            ) {
                let mut executed = 0;
                for waiter in waiters {
                    executed += u32::from(!waiter.await.unwrap().is_replayed());
                }
                assert_eq!(executed, 1, "{key}");
                assert!(world.is_done(key).await, "{key}");
            }

            async fn a_released_error(world: &World) {
                let key = &world.key("released");
                let mut tx = world.begin().await;
                let operation = world
                    .idempotency
                    .operation("events")
                    .key(key)
                    .errors(action)
                    .wait(LONG);
                let failed = operation.run_in(&mut tx, async |tx| {
                    write(tx, key).await?;
                    Err::<u32, _>(Failed::Down)
                });
                assert!(matches!(failed.await, Err(Failed::Down)), "{key}");
                let after = &world.key("released, after");
                world.call(&mut tx, after).await.unwrap();
                tx.commit().await.unwrap();
                assert!(!world.is_done(key).await);
                assert!(world.is_done(after).await);
            }

            async fn a_kept_error(world: &World) {
                let key = &world.key("kept");
                for _ in 0..2 {
                    let mut tx = world.begin().await;
                    let operation = world
                        .idempotency
                        .operation("events")
                        .key(key)
                        .errors(action)
                        .wait(LONG);
                    let failed = operation.run_in(&mut tx, async |tx| {
                        write(tx, key).await?;
                        Err::<u32, _>(Failed::Declined)
                    });
                    assert!(matches!(failed.await, Err(Failed::Declined)), "{key}");
                    tx.commit().await.unwrap();
                }
                let found = world
                    .idempotency
                    .operation("events")
                    .key(key)
                    .inspect()
                    .await
                    .unwrap()
                    .unwrap();
                assert_eq!(
                    (found.state, found.is_error),
                    (RecordState::Committed, true),
                    "{key}"
                );
                let text = AssertSqlSafe(format!(
                    "SELECT count(*) FROM business WHERE name = '{key}'"
                ));
                let rows: i64 = sqlx::query_scalar(text)
                    .fetch_one(&world.pool)
                    .await
                    .unwrap();
                assert_eq!(rows, 0, "{key}");
            }

            async fn a_panic(world: &World) {
                let key = &world.key("panic");
                let its = world.clone();
                let name = key.clone();
                let panics = tokio::spawn(async move {
                    let mut tx = its.begin().await;
                    let operation = its.idempotency.operation("events").key(&name).wait(LONG);
                    let body = async |tx: &mut Transaction<'_, $Db>| -> Result<u32, Failed> {
                        write(tx, &name).await?;
                        panic!("on purpose")
                    };
                    let _ = operation.run_in(&mut tx, body).await;
                });
                assert!(panics.await.unwrap_err().is_panic(), "{key}");
                assert!(!world.is_done(key).await);
                assert!(!world.answer(key).await.is_replayed(), "{key}");
            }

            async fn a_dropped_future(world: &World) {
                let key = &world.key("dropped");
                let mut tx = world.begin().await;
                let written = Notify::new();
                let operation = world.idempotency.operation("events").key(key).wait(LONG);
                let called = operation.run_in(&mut tx, async |tx| {
                    write(tx, key).await?;
                    written.notify_one();
                    std::future::pending::<Result<u32, Failed>>().await
                });
                tokio::select! {
                    _ = called => panic!("{key}: the body does not end"),
                    () = written.notified() => {}
                }
                // Whoever commits all the same.
                tx.commit().await.unwrap();
                assert!(!world.is_done(key).await);
                assert!(!world.answer(key).await.is_replayed(), "{key}");
            }

            async fn a_caller_that_rolls_back(world: &World) {
                let key = &world.key("rolled back by its caller");
                let mut tx = world.begin().await;
                world.call(&mut tx, key).await.unwrap();
                tx.rollback().await.unwrap();
                assert!(!world.is_done(key).await);
                assert!(!world.answer(key).await.is_replayed(), "{key}");
            }

            /// A transaction that has read, and finds that another one has written since: it can
            /// never write.
            async fn a_writer_too_late(world: &World) {
                let key = &world.key("too late");
                let other = &world.key("in time");
                let mut tx = world.pool.begin_with("BEGIN").await.unwrap();
                sqlx::query("SELECT count(*) FROM business")
                    .fetch_one(&mut *tx)
                    .await
                    .unwrap();
                assert!(!world.answer(other).await.is_replayed());
                let refused = world.call(&mut tx, key).await.unwrap_err();
                assert!(
                    matches!(&refused, Failed::Idem(error @ Error::Store { .. }) if error.is_retryable()),
                    "{refused}"
                );
                // It commits all the same.
                let _ = tx.commit().await;
                assert!(!world.is_done(key).await);
                assert!(!world.answer(key).await.is_replayed(), "{key}");
            }

            /// Transactions that meet: over rows of the application, and over a row and the key.
            async fn conflicts(world: &World) {
                if $one_writer {
                    return a_writer_too_late(world).await;
                }
                let meet = Barrier::new(2);
                let crossing = async |first: u32, second: u32| {
                    let key = &world.key(&format!("crossing {first}"));
                    let is_first = AtomicU32::new(0);
                    let operation = world.idempotency.operation("events").key(key).wait(LONG);
                    let outcome = operation.transaction(&world.pool, async |tx| {
                        sqlx::raw_sql(add(first)).execute(&mut **tx).await?;
                        if is_first.fetch_add(1, Ordering::Relaxed) == 0 {
                            meet.wait().await;
                        }
                        sqlx::raw_sql(add(second)).execute(&mut **tx).await?;
                        write(tx, key).await
                    });
                    assert_eq!(outcome.await.unwrap().into_inner(), 7, "{key}");
                    assert!(world.is_done(key).await);
                };
                tokio::join!(crossing(1, 2), crossing(2, 1));

                // One holds the key and wants the row, the other one holds the row and wants the
                // key.
                let key = &world.key("key and row");
                let mut one = world.begin().await;
                let mut other = world.begin().await;
                sqlx::raw_sql(add(1)).execute(&mut *other).await.unwrap();
                world.call(&mut one, key).await.unwrap();
                let (one, other) = tokio::join!(
                    async {
                        world.waits(key, 2).await;
                        let added = sqlx::raw_sql(add(1)).execute(&mut *one).await;
                        if added.is_ok() {
                            one.commit().await
                        } else {
                            added.map(drop)
                        }
                    },
                    async {
                        let called = world.call(&mut other, key).await;
                        match called {
                            Ok(_) => other.commit().await.map_err(Failed::Sql),
                            Err(error) => {
                                other.rollback().await.unwrap();
                                Err(error)
                            }
                        }
                    }
                );
                match (&one, &other) {
                    (Ok(()), Err(Failed::Idem(error @ Error::Store { .. }))) => {
                        assert!(error.is_retryable(), "{error}")
                    }
                    (Err(_), Ok(())) => {}
                    _ => panic!("{key}: {one:?}, {other:?}"),
                }
                assert!(world.is_done(key).await, "{key}");
                assert!(world.answer(key).await.is_replayed(), "{key}");
            }
        }
    };
}

rows!(
    postgres,
    Postgres,
    PgPool,
    on_postgres,
    false,
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type \
     = 'Lock'",
    [
        "SELECT pg_backend_pid()::bigint",
        "SELECT pg_terminate_backend({})"
    ]
);
rows!(
    mariadb,
    MySql,
    MySqlPool,
    on_mariadb,
    false,
    "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> \
     connection_id() AND info LIKE '%@idem\\_locked%'",
    ["SELECT CAST(connection_id() AS SIGNED)", "KILL {}"]
);
rows!(sqlite, Sqlite, SqlitePool, on_sqlite, true, "", ["", ""]);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_event_in_a_transaction_has_its_result_at_each_isolation_level_of_postgres() {
    let server = PostgresServer::empty().await;
    server.set("deadlock_timeout = '100ms'").await;
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        Box::pin(postgres::all(
            &postgres::World::new(&server.url(), level, "BEGIN").await,
        ))
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_event_in_a_transaction_has_its_result_at_each_isolation_level_of_mariadb() {
    at_each_level(&MariaDbServer::empty().await.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_event_in_a_transaction_has_its_result_at_each_isolation_level_of_real_mysql() {
    at_each_level(&MySqlServer::empty().await.url()).await;
}

async fn at_each_level(url: &str) {
    for level in [
        "READ UNCOMMITTED",
        "READ COMMITTED",
        "REPEATABLE READ",
        "SERIALIZABLE",
    ] {
        Box::pin(mariadb::all(
            &mariadb::World::new(url, level, "BEGIN").await,
        ))
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_event_in_a_transaction_has_its_result_with_each_kind_of_transaction_of_sqlite() {
    for begin in ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE", "BEGIN"] {
        let dir = crate::own::temporary();
        let url = format!("sqlite://{}/shop.db", dir.path().display());
        Box::pin(sqlite::all(&sqlite::World::new(&url, begin, begin).await)).await;
    }
}
