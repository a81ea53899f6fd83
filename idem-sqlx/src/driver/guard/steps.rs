//! The statements of the guards, for each database.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use idem_core::store::{KeptRecord, Written};

use self::sqlx::{Database, Decode, Encode, Error, Pool, Transaction, Type};
use super::super::super::sqlx;
use super::boundaries::{self, Isolation};

/// A value that names a row: what sqlx can bind, such as `i64`, `String` or a UUID.
///
/// With sqlx 0.8, `&str` is none; use `String`.
pub trait Id<DB: Database>: for<'q> Encode<'q, DB> + Type<DB> + Clone + Send + Sync {}

impl<DB: Database, I: for<'q> Encode<'q, DB> + Type<DB> + Clone + Send + Sync> Id<DB> for I {}

/// Whether a wait for a lock ended with it.
pub enum Waited<T> {
    /// With what was selected.
    Over(T),
    /// The time has run out.
    Locked,
}

/// A database that has the guards. Only this crate implements it.
pub trait Supported: Database + Sized {
    /// The quotation mark of identifiers.
    const MARK: char;
    /// Parameters, in their order.
    const PARAMETERS: [&'static str; 2];
    /// The types that texts and numbers are read as.
    const TYPES: [&'static str; 2];
    /// Locks the selected rows. Empty: the database has one writer.
    const LOCK: &'static str;

    /// Carries out a statement without parameters.
    fn execute(
        on: &mut Self::Connection,
        text: &Arc<str>,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Selects a text, by a row's id.
    fn text<I: Id<Self>>(
        on: &mut Self::Connection,
        text: &Arc<str>,
        id: I,
    ) -> impl Future<Output = Result<Option<String>, Error>> + Send;

    /// Selects a number and a text that may be missing, by a row's id.
    fn number<I: Id<Self>>(
        on: &mut Self::Connection,
        text: &Arc<str>,
        id: I,
    ) -> impl Future<Output = Result<Option<(i64, Option<String>)>, Error>> + Send;

    /// Writes a text, by a row's id.
    fn write<I: Id<Self>>(
        on: &mut Self::Connection,
        text: &Arc<str>,
        value: &str,
        id: I,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Selects ids, by a text.
    fn ids<I: Id<Self> + for<'r> Decode<'r, Self> + Unpin>(
        on: &mut Self::Connection,
        text: &Arc<str>,
        value: &str,
    ) -> impl Future<Output = Result<Vec<I>, Error>> + Send;

    /// Selects a number by a row's id, and waits for locks no longer than `wait`. The transaction
    /// stays usable.
    fn number_within<I: Id<Self>>(
        on: &mut Self::Connection,
        before: Option<&Arc<str>>,
        text: &Arc<str>,
        id: I,
        wait: Duration,
    ) -> impl Future<Output = Result<Waited<Option<i64>>, Error>> + Send;

    /// Begins a transaction that may write.
    fn begin(
        pool: &Pool<Self>,
        isolation: Option<Isolation>,
    ) -> impl Future<Output = Result<Transaction<'static, Self>, Error>> + Send;

    /// Writes the record of a kept error, if nobody has claimed its key since.
    fn write_kept(
        tx: &mut Transaction<'static, Self>,
        record: &KeptRecord,
    ) -> impl Future<Output = Result<Written, Error>> + Send;

    /// Fails if the database has ended the transaction, and `COMMIT` would not.
    fn check_open(on: &mut Self::Connection) -> impl Future<Output = Result<(), Error>> + Send;

    /// Commits.
    fn commit(tx: Transaction<'static, Self>) -> impl Future<Output = Result<(), Error>> + Send;

    /// Whether a transaction failed because its connection leads to a server that does not write
    /// any more.
    fn is_stale(error: &(dyn StdError + 'static)) -> bool;

    /// Ends the session of such a transaction.
    fn end_session(on: &mut Self::Connection) -> impl Future<Output = ()> + Send;

    /// Rolls all of it back.
    fn roll_back(tx: Transaction<'static, Self>) -> impl Future<Output = ()> + Send;
}

/// How a database begins a transaction.
struct BeginStatements {
    /// At the level of the connection. `None`: with sqlx's own statement.
    default: Option<&'static str>,
    read_committed: &'static str,
    repeatable_read: &'static str,
    serializable: &'static str,
    /// The statement that succeeds only in an open transaction. `None`: `COMMIT` itself does.
    check: Option<&'static str>,
    /// The statement with which the server ends the session.
    end_session: &'static str,
}

impl BeginStatements {
    fn at(&self, isolation: Option<Isolation>) -> Option<&'static str> {
        match isolation {
            None => self.default,
            Some(Isolation::ReadCommitted) => Some(self.read_committed),
            Some(Isolation::RepeatableRead) => Some(self.repeatable_read),
            Some(Isolation::Serializable) => Some(self.serializable),
        }
    }
}

/// A savepoint, which is rolled back if the future is dropped. Otherwise sqlx would take the end of
/// the caller's transaction for its own, and return the connection with an open transaction.
struct Savepoint<'c, D: Dialect> {
    on: &'c mut Conn<D>,
    is_open: bool,
}

impl<'c, D: Dialect> Savepoint<'c, D> {
    async fn begin(on: &'c mut Conn<D>) -> Result<Self, Error> {
        D::savepoint(on).await?;
        Ok(Self { on, is_open: true })
    }

    async fn release(mut self) -> Result<(), Error> {
        Manager::<D>::commit(self.on).await?;
        self.is_open = false;
        Ok(())
    }

    /// `false`: the database has ended all of the transaction.
    async fn roll_back(mut self) -> bool {
        let is_rolled_back = roll_back::<D>(self.on).await.is_ok();
        self.is_open = false;
        is_rolled_back
    }
}

impl<D: Dialect> Drop for Savepoint<'_, D> {
    fn drop(&mut self) {
        if self.is_open {
            roll_back_later::<D>(self.on);
        }
    }
}

macro_rules! supported {
    (
        $Db:ty, $Dialect:ty, $mark:literal, $parameters:expr, $types:expr, $lock:literal,
        $begin:expr
    ) => {
        impl Supported for $Db {
            const MARK: char = $mark;
            const PARAMETERS: [&'static str; 2] = $parameters;
            const TYPES: [&'static str; 2] = $types;
            const LOCK: &'static str = $lock;

            async fn execute(on: &mut Self::Connection, text: &Arc<str>) -> Result<(), Error> {
                sqlx::query(sql(text)).execute(on).await.map(drop)
            }

            async fn text<I: Id<Self>>(
                on: &mut Self::Connection,
                text: &Arc<str>,
                id: I,
            ) -> Result<Option<String>, Error> {
                let row = sqlx::query(sql(text)).bind(id).fetch_optional(on).await?;
                row.map(|row| row.try_get(0)).transpose()
            }

            async fn number<I: Id<Self>>(
                on: &mut Self::Connection,
                text: &Arc<str>,
                id: I,
            ) -> Result<Option<(i64, Option<String>)>, Error> {
                let row = sqlx::query(sql(text)).bind(id).fetch_optional(on).await?;
                row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
                    .transpose()
            }

            async fn write<I: Id<Self>>(
                on: &mut Self::Connection,
                text: &Arc<str>,
                value: &str,
                id: I,
            ) -> Result<(), Error> {
                sqlx::query(sql(text))
                    .bind(value.to_owned())
                    .bind(id)
                    .execute(on)
                    .await
                    .map(drop)
            }

            async fn ids<I: Id<Self> + for<'r> Decode<'r, Self> + Unpin>(
                on: &mut Self::Connection,
                text: &Arc<str>,
                value: &str,
            ) -> Result<Vec<I>, Error> {
                let rows = sqlx::query(sql(text))
                    .bind(value.to_owned())
                    .fetch_all(on)
                    .await?;
                rows.iter().map(|row| row.try_get(0)).collect()
            }

            async fn number_within<I: Id<Self>>(
                on: &mut Self::Connection,
                before: Option<&Arc<str>>,
                text: &Arc<str>,
                id: I,
                wait: Duration,
            ) -> Result<Waited<Option<i64>>, Error> {
                // An error ends a transaction of PostgreSQL, but for a savepoint. It restores the
                // limit as well.
                let savepoint = Savepoint::<$Dialect>::begin(on).await?;
                let mut limited = LockLimit::<$Dialect>::set(savepoint.on, wait).await?;
                let mut selected = match before {
                    Some(before) => Self::execute(limited.connection(), before)
                        .await
                        .map(|()| None),
                    None => Ok(None),
                };
                if selected.is_ok() {
                    let row = sqlx::query(sql(text))
                        .bind(id)
                        .fetch_optional(limited.connection())
                        .await;
                    selected = row.and_then(|row| row.map(|row| row.try_get(0)).transpose());
                }
                let is_locked = selected.as_ref().is_err_and(|error| limited.is_over(error));
                let ended = limited.restore().await;
                if selected.is_ok() {
                    ended?;
                    savepoint.release().await?;
                } else {
                    // In PostgreSQL setting the limit fails, and the roll-back restores it. The
                    // first error is the one that counts: a deadlock in MySQL has ended the
                    // savepoint.
                    let is_rolled_back = savepoint.roll_back().await;
                    if is_locked && is_rolled_back {
                        return Ok(Waited::Locked);
                    }
                }
                selected.map(Waited::Over)
            }

            async fn begin(
                pool: &Pool<Self>,
                isolation: Option<Isolation>,
            ) -> Result<Transaction<'static, Self>, Error> {
                boundaries::begin::<$Dialect>(pool, $begin.at(isolation)).await
            }

            async fn write_kept(
                tx: &mut Transaction<'static, Self>,
                record: &KeptRecord,
            ) -> Result<Written, Error> {
                record.write_in(tx).await.map_err(boundaries::failed)
            }

            async fn check_open(on: &mut Self::Connection) -> Result<(), Error> {
                match $begin.check {
                    Some(check) => on.execute(sqlx::raw_sql(check)).await.map(drop),
                    None => Ok(()),
                }
            }

            async fn commit(tx: Transaction<'static, Self>) -> Result<(), Error> {
                boundaries::commit::<$Dialect>(tx).await
            }

            fn is_stale(error: &(dyn StdError + 'static)) -> bool {
                boundaries::is_stale::<$Dialect>(error)
            }

            async fn end_session(on: &mut Self::Connection) {
                // An error says that it has ended.
                let _ = on.execute(sqlx::raw_sql($begin.end_session)).await;
            }

            async fn roll_back(tx: Transaction<'static, Self>) {
                boundaries::roll_back::<$Dialect>(tx).await;
            }
        }
    };
}

use {
    self::sqlx::{Executor as _, Row as _},
    super::super::super::TransactionManager as _,
    super::super::super::sql,
    super::super::dialect::lock_limit::LockLimit,
    super::super::dialect::{Conn, Dialect},
    super::super::transaction::{Manager, roll_back, roll_back_later},
};

#[cfg(feature = "postgres")]
supported!(
    sqlx::Postgres,
    super::super::dialect::postgres::Postgresql,
    '"',
    ["$1", "$2"],
    ["text", "bigint"],
    // Not `FOR UPDATE`, which would wait for inserts that refer to the row.
    " FOR NO KEY UPDATE",
    BeginStatements {
        default: None,
        read_committed: "BEGIN ISOLATION LEVEL READ COMMITTED",
        repeatable_read: "BEGIN ISOLATION LEVEL REPEATABLE READ",
        serializable: "BEGIN ISOLATION LEVEL SERIALIZABLE",
        // After an error, `COMMIT` rolls back, and does not say so.
        check: Some("SELECT 1"),
        end_session: "ROLLBACK; SELECT pg_terminate_backend(pg_backend_pid())",
    }
);
#[cfg(feature = "mysql")]
supported!(
    sqlx::MySql,
    super::super::dialect::mysql::Mysql,
    '`',
    ["?", "?"],
    ["CHAR", "SIGNED"],
    " FOR UPDATE",
    BeginStatements {
        default: Some("BEGIN; SAVEPOINT idem_begin"),
        // `SET TRANSACTION` is about the next transaction of the connection alone. In one message
        // with `BEGIN`, so that a dropped future does not leave it for another one.
        read_committed: "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; BEGIN; SAVEPOINT \
                         idem_begin",
        repeatable_read: "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; BEGIN; SAVEPOINT \
                          idem_begin",
        serializable: "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; BEGIN; SAVEPOINT idem_begin",
        // A deadlock ends the transaction with its savepoints, and `COMMIT` succeeds all the same.
        check: Some("RELEASE SAVEPOINT idem_begin"),
        end_session: "KILL CONNECTION_ID()",
    }
);
#[cfg(feature = "sqlite")]
supported!(
    sqlx::Sqlite,
    super::super::dialect::sqlite::SqliteFile,
    '"',
    ["?1", "?2"],
    ["TEXT", "INTEGER"],
    "",
    BeginStatements {
        default: Some("BEGIN IMMEDIATE"),
        read_committed: "BEGIN IMMEDIATE",
        repeatable_read: "BEGIN IMMEDIATE",
        serializable: "BEGIN IMMEDIATE",
        check: None,
        // A connection to a file has no server.
        end_session: "ROLLBACK",
    }
);
