//! Runs the store's steps, with one time limit around each.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use futures_util::future::FutureExt as _;
use idem_core::StoreError;
use tokio::time::{Instant, timeout_at};

use crate::client::clock;
use crate::client::connection::Connection;
use crate::client::error::{timed_out, timed_out_since};
use crate::client::hash_slot;
use crate::client::lane::{GIVEN, Lane};
use crate::client::own::Own;
use crate::client::quick::Quick;
use crate::client::replicas::Replicas;
use crate::client::target::Address;

/// A time limit that is too long to be reckoned with: thirty years.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

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

    /// Whether the application gave the connection.
    pub(crate) fn is_given(&self) -> bool {
        matches!(self.way, Way::Given(_))
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
        let deadline = self.deadline();
        self.limited(slot, deadline, async { step(self.first_lane(slot, deadline).await?).await }).await
    }

    /// Runs a step that one command nearly always completes. If there is a connection, `quick`
    /// sends it, and returns the result, or the facts that the whole step needs.
    ///
    /// No `async fn`, here and below: what it is given would be in its future twice, and every call
    /// has one.
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
        let (slot, deadline) = (self.slot(key), self.deadline());
        let step = async move {
            let known = match self.quick(slot) {
                Some(ready) => match quick(ready).await {
                    Ok(answer) => return answer,
                    Err(known) => Some(known),
                },
                None => None,
            };
            // Rare, and large.
            let whole = async {
                let lane = match known {
                    None => self.first_lane(slot, deadline).await?,
                    Some(_) => self.lane(slot).await?,
                };
                whole(lane, known).await
            };
            Box::pin(whole).await
        };
        self.limited(slot, deadline, step)
    }

    fn deadline(&self) -> Instant {
        let now = clock::now();
        now.checked_add(self.limit).unwrap_or_else(|| now + FAR)
    }

    /// Returns the lane for a step's first command. Until there is a connection, no command is
    /// sent, and the error says so.
    async fn first_lane(&self, slot: u16, deadline: Instant) -> Result<Lane, StoreError> {
        match timeout_at(deadline, self.lane(slot)).await {
            Ok(lane) => lane,
            Err(_) => Err(self.failure(slot).unwrap_or_else(|| timed_out(self.name(), self.limit))),
        }
    }

    fn limited<'a, T>(
        &'a self,
        slot: u16,
        deadline: Instant,
        step: impl Future<Output = Result<T, StoreError>> + 'a,
    ) -> impl Future<Output = Result<T, StoreError>> {
        timeout_at(deadline, step).map(move |outcome| match outcome {
            Ok(outcome) => outcome.inspect_err(|error| self.noticed(error)),
            Err(_) => Err(self.timed_out(slot)),
        })
    }

    /// A connection of our own that is there. Not where replicas are asked for, which every step
    /// waits for.
    fn quick(&self, slot: u16) -> Option<Quick> {
        match &self.way {
            Way::Own(own) if self.replicas.is_none() => {
                own.ready(slot).map(|(link, session)| Quick::new(link, session))
            }
            _ => None,
        }
    }

    /// Reports an error that the connection has not seen.
    pub(crate) fn noticed(&self, error: &StoreError) {
        if let (Way::Own(own), true) = (&self.way, error.is_unknown()) {
            own.doubt();
        }
    }

    /// The error of a step that had no answer in time. Something was sent, so whether it was
    /// carried out is not known, whatever became of the connection since.
    pub(crate) fn timed_out(&self, slot: u16) -> StoreError {
        timed_out_since(self.name(), self.limit, self.failure(slot))
    }

    /// Returns the reason if the connection is down.
    fn failure(&self, slot: u16) -> Option<StoreError> {
        let Way::Own(own) = &self.way else { return None };
        own.doubt();
        own.failure(slot)
    }

    /// Refuses a cluster that does not serve all keys.
    pub(crate) fn must_cover(&self) -> Result<(), StoreError> {
        match &self.way {
            Way::Own(own) => own.must_cover(),
            Way::Given(_) => Ok(()),
        }
    }

    pub(crate) fn slot(&self, key: &str) -> u16 {
        match &self.way {
            Way::Own(own) => own.slot(key),
            Way::Given(_) => 0,
        }
    }

    /// Of two keys with one number, one script can do both.
    pub(crate) fn group(&self, key: &str) -> u16 {
        if self.is_cluster() { hash_slot::of(key) } else { 0 }
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
