//! Turns errors of sqlx and of the database into store errors.

use std::time::Duration;

use idem_core::{StoreError, StoreErrorKind};

use super::super::super::sqlx::Error;
use super::super::dialect::{Dialect, ErrorClass};

/// Why a step failed. It may have been carried out.
pub(crate) enum StepError {
    /// An error of sqlx.
    Sql(Error),
    /// An error of sqlx before any statement was sent that could change the row.
    Unsent(Error),
    /// The store's own error about a row.
    Store(StoreError),
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        Self::Sql(error)
    }
}

impl From<StoreError> for StepError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Returns what an error means for the step.
pub(crate) fn classify<D: Dialect>(error: &Error) -> ErrorClass {
    match error {
        Error::Database(error) => D::classify(&**error),
        Error::ColumnDecode { .. }
        | Error::ColumnNotFound(_)
        | Error::ColumnIndexOutOfBounds { .. } => ErrorClass::Schema,
        Error::Configuration(_) | Error::TypeNotFound { .. } | Error::Encode(_) => {
            ErrorClass::Refused("")
        }
        Error::PoolTimedOut => ErrorClass::Unavailable(BUSY_POOL),
        Error::PoolClosed => ErrorClass::Unavailable("; the application has closed the pool"),
        _ => ErrorClass::Lost,
    }
}

pub(crate) const BUSY_POOL: &str =
    "; all connections of the pool are in use, or the database cannot be reached from here";

/// Returns the error of a step that failed.
pub(crate) fn failed<D: Dialect>(place: &str, error: Error) -> StoreError {
    let (kind, advice) = match classify::<D>(&error) {
        ErrorClass::Conflict => (
            StoreErrorKind::Unavailable,
            "; other transactions were in the way again and again",
        ),
        ErrorClass::Lost => (StoreErrorKind::Unavailable, ""),
        ErrorClass::Unavailable(why) | ErrorClass::Ended(why) => (StoreErrorKind::Unavailable, why),
        ErrorClass::Stale(kind, why) => (kind, why),
        ErrorClass::Timeout => (StoreErrorKind::Timeout, ""),
        ErrorClass::Full => (
            StoreErrorKind::Full,
            "; give the database more space, or keep records for a shorter time (`ttl`, \
             `remember`)",
        ),
        ErrorClass::Schema => (StoreErrorKind::Refused, ""),
        ErrorClass::TooLarge(why) => (StoreErrorKind::TooLarge, why),
        ErrorClass::Refused(advice) => (StoreErrorKind::Refused, advice),
    };
    let failed =
        StoreError::new(kind, format!("{} ({place}): {error}{advice}", D::NAME)).with_source(error);
    // The database itself says that it gave up.
    if kind == StoreErrorKind::Timeout {
        failed.unsent()
    } else {
        failed
    }
}

/// Returns the error of a step that got no connection. Nothing was sent.
pub(crate) fn unconnected<D: Dialect>(place: &str, error: Error) -> StoreError {
    let (kind, advice) = match classify::<D>(&error) {
        ErrorClass::Refused(advice) => (StoreErrorKind::Refused, advice),
        ErrorClass::Unavailable(why) | ErrorClass::Ended(why) => (StoreErrorKind::Unavailable, why),
        ErrorClass::Stale(kind, why) => (kind, why),
        _ => (
            StoreErrorKind::Unavailable,
            "; check that the database runs and can be reached from here",
        ),
    };
    StoreError::new(
        kind,
        format!("cannot connect to {} ({place}): {error}{advice}", D::NAME),
    )
    .with_source(error)
}

/// Returns the error of a step that got no connection in time.
pub(crate) fn unconnected_in_time<D: Dialect>(
    place: &str,
    limit: Duration,
    exhausted: bool,
) -> StoreError {
    let why = if exhausted {
        "all connections of the pool are in use; give the store a pool of its own (`connect`), or \
         the pool more connections"
    } else {
        "check that the database runs and can be reached from here"
    };
    StoreError::new(
        StoreErrorKind::Unavailable,
        format!(
            "no connection to {} ({place}) within {limit:?}; {why}",
            D::NAME
        ),
    )
}

/// Returns the error of a transaction that did not become the database's one writer. Only `BEGIN`
/// was sent.
pub(crate) fn no_writer<D: Dialect>(place: &str, waited: Duration, error: &Error) -> StoreError {
    let waited = Duration::from_millis(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
    StoreError::new(
        StoreErrorKind::Unavailable,
        format!(
            "{} ({place}): another transaction has held the database's one writer for {waited:?} \
             ({error}); keep transactions short and wait for nothing else in them, give the \
             connections a longer `busy_timeout`, or call again",
            D::NAME
        ),
    )
}

/// Returns the error of a step that got no permit, because the steps before it were not answered.
/// Nothing was sent.
pub(crate) fn no_permit<D: Dialect>(place: &str, limit: Duration) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        format!(
            "{} ({place}): no turn for this step: others have waited {limit:?} for an answer, or \
             too many are before it; the database is stopped, overloaded or cut off",
            D::NAME
        ),
    )
    .unsent()
}

/// Returns the error of a step that got no answer in time.
pub(crate) fn timed_out<D: Dialect>(place: &str, limit: Duration) -> StoreError {
    StoreError::new(
        StoreErrorKind::Timeout,
        format!(
            "{} ({place}): no answer within {limit:?}; it is stopped, overloaded or cut off, or \
             another transaction holds the row",
            D::NAME
        ),
    )
}

/// Returns the error of a step that was sent again because an answer was lost, and whose last
/// attempt failed with this one. Some errors are about the row or the outcome, so that no attempt
/// can have been carried out.
pub(crate) fn after_loss(last: StoreError) -> StoreError {
    if last.is_unknown()
        || matches!(
            last.kind(),
            StoreErrorKind::TooLarge | StoreErrorKind::Unreadable
        )
    {
        return last;
    }
    let message = format!("an answer was lost, and when the step was sent again: {last}");
    StoreError::new(StoreErrorKind::Unavailable, message).with_source(last)
}

/// Returns the error of a step whose runtime has ended, or that panicked there.
pub(crate) fn runtime_ended<D: Dialect>(place: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        format!(
            "{} ({place}): the tokio runtime in which the store was created has ended; create the \
             store in a runtime that lives as long as the store",
            D::NAME
        ),
    )
}

/// Returns the error of an invalid setting, or of a database that cannot be used.
pub(crate) fn refused(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Refused, message.into())
}

/// Parses a URL that must have one of these schemes, which sqlx does not check. The error does not
/// show the URL, because it may hold a password.
pub(crate) fn parse_url<O: std::str::FromStr>(
    url: &str,
    schemes: &[&str],
    form: &str,
) -> Result<O, StoreError> {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme);
    let options = scheme
        .filter(|scheme| schemes.contains(scheme))
        .and_then(|_| url.parse().ok());
    options.ok_or_else(|| refused(format!("not a valid URL; write `{form}`")))
}

/// Returns the error of a step whose row other callers changed each time.
pub(crate) fn contended(rounds: usize) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        format!("the row changed {rounds} times during this step; the step may be tried again"),
    )
}

/// Returns the error of a renewal that skipped a row.
pub(crate) fn locked() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        "another transaction has locked the record, so its lease was not renewed; keep \
         transactions short",
    )
}

/// Whether this connection is unusable, and another one may work.
pub(crate) fn breaks_connection<D: Dialect>(error: &Error) -> bool {
    matches!(
        classify::<D>(error),
        ErrorClass::Lost | ErrorClass::Ended(_)
    )
}
