//! SQLite.

mod statements;

use std::collections::HashSet;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use idem_core::StoreErrorKind;
use idem_core::store::admin::KeyRange;
use idem_core::store::record::RecordId;

use self::sqlx::error::DatabaseError;
use self::sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteRow, SqliteTransactionManager,
};
use self::sqlx::{Executor as _, Row as _, Sqlite};
use self::statements::Statements;
use super::super::super::{TransactionManager as _, fixed, sql, sqlx};
use super::lock_limit::LockLimit;
use super::statements::WriteStatements;
use super::{Dialect, ErrorClass, Guard, InsertResult, LeaseRenewal, Position, Schema};
use crate::row::{Columns, Row, millis};
use crate::table::Table;

/// Makes the `COMMIT` of a transaction fail, because a row refers to another one that is not there.
/// SQLite has no transaction that only reads. A setting that forbids writes would stay with the
/// connection; this table goes with the transaction. Without `foreign_keys`, which is on by default
/// in sqlx, nothing is checked.
const CANNOT_COMMIT: &str = "CREATE TEMP TABLE IF NOT EXISTS idem_uncommittable \
    (id INTEGER PRIMARY KEY, \
    other INTEGER REFERENCES idem_uncommittable DEFERRABLE INITIALLY DEFERRED); \
    INSERT OR IGNORE INTO temp.idem_uncommittable VALUES (1, 2)";

/// `?1` to `?17`.
macro_rules! bind {
    ($query:expr, $id:expr, $columns:expr) => {
        $query
            .bind($id.operation())
            .bind($id.key())
            .bind($columns.state)
            .bind($columns.attempt)
            .bind($columns.lease.owner.map(|owner| owner.to_vec()))
            .bind($columns.lease.origin)
            .bind($columns.lease.hold)
            .bind($columns.lease.length)
            .bind($columns.expires_in)
            .bind($columns.fade)
            .bind($columns.fingerprint.as_deref())
            .bind($columns.outcome.is_error)
            .bind($columns.outcome.codec.as_deref())
            .bind($columns.outcome.payload.as_deref())
            .bind($columns.questions)
            .bind($columns.took_over.as_deref())
            .bind($columns.revision)
    };
}

/// Binds the leases to renew, as the rows of `given`.
macro_rules! bind_leases {
    ($query:expr, $leases:expr) => {{
        let mut query = $query.persistent(false);
        for lease in $leases {
            query = query
                .bind(lease.id.operation())
                .bind(lease.id.key())
                .bind(lease.owner.to_bytes().to_vec())
                .bind(lease.hold);
        }
        query
    }};
}

/// Binds tokens to issue, as the rows of `given`.
macro_rules! bind_issues {
    ($query:expr, $rows:expr) => {{
        let mut query = $query.persistent(false);
        for (id, columns) in $rows {
            query = query
                .bind(id.operation())
                .bind(id.key())
                .bind(columns.state)
                .bind(columns.expires_in)
                .bind(columns.fade)
                .bind(columns.revision);
        }
        query
    }};
}

/// The dialect.
pub(crate) struct SqliteFile {
    statements: Statements,
    name: String,
    /// The schema of an attached file.
    attached: Option<String>,
    in_transaction: bool,
}

/// The column after those of `Row`: whether the connection sees what is not committed, if it shares
/// its cache.
const READS_UNCOMMITTED: usize = 15;

const NOT_ATOMIC: &str = "the table is in an attached file, and SQLite commits the two files of a \
    transaction one after the other, because one of them has no rollback journal (WAL has none): \
    after a crash, rows could be there without their record; keep the table in the file of the \
    connection (`main`), or set `PRAGMA journal_mode = DELETE` for both files";

impl Dialect for SqliteFile {
    type Db = Sqlite;

    const NAME: &'static str = "SQLite";

    /// A second writer would poll, and could be overtaken forever. In the queue, writers come first
    /// come first served.
    const ONE_WRITER: bool = true;
    const HOLDS_UP_OWNERS: bool = true;

    /// A transaction that has read could not write if another one has written since.
    const BEGIN_AS_WRITER: Option<&'static str> = Some("BEGIN IMMEDIATE");

    /// Its claims are carried out by threads of this process, each within its `busy_timeout`.
    fn new(table: &Table, _: Option<Duration>) -> Self {
        let attached = table
            .schema()
            .filter(|schema| !schema.eq_ignore_ascii_case("main"));
        Self {
            statements: Statements::new(table),
            name: table.name().to_owned(),
            attached: attached.map(str::to_owned),
            in_transaction: false,
        }
    }

    fn within_transactions(table: &Table) -> Self {
        Self {
            statements: Statements::within_transactions(table),
            in_transaction: true,
            ..Self::new(table, None)
        }
    }

    fn create_statements(table: &Table) -> String {
        statements::create_statements(table)
    }

    fn place(options: &SqliteConnectOptions) -> String {
        options.get_filename().display().to_string()
    }

    async fn insert(
        &self,
        on: &mut SqliteConnection,
        id: &RecordId,
        columns: &Columns,
    ) -> Result<Option<Row>, sqlx::Error> {
        let query = bind!(sqlx::query(sql(&self.statements.insert)), id, columns);
        let Some(read) = query.fetch_optional(&mut *on).await? else {
            return Ok(None);
        };
        let is_uncommitted = read.try_get(READS_UNCOMMITTED)?;
        let row = super::read_row!(read)?;
        // In a transaction, the insert has made it the writer.
        if is_uncommitted && !self.in_transaction && row.revision != columns.revision {
            return self.read(on, id).await;
        }
        Ok(Some(row))
    }

    async fn insert_new(
        &self,
        on: &mut SqliteConnection,
        id: &RecordId,
        columns: &Columns,
    ) -> Result<bool, sqlx::Error> {
        let query = bind!(sqlx::query(sql(&self.statements.insert_only)), id, columns);
        Ok(query.execute(on).await?.rows_affected() > 0)
    }

    async fn insert_all(
        &self,
        on: &mut SqliteConnection,
        rows: &[(RecordId, Columns)],
    ) -> Result<HashSet<i64>, sqlx::Error> {
        let text = self.statements.insert_all(rows.len());
        let inserting = bind_issues!(sqlx::query(sql(&text)), rows);
        let written = inserting.execute(&mut *on).await?.rows_affected();
        if usize::try_from(written).is_ok_and(|written| written == rows.len()) {
            return Ok(rows.iter().map(|(_, columns)| columns.revision).collect());
        }
        let text = self.statements.inserted(rows.len());
        let inserted = bind_issues!(sqlx::query(sql(&text)), rows);
        let inserted = inserted.fetch_all(on).await?;
        inserted.iter().map(|row| row.try_get(0)).collect()
    }

    async fn read(
        &self,
        on: &mut SqliteConnection,
        id: &RecordId,
    ) -> Result<Option<Row>, sqlx::Error> {
        let Some(read) = self.read_anything(on, id).await? else {
            return Ok(None);
        };
        if !read.try_get(READS_UNCOMMITTED)? {
            return super::read_row!(read).map(Some);
        }
        // One statement: a transaction would keep the writer until this runtime is driven again.
        let query = sqlx::query(sql(&self.statements.read_as_writer))
            .bind(id.operation())
            .bind(id.key());
        let rows = query.fetch_all(on).await?;
        rows.first().map(|row| super::read_row!(row)).transpose()
    }

    super::listing::reads!(
        |text| text,
        |at| at.sweep_at,
        at.operation.as_str(),
        at.key.as_str()
    );

    async fn ids(
        &self,
        on: &mut SqliteConnection,
        after: &Position,
        limit: i64,
    ) -> Result<Vec<(String, String)>, sqlx::Error> {
        let query = sqlx::query_as(sql(&self.statements.listing.ids));
        let query = query
            .bind(after.operation.as_str())
            .bind(after.key.as_str())
            .bind(limit);
        query.fetch_all(on).await
    }

    async fn put(
        &self,
        on: &mut SqliteConnection,
        id: &RecordId,
        guard: Guard,
        columns: &Columns,
    ) -> Result<bool, sqlx::Error> {
        let WriteStatements {
            put_owned,
            put_as_read,
            ..
        } = &self.statements.writes;
        let written = match guard {
            Guard::Owner(owner) | Guard::Claimed(owner) => {
                bind!(sqlx::query(sql(put_owned)), id, columns)
                    .bind(owner.to_bytes().to_vec())
                    .execute(on)
                    .await?
            }
            Guard::Revision(revision) => {
                bind!(sqlx::query(sql(put_as_read)), id, columns)
                    .bind(revision)
                    .bind(false)
                    .execute(on)
                    .await?
            }
            Guard::RanOut(revision) => {
                bind!(sqlx::query(sql(put_as_read)), id, columns)
                    .bind(revision)
                    .bind(true)
                    .execute(on)
                    .await?
            }
        };
        Ok(written.rows_affected() > 0)
    }

    async fn remove(
        &self,
        on: &mut SqliteConnection,
        id: &RecordId,
        revision: i64,
    ) -> Result<bool, sqlx::Error> {
        let query = sqlx::query(sql(&self.statements.writes.remove))
            .bind(id.operation())
            .bind(id.key())
            .bind(revision);
        Ok(query.execute(on).await?.rows_affected() > 0)
    }

    async fn renew(
        &self,
        on: &mut SqliteConnection,
        leases: &[&LeaseRenewal],
    ) -> Result<Vec<bool>, sqlx::Error> {
        // One statement: each of its own would wait for the disk, and a transaction would keep the
        // writer until this runtime is driven again.
        let revision = fastrand::i64(..);
        let text = self.statements.renew(leases.len());
        let renewing = bind_leases!(sqlx::query(sql(&text)), leases).bind(revision);
        let renewed = renewing.execute(&mut *on).await?.rows_affected();
        if usize::try_from(renewed).is_ok_and(|renewed| renewed == leases.len()) {
            return Ok(vec![true; leases.len()]);
        }
        let text = self.statements.renewed(leases.len());
        let renewed = bind_leases!(sqlx::query(sql(&text)), leases).bind(revision);
        let rows = renewed.fetch_all(on).await?;
        let owners = rows
            .iter()
            .map(|row| row.try_get(0))
            .collect::<Result<HashSet<Vec<u8>>, _>>()?;
        Ok(leases
            .iter()
            .map(|lease| owners.contains(lease.owner.to_bytes().as_slice()))
            .collect())
    }

    async fn sweep(&self, on: &mut SqliteConnection, limit: i64) -> Result<u64, sqlx::Error> {
        let mut swept = 0;
        for (statement, revision) in self.statements.upkeep.sweeps() {
            let query = sqlx::query(sql(statement)).bind(limit);
            let query = match revision {
                Some(revision) => query.bind(revision),
                None => query,
            };
            swept += query.execute(&mut *on).await?.rows_affected();
            if swept >= limit.unsigned_abs() {
                break;
            }
        }
        Ok(swept)
    }

    async fn time(&self, on: &mut SqliteConnection) -> Result<Duration, sqlx::Error> {
        let row = sqlx::query(sql(&self.statements.upkeep.time))
            .fetch_one(on)
            .await?;
        Ok(Duration::from_millis(
            row.try_get::<i64, _>(0)?.unsigned_abs(),
        ))
    }

    async fn schema(&self, on: &mut SqliteConnection) -> Result<Schema, sqlx::Error> {
        if let Some(attached) = &self.attached {
            for file in ["main", attached] {
                let text = Arc::from(format!("PRAGMA \"{file}\".journal_mode"));
                let mode: String = on.fetch_one(sqlx::raw_sql(sql(&text))).await?.try_get(0)?;
                if !matches!(mode.as_str(), "delete" | "truncate" | "persist") {
                    return Ok(Schema::Unusable(NOT_ATOMIC));
                }
            }
        }
        let query = sqlx::query(sql(&self.statements.table.schema)).bind(self.name.as_str());
        let Some(row) = query.fetch_optional(on).await? else {
            return Ok(Schema::Missing);
        };
        let text: String = row.try_get(0)?;
        Ok(Schema::Marked {
            mark: statements::mark(&text),
            schema: None,
        })
    }

    async fn create(&self, on: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        let created = on
            .execute(sqlx::raw_sql(sql(&self.statements.table.create)))
            .await
            .map(drop);
        if created.is_err() {
            // If the transaction failed to begin, there is nothing to roll back.
            let _ = on.execute(sqlx::raw_sql("ROLLBACK")).await;
        }
        created
    }

    async fn find(
        &self,
        on: &mut SqliteConnection,
        id: &RecordId,
    ) -> Result<Option<Row>, sqlx::Error> {
        let row = self.read_anything(on, id).await?;
        let Some(row) = row.filter(|row| matches!(row.try_get(READS_UNCOMMITTED), Ok(false)))
        else {
            return Ok(None);
        };
        // After this statement, sqlx only says whether a transaction is open.
        match SqliteTransactionManager::begin(on, Some(fixed("SELECT 1"))).await {
            Err(sqlx::Error::BeginFailed) => super::read_row!(row).map(Some),
            begun => {
                begun?;
                SqliteTransactionManager::rollback(on).await?;
                Ok(None)
            }
        }
    }

    async fn insert_new_within(
        &self,
        on: &mut SqliteConnection,
        id: &RecordId,
        columns: &Columns,
        wait: Duration,
    ) -> Result<bool, sqlx::Error> {
        let mut limited = LockLimit::<Self>::set(on, wait).await?;
        let inserted = self.insert_new(limited.connection(), id, columns).await;
        limited.restore().await?;
        inserted
    }

    async fn insert_within(
        &self,
        on: &mut SqliteConnection,
        id: &RecordId,
        columns: &Columns,
        wait: Duration,
    ) -> Result<InsertResult, sqlx::Error> {
        let mut limited = LockLimit::<Self>::set(on, wait).await?;
        let inserted = self.insert(limited.connection(), id, columns).await;
        limited.restore().await?;
        Ok(inserted?.map_or(InsertResult::NotVisible, |row| {
            InsertResult::Row(Box::new(row))
        }))
    }

    async fn lock_limit(on: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
        on.fetch_one(sqlx::raw_sql("PRAGMA busy_timeout"))
            .await?
            .try_get(0)
    }

    async fn limit_locks(on: &mut SqliteConnection, wait: Duration) -> Result<(), sqlx::Error> {
        // Rounded up: a wait that ends too early is taken for a deadlock.
        Self::restore_lock_limit_later(on, millis(wait).saturating_add(1));
        Ok(())
    }

    async fn restore_lock_limit(on: &mut SqliteConnection, before: i64) -> Result<(), sqlx::Error> {
        Self::restore_lock_limit_later(on, before);
        Ok(())
    }

    fn restore_lock_limit_later(on: &mut SqliteConnection, before: i64) {
        let text = Arc::from(busy_timeout(before));
        let mut setting = on.execute(sqlx::raw_sql(sql(&text)));
        // The first poll hands the statement to the connection's thread, which carries it out in
        // its turn. It does not fail, so nothing waits for the answer.
        let _ = setting
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
    }

    async fn force_rollback(on: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        Self::restart_lost(on, "SELECT 1").await
    }

    async fn restart(on: &mut SqliteConnection, statement: &str) -> Result<(), sqlx::Error> {
        // An error if the database has ended the transaction.
        let _ = on.execute(sqlx::raw_sql("ROLLBACK")).await;
        let text = format!("BEGIN; {statement}");
        on.execute(sqlx::raw_sql(sql(&Arc::from(text))))
            .await
            .map(drop)
    }

    async fn restart_lost(on: &mut SqliteConnection, statement: &str) -> Result<(), sqlx::Error> {
        Self::restart(on, &format!("{CANNOT_COMMIT}; {statement}")).await
    }

    async fn roll_back_to(on: &mut SqliteConnection, savepoint: &str) -> Result<(), sqlx::Error> {
        let text = format!("ROLLBACK TO SAVEPOINT {savepoint}");
        on.execute(sqlx::raw_sql(sql(&Arc::from(text))))
            .await
            .map(drop)
    }

    #[cfg(test)]
    fn rewrite(&mut self, change: &dyn Fn(&str) -> String) {
        self.statements.rewrite(change);
    }

    fn is_lock_timeout(error: &dyn DatabaseError) -> bool {
        // `SQLITE_BUSY`. Not `SQLITE_BUSY_SNAPSHOT`: that transaction can never write.
        error.code().is_some_and(|code| code == "5")
    }

    fn is_conflict(error: &dyn DatabaseError) -> bool {
        let code = error
            .code()
            .and_then(|code| code.parse::<i32>().ok())
            .unwrap_or_default();
        matches!(code & 0xff, 5 | 6)
    }

    fn classify(error: &dyn DatabaseError) -> ErrorClass {
        let code = error
            .code()
            .and_then(|code| code.parse::<i32>().ok())
            .unwrap_or_default();
        // Extended codes have the primary one in their lowest byte.
        match code & 0xff {
            // `SQLITE_ERROR`: a missing table, among others. `SQLITE_SCHEMA`.
            1 | 17 => ErrorClass::Schema,
            3 | 14 | 23 => ErrorClass::Refused(
                "; check the path, and the rights to the file and to its directory",
            ),
            // `SQLITE_INTERRUPT`, after the busy ones: the application has ended the statement.
            5 | 6 | 9 => ErrorClass::Timeout,
            // `SQLITE_READONLY_DBMOVED`: another file is in the place of the one that is open.
            8 if code == 1032 => {
                ErrorClass::Stale(StoreErrorKind::Unavailable, "; the file has been replaced")
            }
            8 => ErrorClass::Refused(
                "; the file, its directory or the database is read-only, or the connection has \
                 `query_only`",
            ),
            7 => ErrorClass::Unavailable("; there is not enough memory"),
            10 => ErrorClass::Unavailable("; reading or writing the file failed"),
            // `SQLITE_PROTOCOL`: others were first at the locks of the WAL, again and again.
            15 => ErrorClass::Unavailable("; too many connections open the file at once"),
            11 | 26 => ErrorClass::Refused("; the file is damaged, or no SQLite database"),
            13 => ErrorClass::Full,
            18 => ErrorClass::TooLarge("; the outcome is larger than SQLite's limit for a row"),
            _ => ErrorClass::Refused(""),
        }
    }
}

impl SqliteFile {
    /// Reads a row, which may not be committed.
    async fn read_anything(
        &self,
        on: &mut SqliteConnection,
        id: &RecordId,
    ) -> Result<Option<SqliteRow>, sqlx::Error> {
        let query = sqlx::query(sql(&self.statements.read))
            .bind(id.operation())
            .bind(id.key());
        query.fetch_optional(on).await
    }
}

/// Sets how long a statement waits for other connections, in milliseconds.
fn busy_timeout(millis: i64) -> String {
    format!(
        "PRAGMA busy_timeout = {}",
        millis.clamp(0, i64::from(i32::MAX))
    )
}
