//! Which errors are recorded, and how.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::call::recorded::Recorded;
use crate::error::Error;
use crate::outcome::codec::CodecFailure;
use crate::policy::errors::{ErrorAction, Never, Sometimes};
use crate::record::Encoded;
use crate::task::outcome_writer::OutcomeWriter;

/// An error that can be recorded.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be kept",
    label = "this keeps errors, which then must be stored",
    note = "an error that is kept is `serde::Serialize` and `serde::de::DeserializeOwned`: derive \
        both; of a generic error, the type parameters are so too",
    note = "an `idem::Error` is never kept, alone or inside of another: mark the variant that \
        holds one `#[serde(skip)]`"
)]
pub trait Keepable: Serialize + DeserializeOwned {}

#[diagnostic::do_not_recommend]
impl<E: Serialize + DeserializeOwned> Keepable for E {}

/// How kept errors of a type are written and read.
#[derive(Debug)]
pub struct ErrorCodec<E> {
    pub(crate) encode: fn(&OutcomeWriter<'_>, &E) -> Result<Encoded, CodecFailure>,
    pub(crate) decode: fn(&Recorded) -> Result<E, Error>,
    /// Whether an error of `idem` is among the sources of the given one, as far as its type shows
    /// them.
    pub(crate) has_ours: fn(&E) -> bool,
}

impl<E> ErrorCodec<E> {
    /// The one that there is.
    pub fn of_type() -> Self
    where
        E: Keepable,
    {
        Self {
            encode: |writer, error| writer.error(error),
            decode: Recorded::decode_error,
            has_ours: |_| false,
        }
    }
}

/// Requires of `E` what a kept error needs, if its policy keeps any error.
#[diagnostic::on_unimplemented(
    message = "`{E}` cannot be kept, as its error policy wants",
    label = "some errors of this type are kept, and then must be stored",
    note = "an error that is kept is `serde::Serialize` and `serde::de::DeserializeOwned`: derive \
        both; of a generic error, the type parameters are so too",
    note = "the variant that holds an `idem::Error` is never kept: mark it `#[serde(skip)]`"
)]
pub trait KeepsErrors<E> {
    /// `None` if no error is kept.
    fn error_codec() -> Option<ErrorCodec<E>>;
}

#[diagnostic::do_not_recommend]
impl<E: Keepable> KeepsErrors<E> for Sometimes {
    fn error_codec() -> Option<ErrorCodec<E>> {
        Some(ErrorCodec::of_type())
    }
}

#[diagnostic::do_not_recommend]
impl<E> KeepsErrors<E> for Never {
    fn error_codec() -> Option<ErrorCodec<E>> {
        None
    }
}

/// The handling of the errors of one call.
#[derive(Debug)]
pub struct Policy<P, E> {
    pub(crate) action: P,
    pub(crate) error_codec: Option<ErrorCodec<E>>,
}

impl<P, E> Policy<P, E> {
    /// Makes a policy that keeps no error.
    pub(crate) fn new(action: P) -> Self
    where
        P: Fn(&E) -> ErrorAction,
    {
        Self {
            action,
            error_codec: None,
        }
    }

    /// A policy that may keep errors.
    #[must_use]
    pub fn keeping(self) -> Self
    where
        E: Keepable,
    {
        Self {
            error_codec: Some(ErrorCodec::of_type()),
            ..self
        }
    }
}

impl<P, E: std::error::Error> Policy<P, E> {
    /// A policy that keeps no error of which an [`Error`] is a source.
    ///
    /// This is found before [`Opaque`]'s method of the same name, if the type is an error.
    #[must_use]
    pub fn looking_inside(mut self) -> Self {
        if let Some(error_codec) = &mut self.error_codec {
            error_codec.has_ours = has_ours;
        }
        self
    }
}

/// The policy of an error type that has no sources.
pub trait Opaque: Sized {
    /// Returns the codec unchanged.
    #[must_use]
    fn looking_inside(self) -> Self {
        self
    }
}

impl<P, E> Opaque for Policy<P, E> {}

/// Whether an error of `idem` is among the sources of `error`.
pub(crate) fn has_ours<E: std::error::Error>(error: &E) -> bool {
    /// Longer than any real chain, and an end for one that is a circle.
    const MOST: usize = 100;
    let is_ours = |error: &(dyn std::error::Error + 'static)| {
        error.is::<Error>() || error.is::<Box<Error>>() || error.is::<Arc<Error>>()
    };
    std::iter::successors(error.source(), |error| error.source())
        .take(MOST)
        .any(is_ours)
}

impl<E> Policy<fn(&E) -> ErrorAction, E> {
    /// Makes a policy that lists no error.
    pub(crate) fn unlisted() -> Self {
        Self::new(|_| ErrorAction::Unlisted)
    }
}
