//! The connections that the store makes itself: to one server, to the master under Sentinel, or to
//! the nodes of a cluster.

use std::time::Duration;

use idem_core::StoreError;

use crate::connection::cluster::Cluster;
use crate::connection::handshake::Handshake;
use crate::connection::hash_slot;
use crate::connection::link::{Link, LinkOptions};
use crate::connection::location::Location;
use crate::connection::runtime::ConnectionRuntime;
use crate::connection::session::Session;

/// Connections that are replaced when they are lost. Cheap to clone; closed with the last clone.
#[derive(Clone)]
pub(crate) enum ManagedConnection {
    /// To one server, or to whichever server is the master.
    One(Link),
    Cluster(Cluster),
}

impl ManagedConnection {
    /// Connects to these servers. The connections live in the current runtime.
    pub(crate) async fn connect(
        location: Location,
        connect_limit: Duration,
        handshake: Handshake,
    ) -> Result<Self, StoreError> {
        let options = LinkOptions {
            connect_limit,
            handshake,
            runtime: ConnectionRuntime::current(),
        };
        Ok(match location {
            Location::Server(target) => Self::One(Link::connect(target, options).await?),
            Location::Sentinel(watched) => Self::One(Link::to_master(watched, options).await?),
            Location::Cluster(seeds) => Self::Cluster(Cluster::connect(seeds, options).await?),
        })
    }

    /// The URL without secrets.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::One(link) => link.server(),
            Self::Cluster(cluster) => cluster.name(),
        }
    }

    /// The slot of a key; 0 where there is one server.
    pub(crate) fn slot(&self, key: &str) -> u16 {
        match self {
            Self::One(_) => 0,
            Self::Cluster(_) => hash_slot::slot(key),
        }
    }

    /// One slot of each master.
    pub(crate) fn slots(&self) -> Vec<u16> {
        match self {
            Self::One(_) => vec![0],
            Self::Cluster(cluster) => cluster.slots(),
        }
    }

    /// Waits for the session of the server that has a slot.
    pub(crate) async fn session(&self, slot: u16) -> Result<(Link, Session), StoreError> {
        match self {
            Self::One(link) => Ok((link.clone(), link.session().await?)),
            Self::Cluster(cluster) => cluster.session(slot).await,
        }
    }

    /// Returns that session if there is one now.
    pub(crate) fn ready(&self, slot: u16) -> Option<(Link, Session)> {
        let link = match self {
            Self::One(link) => link.clone(),
            Self::Cluster(cluster) => cluster.link(slot)?,
        };
        let session = link.ready()?;
        Some((link, session))
    }

    /// Has a cluster asked soon which node has which slots. Called after a failure that a move of
    /// slots could explain.
    pub(crate) fn schedule_refresh(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.schedule_refresh();
        }
    }

    /// Finds out whether a connection on which a step timed out still answers.
    pub(crate) fn probe(&self, slot: u16) {
        match self {
            Self::One(link) => link.probe(),
            Self::Cluster(cluster) => {
                if let Some(link) = cluster.link(slot) {
                    link.probe();
                }
            }
        }
    }

    /// Returns why there is no connection for a slot; `None` if there is one.
    pub(crate) fn failure(&self, slot: u16) -> Option<StoreError> {
        match self {
            Self::One(link) => link.failure(),
            Self::Cluster(cluster) => match cluster.link(slot) {
                Some(link) => link.failure(),
                None => Some(cluster.uncovered(slot)),
            },
        }
    }

    /// Refuses a cluster in which a slot has no node.
    pub(crate) fn check_coverage(&self) -> Result<(), StoreError> {
        match self {
            Self::One(_) => Ok(()),
            Self::Cluster(cluster) => cluster
                .first_uncovered()
                .map_or(Ok(()), |slot| Err(cluster.uncovered(slot))),
        }
    }
}
