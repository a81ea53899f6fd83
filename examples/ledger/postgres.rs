//! The bank on PostgreSQL.

#[path = "bank.rs"]
mod bank;

use std::error::Error;

pub(crate) use idem::PostgresStore as Store;
use idem::sqlx::postgres::PgPoolOptions;
pub(crate) use idem::sqlx::{PgPool as Pool, PgTransaction as Tx};

use crate::Arguments;

pub(crate) const BEGIN: &str = "BEGIN";
pub(crate) const NUMBER: &str = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY";

pub(crate) async fn run(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    let pool = PgPoolOptions::new()
        .max_connections(16)
        .connect(&arguments.store)
        .await?;
    let result = bank::run(&pool, arguments, &arguments.store, "PostgreSQL").await;
    pool.close().await;
    result
}
