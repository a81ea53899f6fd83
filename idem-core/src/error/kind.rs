//! The kinds of errors, and what programs and clients see of each.

use super::Error;

/// The kind of an [`Error`]: one for each of its variants, without their fields.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use idem::ErrorKind;
///
/// let error = idem::Error::duplicate("orders.create", "o-1");
/// assert_eq!(error.kind(), ErrorKind::Duplicate);
/// assert_eq!(error.kind().code(), "duplicate");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// [`Error::InFlight`].
    InFlight,
    /// [`Error::Duplicate`].
    Duplicate,
    /// [`Error::AlreadyDone`].
    AlreadyDone,
    /// [`Error::FingerprintMismatch`].
    FingerprintMismatch,
    /// [`Error::Abandoned`].
    Abandoned,
    /// [`Error::AttemptsExhausted`].
    AttemptsExhausted,
    /// [`Error::LeaseLost`].
    LeaseLost,
    /// [`Error::MissingKey`].
    MissingKey,
    /// [`Error::Reentrant`].
    Reentrant,
    /// [`Error::MissingSubject`].
    MissingSubject,
    /// [`Error::UnknownToken`].
    UnknownToken,
    /// [`Error::Throttled`].
    Throttled,
    /// [`Error::Store`].
    Store,
    /// [`Error::Codec`].
    Codec,
    /// [`Error::NotInstalled`].
    NotInstalled,
    /// [`Error::Config`].
    Config,
}

impl ErrorKind {
    /// The table of what each kind is outside of this crate: code, status, message for clients.
    fn row(self) -> (&'static str, u16, &'static str) {
        const OURS: &str = "The request could not be processed because of an error of the service.";
        match self {
            Self::InFlight => (
                "in_flight",
                409,
                "A request with this idempotency key is being processed. Send the same request \
                 again later, with the same key.",
            ),
            Self::Duplicate => (
                "duplicate",
                409,
                "A request with this idempotency key was processed before.",
            ),
            Self::AlreadyDone => (
                "already_done",
                409,
                "A request with this idempotency key was processed before. Its response is no \
                 longer available.",
            ),
            Self::FingerprintMismatch => (
                "fingerprint_mismatch",
                422,
                "This idempotency key was used for a different request. Send a different request \
                 with a new key.",
            ),
            Self::Abandoned => (
                "abandoned",
                409,
                "An earlier request with this idempotency key was interrupted, and its result is \
                 not known yet. Do not send it with another key.",
            ),
            Self::AttemptsExhausted => (
                "attempts_exhausted",
                409,
                "Requests with this idempotency key failed too often. It is not processed again.",
            ),
            Self::LeaseLost => (
                "lease_lost",
                503,
                "The request was interrupted. Send the same request again, with the same \
                 idempotency key.",
            ),
            Self::MissingKey => ("missing_key", 400, "The request needs an idempotency key."),
            Self::Reentrant => ("reentrant", 500, OURS),
            Self::MissingSubject => (
                "missing_subject",
                401,
                "The request does not say whose it is. Sign in and try again.",
            ),
            Self::UnknownToken => (
                "unknown_token",
                403,
                "This form is no longer valid. Load it again.",
            ),
            Self::Throttled => (
                "throttled",
                429,
                "Too many invalid requests. Try again later.",
            ),
            Self::Store => (
                "store",
                503,
                "The service is temporarily unavailable. Send the same request again, with the \
                 same idempotency key.",
            ),
            Self::Codec => ("codec", 500, OURS),
            Self::NotInstalled => ("not_installed", 500, OURS),
            Self::Config => ("config", 500, OURS),
        }
    }

    /// Returns a stable name, such as `in_flight`: for programs, metrics, and the body of a
    /// response. It is the variant's name in snake case, and never changes.
    pub fn code(self) -> &'static str {
        self.row().0
    }

    /// Returns the status of the HTTP response to a request that failed with such an error.
    ///
    /// | status | kinds | why |
    /// | --- | --- | --- |
    /// | 400 | `MissingKey` | |
    /// | 401 | `MissingSubject` | the visitor is not logged in |
    /// | 403 | `UnknownToken` | with a fresh form |
    /// | 409 | `InFlight` | with `Retry-After` |
    /// | 409 | `Duplicate`, `AlreadyDone`, `Abandoned`, `AttemptsExhausted` | the record at the key refuses the request |
    /// | 422 | `FingerprintMismatch` | another request came with this key |
    /// | 429 | `Throttled` | with `Retry-After` |
    /// | 500 | `Reentrant`, `Codec`, `NotInstalled`, `Config` | mistakes of the service, which no client can do anything about |
    /// | 503 | `Store`, `LeaseLost` | with `Retry-After`. All clients retry a 503; only some retry a 409 |
    pub fn http_status(self) -> u16 {
        self.row().1
    }

    /// Returns a sentence or two for clients: what happened and what to do, without names, keys or
    /// anything else from inside. In English.
    pub fn client_message(self) -> &'static str {
        self.row().2
    }
}

impl Error {
    /// Returns which kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InFlight { .. } => ErrorKind::InFlight,
            Self::Duplicate { .. } => ErrorKind::Duplicate,
            Self::AlreadyDone { .. } => ErrorKind::AlreadyDone,
            Self::FingerprintMismatch { .. } => ErrorKind::FingerprintMismatch,
            Self::Abandoned { .. } => ErrorKind::Abandoned,
            Self::AttemptsExhausted { .. } => ErrorKind::AttemptsExhausted,
            Self::LeaseLost { .. } => ErrorKind::LeaseLost,
            Self::MissingKey { .. } => ErrorKind::MissingKey,
            Self::Reentrant { .. } => ErrorKind::Reentrant,
            Self::MissingSubject { .. } => ErrorKind::MissingSubject,
            Self::UnknownToken { .. } => ErrorKind::UnknownToken,
            Self::Throttled { .. } => ErrorKind::Throttled,
            Self::Store { .. } => ErrorKind::Store,
            Self::Codec { .. } => ErrorKind::Codec,
            Self::NotInstalled { .. } => ErrorKind::NotInstalled,
            Self::Config { .. } => ErrorKind::Config,
        }
    }

    /// Returns [the code of its kind](ErrorKind::code).
    pub fn code(&self) -> &'static str {
        self.kind().code()
    }

    /// Returns [the HTTP status of its kind](ErrorKind::http_status).
    pub fn http_status(&self) -> u16 {
        self.kind().http_status()
    }

    /// Returns [the message for clients of its kind](ErrorKind::client_message). The `Display` text
    /// is for operators.
    pub fn client_message(&self) -> &'static str {
        self.kind().client_message()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;
    use crate::error::{StoreError, StoreErrorKind};

    fn one_of_each() -> Vec<Error> {
        let operation = "orders.create";
        let key = "o-1";
        let down = StoreError::new(StoreErrorKind::Unavailable, "connection refused");
        vec![
            Error::in_flight(operation, key, Duration::from_secs(30)),
            Error::duplicate(operation, key),
            Error::already_done(operation, key),
            Error::fingerprint_mismatch(operation, key),
            Error::abandoned(operation, key, 2),
            Error::attempts_exhausted(operation, key, 5),
            Error::lease_lost(operation, key, 1),
            Error::missing_key(operation),
            Error::reentrant(operation, key),
            Error::missing_subject(operation),
            Error::unknown_token(operation, key),
            Error::throttled(operation, key, Duration::from_secs(60)),
            Error::store(operation, key, down),
            Error::codec(operation, key, "not JSON"),
            Error::not_installed(operation),
            Error::config(operation, "`ttl` is zero"),
        ]
    }

    #[test]
    fn codes_are_the_names_of_the_variants_and_differ() {
        let errors = one_of_each();
        for error in &errors {
            let name = format!("{:?}", error.kind());
            let snake: String = name
                .chars()
                .enumerate()
                .flat_map(|(at, char)| {
                    let bar = (at > 0 && char.is_uppercase()).then_some('_');
                    bar.into_iter().chain(char.to_lowercase())
                })
                .collect();
            assert_eq!(error.code(), snake);
        }
        assert_eq!(
            errors.iter().map(Error::code).collect::<HashSet<_>>().len(),
            errors.len()
        );
    }

    #[test]
    fn what_clients_see_names_neither_operation_nor_key() {
        for error in one_of_each() {
            let message = error.client_message();
            assert!(
                !message.contains("orders.create") && !message.contains('`'),
                "{message}"
            );
            assert!(
                error
                    .key()
                    .is_none_or(|key| !message.contains(&key.to_string())),
                "{message}"
            );
            assert!(error.to_string().contains("orders.create"), "{error}");
        }
    }

    #[test]
    fn what_may_be_sent_again_has_a_status_that_clients_retry_and_says_when() {
        for error in one_of_each() {
            let retried = [409, 429, 503].contains(&error.http_status());
            assert!(!error.is_retryable() || retried, "{error:?}");
            assert_eq!(
                error.is_retryable(),
                error.retry_after().is_some(),
                "{error:?}"
            );
        }
        let soon = Error::in_flight("orders.create", "o-1", Duration::from_millis(40));
        assert_eq!(soon.retry_after(), Some(Duration::from_millis(40)));
    }
}
