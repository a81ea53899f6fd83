//! The clock of this process, for pauses and limits. Its times are never compared with a server's.
#![allow(
    clippy::disallowed_methods,
    reason = "the one place of this crate that reads time"
)]

use tokio::time::Instant;

/// Returns the current time.
pub(crate) fn now() -> Instant {
    Instant::now()
}
