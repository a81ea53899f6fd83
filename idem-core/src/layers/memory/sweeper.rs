//! A thread of the store that drops expired records, even if no call comes.
//!
//! It runs while the store has records that will expire, and sleeps until the first of them does.
//! It is a thread and not a task, because the store may be used outside of tokio or from several
//! tokio runtimes, and a runtime may be parked or gone.
//!
//! A step that adds a record which expires before the thread would look wakes the thread, or starts
//! it. No wake-up is lost: the step writes its shard's `due` and then reads `looks_at`; the thread
//! writes `looks_at` and then reads every `due`.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use super::{Inner, Swept};
use crate::adapter::catch_user_panic;
use crate::adapter::engine::sync::atomic::{AtomicU64, Ordering};
use crate::adapter::engine::sync::{Condvar, Mutex, MutexGuard, spawn, wait_while};

/// A time that never comes, in nanoseconds of the store's clock.
pub(super) const NEVER: u64 = u64::MAX;
/// While the thread looks.
const LOOKING: u64 = 0;
/// The least time between two looks, so that records which expire one after the other are found
/// together.
const AFTER_A_FIND: Duration = Duration::from_secs(1);
/// The least time after a look that found fewer than one expired record in [`FEW`]. If keys come
/// and go all the time, each look is at all records.
const AFTER_FEW: Duration = Duration::from_secs(5);
const FEW: usize = 16;
/// How much later than a record expires the thread may look for it, so that few steps wake it. It
/// is at least as long as the pauses above, so that no step shortens them.
const SLACK: Duration = AFTER_FEW;
/// A look at a full store is made in at most this many turns, with a pause between two, so that it
/// takes a part of one processor. More turns would last too long on a busy machine, where a pause
/// may take ten times its length.
const TURNS: usize = 128;
const PAUSE: Duration = Duration::from_millis(1);

/// The state that the steps and the thread share.
pub(super) struct Sweeper {
    /// When the thread looks next.
    looks_at: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_running: bool,
    /// A step wants the thread to look earlier.
    is_called: bool,
    /// The store is gone.
    has_ended: bool,
    /// How often the thread has looked.
    #[cfg(test)]
    looks: u64,
}

/// Returns a time of the store's clock as shards publish it.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER)
}

impl Sweeper {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            looks_at: AtomicU64::new(NEVER),
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Whether the thread would look too late for what is due at `due`.
    pub(super) fn is_late_for(&self, due: u64) -> bool {
        due.saturating_add(nanos(SLACK)) < self.looks_at.load(Ordering::SeqCst)
    }

    /// Has the thread look again, or starts it.
    pub(super) fn call(self: &Arc<Self>, store: &Arc<Inner>) {
        let mut state = self.state();
        if state.is_running {
            state.is_called = true;
            self.changed.notify_all();
            return;
        }
        state.is_running = true;
        self.looks_at.store(LOOKING, Ordering::SeqCst);
        let sweeper = self.clone();
        let store = Arc::downgrade(store);
        if let Err(error) = spawn("idem-sweeper", move || sweeper.run(&store)) {
            // The sweeper stays marked as running, so that no call tries to start it again. Claims
            // of new keys sweep too.
            catch_user_panic(|| {
                tracing::warn!(target: "idem", %error, "the memory store has no thread to drop \
                    expired records; calls drop them");
            });
        }
    }

    /// Ends the thread.
    pub(super) fn end(&self) {
        self.state().has_ended = true;
        self.changed.notify_all();
    }

    fn run(&self, store: &Weak<Inner>) {
        while let Some(found) = self.look(store) {
            self.looks_at.store(NEVER, Ordering::SeqCst);
            let Some(inner) = store.upgrade() else { return };
            let now = nanos(inner.clock.elapsed());
            let next = inner.next_due();
            drop(inner);
            let mut state = self.state();
            #[cfg(test)]
            {
                state.looks += 1;
                self.changed.notify_all();
            }
            if !state.is_called {
                if next == NEVER {
                    state.is_running = false;
                    return;
                }
                let pause = if found.dropped * FEW < found.looked_at {
                    AFTER_FEW
                } else {
                    AFTER_A_FIND
                };
                let then = next.max(now.saturating_add(nanos(pause)));
                self.looks_at.store(then, Ordering::SeqCst);
                state = self.sleep(state, Duration::from_nanos(then - now));
            }
            state.is_called = false;
            self.looks_at.store(LOOKING, Ordering::SeqCst);
        }
    }

    /// Sweeps each shard that is due; `None` if the store is gone.
    fn look(&self, store: &Weak<Inner>) -> Option<Swept> {
        let mut from = 0;
        let mut all = Swept::default();
        loop {
            let inner = store.upgrade()?;
            let at_once = inner.shards.len().div_ceil(TURNS);
            let next = inner.sweep_due(from, at_once, &mut all);
            drop(inner);
            let Some(next) = next else { return Some(all) };
            from = next;
            if wait_while(&self.changed, self.state(), PAUSE, |state| !state.has_ended).has_ended {
                return None;
            }
        }
    }

    fn sleep<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        wait_while(&self.changed, state, time, |state| {
            !state.is_called && !state.has_ended
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod hooks {
    use super::*;

    #[cfg(shuttle)]
    impl Sweeper {
        /// Tells the thread the time of a test's clock, and ends a sleep that is over by then.
        pub(in crate::layers::memory) fn time_is(&self, now: u64) {
            let mut state = self.state();
            if self.looks_at.load(Ordering::SeqCst) <= now {
                state.is_called = true;
                self.changed.notify_all();
            }
        }
    }

    impl Sweeper {
        /// Whether there is a thread.
        pub(in crate::layers::memory) fn is_running(&self) -> bool {
            self.state().is_running
        }

        /// Makes the thread look, if it runs, and waits for the look to end.
        pub(in crate::layers::memory) fn look_now(&self) {
            let mut state = self.state();
            // One look may have begun already.
            let enough = state.looks + 2;
            while state.looks < enough && state.is_running {
                state.is_called = true;
                self.changed.notify_all();
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}
