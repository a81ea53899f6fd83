//! Errors of a database that may be gone the next time: memory, threads, locks, an interruption.

use idem_sqlx::SqliteStore;
use idem_sqlx::sqlx::sqlite::SqlitePoolOptions;
use idem_sqlx::sqlx::{self, AssertSqlSafe};

use crate::failed::Failed;
use crate::pools::{mysql_at, over_both_servers};
use crate::{LONG, order, own, runtime};

over_both_servers! {
    an_error_that_passes_may_be_retried;
}

async fn an_error_that_passes_may_be_retried(url: &str) {
    let (pool, store) = mysql_at(url).await;
    let idempotency = runtime(store);
    for number in [1037, 1038, 1041, 1129, 1135, 1180, 1206, 1637, 9001] {
        let trigger = format!(
            "DROP TRIGGER IF EXISTS refuse; CREATE TRIGGER refuse BEFORE INSERT ON idem_records \
             FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {number}"
        );
        let trigger = sqlx::raw_sql(AssertSqlSafe(trigger));
        trigger.execute(&pool).await.unwrap();
        let error = order(&idempotency, "k", 1).await.unwrap_err();
        assert!(error.is_retryable(), "{number}: {error}");
        let call = idempotency.operation("begun").key("k");
        let call = call.transaction(&pool, async |_| Ok::<u32, Failed>(1));
        match call.await {
            Err(Failed::Idem(error)) => assert!(error.is_retryable(), "{number}: {error}"),
            other => panic!("{number}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn an_interrupted_step_of_sqlite_may_be_retried() {
    let url = format!(
        "sqlite://{}?mode=rwc",
        own::folder().join("idem.db").display()
    );
    let pool = SqlitePoolOptions::new().max_connections(1);
    let pool = pool.connect(&url).await.unwrap();
    let store = SqliteStore::builder(pool.clone()).time_limit(LONG).build();
    crate::connected(async || store.migrate().await).await;
    let idempotency = runtime(store);
    order(&idempotency, "before", 1).await.unwrap();
    for interrupts in [true, false] {
        let mut on = pool.acquire().await.unwrap();
        let mut handle = on.lock_handle().await.unwrap();
        handle.set_progress_handler(1, move || !interrupts);
        drop(handle);
        drop(on);
        match order(&idempotency, "k", 1).await {
            Ok(_) => assert!(!interrupts),
            Err(error) => assert!(interrupts && error.is_retryable(), "{error}"),
        }
    }
}
