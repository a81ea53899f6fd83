//! How long a call keeps what it records.

use std::time::Duration;

/// How long things are kept, from the request's settings: in whole milliseconds, as they are, and
/// in half the room, since this is in the future of every call.
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
