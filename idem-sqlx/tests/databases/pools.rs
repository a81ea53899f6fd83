//! Pools of each database, with the tables of the tests.

use std::time::Duration;

use idem_core::Idempotency;
use idem_sqlx::sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use idem_sqlx::sqlx::postgres::{PgPool, PgPoolOptions};
use idem_sqlx::sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
};
use idem_sqlx::sqlx::{self, AssertSqlSafe, Executor as _};
use idem_sqlx::{MySqlStore, PostgresStore, SqliteStore};
use idem_testkit::{MariaDbServer, MySqlServer, PostgresServer};

use crate::server::Server as _;
use crate::{LONG, own};

pub(crate) const CREATE: &str =
    "CREATE TABLE IF NOT EXISTS business (name varchar(100) NOT NULL, number bigint NOT NULL)";

pub(crate) fn insert(name: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!("INSERT INTO business VALUES ('{name}', 1)"))
}

/// A pool of a database with the tests' table.
pub(crate) trait Business {
    /// How many rows have this name.
    async fn rows(&self, name: &str) -> i64;
}

macro_rules! business {
    ($($Pool:ty),+) => {
        $(impl Business for $Pool {
            async fn rows(&self, name: &str) -> i64 {
                let count = format!("SELECT count(*) FROM business WHERE name = '{name}'");
                sqlx::query_scalar(AssertSqlSafe(count))
                    .fetch_one(self)
                    .await
                    .unwrap()
            }
        })+
    };
}
business!(PgPool, MySqlPool, SqlitePool);

pub(crate) async fn rows(pool: &impl Business, name: &str) -> i64 {
    pool.rows(name).await
}

pub(crate) async fn postgres() -> (PgPool, PostgresStore) {
    postgres_at(&PostgresServer::empty().await.url()).await
}

pub(crate) async fn postgres_at(url: &str) -> (PgPool, PostgresStore) {
    let pool = PgPoolOptions::new()
        .max_connections(30)
        .connect(url)
        .await
        .unwrap();
    let store = PostgresStore::builder(pool.clone())
        .time_limit(LONG)
        .build();
    crate::connected(async || store.migrate().await).await;
    let _ = sqlx::raw_sql(CREATE).execute(&pool).await;
    (pool, store)
}

pub(crate) async fn mariadb() -> (MySqlPool, MySqlStore) {
    mysql_at(&MariaDbServer::empty().await.url()).await
}

pub(crate) async fn real_mysql() -> (MySqlPool, MySqlStore) {
    mysql_at(&MySqlServer::empty().await.url()).await
}

pub(crate) async fn mysql_at(url: &str) -> (MySqlPool, MySqlStore) {
    let pool = MySqlPoolOptions::new()
        .max_connections(30)
        .connect(url)
        .await
        .unwrap();
    let store = MySqlStore::builder(pool.clone()).time_limit(LONG).build();
    crate::connected(async || store.migrate().await).await;
    sqlx::raw_sql(CREATE).execute(&pool).await.unwrap();
    (pool, store)
}

pub(crate) async fn sqlite() -> (SqlitePool, SqliteStore) {
    let options = SqliteConnectOptions::new()
        .filename(own::folder().join("shop.db"))
        .create_if_missing(true);
    let options = options
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(5));
    let pool = SqlitePoolOptions::new()
        .max_connections(10)
        .connect_with(options)
        .await
        .unwrap();
    let store = SqliteStore::builder(pool.clone()).time_limit(LONG).build();
    crate::connected(async || store.migrate().await).await;
    sqlx::raw_sql(CREATE).execute(&pool).await.unwrap();
    (pool, store)
}

/// Polls a future so many times, drops it, and says whether it had ended.
pub(crate) async fn polled<F: Future>(future: F, polls: usize) -> bool {
    let mut future = std::pin::pin!(future);
    let mut left = polls;
    let poll = |context: &mut std::task::Context<'_>| match left.checked_sub(1) {
        None => std::task::Poll::Ready(false),
        Some(fewer) => {
            left = fewer;
            future.as_mut().poll(context).map(|_| true)
        }
    };
    std::future::poll_fn(poll).await
}

/// Two rows that transactions of the application lock.
const ACCOUNTS: &str =
    "CREATE TABLE IF NOT EXISTS accounts (id int PRIMARY KEY, cents bigint NOT NULL)";

pub(crate) async fn on_postgres(url: &str, level: &str) -> (PgPool, Idempotency) {
    let set = format!("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}");
    let options = PgPoolOptions::new()
        .max_connections(30)
        .after_connect(move |on, _| {
            let set = AssertSqlSafe(set.clone());
            Box::pin(async move { on.execute(sqlx::raw_sql(set)).await.map(drop) })
        });
    let pool = options.connect(url).await.unwrap();
    let store = PostgresStore::builder(pool.clone())
        .time_limit(LONG)
        .build();
    crate::connected(async || store.migrate().await).await;
    for table in [
        CREATE,
        ACCOUNTS,
        "INSERT INTO accounts VALUES (1, 0), (2, 0) ON CONFLICT DO NOTHING",
    ] {
        let _ = sqlx::raw_sql(table).execute(&pool).await;
    }
    (pool, Idempotency::new(store))
}

pub(crate) async fn on_mariadb(url: &str, level: &str) -> (MySqlPool, Idempotency) {
    let set = format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}");
    let options = MySqlPoolOptions::new()
        .max_connections(30)
        .after_connect(move |on, _| {
            let set = AssertSqlSafe(set.clone());
            Box::pin(async move { on.execute(sqlx::raw_sql(set)).await.map(drop) })
        });
    let pool = options.connect(url).await.unwrap();
    let store = MySqlStore::builder(pool.clone()).time_limit(LONG).build();
    crate::connected(async || store.migrate().await).await;
    for table in [
        CREATE,
        ACCOUNTS,
        "INSERT IGNORE INTO accounts VALUES (1, 0), (2, 0)",
    ] {
        sqlx::raw_sql(table).execute(&pool).await.unwrap();
    }
    (pool, Idempotency::new(store))
}

pub(crate) async fn on_sqlite(url: &str, _: &str) -> (SqlitePool, Idempotency) {
    let options: SqliteConnectOptions = url.parse().unwrap();
    let options = options
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(LONG);
    let pool = SqlitePoolOptions::new()
        .max_connections(40)
        .connect_with(options)
        .await
        .unwrap();
    let store = SqliteStore::builder(pool.clone()).time_limit(LONG).build();
    crate::connected(async || store.migrate().await).await;
    for table in [
        CREATE,
        ACCOUNTS,
        "INSERT OR IGNORE INTO accounts VALUES (1, 0), (2, 0)",
    ] {
        sqlx::raw_sql(table).execute(&pool).await.unwrap();
    }
    (pool, Idempotency::new(store))
}

/// Runs each test of a module over MariaDB and MySQL: on a database of its own, or on a server of
/// its own that is started with these arguments.
macro_rules! over_both_servers {
    ($($name:ident$(($($arg:literal),*))?;)*) => {
        mod mariadb {
            $(crate::pools::on_mysql!(idem_testkit::MariaDbServer, $name$(($($arg),*))?);)*
        }

        mod real_mysql {
            $(crate::pools::on_mysql!(idem_testkit::MySqlServer, $name$(($($arg),*))?);)*
        }
    };
}

macro_rules! on_mysql {
    ($Server:ty, $name:ident) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let database = <$Server as crate::server::Server>::empty().await;
            super::$name(&database.url()).await;
        }
    };
    ($Server:ty, $name:ident($($arg:literal),*)) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let server = <$Server>::start_with(&[$($arg),*]).await.unwrap();
            super::$name(&server.url()).await;
        }
    };
}
pub(crate) use on_mysql;

pub(crate) use over_both_servers;
