//! The bank on SQLite.

#[path = "bank.rs"]
mod bank;

use std::error::Error;
use std::time::Duration;

pub(crate) use idem::SqliteStore as Store;
use idem::sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
pub(crate) use idem::sqlx::{SqlitePool as Pool, SqliteTransaction as Tx};

use crate::Arguments;

/// As the writer from the beginning: a transaction that reads first could fail at its first write.
pub(crate) const BEGIN: &str = "BEGIN IMMEDIATE";
pub(crate) const NUMBER: &str = "INTEGER PRIMARY KEY";

pub(crate) async fn run(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    let is_temporary = arguments.store == "sqlite://";
    let file = std::env::temp_dir().join(format!("idem-ledger-{}.db", std::process::id()));
    let options = if is_temporary {
        SqliteConnectOptions::new().filename(&file)
    } else {
        arguments.store.parse()?
    };
    let options = options
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(Duration::from_secs(30));
    let pool = SqlitePoolOptions::new()
        .max_connections(4)
        .connect_with(options)
        .await?;
    let url = if is_temporary {
        format!("sqlite://{}", file.display())
    } else {
        arguments.store.clone()
    };
    let result = bank::run(&pool, arguments, &url, "SQLite").await;
    pool.close().await;
    if is_temporary {
        for suffix in ["", "-wal", "-shm"] {
            let mut name = file.clone().into_os_string();
            name.push(suffix);
            let _ = std::fs::remove_file(name);
        }
    }
    result
}
