//! A key that a call of this process owns, from the claim to the commit or release.
//!
//! A call may be dropped at any time. While the body runs, a drop leaves the record as it is:
//! nobody knows how far the body came, so its lease has to expire. During a commit or release, a
//! drop continues the step in the background, because the body is over and its outcome must not be
//! lost. A step that the store did not accept continues there too. Between two tries no body runs,
//! so a drop releases the key.

mod retrying;
mod state;
mod steps;

use std::sync::Arc;

use self::state::{OwnedState, Stage, Tried};
use crate::base::clock;
use crate::call::audit::By;
use crate::call::judge::{GiveUp, RecordPlan};
use crate::call::request::Request;
use crate::error::Error;
use crate::lease::keeper::Enrolled;
use crate::lease::term::Term;
use crate::observe::Decision;
use crate::policy::settings::keep_for;
use crate::record::{Audit, Encoded, Origin, Ownership};
use crate::runtime::Runtime;
use crate::runtime::flight::FlightSeat;
use crate::runtime::outcome_writer::OutcomeWriter;
use crate::runtime::trace::traced;
use crate::task::transaction_recorder::TransactionRecorder;

/// A successful claim. It is small; [`OwnedRecord`] adds what is needed once the body starts.
pub(crate) struct ClaimedLease {
    pub(crate) enrolled: Enrolled,
    pub(crate) origin: Origin,
    pub(crate) seat: Option<Box<FlightSeat>>,
}

/// The owner's end of a record in flight.
pub(crate) struct OwnedRecord {
    term: Arc<Term>,
    /// `None` once the step was moved to the background.
    state: Option<OwnedState>,
}

impl OwnedRecord {
    pub(crate) fn new(runtime: &Arc<Runtime>, request: &Request, owned: ClaimedLease) -> Self {
        let state = OwnedState::new(runtime, request, owned);
        Self {
            term: state.enrolled.term.clone(),
            state: Some(state),
        }
    }

    pub(crate) fn term(&self) -> &Arc<Term> {
        &self.term
    }

    /// Returns what encodes the outcome. `None` once the step is in the background.
    pub(crate) fn writer(&self) -> Option<OutcomeWriter<'_>> {
        let state = self.state.as_ref()?;
        Some(OutcomeWriter {
            runtime: &state.runtime,
            id: &self.term.id,
            attempt: self.term.attempt,
            label: state.details.label,
            metadata: state.details.metadata.as_ref(),
        })
    }

    /// Whether the previous attempt was cut off.
    pub(crate) fn after_abandoned(&self) -> bool {
        self.state
            .as_ref()
            .is_some_and(|state| state.details.origin == Origin::Abandoned)
    }

    /// Sets the step that is left to do once the body has ended, or while it pauses before its next
    /// try.
    pub(crate) fn plan(&mut self, plan: RecordPlan) {
        let Some(state) = &mut self.state else { return };
        state.step = match plan {
            RecordPlan::RecordedByBody => return self.mark_recorded_in_transaction(),
            RecordPlan::Commit { outcome, kept_for } => Stage::Committing {
                outcome,
                own: kept_for.map(keep_for),
            },
            RecordPlan::GiveUp(give_up) => Stage::Releasing(give_up),
        };
    }

    /// Whether no step is left to do.
    pub(crate) fn is_over(&self) -> bool {
        self.state
            .as_ref()
            .is_none_or(|state| matches!(state.step, Stage::Over))
    }

    /// Plans the release of a key whose holder is gone, unless it was released. If the lease is
    /// lost, there is nothing to release.
    pub(crate) fn plan_release(&mut self) {
        let Some(state) = &mut self.state else { return };
        if !matches!(state.step, Stage::Running) {
            return;
        }
        if self.term.is_lost() {
            self.lost();
        } else {
            state.step = Stage::Releasing(GiveUp::Release);
        }
    }

    /// Returns the state that a transaction needs to record the outcome.
    pub(crate) fn recorder(&self, observes: bool) -> Option<TransactionRecorder> {
        let state = self.state.as_ref()?;
        Some(TransactionRecorder {
            runtime: state.runtime.clone(),
            term: self.term.clone(),
            fingerprint: state.details.fingerprint,
            ttl: state.details.times.ttl(),
            remember: state.details.times.remember(),
            label: state.details.label,
            metadata: state.details.metadata.clone(),
            observes,
        })
    }

    /// Leaves no step to do: a transaction of the body recorded the outcome. If it was rolled back,
    /// the lease expires.
    pub(crate) fn mark_recorded_in_transaction(&mut self) {
        if let Some(state) = &mut self.state {
            state.step = Stage::Over;
            let term = &self.term;
            state
                .runtime
                .observer
                .decided(Decision::Executed, &term.id, term.attempt);
        }
    }

    /// Asks the store, by a renewal, whether the record is still in flight. Reading the record
    /// would miss a commit that is under way. Without an answer this returns `false`.
    pub(crate) async fn is_in_flight(&self) -> bool {
        let Some(state) = &self.state else {
            return false;
        };
        let sent = clock::now();
        let answers = state.runtime.store.renew(&[self.term.renewal()]).await;
        let is_held = matches!(answers.first(), Some(Ok(Ownership::Held)));
        if is_held {
            self.term.renewed(sent);
        }
        is_held
    }

    /// Starts the body's next try.
    pub(crate) fn goes_on(&mut self) {
        if let Some(state) = &mut self.state {
            state.step = Stage::Running;
            state.has_retried = true;
        }
    }

    /// Tries the step once. If that fails, or this future is dropped, the step continues in the
    /// background. Returns `false` if the step was a commit and is not recorded yet.
    pub(crate) async fn carry_out(&mut self) -> bool {
        let Some(state) = &mut self.state else {
            return true;
        };
        let commits = matches!(state.step, Stage::Committing { .. });
        let tried = state.try_step().await;
        let is_recorded = !commits || matches!(tried, Tried::Over(Ownership::Held));
        match tried {
            Tried::Over(ownership) => state.finish(ownership),
            // The step stays set, so that dropping this continues it.
            Tried::Failed(error) => state.delayed(&error),
            Tried::Hopeless(error) => state.give_up(&error),
        }
        is_recorded
    }

    /// Reports that the body was stopped because the lease was lost, and returns that error.
    pub(crate) fn lost(&mut self) -> Error {
        if let Some(state) = &mut self.state {
            state.step = Stage::Over;
            let observer = state.runtime.observer;
            let term = &self.term;
            observer.decided_because(
                Decision::LeaseLost,
                &term.id,
                term.attempt,
                &term.why_lost(),
            );
        }
        self.term.lost_error()
    }

    /// Tries the step once, for leases that the application holds by hand. The caller gets the
    /// failure, and may try again.
    pub(crate) async fn try_out(&mut self) -> Result<(), Error> {
        match &mut self.state {
            Some(state) => state.try_by_hand().await,
            None => Ok(()),
        }
    }

    /// Releases the key by hand, without a body.
    pub(crate) async fn give_back(mut self, by: Option<Box<By>>) -> Result<(), Error> {
        if let Some(state) = &mut self.state {
            state.set_by_hand(by);
        }
        self.plan(RecordPlan::GiveUp(GiveUp::Release));
        self.try_out().await
    }

    /// Records an outcome by hand, without a body. If it failed to encode, the record stays
    /// abandoned.
    pub(crate) async fn settle(
        mut self,
        outcome: Result<Encoded, Error>,
        by: Option<Box<By>>,
    ) -> Result<(), Error> {
        let mut outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                self.plan(RecordPlan::GiveUp(GiveUp::Unanswered));
                self.carry_out().await;
                return Err(error);
            }
        };
        if let Some(state) = &mut self.state {
            if let Some(audit) = by
                .as_ref()
                .and_then(|by| Audit::new(&by.who, &by.why, state.details.times.ttl()))
            {
                outcome.describe(|metadata| metadata.audit = Some(audit));
            }
            state.set_by_hand(by);
            outcome = traced(state.details.metadata.as_ref(), outcome);
        }
        self.plan(RecordPlan::Commit {
            outcome: Some(outcome),
            kept_for: None,
        });
        self.try_out().await
    }
}

impl Drop for OwnedRecord {
    fn drop(&mut self) {
        // Not moved if it is over, as it is at the end of nearly every call.
        let goes_on = |state: &mut OwnedState| !matches!(state.step, Stage::Over);
        let Some(state) = self.state.take_if(goes_on) else {
            return;
        };
        match state.step {
            Stage::Over => {}
            Stage::Running => {
                let term = &state.enrolled.term;
                state
                    .runtime
                    .observer
                    .decided(Decision::CallerDropped, &term.id, term.attempt);
            }
            Stage::Committing { .. } | Stage::Releasing(_) => state.carry_on(),
        }
    }
}
