//! The servers of a run.

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use idem_testkit::{Proxy, RedisServer};

/// How the servers stand to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Topology {
    /// One server.
    Single,
}

impl Topology {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
        }
    }

    /// Whether each process of workers has a proxy of its own before the server.
    pub(crate) fn has_proxies(self) -> bool {
        self == Self::Single
    }
}

/// The servers that were started.
#[derive(Debug)]
pub(crate) enum Servers {
    Single(RedisServer),
}

impl Servers {
    pub(crate) async fn start(topology: Topology) -> Result<Self> {
        match topology {
            // What was acknowledged is kept over a restart.
            Topology::Single => {
                let server = RedisServer::builder().arg("--appendonly").arg("yes").arg("--appendfsync").arg("always");
                Ok(Self::Single(server.start().await?))
            }
        }
    }

    /// The URL for a process of workers, whose proxy this is.
    pub(crate) fn url(&self, proxy: Option<&Proxy>) -> String {
        match self {
            Self::Single(server) => proxy.map_or_else(|| server.url(), Proxy::url),
        }
    }

    /// A proxy before the server.
    pub(crate) async fn proxy(&self) -> Result<Option<Proxy>> {
        match self {
            Self::Single(server) => Ok(Some(Proxy::start(&server.url()).await?)),
        }
    }

    /// Kills a server, and starts it again after a while. `down` is told when it is dead, and before it is started.
    pub(crate) async fn kill(&self, _target: usize, length: Duration, down: impl Fn(bool)) -> Result<()> {
        match self {
            Self::Single(server) => {
                server.kill()?;
                down(true);
                tokio::time::sleep(length).await;
                down(false);
                server.restart().await?;
            }
        }
        Ok(())
    }

    /// Stops a server for a while.
    pub(crate) async fn pause(&self, _target: usize, length: Duration) -> Result<()> {
        match self {
            Self::Single(server) => {
                server.pause()?;
                tokio::time::sleep(length).await;
                server.resume()?;
            }
        }
        Ok(())
    }
}
