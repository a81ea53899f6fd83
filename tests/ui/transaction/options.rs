//! What has no meaning in a transaction, and what is no parameter.

use idem::{Error, idempotent};

pub struct Tx;

#[idempotent(key = id, transaction = tx, lease = "30s", abandoned = reject, store_failure = run, max_attempts = 3, detached)]
async fn options_of_leases(tx: &mut Tx, id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[idempotent(key = id, transaction = tx, errors(Error::Store { .. } => retry(max = 3), _ => abandon))]
async fn actions_of_leases(tx: &mut Tx, id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[idempotent(key = id, transaction = txn)]
async fn no_such_parameter(tx: &mut Tx, id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[idempotent(key = id, transaction = tx)]
async fn by_value(tx: Tx, id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[idempotent(key = id, transaction = tx)]
async fn in_a_pattern((tx, id): (&mut Tx, u64)) -> Result<u64, Error> {
    Ok(id)
}

impl Tx {
    #[idempotent(name = "tx.method", key = id, transaction = self)]
    async fn the_receiver(&mut self, id: u64) -> Result<u64, Error> {
        Ok(id)
    }
}

pub struct Boxed;

#[async_trait::async_trait]
trait Orders {
    async fn create(&self, order: (&mut Tx, u64)) -> Result<u64, Error>;
}

#[async_trait::async_trait]
impl Orders for Boxed {
    #[idempotent(name = "orders.create", key = id, transaction = tx)]
    async fn create(&self, (tx, id): (&mut Tx, u64)) -> Result<u64, Error> {
        Ok(id)
    }
}

fn main() {}
