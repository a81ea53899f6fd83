//! The state that a task spawned for a body inherits.

use std::future::Future;

use crate::runtime::handle::Idempotency;
use crate::task::current::Around;
use crate::task::held_keys::Inside;
use crate::task::scope::SCOPED;

/// The task-local state that a task spawned for a body must inherit.
pub(crate) struct Inherited {
    runtime: Option<Idempotency>,
    around: Around,
    keys: Inside,
}

impl Inherited {
    pub(crate) fn here() -> Self {
        Self {
            runtime: SCOPED.try_with(Clone::clone).ok(),
            around: Around::here(),
            keys: Inside::here(),
        }
    }

    pub(crate) async fn around<F: Future>(self, future: F) -> F::Output {
        let future = self.around.run(self.keys.around(future));
        match self.runtime {
            Some(runtime) => SCOPED.scope(runtime, future).await,
            None => future.await,
        }
    }
}
