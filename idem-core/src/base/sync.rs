//! The locks, counters and signals of state that threads share. In tests, the explorer of schedules
//! (`explored.rs`) replaces them, and chooses the next thread at each of them.

#[cfg(not(all(test, shuttle)))]
pub(crate) use self::real::{spawn, wait_while};
#[cfg(not(all(test, shuttle)))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, RwLock, atomic};
#[cfg(not(all(test, shuttle)))]
pub(crate) use tokio::sync::Notify;

#[cfg(all(test, shuttle))]
pub(crate) use self::explored::{Notify, spawn, wait_while};
#[cfg(all(test, shuttle))]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, RwLock, atomic};

#[cfg(not(all(test, shuttle)))]
mod real {
    use std::io;
    use std::sync::{Condvar, MutexGuard, PoisonError};
    use std::time::Duration;

    use tokio::runtime::Handle;

    /// Starts a thread inside the caller's tokio runtime, if there is one. The thread then reads
    /// the same tokio clock as the caller, which a test may have paused.
    pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let runtime = Handle::try_current().ok();
        let inside = move || {
            let _entered = runtime.as_ref().map(Handle::enter);
            work();
        };
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(inside)
            .map(drop)
    }

    /// Waits while `condition` holds, for at most `limit`.
    pub(crate) fn wait_while<'a, T>(
        changed: &Condvar,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        changed
            .wait_timeout_while(guard, limit, condition)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }
}

#[cfg(all(test, shuttle))]
mod explored {
    use std::io;
    use std::sync::PoisonError;
    use std::time::Duration;

    use shuttle::sync::atomic::{AtomicBool, Ordering};
    use shuttle::sync::{Condvar, MutexGuard};
    use shuttle::thread;
    use tokio::sync::futures::Notified;

    /// All threads of the explorer run on one thread of the system, which is in one tokio runtime.
    pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(work)
            .map(drop)
    }

    /// The explorer has no clock: a pause of less than a second may end at any point, and a longer
    /// one does not end by itself.
    pub(crate) fn wait_while<'a, T>(
        changed: &Condvar,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        if limit < Duration::from_secs(1) {
            return guard;
        }
        changed
            .wait_while(guard, |state| condition(state))
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// tokio's `Notify`. Before each step the explorer may switch to another thread.
    #[derive(Debug, Default)]
    pub(crate) struct Notify {
        inner: tokio::sync::Notify,
        point: AtomicBool,
    }

    impl Notify {
        pub(crate) fn new() -> Self {
            Self::default()
        }

        pub(crate) fn notified(&self) -> Notified<'_> {
            self.at_point().notified()
        }

        pub(crate) fn notify_one(&self) {
            self.at_point().notify_one();
        }

        pub(crate) fn notify_waiters(&self) {
            self.at_point().notify_waiters();
        }

        fn at_point(&self) -> &tokio::sync::Notify {
            self.point.load(Ordering::SeqCst);
            &self.inner
        }
    }
}
