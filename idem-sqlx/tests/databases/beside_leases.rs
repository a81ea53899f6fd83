//! A call in a transaction whose key a call with a lease owns: it does not keep that owner from
//! renewing and committing.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem_core::{Error, Idempotency};
use idem_sqlx::sqlx::{MySqlTransaction, PgTransaction, SqliteTransaction};
use tokio::sync::oneshot;

use crate::failed::Failed;
use crate::pools::{mariadb, postgres, sqlite};
use crate::until;

const LEASE: Duration = Duration::from_secs(6);
const LONG: Duration = Duration::from_secs(20);

/// Waits until the lease of the key is renewed.
async fn renewed(idempotency: &Idempotency, operation: &str) {
    let mut last = Duration::MAX;
    until("the lease is renewed", async || {
        let found = idempotency.operation(operation).key("k").inspect().await;
        let left = found.unwrap().unwrap().lease_left.unwrap();
        let is_longer = left > last;
        last = left;
        is_longer
    })
    .await;
}

macro_rules! over {
    ($module:ident, $setup:path, $Transaction:ident, $begin:literal, $waits:literal) => {
        mod $module {
            use super::*;

            #[tokio::test]
            async fn p11_a_transaction_of_the_librarys_waits_for_a_lease_outside_of_it() {
                let (pool, store) = $setup().await;
                let idempotency = Idempotency::new(store);
                let runs = AtomicU32::new(0);
                let operation = || {
                    idempotency
                        .operation("beside.library")
                        .key("k")
                        .lease(LEASE)
                        .wait(LONG)
                };
                let (begun, has_begun) = oneshot::channel();
                let owner = operation().run(async || {
                    runs.fetch_add(1, Ordering::SeqCst);
                    let _ = begun.send(());
                    renewed(&idempotency, "beside.library").await;
                    Ok::<_, Failed>(1_u32)
                });
                let duplicate = async {
                    has_begun.await.unwrap();
                    let body = async |_: &mut $Transaction<'_>| {
                        runs.fetch_add(1, Ordering::SeqCst);
                        Ok::<_, Failed>(2_u32)
                    };
                    operation().transaction(&pool, body).await
                };
                let (owner, duplicate) = tokio::join!(owner, duplicate);
                assert_eq!(
                    (owner.unwrap().into_inner(), duplicate.unwrap().into_inner()),
                    (1, 1)
                );
                assert_eq!(runs.load(Ordering::SeqCst), 1);
            }

            #[tokio::test]
            async fn p4_a_transaction_of_the_librarys_waits_no_longer_than_it_was_told() {
                let (pool, store) = $setup().await;
                let idempotency = Idempotency::new(store);
                let operation = || idempotency.operation("beside.short").key("k").lease(LONG);
                let (begun, has_begun) = oneshot::channel();
                let (rejected, is_rejected) = oneshot::channel::<()>();
                let owner = operation().run(async || {
                    let _ = begun.send(());
                    let _ = is_rejected.await;
                    Ok::<_, Failed>(1_u32)
                });
                let duplicate = async {
                    has_begun.await.unwrap();
                    let short = operation().wait(LEASE / 4);
                    let body = async |_: &mut $Transaction<'_>| Ok::<_, Failed>(2_u32);
                    let ended = tokio::time::timeout(LONG / 2, short.transaction(&pool, body));
                    let error = ended.await.expect("it ends long before the lease").unwrap_err();
                    drop(rejected);
                    assert!(matches!(error, Failed::Idem(Error::InFlight { .. })), "{error}");
                };
                let (owner, ()) = tokio::join!(owner, duplicate);
                assert_eq!(owner.unwrap().into_inner(), 1);
            }

            #[tokio::test]
            async fn p11_a_callers_transaction_waits_for_a_lease_only_if_its_owner_can_write_meanwhile()
             {
                let (pool, store) = $setup().await;
                let idempotency = Idempotency::new(store);
                let operation = || {
                    idempotency
                        .operation("beside.caller")
                        .key("k")
                        .lease(LEASE)
                        .wait(LONG)
                };
                let (begun, has_begun) = oneshot::channel();
                let (rejected, is_rejected) = oneshot::channel::<()>();
                let owner = operation().run(async || {
                    let _ = begun.send(());
                    if $waits {
                        renewed(&idempotency, "beside.caller").await;
                    } else {
                        let _ = is_rejected.await;
                    }
                    Ok::<_, Failed>(1_u32)
                });
                let duplicate = async {
                    has_begun.await.unwrap();
                    let mut tx = pool.begin_with($begin).await.unwrap();
                    let ran = operation()
                        .run_in(&mut tx, async |_| Ok::<_, Failed>(2_u32))
                        .await;
                    tx.rollback().await.unwrap();
                    match ran {
                        Ok(outcome) => {
                            assert!($waits && outcome.is_replayed() && outcome.into_inner() == 1)
                        }
                        Err(error) => {
                            assert!(
                                !$waits && matches!(error, Failed::Idem(Error::InFlight { .. })),
                                "{error}"
                            )
                        }
                    }
                    drop(rejected);
                };
                let (owner, ()) = tokio::join!(owner, duplicate);
                assert_eq!(owner.unwrap().into_inner(), 1);
            }
        }
    };
}

over!(on_postgres, postgres, PgTransaction, "BEGIN", true);
over!(on_mariadb, mariadb, MySqlTransaction, "BEGIN", false);
over!(
    on_sqlite,
    sqlite,
    SqliteTransaction,
    "BEGIN IMMEDIATE",
    false
);
