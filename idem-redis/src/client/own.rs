//! The store's own connections: to one server, to the master under Sentinel, or to the nodes of a
//! cluster.

use std::time::Duration;

use idem_core::StoreError;

use crate::client::cluster::Cluster;
use crate::client::greeting::Greeting;
use crate::client::hash_slot;
use crate::client::home::Home;
use crate::client::link::{Link, Terms};
use crate::client::location::Location;
use crate::client::session::Session;

/// Connections that are replaced when they are lost. Cheap to clone; closed with the last clone.
#[derive(Clone)]
pub(crate) enum Own {
    /// To one server, wherever it is.
    One(Link),
    Cluster(Cluster),
}

impl Own {
    /// Connects to what a URL names. The connections live in the current runtime.
    pub(crate) async fn connect(url: &str, connect_limit: Duration, greeting: Greeting) -> Result<Self, StoreError> {
        let terms = Terms { connect_limit, greeting, home: Home::here() };
        Ok(match Location::parse(url)? {
            Location::Server(target) => Self::One(Link::connect(target, terms).await?),
            Location::Sentinel(watched) => Self::One(Link::to_master(watched, terms).await?),
            Location::Cluster(seeds) => Self::Cluster(Cluster::connect(seeds, terms).await?),
        })
    }

    /// The URL without secrets.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::One(link) => link.server(),
            Self::Cluster(cluster) => cluster.name(),
        }
    }

    /// The slot of a key; of no meaning where there is one server.
    pub(crate) fn slot(&self, key: &str) -> u16 {
        match self {
            Self::One(_) => 0,
            Self::Cluster(_) => hash_slot::of(key),
        }
    }

    /// One slot for each master that there is.
    pub(crate) fn slots(&self) -> Vec<u16> {
        match self {
            Self::One(_) => vec![0],
            Self::Cluster(cluster) => cluster.slots(),
        }
    }

    /// The connection for a slot, as soon as there is one.
    pub(crate) async fn session(&self, slot: u16) -> Result<(Link, Session), StoreError> {
        match self {
            Self::One(link) => Ok((link.clone(), link.session().await?)),
            Self::Cluster(cluster) => cluster.session(slot).await,
        }
    }

    /// The connection for a slot, if there is one.
    pub(crate) fn ready(&self, slot: u16) -> Option<(Link, Session)> {
        let link = match self {
            Self::One(link) => link.clone(),
            Self::Cluster(cluster) => cluster.link(slot)?,
        };
        let session = link.ready()?;
        Some((link, session))
    }

    /// Something failed in a way that leaves open what was done.
    pub(crate) fn doubt(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.doubt();
        }
    }

    /// Returns the reason for a missing answer if the connection is down. A live connection has its
    /// own upkeep.
    pub(crate) fn failure(&self, slot: u16) -> Option<StoreError> {
        let link = match self {
            Self::One(link) => link.clone(),
            Self::Cluster(cluster) => match cluster.link(slot) {
                Some(link) => link,
                None => return Some(cluster.uncovered(slot)),
            },
        };
        link.probe();
        link.failure()
    }

    /// Refuses a cluster in which a slot has no node.
    pub(crate) fn must_cover(&self) -> Result<(), StoreError> {
        match self {
            Self::One(_) => Ok(()),
            Self::Cluster(cluster) => cluster.first_uncovered().map_or(Ok(()), |slot| Err(cluster.uncovered(slot))),
        }
    }
}
