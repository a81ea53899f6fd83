//! The floor: the store's statements for a claim, a commit and a replay, in a table like its own,
//! by sqlx alone.

use std::sync::{Arc, LazyLock};

use anyhow::{Context as _, Result, ensure};
use idem::sqlx::mysql::MySqlPoolOptions;
use idem::sqlx::postgres::PgPoolOptions;
use idem::sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use idem::sqlx::{self, AssertSqlSafe, MySqlPool, PgPool, Row as _, SqlitePool};
use idem::{MySqlStore, PostgresStore, SqliteStore};

/// A pool with the settings of the store's own.
#[derive(Clone)]
pub(crate) enum Floor {
    Postgres(PgPool),
    Mysql(MySqlPool),
    Sqlite(SqlitePool),
}

/// As many as the stores' own pools have.
const CONNECTIONS: u32 = 10;
const FILES: u32 = 4;

/// As the store reads a row.
const ROW: &str = "state, attempt, owner, origin, \
     round(extract(epoch FROM lease_until - leased_at) * 1000)::bigint, \
     round(extract(epoch FROM expires_at - leased_at) * 1000)::bigint, \
     ceil(extract(epoch FROM expires_at - statement_timestamp()) * 1000)::bigint, \
     round(extract(epoch FROM expires_at - valid_until) * 1000)::bigint, \
     fingerprint, is_error, codec, outcome, questions, took_over, revision";
const ROW_OF_MARIADB: &str = "state, attempt, owner, origin, \
     TIMESTAMPDIFF(MICROSECOND, leased_at, lease_until) DIV 1000, \
     TIMESTAMPDIFF(MICROSECOND, leased_at, expires_at) DIV 1000, \
     (TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at) + 999) DIV 1000, \
     TIMESTAMPDIFF(MICROSECOND, valid_until, expires_at) DIV 1000, \
     fingerprint, is_error, codec, outcome, questions, took_over, revision";
const ROW_OF_A_FILE: &str = "state, attempt, owner, origin, lease_until - leased_at, \
                             expires_at - leased_at, \
     expires_at - unixepoch() * 1000, expires_at - valid_until, \
     fingerprint, is_error, codec, outcome, questions, took_over, revision";
/// The columns of the owner and of the outcome in them.
pub(crate) const OWNER: usize = 2;
pub(crate) const OUTCOME: usize = 11;
const COLUMNS: &str = "state, attempt, owner, origin, leased_at, lease_until, valid_until, \
                       expires_at, \
     fingerprint, is_error, codec, outcome, questions, took_over, revision, sweep_at";

/// What is sent: the statements of the store for these calls, as one would write them by hand.
pub(crate) struct Texts {
    /// A claim that finds no record, and is expected to.
    insert: Arc<str>,
    /// One that finds a record, and is expected to.
    read: Arc<str>,
    /// Either, in a caller's transaction.
    pub(crate) claim: Arc<str>,
    pub(crate) commit: Arc<str>,
}

impl Texts {
    fn of_postgres() -> Self {
        let at = "operation = 'bench' AND key = $1";
        let insert = format!(
            "INSERT INTO floor (operation, key, {COLUMNS}) VALUES ('bench', $1, \
             'in_flight', 1, $2, 'nothing', \
             statement_timestamp(), statement_timestamp() + interval '30 s', NULL, \
             statement_timestamp() + interval '2 days', \
             NULL, false, NULL, NULL, 0, NULL, $3, \
             statement_timestamp() + interval '50 hours') ON CONFLICT (operation, key) DO NOTHING"
        );
        let read = format!("SELECT {ROW} FROM floor WHERE {at}");
        let claim = format!(
            "WITH written AS ({insert} RETURNING {ROW}) \
             SELECT * FROM written UNION ALL {read} AND NOT EXISTS (SELECT 1 FROM written)"
        );
        let commit = format!(
            "UPDATE floor SET state = 'committed', owner = NULL, origin = NULL, \
             leased_at = NULL, lease_until = NULL, \
             expires_at = statement_timestamp() + interval '1 day', codec = 'j', outcome = $4, \
             revision = $3 \
             WHERE {at} AND owner = $2 AND state || '' = 'in_flight' \
             AND expires_at - statement_timestamp() > interval '0' \
             RETURNING CASE WHEN waited THEN pg_notify('floor', $1)::text END"
        );
        Self {
            insert: insert.into(),
            read: read.into(),
            claim: claim.into(),
            commit: commit.into(),
        }
    }

    fn of_mariadb() -> Self {
        let insert = format!(
            "INSERT INTO floor (operation, `key`, {COLUMNS}) VALUES ('bench', '{{key}}', \
             'in_flight', 1, x'{{owner}}', 'nothing', \
             UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 30 SECOND, NULL, \
             UTC_TIMESTAMP(6) + INTERVAL 2 DAY, \
             NULL, false, NULL, NULL, 0, NULL, {{revision}}, \
             UTC_TIMESTAMP(6) + INTERVAL 50 HOUR)"
        );
        let read =
            format!("SELECT {ROW_OF_MARIADB} FROM floor WHERE operation = 'bench' AND `key` = ?");
        // No bench of transactions is on MariaDB.
        let claim = "";
        let commit = "UPDATE floor SET state = 'committed', owner = NULL, origin = NULL, \
                      leased_at = NULL, lease_until = NULL, \
             expires_at = UTC_TIMESTAMP(6) + INTERVAL 1 DAY, codec = 'j', outcome = ?, \
             revision = ? \
             WHERE operation = 'bench' AND `key` = ? AND owner = ? AND state = 'in_flight' \
             AND expires_at > UTC_TIMESTAMP(6)";
        Self {
            insert: insert.into(),
            read: read.into(),
            claim: claim.into(),
            commit: commit.into(),
        }
    }

    fn of_a_file() -> Self {
        let insert = format!(
            "INSERT INTO floor (operation, key, {COLUMNS}) VALUES ('bench', ?1, 'in_flight', 1, \
             ?2, 'nothing', unixepoch() * 1000, \
             unixepoch() * 1000 + 30000, NULL, unixepoch() * 1000 + 172800000, NULL, 0, NULL, \
             NULL, 0, NULL, ?3, unixepoch() * 1000 + 180000000) \
             ON CONFLICT (operation, key) DO NOTHING"
        );
        let read =
            format!("SELECT {ROW_OF_A_FILE} FROM floor WHERE operation = 'bench' AND key = ?1");
        let claim = format!("{insert}; {read}");
        let commit = "UPDATE floor SET state = 'committed', owner = NULL, origin = NULL, \
                      leased_at = NULL, lease_until = NULL, \
             expires_at = unixepoch() * 1000 + 86400000, codec = 'j', outcome = ?4, revision = ?3 \
             WHERE operation = 'bench' AND key = ?1 AND owner = ?2 AND state = 'in_flight' \
             AND expires_at > unixepoch() * 1000";
        Self {
            insert: insert.into(),
            read: read.into(),
            claim: claim.into(),
            commit: commit.into(),
        }
    }
}

pub(crate) static POSTGRES: LazyLock<Texts> = LazyLock::new(Texts::of_postgres);
static MARIADB: LazyLock<Texts> = LazyLock::new(Texts::of_mariadb);
pub(crate) static FILE: LazyLock<Texts> = LazyLock::new(Texts::of_a_file);

/// The store's own table, by another name.
pub(crate) fn create(schema: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(schema.replace("idem_records", "floor"))
}

impl Floor {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        Ok(match url.split("://").next() {
            Some("postgres") => {
                let pool = PgPoolOptions::new()
                    .max_connections(CONNECTIONS)
                    .test_before_acquire(false);
                let pool = pool.connect(url).await?;
                sqlx::raw_sql(create(PostgresStore::SCHEMA))
                    .execute(&pool)
                    .await?;
                Self::Postgres(pool)
            }
            Some("mysql") => {
                let pool = MySqlPoolOptions::new()
                    .max_connections(CONNECTIONS)
                    .test_before_acquire(false);
                let pool = pool.connect(url).await?;
                sqlx::raw_sql(create(MySqlStore::SCHEMA))
                    .execute(&pool)
                    .await?;
                Self::Mysql(pool)
            }
            _ => {
                let options: SqliteConnectOptions = url.parse()?;
                let options = options
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal);
                let pool = SqlitePoolOptions::new()
                    .max_connections(FILES)
                    .test_before_acquire(false);
                let pool = pool
                    .connect_with(options.synchronous(SqliteSynchronous::Full))
                    .await?;
                sqlx::raw_sql(create(SqliteStore::SCHEMA))
                    .execute(&pool)
                    .await?;
                Self::Sqlite(pool)
            }
        })
    }

    /// Claim, and commit where the owner is still the same.
    pub(crate) async fn first(&self, key: &str, result: &str) -> Result<()> {
        let owner = fastrand::u128(..).to_be_bytes().to_vec();
        self.insert(key, &owner).await?;
        let outcome = result.as_bytes();
        let revision = fastrand::i64(..);
        let done = match self {
            Self::Postgres(pool) => {
                let query = sqlx::query(AssertSqlSafe(POSTGRES.commit.clone()))
                    .bind(key)
                    .bind(owner)
                    .bind(revision)
                    .bind(outcome);
                u64::from(query.fetch_optional(pool).await?.is_some())
            }
            Self::Mysql(pool) => {
                let query = sqlx::query(AssertSqlSafe(MARIADB.commit.clone()))
                    .bind(outcome)
                    .bind(revision)
                    .bind(key)
                    .bind(owner);
                query.execute(pool).await?.rows_affected()
            }
            Self::Sqlite(pool) => {
                let query = sqlx::query(AssertSqlSafe(FILE.commit.clone()))
                    .bind(key)
                    .bind(owner)
                    .bind(revision)
                    .bind(outcome);
                query.execute(pool).await?.rows_affected()
            }
        };
        ensure!(done == 1, "the record is another's");
        Ok(())
    }

    /// A claim that finds the outcome.
    pub(crate) async fn replay(&self, key: &str) -> Result<usize> {
        macro_rules! read {
            ($pool:expr, $texts:expr) => {{
                let query = sqlx::query(AssertSqlSafe($texts.read.clone())).bind(key);
                query.fetch_one($pool).await?.try_get(OUTCOME)?
            }};
        }
        let outcome: Option<Vec<u8>> = match self {
            Self::Postgres(pool) => read!(pool, POSTGRES),
            Self::Mysql(pool) => read!(pool, MARIADB),
            Self::Sqlite(pool) => read!(pool, FILE),
        };
        Ok(outcome.context("there was no outcome")?.len())
    }

    async fn insert(&self, key: &str, owner: &[u8]) -> Result<()> {
        let revision = fastrand::i64(..);
        macro_rules! insert {
            ($pool:expr, $texts:expr) => {
                sqlx::query(AssertSqlSafe($texts.insert.clone()))
                    .bind(key)
                    .bind(owner)
                    .bind(revision)
                    .execute($pool)
                    .await?
                    .rows_affected()
            };
        }
        let written = match self {
            Self::Postgres(pool) => insert!(pool, POSTGRES),
            Self::Mysql(pool) => {
                let owner: String = owner
                    .iter()
                    .fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
                let text = MARIADB
                    .insert
                    .replace("{key}", key)
                    .replace("{owner}", &owner);
                let text = text.replace("{revision}", &revision.to_string());
                let query = sqlx::raw_sql(AssertSqlSafe(text));
                query.execute(pool).await?.rows_affected()
            }
            Self::Sqlite(pool) => insert!(pool, FILE),
        };
        ensure!(written == 1, "the key was used before");
        Ok(())
    }

    /// The server's version.
    pub(crate) async fn version(&self) -> Result<String> {
        let version: String = match self {
            Self::Postgres(pool) => {
                sqlx::query_scalar("SHOW server_version")
                    .fetch_one(pool)
                    .await?
            }
            Self::Mysql(pool) => {
                sqlx::query_scalar("SELECT VERSION()")
                    .fetch_one(pool)
                    .await?
            }
            Self::Sqlite(pool) => {
                sqlx::query_scalar("SELECT sqlite_version()")
                    .fetch_one(pool)
                    .await?
            }
        };
        // Behind it, the distribution's.
        let end = version.find([' ', '-']).unwrap_or(version.len());
        Ok(version[..end].to_owned())
    }
}
