//! The meaning of PostgreSQL's errors for a step: by SQLSTATE, and by severity.
//!
//! The codes are those of PostgreSQL's appendix A. `PgBouncer` and other proxies answer with codes
//! of class 08.

use idem_core::StoreErrorKind;

use self::sqlx::error::DatabaseError;
use self::sqlx::postgres::{PgDatabaseError, PgSeverity};
use super::super::super::super::sqlx;
use super::super::ErrorClass;

/// The classes of errors that refuse a connection for good: bad settings, user, or database.
const REFUSALS: [&str; 5] = ["0A", "22", "28", "3D", "42"];

/// The advice about a proxy that mixes up prepared statements.
const MIXED_UP: &str = "; a proxy mixes up the prepared statements of its clients: in PgBouncer, \
    set \
     `max_prepared_statements` (1.21 or newer) or `pool_mode = session`, or connect to the server \
     itself";

/// A limit of the server was met: a row or an index entry that is too large, or a full queue of
/// `NOTIFY`.
const LIMIT_EXCEEDED: &str = "54000";

pub(super) fn is_limit_exceeded(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(DatabaseError::code)
        .as_deref()
        == Some(LIMIT_EXCEEDED)
}

pub(crate) fn is_protocol_violation(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(DatabaseError::code)
        .as_deref()
        == Some("08P01")
}

pub(super) fn classify(error: &dyn DatabaseError) -> ErrorClass {
    let code = error.code().unwrap_or_default();
    match &*code {
        "40001" | "40P01" => ErrorClass::Conflict,
        // `idle_session_timeout`: the server ends the connection before it reads a statement.
        "57P05" => ErrorClass::Ended(""),
        // Shutdown, crash, dropped database, and the time limits of transactions.
        "57P01" | "57P02" | "57P04" | "25P03" | "25P04" => ErrorClass::Lost,
        "42P01" | "42703" | "3F000" => ErrorClass::Schema,
        "25006" => ErrorClass::Stale(
            StoreErrorKind::Unavailable,
            "; this is a replica (a failover is under way, or the address is wrong), or the \
             transaction is READ ONLY",
        ),
        // "cached plan must not change result type", after an `ALTER TABLE`.
        "0A000" => ErrorClass::Stale(StoreErrorKind::Unavailable, ""),
        // A transaction that failed and was left open, or a body that goes on after an error, which
        // would do so again.
        "25P02" => ErrorClass::Stale(StoreErrorKind::Refused, ""),
        "57P03" | "53300" => ErrorClass::Unavailable(""),
        "57014" | "55P03" => ErrorClass::Timeout,
        "53100" => ErrorClass::Full,
        LIMIT_EXCEEDED => ErrorClass::TooLarge("; the outcome is larger than a field can be"),
        "28000" | "28P01" => ErrorClass::Refused("; correct the user and password"),
        "3D000" => ErrorClass::Refused("; correct the database's name"),
        // There is one already, or none, of that name.
        "42P05" | "26000" => ErrorClass::Stale(StoreErrorKind::Refused, MIXED_UP),
        // Another one has this name, with other parameters.
        "08P01" if error.message().contains("prepared statement") => {
            ErrorClass::Stale(StoreErrorKind::Refused, MIXED_UP)
        }
        // Perhaps only after a `SET ROLE`.
        "42501" => ErrorClass::Stale(
            StoreErrorKind::Refused,
            "; the user needs SELECT, INSERT, UPDATE and DELETE on the table",
        ),
        code if code.starts_with("08") || code.starts_with("53") || code.starts_with("58") => {
            ErrorClass::Unavailable("")
        }
        code if is_fatal(error) && !REFUSALS.iter().any(|class| code.starts_with(class)) => {
            ErrorClass::Lost
        }
        _ => ErrorClass::Refused(""),
    }
}

/// Whether the server ended the connection with this error.
fn is_fatal(error: &dyn DatabaseError) -> bool {
    let severity = error
        .try_downcast_ref::<PgDatabaseError>()
        .map(PgDatabaseError::severity);
    matches!(severity, Some(PgSeverity::Fatal | PgSeverity::Panic))
}
