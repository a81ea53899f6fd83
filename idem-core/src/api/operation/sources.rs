//! Errors of `idem` among the sources of an error that would be kept.

use super::{Errors, Operation};
use crate::call::keeping::has_ours;

impl<Q, P, E: std::error::Error, A> Operation<'_, Q, Errors<P, E, A>> {
    /// Keeps no error that has an [`Error`](crate::Error) among its
    /// [sources](std::error::Error::source): the key is released, with the event `error_not_kept`.
    ///
    /// Annotated functions do so by themselves. A call by hand must ask for it, because `errors`
    /// accepts error types without sources. It matters if a guarded call fails outside this body,
    /// for example in a spawned task, and its error is passed in. A guarded call that fails inside
    /// the body is noticed anyway. An `Error` under thiserror's `#[error(transparent)]` does not
    /// count as a source: mark that variant `#[serde(skip)]`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, ErrorAction, Idempotency, MemoryStore};
    /// # use std::fmt;
    /// #[derive(Debug, serde::Serialize, serde::Deserialize)]
    /// struct Failed {
    ///     #[serde(skip)]
    ///     because: Option<Error>,
    /// }
    /// # impl fmt::Display for Failed { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str("failed") } }
    /// # impl From<Error> for Failed { fn from(error: Error) -> Self { Self { because: Some(error) } } }
    ///
    /// impl std::error::Error for Failed {
    ///     fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
    ///         self.because.as_ref().map(|error| error as _)
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// let stock = Error::in_flight("stock.reserve", "o-1", std::time::Duration::from_secs(1)); // failed elsewhere
    /// let order = || idempotency.operation("orders.create").key("o-1");
    /// let failed = order()
    ///     .errors(|_: &Failed| ErrorAction::Keep)
    ///     .check_sources()
    ///     .run(|| async { Err::<u32, _>(Failed { because: Some(stock.clone()) }) })
    ///     .await;
    /// assert!(failed.is_err());
    /// assert_eq!(
    ///     order()
    ///         .run(|| async { Ok::<_, Error>(42) })
    ///         .await
    ///         .unwrap()
    ///         .into_inner(),
    ///     42
    /// ); // not kept
    /// # }
    /// ```
    pub fn check_sources(mut self) -> Self {
        if let Some(error_codec) = &mut self.policy.error_codec {
            error_codec.has_ours = has_ours;
        }
        self
    }
}
