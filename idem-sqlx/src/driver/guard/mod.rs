//! Guards on rows: a transition between states, a version, a lock.
//!
//! If an `UPDATE` changes no row, the database does not say why. These helpers do: they tell a
//! duplicate from a refusal. Each locks the row, then reads it, then writes it, in the caller's
//! transaction. The lock lasts until the transaction ends, and the answer is final only after its
//! commit.
//!
//! The names of tables and columns are `&'static str`, are checked to be plain identifiers, and are
//! quoted. So upper and lower case differ where the database distinguishes them. Values are always
//! parameters.
//!
//! In SQLite, begin with `BEGIN IMMEDIATE`. A transaction that has read before it writes fails if
//! another one has written since.
//!
//! # Examples
//!
//! ```
//! # #[cfg(feature = "sqlite")]
//! # mod example {
//! use idem_sqlx::guard::{States, Transition};
//! use idem_sqlx::sqlx::{self, SqlitePool};
//!
//! const ORDERS: States = States::new("orders", "id", "state");
//!
//! pub async fn ship(pool: &SqlitePool, order: i64) -> Result<&'static str, sqlx::Error> {
//!     let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
//!     let made = ORDERS.advance(&mut tx, order, &["paid", "packed"], "shipped");
//!     let answer = match made.await? {
//!         Transition::Made => "shipped now",
//!         Transition::AlreadyMade => "shipped before: a duplicate",
//!         Transition::Refused { .. } => "not paid, or cancelled",
//!         Transition::NoRow => "no such order",
//!     };
//!     tx.commit().await?;
//!     Ok(answer)
//! }
//! # }
//!
//! # #[cfg(feature = "sqlite")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), idem_sqlx::sqlx::Error> {
//! # use idem_sqlx::sqlx;
//! # let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
//! # sqlx::raw_sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT NOT NULL)").execute(&pool).await?;
//! # sqlx::raw_sql("INSERT INTO orders VALUES (7, 'paid'), (8, 'cancelled')").execute(&pool).await?;
//! # use example::ship;
//! assert_eq!(ship(&pool, 7).await?, "shipped now");
//! assert_eq!(ship(&pool, 7).await?, "shipped before: a duplicate");
//! assert_eq!(ship(&pool, 8).await?, "not paid, or cancelled");
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "sqlite"))]
//! # fn main() {}
//! ```

mod boundaries;
mod conflict;
mod kept;
mod steps;
mod transaction;

use std::sync::Arc;
use std::time::Duration;

pub use self::boundaries::Isolation;
pub use self::conflict::is_conflict;
use self::sqlx::{Decode, Error, Transaction};
use self::steps::Waited;
pub use self::steps::{Id, Supported};
pub use self::transaction::{TransactionSettings, transaction, transaction_with};
use super::super::sqlx;
use crate::table::{Table, is_identifier};

/// A table whose rows have a state, in a column of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct States {
    rows: Rows,
    state: &'static str,
}

/// The answer to a transition.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a transition may be refused"]
pub enum Transition {
    /// The row was in one of the states that the transition starts from. It is in the new one now.
    Made,
    /// The row is already in the new state: this is a duplicate.
    AlreadyMade,
    /// The row is in another state, and stays there.
    Refused {
        /// The state found.
        found: String,
    },
    /// No row has this id.
    NoRow,
}

impl States {
    /// Names the table (`orders` or `shop.orders`), the column of its id, and the column of its
    /// state.
    pub const fn new(table: &'static str, id: &'static str, state: &'static str) -> Self {
        Self {
            rows: Rows::new(table, id),
            state,
        }
    }

    /// Moves a row from one of several states to another.
    ///
    /// Waits for other transactions that hold the row, as long as the database does. A row that is
    /// in the state `to` gives [`AlreadyMade`](Transition::AlreadyMade), whether `from` has it or
    /// not. If the row reaches a state more than once, use [`Versions`].
    ///
    /// If the future is dropped, the row may or may not be changed: roll back.
    ///
    /// # Errors
    ///
    /// If a name is not a plain identifier, or the database fails.
    pub async fn advance<DB: Supported, I: Id<DB>>(
        &self,
        tx: &mut Transaction<'_, DB>,
        id: I,
        from: &[&str],
        to: &str,
    ) -> Result<Transition, Error> {
        let Names { table, id: key } = self.rows.names::<DB>()?;
        let state = column::<DB>(self.state)?;
        let [first, second] = DB::PARAMETERS;
        let [text, _] = DB::TYPES;
        self.rows.write_lock(tx).await?;
        let select: Arc<str> = format!(
            "SELECT CAST({state} AS {text}) FROM {table} WHERE {key} = {first}{}",
            DB::LOCK
        )
        .into();
        Ok(match DB::text(&mut **tx, &select, id.clone()).await? {
            None => Transition::NoRow,
            Some(found) if found == to => Transition::AlreadyMade,
            Some(found) if from.contains(&found.as_str()) => {
                let update: Arc<str> =
                    format!("UPDATE {table} SET {state} = {first} WHERE {key} = {second}").into();
                DB::write(&mut **tx, &update, to, id).await?;
                Transition::Made
            }
            Some(found) => Transition::Refused { found },
        })
    }

    /// Locks up to `limit` rows that are in a state, in the order of their ids, and returns the
    /// ids. Rows that another transaction holds are skipped.
    ///
    /// This is how several workers share a table of jobs: each takes rows, does the work, moves the
    /// rows on by [`advance`](Self::advance), and commits. If a worker dies, the database rolls
    /// back, and the rows are there for the next worker. An index on (state, id) keeps MySQL from
    /// locking other rows.
    ///
    /// SQLite has one writer: there, a second worker waits for the first one.
    ///
    /// If the future is dropped, the rows may be locked until the transaction ends.
    ///
    /// # Errors
    ///
    /// If a name is not a plain identifier, or the database fails.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "postgres")]
    /// # async fn example(tx: &mut idem_sqlx::sqlx::PgTransaction<'_>) -> Result<(), idem_sqlx::sqlx::Error> {
    /// use idem_sqlx::guard::States;
    ///
    /// const JOBS: States = States::new("jobs", "id", "state");
    ///
    /// for job in JOBS.take::<_, i64>(tx, "new", 10).await? {
    ///     // .. the work ..
    ///     let _made = JOBS.advance(tx, job, &["new"], "done").await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn take<DB: Supported, I: Id<DB> + for<'r> Decode<'r, DB> + Unpin>(
        &self,
        tx: &mut Transaction<'_, DB>,
        state: &str,
        limit: u32,
    ) -> Result<Vec<I>, Error> {
        let Names { table, id } = self.rows.names::<DB>()?;
        let column = column::<DB>(self.state)?;
        let [first, _] = DB::PARAMETERS;
        let skip = if DB::LOCK.is_empty() {
            ""
        } else {
            " SKIP LOCKED"
        };
        self.rows.write_lock(tx).await?;
        let select: Arc<str> = format!(
            "SELECT {id} FROM {table} WHERE {column} = {first} ORDER BY {id} LIMIT {limit}{}{skip}",
            DB::LOCK
        )
        .into();
        DB::ids(&mut **tx, &select, state).await
    }
}

/// A table whose rows have a version, and the key of the call that made it.
///
/// The version is an integer that counts up. The key is a column of text that may be `NULL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    rows: Rows,
    version: &'static str,
    made_by: &'static str,
}

/// The answer to the next version of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a version may be stale"]
pub enum Version {
    /// The row has this version now. It stays locked until the transaction ends.
    Made(i64),
    /// This is a duplicate: the same key has made this version out of the same earlier one.
    AlreadyMade(i64),
    /// The row has changed since it was read.
    Stale {
        /// The version found.
        found: i64,
    },
    /// No row has this id.
    NoRow,
}

impl Versions {
    /// Names the table, the column of its id, the column of the version, and the column of the key
    /// that made that version.
    pub const fn new(
        table: &'static str,
        id: &'static str,
        version: &'static str,
        made_by: &'static str,
    ) -> Self {
        Self {
            rows: Rows::new(table, id),
            version,
            made_by,
        }
    }

    /// Raises a row's version by one, if it is the version that was read.
    ///
    /// After [`Made`](Version::Made), update the other columns in the same transaction: the row is
    /// locked. `key` names the edit: an Idempotency-Key, or `idem::current()`'s `child_key`. A
    /// retry with the same key and the same `read` gets [`AlreadyMade`](Version::AlreadyMade),
    /// until another version is made.
    ///
    /// Waits for other transactions that hold the row, as long as the database does. If the future
    /// is dropped, the row may or may not be changed: roll back.
    ///
    /// # Errors
    ///
    /// If a name is not a plain identifier, or the database fails.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")]
    /// # mod example {
    /// use idem_sqlx::guard::{Version, Versions};
    /// use idem_sqlx::sqlx::{self, SqlitePool};
    ///
    /// const NOTES: Versions = Versions::new("notes", "id", "version", "edited_by");
    ///
    /// pub async fn edit(
    ///     pool: &SqlitePool,
    ///     read: i64,
    ///     key: &str,
    ///     text: &str,
    /// ) -> Result<Version, sqlx::Error> {
    ///     let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    ///     let version = NOTES.advance(&mut tx, 7_i64, read, key).await?;
    ///     if let Version::Made(_) = version {
    ///         sqlx::query("UPDATE notes SET text = ? WHERE id = 7")
    ///             .bind(text)
    ///             .execute(&mut *tx)
    ///             .await?;
    ///     }
    ///     tx.commit().await?;
    ///     Ok(version)
    /// }
    /// # }
    /// ```
    pub async fn advance<DB: Supported, I: Id<DB>>(
        &self,
        tx: &mut Transaction<'_, DB>,
        id: I,
        read: i64,
        key: &str,
    ) -> Result<Version, Error> {
        let Names { table, id: row } = self.rows.names::<DB>()?;
        let version = column::<DB>(self.version)?;
        let made_by = column::<DB>(self.made_by)?;
        let [first, second] = DB::PARAMETERS;
        let [text, number] = DB::TYPES;
        self.rows.write_lock(tx).await?;
        let select: Arc<str> = format!(
            "SELECT CAST({version} AS {number}), CAST({made_by} AS {text}) FROM {table} WHERE \
             {row} = {first}{}",
            DB::LOCK
        )
        .into();
        let Some((found, last)) = DB::number(&mut **tx, &select, id.clone()).await? else {
            return Ok(Version::NoRow);
        };
        if found == read {
            let update: Arc<str> = format!(
                "UPDATE {table} SET {version} = {version} + 1, {made_by} = {first} WHERE \
                    {row} = {second}"
            )
            .into();
            DB::write(&mut **tx, &update, key, id).await?;
            return Ok(Version::Made(found.saturating_add(1)));
        }
        let is_mine = last.as_deref() == Some(key) && read.checked_add(1) == Some(found);
        Ok(if is_mine {
            Version::AlreadyMade(found)
        } else {
            Version::Stale { found }
        })
    }
}

/// A table whose rows have an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    table: &'static str,
    id: &'static str,
}

/// The answer to a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the lock may be another transaction's"]
pub enum Locked {
    /// The row is locked until the transaction ends.
    Held,
    /// Another transaction held it for as long as this one waited. The transaction stays usable.
    Busy,
    /// No row has this id.
    NoRow,
}

impl Rows {
    /// Names the table (`accounts` or `bank.accounts`) and the column of its id.
    pub const fn new(table: &'static str, id: &'static str) -> Self {
        Self { table, id }
    }

    /// Locks a row until the transaction ends (`SELECT .. FOR UPDATE`; on PostgreSQL `FOR NO KEY
    /// UPDATE`).
    ///
    /// Waits for other transactions that hold it for at most `wait`. MySQL and MariaDB count whole
    /// seconds, rounded up; zero does not wait. SQLite has one writer: there, this locks the file.
    ///
    /// If the future is dropped, roll the transaction back.
    ///
    /// # Errors
    ///
    /// If a name is not a plain identifier, or the database fails.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "postgres")]
    /// # async fn example(tx: &mut idem_sqlx::sqlx::PgTransaction<'_>) -> Result<(), idem_sqlx::sqlx::Error> {
    /// use std::time::Duration;
    ///
    /// use idem_sqlx::guard::{Locked, Rows};
    ///
    /// const ACCOUNTS: Rows = Rows::new("accounts", "id");
    ///
    /// match ACCOUNTS.lock(tx, 7_i64, Duration::from_secs(1)).await? {
    ///     Locked::Held => { /* read it, and write it */ }
    ///     Locked::Busy => { /* another worker has it: try again later */ }
    ///     Locked::NoRow => { /* no such account */ }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lock<DB: Supported, I: Id<DB>>(
        &self,
        tx: &mut Transaction<'_, DB>,
        id: I,
        wait: Duration,
    ) -> Result<Locked, Error> {
        let Names { table, id: row } = self.names::<DB>()?;
        let [first, _] = DB::PARAMETERS;
        let [_, number] = DB::TYPES;
        let now = if wait.is_zero() && !DB::LOCK.is_empty() {
            " NOWAIT"
        } else {
            ""
        };
        let select: Arc<str> = format!(
            "SELECT CAST(1 AS {number}) FROM {table} WHERE {row} = {first}{}{now}",
            DB::LOCK
        )
        .into();
        let file = DB::LOCK.is_empty().then(|| write_nothing(&table, &row));
        Ok(
            match DB::number_within(&mut **tx, file.as_ref(), &select, id, wait).await? {
                Waited::Over(Some(_)) => Locked::Held,
                Waited::Over(None) => Locked::NoRow,
                Waited::Locked => Locked::Busy,
            },
        )
    }

    /// Becomes the writer of the file, in a database without row locks.
    async fn write_lock<DB: Supported>(&self, tx: &mut Transaction<'_, DB>) -> Result<(), Error> {
        if !DB::LOCK.is_empty() {
            return Ok(());
        }
        let Names { table, id } = self.names::<DB>()?;
        DB::execute(&mut **tx, &write_nothing(&table, &id)).await
    }

    fn names<DB: Supported>(&self) -> Result<Names, Error> {
        let table = Table::parse(self.table).ok_or_else(|| invalid(self.table))?;
        Ok(Names {
            table: table.quoted(DB::MARK),
            id: column::<DB>(self.id)?,
        })
    }
}

/// The names as statements say them.
struct Names {
    table: String,
    id: String,
}

/// A statement that changes no row, and needs the lock of the file all the same.
fn write_nothing(table: &str, column: &str) -> Arc<str> {
    format!("UPDATE {table} SET {column} = {column} WHERE 0").into()
}

fn column<DB: Supported>(name: &'static str) -> Result<String, Error> {
    let mark = DB::MARK;
    if is_identifier(name) {
        Ok(format!("{mark}{name}{mark}"))
    } else {
        Err(invalid(name))
    }
}

fn invalid(name: &str) -> Error {
    let message = format!(
        "`{name}` cannot name a table or a column here; use letters, digits and `_`, at most 63, \
         not beginning with a digit"
    );
    Error::Configuration(message.into())
}
