//! Tables of MySQL and MariaDB that somebody locks: what waits for them is logged as slow, and must
//! have no key and no outcome in its text.

use std::time::Duration;

use idem_sqlx::MySqlStore;
use idem_sqlx::sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use idem_sqlx::sqlx::{self, ConnectOptions as _, Executor as _};
use idem_testkit::{MariaDbServer, MySqlServer};

use crate::failed::Failed;
use crate::mysql::{Statements, hex};
use crate::observing::ask_each_thread;
use crate::pools::mysql_at;
use crate::{LONG, runtime, until};

const HELD: Duration = Duration::from_millis(300);

async fn what_waits_for_a_table_is_logged_without_key_and_outcome(url: &str) {
    let (pool, store) = mysql_at(url).await;
    let options: MySqlConnectOptions = url.parse().unwrap();
    let options = options.log_statements("off".parse().unwrap());
    let options = options.log_slow_statements("warn".parse().unwrap(), HELD / 2);
    let logging = MySqlPoolOptions::new().max_connections(2);
    let logging = logging.connect_with(options).await.unwrap();
    let logged = Statements::default();
    ask_each_thread();
    let _logging = tracing::subscriber::set_default(logged.clone());

    let idempotency = runtime(store);
    let other = runtime(MySqlStore::builder(pool.clone()).time_limit(LONG).build());
    let locker = tokio::sync::Mutex::new(pool.acquire().await.unwrap());
    let is_locked = async |statement: &'static str| {
        let mut locker = locker.lock().await;
        locker.execute(sqlx::raw_sql(statement)).await.unwrap();
    };
    // The lock is held for a while from when a statement waits for it.
    let unlocked = async || {
        let waiting = "SELECT count(*) FROM information_schema.processlist \
            WHERE state LIKE 'Waiting for %lock'";
        until("a statement waits for the lock", async || {
            let waiting = sqlx::query_scalar::<_, i64>(waiting);
            waiting.fetch_one(&pool).await.unwrap() > 0
        })
        .await;
        tokio::time::sleep(HELD).await;
        is_locked("UNLOCK TABLES").await;
    };
    let body = async || Ok::<_, Failed>("secret".to_owned());
    let operation = |key: &str| idempotency.operation("tx").key(key).wait(LONG);
    // With the habit to find nothing, and with records at keys of this process.
    for first in 0..10 {
        let key = first.to_string();
        let call = operation(&key).transaction(&logging, async |_| body().await);
        call.await.unwrap();
    }
    let call = other.operation("tx").key("private, of another one");
    call.transaction(&pool, async |_| body().await)
        .await
        .unwrap();
    let call = operation("private, known").transaction(&logging, async |_| body().await);
    call.await.unwrap();
    for lock in [
        "LOCK TABLES idem_records READ",
        "LOCK TABLES idem_records WRITE",
        "FLUSH TABLES WITH READ LOCK",
    ] {
        let new = format!("private, {lock}");
        for key in [new.as_str(), "private, of another one", "private, known"] {
            is_locked(lock).await;
            let called = async {
                let call = operation(key).transaction(&logging, async |_| body().await);
                call.await.unwrap();
                let key = format!("{key}, within, {lock}");
                let mut tx = logging.begin().await.unwrap();
                let call = operation(&key).run_in(&mut tx, async |_| body().await);
                call.await.unwrap();
                tx.commit().await.unwrap();
            };
            tokio::join!(called, unlocked());
        }
    }
    // Between the claim and the commit.
    let key = "private, committed";
    let mut tx = logging.begin().await.unwrap();
    let call = operation(key).run_in(&mut tx, async |_| {
        is_locked("FLUSH TABLES WITH READ LOCK").await;
        body().await
    });
    let (called, ()) = tokio::join!(call, unlocked());
    called.unwrap();
    tx.commit().await.unwrap();

    let text = logged.0.lock().unwrap().clone();
    assert!(text.matches("slow statement").count() >= 6, "{text}");
    for private in ["private", "secret"] {
        assert!(
            !text.contains(private) && !text.contains(&hex(private)),
            "{private}: {text}"
        );
    }
}

// Only what waits for a lock may be slow.
mod quiet {
    use super::*;

    // The log is that of this thread, and the lock that of the whole server.
    #[tokio::test]
    async fn what_waits_for_a_table_of_mariadb_is_logged_without_key_and_outcome() {
        let server = MariaDbServer::start().await.unwrap();
        what_waits_for_a_table_is_logged_without_key_and_outcome(&server.url()).await;
    }

    #[tokio::test]
    async fn what_waits_for_a_table_of_real_mysql_is_logged_without_key_and_outcome() {
        let server = MySqlServer::start().await.unwrap();
        what_waits_for_a_table_is_logged_without_key_and_outcome(&server.url()).await;
    }
}
