//! The runtime: a store, the settings, and what the calls of a process share.

pub(crate) mod admission;
pub(crate) mod background;
pub(crate) mod builder;
pub(crate) mod flight;
pub(crate) mod handle;
pub(crate) mod rejected;
pub(crate) mod trace;
pub(crate) mod undoing;

use std::any::Any;
use std::sync::Arc;

use crate::error::{ConfigError, Error, StoreError};
use crate::lease::keeper::LeaseKeepers;
use crate::observe::Observer;
use crate::outcome::codec::AnyCodec;
use crate::policy::errors::Then;
use crate::policy::settings::Settings;
use crate::record::{Owner, RecordId, RecordInfo, RecordState, is_step};
use crate::runtime::background::Background;
use crate::runtime::flight::Flights;
use crate::runtime::rejected::{Rejected, of_failure};
use crate::runtime::trace::TraceContext;
use crate::runtime::undoing::Undoing;
use crate::store::AnyStore;

/// A store, its settings, and the state that calls of one process share.
pub(crate) struct Runtime {
    pub(crate) store: AnyStore,
    pub(crate) settings: Settings,
    pub(crate) config: RuntimeConfig,
    pub(crate) observer: Observer,
    pub(crate) flights: Arc<Flights>,
    /// One value of each type.
    shared: Vec<Arc<dyn Any + Send + Sync>>,
    pub(crate) keepers: LeaseKeepers,
    pub(crate) background: Arc<Background>,
    pub(crate) undoing: Arc<Undoing>,
}

/// The settings of a runtime that no operation can override.
pub(crate) struct RuntimeConfig {
    pub(crate) codec: AnyCodec,
    /// Each outcome that is written is read back, and what fails is reported.
    pub(crate) checks_outcomes: bool,
    /// Gives the trace context of the current call, if records keep it.
    pub(crate) trace: Option<TraceContext>,
    /// Each operation must state its fingerprint.
    pub(crate) is_strict: bool,
    /// The action on unlisted errors.
    pub(crate) unlisted: Then,
    /// An invalid setting: every call is refused.
    pub(crate) problem: Option<ConfigError>,
}

impl Runtime {
    /// Reports what the store failed with, and says it to the caller.
    pub(crate) fn failed(&self, id: &RecordId, error: StoreError) -> Error {
        self.observer
            .report(of_failure(&error), id, 0, Some(&error));
        Rejected::Store(error).error(id)
    }

    /// Looks at a record.
    pub(crate) async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, Error> {
        let found = self.store.inspect(id).await;
        found.map_err(|error| self.failed(id, error))
    }

    /// Looks up the run that goes on at a key, and whose steps a next attempt would see: in its
    /// record, or in that [beside](RecordId::beside) a transaction.
    pub(crate) async fn run_of(&self, id: &RecordId) -> Result<Option<Owner>, Error> {
        let failed = |error| self.failed(id, error);
        let found = self.inspect(id).await?;
        let may_be_beside = found
            .as_ref()
            .is_none_or(|found| matches!(found.state, RecordState::Released | RecordState::Issued));
        match found.and_then(|found| found.run) {
            None if may_be_beside && !is_step(id.operation()) => {
                let beside = id.beside();
                let found = self.store.inspect(&beside).await.map_err(failed)?;
                let Some(run) = found.and_then(|found| found.run) else {
                    return Ok(None);
                };
                let end = self
                    .store
                    .inspect(&beside.end_of(run))
                    .await
                    .map_err(failed)?;
                Ok(Some(run).filter(|_| end.is_none()))
            }
            run => Ok(run),
        }
    }

    /// Returns the value that a layer keeps for all calls of this runtime.
    pub(crate) fn shared<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let mut found = self.shared.iter().cloned();
        found.find_map(|shared| shared.downcast().ok())
    }

    /// Identifies this runtime among others in the process.
    pub(crate) fn identity(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }
}
