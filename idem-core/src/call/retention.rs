//! How long a call keeps what it records.

use std::time::Duration;

/// How long an outcome is kept and remembered, in whole milliseconds. The future of every call
/// holds these numbers, and they take half as much memory as two `Duration`s.
#[derive(Clone, Copy)]
pub(super) struct Retention {
    ttl: u64,
    remember: u64,
}

impl Retention {
    pub(super) fn new(ttl: Duration, remember: Duration) -> Self {
        let millis = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        Self {
            ttl: millis(ttl),
            remember: millis(remember),
        }
    }

    pub(super) fn ttl(self) -> Duration {
        Duration::from_millis(self.ttl)
    }

    pub(super) fn remember(self) -> Duration {
        Duration::from_millis(self.remember)
    }
}
