//! The store of a worker process, and the way around it that mutants take.

use std::time::Duration;

use anyhow::{Context as _, Result};
use idem_core::record::{Commit, RecordId};
use idem_core::wire;
use idem_redis::RedisStore;
use idem_redis::redis::aio::ConnectionManager;
use idem_redis::redis::{Client, RedisResult, cmd};
use idem_sqlx::sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use idem_sqlx::sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use idem_sqlx::sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use idem_sqlx::sqlx::{self, ConnectOptions as _, Executor as _, MySqlPool, PgPool, SqlitePool};
use idem_sqlx::{MySqlStore, PostgresStore, SqliteStore};

/// The time for a replica to acknowledge, with servers that fail over.
const REPLICA: Duration = Duration::from_millis(100);
/// For as long as the store may be down when a process is started.
const CONNECT: u32 = 200;
/// As many as the store's own pool has.
const CONNECTIONS: u32 = 10;

/// How long a step of the store may take: well below a lease, as the documentation says.
fn time_limit(lease: Duration) -> Duration {
    lease * 3 / 8
}

/// A store, and its pool.
pub(super) enum Place {
    Redis(RedisStore),
    Postgres(PostgresStore, PgPool),
    MySql(MySqlStore, MySqlPool),
    Sqlite(SqliteStore, SqlitePool),
}

impl Place {
    /// Opens the store that a URL names. It may be down just now, by a fault of the run.
    pub(super) async fn open(url: &str, lease: Duration, replicas: u32) -> Result<Self> {
        let limit = time_limit(lease);
        Ok(match url.split("://").next() {
            Some("postgres") => {
                let pool = postgres(url, limit)?;
                Self::Postgres(
                    PostgresStore::builder(pool.clone())
                        .time_limit(limit)
                        .build(),
                    pool,
                )
            }
            Some("mysql") => {
                let pool = mysql(url, limit)?;
                Self::MySql(
                    MySqlStore::builder(pool.clone()).time_limit(limit).build(),
                    pool,
                )
            }
            Some("sqlite") => {
                let pool = sqlite(url, limit)?;
                Self::Sqlite(
                    SqliteStore::builder(pool.clone()).time_limit(limit).build(),
                    pool,
                )
            }
            _ => Self::Redis(redis(url, limit, replicas).await?),
        })
    }

    /// A way around the store, to the same records.
    pub(super) async fn raw(&self, url: &str) -> Result<Raw> {
        Ok(match self {
            Self::Redis(_) => Raw::Redis(Client::open(url)?.get_connection_manager().await?),
            Self::Postgres(_, pool) => Raw::Postgres(pool.clone()),
            Self::MySql(_, pool) => Raw::MySql(pool.clone()),
            Self::Sqlite(_, pool) => Raw::Sqlite(pool.clone()),
        })
    }
}

async fn redis(url: &str, limit: Duration, replicas: u32) -> Result<RedisStore> {
    let mut tries = CONNECT;
    loop {
        tries -= 1;
        let builder = RedisStore::builder().url(url).time_limit(limit);
        let builder = if replicas == 0 {
            builder
        } else {
            builder.replicas(replicas, REPLICA)
        };
        match builder.connect().await {
            Ok(store) => return Ok(store),
            Err(error) if tries == 0 => {
                return Err(error).context("a process of workers cannot connect");
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

// The pools are those of `connect`, but for the limit.

fn postgres(url: &str, limit: Duration) -> Result<PgPool> {
    let of_server = format!("{}ms", limit.as_millis());
    let options: PgConnectOptions = url.parse()?;
    let options = options.options([
        ("statement_timeout", &of_server),
        ("lock_timeout", &of_server),
    ]);
    let pool = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .acquire_timeout(limit);
    Ok(pool
        .test_before_acquire(false)
        .connect_lazy_with(options.disable_statement_logging()))
}

fn mysql(url: &str, limit: Duration) -> Result<MySqlPool> {
    let options: MySqlConnectOptions = url.parse()?;
    let pool = MySqlPoolOptions::new()
        .max_connections(CONNECTIONS)
        .acquire_timeout(limit);
    let pool = pool.test_before_acquire(false).after_connect(|on, _| {
        Box::pin(async move {
            on.execute("SET SESSION innodb_lock_wait_timeout = 1")
                .await
                .map(drop)
        })
    });
    Ok(pool.connect_lazy_with(options.disable_statement_logging()))
}

fn sqlite(url: &str, limit: Duration) -> Result<SqlitePool> {
    let options: SqliteConnectOptions = url.parse()?;
    let options = options
        .busy_timeout(limit * 3 / 4)
        .journal_mode(SqliteJournalMode::Wal);
    let options = options
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging();
    let pool = SqlitePoolOptions::new()
        .max_connections(4)
        .acquire_timeout(limit);
    Ok(pool.test_before_acquire(false).connect_lazy_with(options))
}

/// Writes that no owner is asked about. As with the real stores, a failure does not reach the
/// caller.
pub(super) enum Raw {
    Redis(ConnectionManager),
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

/// Carries a statement out, with these values.
macro_rules! carry_out {
    ($pool:expr, $text:expr, $($value:expr),*) => {
        drop(sqlx::query($text)$(.bind($value))*.execute($pool).await)
    };
}

impl Raw {
    /// Removes a record of any owner.
    pub(super) async fn erase(&self, id: &RecordId) {
        let operation = id.operation();
        let key = id.key();
        match self {
            Self::Redis(manager) => {
                let erased: RedisResult<()> = cmd("DEL")
                    .arg(name(id))
                    .query_async(&mut manager.clone())
                    .await;
                drop(erased);
            }
            Self::Postgres(pool) => {
                carry_out!(
                    pool,
                    "DELETE FROM idem_records WHERE operation = $1 AND key = $2",
                    operation,
                    key
                );
            }
            Self::MySql(pool) => {
                carry_out!(
                    pool,
                    "DELETE FROM idem_records WHERE operation = ? AND `key` = ?",
                    operation,
                    key
                );
            }
            Self::Sqlite(pool) => {
                carry_out!(
                    pool,
                    "DELETE FROM idem_records WHERE operation = ?1 AND key = ?2",
                    operation,
                    key
                );
            }
        }
    }

    /// Writes an outcome over the record of any owner.
    pub(super) async fn overwrite(&self, commit: &Commit) {
        let operation = commit.id.operation();
        let key = commit.id.key();
        let Some(outcome) = &commit.outcome else {
            return;
        };
        let codec = outcome.codec.as_str();
        let payload = outcome.payload.to_vec();
        match self {
            Self::Redis(manager) => {
                let expiry = u64::try_from(commit.ttl.as_millis()).unwrap_or(u64::MAX);
                let mut set = cmd("SET");
                set.arg(name(&commit.id))
                    .arg(wire::encode(&commit.record()))
                    .arg("PX")
                    .arg(expiry);
                let written: RedisResult<()> = set.query_async(&mut manager.clone()).await;
                drop(written);
            }
            Self::Postgres(pool) => carry_out!(
                pool,
                "UPDATE idem_records SET state = 'committed', owner = NULL, took_over = NULL, \
                 is_error = $3, codec = $4, outcome = $5 WHERE operation = $1 AND key = $2",
                operation,
                key,
                outcome.is_error,
                codec,
                payload
            ),
            Self::MySql(pool) => carry_out!(
                pool,
                "UPDATE idem_records SET state = 'committed', owner = NULL, took_over = NULL, \
                 is_error = ?, codec = ?, outcome = ? WHERE operation = ? AND `key` = ?",
                outcome.is_error,
                codec,
                payload,
                operation,
                key
            ),
            Self::Sqlite(pool) => carry_out!(
                pool,
                "UPDATE idem_records SET state = 'committed', owner = NULL, took_over = NULL, \
                 is_error = ?3, codec = ?4, outcome = ?5 WHERE operation = ?1 AND key = ?2",
                operation,
                key,
                outcome.is_error,
                codec,
                payload
            ),
        }
    }
}

/// The key of a record in Redis.
fn name(id: &RecordId) -> String {
    format!("idem:{}", id.as_str())
}
