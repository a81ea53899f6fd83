//! The steps of the body that runs under a record.

use std::sync::Arc;

use super::OwnedRecord;
use super::state::{OutcomeSource, OwnedState};
use crate::policy::step_settings::StepSettings;
use crate::record::{Origin, RecordId};
use crate::runtime::Runtime;
use crate::task::steps::{Holder, StepScope};

impl OwnedRecord {
    /// Returns what the steps of the body need.
    pub(crate) fn step_scope(&self, runtime: &Arc<Runtime>, settings: StepSettings) -> StepScope {
        let term = &self.term;
        let details = self.state.as_ref().map(|state| &state.details);
        let origin = details.map_or(Origin::Abandoned, |details| details.origin);
        StepScope::new(
            runtime.clone(),
            settings,
            term.length(),
            details.and_then(|details| details.fingerprint),
            (Holder::Lease(term.clone()), origin),
        )
    }

    /// Sets the steps that are removed once the outcome is recorded.
    pub(crate) fn set_steps_to_remove(&mut self, steps: Vec<RecordId>) {
        if let Some(state) = &mut self.state {
            state.source = OutcomeSource::Body { steps };
        }
    }

    /// Sets whether the body has begun steps, so that a released record names their run.
    pub(crate) fn set_has_steps(&mut self, has_steps: bool) {
        if let Some(state) = &mut self.state {
            state.has_steps = has_steps;
        }
    }
}

impl OwnedState {
    /// Removes the steps of the call, in the background.
    pub(super) fn remove_steps(&mut self) {
        if let OutcomeSource::Body { steps } = &mut self.source {
            let steps = std::mem::take(steps);
            let term = &self.enrolled.term;
            self.runtime.remove_steps(&term.id, term.attempt, steps);
        }
    }
}
