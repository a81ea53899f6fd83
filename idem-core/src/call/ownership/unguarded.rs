//! A call without a record: nothing is encoded, kept or given up. Errors can be retried.

use std::fmt::Display;
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::time::Duration;

use crate::call::body::{self, BodyExit};
use crate::call::ownership::Ownership;
use crate::call::plan::{RecordPlan, TryEnd};
use crate::call::transaction_body::Body as BodyInTransaction;
use crate::error::Error;
use crate::observe::{Decision, Observer};
use crate::record::RecordId;
use crate::runtime::outcome_writer::OutcomeWriter;
use crate::task::current::Call;
use crate::task::unguarded::unguarded;

/// An unguarded body.
pub(crate) struct Unguarded<'a, Body> {
    pub(crate) operation: &'a str,
    /// The key, if it is known.
    pub(crate) id: Option<&'a RecordId>,
    pub(crate) body: Pin<&'a mut Option<Body>>,
}

impl<R, Body: Future<Output = R>> Ownership<R> for Unguarded<'_, Body> {
    fn call(&self) -> Option<&Call> {
        None
    }

    fn writer(&self) -> Option<OutcomeWriter<'_>> {
        None
    }

    fn report(&self, decision: Decision, _: Option<&dyn Display>) {
        if decision == Decision::Retried {
            Observer::decided_without_key(decision, self.operation);
        }
    }

    async fn run_body(&mut self) -> TryEnd<R> {
        try_end(unguarded(self.id, body::run(None, self.body.as_mut())).await).await
    }

    async fn wait_for_next_try(&mut self, pause: Duration) -> bool {
        tokio::time::sleep(pause).await;
        true
    }

    fn plan(&mut self, _: RecordPlan) {}

    async fn carry_out(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// An unguarded body in a transaction.
pub(crate) struct UnguardedInTransaction<'a, X, B> {
    pub(crate) tx: &'a mut X,
    pub(crate) body: &'a mut B,
}

impl<R, X, B: BodyInTransaction<X, R>> Ownership<R> for UnguardedInTransaction<'_, X, B> {
    fn call(&self) -> Option<&Call> {
        None
    }

    fn writer(&self) -> Option<OutcomeWriter<'_>> {
        None
    }

    fn report(&self, _: Decision, _: Option<&dyn Display>) {}

    async fn run_body(&mut self) -> TryEnd<R> {
        let mut running = pin!(Some(self.body.run(&mut *self.tx)));
        try_end(unguarded(None, body::run(None, running.as_mut())).await).await
    }

    fn plan(&mut self, _: RecordPlan) {}

    async fn carry_out(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// The end of a body that no lease can stop.
pub(super) async fn try_end<R>(exit: BodyExit<R>) -> TryEnd<R> {
    match exit {
        BodyExit::Returned(returned) => TryEnd::Returned(returned),
        BodyExit::Panicked(panic) => TryEnd::Panicked(panic),
        // Callers always pass a body, so this does not happen.
        BodyExit::Lost => pending().await,
    }
}
