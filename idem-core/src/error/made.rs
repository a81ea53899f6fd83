//! Errors made by hand, for tests of the code that handles them.

use std::sync::Arc;
use std::time::Duration;

use super::{Error, StoreError};
use crate::encoding::key::{KeyDigest, KeyPart};
use crate::record::RecordId;

/// For tests of code that handles these errors. The digest is that of the operation and the key, as
/// in an error of a real call. As there, a missing key gives [`MissingKey`](Error::MissingKey).
impl Error {
    fn made<K: KeyPart + ?Sized>(
        operation: &str,
        key: &K,
        make: impl FnOnce(Arc<str>, KeyDigest) -> Self,
    ) -> Self {
        match RecordId::encode(operation, key) {
            Some(id) => make(operation.into(), id.digest()),
            None => Self::missing_key(operation),
        }
    }

    /// Makes an [`InFlight`](Self::InFlight).
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use std::time::Duration;
    /// let error = idem::Error::in_flight("orders.create", "o-1", Duration::from_secs(30));
    /// assert!(error.is_retryable());
    /// ```
    pub fn in_flight<K: KeyPart + ?Sized>(operation: &str, key: &K, lease_left: Duration) -> Self {
        Self::made(operation, key, |operation, key| Self::InFlight {
            operation,
            key,
            lease_left,
            retry_after: lease_left,
        })
    }

    /// Makes a [`Duplicate`](Self::Duplicate).
    pub fn duplicate<K: KeyPart + ?Sized>(operation: &str, key: &K) -> Self {
        Self::made(operation, key, |operation, key| Self::Duplicate {
            operation,
            key,
        })
    }

    /// Makes an [`AlreadyDone`](Self::AlreadyDone).
    pub fn already_done<K: KeyPart + ?Sized>(operation: &str, key: &K) -> Self {
        Self::made(operation, key, |operation, key| Self::AlreadyDone {
            operation,
            key,
        })
    }

    /// Makes a [`FingerprintMismatch`](Self::FingerprintMismatch).
    pub fn fingerprint_mismatch<K: KeyPart + ?Sized>(operation: &str, key: &K) -> Self {
        Self::made(operation, key, |operation, key| Self::FingerprintMismatch {
            operation,
            key,
        })
    }

    /// Makes an [`Abandoned`](Self::Abandoned).
    pub fn abandoned<K: KeyPart + ?Sized>(operation: &str, key: &K, attempt: u64) -> Self {
        Self::made(operation, key, |operation, key| Self::Abandoned {
            operation,
            key,
            attempt,
        })
    }

    /// Makes an [`AttemptsExhausted`](Self::AttemptsExhausted).
    pub fn attempts_exhausted<K: KeyPart + ?Sized>(
        operation: &str,
        key: &K,
        attempts: u64,
    ) -> Self {
        Self::made(operation, key, |operation, key| Self::AttemptsExhausted {
            operation,
            key,
            attempts,
        })
    }

    /// Makes a [`LeaseLost`](Self::LeaseLost).
    pub fn lease_lost<K: KeyPart + ?Sized>(operation: &str, key: &K, attempt: u64) -> Self {
        Self::made(operation, key, |operation, key| Self::LeaseLost {
            operation,
            key,
            attempt,
        })
    }

    /// Makes a [`Reentrant`](Self::Reentrant).
    pub fn reentrant<K: KeyPart + ?Sized>(operation: &str, key: &K) -> Self {
        Self::made(operation, key, |operation, key| Self::Reentrant {
            operation,
            key,
        })
    }

    /// Makes an [`UnknownToken`](Self::UnknownToken). For `key`, any value will do that is not
    /// empty.
    pub fn unknown_token<K: KeyPart + ?Sized>(operation: &str, key: &K) -> Self {
        Self::made(operation, key, |operation, key| Self::UnknownToken {
            operation,
            key,
        })
    }

    /// Makes a [`Throttled`](Self::Throttled). For `key`, any value will do that is not empty.
    pub fn throttled<K: KeyPart + ?Sized>(operation: &str, key: &K, retry_after: Duration) -> Self {
        Self::made(operation, key, |operation, key| Self::Throttled {
            operation,
            key,
            retry_after,
        })
    }

    /// Makes a [`Store`](Self::Store).
    pub fn store<K: KeyPart + ?Sized>(operation: &str, key: &K, source: StoreError) -> Self {
        Self::made(operation, key, |operation, key| Self::Store {
            operation,
            key,
            source,
        })
    }

    /// Makes a [`Codec`](Self::Codec).
    pub fn codec<K: KeyPart + ?Sized>(operation: &str, key: &K, reason: &str) -> Self {
        Self::made(operation, key, |operation, key| Self::Codec {
            operation,
            key,
            reason: reason.into(),
            is_message: false,
        })
    }

    /// Makes a [`Codec`](Self::Codec) of a message that failed to decode: for adapters of queues,
    /// and for handlers that decode messages themselves. `reason` says what is wrong, without the
    /// message's contents: errors are logged.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// use idem::{Disposition, Error};
    ///
    /// let error =
    ///     Error::unreadable_message("orders", Some("m-1"), "the message `m-1` is not CBOR");
    /// assert_eq!(Disposition::of(&error), Disposition::dead_letter("codec"));
    /// ```
    pub fn unreadable_message(source: &str, id: Option<&str>, reason: &str) -> Self {
        let key = KeyDigest::hash(&format!("{source}:{}", id.unwrap_or_default()));
        Self::Codec {
            operation: source.into(),
            key,
            reason: reason.into(),
            is_message: true,
        }
    }

    /// Makes a [`MissingKey`](Self::MissingKey).
    pub fn missing_key(operation: &str) -> Self {
        Self::MissingKey {
            operation: operation.into(),
        }
    }

    /// Makes a [`MissingSubject`](Self::MissingSubject).
    pub fn missing_subject(operation: &str) -> Self {
        Self::MissingSubject {
            operation: operation.into(),
        }
    }

    /// Makes a [`NotInstalled`](Self::NotInstalled).
    pub fn not_installed(operation: &str) -> Self {
        Self::NotInstalled {
            operation: operation.into(),
        }
    }

    /// Makes a [`Config`](Self::Config).
    pub fn config(operation: &str, reason: &str) -> Self {
        Self::Config {
            operation: operation.into(),
            reason: reason.into(),
        }
    }
}
