//! A clock that stands still until a test moves it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use idem_core::store::Clock;

/// A clock that a test moves by hand, for
/// [`MemoryStore::with_clock`](idem_core::MemoryStore::with_clock).
///
/// Cheap to clone; clones are the same clock.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use idem_core::MemoryStore;
/// use idem_testkit::ManualClock;
///
/// let clock = ManualClock::new();
/// let store = MemoryStore::with_clock(clock.clone());
/// clock.advance(Duration::from_secs(30)); // Every lease of 30 seconds in `store` has run out now.
/// ```
#[derive(Debug, Clone, Default)]
pub struct ManualClock(Arc<Mutex<Duration>>);

impl ManualClock {
    /// A clock that stands at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *now = now.saturating_add(by);
    }
}

impl Clock for ManualClock {
    fn elapsed(&self) -> Duration {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
