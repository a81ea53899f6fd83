//! The result of a body, and its stored form.

pub(crate) mod codec;
pub(crate) mod versions;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The value of a guarded call, and whether this call or an earlier one produced it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome<T> {
    value: T,
    replayed: bool,
}

impl<T> Outcome<T> {
    pub(crate) fn executed(value: T) -> Self {
        Self {
            value,
            replayed: false,
        }
    }

    pub(crate) fn replayed(value: T) -> Self {
        Self {
            value,
            replayed: true,
        }
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
/// `(StatusCode, T)`, `(HeaderMap, T)` and `(StatusCode, HeaderMap, T)`. In place of a `HeaderMap`,
/// `[(HeaderName, HeaderValue); N]` and `[(HeaderName, String); N]`.
///
/// `Via` keeps these implementations apart, and is always inferred. The trait is sealed: it is
/// implemented here alone.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be kept as an outcome",
    label = "cannot be stored and replayed",
    note = "an outcome is `serde::Serialize` and `serde::de::DeserializeOwned`: derive both, and \
        return owned data; a type parameter has both as bounds",
    note = "with the feature `axum` of `idem-rs`, it may be `Json<T>`, `Html<T>`, `StatusCode`, \
        `Redirect`, `(StatusCode, T)`, `(HeaderMap, T)` or `(StatusCode, HeaderMap, T)`"
)]
pub trait Storable<Via>: Sized + sealed::Storable<Via> {
    /// The type that is read back.
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
