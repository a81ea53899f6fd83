//! The errors of a guarded call, besides the body's own.

pub(crate) mod disposition;
mod kind;
mod made;
pub(crate) mod problem;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::kind::ErrorKind;
use crate::encoding::key::KeyDigest;

/// Why a guarded call did not give the body's result.
///
/// Each message says which operation, and what to do: it is for operators. Keys appear as a digest
/// only, because they may be personal data. For clients, use
/// [`client_message`](Self::client_message); for HTTP responses,
/// [`http_status`](Self::http_status).
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use std::time::Duration;
///
/// /// Status, body, and the seconds of `Retry-After`.
/// fn response(error: &idem::Error) -> (u16, String, Option<u64>) {
///     let body = format!("{}: {}", error.code(), error.client_message());
///     let seconds = error.retry_after().map(|wait| wait.as_secs() + u64::from(wait.subsec_nanos() > 0));
///     (error.http_status(), body, seconds)
/// }
///
/// let error = idem::Error::in_flight("orders.create", "o-1", Duration::from_secs(30));
/// let (status, body, retry_after) = response(&error);
/// assert_eq!((status, retry_after), (409, Some(1)));
/// assert!(body.starts_with("in_flight: "));
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another caller's body is running, and it did not end while this call was willing to wait.
    #[error(
        "operation `{operation}`, key {key}: another call with this key is in flight; call again, if its owner is gone the key is free in {retry_after:.1?}"
    )]
    #[non_exhaustive]
    InFlight {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key.
        key: KeyDigest,
        /// The time until the owner's lease expires, unless it is renewed: if the owner is gone,
        /// the key stays locked at most this long. Often the answer comes much sooner, so this does
        /// not suit as a `Retry-After` for clients.
        retry_after: Duration,
    },
    /// The call was carried out before, and this operation answers duplicates with an error
    /// (`duplicate = reject`); or an outcome is to be settled where there is one.
    #[error(
        "operation `{operation}`, key {key}: a call with this key was carried out before; its outcome stays as it is"
    )]
    #[non_exhaustive]
    Duplicate {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key.
        key: KeyDigest,
    },
    /// The call was carried out before, and its outcome is not kept any more, or never could be.
    #[error(
        "operation `{operation}`, key {key}: a call with this key was carried out before; its outcome is not kept any more (see `ttl` and `remember`)"
    )]
    #[non_exhaustive]
    AlreadyDone {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key.
        key: KeyDigest,
    },
    /// The key came before with other arguments.
    #[error(
        "operation `{operation}`, key {key}: this key came before with other arguments; send a new key with a new request"
    )]
    #[non_exhaustive]
    FingerprintMismatch {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key.
        key: KeyDigest,
    },
    /// An earlier owner was cut off, what became of its work is unknown, and this operation wants
    /// that settled first (`abandoned = reject`).
    #[error(
        "operation `{operation}`, key {key}: attempt {attempt} was abandoned and its outcome is unknown; find out what became of it, then `settle`, `settle_error` or `forget` the key"
    )]
    #[non_exhaustive]
    Abandoned {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key.
        key: KeyDigest,
        /// The attempt that was cut off.
        attempt: u64,
    },
    /// The body was begun `max_attempts` times and never succeeded.
    #[error(
        "operation `{operation}`, key {key}: {attempts} attempts were made, the most that the operation allows; find out why, then `settle` or `forget` the key"
    )]
    #[non_exhaustive]
    AttemptsExhausted {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key.
        key: KeyDigest,
        /// How many attempts were made.
        attempts: u64,
    },
    /// The lease could not be renewed in time, or another caller took the key over: the body was
    /// stopped, or its commit refused.
    #[error(
        "operation `{operation}`, key {key}: the lease of attempt {attempt} was lost, so the body was stopped or its outcome refused; the same call may be made again"
    )]
    #[non_exhaustive]
    LeaseLost {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key.
        key: KeyDigest,
        /// The attempt that lost its lease.
        attempt: u64,
    },
    /// A part of the key has no value: `None`, or an empty text.
    #[error(
        "operation `{operation}`: the idempotency key is missing: a part of it is `None` or empty; send one, or set `missing_key = run` to run such calls unguarded"
    )]
    #[non_exhaustive]
    MissingKey {
        /// The operation's name.
        operation: Arc<str>,
    },
    /// A body called its own operation with its own key, and would have waited for itself.
    #[error(
        "operation `{operation}`, key {key}: the body called its own operation with its own key, and would wait for itself; call the inner function, or use another key"
    )]
    #[non_exhaustive]
    Reentrant {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key.
        key: KeyDigest,
    },
    /// The subject of a token has no value: `None`, or an empty text. No token is issued to it, and
    /// none counts for it.
    #[error(
        "operation `{operation}`: the subject of the token is missing: a part of it is `None` or empty; is the caller logged in, does he have a session?"
    )]
    #[non_exhaustive]
    MissingSubject {
        /// The operation's name.
        operation: Arc<str>,
    },
    /// The token is unknown, expired, forged, or another subject's (or another operation's); which
    /// of these, only the events say. The body did not run.
    #[error(
        "operation `{operation}`, key {key}: the token does not count: it is unknown, its time is over, or it was issued to another subject, or for another operation; issue a new one, with a fresh form"
    )]
    #[non_exhaustive]
    UnknownToken {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key that the token and the subject stand for.
        key: KeyDigest,
    },
    /// This subject has sent too many tokens that do not count (see
    /// [`Builder::limit_token_failures`](crate::Builder::limit_token_failures)). Nothing was asked
    /// of the store.
    #[error(
        "operation `{operation}`, key {key}: the same subject has sent too many tokens that do not count; try again in {retry_after:.1?}"
    )]
    #[non_exhaustive]
    Throttled {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key that the token and the subject stand for.
        key: KeyDigest,
        /// When tokens of this subject are looked at again.
        retry_after: Duration,
    },
    /// The store could not answer, so the body did not run (unless `store_failure = run`). From a
    /// lease held by hand: the step may or may not have been carried out, and may be called again.
    #[error("operation `{operation}`, key {key}: the store failed: {source}")]
    #[non_exhaustive]
    Store {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key.
        key: KeyDigest,
        /// The store's error.
        source: StoreError,
    },
    /// The value at the key failed to decode: another program's data, a damaged record, one of a
    /// newer version, or an outcome whose type has changed. Nothing was run and nothing was
    /// changed.
    #[error(
        "operation `{operation}`, key {key}: the stored record cannot be read: {reason}; the body was not run again; repair or `forget` the key"
    )]
    #[non_exhaustive]
    Codec {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key.
        key: KeyDigest,
        /// What is wrong with it.
        reason: Arc<str>,
    },
    /// No runtime was found: none is installed, and no [`scope`](crate::scope) is around the call.
    #[error(
        "operation `{operation}`: no idempotency runtime; call `idem::install(..)` at start-up, wrap the call in `idem::scope(..)`, or name one with `runtime = \"..\"`"
    )]
    #[non_exhaustive]
    NotInstalled {
        /// The operation's name.
        operation: Arc<str>,
    },
    /// The runtime or the call was given a setting that cannot be. Nothing was run.
    #[error("operation `{operation}`: {reason}")]
    #[non_exhaustive]
    Config {
        /// The operation's name.
        operation: Arc<str>,
        /// What is wrong, and what to write.
        reason: Arc<str>,
    },
}

impl Error {
    /// Whether the very same call may succeed later without anybody doing anything:
    /// [`InFlight`](Self::InFlight), [`LeaseLost`](Self::LeaseLost),
    /// [`Throttled`](Self::Throttled), and [`Store`](Self::Store) where the store's failure may
    /// pass.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::InFlight { .. } | Self::LeaseLost { .. } | Self::Throttled { .. } => true,
            Self::Store { source, .. } => source.is_retryable(),
            _ => false,
        }
    }

    /// Returns how long to wait before the same call is made again; `None` if that would not help.
    ///
    /// In flight, it is one second, or less if the owner's lease ends sooner: an owner that lives
    /// answers long before its lease ends. Throttled, it is the time until tokens of the subject
    /// are looked at again. Otherwise it is one second. HTTP's `Retry-After` has whole seconds:
    /// round up.
    pub fn retry_after(&self) -> Option<Duration> {
        const SOON: Duration = Duration::from_secs(1);
        match self {
            Self::InFlight { retry_after, .. } => Some(SOON.min(*retry_after)),
            Self::Throttled { retry_after, .. } => Some(*retry_after),
            error => error.is_retryable().then_some(SOON),
        }
    }

    /// Returns the digest of the key by which logs name it; `None` for a call without a key.
    pub fn key(&self) -> Option<KeyDigest> {
        match self {
            Self::InFlight { key, .. }
            | Self::Duplicate { key, .. }
            | Self::AlreadyDone { key, .. }
            | Self::FingerprintMismatch { key, .. }
            | Self::Abandoned { key, .. }
            | Self::AttemptsExhausted { key, .. }
            | Self::LeaseLost { key, .. }
            | Self::Reentrant { key, .. }
            | Self::UnknownToken { key, .. }
            | Self::Throttled { key, .. }
            | Self::Store { key, .. }
            | Self::Codec { key, .. } => Some(*key),
            Self::MissingKey { .. } | Self::MissingSubject { .. } | Self::NotInstalled { .. } | Self::Config { .. } => {
                None
            }
        }
    }

    /// Returns the operation that failed.
    pub fn operation(&self) -> &str {
        match self {
            Self::InFlight { operation, .. }
            | Self::Duplicate { operation, .. }
            | Self::AlreadyDone { operation, .. }
            | Self::FingerprintMismatch { operation, .. }
            | Self::Abandoned { operation, .. }
            | Self::AttemptsExhausted { operation, .. }
            | Self::LeaseLost { operation, .. }
            | Self::MissingKey { operation, .. }
            | Self::MissingSubject { operation, .. }
            | Self::Reentrant { operation, .. }
            | Self::UnknownToken { operation, .. }
            | Self::Throttled { operation, .. }
            | Self::Store { operation, .. }
            | Self::Codec { operation, .. }
            | Self::NotInstalled { operation, .. }
            | Self::Config { operation, .. } => operation,
        }
    }
}

/// A setting of a runtime that cannot be, found by
/// [`Builder::try_build`](crate::Builder::try_build), or a runtime that cannot be installed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub(crate) Arc<str>);

impl ConfigError {
    pub(crate) fn new(reason: impl Into<Arc<str>>) -> Self {
        Self(reason.into())
    }
}

/// Why a store could not carry out a step.
#[derive(Debug, Clone)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Arc<str>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    is_unsent: bool,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The error itself, not the pointer to it, so that it can be downcast.
        self.source.as_deref().map(|source| source as _)
    }
}

/// The kind of a [`StoreError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store is unreachable, or not able to answer now (starting, failing over, read-only for
    /// the moment). The step may have been carried out: only the reply is known to be missing.
    Unavailable,
    /// No answer came in time. The step may have been carried out, or may yet be.
    Timeout,
    /// The store takes no new records: its memory or capacity is used up. The step was not carried
    /// out.
    Full,
    /// The store refused the step: wrong password, missing rights, unsupported version. The step
    /// was not carried out.
    Refused,
    /// The value at the key is not a record that this version can read. It was left untouched.
    Unreadable,
}

impl StoreError {
    /// A failure of a kind, with what happened and what to do, in plain words, without secrets.
    pub fn new(kind: StoreErrorKind, message: impl Into<Arc<str>>) -> Self {
        Self { kind, message: message.into(), source: None, is_unsent: false }
    }

    /// With the error that caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Says that the step was not sent at all, so that it was not carried out, whatever the kind of
    /// failure.
    #[must_use]
    pub fn unsent(mut self) -> Self {
        self.is_unsent = true;
        self
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the same step may succeed later without anybody doing anything.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Unavailable | StoreErrorKind::Timeout | StoreErrorKind::Full)
    }

    /// Whether the step may have been carried out although it failed, so that only asking again, as
    /// the same owner, can tell.
    pub fn is_unknown(&self) -> bool {
        !self.is_unsent && matches!(self.kind, StoreErrorKind::Unavailable | StoreErrorKind::Timeout)
    }
}
