//! The store's own connections: to one server, to the master under Sentinel, or to the nodes of a cluster.

use std::time::Duration;

use idem_core::StoreError;

use crate::cluster::Cluster;
use crate::link::{Link, Session};
use crate::place::Place;
use crate::slot;

/// Connections that are replaced when they are lost. Cheap to clone; closed with the last clone.
#[derive(Clone)]
pub(crate) enum Own {
    /// To one server, wherever it is.
    One(Link),
    Cluster(Cluster),
}

impl Own {
    /// Connects to what a URL names.
    pub(crate) async fn connect(url: &str, connect_limit: Duration) -> Result<Self, StoreError> {
        Ok(match Place::parse(url)? {
            Place::Server(target) => Self::One(Link::connect(target, connect_limit).await?),
            Place::Sentinel(watched) => Self::One(Link::to_master(watched, connect_limit).await?),
            Place::Cluster(seeds) => Self::Cluster(Cluster::connect(seeds, connect_limit).await?),
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
            Self::Cluster(_) => slot::of(key),
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

    /// Why there was no answer in time, if there is no connection. If there is one, it is looked after.
    pub(crate) fn failure(&self, slot: u16) -> Option<StoreError> {
        let link = match self {
            Self::One(link) => link.clone(),
            Self::Cluster(cluster) => cluster.link(slot)?,
        };
        let failure = link.failure();
        if failure.is_none() {
            link.probe();
        }
        failure
    }
}
