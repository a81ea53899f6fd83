//! The differences between the databases: the statements, and the meaning of their errors.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use idem_core::store::record::{Owner, RecordId};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::sqlx::error::DatabaseError;
use self::sqlx::{Connection, Database, Pool};
use super::super::sqlx;
use crate::columns::{Columns, Row};
use crate::table::Table;
use crate::waiters::LocalWaiters;

/// A connection of a dialect's database.
pub(crate) type Conn<D> = <<D as Dialect>::Db as Database>::Connection;
/// How to connect to it.
pub(crate) type Options<D> = <Conn<D> as Connection>::Options;

/// The condition on a row for overwriting it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Guard {
    /// It is in flight, by this owner.
    Owner(Owner),
    /// It is as it was read.
    Revision(i64),
    /// It is as it was read, and its lease has run out.
    RanOut(i64),
}

/// The state of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "mysql"), allow(dead_code))]
pub(crate) enum Schema {
    Missing,
    /// Its mark: see [`VERSION`](crate::table::VERSION).
    Marked(String),
    /// Something about the connection makes the table unusable, for this reason.
    Unusable(&'static str),
}

/// The meaning of a database error for the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(any(feature = "postgres", feature = "mysql")), allow(dead_code))]
pub(crate) enum Judgement {
    /// Not carried out: another transaction was in the way. To be sent again at once.
    Conflict,
    /// The connection is of no more use. Whether the step was carried out is unknown.
    Lost,
    /// Not carried out: the server had ended the connection, or takes no statements. Another
    /// connection may; if none does, for this reason.
    Ended(&'static str),
    /// Not carried out: the table or a column is missing, perhaps.
    Schema,
    /// Not carried out, because the database cannot write now; for this reason.
    Unavailable(&'static str),
    /// Not carried out in time.
    Timeout,
    /// Not carried out: no space is left.
    Full,
    /// Not carried out: the database takes no outcome of that size, for this reason.
    TooLarge(&'static str),
    /// Not carried out; what to do.
    Refused(&'static str),
}

/// The position of a listing: after this row, in the order of expiry, operation and key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Position {
    /// In the dialect's unit.
    pub(crate) expires_at: i64,
    pub(crate) operation: String,
    pub(crate) key: String,
}

/// The rows among which a window of a listing is.
#[derive(Debug, Clone)]
pub(crate) enum Among {
    All,
    InFlight,
    /// Those of an operation that has few.
    Few(Box<str>),
}

/// A row of a listing, without its outcome.
pub(crate) struct Seen {
    pub(crate) place: Position,
    pub(crate) row: Row,
}

/// The result of an insert in the caller's transaction.
#[derive(Debug)]
pub(crate) enum Inserted {
    /// This row stands there now.
    Stands(Box<Row>),
    /// There was a row, which this statement cannot see.
    Gone,
    /// Another transaction holds it, and its end was not waited for any longer.
    #[cfg_attr(not(feature = "mysql"), allow(dead_code))]
    Locked,
}

/// One lease to be kept: whose, and the hold from now.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) id: RecordId,
    pub(crate) owner: Owner,
    pub(crate) hold: i64,
}

/// Statements, each carried out as a transaction of its own.
pub(crate) trait Dialect: Send + Sync + Sized + 'static {
    type Db: Database;

    /// The database, as errors call it.
    const NAME: &'static str;

    /// Whether only one connection can write at a time. A step writes, so steps come one after the
    /// other, and each transaction begins as the writer.
    const ONE_WRITER: bool = false;

    /// Whether a transaction whose claim has met a record in flight keeps the row locked, or the
    /// file, until it ends.
    const HOLDS_UP_OWNERS: bool = false;

    /// The statement that begins a transaction that may write, where it waits until it may. How
    /// long it does is a setting of the connection.
    const BEGIN_AS_WRITER: Option<&'static str> = None;

    /// For steps of their own. A claim waits no longer for locks than `lock_limit`, if connections
    /// do not see to that: one whose caller has gone could be carried out much later, and nobody
    /// would own its key.
    fn new(table: &Table, lock_limit: Option<Duration>) -> Self;

    /// For steps in a caller's transaction: their futures may be dropped at any poll, and the
    /// connection goes on to the caller's next statement. Nobody else sees a claim there, so it does
    /// not expire, however long the transaction takes.
    fn within_transactions(table: &Table) -> Self;

    /// Returns the database's address, without the password.
    fn place(options: &Options<Self>) -> String;

    /// Writes a row if there is none, and reads the one that stands there then. `None`: it was
    /// removed in between, or is not visible yet.
    fn insert(
        &self,
        on: &mut Conn<Self>,
        id: &RecordId,
        columns: &Columns,
    ) -> impl Future<Output = Result<Option<Row>, sqlx::Error>> + Send;

    /// Writes each row where there is none, and gives the revisions of those that were written.
    fn insert_all(
        &self,
        on: &mut Conn<Self>,
        rows: &[(RecordId, Columns)],
    ) -> impl Future<Output = Result<HashSet<i64>, sqlx::Error>> + Send;

    fn read(&self, on: &mut Conn<Self>, id: &RecordId)
    -> impl Future<Output = Result<Option<Row>, sqlx::Error>> + Send;

    /// Writes over a row that has not expired, or was found expired, and wakes who waits for it.
    /// `false`: the guard did not hold.
    fn put(
        &self,
        on: &mut Conn<Self>,
        id: &RecordId,
        guard: Guard,
        columns: &Columns,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Removes the row that was read, and wakes who waits for it. `false`: it is another now.
    fn remove(
        &self,
        on: &mut Conn<Self>,
        id: &RecordId,
        revision: i64,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Reads rows that have not expired in the order of their expiry, operation and key, after a
    /// place: at most `limit`, without their outcomes.
    fn window(
        &self,
        on: &mut Conn<Self>,
        among: &Among,
        after: &Position,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<Seen>, sqlx::Error>> + Send;

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

    /// Renews leases; `true` for each that was its owner's and that no other transaction had locked.
    fn renew(
        &self,
        on: &mut Conn<Self>,
        leases: &[&Kept],
    ) -> impl Future<Output = Result<Vec<bool>, sqlx::Error>> + Send;

    /// Deletes expired rows and outcomes, at most `limit` of each, and says how many.
    fn sweep(&self, on: &mut Conn<Self>, limit: i64) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// The database's time since 1970.
    fn time(&self, on: &mut Conn<Self>) -> impl Future<Output = Result<Duration, sqlx::Error>> + Send;

    fn schema(&self, on: &mut Conn<Self>) -> impl Future<Output = Result<Schema, sqlx::Error>> + Send;

    /// Creates the table, if it does not exist.
    fn create(&self, on: &mut Conn<Self>) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    fn judge(error: &dyn DatabaseError) -> Judgement;

    /// As [`insert`](Self::insert), in the caller's transaction: waits for locks for at most
    /// `wait`, and leaves the transaction's own limit as it was.
    fn insert_within(
        &self,
        on: &mut Conn<Self>,
        id: &RecordId,
        columns: &Columns,
        wait: Duration,
    ) -> impl Future<Output = Result<Inserted, sqlx::Error>> + Send;

    /// Reads the row of a key that is never inserted, in the caller's transaction: as it is now,
    /// whatever this transaction has read before. Waits as [`insert_within`](Self::insert_within)
    /// does.
    fn read_within(
        &self,
        on: &mut Conn<Self>,
        id: &RecordId,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<Row>, sqlx::Error>> + Send {
        let _ = wait;
        self.read(on, id)
    }

    /// Reads how long statements wait for locks, where the database does not note it by itself.
    fn lock_limit(on: &mut Conn<Self>) -> impl Future<Output = Result<i64, sqlx::Error>> + Send {
        let _ = on;
        async { Ok(0) }
    }

    /// Limits how long statements wait for locks. See [`Limited`](super::limited::Limited).
    fn limit_locks(on: &mut Conn<Self>, wait: Duration) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Sets the limit that there was.
    fn unlimit_locks(on: &mut Conn<Self>, before: i64) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// The same from a `Drop`, where the roll-back that follows does not do it.
    fn unlimit_later(on: &mut Conn<Self>, before: i64) {
        let _ = (on, before);
    }

    /// Rolls back what may be left of a transaction, and leaves one in its place that never writes
    /// anything.
    fn doom(on: &mut Conn<Self>) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Rolls back what may be left of a transaction, and begins another one with this statement in
    /// it.
    fn restart(on: &mut Conn<Self>, statement: &str) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// The same for a transaction that is lost: the one that is left never writes anything, where
    /// the database can do that with a statement in it.
    fn restart_lost(on: &mut Conn<Self>, statement: &str) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        Self::restart(on, statement)
    }

    /// Rolls back to a savepoint, which stays.
    fn roll_back_to(on: &mut Conn<Self>, savepoint: &str) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Changes every statement.
    #[cfg(test)]
    #[allow(dead_code, reason = "used with one version of sqlx alone")]
    fn rewrite(&mut self, change: &dyn Fn(&str) -> String);

    /// Whether a statement waited for a lock for as long as it may.
    fn is_locked(error: &dyn DatabaseError) -> bool;

    /// Whether a statement took as long as the connection lets statements take.
    fn is_cut_off(error: &dyn DatabaseError) -> bool {
        let _ = error;
        false
    }

    /// Whether the transaction met another one, so that all of it may run again.
    fn is_conflict(error: &dyn DatabaseError) -> bool {
        Self::judge(error) == Judgement::Conflict
    }

    /// Asks that the end of this attempt be told, where the database can tell. See
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

    /// Starts the task that takes messages in and wakes waiters, and says whether it is connected.
    /// `None`: this database has no messages.
    fn listen(
        &self,
        pool: &Pool<Self::Db>,
        waiters: Arc<LocalWaiters>,
    ) -> Option<(JoinHandle<()>, watch::Receiver<bool>)> {
        let _ = (pool, waiters);
        None
    }
}
