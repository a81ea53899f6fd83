//! The errors' texts, for operators. They are written by hand, because a macro for them would make
//! a small program with this library build some seconds longer.

use std::fmt;

use super::Error;
use crate::record::is_lock;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (operation, key) = self.called();
        match (self, key) {
            (
                Self::Codec {
                    is_message: true, ..
                },
                _,
            ) => write!(f, "source `{operation}`: ")?,
            (_, Some(key)) => write!(f, "operation `{operation}`, key {key}: ")?,
            (_, None) => write!(f, "operation `{operation}`: ")?,
        }
        if is_lock(operation)
            && let Some(written) = of_lock(self, f)
        {
            return written;
        }
        match self {
            Self::InFlight { lease_left, .. } => write!(
                f,
                "another call with this key is in flight; try again later: if its owner has \
                 crashed, the key is free in {lease_left:.1?}"
            ),
            Self::Duplicate { .. } => f.write_str(
                "a call with this key was carried out before, and its outcome stays; send a new \
                 key for new work (`forget` would let the next call with this key run the body \
                 again)",
            ),
            Self::AlreadyDone { .. } => f.write_str(
                "a call with this key was carried out before; its outcome has expired or could \
                 not be encoded, so it is not replayed (see `ttl` and `remember`)",
            ),
            Self::FingerprintMismatch { .. } => f.write_str(
                "this key came before with other arguments; send a new key with a new request",
            ),
            Self::Abandoned { attempt: 0, .. } => f.write_str(
                "the call began so long ago that its steps may be gone before it ends (27 days, \
                 or nine tenths of a longer `hold`), so none of them is begun or replayed any \
                 more; find out what was done, then `settle` the key, or `forget` it, so that \
                 the next call starts over; in code or with the program `idem`",
            ),
            Self::Abandoned { key, attempt, .. } => write!(
                f,
                "attempt {attempt} was abandoned and its outcome is unknown; find out what \
                 became of it (`idem show --digest {key}`), then `settle` the key, or `release` \
                 it if the work was certainly not done, so that the next call runs the body; in \
                 code or with the program `idem`"
            ),
            Self::AttemptsExhausted { key, attempts, .. } => write!(
                f,
                "{attempts} attempts were made, the most that the operation allows; find out why \
                 (`idem show --digest {key}`), then `settle` the key if the work was done after \
                 all; `forget` lets the next call run the body again"
            ),
            Self::LeaseLost { attempt, .. } => write!(
                f,
                "the lease of attempt {attempt} was lost, so the body was stopped or its outcome \
                 refused; make the same call again"
            ),
            Self::MissingKey { .. } => f.write_str(
                "the idempotency key is missing: a part of it is `None` or empty; send one, or \
                 set `missing_key = run` to run such calls unguarded",
            ),
            Self::Reentrant { .. } => f.write_str(
                "the body called its own operation with its own key, and would wait for itself; \
                 call the inner function, or use another key",
            ),
            Self::MissingSubject { .. } => f.write_str(
                "the subject of the token is missing: a part of it is `None` or empty; check \
                 that the caller is logged in or has a session",
            ),
            Self::UnknownToken { .. } => f.write_str(
                "the token is invalid: it is unknown or expired, or was issued to another \
                 subject or for another operation; issue a new one, with a fresh form",
            ),
            Self::Throttled { retry_after, .. } => write!(
                f,
                "this subject has sent too many invalid tokens; try again in {retry_after:.1?}"
            ),
            Self::Store { source, .. } => write!(f, "the store failed: {source}"),
            Self::Codec {
                reason,
                is_message: true,
                ..
            } => write!(
                f,
                "{reason}; another delivery would fail in the same way: correct the producer, or \
                 the type that it is read as"
            ),
            Self::Codec { reason, .. } => write!(
                f,
                "the stored record is unreadable: {reason}; no body ran; do not `forget` the key \
                 unless the body may run again: deploy the code that reads the record, or repair \
                 it (an outcome that was settled by hand: `idem settle --replace`)"
            ),
            Self::NotInstalled { .. } => f.write_str(
                "no idempotency runtime; call `idem::install(..)` at start-up, wrap the call in \
                 `idem::scope(..)`, or name one with `runtime = \"..\"`",
            ),
            Self::Config { reason, .. } => f.write_str(reason),
        }
    }
}

/// Writes what differs where the call acquires a lock.
fn of_lock(error: &Error, f: &mut fmt::Formatter<'_>) -> Option<fmt::Result> {
    Some(match error {
        Error::InFlight { retry_after, .. } => write!(
            f,
            "the lock has a holder; try again later, or `wait` longer: if that holder has \
             crashed, the lock is free in {retry_after:.1?}; if this code holds the lock itself, \
             release it first"
        ),
        Error::LeaseLost { attempt, .. } => write!(
            f,
            "the lock with fencing number {attempt} was lost, because its lease was not renewed \
             in time; stop the work, and acquire the lock again"
        ),
        Error::Reentrant { .. } => f.write_str(
            "the body of this lock acquires it again, and would wait for itself; use the `Lock` \
             that the body was given, or another key",
        ),
        Error::MissingKey { .. } => f.write_str(
            "the key of the lock is missing, or a part of it is `None` or empty; say what is \
             locked, with `.key(..)`",
        ),
        _ => return None,
    })
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store { source, .. } => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::error::Error;

    #[test]
    fn a_missing_key_says_what_to_send_and_what_to_set() {
        assert_eq!(
            Error::missing_key("orders.create").to_string(),
            "operation `orders.create`: the idempotency key is missing: a part of it is `None` or \
             empty; send one, or set `missing_key = run` to run such calls unguarded"
        );
        assert_eq!(
            Error::missing_key("idem.lock/disks.compact").to_string(),
            "operation `idem.lock/disks.compact`: the key of the lock is missing, or a part of it \
             is `None` or empty; say what is locked, with `.key(..)`"
        );
    }
}
