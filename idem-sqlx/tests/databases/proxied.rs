//! PostgreSQL behind PgBouncer, and MySQL's default login.

use std::time::{Duration, Instant};

use idem_core::StoreErrorKind;
use idem_sqlx::sqlx::postgres::{PgPool, PgPoolOptions};
use idem_sqlx::{MySqlStore, PostgresStore};
use idem_testkit::{MySqlServer, PgBouncerServer, PostgresServer};

use crate::waking::answered_after;
use crate::{Server as _, TWO_SECONDS, connected, order, runtime};

/// PgBouncer.
mod in_ci {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_proxy_that_pools_sessions_carries_everything() {
        let server = PostgresServer::start().await.unwrap();
        let proxy = PgBouncerServer::start_with(&server, &["pool_mode = session"])
            .await
            .unwrap();
        let store = connected(async || PostgresStore::connect(proxy.url()).await).await;
        crate::connected(async || store.migrate().await).await;
        let idempotency = runtime(store);
        assert_eq!(order(&idempotency, "k", 1).await.unwrap().into_inner(), 1);
        assert_eq!(order(&idempotency, "k", 2).await.unwrap().into_inner(), 1);
    }

    mod quiet {
        use super::*;

        /// Each transaction may be on another connection of the server, and PgBouncer before 1.21
        /// keeps no track of prepared statements.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_proxy_that_mixes_up_prepared_statements_is_refused_with_advice() {
            let server = PostgresServer::start().await.unwrap();
            server.own_store().await;
            let ignores = ["ignore_startup_parameters = extra_float_digits,options"];
            for settings in [&[][..], &ignores[..]] {
                let proxy = PgBouncerServer::start_with(&server, settings)
                    .await
                    .unwrap();
                let begun = Instant::now();
                let error = PostgresStore::connect(proxy.url()).await.unwrap_err();
                assert!(begun.elapsed() < TWO_SECONDS, "{:?}", begun.elapsed());
                assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
                assert!(
                    error.to_string().contains("`max_prepared_statements`"),
                    "{error}"
                );
            }
            let settings = ["ignore_startup_parameters = extra_float_digits"];
            let proxy = PgBouncerServer::start_with(&server, &settings)
                .await
                .unwrap();
            let pool = PgPool::connect(&proxy.url()).await.unwrap();
            let idempotency = runtime(PostgresStore::new(pool));
            let calls = (0..20).map(|number| {
                let idempotency = idempotency.clone();
                tokio::spawn(async move { order(&idempotency, &number.to_string(), number).await })
            });
            let mut refused = 0;
            for call in calls.collect::<Vec<_>>() {
                if let Err(error) = call.await.unwrap() {
                    assert!(
                        error.to_string().contains("`max_prepared_statements`"),
                        "{error}"
                    );
                    refused += 1;
                }
            }
            assert!(refused > 0, "no statement was mixed up");
        }

        /// Its answer to `LISTEN` says nothing: no message comes.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_waiter_behind_a_proxy_without_messages_polls() {
            let server = PostgresServer::start().await.unwrap();
            let owner = runtime(server.own_store().await);
            // All clients are on one connection of the server, so one of them may prepare
            // statements.
            let settings = [
                "ignore_startup_parameters = extra_float_digits",
                "default_pool_size = 1",
            ];
            let proxy = PgBouncerServer::start_with(&server, &settings)
                .await
                .unwrap();
            let pool = PgPoolOptions::new()
                .max_connections(1)
                .connect(&proxy.url())
                .await
                .unwrap();
            let waiter = runtime(PostgresStore::new(pool));
            for key in ["one", "two", "three"] {
                // Soon after the look that a waiter takes which trusts in messages.
                let took = answered_after(&owner, &waiter, key, Duration::from_millis(1150)).await;
                assert!(took < Duration::from_millis(600), "{key}: {took:?}");
            }
        }
    }
}

/// MySQL wants the password encrypted, by TLS or by RSA.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_mysql_takes_a_password_without_tls() {
    let database = MySqlServer::empty().await;
    database.store().await;
    let user = "CREATE USER app@'127.0.0.1' IDENTIFIED WITH caching_sha2_password BY 'wordpass'; \
                GRANT ALL ON * TO app@'127.0.0.1'";
    database.execute(user).await;
    let url = database.url().replace("idem@", "app:wordpass@") + "?ssl-mode=DISABLED";
    let store = connected(async || MySqlStore::connect(&url).await).await;
    order(&runtime(store), "k", 1).await.unwrap();
}
