//! The fate of a transaction that begins itself, by the end of its body.

use std::sync::atomic::{AtomicU32, Ordering};

use idem_core::Idempotency;
use idem_macros::idempotent;
use idem_sqlx::guard;
use idem_sqlx::sqlx::mysql::MySqlPool;
use idem_sqlx::sqlx::postgres::PgPool;
use idem_sqlx::sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use idem_sqlx::sqlx::{self, ConnectOptions as _, MySql, Postgres, Sqlite};
use idem_sqlx::sqlx::{MySqlTransaction, PgTransaction, SqliteTransaction, Transaction, raw_sql};

use tokio::sync::Notify;

use super::has_record;
use crate::failed::Failed;
use crate::pools::{insert, mariadb, postgres, rows, sqlite};
use crate::{in_use, until};

/// An error that hides which one of the call it was.
#[derive(Debug, thiserror::Error)]
pub(super) enum Outer {
    #[error("the call failed: {0}")]
    Call(#[from] Failed),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

macro_rules! over {
    (
        $module:ident, $Db:ty, $Pool:ty, $setup:path, $conflict:path, $pay:ident,
        ends: $ends:literal
    ) => {
        mod $module {
            use super::$pay as pay;
            use super::*;

            type Tx<'a> = Transaction<'a, $Db>;

            async fn setup() -> ($Pool, Idempotency) {
                let (pool, store) = $setup().await;
                (pool, Idempotency::new(store))
            }

            async fn write(tx: &mut Tx<'_>, name: &str) -> Result<u32, Failed> {
                raw_sql(insert(name)).execute(&mut **tx).await?;
                Ok(7)
            }

            #[tokio::test]
            async fn a_conflict_in_the_body_runs_the_whole_transaction_again() {
                let (pool, idempotency) = setup().await;
                let runs = AtomicU32::new(0);
                let name = "begun again";
                let body = async |tx: &mut Tx<'_>| {
                    let answer = pay(tx, name, &runs).await?;
                    if runs.load(Ordering::Relaxed) < 3 {
                        $conflict(tx).await?;
                    }
                    Ok::<_, Outer>(answer)
                };
                let call = guard::transaction(&pool, body);
                assert_eq!(idem_core::scope(idempotency, call).await.unwrap(), 7);
                assert_eq!((runs.into_inner(), rows(&pool, name).await), (3, 1));
            }

            #[tokio::test]
            async fn what_a_run_with_a_conflict_kept_is_discarded_with_it() {
                let (pool, idempotency) = setup().await;
                let runs = AtomicU32::new(0);
                let call = guard::transaction(&pool, async |tx: &mut Tx<'_>| {
                    let declined = pay(tx, "begun again, declined", &runs).await;
                    assert!(matches!(declined, Err(Failed::Declined)), "{declined:?}");
                    if runs.load(Ordering::Relaxed) < 3 {
                        $conflict(tx).await?;
                    }
                    declined
                });
                let declined = idem_core::scope(idempotency.clone(), call).await;
                assert!(matches!(declined, Err(Failed::Declined)), "{declined:?}");
                assert_eq!(runs.into_inner(), 3);
                assert!(has_record(&idempotency, "begun again, declined").await);
            }

            #[tokio::test]
            async fn attempts_count_runs_and_the_last_conflict_is_the_error() {
                let (pool, _) = setup().await;
                for attempts in [1, 4] {
                    let runs = AtomicU32::new(0);
                    let call = guard::transaction_with().attempts(attempts);
                    let call = call.run(&pool, async |tx: &mut Tx<'_>| {
                        runs.fetch_add(1, Ordering::Relaxed);
                        write(tx, "used up").await?;
                        $conflict(tx).await?;
                        Ok::<(), Failed>(())
                    });
                    let error = call.await.unwrap_err();
                    assert!(guard::is_conflict(&error), "{error}");
                    assert_eq!(runs.into_inner(), attempts);
                }
                assert_eq!(rows(&pool, "used up").await, 0);
                let none = guard::transaction_with().attempts(0);
                let none = none.run(&pool, async |_: &mut Tx<'_>| Ok::<(), sqlx::Error>(()));
                let error = none.await.unwrap_err();
                assert!(matches!(error, sqlx::Error::Configuration(_)), "{error}");
            }

            #[tokio::test]
            async fn an_error_that_is_not_kept_leaves_neither_rows_nor_records() {
                let (pool, idempotency) = setup().await;
                let runs = AtomicU32::new(0);
                let call = guard::transaction(&pool, async |tx: &mut Tx<'_>| {
                    pay(tx, "begun, before", &runs).await?;
                    pay(tx, "begun, released", &runs).await
                });
                let failed = idem_core::scope(idempotency.clone(), call).await;
                assert!(matches!(failed, Err(Failed::Down)), "{failed:?}");
                for name in ["begun, before", "begun, released"] {
                    assert_eq!(rows(&pool, name).await, 0, "{name}");
                    assert!(!has_record(&idempotency, name).await, "{name}");
                }
            }

            #[tokio::test]
            async fn a_body_that_is_dropped_leaves_nothing() {
                let (pool, idempotency) = setup().await;
                let runs = AtomicU32::new(0);
                let names = ["begun, dropped", "begun, dropped, declined"];
                let is_reached = Notify::new();
                let call = guard::transaction(&pool, async |tx: &mut Tx<'_>| {
                    for name in names {
                        let _ = pay(tx, name, &runs).await;
                    }
                    is_reached.notify_one();
                    std::future::pending::<Result<u32, Failed>>().await
                });
                tokio::select! {
                    ended = idem_core::scope(idempotency.clone(), call) => panic!("{ended:?}"),
                    () = is_reached.notified() => {}
                }
                until("the connection is back", async || in_use(&pool) == 0).await;
                for name in names {
                    assert!(!has_record(&idempotency, name).await, "{name}");
                    assert_eq!(rows(&pool, name).await, 0, "{name}");
                }
                assert_eq!(runs.into_inner(), 2);
            }

            #[tokio::test]
            async fn a_transaction_that_the_database_ended_is_no_success() {
                let (pool, _) = setup().await;
                let call = guard::transaction(&pool, async |tx: &mut Tx<'_>| {
                    write(tx, "begun, ended").await?;
                    // The body ignores the answer.
                    let _ = raw_sql($ends).execute(&mut **tx).await;
                    Ok::<_, Failed>(7)
                });
                let error = call.await.unwrap_err();
                assert!(matches!(error, Failed::Sql(_)), "{error}");
                assert_eq!(rows(&pool, "begun, ended").await, 0);
                let call = guard::transaction(&pool, async |tx| write(tx, "begun, next").await);
                assert_eq!(call.await.unwrap(), 7);
                assert_eq!(rows(&pool, "begun, next").await, 1);
            }

            #[tokio::test]
            async fn a_handler_can_spawn_it_with_what_it_borrows() {
                let (pool, _) = setup().await;
                let spawned = tokio::spawn({
                    let pool = pool.clone();
                    async move {
                        let name = "begun, spawned".to_owned();
                        let name = &name;
                        guard::transaction(&pool, async |tx| write(tx, name).await).await
                    }
                });
                assert_eq!(spawned.await.unwrap().unwrap(), 7);
                assert_eq!(rows(&pool, "begun, spawned").await, 1);
            }
        }
    };
}

async fn postgres_conflict(tx: &mut Transaction<'_, Postgres>) -> Result<(), sqlx::Error> {
    let raise = "DO $$ BEGIN RAISE EXCEPTION 'met' USING ERRCODE = '40001'; END $$";
    raw_sql(raise).execute(&mut **tx).await.map(drop)
}

async fn mariadb_conflict(tx: &mut Transaction<'_, MySql>) -> Result<(), sqlx::Error> {
    let signal = "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213";
    raw_sql(signal).execute(&mut **tx).await.map(drop)
}

/// Another connection cannot write while the transaction may.
async fn sqlite_conflict(tx: &mut Transaction<'_, Sqlite>) -> Result<(), sqlx::Error> {
    let file = sqlx::query_scalar("SELECT file FROM pragma_database_list WHERE name = 'main'");
    let file: String = file.fetch_one(&mut **tx).await?;
    let options = SqliteConnectOptions::new().filename(file);
    let mut other = options
        .busy_timeout(std::time::Duration::ZERO)
        .connect()
        .await?;
    raw_sql("BEGIN IMMEDIATE")
        .execute(&mut other)
        .await
        .map(drop)
}

/// The answer of a body, by the end of its key.
fn answer(name: &str) -> Result<u32, Failed> {
    match name.rsplit(", ").next() {
        Some("declined") => Err(Failed::Declined),
        Some("released") => Err(Failed::Down),
        _ => Ok(7),
    }
}

macro_rules! pay {
    ($pay:ident, $Transaction:ident) => {
        #[idempotent(
                                                    name = "begun",
                                                    key = name,
                                                    transaction = tx,
                                                    errors(Failed::Declined => keep, _ => release),
                                                    crate = "::idem_core"
                                                )]
        pub(super) async fn $pay(
            tx: &mut $Transaction<'_>,
            name: &str,
            runs: &AtomicU32,
        ) -> Result<u32, Failed> {
            runs.fetch_add(1, Ordering::Relaxed);
            raw_sql(insert(name)).execute(&mut **tx).await?;
            answer(name)
        }
    };
}

pay!(pay_on_postgres, PgTransaction);
pay!(pay_on_mariadb, MySqlTransaction);
pay!(pay_on_sqlite, SqliteTransaction);

// A statement ends the transaction: on MariaDB as a deadlock, on SQLite as a full disk does.
over!(
    on_postgres,
    Postgres,
    PgPool,
    postgres,
    postgres_conflict,
    pay_on_postgres,
    ends: "SELECT nothing FROM nowhere"
);
over!(
    on_mariadb,
    MySql,
    MySqlPool,
    mariadb,
    mariadb_conflict,
    pay_on_mariadb,
    ends: "ROLLBACK"
);
over!(
    on_sqlite,
    Sqlite,
    SqlitePool,
    sqlite,
    sqlite_conflict,
    pay_on_sqlite,
    ends: "ROLLBACK"
);
