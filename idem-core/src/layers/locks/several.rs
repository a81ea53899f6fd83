//! Several locks that are held together.

use std::future::{Future as _, poll_fn};
use std::ops::Deref;
use std::task::Poll;
use std::{slice, vec};

use futures_util::future::join_all;

use super::Lock;
use crate::Error;

/// The locks of several keys, all of them held. From [`LockBuilder::acquire_all`]. They are in the
/// order in which the keys were given.
///
/// If they are dropped, each is released in the background, as a [`Lock`] is.
///
/// [`LockBuilder::acquire_all`]: crate::LockBuilder::acquire_all
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # use idem::{Error, Idempotency, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # let idempotency = Idempotency::new(MemoryStore::new());
/// let locks = idempotency.lock("merchants").keys(["m-7", "m-1"]).acquire_all().await?;
/// let seventh = locks[0].fencing_number();
/// # assert_eq!((locks.len(), seventh), (2, 1));
/// locks.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "locks that are dropped are released"]
pub struct Locks(Vec<Lock>);

impl Locks {
    pub(super) fn new(locks: Vec<Lock>) -> Self {
        Self(locks)
    }

    /// Resolves when one of the locks is lost. The work must then stop. See [`Lock::lost`].
    pub async fn lost(&self) {
        let mut each: Vec<_> = self.0.iter().map(|lock| Box::pin(lock.lost())).collect();
        poll_fn(|context| {
            let is_lost = each
                .iter_mut()
                .any(|lost| lost.as_mut().poll(context).is_ready());
            if is_lost {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Releases all locks, at the same time.
    ///
    /// # Errors
    ///
    /// The first error of [`Lock::release`]. The other locks are released all the same.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped, the releases continue in the background once the locks are
    /// dropped.
    pub async fn release(&self) -> Result<(), Error> {
        let released = join_all(self.0.iter().map(Lock::release)).await;
        released.into_iter().collect()
    }
}

impl Deref for Locks {
    type Target = [Lock];

    fn deref(&self) -> &[Lock] {
        &self.0
    }
}

impl IntoIterator for Locks {
    type Item = Lock;
    type IntoIter = vec::IntoIter<Lock>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Locks {
    type Item = &'a Lock;
    type IntoIter = slice::Iter<'a, Lock>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
