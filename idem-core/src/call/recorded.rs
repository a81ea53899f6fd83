//! A recorded outcome.

use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::observe::Observer;
use crate::outcome::Storable;
use crate::outcome::codec::{AnyCodec, caught};
use crate::outcome::versions::Versions;
use crate::record::{Encoded, RecordId};
use crate::runtime::rejected::UNREADABLE;
use crate::task::current;

/// A recorded outcome that is not decoded yet. From [`Operation::begin`](crate::Operation::begin)
/// or [`Operation::lookup`](crate::Operation::lookup).
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # use idem::{Begin, Error, Idempotency, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # let idempotency = Idempotency::new(MemoryStore::new());
/// # idempotency.operation("orders.create").key("o-1").run(|| async { Ok::<_, Error>(42) }).await?;
/// let Begin::Replay(recorded) = idempotency
///     .operation("orders.create")
///     .key("o-1")
///     .begin()
///     .await?
/// else {
///     return Ok(());
/// };
/// assert_eq!(recorded.decode::<u32>()?, 42);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Recorded {
    pub(crate) id: RecordId,
    /// The attempt that gave it.
    pub(crate) attempt: u64,
    pub(crate) outcome: Encoded,
    pub(crate) codec: AnyCodec,
    pub(crate) versions: Option<Box<Versions>>,
    pub(crate) observer: Observer,
}

impl Recorded {
    /// Returns whether it is a kept error: decode it with [`decode_error`](Self::decode_error).
    pub fn is_error(&self) -> bool {
        self.outcome.is_error
    }

    /// Decodes the value.
    ///
    /// For an axum handler that returns `Json<T>`, decode a `T`.
    ///
    /// # Errors
    ///
    /// [`Error::Codec`] if it fails to decode as `T`, or is a kept error.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        if self.is_error() {
            return Err(self.unreadable(
                "it is an error that was kept, which this function or call does not expect",
            ));
        }
        self.read()
    }

    /// Like [`decode`](Self::decode), for the type that a body returns.
    pub(crate) fn decode_outcome<T: Storable<Via>, Via>(&self) -> Result<T, Error> {
        let stored = self.decode::<T::Stored>()?;
        T::from_stored(stored)
            .ok_or_else(|| self.unreadable(&format!("it is no {}", std::any::type_name::<T>())))
    }

    /// Decodes a kept error.
    ///
    /// # Errors
    ///
    /// [`Error::Codec`] if it fails to decode as `E`, or is a value.
    pub fn decode_error<E: DeserializeOwned>(&self) -> Result<E, Error> {
        if !self.is_error() {
            return Err(self.unreadable("it is a value, not an error that was kept"));
        }
        self.read()
    }

    fn read<S: DeserializeOwned>(&self) -> Result<S, Error> {
        let (id, attempt) = (&self.id, self.attempt);
        let upgraded = caught(|| match &self.versions {
            Some(versions) => versions.upgraded(&self.codec, id, attempt, &self.outcome),
            None if self.outcome.version() == 1 => Ok(None),
            None => Versions::default().upgraded(&self.codec, id, attempt, &self.outcome),
        });
        let upgraded = upgraded.map_err(|error| self.unreadable(&error.to_string()))?;
        caught(|| {
            self.codec
                .decode(id, attempt, upgraded.as_ref().unwrap_or(&self.outcome))
        })
        .map_err(|error| {
            self.unreadable(&format!("it is no {}: {error}", std::any::type_name::<S>()))
        })
    }

    fn unreadable(&self, why: &str) -> Error {
        if !self.observer.observes {
            // The failing body may return this error, and such an error is not kept.
            current::taint();
        }
        self.observer.report(
            UNREADABLE,
            &self.id,
            0,
            Some(&"the outcome is of another type"),
        );
        Error::unreadable(&self.id, &format!("its outcome cannot be read: {why}"))
    }
}
