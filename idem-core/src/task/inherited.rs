//! The state that a task spawned for a body inherits.

use std::future::Future;

use crate::runtime::handle::Idempotency;
use crate::task::current::{self, CALL, Call};
use crate::task::held_locks::Inside;
use crate::task::scope::SCOPED;

/// The task-local state that a task spawned for a body must inherit.
pub(crate) struct Inherited {
    runtime: Option<Idempotency>,
    call: Option<Call>,
    locks: Inside,
}

impl Inherited {
    pub(crate) fn here() -> Self {
        Self {
            runtime: SCOPED.try_with(Clone::clone).ok(),
            call: current::innermost(),
            locks: Inside::here(),
        }
    }

    pub(crate) async fn around<F: Future>(self, future: F) -> F::Output {
        let future = self.locks.around(future);
        match (self.runtime, self.call) {
            (Some(runtime), Some(call)) => SCOPED.scope(runtime, CALL.scope(call, future)).await,
            (Some(runtime), None) => SCOPED.scope(runtime, future).await,
            (None, Some(call)) => CALL.scope(call, future).await,
            (None, None) => future.await,
        }
    }
}
