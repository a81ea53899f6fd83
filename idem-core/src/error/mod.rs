//! The errors of a guarded call, besides the body's own.

pub(crate) mod disposition;
mod kind;
mod made;
mod message;
pub(crate) mod problem;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::kind::ErrorKind;
use crate::encoding::key::KeyDigest;
use crate::record::RecordId;

/// The reason why a guarded call did not return the body's result.
///
/// The `Display` text is for operators: it names the operation and says what to do. Keys appear
/// only as digests, because they may be personal data. For clients, use
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
///     let seconds = error
///         .retry_after()
///         .map(|wait| wait.as_secs() + u64::from(wait.subsec_nanos() > 0));
///     (error.http_status(), body, seconds)
/// }
///
/// let error = idem::Error::in_flight("orders.create", "o-1", Duration::from_secs(30));
/// let (status, body, retry_after) = response(&error);
/// assert_eq!((status, retry_after), (409, Some(1)));
/// assert!(body.starts_with("in_flight: "));
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum Error {
    /// Another call owns the key, and its lease is alive: it did not end within `wait`, or
    /// `in_flight` is `reject`.
    #[non_exhaustive]
    InFlight {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key.
        key: KeyDigest,
        /// The time until the owner's lease expires, unless it is renewed. If the owner crashed,
        /// the key is free by then. A living owner often answers much sooner, so use
        /// [`retry_after`](Self::retry_after) for clients.
        lease_left: Duration,
        /// `lease_left`, under its old name.
        #[doc(hidden)]
        retry_after: Duration,
    },
    /// The call was carried out before, and this operation answers duplicates with an error
    /// (`duplicate = reject`). Also from `settle` and `release` of a record that has an outcome.
    #[non_exhaustive]
    Duplicate {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key.
        key: KeyDigest,
    },
    /// The call was carried out before, and its outcome expired, was left out (`omit_outcome`),
    /// failed to encode, or was too large for the store.
    #[non_exhaustive]
    AlreadyDone {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key.
        key: KeyDigest,
    },
    /// The key came before with other arguments.
    #[non_exhaustive]
    FingerprintMismatch {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key.
        key: KeyDigest,
    },
    /// An earlier owner was cut off, so the result of its work is unknown, and this operation
    /// requires that an operator settles it first (`abandoned = reject`). Or the [steps](crate::step)
    /// of the call are too old to go on with.
    #[non_exhaustive]
    Abandoned {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key.
        key: KeyDigest,
        /// The attempt that was cut off; 0 if the steps are too old.
        attempt: u64,
    },
    /// `max_attempts` attempts were made, and none succeeded.
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
    /// stopped, or its commit refused. Or the claim was answered too late, and no body began.
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
    #[non_exhaustive]
    MissingKey {
        /// The operation's name.
        operation: Arc<str>,
    },
    /// A body called its own operation with its own key, so it would have waited for itself.
    #[non_exhaustive]
    Reentrant {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key.
        key: KeyDigest,
    },
    /// The subject of a token has no value: `None`, or an empty text.
    #[non_exhaustive]
    MissingSubject {
        /// The operation's name.
        operation: Arc<str>,
    },
    /// The token is unknown, expired, forged, or belongs to another subject or operation. Only the
    /// events say which. The body did not run.
    #[non_exhaustive]
    UnknownToken {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key that the token and the subject stand for.
        key: KeyDigest,
    },
    /// This subject has sent too many invalid tokens (see
    /// [`Builder::limit_token_failures`](crate::Builder::limit_token_failures)). The store was not
    /// asked.
    #[non_exhaustive]
    Throttled {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key that the token and the subject stand for.
        key: KeyDigest,
        /// The time until tokens of this subject are checked again.
        retry_after: Duration,
    },
    /// The store failed, or did not answer. The body did not run (unless `store_failure = run`),
    /// except in a transaction: there it may have run, and its rows and the record are both
    /// written, or neither is. From a step of a [`Lease`](crate::Lease): the step may have been
    /// carried out, and may be called again.
    #[non_exhaustive]
    Store {
        /// The operation's name.
        operation: Arc<str>,
        /// A digest of the key.
        key: KeyDigest,
        /// The store's error.
        source: StoreError,
    },
    /// The value at the key failed to decode. It is another program's data, a damaged record, a
    /// record of a later version, or an outcome whose type has changed. No body ran, and nothing
    /// was changed. Or a message of a queue failed to decode, and `is_message` is true.
    #[non_exhaustive]
    Codec {
        /// The operation's name; the source of a message.
        operation: Arc<str>,
        /// A digest of the key; of a message, a digest of its source and its id.
        key: KeyDigest,
        /// The fault, without the record's contents.
        reason: Arc<str>,
        /// Whether it is a message, and not a stored value.
        is_message: bool,
    },
    /// There is no runtime: none is installed, and the call is not inside a
    /// [`scope`](crate::scope).
    #[non_exhaustive]
    NotInstalled {
        /// The operation's name.
        operation: Arc<str>,
    },
    /// The runtime or the call has an invalid setting, and no body ran. Or a step in or after a
    /// body failed: `commit_in` without the store of its transaction; `settle` or `commit_error` of
    /// a value that fails to encode.
    #[non_exhaustive]
    Config {
        /// The operation's name.
        operation: Arc<str>,
        /// The mistake, and the code that corrects it.
        reason: Arc<str>,
    },
}

impl Error {
    /// Another call's lease of the key is alive.
    pub(crate) fn held(id: &RecordId, lease_left: Duration) -> Self {
        Self::InFlight {
            operation: id.name().into(),
            key: id.digest(),
            lease_left,
            retry_after: lease_left,
        }
    }

    /// An outcome, or the value at a key, that is not what it should be.
    pub(crate) fn unreadable(id: &RecordId, reason: &str) -> Self {
        Self::Codec {
            operation: id.name().into(),
            key: id.digest(),
            reason: reason.into(),
            is_message: false,
        }
    }

    /// Returns whether the same call may succeed later by itself: [`InFlight`](Self::InFlight),
    /// [`LeaseLost`](Self::LeaseLost), [`Throttled`](Self::Throttled), and [`Store`](Self::Store)
    /// if the store's failure is temporary.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::InFlight { .. } | Self::LeaseLost { .. } | Self::Throttled { .. } => true,
            Self::Store { source, .. } => source.is_retryable(),
            _ => false,
        }
    }

    /// Returns how long to wait before the same call is made again; `None` if that would not help.
    ///
    /// For [`InFlight`](Self::InFlight) it is one second, or less if the owner's lease ends sooner.
    /// For [`Throttled`](Self::Throttled) it is the time until tokens of the subject are checked
    /// again. Otherwise it is one second. HTTP's `Retry-After` has whole seconds: round up.
    pub fn retry_after(&self) -> Option<Duration> {
        const SOON: Duration = Duration::from_secs(1);
        match self {
            Self::InFlight { lease_left, .. } => Some(SOON.min(*lease_left)),
            Self::Throttled { retry_after, .. } => Some(*retry_after),
            error => error.is_retryable().then_some(SOON),
        }
    }

    /// Returns the digest of the key by which logs name it; `None` for a call without a key.
    pub fn key(&self) -> Option<KeyDigest> {
        self.called().1
    }

    /// Returns the name of the operation that failed.
    pub fn operation(&self) -> &str {
        self.called().0
    }

    /// Returns the operation and the key of the call.
    fn called(&self) -> (&str, Option<KeyDigest>) {
        match self {
            Self::InFlight { operation, key, .. }
            | Self::Duplicate { operation, key, .. }
            | Self::AlreadyDone { operation, key, .. }
            | Self::FingerprintMismatch { operation, key, .. }
            | Self::Abandoned { operation, key, .. }
            | Self::AttemptsExhausted { operation, key, .. }
            | Self::LeaseLost { operation, key, .. }
            | Self::Reentrant { operation, key, .. }
            | Self::UnknownToken { operation, key, .. }
            | Self::Throttled { operation, key, .. }
            | Self::Store { operation, key, .. }
            | Self::Codec { operation, key, .. } => (operation, Some(*key)),
            Self::MissingKey { operation, .. }
            | Self::MissingSubject { operation, .. }
            | Self::NotInstalled { operation, .. }
            | Self::Config { operation, .. } => (operation, None),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(&format!("{:?}", self.kind()));
        shown.field("operation", &self.operation());
        if let Some(key) = self.key() {
            shown.field("key", &key);
        }
        if let Some(retry_after) = self.retry_after() {
            shown.field("retry_after", &retry_after);
        }
        match self {
            Self::InFlight { lease_left, .. } => shown.field("lease_left", lease_left),
            Self::Abandoned { attempt, .. } | Self::LeaseLost { attempt, .. } => {
                shown.field("attempt", attempt)
            }
            Self::AttemptsExhausted { attempts, .. } => shown.field("attempts", attempts),
            Self::Store { source, .. } => shown.field("source", source),
            Self::Codec { reason, .. } | Self::Config { reason, .. } => {
                shown.field("reason", reason)
            }
            _ => &mut shown,
        };
        shown.finish()
    }
}

/// An invalid setting of a runtime, a second `install`, or an invalid encryption key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError(pub(crate) Arc<str>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    pub(crate) fn new(reason: impl Into<Arc<str>>) -> Self {
        Self(reason.into())
    }
}

/// The error of a step at the store. The step may have been carried out: see
/// [`is_unknown`](Self::is_unknown).
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
        // Returns the error itself, not the pointer to it, so that it can be downcast.
        self.source.as_deref().map(|source| source as _)
    }
}

/// The kind of a [`StoreError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store is unreachable, or unable to answer now (starting, failing over, read-only for the
    /// moment). The step may have been carried out, because only its reply is known to be missing.
    Unavailable,
    /// No answer came in time. The step may have been carried out, or may be later.
    Timeout,
    /// The store accepts no new records, because its memory or capacity is used up. The step was
    /// not carried out.
    Full,
    /// The store refused the step: wrong password, missing rights, unsupported version. The step
    /// was not carried out.
    Refused,
    /// The outcome is larger than the store can take. The step was not carried out, and will not
    /// be.
    TooLarge,
    /// The value at the key is not a record that this version can read. It was not changed.
    Unreadable,
    /// The transaction met another one: a serialization failure, a deadlock, a busy database.
    /// Nothing of it is written. Roll back, and run the whole transaction again.
    Conflict,
}

impl StoreError {
    /// A step of the store panicked.
    pub(crate) fn panicked() -> Self {
        Self::new(
            StoreErrorKind::Unavailable,
            "the store panicked, and gave no answer",
        )
    }

    /// Creates an error. The message says what happened and what to do, in plain words, without
    /// secrets.
    pub fn new(kind: StoreErrorKind, message: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
            is_unsent: false,
        }
    }

    /// Adds the error that caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Marks the step as not sent, so that it was certainly not carried out.
    #[must_use]
    pub fn unsent(mut self) -> Self {
        self.is_unsent = true;
        self
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Returns whether the same step may succeed later by itself.
    pub fn is_retryable(&self) -> bool {
        use StoreErrorKind::{Conflict, Full, Timeout, Unavailable};
        matches!(self.kind, Unavailable | Timeout | Full | Conflict)
    }

    /// Returns whether the step may have been carried out although it failed. Only the same step,
    /// sent again by the same owner, can tell.
    pub fn is_unknown(&self) -> bool {
        !self.is_unsent
            && matches!(
                self.kind,
                StoreErrorKind::Unavailable | StoreErrorKind::Timeout
            )
    }
}
