//! What the errors of MySQL and MariaDB mean for a step: by number, else by the class of the
//! SQLSTATE.
//!
//! The numbers are those of MySQL's server error reference and of MariaDB's list of error codes. No
//! number here means something else to the other server that a step could meet.

use idem_core::StoreErrorKind;

use self::sqlx::error::DatabaseError;
use self::sqlx::mysql::MySqlDatabaseError;
use super::super::super::super::sqlx;
use super::super::ErrorClass;

pub(super) fn number(error: &dyn DatabaseError) -> u16 {
    error
        .try_downcast_ref::<MySqlDatabaseError>()
        .map_or(0, MySqlDatabaseError::number)
}

/// Whether the server does not know the statement, or a variable that it sets.
pub(super) fn is_unknown_statement(error: &dyn DatabaseError) -> bool {
    matches!(number(error), 1064 | 1193)
}

/// Whether a server that is neither MySQL nor MariaDB does not have `HANDLER`.
pub(super) fn is_unknown_look(error: &dyn DatabaseError) -> bool {
    matches!(number(error), 1031 | 1064 | 1105 | 1235)
}

pub(super) fn classify(error: &dyn DatabaseError) -> ErrorClass {
    match number(error) {
        // A deadlock; in MariaDB, a row that changed since the statement's snapshot; a table that
        // was altered since then; in group replication, a transaction that lost against another
        // member's; a deadlock that has locks of the server in it, which rolls nothing back. All say
        // that nothing was written.
        1213 | 1020 | 1412 | 3101 | 3058 => ErrorClass::Conflict,
        // `wait_timeout`: the server ended the connection before it read the statement.
        4031 => ErrorClass::Ended(""),
        // A node of Galera that is not in sync, before it looks at a statement.
        1047 => ErrorClass::Ended("; this node of the cluster takes no statements now"),
        // Shutdown, killed connections, and failures of the network. Proxies use the numbers of the
        // client's library, 2006 and 2013.
        1053 | 1077 | 1079 | 1152 | 1158..=1161 | 1184 | 1927 | 2006 | 2013 | 3169 => {
            ErrorClass::Lost
        }
        1146 | 1054 => ErrorClass::Schema,
        1290 | 1792 | 1836 | 1874 => ErrorClass::Stale(
            StoreErrorKind::Unavailable,
            "; this server is read-only (a failover is under way, or the address is wrong), or the \
             transaction is READ ONLY",
        ),
        // Prepared statements that the server no longer knows (behind a proxy), that it must
        // prepare again, or of which it has too many.
        1243 | 1461 | 1615 => ErrorClass::Stale(StoreErrorKind::Unavailable, ""),
        // The engine failed during COMMIT, before or after it took effect.
        1180 => ErrorClass::Lost,
        // No thread for another one, a limit of the user, or a proxy that reaches no server.
        1040 | 1135 | 1203 | 1226 | 9001 => {
            ErrorClass::Unavailable("; the server takes no more connections")
        }
        1129 => ErrorClass::Unavailable(
            "; the server blocks this host after many connections that failed, until `FLUSH HOSTS`",
        ),
        // Memory in general, for sorting or for locks, and slots for transactions.
        1037 | 1038 | 1041 | 1206 | 1637 => {
            ErrorClass::Unavailable("; the server has not enough memory, or too much to do, now")
        }
        3032 => ErrorClass::Unavailable("; this server is offline for its administrator"),
        3100 => ErrorClass::Unavailable(
            "; this member of the replication group takes no transactions now",
        ),
        1205 | 1317 | 1969 | 3024 => ErrorClass::Timeout,
        1021 | 1114 => ErrorClass::Full,
        1044 | 1045 | 1698 => ErrorClass::Refused("; correct the user and password"),
        1046 | 1049 => ErrorClass::Refused("; correct the database's name"),
        1142 | 1143 => {
            ErrorClass::Refused("; the user needs SELECT, INSERT, UPDATE and DELETE on the table")
        }
        // Only `usable` adds two numbers that are too large together.
        1690 => ErrorClass::Refused(
            "; the connection has a setting that changes what statements mean: `autocommit` is \
             off, or it has a `completion_type`, a `sql_select_limit`, a `timestamp`, or `ORACLE` \
             or `EMPTY_STRING_IS_NULL` in its `sql_mode`; give the store, and transactions, \
             connections without it",
        ),
        1153 => {
            ErrorClass::TooLarge("; the outcome is larger than `max_allowed_packet` of the server")
        }
        _ => by_class(&error.code().unwrap_or_default()),
    }
}

fn by_class(state: &str) -> ErrorClass {
    match state.get(..2) {
        Some("08") => ErrorClass::Lost,
        Some("40") => ErrorClass::Conflict,
        _ => ErrorClass::Refused(""),
    }
}
