//! A key that a call of this process owns, from the claim to the commit or release.
//!
//! If it is dropped while the body runs, the record stays as it is: the body was cut somewhere, so
//! the lease has to expire. If it is dropped during a commit or release, that continues in the
//! background, like one that the store did not accept. The body is over, and its outcome must not
//! be lost. Between two tries no body runs, and a drop releases.

mod by_hand;
mod retrying;
mod steps;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use self::retrying::Retrying;
use crate::base::clock;
use crate::call::audit::By;
use crate::call::plan::{GiveUp, RecordPlan};
use crate::call::request::{CallKind, Request};
use crate::call::retention::Retention;
use crate::encoding::fingerprint::Fingerprint;
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::lease::keeper::Enrolled;
use crate::lease::term::Term;
use crate::observe::Decision;
use crate::outcome::codec::TypeLabel;
use crate::policy::settings::{keep_for, keep_released, seconds};
use crate::record::{
    AsClaimed, Audit, Commit, Encoded, Origin, Ownership, RecordState, Release, ReleaseTo,
};
use crate::runtime::Runtime;
use crate::runtime::flight::{FlightSeat, SharedAnswer};
use crate::runtime::local_cache::Sending;
use crate::runtime::outcome_writer::OutcomeWriter;
use crate::runtime::trace::{self, CallTrace, traced};
use crate::task::steps::BegunSteps;
use crate::task::transaction_recorder::TransactionRecorder;

/// The message for a late owner.
const NOT_THE_OWNER: &str = "nothing was recorded: another caller has claimed the key since, or the store has forgotten this claim (restarted without its data, evicted, failed over)";

/// The message for an owner whose body fails after it has succeeded.
const RECORDED: &str = "nothing was released: the transaction of the body's `commit_in` has recorded its outcome, which duplicates get, although the body returned an error after it";

/// The result of a claim for its owner. [`OwnedRecord`] has more, which is only needed once the body
/// starts.
pub(crate) struct ClaimedLease {
    pub(crate) enrolled: Enrolled,
    pub(crate) origin: Origin,
    pub(crate) seat: Option<Box<FlightSeat>>,
}

/// The owner's end of a record in flight.
pub(crate) struct OwnedRecord {
    term: Arc<Term>,
    /// `None` only once it was moved to the background.
    state: Option<OwnedState>,
}

struct OwnedState {
    // Before the runtime, so that the last lease is gone when the runtime tells its keepers to end.
    enrolled: Enrolled,
    runtime: Arc<Runtime>,
    seat: Option<Box<FlightSeat>>,
    origin: Origin,
    fingerprint: Option<Fingerprint>,
    times: Retention,
    /// No record ends before this.
    least_secs: u32,
    step: Stage,
    /// Of the first try of a commit: one whose reply was lost has begun the outcome's retention.
    sending: Option<Sending>,
    /// The outcome is not that of a body, but one that is known otherwise.
    settles: bool,
    /// What the record says of the outcome's type.
    label: TypeLabel,
    trace: Option<Arc<CallTrace>>,
    /// The operator who records the outcome by hand, and the reason.
    audit: Option<Box<By>>,
    /// The steps that are of no use any more once the outcome is recorded.
    steps: Option<Box<BegunSteps>>,
    kind: CallKind,
    /// It is recorded.
    committed: bool,
    /// A release was sent that may have been carried out although no answer came.
    doubtful: bool,
    /// Why a step was refused, if one is.
    refused: Refused,
}

/// Why a step is refused.
#[derive(Clone, Copy)]
enum Refused {
    NotTheOwner,
    /// A transaction of the body has recorded the outcome.
    Recorded,
}

/// The owner's progress.
enum Stage {
    /// The body has not ended.
    Running,
    /// The body has ended, and this is to be recorded: `None` for an outcome that cannot be
    /// written. With a time of its own, it is kept and remembered for that.
    Committing {
        outcome: Option<Encoded>,
        own: Option<Duration>,
    },
    /// The body has ended, and the key is to be given up.
    Releasing(GiveUp),
    /// Nothing is left to do.
    Over,
}

/// The result of a step at the store.
enum Tried {
    /// It is over, one way or the other.
    Over(Ownership),
    /// It may be tried again.
    Failed(StoreError),
    /// Somebody else's data stands at the key: there is nothing to try again.
    Hopeless(StoreError),
}

impl OwnedRecord {
    pub(crate) fn new(runtime: &Arc<Runtime>, request: &Request, owned: ClaimedLease) -> Self {
        let ClaimedLease {
            enrolled,
            origin,
            mut seat,
        } = owned;
        if let Some(seat) = &mut seat {
            seat.owns(request.fingerprint, enrolled.term.clone());
        }
        let settings = &request.settings;
        let state = OwnedState {
            runtime: runtime.clone(),
            enrolled,
            seat,
            origin,
            fingerprint: request.fingerprint,
            times: Retention::new(settings.ttl(), settings.remember()),
            least_secs: settings.least_secs,
            step: Stage::Running,
            sending: None,
            settles: false,
            label: request.type_label(),
            trace: request.trace.clone(),
            audit: None,
            steps: None,
            kind: request.kind,
            committed: false,
            doubtful: false,
            refused: Refused::NotTheOwner,
        };
        Self {
            term: state.enrolled.term.clone(),
            state: Some(state),
        }
    }

    pub(crate) fn term(&self) -> &Arc<Term> {
        &self.term
    }

    /// Encodes the outcome; `None` once the step is in the background.
    pub(crate) fn writer(&self) -> Option<OutcomeWriter<'_>> {
        let state = self.state.as_ref()?;
        Some(OutcomeWriter {
            runtime: &state.runtime,
            id: &self.term.id,
            attempt: self.term.attempt,
            label: state.label,
            trace: state.trace.as_ref(),
        })
    }

    /// Whether the attempt before was cut off.
    pub(crate) fn after_abandoned(&self) -> bool {
        self.state
            .as_ref()
            .is_some_and(|state| state.origin == Origin::Abandoned)
    }

    /// The body has ended, or pauses before its next try, and this is what is left to do.
    pub(crate) fn plan(&mut self, plan: RecordPlan) {
        let Some(state) = &mut self.state else { return };
        state.step = match plan {
            RecordPlan::Nothing => Stage::Over,
            RecordPlan::RecordedInTransaction => return self.mark_recorded_in_transaction(),
            RecordPlan::Commit { outcome, kept_for } => Stage::Committing {
                outcome,
                own: kept_for.map(keep_for),
            },
            RecordPlan::GiveUp(give_up) => Stage::Releasing(give_up),
        };
    }

    /// Returns the state that a transaction needs to record the outcome.
    pub(crate) fn recorder(&self, observes: bool) -> Option<TransactionRecorder> {
        let state = self.state.as_ref()?;
        Some(TransactionRecorder {
            runtime: state.runtime.clone(),
            term: self.term.clone(),
            fingerprint: state.fingerprint,
            ttl: state.times.ttl(),
            remember: state.times.remember(),
            label: state.label,
            trace: state.trace.clone(),
            observes,
        })
    }

    /// The body's own transaction recorded the outcome, or the lease decides after its rollback.
    pub(crate) fn mark_recorded_in_transaction(&mut self) {
        if let Some(state) = &mut self.state {
            state.step = Stage::Over;
            let term = &self.term;
            state
                .runtime
                .observer
                .decided(Decision::Executed, &term.id, term.attempt);
            // The transaction may have been rolled back.
            state.remove_steps(true);
        }
    }

    /// Returns whether the record is still in flight, by a renewal: a look would miss a commit that
    /// is under way. Without an answer, it may not be.
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

    /// The body runs again.
    pub(crate) fn goes_on(&mut self) {
        if let Some(state) = &mut self.state {
            state.step = Stage::Running;
        }
    }

    /// Tries once what is left to do. If it fails, or this call goes no further meanwhile, it goes
    /// on in the background. `false`: this was a commit, and it is not recorded.
    pub(crate) async fn carry_out(&mut self) -> bool {
        let Some(state) = &mut self.state else {
            return true;
        };
        let commits = matches!(state.step, Stage::Committing { .. });
        let tried = state.try_step().await;
        let is_recorded = !commits || matches!(tried, Tried::Over(Ownership::Held));
        match tried {
            Tried::Over(ownership) => state.finish(ownership),
            // Dropped, this sees that a step is left.
            Tried::Failed(error) => state.delayed(&error),
            Tried::Hopeless(error) => state.give_up(&error),
        }
        is_recorded
    }

    /// The body was stopped because the lease was lost.
    pub(crate) fn lost(&mut self) -> Error {
        if let Some(state) = &mut self.state {
            state.step = Stage::Over;
            let (observer, term) = (state.runtime.observer, &self.term);
            observer.decided_because(
                Decision::LeaseLost,
                &term.id,
                term.attempt,
                &term.why_lost(),
            );
        }
        self.term.lost_error()
    }

    /// Tries what is left to do, for leases that are held by hand: a failure is the caller's, who
    /// may try again.
    pub(crate) async fn try_out(&mut self) -> Result<(), Error> {
        match &mut self.state {
            Some(state) => state.try_by_hand().await,
            None => Ok(()),
        }
    }

    /// Gives the key up by hand: no body of this call has run.
    pub(crate) async fn give_back(mut self, by: Option<Box<By>>) -> Result<(), Error> {
        if let Some(state) = &mut self.state {
            (state.settles, state.audit) = (true, by);
        }
        self.plan(RecordPlan::GiveUp(GiveUp::Release));
        self.try_out().await
    }

    /// Records an outcome that is known although no body of this call has run. One that cannot be
    /// written leaves the record abandoned.
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
            state.settles = true;
            if let Some(audit) = by
                .as_ref()
                .and_then(|by| Audit::new(&by.who, &by.why, state.times.ttl()))
            {
                outcome.describe(|metadata| metadata.audit = Some(audit));
            }
            state.audit = by;
            outcome = traced(state.trace.as_ref(), outcome);
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
        let Some(state) = self.state.take() else {
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

impl OwnedState {
    async fn try_step(&mut self) -> Tried {
        let term = &*self.enrolled.term;
        let (id, owner, attempt, store) = (
            term.id.clone(),
            term.owner,
            term.attempt,
            &self.runtime.store,
        );
        // Another process may remove a step, which a cache would not notice.
        if self.sending.is_none() && self.kind == CallKind::Call {
            self.sending = self.runtime.cache.as_ref().map(|cache| cache.sending(&id));
        }
        if let Some(seat) = &self.seat {
            seat.sends();
        }
        let answer = match &self.step {
            Stage::Committing { outcome, own } => {
                let (outcome, fingerprint, times) =
                    (outcome.clone(), self.fingerprint, self.times_with(*own));
                let (ttl, remember) = (times.ttl(), times.remember());
                let as_claimed = AsClaimed {
                    origin: self.origin,
                    lease: term.length(),
                    hold: term.hold(),
                };
                let (as_claimed, trace) = (Some(as_claimed), trace::of(self.trace.as_ref()));
                store.commit(Commit {
                    id,
                    owner,
                    attempt,
                    fingerprint,
                    outcome,
                    ttl,
                    remember,
                    as_claimed,
                    trace,
                })
            }
            Stage::Releasing(how) => {
                let to = match how {
                    GiveUp::Abandon => ReleaseTo::Abandoned,
                    GiveUp::Unanswered => ReleaseTo::Unanswered,
                    GiveUp::Release => {
                        let keep = keep_released(self.times.ttl(), term.length(), self.least_secs);
                        ReleaseTo::Released { keep }
                    }
                };
                store.release(Release { id, owner, to })
            }
            Stage::Running | Stage::Over => return Tried::Over(Ownership::Held),
        };
        // A caller that goes away before the answer leaves a release of unknown fate.
        let was_doubtful = self.doubtful;
        self.doubtful |= matches!(self.step, Stage::Releasing { .. });
        let answer = answer.await;
        self.doubtful =
            was_doubtful || (self.doubtful && answer.as_ref().is_err_and(StoreError::is_unknown));
        match answer {
            Ok(Ownership::Held) => {
                self.cache();
                Tried::Over(Ownership::Held)
            }
            Ok(Ownership::Lost) => Tried::Over(Box::pin(self.after_all()).await),
            Err(error) if error.kind() == StoreErrorKind::TooLarge && self.leaves_out_outcome() => {
                self.not_encoded(&error);
                Box::pin(self.try_step()).await
            }
            Err(error) if self.is_hopeless(&error) => Tried::Hopeless(error),
            Err(error) => Tried::Failed(error),
        }
    }

    /// Whether the step would never be carried out. Without an outcome, none is too large: then the
    /// store lacks something that it may have again.
    fn is_hopeless(&self, error: &StoreError) -> bool {
        match error.kind() {
            StoreErrorKind::Unreadable => true,
            StoreErrorKind::TooLarge => self.settles,
            _ => false,
        }
    }

    /// Leaves the outcome out of its commit: rather done without it than done again. `false`: there
    /// is none to leave out.
    fn leaves_out_outcome(&mut self) -> bool {
        match &mut self.step {
            // What an operator settles must be what duplicates get.
            Stage::Committing { outcome, .. } if !self.settles => outcome.take().is_some(),
            _ => false,
        }
    }

    fn not_encoded(&self, why: &dyn std::fmt::Display) {
        let term = &self.enrolled.term;
        self.runtime
            .observer
            .decided_because(Decision::NotEncoded, &term.id, term.attempt, why);
    }

    /// Returns the result of a step that was refused: a store that repeats a release by itself may
    /// find nothing left to release.
    async fn after_all(&mut self) -> Ownership {
        let term = &self.enrolled.term;
        let releases = matches!(self.step, Stage::Releasing(GiveUp::Release));
        if self.doubtful || !(releases || term.may_be_recorded()) {
            return Ownership::Lost;
        }
        let Ok(Some(found)) = self.runtime.store.inspect(&term.id).await else {
            return Ownership::Lost;
        };
        if term.recorded(&found) {
            self.refused = Refused::Recorded;
        }
        let is_released = found.state == RecordState::Released && found.attempt == term.attempt;
        if releases && is_released {
            Ownership::Held
        } else {
            Ownership::Lost
        }
    }

    /// With a time of its own, an outcome is remembered for no longer.
    fn times_with(&self, own: Option<Duration>) -> Retention {
        own.map_or(self.times, |own| {
            Retention::new(own, own.max(seconds(self.least_secs)))
        })
    }

    /// Keeps the outcome, if this was a commit, for duplicates that come to this process.
    fn cache(&self) {
        if let (
            Some(cache),
            Some(sending),
            Stage::Committing {
                outcome: Some(outcome),
                own,
            },
        ) = (&self.runtime.cache, self.sending, &self.step)
        {
            let term = &self.enrolled.term;
            let (kept, ttl) = ((term.attempt, outcome), self.times_with(*own).ttl());
            cache.committed(sending, &term.id, self.fingerprint, kept, ttl);
        }
    }

    /// Reports what the store said of the step, and tells the other calls.
    fn finish(&mut self, ownership: Ownership) {
        let term = &self.enrolled.term;
        let (decision, ending) =
            match (std::mem::replace(&mut self.step, Stage::Over), ownership) {
                (Stage::Committing { .. }, Ownership::Held) if self.committed => return,
                (Stage::Committing { outcome, .. }, Ownership::Held) => {
                    self.committed = true;
                    let decision = match &outcome {
                        _ if self.settles => Decision::Settled,
                        Some(outcome) if outcome.is_error => Decision::ErrorKept,
                        _ => Decision::Executed,
                    };
                    let attempt = term.attempt;
                    (
                        decision,
                        Some(outcome.map_or(SharedAnswer::Done, |outcome| {
                            SharedAnswer::Committed { attempt, outcome }
                        })),
                    )
                }
                (Stage::Committing { .. }, Ownership::Lost) => (Decision::CommitRefused, None),
                (Stage::Releasing(_), Ownership::Lost) if !self.doubtful => {
                    (Decision::ReleaseRefused, None)
                }
                // Or it was before, when its reply was lost.
                (Stage::Releasing(GiveUp::Release), _) if self.settles => {
                    (Decision::ReleasedByHand, None)
                }
                (Stage::Releasing(GiveUp::Release), _) => (Decision::Released, None),
                (Stage::Releasing(GiveUp::Abandon | GiveUp::Unanswered), _) => {
                    (Decision::Abandoned, None)
                }
                (Stage::Running | Stage::Over, _) => return,
            };
        // Nothing is left to renew, nor to lose.
        term.end();
        self.enrolled.stop();
        if ending.is_some() {
            self.remove_steps(false);
        }
        let (observer, term) = (self.runtime.observer, &self.enrolled.term);
        match decision {
            Decision::CommitRefused | Decision::ReleaseRefused => {
                let why = match self.refused {
                    Refused::NotTheOwner => NOT_THE_OWNER,
                    Refused::Recorded => RECORDED,
                };
                observer.decided_because(decision, &term.id, term.attempt, &why);
            }
            Decision::Settled | Decision::ReleasedByHand => {
                let nothing = (decision == Decision::Settled && self.origin == Origin::Nothing)
                    .then_some("there was no record of this key");
                match (&self.audit, nothing) {
                    (Some(by), Some(nothing)) => {
                        observer.decided_because(
                            decision,
                            &term.id,
                            term.attempt,
                            &format_args!("{by}; {nothing}"),
                        );
                    }
                    (Some(by), None) => {
                        observer.decided_because(decision, &term.id, term.attempt, by);
                    }
                    (None, Some(nothing)) => {
                        observer.decided_because(decision, &term.id, term.attempt, &nothing);
                    }
                    (None, None) => observer.decided(decision, &term.id, term.attempt),
                }
            }
            _ => observer.decided(decision, &term.id, term.attempt),
        }
        if let Some(seat) = self.seat.take() {
            seat.ends(ending);
        }
    }

    /// Carries the step on in a task of its own.
    fn carry_on(mut self) {
        let bytes = match &self.step {
            Stage::Committing {
                outcome: Some(outcome),
                ..
            } => outcome.payload.len(),
            _ => 0,
        };
        let Some(counted) = self.runtime.background.step(bytes) else {
            return self
                .give_up(&"too many others are being tried again (10,000, or 64 MiB of outcomes)");
        };
        let handle = Handle::try_current()
            .ok()
            .or_else(|| self.runtime.keepers.known().another(None));
        Retrying {
            state: Some(self),
            counted: Some(counted),
            on: None,
            moves: 0,
        }
        .start(handle);
    }

    fn delayed(&mut self, error: &StoreError) {
        let decision = if let Stage::Committing { .. } = self.step {
            Decision::CommitDelayed
        } else {
            Decision::ReleaseDelayed
        };
        let term = &self.enrolled.term;
        self.runtime
            .observer
            .decided_because(decision, &term.id, term.attempt, error);
    }

    /// Leaves the step, and says so.
    fn give_up(&mut self, why: &dyn std::fmt::Display) {
        let decision = match std::mem::replace(&mut self.step, Stage::Over) {
            Stage::Committing { .. } => Decision::NotRecorded,
            Stage::Releasing(_) => Decision::NotReleased,
            Stage::Running | Stage::Over => return,
        };
        let term = &self.enrolled.term;
        self.runtime
            .observer
            .decided_because(decision, &term.id, term.attempt, why);
    }
}
