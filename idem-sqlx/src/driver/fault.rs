//! Turns errors of sqlx and of the database into store errors.

use std::time::Duration;

use idem_core::{StoreError, StoreErrorKind};

use super::super::sqlx::{self, Error};
use super::dialect::{Dialect, Judgement};

/// Why a step was not carried out, or may not have been.
pub(crate) enum Stopped {
    /// An error of sqlx.
    Sql(Error),
    /// An error of sqlx before any statement was sent that could change the row.
    Unsent(Error),
    /// Our error about a row.
    Store(StoreError),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Sql(error)
    }
}

impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Returns the meaning of an error for the step.
pub(crate) fn judge<D: Dialect>(error: &Error) -> Judgement {
    match error {
        Error::Database(error) => D::judge(&**error),
        Error::ColumnDecode { .. } | Error::ColumnNotFound(_) | Error::ColumnIndexOutOfBounds { .. } => {
            Judgement::Schema
        }
        Error::Configuration(_) | Error::TypeNotFound { .. } | Error::Encode(_) => Judgement::Refused(""),
        Error::PoolTimedOut => Judgement::Unavailable(BUSY_POOL),
        Error::PoolClosed => Judgement::Unavailable("; the application has closed the pool"),
        _ => Judgement::Lost,
    }
}

pub(crate) const BUSY_POOL: &str =
    "; all connections of the pool are in use, or the database cannot be reached from here";

/// A failed step.
pub(crate) fn failed<D: Dialect>(place: &str, error: Error) -> StoreError {
    let (kind, advice) = match judge::<D>(&error) {
        Judgement::Conflict => (StoreErrorKind::Unavailable, "; other transactions were in the way again and again"),
        Judgement::Lost => (StoreErrorKind::Unavailable, ""),
        Judgement::Unavailable(why) | Judgement::Ended(why) => (StoreErrorKind::Unavailable, why),
        Judgement::Timeout => (StoreErrorKind::Timeout, ""),
        Judgement::Full => (
            StoreErrorKind::Full,
            "; give the database more space, or keep records for a shorter time (`ttl`, `remember`)",
        ),
        Judgement::Schema => (StoreErrorKind::Refused, ""),
        Judgement::TooLarge(why) => (StoreErrorKind::TooLarge, why),
        Judgement::Refused(advice) => (StoreErrorKind::Refused, advice),
    };
    let failed = StoreError::new(kind, format!("{} ({place}): {error}{advice}", D::NAME)).with_source(error);
    // The database itself says that it gave up.
    if kind == StoreErrorKind::Timeout { failed.unsent() } else { failed }
}

/// No connection could be had. Nothing was sent.
pub(crate) fn unconnected<D: Dialect>(place: &str, error: Error) -> StoreError {
    let (kind, advice) = match judge::<D>(&error) {
        Judgement::Refused(advice) => (StoreErrorKind::Refused, advice),
        Judgement::Unavailable(why) | Judgement::Ended(why) => (StoreErrorKind::Unavailable, why),
        _ => (StoreErrorKind::Unavailable, "; check that the database runs and can be reached from here"),
    };
    StoreError::new(kind, format!("cannot connect to {} ({place}): {error}{advice}", D::NAME)).with_source(error)
}

/// No connection could be had in time. Nothing was sent.
pub(crate) fn unconnected_in_time<D: Dialect>(place: &str, limit: Duration, exhausted: bool) -> StoreError {
    let why = if exhausted {
        "all connections of the pool are in use; give the store a pool of its own (`connect`), or the pool more connections"
    } else {
        "check that the database runs and can be reached from here"
    };
    StoreError::new(
        StoreErrorKind::Unavailable,
        format!("no connection to {} ({place}) within {limit:?}; {why}", D::NAME),
    )
}

/// Another transaction writes, and the database has one writer at a time. Nothing was sent but the
/// `BEGIN`.
pub(crate) fn no_writer<D: Dialect>(place: &str, waited: Duration, error: &Error) -> StoreError {
    let waited = Duration::from_millis(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
    StoreError::new(
        StoreErrorKind::Unavailable,
        format!(
            "{} ({place}): another transaction has held the database's one writer for {waited:?} ({error}); keep transactions short and wait for nothing else in them, give the connections a longer `busy_timeout`, or call again",
            D::NAME
        ),
    )
}

/// The steps before this one were not answered. Nothing was sent.
pub(crate) fn no_turn<D: Dialect>(place: &str, limit: Duration) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        format!(
            "{} ({place}): no turn for this step: others have waited {limit:?} for an answer, or too many are before it; the database is stopped, overloaded or cut off",
            D::NAME
        ),
    )
}

/// A step without an answer in time.
pub(crate) fn timed_out<D: Dialect>(place: &str, limit: Duration) -> StoreError {
    StoreError::new(
        StoreErrorKind::Timeout,
        format!(
            "{} ({place}): no answer within {limit:?}; it is stopped, overloaded or cut off, or another transaction holds the row",
            D::NAME
        ),
    )
}

/// The runtime on which the connections live is gone, or a step panicked there.
pub(crate) fn runtime_ended<D: Dialect>(place: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        format!(
            "{} ({place}): the tokio runtime in which the store was created has ended; create the store in a runtime that lives as long as the store",
            D::NAME
        ),
    )
}

/// An invalid setting, or a database that cannot be used.
pub(crate) fn refused(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Refused, message.into())
}

/// Reads a URL that must have one of these schemes, which sqlx does not look at. The URL itself is
/// in no message: it may hold a password.
pub(crate) fn options<O: std::str::FromStr>(url: &str, schemes: &[&str], form: &str) -> Result<O, StoreError> {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme);
    let options = scheme.filter(|scheme| schemes.contains(scheme)).and_then(|_| url.parse().ok());
    options.ok_or_else(|| refused(format!("not a valid URL; write `{form}`")))
}

/// Other callers changed the row each time.
pub(crate) fn contended(rounds: usize) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        format!("the row changed {rounds} times during this step; the step may be tried again"),
    )
}

/// A renewal that skipped a row.
pub(crate) fn locked() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        "another transaction has locked the record, so its lease was not renewed; keep transactions short",
    )
}

/// Whether the connection that gave this error is of no more use, and another one may be.
pub(crate) fn breaks_connection<D: Dialect>(error: &sqlx::Error) -> bool {
    matches!(judge::<D>(error), Judgement::Lost | Judgement::Ended(_))
}
