//! Which runtime a call uses if it names none.
//!
//! A scope follows the task. A task that is spawned inside of it uses the installed runtime again.

use std::future::Future;
use std::sync::OnceLock;

use crate::error::ConfigError;
use crate::runtime::handle::Idempotency;

static INSTALLED: OnceLock<Idempotency> = OnceLock::new();

tokio::task_local! {
    pub(super) static SCOPED: Idempotency;
}

/// Makes a runtime the default of the process, permanently.
///
/// # Errors
///
/// If one is installed already, or if the runtime has an invalid setting.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # fn main() -> Result<(), idem::ConfigError> {
/// use idem::{Idempotency, MemoryStore};
///
/// idem::install(Idempotency::new(MemoryStore::new()))?;
/// assert!(idem::install(Idempotency::disabled()).is_err());
/// # Ok(())
/// # }
/// ```
pub fn install(idempotency: Idempotency) -> Result<(), ConfigError> {
    idempotency.checked()?;
    INSTALLED.set(idempotency).map_err(|_| {
        ConfigError::new(
            "an idempotency runtime is installed already; install one, at start-up, or use \
             `idem::scope(..)`",
        )
    })
}

/// Makes a runtime the default inside one future: for tests, and for tenants.
///
/// It holds for the current task. A task that is spawned inside uses the installed runtime, unless
/// it has a `scope` of its own.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), idem::Error> {
/// use idem::{Idempotency, MemoryStore};
///
/// let idempotency = Idempotency::new(MemoryStore::new());
/// idem::scope(idempotency, async {
///     // Annotated functions that are called here use it.
/// })
/// .await;
/// # Ok(())
/// # }
/// ```
pub async fn scope<F: Future>(idempotency: Idempotency, future: F) -> F::Output {
    SCOPED.scope(idempotency, future).await
}

/// Returns the default runtime of the process, if one was [installed](install).
pub fn installed() -> Option<Idempotency> {
    INSTALLED.get().cloned()
}

/// Returns the runtime for calls that name none.
pub(crate) fn default_runtime() -> Option<Idempotency> {
    SCOPED.try_with(Clone::clone).ok().or_else(installed)
}

/// Whether that runtime is disabled.
#[inline]
pub(crate) fn is_disabled_by_default() -> bool {
    let scoped = SCOPED.try_with(Idempotency::is_disabled);
    scoped.unwrap_or_else(|_| INSTALLED.get().is_some_and(Idempotency::is_disabled))
}
