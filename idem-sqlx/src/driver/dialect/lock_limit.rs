//! Limits how long the statements of a caller's connection wait for locks.

use std::time::Duration;

use tokio::time::Instant;

use super::super::super::sqlx;
use super::{Conn, Dialect};

/// A connection whose statements wait for locks no longer than the call may. Its previous limit is
/// restored at the end. If the future is dropped before that, it is restored too, unless the
/// database does so itself.
pub(crate) struct LockLimit<'c, D: Dialect> {
    on: &'c mut Conn<D>,
    /// The previous limit. `None` once it is restored.
    before: Option<i64>,
    /// `None`: further away than the clock can tell.
    until: Option<Instant>,
}

impl<'c, D: Dialect> LockLimit<'c, D> {
    pub(crate) async fn set(on: &'c mut Conn<D>, wait: Duration) -> Result<Self, sqlx::Error> {
        let before = D::lock_limit(on).await?;
        let this = Self {
            on,
            before: Some(before),
            until: now().checked_add(wait),
        };
        D::limit_locks(this.on, wait).await?;
        Ok(this)
    }

    pub(crate) fn connection(&mut self) -> &mut Conn<D> {
        self.on
    }

    /// Whether this error says that the limit is over. SQLite also ends a wait before that, if it
    /// would be a deadlock: a transaction that has read cannot become the writer while another one
    /// is.
    pub(crate) fn is_over(&self, error: &sqlx::Error) -> bool {
        let is_early = D::ONE_WRITER && self.until.is_none_or(|until| now() < until);
        matches!(error, sqlx::Error::Database(error) if D::is_lock_timeout(&**error) && !is_early)
    }

    pub(crate) async fn restore(mut self) -> Result<(), sqlx::Error> {
        let Some(before) = self.before else {
            return Ok(());
        };
        D::restore_lock_limit(self.on, before).await?;
        self.before = None;
        Ok(())
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "how long a caller waits, compared with nothing of the database"
)]
fn now() -> Instant {
    Instant::now()
}

impl<D: Dialect> Drop for LockLimit<'_, D> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            D::restore_lock_limit_later(self.on, before);
        }
    }
}
