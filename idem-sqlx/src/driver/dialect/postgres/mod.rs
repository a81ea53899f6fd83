//! PostgreSQL.

pub(crate) mod errors;
mod listen;
pub(crate) mod statements;
mod undropped;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use idem_core::store::admin::KeyRange;
use idem_core::store::record::{Owner, RecordId};

use self::sqlx::error::DatabaseError;
use self::sqlx::postgres::{
    PgArguments, PgConnectOptions, PgConnection, PgPool, PgTransactionManager,
};
use self::sqlx::query::Query;
use self::sqlx::{Executor as _, Postgres, Row as _};
use self::statements::Statements;
use self::undropped::Undropped;
use super::super::super::{TransactionManager as _, sql, sqlx};
use super::statements::WriteStatements;
use super::{
    Dialect, ErrorClass, Guard, InsertResult, LeaseRenewal, MessageTask, Position, Schema,
};
use crate::row::{Columns, Row};
use crate::table::Table;
use crate::waiters::LocalWaiters;

/// The channel of a step that wakes no waiter. If the queue of `NOTIFY` is full, the error is the
/// same as for an outcome that is too large. So such a step is tried once more without a message.
const NO_CHANNEL: &str = "";

/// The dialect.
pub(crate) struct Postgresql {
    statements: Statements,
    channel: String,
    /// Whether its steps are in a caller's transaction, which every error ends.
    in_transaction: bool,
}

impl Dialect for Postgresql {
    type Db = Postgres;

    const NAME: &'static str = "PostgreSQL";

    fn new(table: &Table, lock_limit: Option<Duration>) -> Self {
        let statements = Statements::new(table, lock_limit);
        Self {
            statements,
            channel: statements::channel(table),
            in_transaction: false,
        }
    }

    fn within_transactions(table: &Table) -> Self {
        let statements = Statements::within_transactions(table);
        Self {
            statements,
            channel: statements::channel(table),
            in_transaction: true,
        }
    }

    fn create_statements(table: &Table) -> String {
        statements::create_statements(table)
    }

    fn place(options: &PgConnectOptions) -> String {
        format!(
            "{}:{}/{}",
            options.get_host(),
            options.get_port(),
            options.get_database().unwrap_or_default()
        )
    }

    async fn insert(
        &self,
        on: &mut PgConnection,
        id: &RecordId,
        columns: &Columns,
    ) -> Result<Option<Row>, sqlx::Error> {
        let query = bind(
            sqlx::query(sql(&self.statements.inserts.insert)),
            id,
            columns,
        );
        query
            .fetch_optional(on)
            .await?
            .map(|row| super::read_row!(row))
            .transpose()
    }

    async fn insert_new(
        &self,
        on: &mut PgConnection,
        id: &RecordId,
        columns: &Columns,
    ) -> Result<bool, sqlx::Error> {
        let query = sqlx::query(sql(&self.statements.inserts.insert_new));
        let Some(row) = bind(query, id, columns).fetch_optional(on).await? else {
            return Ok(false);
        };
        Ok(row.try_get::<i64, _>("written")? == columns.revision)
    }

    async fn insert_all(
        &self,
        on: &mut PgConnection,
        rows: &[(RecordId, Columns)],
    ) -> Result<HashSet<i64>, sqlx::Error> {
        let written = sqlx::query(sql(&self.statements.inserts.insert_all))
            .bind(
                rows.iter()
                    .map(|(id, _)| id.operation().as_bytes().to_vec())
                    .collect::<Vec<_>>(),
            )
            .bind(
                rows.iter()
                    .map(|(id, _)| id.key().as_bytes().to_vec())
                    .collect::<Vec<_>>(),
            )
            .bind(
                rows.iter()
                    .map(|(_, columns)| columns.state.to_owned())
                    .collect::<Vec<_>>(),
            )
            .bind(
                rows.iter()
                    .map(|(_, columns)| columns.expires_in)
                    .collect::<Vec<_>>(),
            )
            .bind(
                rows.iter()
                    .map(|(_, columns)| columns.fade)
                    .collect::<Vec<_>>(),
            )
            .bind(
                rows.iter()
                    .map(|(_, columns)| columns.revision)
                    .collect::<Vec<_>>(),
            )
            .fetch_all(on)
            .await?;
        written.iter().map(|row| row.try_get(0)).collect()
    }

    async fn read(&self, on: &mut PgConnection, id: &RecordId) -> Result<Option<Row>, sqlx::Error> {
        read_by(&self.statements.read, on, id).await
    }

    async fn find(&self, on: &mut PgConnection, id: &RecordId) -> Result<Option<Row>, sqlx::Error> {
        read_by(&self.statements.find, on, id).await
    }

    super::listing::reads!(
        |text| text.as_bytes(),
        |at| at.sweep_at,
        at.operation.as_bytes(),
        at.key.as_bytes()
    );

    async fn ids(
        &self,
        on: &mut PgConnection,
        after: &Position,
        limit: i64,
    ) -> Result<Vec<(String, String)>, sqlx::Error> {
        let query = sqlx::query(sql(&self.statements.listing.ids));
        let query = query
            .bind(after.operation.as_bytes())
            .bind(after.key.as_bytes())
            .bind(limit);
        let row = query.fetch_one(on).await?;
        let texts = |index| -> Result<Vec<String>, sqlx::Error> {
            let texts: Option<Vec<Vec<u8>>> = row.try_get(index)?;
            let texts = texts.into_iter().flatten().map(String::from_utf8);
            let decoded = texts.collect::<Result<_, _>>();
            decoded.map_err(|error| sqlx::Error::Decode(Box::new(error)))
        };
        Ok(texts(0)?.into_iter().zip(texts(1)?).collect())
    }

    async fn put(
        &self,
        on: &mut PgConnection,
        id: &RecordId,
        guard: Guard,
        columns: &Columns,
    ) -> Result<bool, sqlx::Error> {
        match self
            .put_and_notify(on, id, guard, columns, &self.channel)
            .await
        {
            Err(error) if !self.in_transaction && errors::is_limit_exceeded(&error) => {
                self.put_and_notify(on, id, guard, columns, NO_CHANNEL)
                    .await
            }
            put => put,
        }
    }

    async fn put_and_look(
        &self,
        on: &mut PgConnection,
        id: &RecordId,
        owner: Owner,
        columns: &Columns,
        beside: &RecordId,
    ) -> Result<Option<bool>, sqlx::Error> {
        let query = sqlx::query(sql(&self.statements.put_and_look));
        let query = bind(query, id, columns)
            .bind(owner.to_bytes().to_vec())
            .bind(self.channel.as_str())
            .bind(id.as_str().as_bytes())
            .bind(beside.operation().as_bytes())
            .bind(beside.key().as_bytes());
        let row = query.fetch_optional(on).await?;
        row.map(|row| row.try_get("has_beside")).transpose()
    }

    async fn remove(
        &self,
        on: &mut PgConnection,
        id: &RecordId,
        revision: i64,
    ) -> Result<bool, sqlx::Error> {
        match self
            .remove_and_notify(on, id, revision, &self.channel)
            .await
        {
            Err(error) if !self.in_transaction && errors::is_limit_exceeded(&error) => {
                self.remove_and_notify(on, id, revision, NO_CHANNEL).await
            }
            removed => removed,
        }
    }

    async fn renew(
        &self,
        on: &mut PgConnection,
        leases: &[&LeaseRenewal],
    ) -> Result<Vec<bool>, sqlx::Error> {
        let owners: Vec<Vec<u8>> = leases
            .iter()
            .map(|lease| lease.owner.to_bytes().to_vec())
            .collect();
        let rows = sqlx::query(sql(&self.statements.renew))
            .bind(
                leases
                    .iter()
                    .map(|lease| lease.id.operation().as_bytes().to_vec())
                    .collect::<Vec<_>>(),
            )
            .bind(
                leases
                    .iter()
                    .map(|lease| lease.id.key().as_bytes().to_vec())
                    .collect::<Vec<_>>(),
            )
            .bind(owners.clone())
            .bind(leases.iter().map(|lease| lease.hold).collect::<Vec<_>>())
            .bind(fastrand::i64(..))
            .fetch_all(on)
            .await?;
        let mut renewed = HashSet::with_capacity(rows.len());
        for row in rows {
            renewed.insert(row.try_get::<Vec<u8>, _>(0)?);
        }
        Ok(owners.iter().map(|owner| renewed.contains(owner)).collect())
    }

    async fn sweep(&self, on: &mut PgConnection, limit: i64) -> Result<u64, sqlx::Error> {
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

    async fn time(&self, on: &mut PgConnection) -> Result<Duration, sqlx::Error> {
        let row = sqlx::query(sql(&self.statements.upkeep.time))
            .fetch_one(on)
            .await?;
        Ok(Duration::from_micros(
            row.try_get::<i64, _>(0)?.unsigned_abs(),
        ))
    }

    async fn schema(&self, on: &mut PgConnection) -> Result<Schema, sqlx::Error> {
        let query = sqlx::query(sql(&self.statements.table.schema))
            .bind(self.statements.table_name.as_str());
        let row = query.fetch_one(on).await?;
        if !row.try_get::<bool, _>(2)? {
            return Ok(Schema::Unusable(statements::CONVERTS_TEXT));
        }
        if !row.try_get::<bool, _>(0)? {
            return Ok(Schema::Missing);
        }
        Ok(Schema::Marked {
            mark: row.try_get::<Option<String>, _>(1)?.unwrap_or_default(),
            schema: row.try_get_unchecked(3)?,
        })
    }

    async fn create(&self, on: &mut PgConnection) -> Result<(), sqlx::Error> {
        // The lock, because two that create one table at the same time can meet in the catalog. It
        // ends with the transaction, which several statements in one message are.
        on.execute(sqlx::raw_sql(sql(&self.statements.table.create)))
            .await
            .map(drop)
    }

    fn classify(error: &dyn DatabaseError) -> ErrorClass {
        errors::classify(error)
    }

    async fn insert_new_within(
        &self,
        on: &mut PgConnection,
        id: &RecordId,
        columns: &Columns,
        wait: Duration,
    ) -> Result<bool, sqlx::Error> {
        let query = sqlx::query(sql(&self.statements.inserts.insert_new_within));
        let query = bind(query, id, columns).bind(statements::milliseconds(wait));
        if let Some(row) = query.fetch_optional(&mut *on).await? {
            return Ok(row.try_get::<i64, _>("written")? == columns.revision);
        }
        // Only a row that was written restored the limit.
        Self::restore_lock_limit(on, 0).await?;
        Ok(false)
    }

    async fn insert_within(
        &self,
        on: &mut PgConnection,
        id: &RecordId,
        columns: &Columns,
        wait: Duration,
    ) -> Result<InsertResult, sqlx::Error> {
        let limit = statements::milliseconds(wait);
        let query = bind(
            sqlx::query(sql(&self.statements.inserts.insert_within)),
            id,
            columns,
        )
        .bind(limit);
        if let Some(row) = query.fetch_optional(&mut *on).await? {
            return Ok(InsertResult::Row(Box::new(super::read_row!(row)?)));
        }
        // Only a row that was read restored the limit.
        Self::restore_lock_limit(on, 0).await?;
        Ok(InsertResult::NotVisible)
    }

    async fn limit_locks(on: &mut PgConnection, wait: Duration) -> Result<(), sqlx::Error> {
        on.execute(sqlx::raw_sql(sql(&Arc::from(statements::limit(wait)))))
            .await
            .map(drop)
    }

    async fn restore_lock_limit(on: &mut PgConnection, _: i64) -> Result<(), sqlx::Error> {
        on.execute(sqlx::raw_sql(sql(&Arc::from(statements::unlimit()))))
            .await
            .map(drop)
    }

    async fn savepoint(on: &mut PgConnection) -> Result<(), sqlx::Error> {
        Undropped::new(PgTransactionManager::begin(on, None)).await
    }

    async fn force_rollback(on: &mut PgConnection) -> Result<(), sqlx::Error> {
        on.execute(sqlx::raw_sql("ROLLBACK; BEGIN")).await?;
        // An aborted transaction takes no statement, and its COMMIT is a ROLLBACK.
        let raise =
            "DO $$ BEGIN RAISE EXCEPTION 'idem: this transaction must not be committed'; END $$";
        match on.execute(sqlx::raw_sql(raise)).await {
            Ok(_) | Err(sqlx::Error::Database(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn restart(on: &mut PgConnection, statement: &str) -> Result<(), sqlx::Error> {
        let text = format!("ROLLBACK; BEGIN; {statement}");
        on.execute(sqlx::raw_sql(sql(&Arc::from(text))))
            .await
            .map(drop)
    }

    async fn roll_back_to(on: &mut PgConnection, savepoint: &str) -> Result<(), sqlx::Error> {
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
        error.code().as_deref() == Some("57014")
    }

    fn is_lock_timeout(error: &dyn DatabaseError) -> bool {
        error.code().as_deref() == Some("55P03")
    }

    async fn mark(
        &self,
        on: &mut PgConnection,
        id: &RecordId,
        attempt: i64,
    ) -> Result<(), sqlx::Error> {
        let query = sqlx::query(sql(&self.statements.mark))
            .bind(id.operation().as_bytes())
            .bind(id.key().as_bytes())
            .bind(attempt);
        query.execute(on).await.map(drop)
    }

    fn listen(&self, pool: &PgPool, waiters: Arc<LocalWaiters>) -> Option<MessageTask> {
        Some(listen::start(
            (*pool.connect_options()).clone(),
            self.channel.clone(),
            waiters,
        ))
    }
}

impl Postgresql {
    async fn put_and_notify(
        &self,
        on: &mut PgConnection,
        id: &RecordId,
        guard: Guard,
        columns: &Columns,
        channel: &str,
    ) -> Result<bool, sqlx::Error> {
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
        Ok(query
            .bind(channel)
            .bind(id.as_str().as_bytes())
            .fetch_optional(on)
            .await?
            .is_some())
    }

    async fn remove_and_notify(
        &self,
        on: &mut PgConnection,
        id: &RecordId,
        revision: i64,
        channel: &str,
    ) -> Result<bool, sqlx::Error> {
        let query = sqlx::query(sql(&self.statements.writes.remove))
            .bind(id.operation().as_bytes())
            .bind(id.key().as_bytes())
            .bind(revision);
        Ok(query
            .bind(channel)
            .bind(id.as_str().as_bytes())
            .fetch_optional(on)
            .await?
            .is_some())
    }
}

async fn read_by(
    statement: &Arc<str>,
    on: &mut PgConnection,
    id: &RecordId,
) -> Result<Option<Row>, sqlx::Error> {
    let query = sqlx::query(sql(statement))
        .bind(id.operation().as_bytes())
        .bind(id.key().as_bytes());
    query
        .fetch_optional(on)
        .await?
        .map(|row| super::read_row!(row))
        .transpose()
}

/// `$1` to `$15`.
fn bind<'q>(
    query: Query<'q, Postgres, PgArguments>,
    id: &'q RecordId,
    columns: &'q Columns,
) -> Query<'q, Postgres, PgArguments> {
    query
        .bind(id.operation().as_bytes())
        .bind(id.key().as_bytes())
        .bind(columns.state)
        .bind(columns.attempt)
        .bind(columns.lease.owner.map(|owner| owner.to_vec()))
        .bind(columns.lease.origin)
        .bind(columns.lease.hold)
        .bind(columns.lease.length)
        .bind(columns.expires_in)
        .bind(columns.fade)
        .bind(columns.fingerprint.as_deref())
        .bind(columns.outcome.is_error)
        .bind(columns.outcome.codec.as_deref())
        .bind(columns.outcome.payload.as_deref())
        .bind(columns.questions)
        .bind(columns.took_over.as_deref())
        .bind(columns.revision)
}
