//! Tests of the steps over real databases, with statements and settings that only this crate can
//! change.
#![allow(clippy::unwrap_used)]

use self::sqlx::sqlite::SqlitePool;
use crate::v09::sqlx;

mod clock_jump_tests;
mod wake_tests;

/// A file of SQLite, in memory where that can be: on a disk that others use, a commit may take
/// longer than a step.
async fn file() -> (tempfile::TempDir, SqlitePool) {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let dir = dir.unwrap();
    let url = format!("sqlite://{}/idem.db?mode=rwc", dir.path().display());
    let pool = SqlitePool::connect(&url).await.unwrap();
    (dir, pool)
}

/// Only `cargo xtask ci` runs these.
mod in_ci {
    mod statement_mutants;
}
