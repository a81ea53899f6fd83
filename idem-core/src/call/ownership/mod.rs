//! The kinds of calls. They differ only in who owns the record while the body runs:
//! [`run`](crate::call::run) and [`finish`](crate::call::finish) are the same for all of them.

pub(crate) mod in_transaction;
pub(crate) mod leased;
pub(crate) mod observed_in_transaction;
pub(crate) mod unguarded;

use std::fmt::Display;
use std::future::{Future, ready};
use std::time::Duration;

use crate::call::plan::{RecordPlan, TryEnd, Verdict};
use crate::error::Error;
use crate::observe::Decision;
use crate::runtime::outcome_writer::OutcomeWriter;
use crate::task::current::Call;

/// The owner of a record while a body runs that returns an `R`.
pub(crate) trait Ownership<R> {
    /// Returns the call that its body sees. `None` without a record.
    fn call(&self) -> Option<&Call>;

    /// Returns what encodes the outcome. `None` without a record.
    fn writer(&self) -> Option<OutcomeWriter<'_>>;

    /// Reports a decision about the call.
    fn report(&self, decision: Decision, why: Option<&dyn Display>);

    /// Runs the body once, and stops it if the ownership is lost.
    fn run_body(&mut self) -> impl Future<Output = TryEnd<R>>;

    /// Whether an error that asks for a retry may be kept or abandoned instead. If not, the key is
    /// released.
    fn can_replace_retry(&self) -> bool {
        true
    }

    /// Waits for the next try. Returns `false` if there is none, because the ownership has ended.
    fn wait_for_next_try(&mut self, pause: Duration) -> impl Future<Output = bool> {
        let _ = pause;
        ready(false)
    }

    /// Claims the record after the body has returned, if the kind of call does not claim it before.
    fn claim_after_body(&mut self, verdict: Verdict) -> impl Future<Output = ()> {
        let _ = verdict;
        ready(())
    }

    /// Sets the step at the store. If the call is dropped before [`carry_out`](Self::carry_out) has
    /// ended, some kinds of calls continue the step.
    fn plan(&mut self, plan: RecordPlan);

    /// Whether the body's error was recorded as the outcome, so that the transaction is to be
    /// committed.
    fn is_error_kept(&self) -> bool {
        false
    }

    /// Carries the plan out. If this fails, the caller gets the error instead of its body's result.
    fn carry_out(&mut self) -> impl Future<Output = Result<(), Error>>;
}
