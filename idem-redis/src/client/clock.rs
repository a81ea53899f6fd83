//! Our own clock, for pauses and limits that are compared with nothing of a server.
#![allow(clippy::disallowed_methods, reason = "the one place of this crate that reads time")]

use tokio::time::Instant;

/// Our own clock.
pub(crate) fn now() -> Instant {
    Instant::now()
}
