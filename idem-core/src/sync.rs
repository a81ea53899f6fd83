//! The locks, counters and wake-ups of state that threads share: the usual ones, or those of the
//! explorer of schedules (`explored.rs`), which chooses the next thread at each of them.

#[cfg(not(all(test, shuttle)))]
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock, atomic};
#[cfg(not(all(test, shuttle)))]
pub(crate) use tokio::sync::Notify;

#[cfg(all(test, shuttle))]
pub(crate) use self::explored::Notify;
#[cfg(all(test, shuttle))]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, RwLock, atomic};

#[cfg(all(test, shuttle))]
mod explored {
    use shuttle::sync::atomic::{AtomicBool, Ordering};
    use tokio::sync::futures::Notified;

    /// tokio's, where the explorer may let another thread go on before each step.
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
