//! Bodies that do with their transaction what they should not, and calls that are given up
//! anywhere: rows and record, or neither, and a connection that the next caller can use.

use idem_core::{Error, Idempotency};
use idem_sqlx::sqlx::mysql::MySqlPool;
use idem_sqlx::sqlx::postgres::PgPool;
use idem_sqlx::sqlx::sqlite::SqlitePool;
use idem_sqlx::sqlx::{self, Connection as _, MySql, Postgres, Sqlite, Transaction};
use idem_testkit::{MariaDbServer, PostgresServer};

use crate::failed::{Failed, action};
use crate::pools::{insert, polled, rows};
use crate::pools::{on_mariadb, on_postgres, on_sqlite};
use crate::{LONG, Server as _, own};

macro_rules! hostile {
    ($module:ident, $Db:ty, $Pool:ty, $connect:path, $begin:literal, $url:path) => {
        mod $module {
            use super::*;

            /// A pool of one connection, which each next caller gets, and the runtime on another
            /// one.
            struct World {
                pool: $Pool,
                idempotency: Idempotency,
            }

            impl World {
                async fn new() -> Self {
                    let (pool, idempotency) = $connect(&$url().await, "READ COMMITTED").await;
                    let one = pool.options().clone().max_connections(1);
                    let pool = one
                        .connect_with((*pool.connect_options()).clone())
                        .await
                        .unwrap();
                    Self { pool, idempotency }
                }

                async fn begin(&self) -> Transaction<'static, $Db> {
                    self.pool.begin_with($begin).await.unwrap()
                }

                async fn rows(&self, name: &str) -> i64 {
                    rows(&self.pool, name).await
                }

                async fn is_recorded(&self, key: &str) -> bool {
                    let found = self
                        .idempotency
                        .operation("hostile")
                        .key(key)
                        .inspect()
                        .await
                        .unwrap();
                    found.is_some_and(|found| found.state == idem_core::RecordState::Committed)
                }

                /// The next caller is as good as any.
                async fn goes_on(&self, key: &str) {
                    let next = &format!("{key}, next");
                    let operation = self.idempotency.operation("hostile").key(next).wait(LONG);
                    let mut tx = self.begin().await;
                    operation
                        .run_in(&mut tx, async |tx| write(tx, next).await)
                        .await
                        .unwrap();
                    tx.commit().await.unwrap();
                    assert_eq!(
                        (self.rows(next).await, self.is_recorded(next).await),
                        (1, true),
                        "{next}"
                    );
                }
            }

            async fn write(tx: &mut Transaction<'_, $Db>, name: &str) -> Result<u32, Failed> {
                sqlx::raw_sql(insert(name)).execute(&mut **tx).await?;
                Ok(7)
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn one_key_twice_in_one_transaction_runs_one_body() {
                let world = World::new().await;
                let mut tx = world.begin().await;
                for replayed in [false, true] {
                    let operation = world
                        .idempotency
                        .operation("hostile")
                        .key("twice")
                        .wait(LONG);
                    let outcome = operation
                        .run_in(&mut tx, async |tx| write(tx, "twice").await)
                        .await
                        .unwrap();
                    assert_eq!((outcome.is_replayed(), outcome.into_inner()), (replayed, 7));
                }
                tx.commit().await.unwrap();
                assert_eq!(
                    (world.rows("twice").await, world.is_recorded("twice").await),
                    (1, true)
                );
                world.goes_on("twice").await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn savepoints_of_a_body_end_as_it_says() {
                let world = World::new().await;
                for is_kept in [false, true] {
                    let name = |what: &str| format!("savepoint {what}, {is_kept}");
                    let mut tx = world.begin().await;
                    let operation = world
                        .idempotency
                        .operation("hostile")
                        .key(&name("key"))
                        .errors(action)
                        .wait(LONG);
                    let called = operation.run_in(&mut tx, async |tx| {
                        let mut inner = tx.begin().await?;
                        write(&mut inner, &name("committed")).await?;
                        inner.commit().await?;
                        let mut inner = tx.begin().await?;
                        write(&mut inner, &name("rolled back")).await?;
                        inner.rollback().await?;
                        let mut inner = tx.begin().await?;
                        write(&mut inner, &name("dropped")).await?;
                        drop(inner);
                        if is_kept {
                            Err(Failed::Declined)
                        } else {
                            Ok(7_u32)
                        }
                    });
                    assert_eq!(called.await.is_err(), is_kept);
                    tx.commit().await.unwrap();
                    assert!(world.is_recorded(&name("key")).await);
                    for (what, count) in [
                        ("committed", i64::from(!is_kept)),
                        ("rolled back", 0),
                        ("dropped", 0),
                    ] {
                        assert_eq!(world.rows(&name(what)).await, count, "{}", name(what));
                    }
                    world.goes_on(&name("key")).await;
                }
            }

            /// By a statement of its own, of which sqlx knows nothing.
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_body_that_ends_its_transaction_by_a_statement_gets_an_error() {
                let world = World::new().await;
                for end in ["ROLLBACK", "COMMIT"] {
                    for policy in [false, true] {
                        let key = &format!("{end}, {policy}");
                        let mut tx = world.begin().await;
                        let operation = world.idempotency.operation("hostile").key(key).wait(LONG);
                        let body = async |tx: &mut Transaction<'_, $Db>| {
                            write(tx, key).await?;
                            sqlx::raw_sql(end).execute(&mut **tx).await?;
                            Ok::<u32, Failed>(7)
                        };
                        let called = if policy {
                            operation.errors(action).run_in(&mut tx, body).await
                        } else {
                            operation.run_in(&mut tx, body).await
                        };
                        let error = called.unwrap_err();
                        assert!(
                            matches!(&error, Failed::Idem(Error::Store { .. })),
                            "{key}: {error}"
                        );
                        // Whoever commits all the same.
                        let _ = tx.commit().await;
                        let is_done = world.is_recorded(key).await;
                        // A claim is a row like the others: what a body commits itself is
                        // committed.
                        assert_eq!(world.rows(key).await, i64::from(end == "COMMIT"), "{key}");
                        assert_eq!(is_done, end == "COMMIT", "{key}");
                        world.goes_on(key).await;
                    }
                }
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_transaction_of_the_library_dropped_at_any_poll_leaves_rows_and_record_or_neither()
             {
                let world = World::new().await;
                // From then on, nothing is expected at a key.
                for first in 0..10 {
                    let key = &format!("before, {first}");
                    let operation = world.idempotency.operation("hostile").key(key);
                    operation
                        .transaction(&world.pool, async |tx| write(tx, key).await)
                        .await
                        .unwrap();
                }
                for polls in 0.. {
                    let key = &format!("dropped at {polls}");
                    let operation = world.idempotency.operation("hostile").key(key).wait(LONG);
                    let called =
                        operation.transaction(&world.pool, async |tx| write(tx, key).await);
                    let has_ended = polled(called, polls).await;
                    // The next statement on the only connection comes after what was going on
                    // there.
                    let is_written = world.rows(key).await == 1;
                    assert_eq!(world.is_recorded(key).await, is_written, "{key}");
                    let operation = world.idempotency.operation("hostile").key(key).wait(LONG);
                    let again = operation
                        .transaction(&world.pool, async |tx| write(tx, key).await)
                        .await
                        .unwrap();
                    assert_eq!(
                        (again.is_replayed(), world.rows(key).await),
                        (is_written, 1),
                        "{key}"
                    );
                    if has_ended {
                        // How many polls it takes is the scheduler's matter: one may find several
                        // answers.
                        assert!(is_written && polls > 0, "{key}");
                        break;
                    }
                }
            }
        }
    };
}

async fn postgres_url() -> String {
    PostgresServer::empty().await.url()
}

async fn mariadb_url() -> String {
    MariaDbServer::empty().await.url()
}

#[allow(clippy::unused_async, reason = "as the others")]
async fn sqlite_url() -> String {
    format!("sqlite://{}/shop.db", own::folder().display())
}

hostile!(
    postgres,
    Postgres,
    PgPool,
    on_postgres,
    "BEGIN",
    postgres_url
);
hostile!(mariadb, MySql, MySqlPool, on_mariadb, "BEGIN", mariadb_url);
hostile!(
    sqlite,
    Sqlite,
    SqlitePool,
    on_sqlite,
    "BEGIN IMMEDIATE",
    sqlite_url
);
