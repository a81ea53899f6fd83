//! The server's clock beside our own: a lease lasts as long on both only if they run at the same
//! rate.
#![allow(clippy::disallowed_methods, reason = "the one place that lays two clocks beside each other")]

use std::time::{Duration, Instant, SystemTime};

use super::Report;

/// The assumption of the promises: clocks that run at the same rate within 10 %.
const RATE: u32 = 10;
/// Farther apart than this, a fail-over to another server may look like a jump.
const APART: Duration = Duration::from_secs(10);

/// One look: what the server's clock showed, and when at the earliest and at the latest.
pub(super) struct Look {
    time: Duration,
    earliest: Instant,
    latest: Instant,
}

impl Look {
    pub(super) fn new(earliest: Instant, time: Duration) -> Self {
        Self { time, earliest, latest: now() }
    }
}

pub(super) fn now() -> Instant {
    Instant::now()
}

/// Judges two looks at one server's clock.
pub(super) fn judge(server: &str, first: &Look, second: &Look, report: &mut Report) {
    let least = second.earliest.saturating_duration_since(first.latest);
    let most = second.latest.saturating_duration_since(first.earliest);
    let passed = second.time.checked_sub(first.time);
    let is_same = passed.is_some_and(|passed| passed + passed / RATE >= least && passed <= most + most / RATE);
    if is_same {
        report.fine(format!("{server}: the clock runs as this machine's does"));
    } else {
        report.found(
            format!("{server}: the clock was set, or does not run at the rate of this machine's: {passed:?} passed there while {least:?} to {most:?} passed here"),
            "keep both clocks by NTP, slewed and not stepped; leases are taken over too early or too late otherwise",
        );
    }
    let here = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let apart = second.time.abs_diff(here);
    if apart > APART {
        report.found(
            format!("{server}: the clock is {} off from this machine's", crate::print::length(apart)),
            "keep the clocks of all servers by NTP: after a fail-over to a server whose clock is ahead, living owners look dead to processes that connect then",
        );
    }
}
