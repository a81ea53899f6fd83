//! A call whose record is a row of the caller's transaction. The database's locks replace the
//! lease. So the body is not stopped, is not retried in the same transaction, and cannot be
//! abandoned.

use std::fmt::Display;
use std::mem;
use std::pin::pin;
use std::time::Duration;

use crate::call::body;
use crate::call::open_transaction::OpenTransaction;
use crate::call::ownership::Ownership;
use crate::call::ownership::unguarded::try_end;
use crate::call::plan::{RecordPlan, TryEnd};
use crate::call::request::Request;
use crate::call::transaction_body::Body;
use crate::error::Error;
use crate::observe::{BodyWatch, Decision};
use crate::policy::settings::{keep_for, seconds};
use crate::record::{Commit, Encoded, Owner};
use crate::runtime::outcome_writer::OutcomeWriter;
use crate::store::{Store, Transaction};
use crate::task::current::Call;

/// A record that was claimed in a transaction, with the body that runs there.
pub(crate) struct ClaimedInTransaction<'a, X: Transaction<S>, S: Store, B> {
    pub(crate) open: OpenTransaction<'a, X, S>,
    pub(crate) store: &'a S,
    pub(crate) body: &'a mut B,
    pub(crate) call: Call,
    pub(crate) owner: Owner,
    pub(crate) plan: RecordPlan,
    /// The body's error is recorded.
    pub(crate) is_error_kept: bool,
}

impl<R, X, S, B> Ownership<R> for ClaimedInTransaction<'_, X, S, B>
where
    X: Transaction<S>,
    S: Store,
    B: Body<X, R>,
{
    fn call(&self) -> Option<&Call> {
        Some(&self.call)
    }

    fn writer(&self) -> Option<OutcomeWriter<'_>> {
        Some(self.open.writer(self.call.attempt()))
    }

    fn report(&self, decision: Decision, why: Option<&dyn Display>) {
        self.open.report(decision, self.call.attempt(), why);
    }

    async fn run_body(&mut self) -> TryEnd<R> {
        run_in(&mut self.open, &self.call, self.body).await
    }

    fn can_replace_retry(&self) -> bool {
        false
    }

    fn plan(&mut self, plan: RecordPlan) {
        self.plan = plan;
    }

    fn is_error_kept(&self) -> bool {
        self.is_error_kept
    }

    async fn carry_out(&mut self) -> Result<(), Error> {
        let attempt = self.call.attempt();
        match mem::replace(&mut self.plan, RecordPlan::Nothing) {
            RecordPlan::Commit { outcome, kept_for } => {
                let is_error = outcome.as_ref().is_some_and(|outcome| outcome.is_error);
                if is_error {
                    self.open.roll_back_body().await?;
                }
                let commit = commit_of(self.open.request, self.owner, attempt, outcome, kept_for);
                if let Some(steps) = self.call.steps() {
                    self.open.end_steps(self.store, steps).await?;
                }
                self.open.commit(self.store, &commit).await?;
                if is_error {
                    self.is_error_kept = true;
                    self.open.note_kept_error(commit);
                }
                self.open.report(decision_on(is_error), attempt, None);
            }
            RecordPlan::GiveUp(_) => {
                self.open.roll_back().await;
                self.open.report(Decision::Released, attempt, None);
            }
            // A body in a transaction has no `commit_in`.
            RecordPlan::Nothing | RecordPlan::RecordedInTransaction => {}
        }
        Ok(())
    }
}

/// Runs the body in the transaction. If the future is dropped, the event reports a call that was
/// dropped in its body.
pub(super) async fn run_in<R, X, S, B>(
    open: &mut OpenTransaction<'_, X, S>,
    call: &Call,
    body: &mut B,
) -> TryEnd<R>
where
    X: Transaction<S>,
    S: Store,
    B: Body<X, R>,
{
    open.attempt = Some(call.attempt());
    let watch = BodyWatch::start();
    let exit = {
        let mut running = pin!(Some(body.run(&mut *open.tx)));
        call.around(body::run(None, running.as_mut())).await
    };
    watch.stop(&open.request.id);
    open.attempt = None;
    try_end(exit).await
}

pub(super) fn decision_on(is_error: bool) -> Decision {
    if is_error {
        Decision::ErrorKept
    } else {
        Decision::Executed
    }
}

/// Makes the commit of an attempt. A kept error may have a retention of its own.
pub(super) fn commit_of(
    request: &Request,
    owner: Owner,
    attempt: u64,
    outcome: Option<Encoded>,
    kept_for: Option<Duration>,
) -> Commit {
    let settings = &request.settings;
    let mut ttl = settings.ttl();
    let mut remember = settings.remember();
    if let Some(kept_for) = kept_for {
        // The outcome is then remembered for as long as it is kept, but at least for as long as a
        // token is valid.
        ttl = keep_for(kept_for);
        remember = ttl.max(seconds(settings.times.least_secs));
    }
    Commit {
        id: request.id.clone(),
        owner,
        attempt,
        fingerprint: request.fingerprint,
        outcome,
        ttl,
        remember,
        as_claimed: None,
        claim_metadata: None,
    }
}
