//! Compares the server's clock with that of this machine. A lease lasts equally long on both only
//! if they run at the same rate.
#![allow(
    clippy::disallowed_methods,
    reason = "it compares the clock of a server with that of this machine"
)]

use std::time::{Duration, Instant, SystemTime};

use super::Report;

/// The assumption of the promises: clocks that run at the same rate within 10 %.
const RATE: u32 = 10;
/// With clocks farther apart than this, a fail-over to another server may look like a jump.
const APART: Duration = Duration::from_secs(10);

/// A reading of the server's clock: its time, and when it was read at the earliest and at the
/// latest.
pub(super) struct Reading {
    time: Duration,
    earliest: Instant,
    latest: Instant,
}

impl Reading {
    pub(super) fn new(earliest: Instant, time: Duration) -> Self {
        Self {
            time,
            earliest,
            latest: now(),
        }
    }
}

pub(super) fn now() -> Instant {
    Instant::now()
}

/// Judges two readings of one server's clock.
pub(super) fn judge(server: &str, first: &Reading, second: &Reading, report: &mut Report) {
    let least = second.earliest.saturating_duration_since(first.latest);
    let most = second.latest.saturating_duration_since(first.earliest);
    let passed = second.time.checked_sub(first.time);
    let is_same = passed
        .is_some_and(|passed| passed + passed / RATE >= least && passed <= most + most / RATE);
    if is_same {
        report.fine(format!("{server}: the clock runs as this machine's does"));
    } else {
        report.found(
            format!(
                "{server}: the clock was set, or does not run at the rate of this machine's: \
                {passed:?} passed there while {least:?} to {most:?} passed here"
            ),
            "keep both clocks by NTP, slewed and not stepped; leases are taken over too early or \
             too late otherwise",
        );
    }
    let here = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let apart = second.time.abs_diff(here);
    if apart > APART {
        report.found(
            format!(
                "{server}: the clock is {} off from this machine's",
                crate::print::length(apart)
            ),
            "keep the clocks of all servers by NTP: after a fail-over to a server whose clock is \
             ahead, living owners look dead to processes that connect then",
        );
    }
}
