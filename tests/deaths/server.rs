//! The servers under test, each with the store on it.

use idem::Idempotency;
use idem_redis::RedisStore;
#[cfg(feature = "postgres")]
use idem_testkit::PostgresServer;
#[cfg(feature = "mysql")]
use idem_testkit::{MariaDbServer, MySqlServer};
use idem_testkit::{Proxy, RedisServer};

use crate::support::eventually;

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

/// A private server.
pub(crate) enum Server {
    Redis(RedisServer),
    #[cfg(feature = "postgres")]
    Postgres(PostgresServer),
    #[cfg(feature = "mysql")]
    MariaDb(MariaDbServer),
    #[cfg(feature = "mysql")]
    MySql(MySqlServer),
}

impl Server {
    /// Starts one, and creates the table.
    pub(crate) async fn start(kind: Kind) -> Self {
        match kind {
            Kind::Redis => Self::Redis(RedisServer::start().await.unwrap()),
            #[cfg(feature = "postgres")]
            Kind::Postgres => {
                let server = PostgresServer::start().await.unwrap();
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
                Self::MariaDb(MariaDbServer::start().await.unwrap())
                    .with_table()
                    .await
            }
            #[cfg(feature = "mysql")]
            Kind::MySql => {
                Self::MySql(MySqlServer::start().await.unwrap())
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

/// The operation of the first step of a process on a database.
pub(crate) const FIRST: &str = "first";

/// A process, as far as that can be had inside one: a runtime with connections of its own.
pub(crate) async fn process(url: &str) -> Idempotency {
    let database: Option<Idempotency> = match url.split("://").next() {
        #[cfg(feature = "postgres")]
        Some("postgres") => Some(Idempotency::new(
            idem::PostgresStore::connect(url).await.unwrap(),
        )),
        #[cfg(feature = "mysql")]
        Some("mysql") => Some(Idempotency::new(
            idem::MySqlStore::connect(url).await.unwrap(),
        )),
        _ => None,
    };
    let Some(idempotency) = database else {
        return Idempotency::new(RedisStore::connect(url).await.unwrap());
    };
    // Connects, and looks at the table: on a busy machine that takes longer than a lease of these
    // tests, or than the store allows for one step.
    eventually("the first step is answered", async || {
        let first = idempotency.operation(FIRST).key("k").inspect().await;
        first.is_ok_and(|found| found.is_none())
    })
    .await;
    idempotency
}
