//! The servers of a run.

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use idem_testkit::{
    Proxy, RedisCluster, RedisClusterBuilder, RedisSentinels, RedisSentinelsBuilder, RedisServer, RedisServerBuilder,
};

/// How the servers stand to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Topology {
    /// One server.
    Single,
    /// A master and two replicas, under three Sentinels.
    Sentinel,
    /// Three masters with a replica each.
    Cluster,
}

impl Topology {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        }
    }

    /// Whether each process of workers has a proxy of its own before the server.
    pub(crate) fn has_proxies(self) -> bool {
        self == Self::Single
    }

    /// How many replicas must acknowledge what is not to be lost: all that could take the master's
    /// place. A master that comes back while another is being chosen goes on for a while, and has
    /// the others acknowledge what the chosen one will never hear of.
    pub(crate) fn replicas(self) -> u32 {
        match self {
            Self::Single => 0,
            Self::Sentinel => 2,
            Self::Cluster => 1,
        }
    }

    /// Whether another server takes the place of one that is gone.
    pub(crate) fn fails_over(self) -> bool {
        self != Self::Single
    }
}

/// The servers that were started. They keep acknowledged writes over a restart.
#[derive(Debug)]
pub(crate) enum Servers {
    Single(RedisServer),
    Sentinel(RedisSentinels),
    Cluster(RedisCluster),
}

/// On disk before it is acknowledged.
const KEEPS: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

impl Servers {
    pub(crate) async fn start(topology: Topology) -> Result<Self> {
        Ok(match topology {
            Topology::Single => {
                let server = KEEPS.into_iter().fold(RedisServer::builder(), RedisServerBuilder::arg);
                Self::Single(server.start().await?)
            }
            Topology::Sentinel => {
                let servers = KEEPS.into_iter().fold(RedisSentinels::builder(), RedisSentinelsBuilder::arg);
                Self::Sentinel(servers.start().await?)
            }
            Topology::Cluster => {
                let nodes = KEEPS.into_iter().fold(RedisCluster::builder(), RedisClusterBuilder::arg);
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
        }
    }

    /// A proxy before the server, where that can be.
    pub(crate) async fn proxy(&self) -> Result<Option<Proxy>> {
        match self {
            Self::Single(server) => Ok(Some(Proxy::start(&server.url()).await?)),
            Self::Sentinel(_) | Self::Cluster(_) => Ok(None),
        }
    }

    /// Kills a server, and starts it again after a while. `down` is called when no server is left,
    /// and before it is started.
    pub(crate) async fn kill(&self, target: usize, length: Duration, down: impl Fn(bool)) -> Result<()> {
        let server = self.server(target).await;
        let down = |is_down| {
            if let Self::Single(_) = self {
                down(is_down);
            }
        };
        server.kill()?;
        down(true);
        tokio::time::sleep(length).await;
        down(false);
        Ok(server.restart().await?)
    }

    /// Stops a server for a while.
    pub(crate) async fn pause(&self, target: usize, length: Duration) -> Result<()> {
        let server = self.server(target).await;
        server.pause()?;
        tokio::time::sleep(length).await;
        Ok(server.resume()?)
    }

    /// Waits until the servers have found together again.
    pub(crate) async fn settled(&self) -> Result<()> {
        match self {
            Self::Single(_) => Ok(()),
            Self::Sentinel(servers) => Ok(servers.settled().await?),
            Self::Cluster(nodes) => Ok(nodes.settled().await?),
        }
    }

    /// The server that is hit: under Sentinel the master every second time, for there much can go
    /// wrong.
    async fn server(&self, target: usize) -> &RedisServer {
        match self {
            Self::Single(server) => server,
            Self::Sentinel(servers) => {
                let master = if target.is_multiple_of(2) { servers.master().await.ok() } else { None };
                let all = servers.servers();
                &all[master.unwrap_or(target / 2 % all.len())]
            }
            Self::Cluster(nodes) => &nodes.nodes()[target % nodes.nodes().len()],
        }
    }
}
