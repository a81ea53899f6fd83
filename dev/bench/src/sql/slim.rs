//! The slim floor: the least that an experienced person writes by hand for the same guarantee. A
//! table of five columns with an index for the deletion of what has expired; an insert and an
//! update for a first execution, and one SELECT for a replay.

use anyhow::{Context as _, Result, ensure};
use idem::sqlx::{self, Row as _};

use super::floor::Floor;

struct Texts {
    create: &'static str,
    claim: &'static str,
    commit: &'static str,
    replay: &'static str,
}

const POSTGRES: Texts = Texts {
    create: "CREATE TABLE IF NOT EXISTS slim (id text NOT NULL PRIMARY KEY, owner bytea, \
             lease_until timestamptz, expires_at timestamptz NOT NULL, outcome bytea); \
             CREATE INDEX IF NOT EXISTS slim_expires_at ON slim (expires_at)",
    claim: "INSERT INTO slim (id, owner, lease_until, expires_at) \
            VALUES ($1, $2, now() + interval '30 s', now() + interval '2 days') \
            ON CONFLICT (id) DO NOTHING",
    commit: "UPDATE slim SET owner = NULL, lease_until = NULL, \
             expires_at = now() + interval '1 day', outcome = $1 WHERE id = $2 AND owner = $3",
    replay: "SELECT outcome FROM slim WHERE id = $1",
};

const MARIADB: Texts = Texts {
    create: "CREATE TABLE IF NOT EXISTS slim (id varchar(255) NOT NULL PRIMARY KEY, \
             owner varbinary(16), lease_until datetime(6), expires_at datetime(6) NOT NULL, \
             outcome longblob, KEY slim_expires_at (expires_at)) ENGINE = InnoDB",
    claim: "INSERT IGNORE INTO slim (id, owner, lease_until, expires_at) \
            VALUES (?, ?, UTC_TIMESTAMP(6) + INTERVAL 30 SECOND, \
            UTC_TIMESTAMP(6) + INTERVAL 2 DAY)",
    commit: "UPDATE slim SET owner = NULL, lease_until = NULL, \
             expires_at = UTC_TIMESTAMP(6) + INTERVAL 1 DAY, outcome = ? \
             WHERE id = ? AND owner = ?",
    replay: "SELECT outcome FROM slim WHERE id = ?",
};

const SQLITE: Texts = Texts {
    create: "CREATE TABLE IF NOT EXISTS slim (id TEXT NOT NULL PRIMARY KEY, owner BLOB, \
             lease_until INTEGER, expires_at INTEGER NOT NULL, outcome BLOB); \
             CREATE INDEX IF NOT EXISTS slim_expires_at ON slim (expires_at)",
    claim: "INSERT INTO slim (id, owner, lease_until, expires_at) \
            VALUES (?1, ?2, unixepoch() + 30, unixepoch() + 172800) ON CONFLICT (id) DO NOTHING",
    commit: "UPDATE slim SET owner = NULL, lease_until = NULL, \
             expires_at = unixepoch() + 86400, outcome = ?1 WHERE id = ?2 AND owner = ?3",
    replay: "SELECT outcome FROM slim WHERE id = ?1",
};

/// The same on the pool of each database.
macro_rules! on {
    ($floor:expr, |$pool:ident, $texts:ident| $work:expr) => {
        match $floor {
            Floor::Postgres($pool) => {
                let $texts = POSTGRES;
                $work
            }
            Floor::Mysql($pool) => {
                let $texts = MARIADB;
                $work
            }
            Floor::Sqlite($pool) => {
                let $texts = SQLITE;
                $work
            }
        }
    };
}

pub(crate) async fn create(floor: &Floor) -> Result<()> {
    on!(floor, |pool, texts| {
        sqlx::raw_sql(texts.create).execute(pool).await?;
    });
    Ok(())
}

/// Claim, and commit where the owner is still the same.
pub(crate) async fn first(floor: &Floor, key: &str, result: &str) -> Result<()> {
    let owner = fastrand::u128(..).to_be_bytes().to_vec();
    let (claimed, committed) = on!(floor, |pool, texts| {
        let claim = sqlx::query(texts.claim).bind(key).bind(&owner);
        let claimed = claim.execute(pool).await?.rows_affected();
        let commit = sqlx::query(texts.commit)
            .bind(result.as_bytes())
            .bind(key)
            .bind(&owner);
        (claimed, commit.execute(pool).await?.rows_affected())
    });
    ensure!(claimed == 1, "the key was used before");
    ensure!(committed == 1, "the record is another's");
    Ok(())
}

pub(crate) async fn replay(floor: &Floor, key: &str) -> Result<usize> {
    let outcome: Option<Vec<u8>> = on!(floor, |pool, texts| {
        let found = sqlx::query(texts.replay).bind(key).fetch_one(pool).await?;
        found.try_get(0)?
    });
    Ok(outcome.context("there was no outcome")?.len())
}
