//! PostgreSQL.

mod errors;
mod listen;
mod proxy;
mod statements;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use idem_core::StoreError;
use idem_core::store::record::RecordId;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::sqlx::error::DatabaseError;
use self::sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use self::sqlx::query::Query;
use self::sqlx::{ConnectOptions as _, Executor as _, Postgres, Row as _};
use self::statements::Statements;
use super::super::{sql, sqlx};
use super::core::{Boxed, Core, Settings};
use super::dialect::{Among, Dialect, Guard, Inserted, Judgement, Kept, Position, Schema, Seen};
use super::fault;
use super::opening::OPENING;
use crate::columns::{Columns, Row};
use crate::table::Table;
use crate::waiters::LocalWaiters;

/// How many connections the store's own pool has at most.
const CONNECTIONS: u32 = 10;
/// The channel of a step that wakes nobody. The queue of `NOTIFY` may be full, and its error is the
/// one for an outcome that is too large: so such a step is tried once without.
const NO_CHANNEL: &str = "";

super::store::store! {
    /// Keeps records in a table of PostgreSQL 12 or newer.
    ///
    /// Cheap to clone; clones share the pool. Steps run on the tokio runtime in which the store was
    /// created. A step may take 900 ms, unless the [builder](Self::builder) is given another limit.
    /// In a burst it first waits for its turn. A step that failed for the lack of an answer, or
    /// whose future was dropped, may have been carried out.
    ///
    /// Waiters are woken by `NOTIFY`, through one more connection for each store; it is opened by
    /// the first waiter. While that is down, and behind a proxy that does not carry `LISTEN`, they
    /// look again after 5 ms, then ever more seldom, up to 250 ms.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use idem_sqlx::PostgresStore;
    ///
    /// # async fn example() -> Result<(), idem_core::StoreError> {
    /// let store = PostgresStore::connect("postgres://user@host/shop").await?;
    /// store.migrate().await?;
    /// # fn is_a_store(_: impl idem_core::Store) {}
    /// # is_a_store(store);
    /// # Ok(())
    /// # }
    /// ```
    PostgresStore,
    /// A [`PostgresStore`] with other settings.
    PostgresStoreBuilder,
    Postgresql, Postgres, PgPool, "../schema/postgres.sql"
}

impl PostgresStore {
    /// Connects to the database that a URL names (`postgres://user:password@host:port/database`),
    /// with a pool of its own of up to 10 connections.
    ///
    /// Does not create the table: [`migrate`](Self::migrate) does. Takes at most 2 s. Must be
    /// called in a tokio runtime. When the future is dropped, the connection is closed.
    ///
    /// # Errors
    ///
    /// If the URL is malformed, the database is unreachable, or the user is refused. No error shows
    /// the password.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, StoreError> {
        Self::connecting(url.as_ref()).await
    }

    fn connecting(url: &str) -> Boxed<'_, Self> {
        Box::pin(Self::connect_to(url))
    }

    async fn connect_to(url: &str) -> Result<Self, StoreError> {
        let options: PgConnectOptions =
            fault::options(url, &["postgres", "postgresql"], "postgres://user:password@host:port/database")?;
        let place = Postgresql::place(&options);
        // Its statements are not for logs: those of MySQL have keys in them.
        let options = options.disable_statement_logging();
        let (options, is_limited) = proxy::connect(&options, &place).await?;
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(OPENING)
            .test_before_acquire(false)
            .connect_lazy_with(options);
        Ok(Self(Core::new(pool, &Settings { is_limited, ..Settings::of_own_pool() })))
    }
}

/// The dialect.
pub(super) struct Postgresql {
    statements: Statements,
    channel: String,
    /// Whether its steps are in a caller's transaction, which goes on after no error.
    in_transaction: bool,
}

impl Dialect for Postgresql {
    type Db = Postgres;

    const NAME: &'static str = "PostgreSQL";

    fn new(table: &Table, lock_limit: Option<Duration>) -> Self {
        let statements = Statements::new(table, lock_limit);
        Self { statements, channel: statements::channel(table), in_transaction: false }
    }

    fn within_transactions(table: &Table) -> Self {
        let statements = Statements::within_transactions(table);
        Self { statements, channel: statements::channel(table), in_transaction: true }
    }

    fn place(options: &PgConnectOptions) -> String {
        format!("{}:{}/{}", options.get_host(), options.get_port(), options.get_database().unwrap_or_default())
    }

    async fn insert(
        &self,
        on: &mut PgConnection,
        id: &RecordId,
        columns: &Columns,
    ) -> Result<Option<Row>, sqlx::Error> {
        let query = bind(sqlx::query(sql(&self.statements.insert)), id, columns);
        query.fetch_optional(on).await?.map(|row| super::read_row!(row)).transpose()
    }

    async fn insert_all(
        &self,
        on: &mut PgConnection,
        rows: &[(RecordId, Columns)],
    ) -> Result<HashSet<i64>, sqlx::Error> {
        let written = sqlx::query(sql(&self.statements.insert_all))
            .bind(rows.iter().map(|(id, _)| id.operation().to_owned()).collect::<Vec<_>>())
            .bind(rows.iter().map(|(id, _)| id.key().to_owned()).collect::<Vec<_>>())
            .bind(rows.iter().map(|(_, columns)| columns.state.to_owned()).collect::<Vec<_>>())
            .bind(rows.iter().map(|(_, columns)| columns.expires_in).collect::<Vec<_>>())
            .bind(rows.iter().map(|(_, columns)| columns.fade).collect::<Vec<_>>())
            .bind(rows.iter().map(|(_, columns)| columns.revision).collect::<Vec<_>>())
            .fetch_all(on)
            .await?;
        written.iter().map(|row| row.try_get(0)).collect()
    }

    async fn read(&self, on: &mut PgConnection, id: &RecordId) -> Result<Option<Row>, sqlx::Error> {
        let query = sqlx::query(sql(&self.statements.read)).bind(id.operation()).bind(id.key());
        query.fetch_optional(on).await?.map(|row| super::read_row!(row)).transpose()
    }

    async fn window(
        &self,
        on: &mut PgConnection,
        among: &Among,
        after: &Position,
        limit: i64,
    ) -> Result<Vec<Seen>, sqlx::Error> {
        let statement = match among {
            Among::All => &self.statements.window,
            Among::InFlight => &self.statements.window_in_flight,
            Among::Few(_) => &self.statements.window_few,
        };
        let query = sqlx::query(sql(statement));
        let query = query.bind(after.expires_at);
        let query = query.bind(after.operation.as_str()).bind(after.key.as_str());
        let query = match among {
            Among::Few(operation) => query.bind(limit).bind(&**operation),
            Among::All | Among::InFlight => query.bind(limit),
        };
        super::read_window!(query.fetch_all(on).await?)
    }

    async fn has_more(&self, on: &mut PgConnection, operation: &str, rows: i64) -> Result<bool, sqlx::Error> {
        let query = sqlx::query(sql(&self.statements.has_more)).bind(operation).bind(rows);
        Ok(query.fetch_optional(on).await?.is_some())
    }

    async fn ids(
        &self,
        on: &mut PgConnection,
        after: &Position,
        limit: i64,
    ) -> Result<Vec<(String, String)>, sqlx::Error> {
        let query = sqlx::query_as(sql(&self.statements.ids));
        let query = query.bind(after.operation.as_str()).bind(after.key.as_str()).bind(limit);
        query.fetch_all(on).await
    }

    async fn put(
        &self,
        on: &mut PgConnection,
        id: &RecordId,
        guard: Guard,
        columns: &Columns,
    ) -> Result<bool, sqlx::Error> {
        match self.put_and_notify(on, id, guard, columns, &self.channel).await {
            Err(error) if !self.in_transaction && errors::is_limit_exceeded(&error) => {
                self.put_and_notify(on, id, guard, columns, NO_CHANNEL).await
            }
            put => put,
        }
    }

    async fn remove(&self, on: &mut PgConnection, id: &RecordId, revision: i64) -> Result<bool, sqlx::Error> {
        match self.remove_and_notify(on, id, revision, &self.channel).await {
            Err(error) if !self.in_transaction && errors::is_limit_exceeded(&error) => {
                self.remove_and_notify(on, id, revision, NO_CHANNEL).await
            }
            removed => removed,
        }
    }

    async fn renew(&self, on: &mut PgConnection, leases: &[&Kept]) -> Result<Vec<bool>, sqlx::Error> {
        let owners: Vec<Vec<u8>> = leases.iter().map(|lease| lease.owner.to_bytes().to_vec()).collect();
        let rows = sqlx::query(sql(&self.statements.renew))
            .bind(leases.iter().map(|lease| lease.id.operation().to_owned()).collect::<Vec<_>>())
            .bind(leases.iter().map(|lease| lease.id.key().to_owned()).collect::<Vec<_>>())
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
        let expired = sqlx::query(sql(&self.statements.sweep)).bind(limit).execute(&mut *on).await?.rows_affected();
        let query = sqlx::query(sql(&self.statements.sweep_outcomes)).bind(limit).bind(fastrand::i64(..));
        Ok(expired.max(query.execute(on).await?.rows_affected()))
    }

    async fn time(&self, on: &mut PgConnection) -> Result<Duration, sqlx::Error> {
        let row = sqlx::query(sql(&self.statements.time)).fetch_one(on).await?;
        Ok(Duration::from_micros(row.try_get::<i64, _>(0)?.unsigned_abs()))
    }

    async fn schema(&self, on: &mut PgConnection) -> Result<Schema, sqlx::Error> {
        let query = sqlx::query(sql(&self.statements.schema)).bind(self.statements.table.as_str());
        let row = query.fetch_one(on).await?;
        if !row.try_get::<bool, _>(0)? {
            return Ok(Schema::Missing);
        }
        Ok(Schema::Marked(row.try_get::<Option<String>, _>(1)?.unwrap_or_default()))
    }

    async fn create(&self, on: &mut PgConnection) -> Result<(), sqlx::Error> {
        // The lock, because two that create one table at the same time can meet in the catalog. It
        // ends with the transaction, which several statements in one message are.
        on.execute(sqlx::raw_sql(sql(&self.statements.create))).await.map(drop)
    }

    fn judge(error: &dyn DatabaseError) -> Judgement {
        errors::judge(error)
    }

    async fn insert_within(
        &self,
        on: &mut PgConnection,
        id: &RecordId,
        columns: &Columns,
        wait: Duration,
    ) -> Result<Inserted, sqlx::Error> {
        let limit = statements::milliseconds(wait);
        let query = bind(sqlx::query(sql(&self.statements.insert_within)), id, columns).bind(limit);
        if let Some(row) = query.fetch_optional(&mut *on).await? {
            return Ok(Inserted::Stands(Box::new(super::read_row!(row)?)));
        }
        // Only a row that was read restored the limit.
        Self::unlimit_locks(on, 0).await?;
        Ok(Inserted::Gone)
    }

    async fn limit_locks(on: &mut PgConnection, wait: Duration) -> Result<(), sqlx::Error> {
        on.execute(sqlx::raw_sql(sql(&Arc::from(statements::limit(wait))))).await.map(drop)
    }

    async fn unlimit_locks(on: &mut PgConnection, _: i64) -> Result<(), sqlx::Error> {
        on.execute(sqlx::raw_sql(sql(&Arc::from(statements::unlimit())))).await.map(drop)
    }

    async fn doom(on: &mut PgConnection) -> Result<(), sqlx::Error> {
        on.execute(sqlx::raw_sql("ROLLBACK; BEGIN")).await?;
        // An aborted transaction takes no statement, and its COMMIT is a ROLLBACK.
        let raise = "DO $$ BEGIN RAISE EXCEPTION 'idem: this transaction must not be committed'; END $$";
        match on.execute(sqlx::raw_sql(raise)).await {
            Ok(_) | Err(sqlx::Error::Database(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn restart(on: &mut PgConnection, statement: &str) -> Result<(), sqlx::Error> {
        let text = format!("ROLLBACK; BEGIN; {statement}");
        on.execute(sqlx::raw_sql(sql(&Arc::from(text)))).await.map(drop)
    }

    async fn roll_back_to(on: &mut PgConnection, savepoint: &str) -> Result<(), sqlx::Error> {
        let text = format!("ROLLBACK TO SAVEPOINT {savepoint}");
        on.execute(sqlx::raw_sql(sql(&Arc::from(text)))).await.map(drop)
    }

    #[cfg(test)]
    fn rewrite(&mut self, change: &dyn Fn(&str) -> String) {
        self.statements.rewrite(change);
    }

    fn is_cut_off(error: &dyn DatabaseError) -> bool {
        error.code().as_deref() == Some("57014")
    }

    fn is_locked(error: &dyn DatabaseError) -> bool {
        error.code().as_deref() == Some("55P03")
    }

    async fn mark(&self, on: &mut PgConnection, id: &RecordId, attempt: i64) -> Result<(), sqlx::Error> {
        let query = sqlx::query(sql(&self.statements.mark)).bind(id.operation()).bind(id.key()).bind(attempt);
        query.execute(on).await.map(drop)
    }

    fn listen(&self, pool: &PgPool, waiters: Arc<LocalWaiters>) -> Option<(JoinHandle<()>, watch::Receiver<bool>)> {
        Some(listen::start((*pool.connect_options()).clone(), self.channel.clone(), waiters))
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
        let Statements { put_owned, put_as_read, .. } = &self.statements;
        let query = match guard {
            Guard::Owner(owner) => bind(sqlx::query(sql(put_owned)), id, columns).bind(owner.to_bytes().to_vec()),
            Guard::Revision(revision) => bind(sqlx::query(sql(put_as_read)), id, columns).bind(revision).bind(false),
            Guard::RanOut(revision) => bind(sqlx::query(sql(put_as_read)), id, columns).bind(revision).bind(true),
        };
        Ok(query.bind(channel).bind(id.as_str()).fetch_optional(on).await?.is_some())
    }

    async fn remove_and_notify(
        &self,
        on: &mut PgConnection,
        id: &RecordId,
        revision: i64,
        channel: &str,
    ) -> Result<bool, sqlx::Error> {
        let query = sqlx::query(sql(&self.statements.remove)).bind(id.operation()).bind(id.key()).bind(revision);
        Ok(query.bind(channel).bind(id.as_str()).fetch_optional(on).await?.is_some())
    }
}

/// `$1` to `$15`.
fn bind<'q>(
    query: Query<'q, Postgres, PgArguments>,
    id: &'q RecordId,
    columns: &'q Columns,
) -> Query<'q, Postgres, PgArguments> {
    query
        .bind(id.operation())
        .bind(id.key())
        .bind(columns.state)
        .bind(columns.attempt)
        .bind(columns.owner.map(|owner| owner.to_vec()))
        .bind(columns.origin)
        .bind(columns.hold)
        .bind(columns.lease)
        .bind(columns.expires_in)
        .bind(columns.fade)
        .bind(columns.fingerprint.as_deref())
        .bind(columns.is_error)
        .bind(columns.codec.as_deref())
        .bind(columns.outcome.as_deref())
        .bind(columns.questions)
        .bind(columns.took_over.as_deref())
        .bind(columns.revision)
}
