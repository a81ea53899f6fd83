//! The tokio runtime in which a store's connections live: the one in which the store was made.
//!
//! redis-rs drives a connection in the runtime in which it was made, so each is made by a task of
//! this runtime, whichever runtime a call comes from. So if a caller's runtime ends or stands
//! still, other callers are not affected. The connections move to a caller's runtime only when this
//! one has ended, or runs nothing any more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::timeout;

/// The runtime of a store's connections. Cheap to clone; clones move together.
#[derive(Clone)]
pub(crate) struct Home(Arc<Mutex<HomeRuntime>>);

/// One runtime, until it is left.
#[derive(Clone)]
pub(crate) struct HomeRuntime {
    runtime: Handle,
    pulse: Pulse,
    number: u64,
}

/// Whether a runtime still exists: a task that never ends, unless the runtime does.
#[derive(Clone)]
pub(crate) struct Pulse(Arc<Pending>);

struct Pending(AbortHandle);

impl Home {
    /// The current runtime.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub(crate) fn here() -> Self {
        Self(Arc::new(Mutex::new(HomeRuntime::new(Handle::current(), 0))))
    }

    /// Returns the home; if the former runtime has ended, that is the current one from now on.
    pub(crate) fn runtime(&self) -> HomeRuntime {
        let mut current = self.lock();
        if current.pulse.has_stopped()
            && let Ok(here) = Handle::try_current()
        {
            *current = HomeRuntime::new(here, current.number + 1);
        }
        current.clone()
    }

    /// Runs a task there.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.runtime().spawn(task)
    }

    /// Waits so long for the runtime to run anything. If it does not, the current runtime takes its
    /// place; says whether that was so.
    pub(crate) async fn leave_if_stuck(&self, patience: Duration) -> bool {
        let before = self.runtime();
        // Dropped with its runtime, it answers too.
        if timeout(patience, before.spawn(async {})).await.is_ok() {
            return false;
        }
        let mut current = self.lock();
        if let Ok(here) = Handle::try_current()
            && current.number == before.number
        {
            *current = HomeRuntime::new(here, before.number + 1);
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, HomeRuntime> {
        // Nothing that could panic half-way runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HomeRuntime {
    fn new(runtime: Handle, number: u64) -> Self {
        let pulse = Pulse(Arc::new(Pending(runtime.spawn(std::future::pending::<()>()).abort_handle())));
        Self { runtime, pulse, number }
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.runtime.spawn(task)
    }

    pub(crate) fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Another one for each move.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Pulse {
    /// Whether the runtime has ended.
    pub(crate) fn has_stopped(&self) -> bool {
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
        let (one, two) = (runtime(), runtime());
        let home = one.block_on(async { Home::here() });
        assert_eq!(two.block_on(async { home.runtime().number() }), 0, "a runtime that is not driven has not ended");
        drop(one);
        assert!(home.runtime().pulse().has_stopped(), "there is no other to move to");
        let runtime = two.block_on(async { home.runtime() });
        assert!(runtime.number() == 1 && !runtime.pulse().has_stopped());
        two.block_on(home.spawn(async {})).unwrap();
    }

    #[test]
    fn it_leaves_a_runtime_that_runs_nothing() {
        let (one, two) = (runtime(), runtime());
        let home = one.block_on(async { Home::here() });
        two.block_on(async {
            tokio::time::pause();
            assert!(home.leave_if_stuck(Duration::from_secs(3)).await);
            assert!(!home.leave_if_stuck(Duration::from_secs(3)).await);
            assert_eq!(home.runtime().number(), 1);
        });
    }
}
