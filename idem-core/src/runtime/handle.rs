//! The handle that applications hold.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::ConfigError;
use crate::runtime::Runtime;
use crate::runtime::background::Unfinished;

/// A runtime: a store, the defaults of all operations, and the background work of this process.
///
/// It is cheap to clone, and all clones are one runtime. Calls must run on a tokio runtime whose
/// time driver is enabled.
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
    /// Creates a runtime that runs every body, unguarded: for tests and emergencies.
    pub fn disabled() -> Self {
        Self { runtime: None }
    }

    /// Returns the default lease of operations; `None` if this runtime is disabled.
    pub fn lease(&self) -> Option<Duration> {
        self.runtime.as_ref().map(|runtime| runtime.settings.lease)
    }

    /// Returns whether this runtime runs every body, unguarded.
    pub fn is_disabled(&self) -> bool {
        self.runtime.is_none()
    }

    /// Waits until the background work of this runtime has ended:
    /// [detached](crate::Operation::run_detached) bodies, and the commits, releases and undone
    /// claims that the store has not accepted yet.
    ///
    /// Call it before the process ends, after it has stopped accepting requests.
    ///
    /// It stops and refuses nothing, and also waits for work that begins meanwhile. It does not
    /// wait for bodies that run in their callers' tasks. The runtime can still be used afterwards.
    ///
    /// # Errors
    ///
    /// [`Unfinished`] says how much work is left after `timeout`. The work continues while the
    /// process lives. When the process ends, it is lost as in a crash.
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
        self.runtime
            .as_ref()
            .and_then(|runtime| runtime.config.problem.clone())
            .map_or(Ok(()), Err)
    }
}

impl fmt::Debug for Idempotency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.runtime {
            Some(runtime) => f
                .debug_struct("Idempotency")
                .field("settings", &runtime.settings)
                .field("codec", &runtime.config.codec)
                .finish_non_exhaustive(),
            None => f.write_str("Idempotency(disabled)"),
        }
    }
}
