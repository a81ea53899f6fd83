//! A key that a call of this process owns, from the claim to the commit or release.
//!
//! A call may be dropped at any time. While the body runs, a drop leaves the record as it is:
//! nobody knows how far the body came, so its lease has to expire. During a commit or release, a
//! drop continues the step in the background, because the body is over and its outcome must not be
//! lost. A step that the store did not accept continues there too. Between two tries no body runs,
//! so a drop releases the key.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt as _;

use crate::base::clock;
use crate::call::judge::{GiveUp, StepLeft};
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::lease::keeper::Enrolled;
use crate::lease::term::Term;
use crate::observe::{Event, Observer};
use crate::policy::settings::keep_released;
use crate::record::{
    AsClaimed, By, Commit, Encoded, Origin, Ownership, RecordState, Release, ReleaseTo,
};
use crate::runtime::Runtime;
use crate::runtime::flight::FlightSeat;
use crate::runtime::rejected::Rejected;
use crate::runtime::trace;
use crate::store::FirstSent;
use crate::task::companion::Companion;
use crate::task::current::{Call, HeldBy};
use crate::task::outcome_writer::NOT_ENCODED;
use crate::task::request::Request;

pub(crate) const CALLER_DROPPED: Event = Event::warn("caller_dropped");
pub(crate) const COMMIT_REFUSED: Event = Event::warn("commit_refused");
pub(crate) const ERROR_KEPT: Event = Event::debug("error_kept");
pub(crate) const EXECUTED: Event = Event::debug("executed");
pub(crate) const LEASE_LOST: Event = Event::warn("lease_lost");
pub(crate) const RELEASED: Event = Event::debug("released");
pub(super) const RELEASED_BY_HAND: Event = Event::info("released_by_hand");
pub(super) const RELEASE_REFUSED: Event = Event::warn("release_refused");
pub(super) const SETTLED: Event = Event::info("settled");

/// The message for a late owner.
const NOT_THE_OWNER: &str = "nothing was recorded: another caller has claimed the key since, or \
    the store has forgotten this claim (restarted without its data, evicted, failed over)";

/// The message for an owner whose body fails after it has succeeded.
const RECORDED: &str = "nothing was released: the transaction of the body's `commit_in` has \
    recorded its outcome, which duplicates get, although the body returned an error after it";

/// A successful claim. It is small; [`Owned`] adds what is needed once the body starts.
pub(crate) struct ClaimedLease {
    pub(crate) enrolled: Enrolled,
    pub(crate) origin: Origin,
    pub(crate) seat: Option<Box<FlightSeat>>,
}

/// The steps that may have been carried out, although no try of them was answered.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unanswered {
    pub(super) commit: bool,
    release: bool,
}

/// An outcome that was left out of its commit. It may be recorded, if the replies to the earlier
/// tries were lost.
pub(super) struct LeftOut {
    pub(super) outcome: Encoded,
    why: StoreError,
}

/// The owner's end of a record in flight.
pub(crate) struct Owned {
    pub(super) enrolled: Enrolled,
    pub(super) call: Call,
    pub(super) observer: Observer,
    seat: Option<Box<FlightSeat>>,
    pub(super) pending: StepLeft,
    pub(super) left_out: Option<Box<LeftOut>>,
    /// The first time that the commit was sent. It may be sent again.
    first_sent: Option<FirstSent>,
    /// The operator's or the application's step, made by hand.
    pub(super) is_by_hand: bool,
    /// The operator and the reason, if they were given.
    pub(super) audit: Option<Box<By>>,
    is_committed: bool,
    pub(super) unanswered: Unanswered,
    /// The reason to report if the store refuses a step.
    pub(super) why_refused: &'static str,
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

impl Owned {
    pub(crate) fn new(runtime: &Arc<Runtime>, request: &Request, owned: ClaimedLease) -> Self {
        let ClaimedLease {
            enrolled,
            origin,
            seat,
        } = owned;
        if let Some(seat) = &seat {
            seat.become_owner(enrolled.term.clone());
        }
        let term = enrolled.term.clone();
        let held_by = HeldBy::Lease { term, origin };
        Self {
            enrolled,
            call: Call::new(runtime, request, held_by),
            observer: runtime.observer,
            seat,
            pending: StepLeft::Running,
            left_out: None,
            first_sent: None,
            is_by_hand: false,
            audit: None,
            is_committed: false,
            unanswered: Unanswered::default(),
            why_refused: NOT_THE_OWNER,
        }
    }

    /// Takes what is left to do, with all that it needs. Nothing is left here.
    pub(super) fn hand_over(&mut self) -> Self {
        Self {
            enrolled: self.enrolled.take(),
            call: self.call.clone(),
            seat: self.seat.take(),
            pending: std::mem::replace(&mut self.pending, StepLeft::Over),
            left_out: self.left_out.take(),
            audit: self.audit.take(),
            ..*self
        }
    }

    /// The call that the body sees.
    pub(crate) fn call(&self) -> &Call {
        &self.call
    }

    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        &self.call.guarded().runtime
    }

    fn request(&self) -> &Request {
        &self.call.guarded().request
    }

    pub(crate) fn term(&self) -> &Arc<Term> {
        &self.enrolled.term
    }

    /// Sets what is left to do once the body has ended, or while it pauses before its next try.
    pub(crate) fn pend(&mut self, pending: StepLeft) {
        self.pending = pending;
    }

    /// Whether nothing is left to do.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.pending, StepLeft::Over)
    }

    /// Has the key of a holder that is gone released, unless it was. If the lease is lost, there is
    /// nothing to release.
    pub(crate) fn pend_release(&mut self) {
        match self.pending {
            StepLeft::Running if self.term().is_lost() => self.lost(),
            StepLeft::Running => self.pending = StepLeft::GiveUp(GiveUp::Release),
            _ => {}
        }
    }

    /// Leaves nothing to do: a transaction of the body recorded the outcome. If it was rolled back,
    /// the lease expires.
    pub(crate) fn recorded_in_transaction(&mut self) {
        self.pending = StepLeft::Over;
        self.report(EXECUTED, None);
    }

    /// Asks the store, by a renewal, whether the record is still in flight. Reading the record
    /// would miss a commit that is under way. Without an answer this returns `false`.
    pub(crate) async fn is_in_flight(&self) -> bool {
        let term = self.term();
        let sent = clock::now();
        let answers = self.runtime().store.renew(&[term.renewal()]).await;
        let is_held = matches!(answers.first(), Some(Ok(Ownership::Held)));
        if is_held {
            term.renewed(sent);
        }
        is_held
    }

    /// Notes that `retried` was reported.
    pub(crate) fn retries(&mut self) {
        self.observer.after_retries = true;
    }

    /// Tries the step once. If that fails, or this future is dropped, the step continues in the
    /// background. Returns `false` if the step was a commit and is not recorded yet.
    pub(crate) async fn settle(&mut self) -> bool {
        let commits = matches!(self.pending, StepLeft::Commit { .. });
        let settled = self.settle_by_hand().await;
        !commits || settled.is_ok()
    }

    /// Tries the step once, for a caller that gets the failure and may try again.
    pub(crate) async fn settle_by_hand(&mut self) -> Result<(), Error> {
        match self.send().await {
            Tried::Over(ownership) => {
                self.finish(ownership);
                match ownership {
                    Ownership::Held => Ok(()),
                    Ownership::Lost => Err(self.term().lost_error()),
                }
            }
            // The step stays set, so that dropping this continues it.
            Tried::Failed(error) => {
                self.delayed(&error);
                Err(Rejected::Store(error).error(&self.term().id))
            }
            Tried::Hopeless(error) => {
                if self.give_up_unless_recorded(&error).boxed().await {
                    return Ok(());
                }
                Err(Error::unreadable(&self.term().id, &error.to_string()))
            }
        }
    }

    /// Reports that the body was stopped because the lease was lost. Nothing is left to do.
    pub(crate) fn lost(&mut self) {
        self.pending = StepLeft::Over;
        self.report(LEASE_LOST, Some(&self.term().why_lost()));
    }

    fn companion(&self) -> Option<&dyn Companion> {
        self.call.guarded().companion.get().map(AsRef::as_ref)
    }

    /// Sends what is left to do to the store once.
    pub(super) async fn send(&mut self) -> Tried {
        if let Some(seat) = &mut self.seat {
            seat.sending_step();
        }
        if matches!(self.pending, StepLeft::GiveUp(GiveUp::Abandon))
            && self.companion().is_some_and(|companion| !companion.stays())
            // If the record has another owner, the release is refused too.
            && let Some(Err(error)) = self.renew().boxed().await.pop()
        {
            return Tried::Failed(error);
        }
        let store = &self.call.guarded().runtime.store;
        // The store takes the request whole: a part of it that stayed in this future would have
        // room there while the store answers.
        let (answer, may_be_done) = match &self.pending {
            StepLeft::Commit { outcome, kept_for } => {
                let commit = self.commit(outcome.clone(), *kept_for);
                let answer = store.commit(commit, &mut self.first_sent);
                (answer, &mut self.unanswered.commit)
            }
            StepLeft::GiveUp(how) => {
                let answer = store.release(self.release(*how));
                (answer, &mut self.unanswered.release)
            }
            StepLeft::Running | StepLeft::Over => return Tried::Over(Ownership::Held),
        };
        // Set before the await: this future may be dropped there.
        let was_before = std::mem::replace(may_be_done, true);
        let answer = answer.await;
        *may_be_done = was_before || answer.as_ref().is_err_and(StoreError::is_unknown);
        match answer {
            Ok(Ownership::Held) => Tried::Over(Ownership::Held),
            Ok(Ownership::Lost) => Tried::Over(self.after_refusal().boxed().await),
            Err(error)
                if error.kind() == StoreErrorKind::TooLarge && self.leaves_out_outcome(&error) =>
            {
                Box::pin(self.send()).await
            }
            Err(error) if self.is_hopeless(&error) => Tried::Hopeless(error),
            Err(error) => Tried::Failed(error),
        }
    }

    fn commit(&self, outcome: Option<Encoded>, kept_for: Option<Duration>) -> Commit {
        let term = self.term();
        let request = self.request();
        Commit {
            as_claimed: Some(AsClaimed {
                origin: self.call.guarded().origin(),
                lease: term.length(),
                hold: term.hold(),
            }),
            claim_metadata: trace::in_flight(request.metadata.as_ref()),
            ..request.commit(term.owner, term.attempt, outcome, kept_for)
        }
    }

    fn release(&self, how: GiveUp) -> Release {
        let term = self.term();
        let settings = &self.request().settings;
        let mut keep = keep_released(settings.ttl(), term.length(), settings.times.least_secs);
        let names_run = self.companion().and_then(Companion::run).is_some();
        if names_run {
            // The store may not know yet how long the record of the run must stay.
            keep = keep.max(term.hold());
        }
        Release {
            id: term.id.clone(),
            owner: term.owner,
            to: match how {
                GiveUp::Abandon => ReleaseTo::Abandoned,
                GiveUp::Unanswered => ReleaseTo::Unanswered,
                GiveUp::Release => ReleaseTo::Released { keep },
            },
            names_run,
        }
    }

    /// Whether the store would refuse the step each time. A commit without an outcome is not too
    /// large in itself: the store is short of something, which may change.
    fn is_hopeless(&self, error: &StoreError) -> bool {
        let is_too_large = error.kind() == StoreErrorKind::TooLarge;
        error.kind() == StoreErrorKind::Unreadable || (is_too_large && self.is_by_hand)
    }

    /// Leaves the outcome out of its commit, because a lost outcome is better than a second run of
    /// the body. Returns `false` if there is none to leave out, or if an operator settled it:
    /// duplicates must get that.
    pub(super) fn leaves_out_outcome(&mut self, why: &StoreError) -> bool {
        if let StepLeft::Commit { outcome, .. } = &mut self.pending
            && !self.is_by_hand
            && let Some(outcome) = outcome.take()
        {
            let why = why.clone();
            self.left_out = Some(Box::new(LeftOut { outcome, why }));
            return true;
        }
        false
    }

    /// Looks why the store refused a step. A store that repeats a release by itself may find
    /// nothing left to release, although its first try succeeded. A commit that left its outcome
    /// out may find that outcome recorded.
    async fn after_refusal(&mut self) -> Ownership {
        if self.left_out.is_some() && self.is_recorded().await {
            return Ownership::Held;
        }
        let term = &self.enrolled.term;
        let releases = matches!(self.pending, StepLeft::GiveUp(GiveUp::Release));
        if self.unanswered.release || !(releases || term.may_be_recorded()) {
            return Ownership::Lost;
        }
        let Ok(Some(found)) = self.runtime().store.inspect(&term.id).await else {
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

    /// Reports what the store said of the step, and tells the other calls.
    pub(super) fn finish(&mut self, ownership: Ownership) {
        if let (StepLeft::Commit { outcome: None, .. }, Ownership::Held) =
            (&self.pending, ownership)
            && let Some(left_out) = self.left_out.take()
        {
            self.report(NOT_ENCODED, Some(&left_out.why));
        }
        let step = std::mem::replace(&mut self.pending, StepLeft::Over);
        let mut shared = None;
        let event = match (step, ownership) {
            (StepLeft::Running | StepLeft::Over, _) => return,
            (StepLeft::Commit { .. }, Ownership::Held) if self.is_committed => return,
            (StepLeft::Commit { outcome, .. }, Ownership::Held) => {
                self.is_committed = true;
                let attempt = self.term().attempt;
                let is_error = outcome.as_ref().is_some_and(|outcome| outcome.is_error);
                shared = Some(match outcome {
                    Some(outcome) => Rejected::Committed { attempt, outcome },
                    None => Rejected::Done,
                });
                match is_error {
                    _ if self.is_by_hand => SETTLED,
                    true => ERROR_KEPT,
                    false => EXECUTED,
                }
            }
            (StepLeft::Commit { .. }, Ownership::Lost) => COMMIT_REFUSED,
            (StepLeft::GiveUp(_), Ownership::Lost) if !self.unanswered.release => RELEASE_REFUSED,
            // Held, or the store released the record earlier and its reply was lost.
            (StepLeft::GiveUp(GiveUp::Release), _) if self.is_by_hand => RELEASED_BY_HAND,
            (StepLeft::GiveUp(GiveUp::Release), _) => RELEASED,
            (StepLeft::GiveUp(GiveUp::Abandon | GiveUp::Unanswered), _) => Event::info("abandoned"),
        };
        self.enrolled.term.end();
        self.enrolled.stop();
        if let (Some(_), Some(companion)) = (&shared, self.companion()) {
            let term = self.term();
            companion.recorded(self.runtime(), &term.id, term.attempt);
        }
        self.report_end(event);
        // The others go on, with the answer if there is one.
        if let (Some(seat), Some(why)) = (self.seat.take(), shared) {
            seat.share(why);
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        match self.pending {
            StepLeft::Over => {}
            StepLeft::Running => self.report(CALLER_DROPPED, None),
            StepLeft::Commit { .. } | StepLeft::GiveUp(_) => self.hand_over().resend(),
        }
    }
}
