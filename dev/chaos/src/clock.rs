//! The one clock that all processes of a run share.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the host's monotonic clock, which means the same in every process.
/// (`std::time::Instant` cannot be written down.)
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec);
    let nanos = u64::try_from(now.tv_nsec);
    seconds.unwrap_or_default() * 1_000_000_000 + nanos.unwrap_or_default()
}

/// A length in nanoseconds.
pub(crate) fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}
