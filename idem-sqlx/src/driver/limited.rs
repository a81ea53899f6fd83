//! How long the statements of the caller's connection wait for locks.

use super::super::sqlx;
use super::dialect::{Conn, Dialect};
use std::time::Duration;

/// A connection whose statements wait for locks no longer than the call may. Its own limit is set
/// again at the end, and also if the future is dropped before that, where the database does not do
/// so itself.
pub(crate) struct Limited<'c, D: Dialect> {
    on: &'c mut Conn<D>,
    /// The limit that there was; `None` when it is set again.
    before: Option<i64>,
}

impl<'c, D: Dialect> Limited<'c, D> {
    pub(crate) async fn new(on: &'c mut Conn<D>, wait: Duration) -> Result<Self, sqlx::Error> {
        let before = D::lock_limit(on).await?;
        let limited = Self { on, before: Some(before) };
        D::limit_locks(limited.on, wait).await?;
        Ok(limited)
    }

    pub(crate) fn connection(&mut self) -> &mut Conn<D> {
        self.on
    }

    pub(crate) async fn end(mut self) -> Result<(), sqlx::Error> {
        let Some(before) = self.before else { return Ok(()) };
        D::unlimit_locks(self.on, before).await?;
        self.before = None;
        Ok(())
    }
}

impl<D: Dialect> Drop for Limited<'_, D> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            D::unlimit_later(self.on, before);
        }
    }
}
