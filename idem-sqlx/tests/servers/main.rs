//! The stores of PostgreSQL and MariaDB against real servers: what only a server can get wrong.
// Tests measure how long things take, and stop where they cannot go on: the helpers too.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]
#![cfg(all(feature = "postgres", feature = "mysql", feature = "sqlite"))]

mod at_once;
mod bad_input;
mod begun;
mod beside_leases;
mod burst;
mod databases;
mod dropped;
mod ended;
mod events;
mod expected;
mod expected_within;
mod failed;
mod faults;
mod first_claims;
mod guards;
mod hostile;
mod limited;
mod listing;
mod mysql;
mod observing;
mod other_driver;
mod postgres;
mod proxied;
mod recorded;
mod renewing;
mod runtimes;
mod table;
mod transactions;
mod waking;

use std::fmt::Debug;
use std::time::{Duration, Instant};

use idem_core::store::record::{RecordId, Removed};
use idem_core::{Idempotency, Key, Store, StoreError};
use idem_sqlx::sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use idem_sqlx::sqlx::postgres::{PgPool, PgPoolOptions};
use idem_sqlx::sqlx::{self, AssertSqlSafe};
use idem_sqlx::{MySqlStore, PostgresStore};
use idem_testkit::{MariaDbServer, MySqlServer, PostgresServer};

/// Each failure must be an error within this time.
const TWO_SECONDS: Duration = Duration::from_secs(2);
/// Longer than anything here takes: a test that comes here hangs.
const LONG: Duration = Duration::from_secs(30);

/// A kind of server, and the store on it.
trait Server: Sized + Send + Sync + 'static {
    type Store: Store + Clone + Debug;

    async fn start() -> Self;
    fn url(&self) -> String;
    fn url_through(&self, port: u16) -> String;
    fn port(&self) -> u16;
    fn pause(&self);
    fn resume(&self);
    fn kill(&self);
    async fn restart(&self);

    fn connect(url: &str) -> impl Future<Output = Result<Self::Store, StoreError>> + Send;
    fn migrate(store: &Self::Store) -> impl Future<Output = Result<(), StoreError>> + Send;
    async fn sweep(store: &Self::Store) -> u64;
    /// On a pool of one connection, which is in use as long as the other value lives.
    async fn on_pool_of_one(url: &str) -> (Self::Store, Box<dyn Send>);
    /// With a table of this name.
    async fn with_table(&self, table: &str) -> Self::Store;
    async fn execute(&self, statement: &str);

    /// A store whose table is there.
    async fn store(&self) -> Self::Store {
        let store = Self::connect(&self.url()).await.unwrap();
        Self::migrate(&store).await.unwrap();
        store
    }
}

/// Implements [`Server`], which differs in names alone.
macro_rules! server {
    ($Server:ty, $Store:ident, $Pool:ident, $PoolOptions:ident) => {
        impl Server for $Server {
            type Store = $Store;

            async fn start() -> Self {
                <$Server>::start().await.unwrap()
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

            async fn sweep(store: &$Store) -> u64 {
                store.sweep().await.unwrap()
            }

            async fn on_pool_of_one(url: &str) -> ($Store, Box<dyn Send>) {
                let pool = $PoolOptions::new()
                    .max_connections(1)
                    .test_before_acquire(false);
                let pool = pool.connect(url).await.unwrap();
                $Store::new(pool.clone()).migrate().await.unwrap();
                let held = pool.acquire().await.unwrap();
                ($Store::new(pool), Box::new(held))
            }

            async fn with_table(&self, table: &str) -> $Store {
                let pool = $Pool::connect(&self.url()).await.unwrap();
                $Store::builder(pool).table(table).build()
            }

            async fn execute(&self, statement: &str) {
                let pool = $Pool::connect(&self.url()).await.unwrap();
                sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
                    .execute(&pool)
                    .await
                    .unwrap();
                pool.close().await;
            }
        }
    };
}

server!(PostgresServer, PostgresStore, PgPool, PgPoolOptions);
server!(MariaDbServer, MySqlStore, MySqlPool, MySqlPoolOptions);
server!(MySqlServer, MySqlStore, MySqlPool, MySqlPoolOptions);

/// Writes each test once, and runs it over both servers.
macro_rules! over_both_servers {
    ($($(#[doc = $doc:literal])* async fn $name:ident<S: Server $(,)?>() $body:block)*) => {
        $($(#[doc = $doc])* async fn $name<S: crate::Server>() $body)*

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<idem_testkit::PostgresServer>().await;
            })*
        }

        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<idem_testkit::MariaDbServer>().await;
            })*
        }
    };
}
use over_both_servers;

fn id(key: &str) -> RecordId {
    RecordId::new("orders", &Key::encode(key).unwrap()).unwrap()
}

fn runtime<S: Store>(store: S) -> Idempotency {
    Idempotency::new(store)
}

/// Runs a body that returns a number, under a key.
async fn order(
    idempotency: &Idempotency,
    key: &str,
    number: u32,
) -> Result<idem_core::Outcome<u32>, idem_core::Error> {
    idempotency
        .operation("orders")
        .key(key)
        .run(async || Ok::<_, idem_core::Error>(number))
        .await
}

/// A step of the store that changes nothing, which must fail within two seconds.
async fn fails_in_time<S: Store>(store: &S) -> StoreError {
    let begun = Instant::now();
    let error = tokio::time::timeout(LONG, store.inspect(&id("probe")))
        .await
        .expect("the step hung")
        .unwrap_err();
    let took = begun.elapsed();
    assert!(took < TWO_SECONDS, "took {took:?}: {error}");
    assert!(
        !error.to_string().contains("wordpass"),
        "the password is shown: {error}"
    );
    error
}

/// Waits until a step succeeds, without help for the store.
async fn recovers<S: Store>(store: &S) {
    until("the store recovers", async || {
        matches!(store.remove(&id("probe")).await, Ok(Removed::Nothing))
    })
    .await;
}

/// Waits until something is so, and says what was waited for if it never is.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let looking = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, looking)
        .await
        .unwrap_or_else(|_| panic!("not within {LONG:?}: {what}"));
}

/// How many connections a pool has lent.
fn in_use<Db: sqlx::Database>(pool: &sqlx::Pool<Db>) -> usize {
    (pool.size() as usize).saturating_sub(pool.num_idle())
}
