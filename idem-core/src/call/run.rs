//! Who has the record while a body runs, and what is done to it when the body has ended.

use std::fmt::Display;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::base::race::first;
use crate::call::body::{self, BodyExit};
use crate::call::judge::{Answer, Ending, GiveUp, Handling, Pending, TryEnd};
use crate::call::owned::Owned;
use crate::lease::term::Term;
use crate::observe::{BodyWatch, Decision, Observer};
use crate::policy::errors::ErrorAction;
use crate::policy::settings::Settings;
use crate::policy::step_settings::StepSettings;
use crate::record::RecordId;
use crate::runtime::Runtime;
use crate::task::current::{AskMode, Call, NewCall};
use crate::task::unguarded::unguarded;
use crate::task::watch::{self, Seen};

/// How an owner runs its body.
#[derive(Clone, Copy)]
pub(crate) struct RunMode {
    asks: AskMode,
    /// The body runs to its end even if the lease is lost.
    observes: bool,
    /// What its steps have of the call.
    steps: StepSettings,
}

impl RunMode {
    pub(crate) fn of(settings: &Settings) -> Self {
        let observes = settings.observes;
        let asks = match (settings.reconciles, observes) {
            (false, _) => AskMode::Nothing,
            (true, false) => AskMode::First,
            (true, true) => AskMode::Skips,
        };
        Self {
            asks,
            observes,
            steps: StepSettings::of(settings),
        }
    }
}

/// Who has the record while a body runs.
pub(crate) enum Holder<'a> {
    /// Nobody: nothing is encoded, kept or given up. Errors can be retried.
    Nobody {
        operation: &'a str,
        /// The key, if it is known.
        id: Option<&'a RecordId>,
    },
    Lease(Leased<'a>),
}

/// A record that is owned by a lease.
pub(crate) struct Leased<'a> {
    record: &'a mut Owned,
    call: Call,
    observer: Observer,
    observes: bool,
}

impl Holder<'_> {
    /// The call that the body sees. `None` without a record.
    pub(crate) fn call(&self) -> Option<&Call> {
        match self {
            Self::Nobody { .. } => None,
            Self::Lease(leased) => Some(&leased.call),
        }
    }

    /// Reports a decision about the call.
    pub(crate) fn report(&self, decision: Decision, why: Option<&dyn Display>) {
        match self {
            Self::Lease(leased) => leased.report(decision, why),
            Self::Nobody { operation, .. } if decision == Decision::Retried => {
                Observer::decided_without_key(decision, operation);
            }
            Self::Nobody { .. } => {}
        }
    }

    /// Runs the body once, and stops it if the lease is lost.
    pub(crate) async fn run_body<R, Body>(&mut self, body: Pin<&mut Option<Body>>) -> TryEnd<R>
    where
        Body: Future<Output = R>,
    {
        match self {
            Self::Nobody { id, .. } => unstopped(unguarded(*id, body::run(None, body)).await).await,
            Self::Lease(leased) => {
                let watch = BodyWatch::start();
                let stops_with = (!leased.observes).then(|| &**leased.record.term());
                let end = leased.call.around(body::run(stops_with, body)).await;
                watch.stop(&leased.record.term().id);
                match end {
                    BodyExit::Returned(returned) => TryEnd::Returned(returned),
                    BodyExit::Panicked(panic) => TryEnd::Panicked(panic),
                    BodyExit::Lost => TryEnd::Stopped(leased.record.lost()),
                }
            }
        }
    }

    /// Waits for the next try. No body runs between two tries, so a call that ends here gives its
    /// key up. Returns `false` if there is no next try, because the lease was lost.
    pub(crate) async fn pause(&mut self, pause: Duration, give_up: GiveUp) -> bool {
        match self {
            Self::Nobody { .. } => {
                tokio::time::sleep(pause).await;
                true
            }
            Self::Lease(leased) => {
                leased.record.retries();
                leased.pend(Pending::GiveUp(give_up));
                let goes_on = leased.wait_for_next_try(pause).await;
                if goes_on {
                    leased.record.goes_on();
                }
                goes_on
            }
        }
    }

    /// Sets what is left to do to the record. If the call is dropped before
    /// [`settle`](Self::settle) has ended, that is continued in the background.
    pub(crate) fn end<R, T, E, P: Fn(&E) -> ErrorAction>(
        &mut self,
        handling: &Handling<R, T, E, P>,
        ending: Ending,
        answer: &Answer<T, E>,
    ) {
        let Self::Lease(leased) = self else { return };
        if ending == Ending::RecordedByBody {
            return leased.record.recorded_in_transaction();
        }
        let writer = leased.record.writer();
        let report = |decision, why: Option<&dyn Display>| leased.report(decision, why);
        if let Some(pending) = handling.encode(&leased.call, &writer, ending, answer, &report) {
            leased.pend(pending);
        }
    }

    /// Does what is left to do to the record.
    pub(crate) async fn settle(&mut self) {
        let Self::Lease(leased) = self else { return };
        if leased.observes && leased.record.term().is_lost() {
            leased.report_lost(leased.observer.observing(true));
        }
        if !leased.record.settle().await {
            watch::note(Seen::Unrecorded);
        }
    }
}

impl<'a> Leased<'a> {
    pub(crate) fn new(runtime: &Arc<Runtime>, mode: RunMode, record: &'a mut Owned) -> Self {
        let RunMode {
            asks,
            observes,
            steps,
        } = mode;
        let term = record.term();
        let call = Call::new(NewCall {
            id: term.id.clone(),
            attempt: term.attempt,
            after_abandoned: record.after_abandoned(),
            asks,
            runtime: runtime.identity(),
            recorder: Some(record.recorder(observes)),
            steps: Some(record.step_scope(steps)),
        });
        Self {
            observer: runtime.observer,
            record,
            call,
            observes,
        }
    }

    fn report(&self, decision: Decision, why: Option<&dyn Display>) {
        report(self.observer, self.record.term(), decision, why);
    }

    fn report_lost(&self, observer: Observer) {
        let term = self.record.term();
        report(observer, term, Decision::LeaseLost, Some(&term.why_lost()));
    }

    fn pend(&mut self, pending: Pending) {
        self.record.pend(pending);
        if let Some(steps) = self.call.steps() {
            self.record.set_steps(steps);
        }
    }

    async fn wait_for_next_try(&mut self, pause: Duration) -> bool {
        if self.observes {
            tokio::time::sleep(pause).await;
            return true;
        }
        // If a transaction of this try recorded the outcome, no body runs again, and the store
        // refuses the next step.
        if self.call.is_recorded() && !self.record.is_in_flight().await {
            return false;
        }
        let term = self.record.term();
        first(term.lost(), tokio::time::sleep(pause)).await;
        if term.is_lost() {
            // No body runs now. The store refuses the remaining step if another caller is the
            // owner.
            self.report_lost(self.observer);
            return false;
        }
        true
    }
}

fn report(observer: Observer, term: &Term, decision: Decision, why: Option<&dyn Display>) {
    match why {
        Some(why) => observer.decided_because(decision, &term.id, term.attempt, &why),
        None => observer.decided(decision, &term.id, term.attempt),
    }
}

/// The end of a body that no lease can stop.
pub(super) async fn unstopped<R>(exit: BodyExit<R>) -> TryEnd<R> {
    match exit {
        BodyExit::Returned(returned) => TryEnd::Returned(returned),
        BodyExit::Panicked(panic) => TryEnd::Panicked(panic),
        // Callers always pass a body, so this does not happen.
        BodyExit::Lost => pending().await,
    }
}
