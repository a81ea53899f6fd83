//! A call that owns its record by a lease.

use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::base::race::first;
use crate::call::body::{self, BodyExit};
use crate::call::owned_record::OwnedRecord;
use crate::call::ownership::Ownership;
use crate::call::plan::{RecordPlan, TryEnd};
use crate::error::Error;
use crate::lease::term::Term;
use crate::observe::{BodyWatch, Decision, Observer};
use crate::policy::settings::Settings;
use crate::policy::step_settings::StepSettings;
use crate::runtime::Runtime;
use crate::runtime::outcome_writer::OutcomeWriter;
use crate::task::current::{AskMode, Call, NewCall};
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

/// A record that is owned by a lease, with the body that runs under it.
pub(crate) struct Leased<'a, Body> {
    record: &'a mut OwnedRecord,
    call: Call,
    observer: Observer,
    observes: bool,
    body: Pin<&'a mut Option<Body>>,
}

impl<'a, Body> Leased<'a, Body> {
    pub(crate) fn new(
        runtime: &Arc<Runtime>,
        mode: RunMode,
        record: &'a mut OwnedRecord,
        body: Pin<&'a mut Option<Body>>,
    ) -> Self {
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
            recorder: record.recorder(observes),
            steps: Some(record.step_scope(runtime, steps)),
        });
        Self {
            observer: runtime.observer,
            record,
            call,
            observes,
            body,
        }
    }

    /// Sets the body of the next try.
    pub(crate) fn begin_next_try(&mut self, body: Option<Body>) {
        self.record.goes_on();
        self.body.set(body);
    }

    fn report_lost(&self, observer: Observer) {
        let term = self.record.term();
        observer.decided_because(
            Decision::LeaseLost,
            &term.id,
            term.attempt,
            &term.why_lost(),
        );
    }
}

impl<R, Body: Future<Output = R>> Ownership<R> for Leased<'_, Body> {
    fn call(&self) -> Option<&Call> {
        Some(&self.call)
    }

    fn writer(&self) -> Option<OutcomeWriter<'_>> {
        self.record.writer()
    }

    fn report(&self, decision: Decision, why: Option<&dyn Display>) {
        let term = self.record.term();
        match why {
            Some(why) => self
                .observer
                .decided_because(decision, &term.id, term.attempt, &why),
            None => self.observer.decided(decision, &term.id, term.attempt),
        }
    }

    async fn run_body(&mut self) -> TryEnd<R> {
        let watch = BodyWatch::start();
        let stops_with: Option<&Term> = (!self.observes).then(|| &**self.record.term());
        let end = self
            .call
            .around(body::run(stops_with, self.body.as_mut()))
            .await;
        watch.stop(&self.record.term().id);
        match end {
            BodyExit::Returned(returned) => TryEnd::Returned(returned),
            BodyExit::Panicked(panic) => TryEnd::Panicked(panic),
            BodyExit::Lost => TryEnd::Stopped(self.record.lost()),
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

    fn plan(&mut self, plan: RecordPlan) {
        if let Some(steps) = self.call.steps() {
            self.record.set_has_steps(steps.has_begun());
            if let RecordPlan::Commit { .. } = plan {
                self.record.set_steps_to_remove(steps.take());
            }
        }
        self.record.plan(plan);
    }

    async fn carry_out(&mut self) -> Result<(), Error> {
        if self.observes && self.record.term().is_lost() {
            self.report_lost(self.observer.observing(true));
        }
        if !self.record.carry_out().await {
            watch::note(Seen::Unrecorded);
        }
        Ok(())
    }
}
