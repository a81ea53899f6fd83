//! Kinds of servers, and the stores on them.

use std::fmt::Debug;
use std::sync::Mutex;

use idem_core::{Store, StoreError};
use idem_sqlx::sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use idem_sqlx::sqlx::postgres::{PgPool, PgPoolOptions};
use idem_sqlx::sqlx::{self, AssertSqlSafe};
use idem_sqlx::{MySqlStore, PostgresStore};
use idem_testkit::{MariaDbServer, MySqlServer, PostgresServer};

use crate::own::{Database, Ended};
use crate::{LONG, connected};

/// A kind of server, and the store on it.
pub(crate) trait Server: Sized + Send + Sync + 'static {
    type Store: Store + Clone + Debug;

    /// The statement that drops the database `{}`, also if a connection to it was forgotten.
    const DROP: &'static str;

    /// Starts one for a single test, which may do with it as it likes.
    async fn start() -> Self;
    /// Returns the server that all tests share.
    async fn shared() -> &'static Self;
    /// Creates a database on the server of all tests. It ends with the test.
    async fn empty() -> Database<Self> {
        Database::create().await
    }
    /// The databases of tests that have ended.
    fn ended() -> Ended;

    fn url(&self) -> String;
    fn url_through(&self, port: u16) -> String;
    fn port(&self) -> u16;
    fn pause(&self);
    fn resume(&self);
    fn kill(&self);
    async fn restart(&self);

    fn connect(url: &str) -> impl Future<Output = Result<Self::Store, StoreError>> + Send;
    fn migrate(store: &Self::Store) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// A store with long limits, whose table is there.
    fn store_at(url: &str) -> impl Future<Output = Self::Store> + Send;
    async fn sweep(store: &Self::Store) -> u64;
    /// On a pool of one connection, which is in use as long as the other value lives.
    async fn on_pool_of_one(url: &str) -> (Self::Store, Box<dyn Send>);
    /// With a table of this name.
    async fn with_table(url: &str, table: &str) -> Self::Store;
    async fn try_execute_at(url: &str, statement: &str) -> Result<(), sqlx::Error>;

    /// Reads one number.
    async fn number_at(url: &str, statement: &str) -> i64;

    async fn number(&self, statement: &str) -> i64 {
        Self::number_at(&self.url(), statement).await
    }

    async fn execute_at(url: &str, statement: &str) {
        Self::try_execute_at(url, statement).await.unwrap();
    }

    /// A store with a pool of its own and the usual limits, whose table is there.
    async fn own_store_at(url: &str) -> Self::Store {
        let store = connected(async || Self::connect(url).await).await;
        connected(async || Self::migrate(&store).await).await;
        store
    }

    async fn store(&self) -> Self::Store {
        Self::store_at(&self.url()).await
    }

    async fn own_store(&self) -> Self::Store {
        Self::own_store_at(&self.url()).await
    }

    async fn execute(&self, statement: &str) {
        Self::execute_at(&self.url(), statement).await;
    }
}

/// Implements [`Server`], which differs in names alone.
macro_rules! server {
    ($Server:ty, $Store:ident, $Pool:ident, $PoolOptions:ident, $drop:literal) => {
        impl Server for $Server {
            type Store = $Store;

            const DROP: &'static str = $drop;

            async fn start() -> Self {
                <$Server>::start().await.unwrap()
            }

            async fn shared() -> &'static Self {
                <$Server>::shared().await.unwrap()
            }

            fn ended() -> Ended {
                static ENDED: Mutex<Vec<String>> = Mutex::new(Vec::new());
                &ENDED
            }

            fn url(&self) -> String {
                self.url()
            }

            fn url_through(&self, port: u16) -> String {
                self.url_through(port)
            }

            fn port(&self) -> u16 {
                self.port()
            }

            fn pause(&self) {
                self.pause().unwrap();
            }

            fn resume(&self) {
                self.resume().unwrap();
            }

            fn kill(&self) {
                self.kill().unwrap();
            }

            async fn restart(&self) {
                self.restart().await.unwrap();
            }

            async fn connect(url: &str) -> Result<$Store, StoreError> {
                $Store::connect(url).await
            }

            async fn migrate(store: &$Store) -> Result<(), StoreError> {
                store.migrate().await
            }

            async fn store_at(url: &str) -> $Store {
                let pool = $PoolOptions::new().test_before_acquire(false);
                let pool = pool.connect(url).await.unwrap();
                let store = $Store::builder(pool).time_limit(LONG).build();
                store.migrate().await.unwrap();
                store
            }

            async fn sweep(store: &$Store) -> u64 {
                store.sweep().await.unwrap()
            }

            async fn on_pool_of_one(url: &str) -> ($Store, Box<dyn Send>) {
                let pool = $PoolOptions::new()
                    .max_connections(1)
                    .test_before_acquire(false);
                let pool = pool.connect(url).await.unwrap();
                let patient = $Store::builder(pool.clone()).time_limit(LONG).build();
                patient.migrate().await.unwrap();
                let held = pool.acquire().await.unwrap();
                ($Store::new(pool), Box::new(held))
            }

            async fn with_table(url: &str, table: &str) -> $Store {
                let pool = $Pool::connect(url).await.unwrap();
                let builder = $Store::builder(pool).table(table);
                builder.time_limit(LONG).build()
            }

            async fn number_at(url: &str, statement: &str) -> i64 {
                let pool = $Pool::connect(url).await.unwrap();
                let number = sqlx::query_scalar(AssertSqlSafe(statement.to_owned()));
                number.fetch_one(&pool).await.unwrap()
            }

            async fn try_execute_at(url: &str, statement: &str) -> Result<(), sqlx::Error> {
                let pool = $Pool::connect(url).await?;
                let statement = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()));
                let executed = statement.execute(&pool).await;
                pool.close().await;
                executed.map(drop)
            }
        }
    };
}

server!(
    PostgresServer,
    PostgresStore,
    PgPool,
    PgPoolOptions,
    "DROP DATABASE {} WITH (FORCE)"
);
server!(
    MariaDbServer,
    MySqlStore,
    MySqlPool,
    MySqlPoolOptions,
    "SET SESSION lock_wait_timeout = 1; DROP DATABASE {}"
);
server!(
    MySqlServer,
    MySqlStore,
    MySqlPool,
    MySqlPoolOptions,
    "SET SESSION lock_wait_timeout = 1; DROP DATABASE {}"
);
