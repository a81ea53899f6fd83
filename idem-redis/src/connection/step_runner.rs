//! Runs the store's steps, with one time limit around each.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use futures_util::future::FutureExt as _;
use idem_core::StoreError;
use tokio::time::{Instant, timeout_at};

use crate::connection::clock;
use crate::connection::error::{timed_out, timed_out_since};
use crate::connection::fast_path::FastPath;
use crate::connection::given::Connection;
use crate::connection::hash_slot;
use crate::connection::managed::ManagedConnection;
use crate::connection::replicas::Replicas;
use crate::connection::step_connection::{GIVEN, StepConnection};
use crate::connection::target::Address;

/// Stands for a limit that is too long to add to an `Instant`: thirty years.
const LONGEST_LIMIT: Duration = Duration::from_secs(30 * 365 * 86_400);

/// Runs the steps of a store over one transport. It gives each step a connection and the limit.
pub(crate) struct StepRunner {
    transport: Transport,
    pub(crate) limit: Duration,
    replicas: Option<Replicas>,
}

enum Transport {
    Managed(ManagedConnection),
    Given(Connection),
}

impl StepRunner {
    pub(crate) fn managed(
        managed: ManagedConnection,
        limit: Duration,
        replicas: Option<Replicas>,
    ) -> Self {
        Self {
            transport: Transport::Managed(managed),
            limit,
            replicas,
        }
    }

    pub(crate) fn given(connection: Connection, limit: Duration) -> Self {
        Self {
            transport: Transport::Given(connection),
            limit,
            replicas: None,
        }
    }

    pub(crate) fn name(&self) -> &str {
        match &self.transport {
            Transport::Managed(managed) => managed.name(),
            Transport::Given(_) => GIVEN,
        }
    }

    /// Returns whether the application made the connection.
    pub(crate) fn is_given(&self) -> bool {
        matches!(self.transport, Transport::Given(_))
    }

    pub(crate) fn replicas(&self) -> Option<Replicas> {
        self.replicas
    }

    /// Returns whether commands go to the nodes of a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        match &self.transport {
            Transport::Managed(managed) => matches!(managed, ManagedConnection::Cluster(_)),
            Transport::Given(connection) => connection.is_cluster(),
        }
    }

    /// Runs a step on the record of a key, within the limit.
    pub(crate) async fn step<T, F>(
        &self,
        key: &str,
        step: impl FnOnce(StepConnection) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        self.step_at(self.slot(key), step).await
    }

    /// Runs a step at the node that has a slot, within the limit.
    pub(crate) async fn step_at<T, F>(
        &self,
        slot: u16,
        step: impl FnOnce(StepConnection) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let deadline = self.deadline();
        self.limited(slot, deadline, async {
            step(self.first_connection(slot, deadline).await?).await
        })
        .await
    }

    /// Runs a step that one command nearly always completes. If a session is ready, `fast_path`
    /// sends that command. It returns the result, or what it found out for `whole`, which then
    /// runs.
    ///
    /// Not an `async fn`, here and in `limited`: its future would hold the arguments twice, and
    /// every call holds such a future.
    pub(crate) fn step_with_fast_path<'a, T, N, Q, F>(
        &'a self,
        key: &str,
        fast_path: impl FnOnce(FastPath) -> Q + 'a,
        whole: impl FnOnce(StepConnection, Option<N>) -> F + 'a,
    ) -> impl Future<Output = Result<T, StoreError>>
    where
        T: 'a,
        N: 'a,
        Q: Future<Output = Result<Result<T, StoreError>, N>> + 'a,
        F: Future<Output = Result<T, StoreError>> + Send + 'a,
    {
        let slot = self.slot(key);
        let deadline = self.deadline();
        let step = async move {
            let known = match self.fast_path(slot) {
                Some(ready) => match fast_path(ready).await {
                    Ok(answer) => return answer,
                    Err(known) => Some(known),
                },
                None => None,
            };
            // In a box, because it is large and rarely runs.
            let whole = async {
                let connection = match known {
                    None => self.first_connection(slot, deadline).await?,
                    Some(_) => self.connection(slot).await?,
                };
                whole(connection, known).await
            };
            Box::pin(whole).await
        };
        self.limited(slot, deadline, step)
    }

    fn deadline(&self) -> Instant {
        let now = clock::now();
        now.checked_add(self.limit)
            .unwrap_or_else(|| now + LONGEST_LIMIT)
    }

    /// Returns the connection for a step's first command. Until there is one, no command is sent,
    /// and the error says so.
    async fn first_connection(
        &self,
        slot: u16,
        deadline: Instant,
    ) -> Result<StepConnection, StoreError> {
        match timeout_at(deadline, self.connection(slot)).await {
            Ok(connection) => connection,
            Err(_) => Err(self
                .failure(slot)
                .unwrap_or_else(|| timed_out(self.name(), self.limit))),
        }
    }

    fn limited<'a, T>(
        &'a self,
        slot: u16,
        deadline: Instant,
        step: impl Future<Output = Result<T, StoreError>> + 'a,
    ) -> impl Future<Output = Result<T, StoreError>> {
        timeout_at(deadline, step).map(move |outcome| match outcome {
            Ok(outcome) => outcome.inspect_err(|error| self.note_error(error)),
            Err(_) => Err(self.timed_out(slot)),
        })
    }

    /// Returns the fast path, if the store's own session is ready. With `replicas`, a step is never
    /// one command: each waits for acknowledgements.
    fn fast_path(&self, slot: u16) -> Option<FastPath> {
        match &self.transport {
            Transport::Managed(managed) if self.replicas.is_none() => managed
                .ready(slot)
                .map(|(link, session)| FastPath::new(link, session)),
            _ => None,
        }
    }

    /// Takes note of an error that leaves open whether the step was carried out.
    pub(crate) fn note_error(&self, error: &StoreError) {
        if let (Transport::Managed(managed), true) = (&self.transport, error.is_unknown()) {
            managed.schedule_refresh();
        }
    }

    /// Returns the error of a step that had no answer in time. It was sent, so it may have been
    /// carried out, even if the connection has failed since.
    pub(crate) fn timed_out(&self, slot: u16) -> StoreError {
        timed_out_since(self.name(), self.limit, self.failure(slot))
    }

    /// Returns why there is no connection, after a timeout. If there is one, asks whether it still
    /// answers.
    fn failure(&self, slot: u16) -> Option<StoreError> {
        let Transport::Managed(managed) = &self.transport else {
            return None;
        };
        managed.schedule_refresh();
        managed.probe(slot);
        managed.failure(slot)
    }

    /// Refuses a cluster that does not serve all keys.
    pub(crate) fn check_coverage(&self) -> Result<(), StoreError> {
        match &self.transport {
            Transport::Managed(managed) => managed.check_coverage(),
            Transport::Given(_) => Ok(()),
        }
    }

    pub(crate) fn slot(&self, key: &str) -> u16 {
        match &self.transport {
            Transport::Managed(managed) => managed.slot(key),
            Transport::Given(_) => 0,
        }
    }

    /// Returns the same number for two keys that one script can write.
    pub(crate) fn group(&self, key: &str) -> u16 {
        if self.is_cluster() {
            hash_slot::slot(key)
        } else {
            0
        }
    }

    /// Returns the node of a cluster that has a slot, as far as is known.
    pub(crate) fn node(&self, slot: u16) -> Option<Address> {
        match &self.transport {
            Transport::Managed(ManagedConnection::Cluster(cluster)) => cluster.node(slot),
            _ => None,
        }
    }

    /// Returns all slots of the node that has this one.
    pub(crate) fn slots_beside(&self, slot: u16) -> BTreeSet<u16> {
        match &self.transport {
            Transport::Managed(ManagedConnection::Cluster(cluster)) => cluster.slots_beside(slot),
            _ => BTreeSet::from([0]),
        }
    }

    /// Has a cluster asked now which node has which slots.
    pub(crate) async fn refresh_slots(&self) -> Result<(), StoreError> {
        match &self.transport {
            Transport::Managed(ManagedConnection::Cluster(cluster)) => cluster.refresh().await,
            _ => Ok(()),
        }
    }

    /// Returns one slot of each master.
    pub(crate) fn slots(&self) -> Vec<u16> {
        match &self.transport {
            Transport::Managed(managed) => managed.slots(),
            Transport::Given(_) => vec![0],
        }
    }

    pub(crate) async fn connection(&self, slot: u16) -> Result<StepConnection, StoreError> {
        match &self.transport {
            Transport::Managed(managed) => {
                StepConnection::managed(managed.clone(), slot, self.replicas).await
            }
            Transport::Given(connection) => Ok(StepConnection::given(connection.clone())),
        }
    }
}

impl fmt::Debug for StepRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
