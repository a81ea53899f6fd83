//! MySQL and MariaDB.

mod errors;
mod in_text;
mod statements;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use idem_core::store::admin::KeyRange;
use idem_core::store::record::{Owner, RecordId};

use self::sqlx::error::DatabaseError;
use self::sqlx::mysql::{MySqlArguments, MySqlConnectOptions, MySqlConnection};
use self::sqlx::query::Query;
use self::sqlx::{Executor as _, MySql, Row as _};
use self::statements::{Statements, within};
use super::super::super::{sql, sqlx};
use super::statements::WriteStatements;
use super::{Dialect, ErrorClass, Guard, InsertResult, LeaseRenewal, Position, Schema};
use crate::row::{Columns, LeaseColumns, Row};
use crate::table::Table;

/// The dialect.
pub(crate) struct Mysql {
    statements: Statements,
    /// Whether this is for a caller's transaction, where each statement is one message of text. If
    /// a future is dropped while its statement is being prepared, sqlx takes the rest of that
    /// answer for the answer to the next statement.
    in_text: bool,
    /// How long claims wait for locks, where the connection does not say.
    lock_limit: Option<Duration>,
    /// Whether the server has refused `SET STATEMENT`, as MySQL does.
    lacks_set_statement: AtomicBool,
    /// Whether it has refused `HANDLER`, as MySQL and MariaDB do not.
    lacks_handler: AtomicBool,
}

/// The last column of `Row`, which each row has.
const REVISION: usize = 14;
/// The column after those of `Row`: whether the session reads what is not committed.
const READS_UNCOMMITTED: usize = 15;

impl Dialect for Mysql {
    type Db = MySql;

    const NAME: &'static str = "MySQL";

    /// The lock of the insert that found the row stays until the transaction ends, whatever is
    /// rolled back.
    const HOLDS_UP_OWNERS: bool = true;

    fn new(table: &Table, lock_limit: Option<Duration>) -> Self {
        Self {
            statements: Statements::new(table),
            in_text: false,
            lock_limit,
            lacks_set_statement: AtomicBool::new(false),
            lacks_handler: AtomicBool::new(false),
        }
    }

    fn within_transactions(table: &Table) -> Self {
        Self {
            statements: Statements::within_transactions(table),
            in_text: true,
            ..Self::new(table, None)
        }
    }

    fn create_statements(table: &Table) -> String {
        statements::create_statements(table)
    }

    fn place(options: &MySqlConnectOptions) -> String {
        format!(
            "{}:{}/{}",
            options.get_host(),
            options.get_port(),
            options.get_database().unwrap_or_default()
        )
    }

    async fn insert(
        &self,
        on: &mut MySqlConnection,
        id: &RecordId,
        columns: &Columns,
    ) -> Result<Option<Row>, sqlx::Error> {
        // Several statements in one message, which only the text protocol takes: so a claim and a
        // replay are one round trip each.
        let text = self.statements.insert(id, columns, self.lock_limit);
        match on.fetch_all(sqlx::raw_sql(sql(&text))).await {
            Ok(rows) => rows.first().map(|row| super::read_row!(row)).transpose(),
            Err(error) => Err(self.undo(on, error).await),
        }
    }

    async fn insert_new(
        &self,
        on: &mut MySqlConnection,
        id: &RecordId,
        columns: &Columns,
    ) -> Result<bool, sqlx::Error> {
        let text = self.statements.insert_new(id, columns, self.lock_limit);
        let Err(mut error) = on.execute(sqlx::raw_sql(sql(&text))).await else {
            return Ok(true);
        };
        if self.lock_limit.is_some() {
            error = self.undo(on, error).await;
        }
        match error {
            sqlx::Error::Database(error) if error.is_unique_violation() => Ok(false),
            error => Err(error),
        }
    }

    async fn insert_all(
        &self,
        on: &mut MySqlConnection,
        rows: &[(RecordId, Columns)],
    ) -> Result<HashSet<i64>, sqlx::Error> {
        let text = self.statements.insert_all(rows);
        let standing = on.fetch_all(sqlx::raw_sql(sql(&text))).await?;
        standing.iter().map(|row| row.try_get(0)).collect()
    }

    async fn read(
        &self,
        on: &mut MySqlConnection,
        id: &RecordId,
    ) -> Result<Option<Row>, sqlx::Error> {
        if self.in_text {
            self.set(on, id, None, "").await?;
            let text = self.statements.read_now(id);
            return on
                .fetch_optional(sqlx::raw_sql(sql(&text)))
                .await?
                .map(|row| super::read_row!(row))
                .transpose();
        }
        let query = sqlx::query(sql(&self.statements.read))
            .bind(id.operation().as_bytes())
            .bind(id.key().as_bytes());
        let row = query.fetch_one(&mut *on).await?;
        if row.try_get::<Option<i64>, _>(REVISION)?.is_none() {
            return Ok(None);
        }
        self.committed(on, id, row).await
    }

    super::listing::reads!(
        |text| text.as_bytes(),
        |at| at.sweep_at,
        at.sweep_at,
        at.operation.as_bytes(),
        at.key.as_bytes()
    );

    async fn ids(
        &self,
        on: &mut MySqlConnection,
        after: &Position,
        limit: i64,
    ) -> Result<Vec<(String, String)>, sqlx::Error> {
        let query = sqlx::query(sql(&self.statements.listing.ids));
        let operation = after.operation.as_bytes();
        let query = query
            .bind(operation)
            .bind(after.key.as_bytes())
            .bind(operation)
            .bind(limit);
        let rows = query.fetch_all(on).await?;
        rows.iter()
            .map(|row| Ok((row.try_get_unchecked(0)?, row.try_get_unchecked(1)?)))
            .collect()
    }

    async fn put(
        &self,
        on: &mut MySqlConnection,
        id: &RecordId,
        guard: Guard,
        columns: &Columns,
    ) -> Result<bool, sqlx::Error> {
        if self.in_text {
            if let Guard::Claimed(owner) = guard {
                let put = self.put_claimed(on, id, owner, columns, None).await?;
                return Ok(put.is_some());
            }
            self.set(on, id, columns.outcome.payload.as_deref(), "")
                .await?;
            return self.put_set(on, id, guard, columns).await;
        }
        if let (Some(limit), Guard::Revision(_) | Guard::RanOut(_)) = (self.lock_limit, guard) {
            let text = self.statements.put_limited(id, guard, columns, limit);
            return match on.execute(sqlx::raw_sql(sql(&text))).await {
                Ok(done) => Ok(done.rows_affected() > 0),
                Err(error) => Err(self.undo(on, error).await),
            };
        }
        let WriteStatements {
            put_owned,
            put_as_read,
            ..
        } = &self.statements.writes;
        let query = match guard {
            Guard::Owner(owner) | Guard::Claimed(owner) => {
                bind(sqlx::query(sql(put_owned)), id, columns).bind(owner.to_bytes().to_vec())
            }
            Guard::Revision(revision) => bind(sqlx::query(sql(put_as_read)), id, columns)
                .bind(revision)
                .bind(false),
            Guard::RanOut(revision) => bind(sqlx::query(sql(put_as_read)), id, columns)
                .bind(revision)
                .bind(true),
        };
        Ok(query.execute(on).await?.rows_affected() > 0)
    }

    async fn put_and_look(
        &self,
        on: &mut MySqlConnection,
        id: &RecordId,
        owner: Owner,
        columns: &Columns,
        beside: &RecordId,
    ) -> Result<Option<bool>, sqlx::Error> {
        self.put_claimed(on, id, owner, columns, Some(beside)).await
    }

    async fn remove(
        &self,
        on: &mut MySqlConnection,
        id: &RecordId,
        revision: i64,
    ) -> Result<bool, sqlx::Error> {
        let query = sqlx::query(sql(&self.statements.writes.remove))
            .bind(id.operation().as_bytes())
            .bind(id.key().as_bytes())
            .bind(revision);
        Ok(query.execute(on).await?.rows_affected() > 0)
    }

    async fn renew(
        &self,
        on: &mut MySqlConnection,
        leases: &[&LeaseRenewal],
    ) -> Result<Vec<bool>, sqlx::Error> {
        let revision = fastrand::i64(..);
        let text = self.statements.renew(leases, revision);
        let renewed = on.execute(sqlx::raw_sql(sql(&text))).await?.rows_affected();
        if usize::try_from(renewed).is_ok_and(|renewed| renewed == leases.len()) {
            return Ok(vec![true; leases.len()]);
        }
        let text = self.statements.renewed(leases, revision);
        let rows = on.fetch_all(sqlx::raw_sql(sql(&text))).await?;
        let owners = rows
            .iter()
            .map(|row| row.try_get(0))
            .collect::<Result<HashSet<Vec<u8>>, _>>()?;
        Ok(leases
            .iter()
            .map(|lease| owners.contains(lease.owner.to_bytes().as_slice()))
            .collect())
    }

    async fn sweep(&self, on: &mut MySqlConnection, limit: i64) -> Result<u64, sqlx::Error> {
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

    async fn time(&self, on: &mut MySqlConnection) -> Result<Duration, sqlx::Error> {
        // As text: in a caller's transaction, nothing is prepared.
        let row = on
            .fetch_one(sqlx::raw_sql(sql(&self.statements.upkeep.time)))
            .await?;
        Ok(Duration::from_micros(
            row.try_get::<i64, _>(0)?.unsigned_abs(),
        ))
    }

    async fn schema(&self, on: &mut MySqlConnection) -> Result<Schema, sqlx::Error> {
        let row = on
            .fetch_one(sqlx::raw_sql(sql(&self.statements.table.schema)))
            .await?;
        let Some(mark) = row.try_get_unchecked(0)? else {
            return Ok(Schema::Missing);
        };
        Ok(Schema::Marked {
            mark,
            schema: row.try_get_unchecked(1)?,
        })
    }

    async fn create(&self, on: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        on.execute(sqlx::raw_sql(sql(&self.statements.table.create)))
            .await
            .map(drop)
    }

    async fn find(
        &self,
        on: &mut MySqlConnection,
        id: &RecordId,
    ) -> Result<Option<Row>, sqlx::Error> {
        let text = self.statements.find(id);
        on.fetch_optional(sqlx::raw_sql(sql(&text)))
            .await?
            .map(|row| super::read_row!(row))
            .transpose()
    }

    fn naming(&self, id: &RecordId) -> Option<String> {
        Some(self.statements.name_key(id))
    }

    fn inserts_at_once(&self) -> bool {
        !self.lacks_set_statement.load(Ordering::Relaxed)
    }

    async fn insert_at_once(
        &self,
        on: &mut MySqlConnection,
        id: &RecordId,
        columns: &Columns,
    ) -> Result<Option<bool>, sqlx::Error> {
        self.insert_unless_locked(on, id, columns).await
    }

    async fn name_key(&self, on: &mut MySqlConnection, id: &RecordId) -> Result<(), sqlx::Error> {
        self.set(on, id, None, "").await.map(drop)
    }

    async fn insert_within(
        &self,
        on: &mut MySqlConnection,
        id: &RecordId,
        columns: &Columns,
        wait: Duration,
    ) -> Result<InsertResult, sqlx::Error> {
        let text = self.statements.insert_within(id, columns, wait);
        self.lock_and_read(on, &text).await
    }

    async fn read_within(
        &self,
        on: &mut MySqlConnection,
        id: &RecordId,
        wait: Duration,
    ) -> Result<InsertResult, sqlx::Error> {
        let text = self.statements.read_within(id, wait);
        self.lock_and_read(on, &text).await
    }

    async fn limit_locks(on: &mut MySqlConnection, wait: Duration) -> Result<(), sqlx::Error> {
        on.execute(sqlx::raw_sql(sql(&Arc::from(within::limit(wait)))))
            .await
            .map(drop)
    }

    async fn restore_lock_limit(on: &mut MySqlConnection, _: i64) -> Result<(), sqlx::Error> {
        on.execute(sqlx::raw_sql(within::UNLIMIT)).await.map(drop)
    }

    async fn force_rollback(on: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        Self::restart_lost(on, "SELECT 1").await
    }

    async fn restart(on: &mut MySqlConnection, statement: &str) -> Result<(), sqlx::Error> {
        let text = format!("ROLLBACK; START TRANSACTION; {statement}");
        on.execute(sqlx::raw_sql(sql(&Arc::from(text))))
            .await
            .map(drop)
    }

    async fn restart_lost(on: &mut MySqlConnection, statement: &str) -> Result<(), sqlx::Error> {
        let text = format!("ROLLBACK; START TRANSACTION READ ONLY; {statement}");
        on.execute(sqlx::raw_sql(sql(&Arc::from(text))))
            .await
            .map(drop)
    }

    async fn roll_back_to(on: &mut MySqlConnection, savepoint: &str) -> Result<(), sqlx::Error> {
        let text = format!("ROLLBACK TO SAVEPOINT {savepoint}");
        on.execute(sqlx::raw_sql(sql(&Arc::from(text))))
            .await
            .map(drop)
    }

    #[cfg(test)]
    fn rewrite(&mut self, change: &dyn Fn(&str) -> String) {
        self.statements.rewrite(change);
    }

    fn is_statement_timeout(error: &dyn DatabaseError) -> bool {
        matches!(errors::number(error), 1969 | 3024)
    }

    fn is_lock_timeout(error: &dyn DatabaseError) -> bool {
        matches!(errors::number(error), 1205 | 3572)
    }

    fn classify(error: &dyn DatabaseError) -> ErrorClass {
        errors::classify(error)
    }
}

/// Binds the values of a row, in the order of the statements.
fn bind<'q>(
    query: Query<'q, MySql, MySqlArguments>,
    id: &'q RecordId,
    columns: &'q Columns,
) -> Query<'q, MySql, MySqlArguments> {
    let Columns {
        expires_in, fade, ..
    } = *columns;
    let LeaseColumns { hold, length, .. } = columns.lease;
    let [earliest, latest, anew] = columns.sweeps();
    // In this order: a column that was set has its new value further on in the statement. The
    // times that the others are computed from come last.
    query
        .bind(columns.state.as_bytes())
        .bind(columns.attempt)
        .bind(columns.lease.owner.map(|owner| owner.to_vec()))
        .bind(columns.lease.origin.map(str::as_bytes))
        .bind(expires_in)
        .bind(hold)
        .bind(length)
        .bind(expires_in)
        .bind(fade)
        .bind(expires_in)
        .bind(expires_in)
        .bind(hold)
        .bind(earliest)
        .bind(latest)
        .bind(anew)
        .bind(columns.fingerprint.as_deref().map(str::as_bytes))
        .bind(columns.outcome.is_error)
        .bind(columns.outcome.codec.as_deref().map(str::as_bytes))
        .bind(columns.outcome.payload.as_deref())
        .bind(columns.questions)
        .bind(columns.took_over.as_deref().map(str::as_bytes))
        .bind(columns.revision)
        .bind(id.operation().as_bytes())
        .bind(id.key().as_bytes())
}
