//! The result of a body, and its stored form.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::codec::{AnyCodec, CodecContext, CodecFailure};
use crate::context;
use crate::error::Error;
use crate::error_policy::{ErrorAction, ErrorPolicy, KeepsErrors, Policy, RunsOnce};
use crate::observe::{Decision, Observer};
use crate::record::{Encoded, RecordId};
use crate::versions::Versions;

/// The value of a guarded call, and whether this call or an earlier one produced it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome<T> {
    value: T,
    replayed: bool,
}

impl<T> Outcome<T> {
    pub(crate) fn executed(value: T) -> Self {
        Self { value, replayed: false }
    }

    pub(crate) fn replayed(value: T) -> Self {
        Self { value, replayed: true }
    }

    /// Returns whether this is the recorded outcome of an earlier call.
    pub fn is_replayed(&self) -> bool {
        self.replayed
    }

    /// The value.
    pub fn get(&self) -> &T {
        &self.value
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.value
    }
}

/// A type that can be kept as an outcome: every type that is `Serialize` and `DeserializeOwned`.
/// With the feature `axum`, also the return types of handlers: `Json<T>` and `Html<T>` of such a
/// `T`, `StatusCode`, `NoContent`, `Redirect`, `HeaderMap`, `Bytes`, and with any outcome `T`
/// `(StatusCode, T)`, `(HeaderMap, T)` and `(StatusCode, HeaderMap, T)`.
///
/// `Via` says in which of these ways, so that all can be implemented; it is always inferred. The
/// trait is sealed: it is implemented here alone.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be kept as an outcome",
    label = "cannot be stored and replayed",
    note = "an outcome is `serde::Serialize` and `serde::de::DeserializeOwned`: derive both, and return owned data",
    note = "with the feature `axum` of `idem-rs`, it may be `Json<T>`, `Html<T>`, `StatusCode`, `Redirect`, `(StatusCode, T)`, `(HeaderMap, T)` or `(StatusCode, HeaderMap, T)`"
)]
pub trait Storable<Via>: Sized + sealed::Storable<Via> {
    /// What is read back.
    type Stored: DeserializeOwned;

    /// Returns what is stored of this value.
    fn to_stored(&self) -> impl Serialize;

    /// Makes the value from what was stored; `None` if no value is stored so.
    fn from_stored(stored: Self::Stored) -> Option<Self>;
}

/// Keeps helper traits from being implemented elsewhere, so that they can grow.
pub(crate) mod sealed {
    pub trait Storable<Via> {}
    impl<T: super::Serialize + super::DeserializeOwned> Storable<super::AsItIs> for T {}
}

/// A value that is stored as it is.
#[derive(Debug)]
pub enum AsItIs {}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned> Storable<AsItIs> for T {
    type Stored = T;

    fn to_stored(&self) -> impl Serialize {
        self
    }

    fn from_stored(stored: T) -> Option<Self> {
        Some(stored)
    }
}

/// The return type of a guarded function: a `Result`.
#[diagnostic::on_unimplemented(
    message = "an idempotent function must return `Result`, not `{Self}`",
    label = "not a `Result`",
    note = "the call can fail in ways of its own (`idem::Error`), which the function's error type takes up by `From<idem::Error>`"
)]
pub trait Returned {
    /// The outcome.
    type Ok;
    /// The error.
    type Err;

    /// As a `Result`.
    ///
    /// # Errors
    ///
    /// The error that was returned.
    fn into_result(self) -> Result<Self::Ok, Self::Err>;
    /// From a `Result`.
    fn from_result(result: Result<Self::Ok, Self::Err>) -> Self;
}

impl<T, E> Returned for Result<T, E> {
    type Ok = T;
    type Err = E;

    fn into_result(self) -> Self {
        self
    }

    fn from_result(result: Self) -> Self {
        result
    }
}

/// The operations on values of the return type `R` of a guarded call, which is a `Result<T, E>`.
/// They are gathered at the type, so that an unmet bound is one error, with its caret there.
pub struct Witness<R, T, E> {
    pub(crate) split: fn(R) -> Result<T, E>,
    pub(crate) join: fn(Result<T, E>) -> R,
    pub(crate) encode: fn(&AnyCodec, &RecordId, u64, &T) -> Result<Encoded, CodecFailure>,
    pub(crate) decode: fn(&Recorded) -> Result<T, Error>,
    pub(crate) fail: fn(Error) -> E,
}

/// Makes a [`Witness`].
pub fn outcome_of<R, Via>() -> Witness<R, R::Ok, R::Err>
where
    R: Returned,
    R::Ok: Storable<Via>,
    R::Err: FromIdempotency,
{
    Witness {
        split: R::into_result,
        join: R::from_result,
        encode: |codec, id, attempt, value| codec.encode(CodecContext::of_value(id, attempt), &value.to_stored()),
        decode: Recorded::decode_outcome,
        fail: R::Err::from,
    }
}

/// An error type that the errors of a guarded call can be turned into.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot take up the errors of `idem`",
    label = "is not `From<idem::Error>`",
    note = "with thiserror, add a variant: `#[error(transparent)] Idempotency(#[from] idem::Error)`",
    note = "or implement `From<idem::Error>` by hand"
)]
pub trait FromIdempotency: From<Error> {}

#[diagnostic::do_not_recommend]
impl<E: From<Error>> FromIdempotency for E {}

impl<R, T, E> Witness<R, T, E> {
    /// What is done with the errors of a function, as its `errors(..)` says.
    pub fn errors<P: Fn(&E) -> ErrorAction>(&self, action: P) -> Policy<P, E> {
        Policy::new(action)
    }

    /// What is done with them as their type says, where `errors(policy)` allows retries.
    pub fn errors_by_policy(&self) -> Policy<fn(&E) -> ErrorAction, E>
    where
        E: ErrorPolicy<Keeps: KeepsErrors<E>>,
    {
        Policy { action: E::action, keeper: E::Keeps::keeper() }
    }
}

impl<R, T, E: ErrorPolicy> Witness<R, T, E> {
    /// What is done with them as their type says, where the function says nothing.
    ///
    /// This is found before [`NoPolicy`]'s method of the same name, if the type has a policy.
    pub fn errors_by_default(&self) -> Policy<fn(&E) -> ErrorAction, E>
    where
        E::Keeps: KeepsErrors<E>,
        E::Retries: RunsOnce,
    {
        self.errors_by_policy()
    }
}

/// What is done with the errors of a type that says nothing, where the function says nothing
/// either.
pub trait NoPolicy<E> {
    /// Each is treated as [`Builder::default_error`](crate::Builder::default_error) says.
    fn errors_by_default(&self) -> Policy<fn(&E) -> ErrorAction, E>;
}

impl<R, T, E> NoPolicy<E> for Witness<R, T, E> {
    fn errors_by_default(&self) -> Policy<fn(&E) -> ErrorAction, E> {
        Policy::unlisted()
    }
}

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
/// let Begin::Replay(recorded) = idempotency.operation("orders.create").key("o-1").begin().await? else { return Ok(()) };
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
            return Err(self.unreadable("it is an error that was kept, which this function or call does not expect"));
        }
        self.read()
    }

    /// As [`decode`](Self::decode), of what a body returned.
    pub(crate) fn decode_outcome<T: Storable<Via>, Via>(&self) -> Result<T, Error> {
        let stored = self.decode::<T::Stored>()?;
        T::from_stored(stored).ok_or_else(|| self.unreadable(&format!("it is no {}", std::any::type_name::<T>())))
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
        let of = (&self.id, self.attempt);
        let upgraded = match &self.versions {
            Some(versions) => versions.upgraded(&self.codec, of, &self.outcome),
            None if self.outcome.version() == 1 => Ok(None),
            None => Versions::default().upgraded(&self.codec, of, &self.outcome),
        };
        let upgraded = upgraded.map_err(|error| self.unreadable(&error.to_string()))?;
        self.codec
            .decode(of, upgraded.as_ref().unwrap_or(&self.outcome))
            .map_err(|error| self.unreadable(&format!("it is no {}: {error}", std::any::type_name::<S>())))
    }

    fn unreadable(&self, why: &str) -> Error {
        if !self.observer.observes {
            // Inside a body it may become part of what the body fails with, which is not kept then.
            context::trouble();
        }
        self.observer.decided_because(Decision::Unreadable, &self.id, 0, &"the outcome is of another type");
        let reason = format!("its outcome cannot be read: {why}").into();
        Error::Codec { operation: self.id.operation().into(), key: self.id.digest(), reason }
    }
}
