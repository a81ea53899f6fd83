//! The steps that a body has begun.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use futures_util::future::{BoxFuture, WeakShared};

use crate::adapter::engine::{Companion, Runtime};
use crate::record::{Owner, RecordId};
use crate::{Error, KeyDigest};

/// The look for a run in the store.
pub(super) type LookForRun = BoxFuture<'static, Result<Owner, Error>>;

/// The steps that a body has begun.
#[derive(Default)]
pub(super) struct BegunSteps {
    pub(super) names: Mutex<BegunNames>,
    /// The run that they belong to.
    pub(super) run: OnceLock<Owner>,
    /// The look for the run of those beside the transaction of the call: one for all, because each
    /// would begin a run. Whoever waits for it polls it, so no step waits for one that is not polled.
    pub(super) beside: Mutex<Option<WeakShared<LookForRun>>>,
    /// The run of those in the transaction of the call.
    pub(super) run_inside: OnceLock<Owner>,
    /// The record of the run is known to stay as long as the steps.
    pub(super) stays: AtomicBool,
}

#[derive(Default)]
pub(super) struct BegunNames {
    /// Counts how often the body was begun.
    pub(super) tries: u32,
    /// The last try that began this step.
    pub(super) steps: HashMap<KeyDigest, u32>,
    /// Those that are removed after the outcome.
    pub(super) ids: Vec<RecordId>,
}

impl BegunSteps {
    pub(super) fn names(&self) -> MutexGuard<'_, BegunNames> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Companion for BegunSteps {
    fn begin_try(&self) {
        self.names().tries += 1;
    }

    fn run(&self) -> Option<Owner> {
        self.run.get().copied()
    }

    fn stays(&self) -> bool {
        self.run().is_none() || self.stays.load(Ordering::Relaxed)
    }

    fn recorded(&self, runtime: &Arc<Runtime>, call: &RecordId, attempt: u64) {
        self.remove_steps(runtime, call, attempt);
    }
}
