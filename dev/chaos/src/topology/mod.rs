//! The servers of a run.

mod databases;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use idem_testkit::{
    Proxy, RedisCluster, RedisClusterBuilder, RedisSentinels, RedisSentinelsBuilder, RedisServer,
    RedisServerBuilder,
};

use self::databases::Databases;
use crate::plan::Kind;

/// Which servers there are, and how they stand to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Topology {
    /// One server.
    Single,
    /// A master and two replicas, under three Sentinels.
    Sentinel,
    /// Three masters with a replica each.
    Cluster,
    /// One PostgreSQL.
    Postgres,
    /// A PostgreSQL and a synchronous standby, which is promoted when the first one dies.
    PostgresPair,
    /// One `MariaDB`.
    Mariadb,
    /// One `MySQL`.
    Mysql,
    /// A file of SQLite, which all processes of workers share.
    Sqlite,
}

impl Topology {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
            Self::Postgres => "postgres",
            Self::PostgresPair => "postgres-pair",
            Self::Mariadb => "mariadb",
            Self::Mysql => "mysql",
            Self::Sqlite => "sqlite",
        }
    }

    /// Whether a fault of this kind can be made here. Clients of a Sentinel or a cluster learn the
    /// servers' own addresses, so that no proxy is between; a file has no server.
    pub(crate) fn suffers(self, kind: Kind) -> bool {
        match self {
            Self::Single | Self::Postgres | Self::PostgresPair | Self::Mariadb | Self::Mysql => {
                true
            }
            Self::Sentinel | Self::Cluster => !kind.needs_proxy(),
            Self::Sqlite => matches!(kind, Kind::Kill | Kind::Pause),
        }
    }

    /// How many replicas must acknowledge what is not to be lost: all that could take the master's
    /// place. A master that comes back while another is being chosen goes on for a while, and has
    /// the others acknowledge what the chosen one will never hear of.
    pub(crate) fn replicas(self) -> u32 {
        match self {
            Self::Sentinel => 2,
            Self::Cluster => 1,
            _ => 0,
        }
    }

    /// The lease, unless another one is asked for. To connect to a database takes many times as
    /// long as to Redis, and a step that is not over in three eighths of a lease has failed.
    pub(crate) fn lease(self) -> Duration {
        match self {
            Self::Single | Self::Sentinel | Self::Cluster => Duration::from_millis(400),
            Self::Postgres | Self::PostgresPair | Self::Mariadb | Self::Mysql | Self::Sqlite => {
                Duration::from_millis(2_000)
            }
        }
    }

    /// Whether another server takes the place of one that is gone.
    pub(crate) fn fails_over(self) -> bool {
        matches!(self, Self::Sentinel | Self::Cluster | Self::PostgresPair)
    }

    /// Whether that one may lack what was acknowledged last, as is documented.
    pub(crate) fn forgets(self) -> bool {
        matches!(self, Self::Sentinel | Self::Cluster)
    }
}

/// The servers that were started. They keep acknowledged writes over a restart.
#[derive(Debug)]
pub(crate) enum Servers {
    Single(Box<RedisServer>),
    Sentinel(RedisSentinels),
    Cluster(RedisCluster),
    Databases(Box<Databases>),
}

/// On disk before it is acknowledged.
const KEEPS: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

impl Servers {
    /// Starts them. Their files without a place of their own are kept in the folder.
    pub(crate) async fn start(topology: Topology, folder: &Path) -> Result<Self> {
        Ok(match topology {
            Topology::Postgres => Self::Databases(Box::new(Databases::postgres().await?)),
            Topology::PostgresPair => Self::Databases(Box::new(Databases::postgres_pair().await?)),
            Topology::Mariadb => Self::Databases(Box::new(Databases::mariadb().await?)),
            Topology::Mysql => Self::Databases(Box::new(Databases::mysql().await?)),
            Topology::Sqlite => Self::Databases(Box::new(Databases::sqlite(folder).await?)),
            Topology::Single => {
                let server = KEEPS
                    .into_iter()
                    .fold(RedisServer::builder(), RedisServerBuilder::arg);
                Self::Single(Box::new(server.start().await?))
            }
            Topology::Sentinel => {
                let servers = KEEPS
                    .into_iter()
                    .fold(RedisSentinels::builder(), RedisSentinelsBuilder::arg);
                Self::Sentinel(servers.start().await?)
            }
            Topology::Cluster => {
                let nodes = KEEPS
                    .into_iter()
                    .fold(RedisCluster::builder(), RedisClusterBuilder::arg);
                Self::Cluster(nodes.start().await?)
            }
        })
    }

    /// The URL for a process of workers, whose proxy this is.
    pub(crate) fn url(&self, proxy: Option<&Proxy>) -> String {
        match self {
            Self::Single(server) => proxy.map_or_else(|| server.url(), Proxy::url),
            Self::Sentinel(servers) => servers.url(),
            Self::Cluster(nodes) => nodes.url(),
            Self::Databases(databases) => databases.url(proxy),
        }
    }

    /// A proxy before the server, where that can be.
    pub(crate) async fn proxy(&self) -> Result<Option<Proxy>> {
        match self {
            Self::Single(server) => Ok(Some(Proxy::start(&server.url()).await?)),
            Self::Sentinel(_) | Self::Cluster(_) => Ok(None),
            Self::Databases(databases) => databases.proxy().await,
        }
    }

    /// Kills a server, and starts it again after a while. `down` is called when no server is left,
    /// and before it is started.
    pub(crate) async fn kill(
        &self,
        target: usize,
        length: Duration,
        down: impl Fn(bool),
    ) -> Result<()> {
        let server = match self {
            Self::Single(server) => {
                server.kill()?;
                down(true);
                tokio::time::sleep(length).await;
                down(false);
                return Ok(server.restart().await?);
            }
            Self::Databases(databases) => return databases.kill(length, down).await,
            Self::Sentinel(servers) => of_sentinels(servers, target).await,
            Self::Cluster(nodes) => of_cluster(nodes, target),
        };
        server.kill()?;
        tokio::time::sleep(length).await;
        Ok(server.restart().await?)
    }

    /// Stops a server for a while.
    pub(crate) async fn pause(&self, target: usize, length: Duration) -> Result<()> {
        let server = match self {
            Self::Single(server) => server,
            Self::Databases(databases) => return databases.pause(target, length).await,
            Self::Sentinel(servers) => of_sentinels(servers, target).await,
            Self::Cluster(nodes) => of_cluster(nodes, target),
        };
        server.pause()?;
        tokio::time::sleep(length).await;
        Ok(server.resume()?)
    }

    /// Waits until the servers have found together again.
    pub(crate) async fn settled(&self) -> Result<()> {
        match self {
            Self::Single(_) | Self::Databases(_) => Ok(()),
            Self::Sentinel(servers) => Ok(servers.settled().await?),
            Self::Cluster(nodes) => Ok(nodes.settled().await?),
        }
    }
}

/// The server that is hit: the master every second time, for there much can go wrong.
async fn of_sentinels(servers: &RedisSentinels, target: usize) -> &RedisServer {
    let master = if target.is_multiple_of(2) {
        servers.master().await.ok()
    } else {
        None
    };
    let all = servers.servers();
    &all[master.unwrap_or(target / 2 % all.len())]
}

fn of_cluster(nodes: &RedisCluster, target: usize) -> &RedisServer {
    &nodes.nodes()[target % nodes.nodes().len()]
}
