//! Guards on rows, with many connections at the same row.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use idem_sqlx::guard::{Locked, Rows, States, Transition, Version, Versions};
use idem_sqlx::sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use idem_sqlx::sqlx::postgres::{PgPool, PgPoolOptions};
use idem_sqlx::sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
};
use idem_sqlx::sqlx::{self, AssertSqlSafe, Connection as _, Transaction};
use idem_testkit::{MariaDbServer, PostgresServer};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::{Server as _, in_use, own, until};

const ORDERS: States = States::new("orders", "id", "state");
const NOTES: Versions = Versions::new("orders", "id", "version", "edited_by");
const ROWS: Rows = Rows::new("orders", "id");
/// How many callers come at once.
const CROWD: usize = 8;
const ROUNDS: i64 = 5;

/// `state` has an index, as `take` wants it.
const CREATE: &str = "CREATE TABLE orders (id bigint PRIMARY KEY, state varchar(20) NOT NULL, \
    version int NOT NULL, edited_by varchar(50)); CREATE INDEX orders_state ON orders (state, id)";

fn rows_in(state: &str, ids: std::ops::Range<i64>) -> AssertSqlSafe<String> {
    let rows: Vec<String> = ids
        .map(|id| format!("({id}, '{state}', 1, NULL)"))
        .collect();
    AssertSqlSafe(format!("INSERT INTO orders VALUES {}", rows.join(", ")))
}

async fn postgres() -> PgPool {
    let options = PgPoolOptions::new().max_connections(20);
    let database = PostgresServer::empty().await;
    options.connect(&database.url()).await.unwrap()
}

async fn mariadb() -> MySqlPool {
    let options = MySqlPoolOptions::new().max_connections(20);
    let database = MariaDbServer::empty().await;
    options.connect(&database.url()).await.unwrap()
}

async fn sqlite() -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(own::folder().join("shop.db"))
        .create_if_missing(true);
    let options = options
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(20));
    SqlitePoolOptions::new()
        .max_connections(20)
        .connect_with(options)
        .await
        .unwrap()
}

/// Counts equal answers.
fn count<T: std::fmt::Debug>(answers: Vec<T>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for answer in answers {
        *counts.entry(format!("{answer:?}")).or_insert(0) += 1;
    }
    counts
}

fn counts(expected: &[(&str, usize)]) -> BTreeMap<String, usize> {
    expected
        .iter()
        .map(|(answer, count)| ((*answer).to_owned(), *count))
        .collect()
}

macro_rules! scenarios {
    (
        $module:ident, $Db:ident, $Pool:ty, $begin:literal, $read_committed:literal,
        $one_writer:literal
    ) => {
        mod $module {
            use super::*;

            type Tx<'a> = Transaction<'a, sqlx::$Db>;

            pub(super) async fn all(pool: &$Pool) {
                sqlx::raw_sql(CREATE).execute(pool).await.unwrap();
                of_many_equal_transitions_one_is_made_and_the_others_are_duplicates(pool).await;
                of_transitions_out_of_one_state_one_is_made_and_the_others_are_refused(pool).await;
                a_transition_counts_only_if_its_transaction_commits(pool).await;
                of_many_edits_of_one_version_one_is_made_and_the_others_are_stale(pool).await;
                a_retry_of_an_edit_is_a_duplicate_until_the_next_version(pool).await;
                a_lock_waits_no_longer_than_asked_and_its_transaction_stays_usable(pool).await;
                under_a_lock_no_update_is_lost(pool).await;
                workers_that_take_rows_share_them_without_an_overlap(pool).await;
                an_invalid_name_is_an_error_and_no_statement(pool).await;
            }

            async fn crowd<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
                pool: &$Pool,
                call: impl Fn(usize, $Pool) -> F,
            ) -> Vec<T> {
                let barrier = Arc::new(Barrier::new(CROWD));
                let mut calls = JoinSet::new();
                for index in 0..CROWD {
                    let barrier = barrier.clone();
                    let call = call(index, pool.clone());
                    calls.spawn(async move {
                        barrier.wait().await;
                        call.await
                    });
                }
                calls.join_all().await
            }

            async fn advance(pool: &$Pool, id: i64, from: &[&str], to: &str) -> Transition {
                let mut tx = pool.begin_with($begin).await.unwrap();
                let made = ORDERS.advance(&mut tx, id, from, to).await.unwrap();
                tx.commit().await.unwrap();
                made
            }

            async fn edit(pool: &$Pool, id: i64, read: i64, key: &str) -> Version {
                let mut tx = pool.begin_with($begin).await.unwrap();
                let made = NOTES.advance(&mut tx, id, read, key).await.unwrap();
                tx.commit().await.unwrap();
                made
            }

            async fn of_many_equal_transitions_one_is_made_and_the_others_are_duplicates(
                pool: &$Pool,
            ) {
                sqlx::raw_sql(rows_in("paid", 0..ROUNDS))
                    .execute(pool)
                    .await
                    .unwrap();
                for id in 0..ROUNDS {
                    let answers = crowd(pool, |_, pool| async move {
                        advance(&pool, id, &["new", "paid"], "shipped").await
                    })
                    .await;
                    assert_eq!(
                        count(answers),
                        counts(&[("Made", 1), ("AlreadyMade", CROWD - 1)])
                    );
                }
                let refused = Transition::Refused {
                    found: "shipped".to_owned(),
                };
                assert_eq!(
                    advance(pool, 0, &["new", "paid"], "cancelled").await,
                    refused
                );
                assert_eq!(advance(pool, 0, &[], "cancelled").await, refused);
                assert_eq!(
                    advance(pool, 0, &["shipped"], "shipped").await,
                    Transition::AlreadyMade
                );
                assert_eq!(
                    advance(pool, -1, &["paid"], "shipped").await,
                    Transition::NoRow
                );
            }

            async fn of_transitions_out_of_one_state_one_is_made_and_the_others_are_refused(
                pool: &$Pool,
            ) {
                sqlx::raw_sql(rows_in("paid", 100..100 + ROUNDS))
                    .execute(pool)
                    .await
                    .unwrap();
                for id in 100..100 + ROUNDS {
                    let answers = crowd(pool, |index, pool| async move {
                        advance(
                            &pool,
                            id,
                            &["paid"],
                            if index % 2 == 0 {
                                "shipped"
                            } else {
                                "cancelled"
                            },
                        )
                        .await
                    })
                    .await;
                    let found = count(answers);
                    assert_eq!(
                        (found["Made"], found["AlreadyMade"]),
                        (1, CROWD / 2 - 1),
                        "{found:?}"
                    );
                    let refused: usize = found
                        .iter()
                        .filter(|(key, _)| key.starts_with("Refused"))
                        .map(|(_, n)| n)
                        .sum();
                    assert_eq!(refused, CROWD / 2, "{found:?}");
                }
            }

            async fn a_transition_counts_only_if_its_transaction_commits(pool: &$Pool) {
                sqlx::raw_sql(rows_in("paid", 200..201))
                    .execute(pool)
                    .await
                    .unwrap();
                let mut first = pool.begin_with($begin).await.unwrap();
                assert_eq!(
                    ORDERS
                        .advance(&mut first, 200_i64, &["paid"], "shipped")
                        .await
                        .unwrap(),
                    Transition::Made
                );
                let other = tokio::spawn({
                    let pool = pool.clone();
                    async move { advance(&pool, 200, &["paid"], "cancelled").await }
                });
                first.rollback().await.unwrap();
                assert_eq!(other.await.unwrap(), Transition::Made);
            }

            async fn of_many_edits_of_one_version_one_is_made_and_the_others_are_stale(
                pool: &$Pool,
            ) {
                sqlx::raw_sql(rows_in("note", 300..300 + ROUNDS))
                    .execute(pool)
                    .await
                    .unwrap();
                for id in 300..300 + ROUNDS {
                    let answers = crowd(pool, |index, pool| async move {
                        edit(&pool, id, 1, &format!("key {index}")).await
                    })
                    .await;
                    assert_eq!(
                        count(answers),
                        counts(&[("Made(2)", 1), ("Stale { found: 2 }", CROWD - 1)])
                    );
                    let answers = crowd(pool, |_, pool| async move {
                        edit(&pool, id, 2, "one key").await
                    })
                    .await;
                    assert_eq!(
                        count(answers),
                        counts(&[("Made(3)", 1), ("AlreadyMade(3)", CROWD - 1)])
                    );
                }
                assert_eq!(edit(pool, -1, 1, "key").await, Version::NoRow);
            }

            async fn a_retry_of_an_edit_is_a_duplicate_until_the_next_version(pool: &$Pool) {
                sqlx::raw_sql(rows_in("note", 400..401))
                    .execute(pool)
                    .await
                    .unwrap();
                assert_eq!(edit(pool, 400, 1, "ada").await, Version::Made(2));
                assert_eq!(edit(pool, 400, 1, "ada").await, Version::AlreadyMade(2));
                // The same key with another version is another edit.
                assert_eq!(edit(pool, 400, 2, "ada").await, Version::Made(3));
                assert_eq!(edit(pool, 400, 1, "ada").await, Version::Stale { found: 3 });
                assert_eq!(edit(pool, 400, 3, "grace").await, Version::Made(4));
                assert_eq!(edit(pool, 400, 2, "ada").await, Version::Stale { found: 4 });
            }

            async fn a_lock_waits_no_longer_than_asked_and_its_transaction_stays_usable(
                pool: &$Pool,
            ) {
                sqlx::raw_sql(rows_in("row", 500..502))
                    .execute(pool)
                    .await
                    .unwrap();
                let mut owner = pool.begin_with($begin).await.unwrap();
                let long = Duration::from_secs(20);
                assert_eq!(
                    ROWS.lock(&mut owner, 500_i64, long).await.unwrap(),
                    Locked::Held
                );
                for wait in [Duration::ZERO, Duration::from_millis(50)] {
                    // Not one that writes from its beginning: in SQLite, that would wait there.
                    let mut other = pool.begin().await.unwrap();
                    assert_eq!(
                        ROWS.lock(&mut other, 500_i64, wait).await.unwrap(),
                        Locked::Busy
                    );
                    if !$one_writer {
                        assert_eq!(
                            ROWS.lock(&mut other, 501_i64, wait).await.unwrap(),
                            Locked::Held
                        );
                    }
                    let found: i64 = sqlx::query_scalar("SELECT count(*) FROM orders")
                        .fetch_one(&mut *other)
                        .await
                        .unwrap();
                    assert!(found > 0);
                    other.commit().await.unwrap();
                }
                let waiting = tokio::spawn({
                    let pool = pool.clone();
                    async move {
                        let mut other: Tx<'_> = pool.begin().await.unwrap();
                        let held = ROWS.lock(&mut other, 500_i64, long).await.unwrap();
                        let none = ROWS.lock(&mut other, -1_i64, long).await.unwrap();
                        other.commit().await.unwrap();
                        (held, none)
                    }
                });
                owner.commit().await.unwrap();
                assert_eq!(waiting.await.unwrap(), (Locked::Held, Locked::NoRow));
            }

            async fn under_a_lock_no_update_is_lost(pool: &$Pool) {
                sqlx::raw_sql(rows_in("row", 600..601))
                    .execute(pool)
                    .await
                    .unwrap();
                crowd(pool, |_, pool| async move {
                    for _ in 0..ROUNDS {
                        let mut tx: Tx<'_> = pool.begin_with($begin).await.unwrap();
                        let held = ROWS
                            .lock(&mut tx, 600_i64, Duration::from_secs(20))
                            .await
                            .unwrap();
                        assert_eq!(held, Locked::Held);
                        let read = "SELECT version FROM orders WHERE id = 600";
                        let read: i32 = sqlx::query_scalar(read).fetch_one(&mut *tx).await.unwrap();
                        let text = AssertSqlSafe(format!(
                            "UPDATE orders SET version = {} WHERE id = 600",
                            read + 1
                        ));
                        sqlx::raw_sql(text).execute(&mut *tx).await.unwrap();
                        tx.commit().await.unwrap();
                    }
                })
                .await;
                let read: i32 = sqlx::query_scalar("SELECT version FROM orders WHERE id = 600")
                    .fetch_one(pool)
                    .await
                    .unwrap();
                assert_eq!(
                    usize::try_from(read).unwrap(),
                    1 + CROWD * usize::try_from(ROUNDS).unwrap()
                );
            }

            async fn take(tx: &mut Tx<'_>, limit: u32) -> Vec<i64> {
                ORDERS.take(tx, "job", limit).await.unwrap()
            }

            async fn workers_that_take_rows_share_them_without_an_overlap(pool: &$Pool) {
                sqlx::raw_sql(rows_in("job", 700..740))
                    .execute(pool)
                    .await
                    .unwrap();
                // A worker that dies: its rows are free again.
                let mut connection = pool.acquire().await.unwrap();
                sqlx::raw_sql($read_committed)
                    .execute(&mut *connection)
                    .await
                    .unwrap();
                let mut dead: Tx<'_> = connection.begin_with($begin).await.unwrap();
                assert_eq!(take(&mut dead, 2).await, [700, 701]);
                if !$one_writer {
                    let mut other = pool.begin_with($begin).await.unwrap();
                    assert_eq!(take(&mut other, 2).await, [702, 703]);
                    other.rollback().await.unwrap();
                }
                drop(dead);
                drop(connection);
                until("its transaction has ended", async || in_use(pool) == 0).await;

                let done = crowd(pool, |_, pool| async move {
                    let mut connection = pool.acquire().await.unwrap();
                    sqlx::raw_sql($read_committed)
                        .execute(&mut *connection)
                        .await
                        .unwrap();
                    let mut done = Vec::new();
                    // The last rows may be another worker's, which ends its work.
                    for _ in 0..40 {
                        let mut tx: Tx<'_> = connection.begin_with($begin).await.unwrap();
                        for job in take(&mut tx, 3).await {
                            let made = ORDERS
                                .advance(&mut tx, job, &["job"], "done")
                                .await
                                .unwrap();
                            assert_eq!(made, Transition::Made);
                            done.push(job);
                        }
                        tx.commit().await.unwrap();
                    }
                    done
                })
                .await;
                let mut done: Vec<i64> = done.into_iter().flatten().collect();
                done.sort_unstable();
                assert_eq!(done, (700..740).collect::<Vec<_>>());
            }

            async fn an_invalid_name_is_an_error_and_no_statement(pool: &$Pool) {
                let mut tx = pool.begin_with($begin).await.unwrap();
                for invalid in [
                    States::new("orders; DROP TABLE orders", "id", "state"),
                    States::new("orders", "id = 1 OR id", "state"),
                    States::new("orders", "id", "state\""),
                ] {
                    let error = invalid
                        .advance(&mut tx, 1_i64, &["paid"], "shipped")
                        .await
                        .unwrap_err();
                    assert!(
                        error
                            .to_string()
                            .contains("cannot name a table or a column"),
                        "{error}"
                    );
                }
                tx.rollback().await.unwrap();
            }
        }
    };
}

scenarios!(on_postgres, Postgres, PgPool, "BEGIN", "SELECT 1", false);
// Gaps that REPEATABLE READ locks would let workers that take rows deadlock.
scenarios!(
    on_mariadb,
    MySql,
    MySqlPool,
    "BEGIN",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    false
);
scenarios!(
    on_sqlite,
    Sqlite,
    SqlitePool,
    "BEGIN IMMEDIATE",
    "SELECT 1",
    true
);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_tell_apart_what_no_row_changed_does_not_on_postgres() {
    on_postgres::all(&postgres().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_tell_apart_what_no_row_changed_does_not_on_mariadb() {
    on_mariadb::all(&mariadb().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_tell_apart_what_no_row_changed_does_not_on_sqlite() {
    on_sqlite::all(&sqlite().await).await;
}
