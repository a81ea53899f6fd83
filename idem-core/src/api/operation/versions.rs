//! The versions of an operation's outcome.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::Operation;
use crate::outcome::Storable;
use crate::outcome::codec::{AnyCodec, CodecContext, TypeLabel};
use crate::record::{Encoded, RecordId};

/// # Outcomes of earlier versions
impl<Q, P> Operation<'_, Q, P> {
    /// Sets the version of the outcome's type. Default: 1. At least 1; otherwise the call is
    /// [`Error::Config`](crate::Error::Config). It is stored with each outcome from version 2 on,
    /// and costs nothing before.
    ///
    /// Raise it if serde fails to read earlier outcomes as the new type, or if they would mean
    /// something else, and [upgrade](Self::upgrade) the earlier versions. A change that serde reads
    /// by itself, such as a new field with a default, needs no new version.
    ///
    /// An outcome of a later version than this one is [`Error::Codec`](crate::Error::Codec), and so
    /// is one of an earlier version without an upgrade. No body runs in either case. Errors that
    /// are kept have no version.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, Idempotency, MemoryStore};
    /// # use serde::{Deserialize, Serialize};
    /// #[derive(Serialize, Deserialize)]
    /// struct ReceiptV1 {
    ///     cents: u64,
    /// }
    ///
    /// #[derive(Debug, PartialEq, Serialize, Deserialize)]
    /// struct Receipt {
    ///     amount: String,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// // Before the deployment:
    /// idempotency
    ///     .operation("orders.charge")
    ///     .key("o-1")
    ///     .run(|| async { Ok::<_, Error>(ReceiptV1 { cents: 150 }) })
    ///     .await?;
    ///
    /// let replayed = idempotency
    ///     .operation("orders.charge")
    ///     .key("o-1")
    ///     .outcome_version(2)
    ///     .upgrade(1, |old: ReceiptV1| Receipt {
    ///         amount: format!("{}.{:02}", old.cents / 100, old.cents % 100),
    ///     })
    ///     .run(|| async { Ok::<_, Error>(Receipt { amount: "9.99".into() }) })
    ///     .await?;
    /// assert_eq!(replayed.into_inner(), Receipt { amount: "1.50".into() });
    /// # Ok(())
    /// # }
    /// ```
    pub fn outcome_version(mut self, version: u32) -> Self {
        // Version 1 alone needs no list of versions.
        if version != 1 || self.draft.versions.is_some() {
            self.draft.versions.get_or_insert_default().current = version;
        }
        self
    }

    /// Sets how an outcome of version `from` becomes one of the [current](Self::outcome_version)
    /// version. The record stays as it is.
    ///
    /// `Old` is the outcome's type of version `from`, and must be `DeserializeOwned`. `upgrade`
    /// returns the current type.
    pub fn upgrade<Old, New, Via>(
        mut self,
        from: u32,
        upgrade: impl Fn(Old) -> New + Send + Sync + 'static,
    ) -> Self
    where
        Old: DeserializeOwned,
        New: Storable<Via>,
    {
        let upgrade = move |codec: &AnyCodec, id: &RecordId, attempt: u64, outcome: &Encoded| {
            let old = codec.decode::<Old>(id, attempt, outcome)?;
            // The upgraded value is read at once and never stored, so it has no version.
            codec.encode(
                CodecContext::of_value(id, attempt, TypeLabel::default()),
                &upgrade(old).to_stored(),
            )
        };
        self.draft
            .versions
            .get_or_insert_default()
            .upgrade(from, Arc::new(upgrade));
        self
    }
}
