//! Outcomes that a transaction of the body records, and what the body does after its commit.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem_core::{
    Begin, Error, ErrorAction, Idempotency, Lookup, Outcome, RecordState, Retry, UnkeptAction,
    current,
};
use idem_sqlx::sqlx::{self, AssertSqlSafe, SqliteTransaction};
use idem_sqlx::{MySqlStore, PostgresStore, SqliteStore};
use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};

use crate::LONG;
use crate::failed::{Failed, action};
use crate::observing::Log;
use crate::pools::{insert, mariadb, postgres, rows, sqlite};

/// A third of it is soon over, and a busy machine renews it in time.
const LEASE: Duration = Duration::from_secs(5);

macro_rules! over {
    ($module:ident, $setup:path, $Store:ident, $begin:literal) => {
        mod $module {
            use super::*;

            type Pool = sqlx::Pool<<$Store as Db>::Of>;

            /// Side by side: most of them wait for a lease.
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn an_outcome_that_a_transaction_records_ends_the_lease_and_nothing_else() {
                let (pool, store) = $setup().await;
                let idempotency = Idempotency::new(store);
                tokio::join!(
                    p3_a_body_goes_on_after_the_transaction_that_recorded_its_outcome(&pool, &idempotency),
                    a_lease_whose_outcome_a_transaction_recorded_is_never_lost(&pool, &idempotency),
                    p1_a_body_whose_recording_transaction_was_rolled_back_is_stopped_for_another_owner(
                        &pool,
                        &idempotency
                    ),
                    an_observing_call_that_is_not_the_owner_any_more_keeps_its_transaction(&pool, &idempotency),
                    p6_an_error_after_a_step_that_failed_is_not_kept(&pool, &idempotency),
                    p2_a_body_whose_outcome_a_transaction_recorded_is_not_retried(&pool, &idempotency),
                    an_outcome_that_the_body_omits_is_not_recorded_by_its_transaction_either(&pool, &idempotency),
                );
            }

            /// As after a pause that was longer than the lease: another process owns the key.
            async fn taken_over(pool: &Pool, operation: &'static str) {
                let forget = format!("DELETE FROM idem_records WHERE operation = '{operation}'");
                sqlx::raw_sql(AssertSqlSafe(forget))
                    .execute(pool)
                    .await
                    .unwrap();
                let other = Idempotency::new($Store::builder(pool.clone()).time_limit(LONG).build());
                let ran = other
                    .operation(operation)
                    .key("k")
                    .run(async || Ok::<u32, Failed>(2))
                    .await;
                assert!(!ran.unwrap().is_replayed());
            }

            async fn p3_a_body_goes_on_after_the_transaction_that_recorded_its_outcome(
                pool: &Pool,
                idempotency: &Idempotency,
            ) {
                let operation = || {
                    idempotency
                        .operation("recorded")
                        .key("goes on")
                        .lease(LEASE)
                };
                let (owns, is_owned) = tokio::sync::oneshot::channel();
                let (joined, goes_on) = tokio::sync::oneshot::channel();
                let (answered, ends) = tokio::sync::oneshot::channel();
                let ran = operation().run(async || {
                    owns.send(()).unwrap();
                    goes_on.await.unwrap();
                    let mut tx = pool.begin_with($begin).await?;
                    sqlx::raw_sql(insert("goes on")).execute(&mut *tx).await?;
                    current().unwrap().commit_in(&mut tx, &1_u32).await?;
                    tx.commit().await?;
                    // Say, a mail that is sent. Renewals come and go meanwhile.
                    tokio::time::sleep(LEASE * 2).await;
                    ends.await.unwrap();
                    Ok::<_, Failed>(1_u32)
                });
                // They do not wait for the body, which has an outcome: neither who came before its
                // commit, nor who comes after it.
                let duplicates = async {
                    is_owned.await.unwrap();
                    let mut earlier =
                        pin!(operation().wait(LONG * 2).run(async || Ok::<u32, Failed>(2)));
                    tokio::select! {
                        biased;
                        earlier = &mut earlier => panic!("there is an owner: {earlier:?}"),
                        () = std::future::ready(()) => joined.send(()).unwrap(),
                    }
                    let earlier = tokio::time::timeout(LONG, earlier)
                        .await
                        .expect("it waits for the body");
                    assert_eq!(earlier.unwrap().into_inner(), 1);
                    let later = operation()
                        .wait(LONG)
                        .run(async || Ok::<u32, Failed>(2))
                        .await;
                    answered.send(()).unwrap();
                    later
                };
                let (ran, duplicate) = tokio::join!(ran, duplicates);
                let ran = ran.unwrap();
                assert_eq!((ran.is_replayed(), ran.into_inner()), (false, 1));
                assert_eq!(duplicate.unwrap().into_inner(), 1);
            }

            async fn a_lease_whose_outcome_a_transaction_recorded_is_never_lost(
                pool: &Pool,
                idempotency: &Idempotency,
            ) {
                let begun = idempotency
                    .operation("recorded")
                    .key("by hand")
                    .lease(LEASE)
                    .begin()
                    .await
                    .unwrap();
                let Begin::Execute(lease) = begun else {
                    panic!("a replay")
                };
                let mut tx = pool.begin_with($begin).await.unwrap();
                lease.commit_in(&mut tx, &1_u32).await.unwrap();
                tx.commit().await.unwrap();
                let lost = tokio::time::timeout(LEASE * 2, lease.lost()).await;
                assert!(lost.is_err(), "its work may go on");
            }

            async fn p1_a_body_whose_recording_transaction_was_rolled_back_is_stopped_for_another_owner(
                pool: &Pool,
                idempotency: &Idempotency,
            ) {
                let operation = || {
                    idempotency
                        .operation("recorded.rolled_back")
                        .key("k")
                        .lease(LEASE)
                };
                let (rolled_back, is_rolled_back) = tokio::sync::oneshot::channel();
                let ran = operation().run(async || {
                    let mut tx = pool.begin_with($begin).await?;
                    current().unwrap().commit_in(&mut tx, &1_u32).await?;
                    tx.rollback().await?;
                    let _ = rolled_back.send(());
                    std::future::pending::<Result<u32, Failed>>().await
                });
                let another = async {
                    is_rolled_back.await.unwrap();
                    taken_over(pool, "recorded.rolled_back").await;
                };
                let (ran, ()) = tokio::join!(tokio::time::timeout(LONG, ran), another);
                let lost = ran.expect("it is stopped").unwrap_err();
                assert!(
                    matches!(lost, Failed::Idem(Error::LeaseLost { .. })),
                    "{lost}"
                );
            }

            async fn p2_a_body_whose_outcome_a_transaction_recorded_is_not_retried(
                pool: &Pool,
                idempotency: &Idempotency,
            ) {
                for is_committed in [true, false] {
                    let key = if is_committed {
                        "committed"
                    } else {
                        "rolled back"
                    };
                    let operation = || {
                        idempotency
                            .operation("recorded.retried")
                            .key(key)
                            .lease(LONG)
                    };
                    let runs = AtomicU32::new(0);
                    let again = |_: &Failed| {
                        UnkeptAction::Retry(Retry::new(1).backoff(Duration::from_millis(1)))
                    };
                    let ran = operation().errors(again).run(async || {
                        let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
                        let mut tx = pool.begin_with($begin).await?;
                        current().unwrap().commit_in(&mut tx, &run).await?;
                        match (run, is_committed) {
                            (1, false) => tx.rollback().await?,
                            _ => tx.commit().await?,
                        }
                        if run == 1 { Err(Failed::Down) } else { Ok(run) }
                    });
                    let ran = ran.await.map(Outcome::into_inner);
                    let runs = runs.load(Ordering::SeqCst);
                    let Lookup::Outcome(recorded) = operation().lookup::<u32>().await.unwrap()
                    else {
                        panic!("it is recorded")
                    };
                    if is_committed {
                        assert!(matches!(ran, Err(Failed::Down)), "{ran:?}");
                        assert_eq!((runs, recorded), (1, 1));
                    } else {
                        assert_eq!((ran.unwrap(), runs, recorded), (2, 2, 2));
                    }
                }
            }

            async fn an_observing_call_that_is_not_the_owner_any_more_keeps_its_transaction(
                pool: &Pool,
                idempotency: &Idempotency,
            ) {
                let operation = || {
                    idempotency
                        .operation("recorded.observed")
                        .key("k")
                        .lease(LONG)
                        .observe()
                };
                for by_hand in [false, true] {
                    let _ = operation().forget().await;
                    let begun = if by_hand {
                        Some(operation().begin().await.unwrap())
                    } else {
                        None
                    };
                    let work = async || {
                        taken_over(pool, "recorded.observed").await;
                        let mut tx = pool.begin_with($begin).await?;
                        sqlx::raw_sql(insert("observed")).execute(&mut *tx).await?;
                        match &begun {
                            None => current().unwrap().commit_in(&mut tx, &1_u32).await?,
                            Some(Begin::Execute(lease)) => lease.commit_in(&mut tx, &1_u32).await?,
                            Some(Begin::Replay(_)) => panic!("a replay"),
                        }
                        tx.commit().await?;
                        Ok::<_, Failed>(1_u32)
                    };
                    let before = rows(pool, "observed").await;
                    let done = if by_hand {
                        work().await
                    } else {
                        operation().run(work).await.map(Outcome::into_inner)
                    };
                    assert_eq!(done.unwrap(), 1);
                    assert_eq!(
                        rows(pool, "observed").await,
                        before + 1,
                        "by hand: {by_hand}"
                    );
                }
            }

            async fn an_outcome_that_the_body_omits_is_not_recorded_by_its_transaction_either(
                pool: &Pool,
                idempotency: &Idempotency,
            ) {
                let operation = || idempotency.operation("recorded.omitted").key("k");
                let secret = || "secret".to_owned();
                let ran = operation().run(async || {
                    let call = current().unwrap();
                    call.omit_outcome();
                    let mut tx = pool.begin_with($begin).await?;
                    sqlx::raw_sql(insert("omitted")).execute(&mut *tx).await?;
                    call.commit_in(&mut tx, &secret()).await?;
                    tx.commit().await?;
                    Ok::<_, Failed>(secret())
                });
                assert_eq!(ran.await.unwrap().into_inner(), "secret");
                assert_eq!(rows(pool, "omitted").await, 1);
                let found = operation().inspect().await.unwrap().unwrap();
                assert_eq!((found.state, found.outcome), (RecordState::Done, None));
                let duplicate = operation().run(async || Ok::<_, Failed>(secret())).await;
                assert!(
                    matches!(duplicate, Err(Failed::Idem(Error::AlreadyDone { .. }))),
                    "{duplicate:?}"
                );
            }

            async fn p6_an_error_after_a_step_that_failed_is_not_kept(
                pool: &Pool,
                idempotency: &Idempotency,
            ) {
                let inner = || idempotency.operation("recorded.inner").key("k").begin();
                let outer = || idempotency.operation("recorded.outer").key("k");
                for is_released in [true, false] {
                    let Begin::Execute(late) = inner().await.unwrap() else {
                        panic!("a replay")
                    };
                    if is_released {
                        late.release().await.unwrap();
                    }
                    let ran = outer().errors(action).run(async || {
                        if is_released {
                            let mut tx = pool.begin_with($begin).await?;
                            let refused = late.commit_in(&mut tx, &1_u32).await.unwrap_err();
                            assert!(matches!(refused, Error::LeaseLost { .. }), "{refused}");
                        } else {
                            let refused = late.commit_error(&Unwritable, None).await.unwrap_err();
                            assert!(matches!(refused, Error::Config { .. }), "{refused}");
                            late.release().await?;
                        }
                        Err::<u32, _>(Failed::Declined)
                    });
                    assert!(matches!(ran.await, Err(Failed::Declined)));
                    let found = outer().inspect().await.unwrap().unwrap();
                    assert_eq!(found.state, RecordState::Released);
                }
                let mut tx = pool.begin_with($begin).await.unwrap();
                let ran = outer().errors(action).run_in(&mut tx, async |tx| {
                    let refused = current().unwrap().commit_in(tx, &1_u32).await.unwrap_err();
                    assert!(matches!(refused, Error::Config { .. }), "{refused}");
                    Err::<u32, _>(Failed::Declined)
                });
                assert!(matches!(ran.await, Err(Failed::Declined)));
                tx.commit().await.unwrap();
                let found = outer().inspect().await.unwrap().unwrap();
                assert_eq!(found.state, RecordState::Released);
            }
        }
    };
}

/// An error that no codec can write.
#[derive(Debug, Deserialize)]
struct Unwritable;

impl Serialize for Unwritable {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(S::Error::custom("unwritable"))
    }
}

trait Db {
    type Of: sqlx::Database;
}

impl Db for PostgresStore {
    type Of = sqlx::Postgres;
}

impl Db for MySqlStore {
    type Of = sqlx::MySql;
}

impl Db for SqliteStore {
    type Of = sqlx::Sqlite;
}

over!(on_postgres, postgres, PostgresStore, "BEGIN");
over!(on_mariadb, mariadb, MySqlStore, "BEGIN");
over!(on_sqlite, sqlite, SqliteStore, "BEGIN IMMEDIATE");

/// Its duplicates get the outcome, and nobody has taken the key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_after_the_transaction_that_recorded_an_outcome_is_reported_as_that() {
    let log = Log::with("detail");
    let _logging = tracing::subscriber::set_default(log.clone());
    let (pool, store) = sqlite().await;
    let idempotency = Idempotency::new(store);
    let operation = || idempotency.operation("recorded.error").key("k");
    let ran = operation().run(async || {
        let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
        current().unwrap().commit_in(&mut tx, &1_u32).await?;
        tx.commit().await?;
        Err::<u32, _>(Failed::Down)
    });
    assert!(matches!(ran.await, Err(Failed::Down)));
    let decisions = log.decisions();
    let [refused] = &decisions[..] else {
        panic!("{decisions:?}")
    };
    assert!(
        refused.starts_with("release_refused: ") && refused.contains("`commit_in`"),
        "{refused}"
    );
    assert_eq!(
        operation()
            .run(async || Ok::<u32, Failed>(2))
            .await
            .unwrap()
            .into_inner(),
        1
    );
}

/// As the record of a call with a lease: the token stays known for as long as it would be valid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p13_a_token_whose_error_is_kept_for_a_moment_is_done_after_that_and_not_unknown() {
    const MOMENT: Duration = Duration::from_millis(300);
    let (pool, store) = sqlite().await;
    let idempotency = Idempotency::new(store);
    let operation = || {
        idempotency
            .operation("recorded.token")
            .errors(|_: &Failed| ErrorAction::KeepFor(MOMENT))
    };
    for in_transaction in [true, false] {
        let token = idempotency
            .operation("recorded.token")
            .issue("alice", LONG)
            .await
            .unwrap();
        let declined = if in_transaction {
            let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
            let body = async |_: &mut SqliteTransaction<'_>| Err::<u32, _>(Failed::Declined);
            let declined = operation()
                .token(&token, "alice")
                .run_in(&mut tx, body)
                .await;
            tx.commit().await.unwrap();
            declined
        } else {
            operation()
                .token(&token, "alice")
                .run(async || Err::<u32, _>(Failed::Declined))
                .await
        };
        assert!(matches!(declined, Err(Failed::Declined)), "{declined:?}");
        tokio::time::sleep(MOMENT * 2).await;
        let again = operation()
            .token(&token, "alice")
            .run(async || Ok::<u32, Failed>(1))
            .await;
        assert!(
            matches!(again, Err(Failed::Idem(Error::AlreadyDone { .. }))),
            "{in_transaction}: {again:?}"
        );
    }
}
