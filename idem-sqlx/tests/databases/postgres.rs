//! Transactions of PostgreSQL alone.

use idem_core::{Error, Idempotency};
use idem_sqlx::PostgresStore;
use idem_sqlx::sqlx::postgres::PgPoolOptions;
use idem_sqlx::sqlx::{self, Postgres, Transaction};
use idem_testkit::{PostgresServer, Proxy};

use crate::TWO_SECONDS;
use crate::failed::Failed;
use crate::own::Database;
use crate::pools::{insert, postgres};

#[tokio::test]
async fn a_commit_that_a_deferred_constraint_refuses_is_an_error_and_nothing_is_recorded() {
    let (pool, store) = postgres().await;
    let idempotency = Idempotency::builder(store).local_cache(100).build();
    let ddl = "CREATE TABLE IF NOT EXISTS deferred (id int PRIMARY KEY, next int REFERENCES \
        deferred DEFERRABLE INITIALLY DEFERRED)";
    sqlx::raw_sql(ddl).execute(&pool).await.unwrap();
    let failed = idempotency
        .operation("tx")
        .key("deferred")
        .transaction(&pool, async |tx| {
            sqlx::query("INSERT INTO deferred VALUES (1, 2)")
                .execute(&mut **tx)
                .await?;
            Ok::<u32, Failed>(1)
        });
    let error = failed.await.unwrap_err();
    assert!(
        matches!(&error, Failed::Idem(error @ Error::Store { .. }) if !error.is_retryable()),
        "{error}"
    );
    assert!(
        idempotency
            .operation("tx")
            .key("deferred")
            .inspect()
            .await
            .unwrap()
            .is_none()
    );
    let outcome = idempotency
        .operation("tx")
        .key("deferred")
        .run(async || Ok::<u32, Error>(5))
        .await
        .unwrap();
    assert!(!outcome.is_replayed());
}

/// An annotated function in the caller's transaction.
#[idem_macros::idempotent(
    key = name,
    name = "tx.annotated",
    transaction = tx,
    crate = "::idem_core"
)]
async fn annotated(tx: &mut Transaction<'_, Postgres>, name: &str) -> Result<u32, Failed> {
    sqlx::raw_sql(insert(name)).execute(&mut **tx).await?;
    Ok(7)
}

#[tokio::test]
async fn an_annotated_function_records_in_the_transaction_and_can_be_spawned() {
    let (pool, store) = postgres().await;
    let idempotency = Idempotency::new(store);
    for _ in 0..2 {
        let pool = pool.clone();
        let idempotency = idempotency.clone();
        let called = tokio::spawn(idem_core::scope(idempotency, async move {
            let mut tx = pool.begin().await?;
            let number = annotated(&mut tx, "annotated").await?;
            tx.commit().await?;
            Ok::<_, Failed>(number)
        }));
        assert_eq!(called.await.unwrap().unwrap(), 7);
    }
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM business WHERE name = 'annotated'")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(rows, 1);
}

#[tokio::test]
async fn a_transaction_waits_for_a_slow_connection_as_its_store_says() {
    let database = Database::<PostgresServer>::create().await;
    let store = database.store().await;
    let address = format!("127.0.0.1:{}", database.port());
    let proxy = Proxy::start_opaque(&address).await.unwrap();
    // Longer than a store of the usual limit waits.
    proxy.delay_connections(TWO_SECONDS * 5 / 4);
    let url = database.url_through(proxy.address().port());
    let pool = PgPoolOptions::new().connect_lazy(&url).unwrap();
    let idempotency = Idempotency::new(store);
    let called = idempotency.operation("tx").key("slow");
    let called = called.transaction(&pool, async |_| Ok::<u32, Error>(7));
    assert_eq!(called.await.unwrap().into_inner(), 7);
}

#[tokio::test]
async fn a_transaction_waits_for_its_turn_at_a_busy_pool_longer_than_for_a_connection() {
    let database = Database::<PostgresServer>::create().await;
    let idempotency = Idempotency::new(database.own_store().await);
    let pool = PgPoolOptions::new().max_connections(1);
    let pool = pool.connect(&database.url()).await.unwrap();
    let held = pool.acquire().await.unwrap();
    let called = idempotency.operation("tx").key("busy");
    let called = called.transaction(&pool, async |_| Ok::<u32, Error>(7));
    let returns = async {
        tokio::time::sleep(TWO_SECONDS * 5 / 4).await;
        drop(held);
    };
    let (called, ()) = tokio::join!(called, returns);
    assert_eq!(called.unwrap().into_inner(), 7);
}

mod quiet {
    use super::*;

    /// The connection that is being opened takes up the pool, which then looks as if it were in
    /// use.
    #[tokio::test]
    async fn an_unreachable_database_is_an_error_in_time_for_a_pool_of_one_connection_too() {
        // Connections are made, and no message is sent.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("postgres://idem@{}/shop", silent.local_addr().unwrap());
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect_lazy(&url)
            .unwrap();
        let idempotency = Idempotency::new(PostgresStore::new(pool.clone()));
        let called = idempotency
            .operation("tx")
            .key("unreachable")
            .transaction(&pool, async |_| Ok::<u32, Error>(1));
        let error = tokio::time::timeout(TWO_SECONDS * 2, called)
            .await
            .expect("it waits as for a busy pool")
            .unwrap_err();
        assert!(
            error.is_retryable() && error.to_string().contains("check that the database runs"),
            "{error}"
        );
    }
}
