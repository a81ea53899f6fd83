//! The differences between the databases: the statements, and the meaning of their errors.

mod listing;
pub(crate) mod lock_limit;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
mod statements;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use idem_core::StoreErrorKind;
use idem_core::store::admin::KeyRange;
use idem_core::store::record::{Owner, RecordId};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use self::sqlx::database::HasStatementCache;
use self::sqlx::error::DatabaseError;
use self::sqlx::{Connection, Database, Pool};
use super::super::{TransactionManager as _, sqlx};
use crate::row::{Columns, Row};
use crate::table::Table;
use crate::waiters::LocalWaiters;

/// How long opening a connection may take in all.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How many leases are renewed in one step.
pub(crate) const RENEWALS: usize = 200;

/// A connection of a dialect's database.
pub(crate) type Conn<D> = <<D as Dialect>::Db as Database>::Connection;
/// How to connect to it.
pub(crate) type Options<D> = <Conn<D> as Connection>::Options;

/// The condition on a row for overwriting it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Guard {
    /// It is in flight, by this owner.
    Owner(Owner),
    /// As [`Owner`](Self::Owner), which claimed it in this transaction: no other one can have locked
    /// it.
    Claimed(Owner),
    /// It is as it was read.
    Revision(i64),
    /// It is as it was read, and its lease has run out.
    RanOut(i64),
}

/// The result of the check of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "mysql"), allow(dead_code))]
pub(crate) enum Schema {
    Missing,
    Marked {
        /// See [`VERSION`](crate::table::VERSION).
        mark: String,
        /// The schema in which the connection found it, if another one may find it elsewhere.
        schema: Option<String>,
    },
    /// Something about the connection makes the table unusable, for this reason.
    Unusable(&'static str),
}

/// The meaning of a database error for the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(any(feature = "postgres", feature = "mysql")), allow(dead_code))]
pub(crate) enum ErrorClass {
    /// Not carried out: it met another transaction. It can be sent again at once.
    Conflict,
    /// The connection is unusable. Whether the step was carried out is unknown.
    Lost,
    /// Not carried out: the server had ended the connection, or accepts no statements, for this
    /// reason. Another connection may work.
    Ended(&'static str),
    /// Not carried out, and this connection will never do it: it leads to a server that has become
    /// read-only, or is in a state that does not end. One that is opened now may work. If it does
    /// not, the error is of this kind, for this reason.
    Stale(StoreErrorKind, &'static str),
    /// Not carried out: perhaps the table or a column is missing.
    Schema,
    /// Not carried out, because the database cannot write now; for this reason.
    Unavailable(&'static str),
    /// Not carried out in time.
    Timeout,
    /// Not carried out: no space is left.
    Full,
    /// Not carried out: the outcome is too large for the database, for this reason.
    TooLarge(&'static str),
    /// Not carried out. The text says what to do.
    Refused(&'static str),
}

/// The position of a listing: after this row, in the order of the time at which a sweep looks at
/// it, of operation and key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Position {
    /// In the dialect's unit.
    pub(crate) sweep_at: i64,
    pub(crate) operation: String,
    pub(crate) key: String,
}

/// The rows that a window of a listing covers.
#[derive(Debug, Clone)]
pub(crate) enum ListScope {
    All,
    /// Those of an operation that has few rows.
    OfOperation(Box<str>),
}

/// A part of a listing.
pub(crate) struct Window {
    pub(crate) rows: Vec<ListedRow>,
    /// How many rows the database left out.
    pub(crate) left_out: usize,
    /// The last position that it covers. `None`: it covers the rest of the table.
    pub(crate) end: Option<Position>,
}

impl Window {
    /// Returns the window of all rows that a statement with this limit has read.
    fn of_all(rows: Vec<ListedRow>, limit: i64) -> Self {
        let is_full = usize::try_from(limit).is_ok_and(|limit| rows.len() >= limit);
        let last = rows.last().filter(|_| is_full);
        let end = last.map(|row| row.position.clone());
        Self {
            rows,
            left_out: 0,
            end,
        }
    }
}

/// How many rows of an operation hold records in a state.
pub(crate) struct CountedRows {
    pub(crate) operation: String,
    /// The name of a [`RecordState`](idem_core::RecordState), or what the column holds.
    pub(crate) state: String,
    pub(crate) rows: i64,
    /// In flight and abandoned: the milliseconds since the claim or the last renewal of the one of
    /// which nothing was heard for longest.
    pub(crate) silent_for: Option<i64>,
}

/// A row of a listing, without its outcome.
pub(crate) struct ListedRow {
    pub(crate) position: Position,
    pub(crate) row: Row,
}

/// The task that receives a database's messages.
pub(crate) struct MessageTask {
    pub(crate) task: JoinHandle<()>,
    /// Whether messages arrive now.
    pub(crate) is_connected: watch::Receiver<bool>,
    /// Has the task leave its connection for another one.
    pub(crate) reconnect: Arc<Notify>,
}

/// The result of an insert in the caller's transaction.
#[derive(Debug)]
pub(crate) enum InsertResult {
    /// The row that is there now.
    Row(Box<Row>),
    /// There was a row that this statement cannot see.
    NotVisible,
    /// Another transaction has locked the row for as long as this one may wait.
    #[cfg_attr(not(feature = "mysql"), allow(dead_code))]
    Locked,
}

/// A lease to renew: its owner, and the hold from now.
#[derive(Debug, Clone)]
pub(crate) struct LeaseRenewal {
    pub(crate) id: RecordId,
    pub(crate) owner: Owner,
    pub(crate) hold: i64,
}

/// The statements of a database. Each is a transaction of its own.
pub(crate) trait Dialect: Send + Sync + Sized + 'static {
    type Db: Database + HasStatementCache;

    /// The database, as errors call it.
    const NAME: &'static str;

    /// Whether only one connection can write at a time. Then steps that may write run one after the
    /// other, and each transaction begins as the writer.
    const ONE_WRITER: bool = false;

    /// Whether a transaction whose claim found a record in flight keeps the row or the file locked
    /// until it ends.
    const HOLDS_UP_OWNERS: bool = false;

    /// The statement that begins a transaction that may write, where it waits until it may. How
    /// long it does is a setting of the connection.
    const BEGIN_AS_WRITER: Option<&'static str> = None;

    /// Creates the dialect of separate steps. A claim waits for locks no longer than `lock_limit`,
    /// which is given if connections have no such limit. Otherwise a claim whose caller is gone
    /// could be carried out much later, and nobody would own its key.
    fn new(table: &Table, lock_limit: Option<Duration>) -> Self;

    /// Creates the dialect of steps in a caller's transaction. Their futures may be dropped at any
    /// poll, and the connection continues with the caller's next statement. Nobody else sees a
    /// claim there, so it does not expire, however long the transaction takes.
    fn within_transactions(table: &Table) -> Self;

    /// Returns the statements that create the table, as a migration file has them.
    fn create_statements(table: &Table) -> String;

    /// Returns the database's address, without the password.
    fn place(options: &Options<Self>) -> String;

    /// Writes a row if there is none, and reads the row that is there then. `None`: it was removed
    /// in between, or is not visible yet.
    fn insert(
        &self,
        on: &mut Conn<Self>,
        id: &RecordId,
        columns: &Columns,
    ) -> impl Future<Output = Result<Option<Row>, sqlx::Error>> + Send;

    /// Writes a row if there is none. `false`: there is one, or one that is not visible yet.
    fn insert_new(
        &self,
        on: &mut Conn<Self>,
        id: &RecordId,
        columns: &Columns,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Writes each row that does not exist, and returns the revisions of those that were written.
    fn insert_all(
        &self,
        on: &mut Conn<Self>,
        rows: &[(RecordId, Columns)],
    ) -> impl Future<Output = Result<HashSet<i64>, sqlx::Error>> + Send;

    fn read(
        &self,
        on: &mut Conn<Self>,
        id: &RecordId,
    ) -> impl Future<Output = Result<Option<Row>, sqlx::Error>> + Send;

    /// Overwrites a row and wakes its waiters. The row has not expired, or was found expired.
    /// `false`: the guard did not hold.
    fn put(
        &self,
        on: &mut Conn<Self>,
        id: &RecordId,
        guard: Guard,
        columns: &Columns,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// As [`put`](Self::put), in the caller's transaction, of a row that it has claimed. Says whether
    /// there is a row `beside`, which is read in the same message and without a lock: not even at
    /// SERIALIZABLE, where others would wait for it. `None`: the row has another owner.
    ///
    /// The default is for a database with one writer: then nobody has written one.
    fn put_and_look(
        &self,
        on: &mut Conn<Self>,
        id: &RecordId,
        owner: Owner,
        columns: &Columns,
        beside: &RecordId,
    ) -> impl Future<Output = Result<Option<bool>, sqlx::Error>> + Send {
        let _ = beside;
        async move {
            let is_written = self.put(on, id, Guard::Claimed(owner), columns).await?;
            Ok(is_written.then_some(false))
        }
    }

    /// Removes the row that was read and wakes its waiters. `false`: it has changed.
    fn remove(
        &self,
        on: &mut Conn<Self>,
        id: &RecordId,
        revision: i64,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Reads rows in the order of positions, after one, without their outcomes: at most `limit`,
    /// expired ones among them. To leave those out, a statement would pass by any number of them.
    fn window(
        &self,
        on: &mut Conn<Self>,
        scope: &ListScope,
        after: &Position,
        limit: i64,
    ) -> impl Future<Output = Result<Window, sqlx::Error>> + Send;

    /// Reads the position of the last of `limit` rows after a position. `None`: there are fewer.
    fn window_end(
        &self,
        on: &mut Conn<Self>,
        after: &Position,
        limit: i64,
    ) -> impl Future<Output = Result<Option<Position>, sqlx::Error>> + Send;

    /// Reads the rows between two positions, the last one included, that have not expired, and are
    /// in one of these states, or in none that is known.
    fn window_in_states(
        &self,
        on: &mut Conn<Self>,
        states: [&str; 2],
        after: &Position,
        last: &Position,
    ) -> impl Future<Output = Result<Vec<ListedRow>, sqlx::Error>> + Send;

    /// Counts the rows between two positions, the last one included, that have not expired, by
    /// operation and by the state of the record.
    fn count(
        &self,
        on: &mut Conn<Self>,
        after: &Position,
        last: &Position,
    ) -> impl Future<Output = Result<Vec<CountedRows>, sqlx::Error>> + Send;

    /// Reads rows of an operation that have not expired and whose keys are in a range, in the order
    /// of their keys and without their outcomes: at most `limit`, by the index of the primary key.
    fn window_of_keys(
        &self,
        on: &mut Conn<Self>,
        operation: &str,
        keys: &KeyRange,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<ListedRow>, sqlx::Error>> + Send;

    /// Whether an operation has more rows than so many, expired ones among them.
    fn has_more(
        &self,
        on: &mut Conn<Self>,
        operation: &str,
        rows: i64,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Reads the operations and keys of rows, expired ones among them, in the order of both, after
    /// a place: at most `limit`. The index of the primary key has both.
    fn ids(
        &self,
        on: &mut Conn<Self>,
        after: &Position,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<(String, String)>, sqlx::Error>> + Send;

    /// Renews leases. `true` for each that still belonged to its owner, and that no other
    /// transaction had locked.
    fn renew(
        &self,
        on: &mut Conn<Self>,
        leases: &[&LeaseRenewal],
    ) -> impl Future<Output = Result<Vec<bool>, sqlx::Error>> + Send;

    /// Deletes expired rows and outcomes among those that are due, and sets the time of those that
    /// have none yet. Returns how many rows: fewer than `limit` if no more are due.
    fn sweep(
        &self,
        on: &mut Conn<Self>,
        limit: i64,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// The database's time since 1970.
    fn time(
        &self,
        on: &mut Conn<Self>,
    ) -> impl Future<Output = Result<Duration, sqlx::Error>> + Send;

    fn schema(
        &self,
        on: &mut Conn<Self>,
    ) -> impl Future<Output = Result<Schema, sqlx::Error>> + Send;

    /// Creates the table, if it does not exist.
    fn create(&self, on: &mut Conn<Self>) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    fn classify(error: &dyn DatabaseError) -> ErrorClass;

    /// Reads a row outside of any transaction, on a connection of the caller's pool, unless that
    /// connection may see what is not committed, or what was, or would leave a transaction open.
    /// A transaction may be open that sqlx does not count. Its future may be dropped at any poll.
    fn find(
        &self,
        on: &mut Conn<Self>,
        id: &RecordId,
    ) -> impl Future<Output = Result<Option<Row>, sqlx::Error>> + Send;

    /// Returns the statement of [`name_key`](Self::name_key). `None`: there is none.
    fn naming(&self, id: &RecordId) -> Option<String> {
        let _ = id;
        None
    }

    /// As [`insert_new`](Self::insert_new), in a transaction with nothing else in it, without a wait
    /// for others and with the key in its message. If there is a row, it may stay locked, so the
    /// transaction is to be rolled back. `None`: this database has no such insert.
    fn insert_at_once(
        &self,
        on: &mut Conn<Self>,
        id: &RecordId,
        columns: &Columns,
    ) -> impl Future<Output = Result<Option<bool>, sqlx::Error>> + Send {
        let _ = (on, id, columns);
        async { Ok(None) }
    }

    /// Whether this database may have [`insert_at_once`](Self::insert_at_once).
    fn inserts_at_once(&self) -> bool {
        false
    }

    /// Hands the key over that the steps `.._within` use, if it is not in their own messages.
    fn name_key(
        &self,
        on: &mut Conn<Self>,
        id: &RecordId,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        let _ = (on, id);
        async { Ok(()) }
    }

    /// As [`insert_new`](Self::insert_new), in the caller's transaction, as
    /// [`insert_within`](Self::insert_within). `false`: there is a row, or one that is not visible
    /// yet, or that another transaction has locked for as long as this one may wait; or this
    /// database has no such insert.
    fn insert_new_within(
        &self,
        on: &mut Conn<Self>,
        id: &RecordId,
        columns: &Columns,
        wait: Duration,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send {
        let _ = (on, id, columns, wait);
        async { Ok(false) }
    }

    /// As [`insert`](Self::insert), in the caller's transaction: waits for locks for at most
    /// `wait`, and leaves the transaction's own limit as it was.
    fn insert_within(
        &self,
        on: &mut Conn<Self>,
        id: &RecordId,
        columns: &Columns,
        wait: Duration,
    ) -> impl Future<Output = Result<InsertResult, sqlx::Error>> + Send;

    /// Reads the row of a key that is never inserted, in the caller's transaction: as it is now,
    /// whatever this transaction has read before. Waits as [`insert_within`](Self::insert_within)
    /// does.
    fn read_within(
        &self,
        on: &mut Conn<Self>,
        id: &RecordId,
        wait: Duration,
    ) -> impl Future<Output = Result<InsertResult, sqlx::Error>> + Send {
        let _ = wait;
        async {
            let row = self.read(on, id).await?;
            Ok(row.map_or(InsertResult::NotVisible, |row| {
                InsertResult::Row(Box::new(row))
            }))
        }
    }

    /// Reads how long statements wait for locks, if the database does not remember it itself.
    fn lock_limit(on: &mut Conn<Self>) -> impl Future<Output = Result<i64, sqlx::Error>> + Send {
        let _ = on;
        async { Ok(0) }
    }

    /// Limits how long statements wait for locks. See [`LockLimit`](lock_limit::LockLimit).
    fn limit_locks(
        on: &mut Conn<Self>,
        wait: Duration,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Restores the previous limit.
    fn restore_lock_limit(
        on: &mut Conn<Self>,
        before: i64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// As [`limit_locks`](Self::limit_locks) with the previous limit, from a `Drop`, if the
    /// rollback that follows does not restore it.
    fn restore_lock_limit_later(on: &mut Conn<Self>, before: i64) {
        let _ = (on, before);
    }

    /// Sets a savepoint that sqlx counts. Dropped, it leaves the transaction open, with its earlier
    /// writes and perhaps a savepoint that nobody ends.
    fn savepoint(on: &mut Conn<Self>) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        <Self::Db as Database>::TransactionManager::begin(on, None)
    }

    /// Rolls back what may be left of a transaction, and replaces it by one that can never commit a
    /// write.
    fn force_rollback(on: &mut Conn<Self>) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Rolls back what may be left of a transaction, and begins another one with this statement in
    /// it.
    fn restart(
        on: &mut Conn<Self>,
        statement: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// As [`restart`](Self::restart), for a transaction that is lost. The new one can never commit
    /// a write, if the database supports that with a statement in it.
    fn restart_lost(
        on: &mut Conn<Self>,
        statement: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        Self::restart(on, statement)
    }

    /// Rolls back to a savepoint, which stays.
    fn roll_back_to(
        on: &mut Conn<Self>,
        savepoint: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Changes every statement.
    #[cfg(test)]
    #[allow(dead_code, reason = "used with one version of sqlx alone")]
    fn rewrite(&mut self, change: &dyn Fn(&str) -> String);

    /// Whether a statement waited for a lock until its limit.
    fn is_lock_timeout(error: &dyn DatabaseError) -> bool;

    /// Whether a statement exceeded the connection's limit for statements.
    fn is_statement_timeout(error: &dyn DatabaseError) -> bool {
        let _ = error;
        false
    }

    /// Whether the transaction met another one, so that the whole transaction can run again.
    fn is_conflict(error: &dyn DatabaseError) -> bool {
        Self::classify(error) == ErrorClass::Conflict
    }

    /// Asks for a message when this attempt ends, if the database sends messages. See
    /// [`listen`](Self::listen).
    fn mark(
        &self,
        on: &mut Conn<Self>,
        id: &RecordId,
        attempt: i64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        let _ = (on, id, attempt);
        async { Ok(()) }
    }

    /// Starts the task that receives messages and wakes waiters. `None`: this database sends none.
    fn listen(&self, pool: &Pool<Self::Db>, waiters: Arc<LocalWaiters>) -> Option<MessageTask> {
        let _ = (pool, waiters);
        None
    }
}

/// Reads a row whose columns are in the order of `Row`. Texts are bytes on some databases.
macro_rules! read_row {
    ($row:expr) => {{
        use self::sqlx::Row as _;
        let row = $row;
        Ok::<_, self::sqlx::Error>($crate::row::Row {
            state: row.try_get_unchecked(0)?,
            attempt: row.try_get(1)?,
            lease: $crate::row::RowLease {
                owner: row.try_get(2)?,
                origin: row.try_get_unchecked(3)?,
                length: row.try_get(4)?,
                hold: row.try_get(5)?,
            },
            left: row.try_get(6)?,
            fade: row.try_get(7)?,
            fingerprint: row.try_get_unchecked(8)?,
            outcome: $crate::row::RowOutcome {
                is_error: row.try_get(9)?,
                codec: row.try_get_unchecked(10)?,
                payload: row.try_get(11)?,
            },
            questions: row.try_get(12)?,
            took_over: row.try_get_unchecked(13)?,
            revision: row.try_get(14)?,
        })
    }};
}
use read_row;
