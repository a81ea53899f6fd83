//! Locks: leases without an outcome.

mod builder;
mod several;

use std::fmt;

pub use self::builder::LockBuilder;
pub use self::several::Locks;
use crate::Error;
use crate::adapter::engine::held_keys::HeldKey;
use crate::api::lease::Lease;

/// A lock that is held: no other holder of the same key exists until it is released, dropped or
/// [lost](Self::lost). From [`LockBuilder::acquire`].
///
/// It is renewed while it is held. If it is dropped, also by a panic or `?`, it is released in the
/// background; [`shutdown`](crate::Idempotency::shutdown) waits for that. If its process dies or
/// its tokio runtime ends, the next holder acquires the key when the lease has ended.
///
/// It may be moved to another task. Whoever acquires its key meanwhile waits, also in the task that
/// acquired it.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # use idem::{Error, Idempotency, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # let idempotency = Idempotency::new(MemoryStore::new());
/// # async fn compact(_disk: &str, _fencing_number: u64) {}
/// let lock = idempotency
///     .lock("disks.compact")
///     .key("sda")
///     .lease("30s")
///     .wait("60s")
///     .acquire()
///     .await?;
/// tokio::select! {
///     biased;
///     () = lock.lost() => panic!("another holder may be at work"),
///     () = compact("sda", lock.fencing_number()) => {}
/// }
/// lock.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a lock that is dropped is released"]
pub struct Lock {
    lease: Lease,
}

impl Lock {
    fn new(lease: Lease) -> Self {
        Self { lease }
    }

    /// `None` under a disabled runtime.
    fn held(&self) -> Option<HeldKey> {
        Some(HeldKey {
            runtime: self.lease.runtime()?,
            term: self.lease.term()?.clone(),
        })
    }

    /// Returns the fencing number: 1 for the first holder of the key, and a higher one for each
    /// later holder, as long as the record of the lock is [kept](LockBuilder::keep). 0 under
    /// [`Idempotency::disabled`](crate::Idempotency::disabled).
    ///
    /// Send it along with each write. A resource that remembers the highest number it has seen, and
    /// refuses lower ones, is safe from a holder that was paused and does not know that it lost the
    /// lock.
    pub fn fencing_number(&self) -> u64 {
        self.lease.attempt()
    }

    /// Resolves when the lock is lost: its lease could not be renewed in time. The work must then
    /// stop, because another holder may begin. After a release it never resolves. Cancel safe.
    ///
    /// It checks the lease at each poll. Put it first in a `select!` with `biased`, as in the
    /// example of [`Lock`]. Then a process that was paused for longer than the lease does not poll
    /// the work once more. [`LockBuilder::run`] does this by itself.
    pub async fn lost(&self) {
        self.lease.lost().await;
    }

    /// Releases the lock. After that, nothing is held, and a second release does nothing.
    ///
    /// # Errors
    ///
    /// [`Error::LeaseLost`] if the lock was lost and has another holder since, and [`Error::Store`]
    /// if the store did not answer: then the release continues in the background once the lock is
    /// dropped.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped, the release continues in the background once the lock is dropped.
    pub async fn release(&self) -> Result<(), Error> {
        self.lease.release_once().await
    }

    /// The error of a lock that is lost.
    fn lost_error(&self) -> Option<Error> {
        let term = self.lease.term()?;
        term.is_lost().then(|| term.lost_error())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.lease.release_when_dropped();
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("fencing_number", &self.fencing_number())
            .finish_non_exhaustive()
    }
}
