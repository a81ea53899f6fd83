//! The floor: the statements of a claim, a commit and a replay by sqlx alone; and what people write
//! who check, and then insert.

use anyhow::{Context as _, Result, ensure};
use idem::sqlx::mysql::MySqlPoolOptions;
use idem::sqlx::postgres::PgPoolOptions;
use idem::sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use idem::sqlx::{self, AssertSqlSafe, MySqlPool, PgPool, Row as _, SqlitePool};

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

const CREATE: [&str; 3] = [
    "CREATE TABLE floor (key text COLLATE \"C\" PRIMARY KEY, owner bytea, outcome bytea, expires_at timestamptz NOT NULL); CREATE INDEX ON floor (expires_at)",
    "CREATE TABLE floor (`key` varbinary(255) PRIMARY KEY, owner binary(16), outcome longblob, expires_at datetime(6) NOT NULL, INDEX (expires_at)) ENGINE = InnoDB",
    "CREATE TABLE floor (key TEXT PRIMARY KEY, owner BLOB, outcome BLOB, expires_at INTEGER NOT NULL); CREATE INDEX floor_expires_at ON floor (expires_at)",
];

const CLAIM: &str = "WITH written AS (INSERT INTO floor (key, owner, expires_at) VALUES ($1, $2, now() + interval '1 day') \
     ON CONFLICT (key) DO NOTHING RETURNING owner, outcome) \
     SELECT owner, outcome FROM written UNION ALL SELECT owner, outcome FROM floor WHERE key = $1 AND NOT EXISTS (SELECT 1 FROM written)";
const CLAIM_IN_FILE: &str = "INSERT INTO floor (key, owner, expires_at) VALUES (?1, ?2, unixepoch() + 86400) ON CONFLICT (key) DO NOTHING; \
     SELECT owner, outcome FROM floor WHERE key = ?1";

impl Floor {
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        Ok(match url.split("://").next() {
            Some("postgres") => {
                let pool = PgPoolOptions::new().max_connections(CONNECTIONS).test_before_acquire(false);
                let pool = pool.connect(url).await?;
                sqlx::raw_sql(CREATE[0]).execute(&pool).await?;
                Self::Postgres(pool)
            }
            Some("mysql") => {
                let pool = MySqlPoolOptions::new().max_connections(CONNECTIONS).test_before_acquire(false);
                let pool = pool.connect(url).await?;
                sqlx::raw_sql(CREATE[1]).execute(&pool).await?;
                Self::Mysql(pool)
            }
            _ => {
                let options: SqliteConnectOptions = url.parse()?;
                let options = options.create_if_missing(true).journal_mode(SqliteJournalMode::Wal);
                let pool = SqlitePoolOptions::new().max_connections(FILES).test_before_acquire(false);
                let pool = pool.connect_with(options.synchronous(SqliteSynchronous::Full)).await?;
                sqlx::raw_sql(CREATE[2]).execute(&pool).await?;
                Self::Sqlite(pool)
            }
        })
    }

    /// Claim, and commit where the owner is still the same.
    pub(crate) async fn first(&self, key: &str, result: &str) -> Result<()> {
        let owner = fastrand::u128(..).to_be_bytes().to_vec();
        let (found, _) = self.claim(key, &owner).await?;
        ensure!(found.as_ref() == Some(&owner), "the key was used before");
        let done = match self {
            Self::Postgres(pool) => {
                let text = "UPDATE floor SET outcome = $3, owner = NULL, expires_at = now() + interval '1 day' WHERE key = $1 AND owner = $2";
                let query = sqlx::query(text).bind(key).bind(owner).bind(result.as_bytes());
                query.execute(pool).await?.rows_affected()
            }
            Self::Mysql(pool) => {
                let text = "UPDATE floor SET outcome = ?, owner = NULL, expires_at = UTC_TIMESTAMP(6) + INTERVAL 1 DAY WHERE `key` = ? AND owner = ?";
                let query = sqlx::query(text).bind(result.as_bytes()).bind(key).bind(owner);
                query.execute(pool).await?.rows_affected()
            }
            Self::Sqlite(pool) => {
                let text = "UPDATE floor SET outcome = ?3, owner = NULL, expires_at = unixepoch() + 86400 WHERE key = ?1 AND owner = ?2";
                let query = sqlx::query(text).bind(key).bind(owner).bind(result.as_bytes());
                query.execute(pool).await?.rows_affected()
            }
        };
        ensure!(done == 1, "the record is another's");
        Ok(())
    }

    /// A claim that finds the outcome.
    pub(crate) async fn replay(&self, key: &str) -> Result<usize> {
        let owner = fastrand::u128(..).to_be_bytes().to_vec();
        let (_, outcome) = self.claim(key, &owner).await?;
        Ok(outcome.context("there was no outcome")?.len())
    }

    /// The owner and the outcome that stand there then.
    async fn claim(&self, key: &str, owner: &[u8]) -> Result<(Option<Vec<u8>>, Option<Vec<u8>>)> {
        Ok(match self {
            Self::Postgres(pool) => {
                let row = sqlx::query(CLAIM).bind(key).bind(owner).fetch_one(pool).await?;
                (row.try_get(0)?, row.try_get(1)?)
            }
            Self::Mysql(pool) => {
                // Two statements in one message, which takes no parameters.
                let owner: String = owner.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
                let text = format!(
                    "INSERT INTO floor (`key`, owner, expires_at) VALUES ('{key}', x'{owner}', UTC_TIMESTAMP(6) + INTERVAL 1 DAY) \
                     ON DUPLICATE KEY UPDATE `key` = VALUES(`key`); SELECT owner, outcome FROM floor WHERE `key` = '{key}'"
                );
                let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(pool).await?;
                let row = rows.first().context("there is no row")?;
                (row.try_get(0)?, row.try_get(1)?)
            }
            Self::Sqlite(pool) => {
                let row = sqlx::query(CLAIM_IN_FILE).bind(key).bind(owner).fetch_one(pool).await?;
                (row.try_get(0)?, row.try_get(1)?)
            }
        })
    }

    /// What guards nothing: look for the outcome, and insert it if there is none.
    pub(crate) async fn check_then_insert(&self, key: &str, result: &str) -> Result<usize> {
        macro_rules! check_then_insert {
            ($pool:expr, $check:literal, $insert:literal) => {{
                let found = sqlx::query($check).bind(key).fetch_optional($pool).await?;
                if let Some(row) = found {
                    let outcome: Vec<u8> = row.try_get(0)?;
                    return Ok(outcome.len());
                }
                sqlx::query($insert).bind(key).bind(result.as_bytes()).execute($pool).await?;
            }};
        }
        match self {
            Self::Postgres(pool) => check_then_insert!(
                pool,
                "SELECT outcome FROM floor WHERE key = $1",
                "INSERT INTO floor (key, outcome, expires_at) VALUES ($1, $2, now() + interval '1 day')"
            ),
            Self::Mysql(pool) => check_then_insert!(
                pool,
                "SELECT outcome FROM floor WHERE `key` = ?",
                "INSERT INTO floor (`key`, outcome, expires_at) VALUES (?, ?, UTC_TIMESTAMP(6) + INTERVAL 1 DAY)"
            ),
            Self::Sqlite(pool) => check_then_insert!(
                pool,
                "SELECT outcome FROM floor WHERE key = ?1",
                "INSERT INTO floor (key, outcome, expires_at) VALUES (?1, ?2, unixepoch() + 86400)"
            ),
        }
        Ok(result.len())
    }
}
