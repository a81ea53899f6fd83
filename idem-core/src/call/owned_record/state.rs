//! What a call needs to commit or release its record, and each step that it sends.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt as _;

use super::ClaimedLease;
use crate::call::audit::By;
use crate::call::judge::GiveUp;
use crate::call::request::Request;
use crate::call::retention::Retention;
use crate::encoding::fingerprint::Fingerprint;
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::lease::keeper::Enrolled;
use crate::observe::{Decision, Observer};
use crate::outcome::codec::TypeLabel;
use crate::policy::settings::{keep_released, seconds};
use crate::record::{
    AsClaimed, Commit, Encoded, Origin, Ownership, RecordId, RecordState, Release, ReleaseTo,
    is_step,
};
use crate::runtime::Runtime;
use crate::runtime::flight::FlightSeat;
use crate::runtime::local_cache::Sending;
use crate::runtime::rejected::Rejected;
use crate::runtime::trace::{self, CallMetadata};
use crate::store::{AnyStore, StepAnswer};

/// The message for a late owner.
const NOT_THE_OWNER: &str = "nothing was recorded: another caller has claimed the key since, or \
    the store has forgotten this claim (restarted without its data, evicted, failed over)";

/// The message for an owner whose body fails after it has succeeded.
const RECORDED: &str = "nothing was released: the transaction of the body's `commit_in` has \
    recorded its outcome, which duplicates get, although the body returned an error after it";

/// What a call needs to commit or release its record.
pub(super) struct OwnedState {
    // Dropped before the runtime: its keepers end when the runtime is dropped, and by then no lease
    // may be left.
    pub(super) enrolled: Enrolled,
    pub(super) runtime: Arc<Runtime>,
    pub(super) seat: Option<Box<FlightSeat>>,
    pub(super) details: RecordDetails,
    pub(super) step: Stage,
    /// The time when the first try of a commit was sent. If its reply was lost, the outcome's
    /// retention may have begun then.
    sending: Option<Sending>,
    pub(super) source: OutcomeSource,
    /// The body has begun steps.
    pub(super) has_steps: bool,
    /// The body has run more than once.
    pub(super) has_retried: bool,
    committed: bool,
    /// A release may have been carried out, although none was answered.
    may_be_released: bool,
    /// The reason to report if the store refuses a step.
    why_refused: &'static str,
}

/// What the claim fixed about the record.
pub(super) struct RecordDetails {
    pub(super) origin: Origin,
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) times: Retention,
    /// No record ends before this many seconds.
    least_secs: u32,
    pub(super) label: TypeLabel,
    pub(super) metadata: Option<Arc<CallMetadata>>,
}

/// Where the outcome comes from.
pub(super) enum OutcomeSource {
    /// The body. Its steps are removed once the outcome is recorded.
    Body { steps: Vec<RecordId> },
    /// An operator or the application, by hand.
    ByHand {
        /// Who made it and why, if they said so.
        audit: Option<Box<By>>,
    },
}

/// The owner's progress.
pub(super) enum Stage {
    /// The body has not ended.
    Running,
    /// The body has ended, and its outcome is to be recorded.
    Committing {
        /// `None` if it is left out: it failed to encode, is too large, or the body asked for that.
        outcome: Option<Encoded>,
        /// The outcome's own retention, in place of that of the operation.
        own: Option<Duration>,
    },
    /// The body has ended, and the key is to be given up.
    Releasing(GiveUp),
    /// Nothing is left to do.
    Over,
}

/// The result of a step at the store.
pub(super) enum Tried {
    /// The store carried it out, or refused it.
    Over(Ownership),
    /// It may be tried again.
    Failed(StoreError),
    /// The store would refuse it each time, such as for foreign data at the key.
    Hopeless(StoreError),
}

/// What the owner asks the store to do.
enum StepRequest {
    Commit(Commit),
    Release(Release),
}

impl StepRequest {
    /// Asks the store. It takes the request whole: a part of it that stayed in the caller's future
    /// would have room there while the store answers.
    fn send(self, store: &AnyStore) -> StepAnswer<'_, Ownership> {
        match self {
            Self::Commit(commit) => store.commit(commit),
            Self::Release(release) => store.release(release),
        }
    }
}

/// What the other calls and the operator learn from the end of a step.
struct StepEnd {
    decision: Decision,
    shared: Option<Rejected>,
}

impl StepEnd {
    fn unshared(decision: Decision) -> Self {
        Self {
            decision,
            shared: None,
        }
    }
}

impl OwnedState {
    pub(super) fn new(runtime: &Arc<Runtime>, request: &Request, owned: ClaimedLease) -> Self {
        let ClaimedLease {
            enrolled,
            origin,
            mut seat,
        } = owned;
        if let Some(seat) = &mut seat {
            seat.become_owner(request.fingerprint, enrolled.term.clone());
        }
        let settings = &request.settings;
        Self {
            runtime: runtime.clone(),
            enrolled,
            seat,
            details: RecordDetails {
                origin,
                fingerprint: request.fingerprint,
                times: Retention::new(settings.ttl(), settings.remember()),
                least_secs: settings.times.least_secs,
                label: request.type_label(),
                metadata: request.metadata.clone(),
            },
            step: Stage::Running,
            sending: None,
            source: OutcomeSource::Body { steps: Vec::new() },
            has_steps: false,
            has_retried: false,
            committed: false,
            may_be_released: false,
            why_refused: NOT_THE_OWNER,
        }
    }

    /// Marks the step as one by hand.
    pub(super) fn set_by_hand(&mut self, audit: Option<Box<By>>) {
        self.source = OutcomeSource::ByHand { audit };
    }

    fn is_by_hand(&self) -> bool {
        matches!(self.source, OutcomeSource::ByHand { .. })
    }

    /// Sends the step to the store once.
    pub(super) async fn try_step(&mut self) -> Tried {
        // A local cache would not notice that another process removed a step.
        if self.sending.is_none() && !is_step(self.enrolled.term.id.operation()) {
            let id = &self.enrolled.term.id;
            self.sending = self.runtime.cache.as_ref().map(|cache| cache.sending(id));
        }
        if let Some(seat) = &self.seat {
            seat.sending_step();
        }
        let Some(request) = self.request() else {
            return Tried::Over(Ownership::Held);
        };
        let answer = request.send(&self.runtime.store);
        // Set before the await: this future may be dropped there.
        let was_before = self.may_be_released;
        let releases = matches!(self.step, Stage::Releasing { .. });
        self.may_be_released |= releases;
        let answer = answer.await;
        let is_unknown = answer.as_ref().is_err_and(StoreError::is_unknown);
        self.may_be_released = was_before || (releases && is_unknown);
        match answer {
            Ok(Ownership::Held) => {
                self.cache();
                Tried::Over(Ownership::Held)
            }
            Ok(Ownership::Lost) => Tried::Over(self.after_refusal().boxed().await),
            Err(error) if error.kind() == StoreErrorKind::TooLarge && self.leaves_out_outcome() => {
                self.not_encoded(&error);
                Box::pin(self.try_step()).await
            }
            Err(error) if self.is_hopeless(&error) => Tried::Hopeless(error),
            Err(error) => Tried::Failed(error),
        }
    }

    /// Returns what to ask the store. `None`: nothing is left to do.
    fn request(&self) -> Option<StepRequest> {
        let term = &*self.enrolled.term;
        let details = &self.details;
        match &self.step {
            Stage::Committing { outcome, own } => {
                let times = self.times_with(*own);
                Some(StepRequest::Commit(Commit {
                    id: term.id.clone(),
                    owner: term.owner,
                    attempt: term.attempt,
                    fingerprint: details.fingerprint,
                    outcome: outcome.clone(),
                    ttl: times.ttl(),
                    remember: times.remember(),
                    as_claimed: Some(AsClaimed {
                        origin: details.origin,
                        lease: term.length(),
                        hold: term.hold(),
                    }),
                    claim_metadata: trace::of(details.metadata.as_ref()),
                }))
            }
            Stage::Releasing(how) => Some(StepRequest::Release(Release {
                id: term.id.clone(),
                owner: term.owner,
                to: match how {
                    GiveUp::Abandon => ReleaseTo::Abandoned,
                    GiveUp::Unanswered => ReleaseTo::Unanswered,
                    GiveUp::Release => ReleaseTo::Released {
                        keep: keep_released(details.times.ttl(), term.length(), details.least_secs),
                    },
                },
                names_run: self.has_steps,
            })),
            Stage::Running | Stage::Over => None,
        }
    }

    /// Whether the store would refuse the step each time. A commit without an outcome is not too
    /// large in itself: the store is short of something, which may change.
    fn is_hopeless(&self, error: &StoreError) -> bool {
        match error.kind() {
            StoreErrorKind::Unreadable => true,
            StoreErrorKind::TooLarge => self.is_by_hand(),
            _ => false,
        }
    }

    /// Leaves the outcome out of its commit, because a lost outcome is better than a second run of
    /// the body. Returns `false` if there is none to leave out.
    pub(super) fn leaves_out_outcome(&mut self) -> bool {
        let is_by_body = !self.is_by_hand();
        match &mut self.step {
            // Duplicates must get the outcome that an operator settled.
            Stage::Committing { outcome, .. } if is_by_body => outcome.take().is_some(),
            _ => false,
        }
    }

    pub(super) fn not_encoded(&self, why: &dyn Display) {
        let term = &self.enrolled.term;
        self.runtime
            .observer
            .decided_because(Decision::NotEncoded, &term.id, term.attempt, why);
    }

    /// Looks why the store refused a step. A store that repeats a release by itself may find
    /// nothing left to release, although its first try succeeded.
    async fn after_refusal(&mut self) -> Ownership {
        let term = &self.enrolled.term;
        let releases = matches!(self.step, Stage::Releasing(GiveUp::Release));
        if self.may_be_released || !(releases || term.may_be_recorded()) {
            return Ownership::Lost;
        }
        let Ok(Some(found)) = self.runtime.store.inspect(&term.id).await else {
            return Ownership::Lost;
        };
        if term.recorded(&found) {
            self.why_refused = RECORDED;
        }
        let is_released = found.state == RecordState::Released && found.attempt == term.attempt;
        if releases && is_released {
            Ownership::Held
        } else {
            Ownership::Lost
        }
    }

    /// Returns how long the outcome is kept and remembered: both are its own retention, if it has
    /// one.
    fn times_with(&self, own: Option<Duration>) -> Retention {
        own.map_or(self.details.times, |own| {
            Retention::new(own, own.max(seconds(self.details.least_secs)))
        })
    }

    /// Keeps a committed outcome in the local cache.
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
            let kept = (term.attempt, outcome);
            let ttl = self.times_with(*own).ttl();
            cache.committed(sending, &term.id, self.details.fingerprint, kept, ttl);
        }
    }

    pub(super) async fn try_by_hand(&mut self) -> Result<(), Error> {
        match self.try_step().await {
            Tried::Over(ownership) => {
                self.finish(ownership);
                match ownership {
                    Ownership::Held => Ok(()),
                    Ownership::Lost => Err(self.enrolled.term.lost_error()),
                }
            }
            Tried::Failed(error) => {
                self.delayed(&error);
                let term = &self.enrolled.term;
                Err(Error::Store {
                    operation: term.id.name().into(),
                    key: term.id.digest(),
                    source: error,
                })
            }
            Tried::Hopeless(error) => {
                self.give_up(&error);
                let operation = self.enrolled.term.id.name().into();
                let key = self.enrolled.term.id.digest();
                Err(Error::Codec {
                    operation,
                    key,
                    reason: error.to_string().into(),
                    is_message: false,
                })
            }
        }
    }

    /// Reports what the store said of the step, and tells the other calls.
    pub(super) fn finish(&mut self, ownership: Ownership) {
        let Some(StepEnd { decision, shared }) = self.end_step(ownership) else {
            return;
        };
        self.enrolled.term.end();
        self.enrolled.stop();
        if shared.is_some() {
            self.remove_steps();
        }
        self.report_end(decision);
        if let Some(seat) = self.seat.take() {
            seat.step_answered(shared);
        }
    }

    /// Marks the step as over. `None`: there is nothing to report.
    fn end_step(&mut self, ownership: Ownership) -> Option<StepEnd> {
        let is_by_hand = self.is_by_hand();
        let decision = match (std::mem::replace(&mut self.step, Stage::Over), ownership) {
            (Stage::Committing { .. }, Ownership::Held) if self.committed => return None,
            (Stage::Committing { outcome, .. }, Ownership::Held) => {
                self.committed = true;
                let decision = match &outcome {
                    _ if is_by_hand => Decision::Settled,
                    Some(outcome) if outcome.is_error => Decision::ErrorKept,
                    _ => Decision::Executed,
                };
                let attempt = self.enrolled.term.attempt;
                let shared = outcome.map_or(Rejected::Done, |outcome| Rejected::Committed {
                    attempt,
                    outcome,
                });
                return Some(StepEnd {
                    decision,
                    shared: Some(shared),
                });
            }
            (Stage::Committing { .. }, Ownership::Lost) => Decision::CommitRefused,
            (Stage::Releasing(_), Ownership::Lost) if !self.may_be_released => {
                Decision::ReleaseRefused
            }
            // Held, or the store released the record earlier and its reply was lost.
            (Stage::Releasing(GiveUp::Release), _) if is_by_hand => Decision::ReleasedByHand,
            (Stage::Releasing(GiveUp::Release), _) => Decision::Released,
            (Stage::Releasing(GiveUp::Abandon | GiveUp::Unanswered), _) => Decision::Abandoned,
            (Stage::Running | Stage::Over, _) => return None,
        };
        Some(StepEnd::unshared(decision))
    }

    fn report_end(&self, decision: Decision) {
        let observer = Observer {
            after_retries: self.has_retried,
            ..self.runtime.observer
        };
        let term = &self.enrolled.term;
        let because = |why: &dyn Display| {
            observer.decided_because(decision, &term.id, term.attempt, why);
        };
        let is_first = self.details.origin == Origin::Nothing;
        let no_record = (decision == Decision::Settled && is_first)
            .then_some("there was no record of this key");
        let audit = match &self.source {
            OutcomeSource::ByHand { audit } => audit.as_ref(),
            OutcomeSource::Body { .. } => None,
        };
        match decision {
            Decision::CommitRefused | Decision::ReleaseRefused => because(&self.why_refused),
            Decision::Settled | Decision::ReleasedByHand => match (audit, no_record) {
                (Some(by), Some(no_record)) => because(&format_args!("{by}; {no_record}")),
                (Some(by), None) => because(by),
                (None, Some(no_record)) => because(&no_record),
                (None, None) => observer.decided(decision, &term.id, term.attempt),
            },
            _ => observer.decided(decision, &term.id, term.attempt),
        }
    }

    pub(super) fn delayed(&mut self, error: &StoreError) {
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

    /// Gives the step up, and reports it.
    pub(super) fn give_up(&mut self, why: &dyn Display) {
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
