//! Events of a call: the reason why it is not the owner of its key, or the fate of its record.

use std::fmt::Display;
use std::sync::Arc;

use tokio::time::Instant;

use crate::base::clock;
use crate::call::judge::StepLeft;
use crate::call::owned::{
    COMMIT_REFUSED, LEASE_LOST, Owned, RELEASE_REFUSED, RELEASED_BY_HAND, SETTLED,
};
use crate::call::prepared::RAN_UNGUARDED;
use crate::call::recorded::Recorded;
use crate::call::start::CallStart;
use crate::error::{Error, StoreError};
use crate::observe::{self, Event, Observer, catch_user_panic};
use crate::policy::settings::{Abandoned, Duplicate};
use crate::record::{Encoded, Origin};
use crate::runtime::rejected::{REPLAYED, Rejected, STORE_FAILED, UNREADABLE, WAITED};
use crate::runtime::undoing::NOT_RELEASED;
use crate::runtime::{Runtime, trace};
use crate::task::current;
use crate::task::request::Request;

pub(crate) const NOT_RECORDED: Event = Event::warn("not_recorded");

/// The addition to the reason of `not_recorded` where nobody could ask the store again.
const MAY_BE_COMMITTED: &str = "the store may have the outcome all the same, because it did not \
    answer an earlier try";

impl Runtime {
    /// Returns the observer for decisions that end a guarded call. In observe mode it reports them
    /// as hypothetical.
    pub(crate) fn reporter(&self, request: &Request) -> Observer {
        self.observer.observing(request.settings.observes)
    }

    /// Refuses a call inside its own body, and one whose key was certainly not issued.
    pub(crate) fn admit_call(
        self: &Arc<Self>,
        request: &Request,
        now: Instant,
    ) -> Result<(), Rejected> {
        if current::is_reentrant(&request.id, self.identity()) {
            return Err(Rejected::Reentrant);
        }
        let admission = request.admission.as_ref();
        admission.map_or(Ok(()), |admission| admission.admit(&request.id, now))
    }

    /// Reports a rejection, and turns it into a replay, an unguarded run, or an error. In observe
    /// mode, nothing keeps the body from running.
    pub(crate) fn start_without_claim(
        &self,
        request: &Request,
        why: Rejected,
    ) -> Result<CallStart, Error> {
        let observes = request.settings.observes;
        let runs_unguarded = why.runs_unguarded(&request.settings);
        match self.replay_or_reject(request, why) {
            Ok(recorded) if observes => Ok(CallStart::Unguarded(Some(recorded))),
            Ok(recorded) => Ok(CallStart::Replay(recorded)),
            Err(_) if observes || runs_unguarded => Ok(CallStart::Unguarded(None)),
            Err(error) => Err(error),
        }
    }

    /// Reports why the call is no owner. Returns what it replays, or its error.
    pub(crate) fn replay_or_reject(
        &self,
        request: &Request,
        why: Rejected,
    ) -> Result<Recorded, Error> {
        match why {
            Rejected::Committed { attempt, outcome }
                if request.settings.duplicate == Duplicate::Replay =>
            {
                Ok(self.replay(request, attempt, outcome))
            }
            why => Err(self.reject(request, why)),
        }
    }

    fn replay(&self, request: &Request, attempt: u64, outcome: Encoded) -> Recorded {
        let observer = self.reporter(request);
        let metadata = outcome.metadata.as_ref();
        match metadata.and_then(|metadata| metadata.trace.as_ref()) {
            Some(trace) => {
                if !request.settings.observes {
                    catch_user_panic(|| trace::link(trace));
                }
                // `format_args!` stays inside the call: Rust 1.88 cannot bind it to a variable.
                observer.report(
                    REPLAYED,
                    &request.id,
                    0,
                    Some(&format_args!("the call that ran has the trace {trace}")),
                );
            }
            None => observer.decided(REPLAYED, &request.id, 0),
        }
        Recorded {
            id: request.id.clone(),
            attempt,
            outcome,
            codec: self.config.codec.clone(),
            versions: request.versions.clone(),
            observer,
        }
    }

    /// Reports why the call does not run, and returns its error.
    pub(crate) fn reject(&self, request: &Request, why: Rejected) -> Error {
        let Request {
            id,
            settings,
            admission,
            ..
        } = request;
        let why = match (why, admission) {
            (Rejected::NotIssued { is_expired }, Some(admission)) => {
                admission.not_issued(id, is_expired)
            }
            (why, _) => why,
        };
        let (event, attempt) = why.event(settings);
        let observer = self.reporter(request);
        match (&why, admission) {
            (Rejected::Store(error), _) => {
                self.observer.report(event, id, 0, Some(error));
                if why.runs_unguarded(settings) {
                    self.observer.decided(RAN_UNGUARDED, id, 0);
                } else if settings.observes {
                    let would = match event {
                        UNREADABLE => UNREADABLE,
                        _ => STORE_FAILED,
                    };
                    observer.decided(would, id, 0);
                }
            }
            (_, Some(admission)) => {
                observer.report(event, id, attempt, Some(admission));
            }
            (_, None) => observer.decided(event, id, attempt),
        }
        why.error(id)
    }

    pub(crate) fn waited(&self, request: &Request, since: Instant) {
        self.observer.decided(WAITED, &request.id, 0);
        observe::wait_took(&request.id, clock::now().saturating_duration_since(since));
    }

    /// Reports that this attempt took over the record of one that was cut off.
    pub(crate) fn took_over(&self, request: &Request, attempt: u64) {
        self.observer
            .decided(Event::info("taken_over"), &request.id, attempt);
        if request.settings.abandoned == Abandoned::Reject {
            let why = format!(
                "the key was not settled within its `hold`, {:?}: the call runs although attempt \
                 {} was cut off",
                request.settings.hold(),
                attempt.saturating_sub(1)
            );
            self.observer
                .report(Event::warn("hold_ended"), &request.id, attempt, Some(&why));
        }
    }
}

impl Owned {
    /// Reports what became of the record.
    pub(super) fn report_end(&self, event: Event) {
        let why = match event {
            COMMIT_REFUSED | RELEASE_REFUSED => Some(self.why_refused.to_owned()),
            SETTLED | RELEASED_BY_HAND => {
                let is_first = self.call.guarded().origin() == Origin::Nothing;
                let no_record = (event == SETTLED && is_first)
                    .then(|| "there was no record of this key".to_owned());
                let by = self.audit.as_ref().map(ToString::to_string);
                let known = by.into_iter().chain(no_record);
                known.reduce(|by, no_record| format!("{by}; {no_record}"))
            }
            _ => None,
        };
        self.report(event, why.as_ref().map(|why| why as &dyn Display));
    }

    pub(super) fn report(&self, event: Event, why: Option<&dyn Display>) {
        let term = self.term();
        self.observer.report(event, &term.id, term.attempt, why);
    }

    pub(super) fn delayed(&self, error: &StoreError) {
        let event = if let StepLeft::Commit { .. } = self.pending {
            Event::warn("commit_delayed")
        } else {
            Event::warn("release_delayed")
        };
        self.report(event, Some(error));
    }

    /// Gives the step up, and reports it.
    pub(super) fn give_up(&mut self, why: &dyn Display) {
        let event = match std::mem::replace(&mut self.pending, StepLeft::Over) {
            StepLeft::Commit { .. } => NOT_RECORDED,
            StepLeft::GiveUp(_) => NOT_RELEASED,
            StepLeft::Running | StepLeft::Over => return,
        };
        if event == NOT_RECORDED && self.unanswered.commit {
            let why = format_args!("{why}; {MAY_BE_COMMITTED}");
            return self.report(event, Some(&why));
        }
        self.report(event, Some(why));
    }

    /// In observe mode: reports that the body would have been stopped.
    pub(super) fn would_be_lost(&self) {
        let term = self.term();
        let observer = self.runtime().observer.observing(true);
        let why = term.why_lost();
        observer.report(LEASE_LOST, &term.id, term.attempt, Some(&why));
    }

    /// Reports what the body did, whether it was retried or not.
    pub(super) fn report_of_body(&self, event: Event, why: Option<&dyn Display>) {
        let term = self.term();
        let observer = self.runtime().observer;
        observer.report(event, &term.id, term.attempt, why);
    }
}
