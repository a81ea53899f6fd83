//! The tokio runtime in which a store's connections live: the one in which the store was made.
//!
//! redis-rs drives a connection in the tokio runtime in which it was made. Calls can come from
//! others, so every connection is made by a task of this one. If a caller's runtime ends or is
//! blocked, other callers do not notice. The connections move to a caller's runtime only if this
//! one has ended, or runs nothing any more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::timeout;

/// The runtime of a store's connections. Cheap to clone; clones move together.
#[derive(Clone)]
pub(crate) struct ConnectionRuntime(Arc<Mutex<CurrentRuntime>>);

/// The runtime in use, until the connections move to another.
#[derive(Clone)]
pub(crate) struct CurrentRuntime {
    runtime: Handle,
    alive: RuntimeAlive,
    number: u64,
}

/// Says whether a runtime still exists, by a task in it that ends only with the runtime.
#[derive(Clone)]
pub(crate) struct RuntimeAlive(Arc<Pending>);

struct Pending(AbortHandle);

impl ConnectionRuntime {
    /// Uses the current runtime.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub(crate) fn current() -> Self {
        Self(Arc::new(Mutex::new(CurrentRuntime::new(
            Handle::current(),
            0,
        ))))
    }

    /// Returns the runtime in use. If it has ended, the connections move to the current one.
    pub(crate) fn runtime(&self) -> CurrentRuntime {
        let mut current = self.lock();
        if current.alive.has_ended()
            && let Ok(handle) = Handle::try_current()
        {
            *current = CurrentRuntime::new(handle, current.number + 1);
        }
        current.clone()
    }

    /// Runs a task there.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.runtime().spawn(task)
    }

    /// Gives the runtime this long to run an empty task. If it does not, the connections move to
    /// the current runtime. Returns whether they did.
    pub(crate) async fn leave_if_stuck(&self, patience: Duration) -> bool {
        let before = self.runtime();
        // A runtime that has ended drops the task, which counts as an answer: `runtime` sees it.
        if timeout(patience, before.spawn(async {})).await.is_ok() {
            return false;
        }
        let mut current = self.lock();
        if let Ok(handle) = Handle::try_current()
            && current.number == before.number
        {
            *current = CurrentRuntime::new(handle, before.number + 1);
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, CurrentRuntime> {
        // Nothing that could panic half-way runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CurrentRuntime {
    fn new(runtime: Handle, number: u64) -> Self {
        let alive = RuntimeAlive(Arc::new(Pending(
            runtime.spawn(std::future::pending::<()>()).abort_handle(),
        )));
        Self {
            runtime,
            alive,
            number,
        }
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.runtime.spawn(task)
    }

    pub(crate) fn alive(&self) -> &RuntimeAlive {
        &self.alive
    }

    /// Returns a number that each move changes.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl RuntimeAlive {
    /// Whether the runtime has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.0.is_finished()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn it_stays_where_it_was_made_until_that_has_ended() {
        let one = runtime();
        let two = runtime();
        let runtime = one.block_on(async { ConnectionRuntime::current() });
        assert_eq!(
            two.block_on(async { runtime.runtime().number() }),
            0,
            "a runtime that is not driven has not ended"
        );
        drop(one);
        assert!(
            runtime.runtime().alive().has_ended(),
            "there is no other to move to"
        );
        let runtime = two.block_on(async { runtime.runtime() });
        assert!(runtime.number() == 1 && !runtime.alive().has_ended());
        two.block_on(runtime.spawn(async {})).unwrap();
    }

    #[test]
    fn it_leaves_a_runtime_that_runs_nothing() {
        let one = runtime();
        let two = runtime();
        let runtime = one.block_on(async { ConnectionRuntime::current() });
        two.block_on(async {
            tokio::time::pause();
            assert!(runtime.leave_if_stuck(Duration::from_secs(3)).await);
            assert!(!runtime.leave_if_stuck(Duration::from_secs(3)).await);
            assert_eq!(runtime.runtime().number(), 1);
        });
    }
}
