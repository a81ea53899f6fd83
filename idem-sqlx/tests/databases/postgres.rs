//! Transactions of PostgreSQL alone.

use std::time::Duration;

use idem_core::{Error, Idempotency};
use idem_sqlx::PostgresStore;
use idem_sqlx::sqlx::postgres::PgPoolOptions;
use idem_sqlx::sqlx::{self, Postgres, Transaction};
use idem_testkit::{PostgresServer, Proxy};

use crate::failed::Failed;
use crate::own::Database;
use crate::pools::{insert, postgres};
use crate::{LONG, TWO_SECONDS, until};

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

/// Longer than a transaction waits for a connection, over a store of the usual limit.
const SLOW: Duration = Duration::from_millis(2500);

#[tokio::test]
async fn a_transaction_waits_for_a_slow_connection_as_its_store_says() {
    let database = Database::<PostgresServer>::create().await;
    let store = database.store().await;
    let address = format!("127.0.0.1:{}", database.port());
    let proxy = Proxy::start_opaque(&address).await.unwrap();
    proxy.delay_connections(SLOW);
    let url = database.url_through(proxy.address().port());
    let pool = PgPoolOptions::new().connect_lazy(&url).unwrap();
    let idempotency = Idempotency::new(store);
    let called = idempotency.operation("tx").key("slow");
    let called = called.transaction(&pool, async |_| Ok::<u32, Error>(7));
    assert_eq!(called.await.unwrap().into_inner(), 7);
}

/// The pool asks a connection that was idle whether it is alive, and sets no limit.
#[tokio::test]
async fn a_transaction_does_not_wait_longer_for_a_silent_connection_than_for_a_new_one() {
    let database = Database::<PostgresServer>::create().await;
    let idempotency = Idempotency::new(database.own_store().await);
    let address = format!("127.0.0.1:{}", database.port());
    let proxy = Proxy::start_opaque(&address).await.unwrap();
    let url = database.url_through(proxy.address().port());
    let pool = PgPoolOptions::new().max_connections(1);
    let pool = pool.connect(&url).await.unwrap();
    until("it is idle", async || pool.num_idle() == 1).await;
    proxy.delay(LONG);
    let called = idempotency.operation("tx").key("silent");
    let called = called.transaction(&pool, async |_| Ok::<u32, Error>(7));
    let error = called.await.unwrap_err().to_string();
    assert!(error.contains(" within 1.8s"), "{error}");
}

/// A connection that was returned, and that nobody has taken yet whose turn it is, is idle. It is no
/// sign that the database is away.
#[tokio::test]
async fn a_transaction_waits_for_its_turn_at_a_busy_pool_longer_than_for_a_connection() {
    let database = Database::<PostgresServer>::create().await;
    let idempotency = Idempotency::new(database.own_store().await);
    let pool = PgPoolOptions::new().max_connections(1);
    let pool = pool.connect(&database.url()).await.unwrap();
    for returned in ["before", "meanwhile"] {
        let held = pool.acquire().await.unwrap();
        let mut has_turn = Box::pin(pool.acquire());
        // Polled once, it stands in the queue, and is left alone there.
        let queued = tokio::time::timeout(Duration::ZERO, has_turn.as_mut());
        assert!(queued.await.is_err());
        let mut held = Some(held);
        let mut returns = async || {
            drop(held.take());
            until("it is idle", async || pool.num_idle() == 1).await;
        };
        if returned == "before" {
            returns().await;
        }
        let called = idempotency.operation("tx").key(returned);
        let called = called.transaction(&pool, async |_| Ok::<u32, Error>(7));
        let others = async {
            tokio::time::sleep(SLOW / 10).await;
            returns().await;
            tokio::time::sleep(SLOW).await;
            drop(has_turn);
        };
        let (called, ()) = tokio::join!(called, others);
        assert_eq!(called.unwrap().into_inner(), 7, "{returned}");
    }
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
