//! Opens the store that a URL names, for the examples that take `--store URL`.

use std::error::Error;

use idem::{Builder, Idempotency};
use idem_redis::RedisStore;
use idem_sqlx::SqliteStore;

/// Returns a runtime's builder over the store, and the store's name.
pub(crate) async fn open(url: &str) -> Result<(Builder, &'static str), Box<dyn Error>> {
    let scheme = url.split("://").next().unwrap_or_default();
    Ok(match scheme {
        "sqlite" => (Idempotency::builder(SqliteStore::connect(url).await?), "SQLite"),
        "redis" | "rediss" | "redis+sentinel" | "redis+cluster" => {
            (Idempotency::builder(RedisStore::connect(url).await?), "Redis")
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
        #[cfg(not(feature = "postgres"))]
        "postgres" | "postgresql" => {
            return Err("build the example with PostgreSQL: `cargo run --features postgres ..`".into());
        }
        #[cfg(not(feature = "mysql"))]
        "mysql" | "mariadb" => return Err("build the example with MySQL: `cargo run --features mysql ..`".into()),
        _ => {
            return Err(
                "`--store` needs a URL: sqlite://quickstart.db, redis://127.0.0.1/, postgres://user@host/db or mysql://user@host/db"
                    .into(),
            );
        }
    })
}
