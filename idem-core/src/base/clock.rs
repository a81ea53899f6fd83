//! The only code in the workspace that reads time (`clippy.toml` enforces that).
//!
//! Two kinds of time are kept apart. The *owner's* time is monotonic and local; it limits how long
//! a body may go on without a confirmed renewal. The *store's* time decides when a lease has
//! expired. The two are never compared; only durations pass between them.
//!
//! The wall clock is read for one thing: the age of a run of [steps](crate::step), which is told in
//! days. No lease and no order depends on it.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Reads the owner's monotonic clock. It is tokio's, so that tests with paused time move it.
#[allow(clippy::disallowed_methods)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns the time from 1970 to an instant of the owner's clock, as the wall clock had it when this
/// process first asked. It never goes back, and stands still while the machine is suspended.
pub(crate) fn since_1970(instant: Instant) -> Duration {
    static START: OnceLock<(Instant, Duration)> = OnceLock::new();
    let (start, wall) = START.get_or_init(|| (now(), system_time()));
    wall.saturating_add(instant.saturating_duration_since(*start))
}

/// Returns the time from 1970 until now: by the wall clock, or by the owner's clock if that is
/// ahead, as in a test with paused time.
pub(crate) fn wall_time() -> Duration {
    since_1970(now()).max(system_time())
}

#[allow(clippy::disallowed_methods)]
fn system_time() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Returns `instant + length`, or the far future on overflow.
pub(crate) fn after(instant: Instant, length: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);
    instant.checked_add(length).unwrap_or_else(|| instant + FAR)
}

/// A monotonic clock for [`MemoryStore`](crate::MemoryStore), which is its own server.
///
/// The default is tokio's clock. Tests can bring one that they move by hand; `idem-testkit` has
/// such a clock.
pub trait Clock: Send + Sync + 'static {
    /// The time that has passed since a fixed moment of the clock's own choice. Must never go back.
    fn elapsed(&self) -> Duration;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn elapsed(&self) -> Duration {
        (**self).elapsed()
    }
}

/// The default clock of a [`MemoryStore`](crate::MemoryStore).
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokioClock {
    start: Instant,
}

impl TokioClock {
    pub(crate) fn new() -> Self {
        Self { start: now() }
    }
}

impl Clock for TokioClock {
    fn elapsed(&self) -> Duration {
        now().saturating_duration_since(self.start)
    }
}
