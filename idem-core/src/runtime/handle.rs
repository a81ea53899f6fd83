//! The handle that applications hold.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::ConfigError;
use crate::runtime::Runtime;
use crate::runtime::background::Unfinished;

/// A runtime: a store, the defaults of all operations, and the leases of this process.
///
/// Cheap to clone; clones are the same runtime. It needs a tokio runtime with the time driver
/// around its calls.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # use idem::{Error, Idempotency, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// let idempotency = Idempotency::new(MemoryStore::new());
///
/// let charge = || async { Ok::<_, Error>("receipt 1".to_owned()) };
/// let first = idempotency.operation("orders.charge").key("o-1").run(charge).await?;
/// let second = idempotency.operation("orders.charge").key("o-1").run(charge).await?;
/// assert!(!first.is_replayed() && second.is_replayed());
/// assert_eq!(first.into_inner(), second.into_inner());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Idempotency {
    /// `None`: disabled.
    pub(crate) runtime: Option<Arc<Runtime>>,
}

impl Idempotency {
    /// A runtime that runs every body, unguarded: a switch for tests and emergencies.
    pub fn disabled() -> Self {
        Self { runtime: None }
    }

    /// Returns the lease of operations that set none of their own; `None` where this runtime is
    /// disabled.
    pub fn lease(&self) -> Option<Duration> {
        self.runtime.as_ref().map(|runtime| runtime.settings.lease)
    }

    /// Whether this runtime runs every body, unguarded.
    pub fn is_disabled(&self) -> bool {
        self.runtime.is_none()
    }

    /// Waits for the background work of this runtime: until [detached](crate::Operation::run_detached)
    /// bodies have ended, and every outcome and release that the store did not accept at once is
    /// accepted or given up. For the end of a process, after it has stopped taking requests. Then,
    /// or after `timeout`, the process can end.
    ///
    /// Nothing is stopped or refused: bodies that have callers are their callers' to wait for, and
    /// the runtime can be used on. New background work is waited for too.
    ///
    /// # Errors
    ///
    /// Says how much was still under way after `timeout`. It goes on as long as the process does.
    /// What is cut then is abandoned, as in a crash.
    ///
    /// # Cancellation safety
    ///
    /// Dropped, it changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use std::time::Duration;
    /// # use idem::{Idempotency, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// // The server has stopped.
    /// if let Err(unfinished) = idempotency.shutdown(Duration::from_secs(10)).await {
    ///     eprintln!("{unfinished}");
    /// }
    /// # }
    /// ```
    pub async fn shutdown(&self, timeout: Duration) -> Result<(), Unfinished> {
        match &self.runtime {
            Some(runtime) => runtime.background.finished(timeout).await,
            None => Ok(()),
        }
    }

    pub(crate) fn checked(&self) -> Result<(), ConfigError> {
        self.runtime.as_ref().and_then(|runtime| runtime.problem.clone()).map_or(Ok(()), Err)
    }
}

impl fmt::Debug for Idempotency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.runtime {
            Some(runtime) => f
                .debug_struct("Idempotency")
                .field("settings", &runtime.settings)
                .field("codec", &runtime.codec)
                .finish_non_exhaustive(),
            None => f.write_str("Idempotency(disabled)"),
        }
    }
}
