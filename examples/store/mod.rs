//! Opens the store that a URL names, for the examples that take `--store URL`.

use std::error::Error;
use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use idem::{Builder, Idempotency};

/// How long a step of the store may take: an example may run on a slow disk.
#[allow(dead_code)]
const LIMIT: Duration = Duration::from_secs(15);

/// The feature that the example must be built with to open the store, unless it is.
pub(crate) fn missing_feature(url: &str) -> Option<&'static str> {
    let (feature, is_there) = match scheme(url) {
        "sqlite" => ("sqlite", cfg!(feature = "sqlite")),
        "redis" | "rediss" | "redis+sentinel" | "redis+cluster" => {
            ("redis", cfg!(any(feature = "redis", feature = "axum")))
        }
        "postgres" | "postgresql" => ("postgres", cfg!(feature = "postgres")),
        "mysql" | "mariadb" => ("mysql", cfg!(feature = "mysql")),
        _ => return None,
    };
    (!is_there).then_some(feature)
}

/// Builds and runs the example again, with other features. A store's client takes longer to build
/// than all the rest, so the example is built without it until it is asked for.
pub(crate) fn run_with_features(example: &str, features: &str) -> Result<bool, Box<dyn Error>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let status = Command::new(cargo)
        .args([
            "run",
            "--quiet",
            "--manifest-path",
            manifest,
            "--example",
            example,
            "--features",
            features,
            "--",
        ])
        .args(std::env::args_os().skip(1))
        .status()?;
    Ok(status.success())
}

/// A runtime's builder over the store, and the store's name.
#[allow(clippy::unused_async)]
pub(crate) async fn open(url: &str) -> Result<(Builder, &'static str), Box<dyn Error>> {
    Ok(match scheme(url) {
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let options: idem::sqlx::sqlite::SqliteConnectOptions = url.parse()?;
            let options = options
                .create_if_missing(true)
                .journal_mode(idem::sqlx::sqlite::SqliteJournalMode::Wal);
            let pool = idem::sqlx::SqlitePool::connect_with(options).await?;
            let store = idem::SqliteStore::builder(pool).time_limit(LIMIT).build();
            store.migrate().await?;
            (Idempotency::builder(store), "SQLite")
        }
        #[cfg(any(feature = "redis", feature = "axum"))]
        "redis" | "rediss" | "redis+sentinel" | "redis+cluster" => {
            let store = idem::RedisStore::builder().url(url).time_limit(LIMIT);
            let store = store.connect_time_limit(LIMIT).connect().await?;
            (Idempotency::builder(store), "Redis")
        }
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            let store = idem::PostgresStore::connect(url).await?;
            store.migrate().await?;
            (Idempotency::builder(store), "PostgreSQL")
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => {
            let store = idem::MySqlStore::connect(url).await?;
            store.migrate().await?;
            (Idempotency::builder(store), "MySQL")
        }
        _ => {
            return Err(
                "`--store` needs a URL: sqlite://quickstart.db, redis://127.0.0.1/, \
                 postgres://user@host/db or mysql://user@host/db"
                    .into(),
            );
        }
    })
}

fn scheme(url: &str) -> &str {
    url.split("://").next().unwrap_or_default()
}
