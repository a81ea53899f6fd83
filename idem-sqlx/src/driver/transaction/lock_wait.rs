//! How long a claim in a transaction waits for other transactions.

use std::time::Duration;

use tokio::time::Instant;

use super::super::dialect::Dialect;

/// How long a claim waits for locks of other transactions.
pub(super) struct LockWait {
    length: Duration,
    /// `None`: further away than the clock can tell.
    end: Option<Instant>,
}

#[allow(
    clippy::disallowed_methods,
    reason = "how long a caller waits, compared with nothing of the database"
)]
impl LockWait {
    pub(super) fn new(length: Duration) -> Self {
        let end = Instant::now().checked_add(length);
        Self { length, end }
    }

    pub(super) fn left(&self) -> Duration {
        self.end.map_or(self.length, |end| {
            end.saturating_duration_since(Instant::now())
        })
    }

    /// Whether the database has ended a wait for a lock before its time, because it would be a
    /// deadlock. SQLite does: a transaction that has read cannot become the writer while another
    /// one is.
    pub(super) fn is_refused<D: Dialect>(&self) -> bool {
        D::ONE_WRITER && !self.left().is_zero()
    }

    /// The limit for one statement. `None`: no other transaction can hold a lock.
    pub(super) fn limit(&self) -> Option<Duration> {
        (self.length < Duration::MAX).then(|| self.left())
    }
}
