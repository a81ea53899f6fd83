//! Parameters that are no transactions.

use idem::sqlx::{PgConnection, PgPool};
use idem::{Error, idempotent};

#[idempotent(key = id, transaction = tx)]
async fn a_plain_connection(tx: &mut PgConnection, id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[idempotent(key = id, transaction = tx)]
async fn a_pool(tx: &mut PgPool, id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {}
