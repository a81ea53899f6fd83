//! Pauses between tries.

use std::time::Duration;

/// Pauses that double up to a limit, for tries that may fail again.
///
/// Each pause is a random length between half of its value and the whole, so that callers that
/// failed together do not try again together.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use idem_core::adapter::Backoff;
///
/// let mut pauses = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
/// assert!(pauses.next_pause() <= Duration::from_millis(100));
/// assert!(pauses.next_pause() >= Duration::from_millis(100));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// Returns pauses of which the first is at most `first`, and each at most `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            next: first,
            longest,
        }
    }

    /// Returns the length of the next pause.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.longest);
        pause.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}
