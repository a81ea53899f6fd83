//! Time as the model keeps it: whole ticks of the store's clock.

use std::time::Duration;

use idem_core::record::STEPS_KEPT;

/// One tick of the store's clock, for the functions that take durations. The only absolute time is
/// that for which steps are kept: five ticks, one more than a record in flight stays.
pub(crate) const TICK: Duration = Duration::from_secs(STEPS_KEPT.as_secs() / 5);

/// Ticks that never pass: for what is kept longer than anybody looks.
pub const FOREVER: u8 = u8::MAX;

/// One tick less of what is left.
pub(crate) fn less(left: u8) -> u8 {
    if left == FOREVER {
        FOREVER
    } else {
        left.saturating_sub(1)
    }
}

/// As the functions of `idem-core` take it.
pub(crate) fn duration(ticks: u8) -> Duration {
    if ticks == FOREVER {
        Duration::MAX
    } else {
        TICK * u32::from(ticks)
    }
}

/// As the model keeps it.
pub(crate) fn ticks(duration: Duration) -> u8 {
    u8::try_from(duration.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(FOREVER)
}
