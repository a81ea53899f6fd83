//! Looking at the record of a key, without a body.

use serde::de::DeserializeOwned;

use super::Operation;
use crate::call::lookup::Lookup;
use crate::error::Error;
use crate::record::RecordInfo;
use crate::task::current;

/// # The record: looking at it
impl Operation<'_> {
    /// Returns the record's state, attempt, ages and outcome; `None` if there is no record.
    ///
    /// # Errors
    ///
    /// [`Error::Store`], [`Error::Codec`] and [`Error::MissingKey`].
    pub async fn inspect(self) -> Result<Option<RecordInfo>, Error> {
        self.try_inspect().await.inspect_err(|_| current::taint())
    }

    async fn try_inspect(self) -> Result<Option<RecordInfo>, Error> {
        let Some((runtime, request)) = self.draft.prepare_by_hand().await? else {
            return Ok(None);
        };
        runtime.inspect(&request.id).await
    }

    /// Looks up the result of the call with this key, without claiming the key: for a caller that
    /// got no answer, or that shows progress.
    ///
    /// It asks the store once. It changes nothing, and does not wait for a call in flight. It does
    /// not use the [`local_cache`](crate::Builder::local_cache), so the answer is never older than
    /// the lookup.
    ///
    /// If you set a [`fingerprint`](Self::fingerprint), it is compared. If you set none, the lookup
    /// returns whatever is at the key. So after an [`Error::FingerprintMismatch`], a caller can
    /// find out what its key was used for.
    ///
    /// An invalid [token](Self::token) is [`Lookup::Unknown`]. If invalid tokens are limited, it
    /// counts as a failure of its subject. Under
    /// [`Idempotency::disabled`](crate::Idempotency::disabled) the result is always
    /// [`Lookup::Unknown`].
    ///
    /// # Errors
    ///
    /// [`Error::Codec`] if the outcome does not decode as `T`, [`Error::FingerprintMismatch`] if
    /// you set a fingerprint that differs, [`Error::Store`], [`Error::MissingKey`] and, with a
    /// token, [`Error::MissingSubject`] and [`Error::Throttled`].
    ///
    /// # Cancellation safety
    ///
    /// Dropped, it has changed nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, Idempotency, Lookup, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// # idempotency.operation("orders.create").key("o-1").run(|| async { Ok::<_, Error>(42) }).await?;
    /// let call = idempotency.operation("orders.create").key("o-1");
    /// let text = match call.lookup::<u32>().await? {
    ///     Lookup::Outcome(receipt) => format!("receipt {receipt}"),
    ///     Lookup::Error(recorded) => format!("failed: {}", recorded.decode_error::<String>()?),
    ///     Lookup::InFlight { .. } => "is being carried out".to_owned(),
    ///     Lookup::Abandoned { .. } => "was cut off, and an operator looks at it".to_owned(),
    ///     Lookup::AlreadyDone => "was carried out".to_owned(),
    ///     Lookup::Unknown => "was not carried out; it may be sent again".to_owned(),
    /// };
    /// assert_eq!(text, "receipt 42");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lookup<T: DeserializeOwned>(self) -> Result<Lookup<T>, Error> {
        self.try_lookup().await.inspect_err(|_| current::taint())
    }

    async fn try_lookup<T: DeserializeOwned>(self) -> Result<Lookup<T>, Error> {
        let Some((runtime, request)) = self.draft.prepare_by_hand().await? else {
            return Ok(Lookup::Unknown);
        };
        runtime.lookup(&request).await?.decode()
    }
}
