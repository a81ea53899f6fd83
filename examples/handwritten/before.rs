//! Written by hand: a table of answers, in the transaction that writes the order.

use idem::sqlx::{self, SqlitePool};

use crate::{CreateOrder, OrderError, Receipt};

// before: begin
pub(crate) const TABLE: &str = "CREATE TABLE answers (\
    key TEXT PRIMARY KEY, request TEXT NOT NULL, answer TEXT, created_at INTEGER NOT NULL DEFAULT \
    (unixepoch()))";

pub(crate) async fn create_order(
    pool: &SqlitePool,
    order: &CreateOrder,
) -> Result<Receipt, OrderError> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    let request = serde_json::to_string(order)?;
    let claim =
        sqlx::query("INSERT INTO answers (key, request) VALUES (?, ?) ON CONFLICT DO NOTHING");
    if claim
        .bind(&order.key)
        .bind(&request)
        .execute(&mut *tx)
        .await?
        .rows_affected()
        == 0
    {
        let select = sqlx::query_as("SELECT request, answer FROM answers WHERE key = ?");
        let (first, answer): (String, String) = select.bind(&order.key).fetch_one(&mut *tx).await?;
        if first != request {
            return Err(OrderError::OtherRequest);
        }
        return Ok(serde_json::from_str(&answer)?);
    }
    let insert = sqlx::query_scalar("INSERT INTO orders (item) VALUES (?) RETURNING id");
    let receipt = Receipt {
        order: insert.bind(&order.item).fetch_one(&mut *tx).await?,
    };
    let answer = serde_json::to_string(&receipt)?;
    let record = sqlx::query("UPDATE answers SET answer = ? WHERE key = ?");
    record
        .bind(&answer)
        .bind(&order.key)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(receipt)
}

/// For a job that runs every hour.
pub(crate) async fn delete_old_answers(pool: &SqlitePool) -> Result<u64, sqlx::Error> {
    let delete = "DELETE FROM answers WHERE created_at < unixepoch() - 86400";
    Ok(sqlx::query(delete).execute(pool).await?.rows_affected())
}
// before: end
