//! Where the store's steps are carried out, and the one time limit around each.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use futures_util::future::FutureExt as _;
use idem_core::StoreError;
use tokio::time::timeout;

use crate::connection::Connection;
use crate::error::timed_out;
use crate::lane::{GIVEN, Lane};
use crate::own::Own;
use crate::quick::Quick;
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
        self.limited(slot, async { step(self.lane(slot).await?).await }).await
    }

    /// Carries out a step that one command does nearly always: `quick` sends it, if there is a connection, and says what it came to, or
    /// what the whole step has to know of it.
    ///
    /// No `async fn`, here and below: what it is given would be in its future twice, and every call has one.
    pub(crate) fn step_quickly<'a, T, N, Q, F>(
        &'a self,
        key: &str,
        quick: impl FnOnce(Quick) -> Q + 'a,
        whole: impl FnOnce(Lane, Option<N>) -> F + 'a,
    ) -> impl Future<Output = Result<T, StoreError>>
    where
        T: 'a,
        N: 'a,
        Q: Future<Output = Result<Result<T, StoreError>, N>> + 'a,
        F: Future<Output = Result<T, StoreError>> + Send + 'a,
    {
        let slot = self.slot(key);
        let step = async move {
            let known = match self.quick(slot) {
                Some(ready) => match quick(ready).await {
                    Ok(answer) => return answer,
                    Err(known) => Some(known),
                },
                None => None,
            };
            // Rare, and large.
            Box::pin(async { whole(self.lane(slot).await?, known).await }).await
        };
        self.limited(slot, step)
    }

    fn limited<'a, T>(
        &'a self,
        slot: u16,
        step: impl Future<Output = Result<T, StoreError>> + 'a,
    ) -> impl Future<Output = Result<T, StoreError>> {
        timeout(self.limit, step).map(move |outcome| match outcome {
            Ok(outcome) => outcome.inspect_err(|error| self.noticed(error)),
            Err(_) => Err(self.timed_out(slot)),
        })
    }

    /// A connection of our own that is there. Not where replicas are asked for, which every step waits for.
    fn quick(&self, slot: u16) -> Option<Quick> {
        match &self.way {
            Way::Own(own) if self.replicas.is_none() => {
                own.ready(slot).map(|(link, session)| Quick::new(link, session))
            }
            _ => None,
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
