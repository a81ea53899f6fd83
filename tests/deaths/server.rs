//! The servers under test, each with the store on it.

use std::time::Duration;

#[cfg(feature = "mysql")]
use idem::sqlx::mysql::MySqlPoolOptions;
#[cfg(feature = "postgres")]
use idem::sqlx::postgres::PgPoolOptions;
use idem::store::{Store as _, StoreHandle};
use idem::{Idempotency, StoreError};
use idem_redis::RedisStore;
#[cfg(feature = "postgres")]
use idem_testkit::PostgresServer;
#[cfg(feature = "mysql")]
use idem_testkit::{MariaDbServer, MySqlServer};
use idem_testkit::{Proxy, RedisServer};
use tokio::sync::OnceCell;

use crate::support::eventually;

/// How long a step may take where its limit does not matter: a machine may be busy.
const PATIENT: Duration = Duration::from_secs(15);

/// The kind of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Redis,
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "mysql")]
    MariaDb,
    #[cfg(feature = "mysql")]
    MySql,
}

/// A server that all tests of this process share: operations tell them apart.
pub(crate) enum Server {
    Redis(&'static RedisServer),
    #[cfg(feature = "postgres")]
    Postgres(&'static PostgresServer),
    #[cfg(feature = "mysql")]
    MariaDb(&'static MariaDbServer),
    #[cfg(feature = "mysql")]
    MySql(&'static MySqlServer),
}

impl Server {
    /// Returns the shared server of this kind.
    pub(crate) async fn shared(kind: Kind) -> &'static Self {
        static SERVERS: [OnceCell<Server>; 4] = [const { OnceCell::const_new() }; 4];
        SERVERS[kind as usize]
            .get_or_init(|| Self::start(kind))
            .await
    }

    /// Starts it, and creates the table.
    async fn start(kind: Kind) -> Self {
        match kind {
            Kind::Redis => Self::Redis(RedisServer::shared().await.unwrap()),
            #[cfg(feature = "postgres")]
            Kind::Postgres => {
                let server = PostgresServer::shared().await.unwrap();
                idem::PostgresStore::connect(server.url())
                    .await
                    .unwrap()
                    .migrate()
                    .await
                    .unwrap();
                Self::Postgres(server)
            }
            #[cfg(feature = "mysql")]
            Kind::MariaDb => {
                Self::MariaDb(MariaDbServer::shared().await.unwrap())
                    .with_table()
                    .await
            }
            #[cfg(feature = "mysql")]
            Kind::MySql => {
                Self::MySql(MySqlServer::shared().await.unwrap())
                    .with_table()
                    .await
            }
        }
    }

    #[cfg(feature = "mysql")]
    async fn with_table(self) -> Self {
        idem::MySqlStore::connect(self.url())
            .await
            .unwrap()
            .migrate()
            .await
            .unwrap();
        self
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            #[cfg(feature = "postgres")]
            Self::Postgres(server) => server.url(),
            #[cfg(feature = "mysql")]
            Self::MariaDb(server) => server.url(),
            #[cfg(feature = "mysql")]
            Self::MySql(server) => server.url(),
        }
    }

    /// Its URL through a proxy before it.
    pub(crate) fn url_through(&self, proxy: &Proxy) -> String {
        match self {
            Self::Redis(_) => proxy.url(),
            #[cfg(feature = "postgres")]
            Self::Postgres(server) => server.url_through(proxy.address().port()),
            #[cfg(feature = "mysql")]
            Self::MariaDb(server) => server.url_through(proxy.address().port()),
            #[cfg(feature = "mysql")]
            Self::MySql(server) => server.url_through(proxy.address().port()),
        }
    }
}

/// The operation of the first step of a process.
pub(crate) const FIRST: &str = "first";

/// A process, as far as that can be had inside one: a runtime with connections of its own, and the
/// limits that a store has by default.
pub(crate) async fn process(url: &str) -> Idempotency {
    let connecting = async || match url.split("://").next() {
        #[cfg(feature = "postgres")]
        Some("postgres") => Ok(idem::PostgresStore::connect(url).await?.into_handle()),
        #[cfg(feature = "mysql")]
        Some("mysql") => Ok(idem::MySqlStore::connect(url).await?.into_handle()),
        _ => Ok(RedisStore::connect(url).await?.into_handle()),
    };
    // A busy machine may take longer than a store allows for a connection.
    let mut connected: Result<StoreHandle, StoreError> = connecting().await;
    for _ in 0..10 {
        if connected.as_ref().is_err_and(StoreError::is_retryable) {
            connected = connecting().await;
        }
    }
    after_its_first_step(Idempotency::new(connected.unwrap())).await
}

/// Returns a process whose store waits 15 s for each step, so that no step fails on a busy machine.
pub(crate) async fn patient(url: &str) -> Idempotency {
    after_its_first_step(Idempotency::new(patient_store(url).await)).await
}

pub(crate) async fn patient_store(url: &str) -> StoreHandle {
    match url.split("://").next() {
        #[cfg(feature = "postgres")]
        Some("postgres") => {
            let pool = PgPoolOptions::new().test_before_acquire(false);
            let pool = pool.connect(url).await.unwrap();
            let store = idem::PostgresStore::builder(pool).time_limit(PATIENT);
            store.build().into_handle()
        }
        #[cfg(feature = "mysql")]
        Some("mysql") => {
            let pool = MySqlPoolOptions::new().test_before_acquire(false);
            let pool = pool.connect(url).await.unwrap();
            let store = idem::MySqlStore::builder(pool).time_limit(PATIENT);
            store.build().into_handle()
        }
        #[cfg(feature = "sqlite")]
        Some("sqlite") => {
            let pool = idem::sqlx::SqlitePool::connect(url).await.unwrap();
            let store = idem::SqliteStore::builder(pool).time_limit(PATIENT);
            store.build().into_handle()
        }
        _ => {
            let store = RedisStore::builder().url(url).time_limit(PATIENT);
            let store = store.connect_time_limit(PATIENT).connect();
            store.await.unwrap().into_handle()
        }
    }
}

/// Has it connect, and look at the table: on a busy machine that takes longer than a lease of these
/// tests, or than the store allows for one step.
async fn after_its_first_step(idempotency: Idempotency) -> Idempotency {
    eventually("the first step is answered", async || {
        let first = idempotency.operation(FIRST).key("k").inspect().await;
        first.is_ok_and(|found| found.is_none())
    })
    .await;
    idempotency
}
