//! Pauses between tries.

use std::time::Duration;

/// Returns a random length between half of a pause and the whole, so that callers that failed
/// together do not return together.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64() / 2.0)
}
