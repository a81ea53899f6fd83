//! The servers under test, each with the store on it.

use std::time::Duration;

use idem::Idempotency;
#[cfg(feature = "postgres")]
use idem_testkit::PostgresServer;
#[cfg(feature = "mysql")]
use idem_testkit::{MariaDbServer, MySqlServer};
use idem_testkit::{Proxy, RedisServer};
use tokio::sync::OnceCell;

use crate::support::{connected, eventually, limited_store, patient_store};

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
                let url = server.url();
                connected(async || idem::PostgresStore::connect(&url).await?.migrate().await).await;
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
        connected(async || idem::MySqlStore::connect(self.url()).await?.migrate().await).await;
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

/// A process whose store gives up a step on a silent connection. On a database the next caller has
/// claimed by then. On Redis, a claim fails twice before there is another connection.
pub(crate) async fn impatient(url: &str) -> Idempotency {
    let limit = if url.starts_with("redis") {
        Duration::from_millis(900)
    } else {
        Duration::from_secs(3)
    };
    after_its_first_step(Idempotency::new(limited_store(url, limit).await)).await
}

/// A process, as far as that can be had inside one: a runtime with connections of its own. Its
/// store waits 15 s for each step, so that no step fails on a busy machine.
pub(crate) async fn patient(url: &str) -> Idempotency {
    after_its_first_step(Idempotency::new(patient_store(url).await)).await
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
