//! The suite where transactions are serializable, on MySQL itself and on sqlx 0.8.

use idem_testkit::{MariaDbServer, MySqlServer, PostgresServer};

use super::{OnMySql, OnPostgres, conforms};
use crate::Server as _;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_conforms_where_transactions_are_serializable() {
    let database = PostgresServer::empty().await;
    database
        .set("default_transaction_isolation = 'serializable'")
        .await;
    let subject = OnPostgres::at(&database.url()).await;
    conforms(move || subject.clone()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_conforms_where_transactions_are_serializable() {
    let server = MariaDbServer::start_with(&["--transaction-isolation=SERIALIZABLE"])
        .await
        .unwrap();
    let subject = OnMySql::at(&server.url()).await;
    conforms(move || subject.clone()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_mysql_conforms() {
    let subject = OnMySql::at(&MySqlServer::empty().await.url()).await;
    conforms(move || subject.clone()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_mysql_conforms_where_transactions_are_serializable() {
    let server = MySqlServer::start_with(&["--transaction-isolation=SERIALIZABLE"])
        .await
        .unwrap();
    let subject = OnMySql::at(&server.url()).await;
    conforms(move || subject.clone()).await;
}

#[cfg(feature = "sqlx-08")]
mod on_sqlx_0_8 {
    use std::sync::Arc;

    use idem_sqlx::v08::sqlx::mysql::MySqlPoolOptions;
    use idem_sqlx::v08::sqlx::postgres::PgPoolOptions;
    use idem_sqlx::v08::{MySqlStore, PostgresStore, SqliteStore};
    use idem_testkit::{BoxError, Connections, MariaDbServer, PostgresServer, suite};

    use crate::Server as _;
    use crate::conformance::{CONNECTIONS, LIMIT, Pools, TURN};

    macro_rules! conforms {
        ($test:ident, $Server:ty, $Store:ident, $PoolOptions:ident) => {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let url = <$Server>::empty().await.url();
                let pool = || {
                    $PoolOptions::new()
                        .max_connections(CONNECTIONS)
                        .test_before_acquire(false)
                        .connect(&url)
                };
                let both = [pool().await.unwrap(), pool().await.unwrap()];
                crate::connected(async || $Store::new(both[0].clone()).migrate().await).await;
                let pools = Arc::new(Pools::of(both));
                let connect = move || {
                    let pool = pools.next().clone();
                    async move { Ok::<_, BoxError>($Store::builder(pool).time_limit(LIMIT).build()) }
                };
                let _turn = TURN.lock().await;
                suite::run_all(move || Connections::by(connect.clone()))
                    .await
                    .assert_passed();
            }
        };
    }

    conforms!(
        postgres_conforms,
        PostgresServer,
        PostgresStore,
        PgPoolOptions
    );
    conforms!(
        mariadb_conforms,
        MariaDbServer,
        MySqlStore,
        MySqlPoolOptions
    );

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_record_of_one_version_of_sqlx_is_one_of_the_other() {
        let dir = crate::own::temporary();
        let url = format!("sqlite://{}/idem.db", dir.path().display());
        let old = idem_core::Idempotency::new(SqliteStore::connect(&url).await.unwrap());
        let new = idem_core::Idempotency::new(idem_sqlx::SqliteStore::connect(&url).await.unwrap());
        for (number, idempotency) in [(1, &old), (2, &new), (3, &old)] {
            let call = idempotency
                .operation("orders")
                .key("k")
                .run(async || Ok::<_, idem_core::Error>(number));
            assert_eq!(call.await.unwrap().into_inner(), 1);
        }
    }
}
