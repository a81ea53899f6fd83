//! The same with `idem`.

use idem::idempotent;
use idem::sqlx::{self, SqlitePool, SqliteTransaction};

use crate::{CreateOrder, OrderError, Receipt};

// after: begin
#[idempotent(name = "orders.create", key = order.key, fingerprint = order, ttl = "24h", transaction = tx)]
async fn insert(
    tx: &mut SqliteTransaction<'_>,
    order: &CreateOrder,
) -> Result<Receipt, OrderError> {
    let insert = sqlx::query_scalar("INSERT INTO orders (item) VALUES (?) RETURNING id");
    Ok(Receipt {
        order: insert.bind(&order.item).fetch_one(&mut **tx).await?,
    })
}

pub(crate) async fn create_order(
    pool: &SqlitePool,
    order: &CreateOrder,
) -> Result<Receipt, OrderError> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    let receipt = insert(&mut tx, order).await?;
    tx.commit().await?;
    Ok(receipt)
}
// after: end
