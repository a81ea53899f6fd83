//! Limits for statements and for locks that the application's connections have, or lack.

use std::time::Duration;

use idem_core::{Error, Idempotency, InFlight};
use idem_sqlx::sqlx::mysql::MySqlPoolOptions;
use idem_sqlx::sqlx::postgres::PgPoolOptions;
use idem_sqlx::sqlx::{self, Executor as _};
use idem_sqlx::{MySqlStore, PostgresStore};
use idem_testkit::{MariaDbServer, MySqlServer, PostgresServer};

use crate::failed::Failed;
use crate::{LONG, Server as _, connected, order, refusal, runtime, until};

/// Longer than the connections let a statement take.
const HELD: Duration = Duration::from_secs(7);

/// Of a step that is to be given up.
const LIMIT: Duration = Duration::from_secs(2);

macro_rules! over {
    (
        $module:ident, $Server:ty, $Store:ident, $PoolOptions:ident, $limit:literal, $busy:literal
    ) => {
        mod $module {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_call_in_a_transaction_waits_for_longer_than_its_connection_lets_statements_take()
             {
                let server = <$Server>::empty().await;
                let limited = $PoolOptions::new().after_connect(|on, _| {
                    Box::pin(async move { on.execute(sqlx::raw_sql($limit)).await.map(drop) })
                });
                let pool = limited.connect(&server.url()).await.unwrap();
                // Without the limit, because it may take a busy machine longer.
                server.store().await;
                let idempotency = Idempotency::new($Store::builder(pool.clone()).time_limit(LONG).build());
                let operation = |key| idempotency.operation("orders").key(key).wait(LONG);
                for key in ["one", "two"] {
                    let mut owner = pool.begin().await.unwrap();
                    operation(key)
                        .run_in(&mut owner, async |_| Ok::<_, Failed>(1))
                        .await
                        .unwrap();
                    let mut gives_up = pool.begin().await.unwrap();
                    let soon = operation(key)
                        .wait(HELD / 2)
                        .run_in(&mut gives_up, async |_| Ok::<_, Failed>(2));
                    let error = soon.await.unwrap_err();
                    assert!(
                        matches!(error, Failed::Idem(Error::InFlight { .. })),
                        "{error}"
                    );
                    // The transaction goes on.
                    operation("other")
                        .run_in(&mut gives_up, async |_| Ok::<_, Failed>(3))
                        .await
                        .unwrap();
                    gives_up.rollback().await.unwrap();
                    let ends = async {
                        tokio::time::sleep(HELD).await;
                        if key == "one" {
                            owner.commit().await
                        } else {
                            owner.rollback().await
                        }
                    };
                    let callers = async {
                        let mut tx = pool.begin().await.unwrap();
                        let outcome = operation(key)
                            .run_in(&mut tx, async |_| Ok::<_, Failed>(4))
                            .await;
                        tx.commit().await.unwrap();
                        outcome
                    };
                    let librarys = operation(key).transaction(&pool, async |_| Ok::<_, Failed>(4));
                    let (ended, first, second) = tokio::join!(ends, callers, librarys);
                    ended.unwrap();
                    let expected = if key == "one" { 1 } else { 4 };
                    for outcome in [first, second] {
                        assert_eq!(outcome.unwrap().into_inner(), expected, "{key}");
                    }
                }
            }

            /// The server does not notice that the caller has gone while a statement waits for a
            /// lock.
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_claim_that_was_given_up_is_not_carried_out_when_its_lock_is_free() {
                let server = <$Server>::empty().await;
                let pool = $PoolOptions::new().connect(&server.url()).await.unwrap();
                let store = $Store::builder(pool.clone()).time_limit(LIMIT).build();
                crate::connected(async || store.migrate().await).await;
                let idempotency = runtime(store.clone());
                for key in ["new", "released"] {
                    if key == "released" {
                        let released = idempotency.operation("orders").key(key);
                        released
                            .run(async || Err::<u32, _>(Failed::Down))
                            .await
                            .unwrap_err();
                    }
                    let mut owner = pool.begin().await.unwrap();
                    let operation = || idempotency.operation("orders").key(key);
                    operation()
                        .run_in(&mut owner, async |_| Ok::<_, Failed>(1))
                        .await
                        .unwrap();
                    assert!(order(&idempotency, key, 2).await.is_err());
                    // A caller that has gone is noticed as soon as that.
                    let busy = async || {
                        sqlx::query_scalar::<_, i64>($busy)
                            .fetch_one(&pool)
                            .await
                            .unwrap()
                    };
                    until("the server has given it up", async || busy().await == 0).await;
                    owner.rollback().await.unwrap();
                    let free = operation()
                        .in_flight(InFlight::Reject)
                        .run(async || Ok::<_, Error>(3))
                        .await;
                    assert_eq!(free.unwrap().into_inner(), 3, "{key}");
                }
            }
        }
    };
}

over!(
    on_postgres,
    PostgresServer,
    PostgresStore,
    PgPoolOptions,
    "SET statement_timeout = '3s'",
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type \
     = 'Lock'"
);
over!(
    on_mariadb,
    MariaDbServer,
    MySqlStore,
    MySqlPoolOptions,
    "SET SESSION max_statement_time = 3",
    "SELECT count(*) FROM information_schema.processlist WHERE info LIKE '%idem_records%' AND db = \
     DATABASE() AND id <> CONNECTION_ID()"
);

over!(
    real_mysql,
    MySqlServer,
    MySqlStore,
    MySqlPoolOptions,
    "SET SESSION max_execution_time = 3000",
    "SELECT count(*) FROM information_schema.processlist WHERE info LIKE '%idem_records%' AND db = \
     DATABASE() AND id <> CONNECTION_ID()"
);

/// A claim writes its row, and then may not read it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_may_write_and_not_read_leaves_nothing() {
    let database = MariaDbServer::empty().await;
    let store = database.store().await;
    database
        .execute(
            "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'wordpass'; \
             GRANT INSERT, UPDATE, DELETE ON idem_records TO app@'127.0.0.1'; \
             GRANT SELECT (operation) ON idem_records TO app@'127.0.0.1'",
        )
        .await;
    let url = database.url().replace("idem:", "app:");
    let pool = MySqlPoolOptions::new().connect(&url).await.unwrap();
    for app in [
        connected(async || MySqlStore::connect(&url).await).await,
        MySqlStore::builder(pool).time_limit(LONG).build(),
    ] {
        refusal(&runtime(app), "k", "needs SELECT").await;
        assert!(
            idem_core::Store::inspect(&store, &crate::id("k"))
                .await
                .unwrap()
                .is_none()
        );
    }
}
