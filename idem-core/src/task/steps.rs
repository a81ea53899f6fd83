//! The steps that a body has begun, and what they need of its call.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::encoding::fingerprint::Fingerprint;
use crate::policy::settings::Settings;
use crate::policy::step_settings::{CallTimes, StepSettings};
use crate::record::RecordId;
use crate::runtime::Runtime;

/// The part of a call that the steps of its body need.
pub(crate) struct StepScope {
    runtime: Arc<Runtime>,
    settings: StepSettings,
    times: CallTimes,
    fingerprint: Option<Fingerprint>,
    /// The body is in a transaction that is the only writer.
    is_only_writer: bool,
    /// `None` until there is a step: most calls have none.
    begun: Mutex<Option<Box<BegunSteps>>>,
}

/// The steps that a body has begun.
#[derive(Debug, Default)]
pub(crate) struct BegunSteps {
    /// Counts the runs of the body.
    run: u32,
    /// The last run that began this step.
    steps: HashMap<RecordId, u32>,
}

impl StepScope {
    pub(crate) fn new(
        runtime: Arc<Runtime>,
        settings: StepSettings,
        times: CallTimes,
        fingerprint: Option<Fingerprint>,
    ) -> Self {
        Self {
            runtime,
            settings,
            times,
            fingerprint,
            is_only_writer: false,
            begun: Mutex::new(None),
        }
    }

    /// For a body in a transaction.
    pub(crate) fn only_writer(self, is_only_writer: bool) -> Self {
        Self {
            is_only_writer,
            ..self
        }
    }

    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// A step is for the request of its call, and for no other.
    pub(crate) fn fingerprint(&self) -> Option<Fingerprint> {
        self.fingerprint
    }

    pub(crate) fn is_only_writer(&self) -> bool {
        self.is_only_writer
    }

    pub(crate) fn settings(&self, lease: Option<Duration>) -> Settings {
        self.settings
            .of_step(&self.runtime.settings, self.times, lease)
    }

    /// The body runs from its beginning.
    pub(super) fn begin_run(&self) {
        if let Some(begun) = &mut *self.begun.lock().unwrap_or_else(PoisonError::into_inner) {
            begun.run += 1;
        }
    }

    /// Begins a step. `false`: this run of the body has begun it before.
    pub(crate) fn begin(&self, step: &RecordId) -> bool {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = begun.get_or_insert_default();
        begun.steps.insert(step.clone(), begun.run) != Some(begun.run)
    }

    /// Takes the steps of all runs, which are of no use once the outcome of the call is recorded.
    pub(super) fn take(&self) -> Option<Box<BegunSteps>> {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.take()
    }
}

impl BegunSteps {
    /// The records of the steps.
    pub(crate) fn into_ids(self) -> Vec<RecordId> {
        self.steps.into_keys().collect()
    }
}
