//! Whether a transaction met another one.

use std::error::Error;

use self::sqlx::error::DatabaseError;
use super::super::super::sqlx;
use super::super::dialect::Dialect as _;
use super::super::transaction::{of_database, sources};
use super::kept::KeyTaken;

/// Returns whether this error, or one of its sources, says that the transaction met another one: a
/// serialization failure, a deadlock or a busy database. Then roll back, and run the whole
/// transaction again.
///
/// It recognises the errors of sqlx, also inside an [`Error::Store`](idem_core::Error::Store), and
/// the error of a [`transaction`](super::transaction()) whose key another call has claimed. Use
/// it where you begin and commit the transaction yourself, such as around an annotated function
/// with `transaction = tx`. [`Operation::transaction`](idem_core::Operation::transaction) runs
/// again by itself.
///
/// # Examples
///
/// ```
/// use idem_sqlx::guard;
///
/// let error = std::io::Error::other("no conflict");
/// assert!(!guard::is_conflict(&error));
/// ```
pub fn is_conflict(error: &(dyn Error + 'static)) -> bool {
    sources(error).any(|error| error.is::<KeyTaken>() || of_database(error).is_some_and(is_one))
}

/// Each database has codes of its own, so the error's type decides which of them are meant.
fn is_one(error: &dyn DatabaseError) -> bool {
    #[cfg(feature = "postgres")]
    if error
        .try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
        .is_some()
    {
        return super::super::dialect::postgres::Postgresql::is_conflict(error);
    }
    #[cfg(feature = "mysql")]
    if error
        .try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()
        .is_some()
    {
        return super::super::dialect::mysql::Mysql::is_conflict(error);
    }
    #[cfg(feature = "sqlite")]
    if error
        .try_downcast_ref::<sqlx::sqlite::SqliteError>()
        .is_some()
    {
        return super::super::dialect::sqlite::SqliteFile::is_conflict(error);
    }
    let _ = error;
    false
}
