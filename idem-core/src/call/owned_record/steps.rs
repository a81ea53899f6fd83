//! The steps of the body that runs under a record.

use std::sync::Arc;

use super::OwnedRecord;
use super::state::{OutcomeSource, OwnedState};
use crate::policy::step_settings::{CallTimes, StepSettings};
use crate::runtime::Runtime;
use crate::runtime::steps::StepsToRemove;
use crate::task::steps::{BegunSteps, StepScope};

impl OwnedRecord {
    /// Returns what the steps of the body need.
    pub(crate) fn step_scope(&self, runtime: &Arc<Runtime>, settings: StepSettings) -> StepScope {
        let times = CallTimes {
            lease: self.term.length(),
            in_flight_expiry: self.term.hold(),
        };
        let fingerprint = self
            .state
            .as_ref()
            .and_then(|state| state.details.fingerprint);
        StepScope::new(runtime.clone(), settings, times, fingerprint)
    }

    /// Sets the steps that are removed once the outcome is recorded.
    pub(crate) fn set_steps_to_remove(&mut self, steps: Option<Box<BegunSteps>>) {
        if let Some(state) = &mut self.state {
            state.source = OutcomeSource::Body { steps };
        }
    }
}

impl OwnedState {
    /// Removes the steps of the call, in the background.
    pub(super) fn remove_steps(&mut self, is_unsure: bool) {
        let OutcomeSource::Body { steps } = &mut self.source else {
            return;
        };
        let Some(steps) = steps.take() else { return };
        let term = &self.enrolled.term;
        self.runtime.remove_steps(StepsToRemove {
            call: term.id.clone(),
            attempt: term.attempt,
            steps: steps.into_ids(),
            ttl: self.details.times.ttl(),
            is_unsure,
        });
    }
}
