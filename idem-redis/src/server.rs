//! Where the store's steps are carried out, and the one time limit around each.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use idem_core::StoreError;
use tokio::time::timeout;

use crate::connection::Connection;
use crate::error::timed_out;
use crate::lane::{GIVEN, Lane};
use crate::own::Own;
use crate::replicas::Replicas;
use crate::sentinel::Address;

/// A server, or the nodes of a cluster, by our own connections or by one of the application's.
pub(crate) struct Server {
    way: Way,
    pub(crate) limit: Duration,
    replicas: Option<Replicas>,
}

enum Way {
    Own(Own),
    Given(Connection),
}

impl Server {
    pub(crate) fn own(own: Own, limit: Duration, replicas: Option<Replicas>) -> Self {
        Self { way: Way::Own(own), limit, replicas }
    }

    pub(crate) fn given(connection: Connection, limit: Duration) -> Self {
        Self { way: Way::Given(connection), limit, replicas: None }
    }

    pub(crate) fn name(&self) -> &str {
        match &self.way {
            Way::Own(own) => own.name(),
            Way::Given(_) => GIVEN,
        }
    }

    pub(crate) fn replicas(&self) -> Option<Replicas> {
        self.replicas
    }

    /// Whether commands are sent to the nodes of a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        match &self.way {
            Way::Own(own) => matches!(own, Own::Cluster(_)),
            Way::Given(connection) => connection.is_cluster(),
        }
    }

    /// Carries out a step on the record of a key, whatever it sends, within the limit.
    pub(crate) async fn step<T, F>(&self, key: &str, step: impl FnOnce(Lane) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        self.step_at(self.slot(key), step).await
    }

    /// Carries out a step on whichever node has a slot.
    pub(crate) async fn step_at<T, F>(&self, slot: u16, step: impl FnOnce(Lane) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let step = async { step(self.lane(slot).await?).await };
        match timeout(self.limit, step).await {
            Ok(outcome) => outcome.inspect_err(|error| self.noticed(error)),
            Err(_) => Err(self.timed_out(slot)),
        }
    }

    /// An error that was not told to the connection, or that nobody told of.
    pub(crate) fn noticed(&self, error: &StoreError) {
        if let (Way::Own(own), true) = (&self.way, error.is_unknown()) {
            own.doubt();
        }
    }

    /// The error of a step that had no answer in time.
    pub(crate) fn timed_out(&self, slot: u16) -> StoreError {
        if let Way::Own(own) = &self.way {
            own.doubt();
            if let Some(failure) = own.failure(slot) {
                return failure;
            }
        }
        timed_out(self.name(), self.limit)
    }

    pub(crate) fn slot(&self, key: &str) -> u16 {
        match &self.way {
            Way::Own(own) => own.slot(key),
            Way::Given(_) => 0,
        }
    }

    /// Which node of a cluster has a slot, as far as is known.
    pub(crate) fn node(&self, slot: u16) -> Option<Address> {
        match &self.way {
            Way::Own(Own::Cluster(cluster)) => cluster.node(slot),
            _ => None,
        }
    }

    /// One slot of each master that there is.
    pub(crate) fn slots(&self) -> Vec<u16> {
        match &self.way {
            Way::Own(own) => own.slots(),
            Way::Given(_) => vec![0],
        }
    }

    pub(crate) async fn lane(&self, slot: u16) -> Result<Lane, StoreError> {
        match &self.way {
            Way::Own(own) => Lane::own(own.clone(), slot, self.replicas).await,
            Way::Given(connection) => Ok(Lane::given(connection.clone())),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
