//! The body's own mistakes stay in the body.

#![allow(unused)]

use idem::{Error, idempotent};

struct Req {
    order_id: u64,
}

#[idempotent(key = id)]
async fn wrong_value(id: u64) -> Result<u64, Error> {
    if id == 0 {
        return "zero";
    }
    id == 1
}

#[idempotent(key = id)]
async fn no_value(id: u64) -> Result<u64, Error> {
    id + 1;
}

#[idempotent(key = id)]
async fn a_value_for_a_result(id: u64) -> Result<u64, Error> {
    id
}

#[idempotent(key = req.order_id)]
async fn no_such_field(req: Req) -> Result<u64, Error> {
    Ok(req.order_idd)
}

#[idempotent(key = id)]
async fn another_error(id: u64) -> Result<u64, Error> {
    let number: u64 = "1".parse()?;
    Ok(number)
}

#[idempotent(key = id)]
async fn another_type(id: u64) -> Result<u64, Error> {
    let text: String = id;
    Ok(1)
}

#[idempotent(key = id)]
async fn no_await(id: u64) -> Result<u64, Error> {
    wrong_value(id)
}

#[idempotent(key = id, detached)]
async fn wrong_value_of_a_detached_body(id: u64) -> Result<u64, Error> {
    "zero"
}

#[idempotent(key = id, errors(_ => retry(max = 3)))]
async fn wrong_value_of_a_retried_body(id: u64) -> Result<u64, Error> {
    "zero"
}

#[idempotent(key = id, abandoned = reconcile(lookup(id)))]
async fn wrong_value_of_a_reconciled_body(id: u64) -> Result<u64, Error> {
    "zero"
}

async fn lookup(id: u64) -> Result<Option<u64>, Error> {
    Ok(Some(id))
}

struct Service;

#[async_trait::async_trait]
trait Gateway {
    async fn charge(&self, id: u64) -> Result<u64, Error>;
}

#[async_trait::async_trait]
impl Gateway for Service {
    #[idempotent(key = id, name = "gateway.charge")]
    async fn charge(&self, id: u64) -> Result<u64, Error> {
        "zero"
    }
}

fn main() {}
