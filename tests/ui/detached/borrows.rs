#![allow(unused)]

use idem::{Error, idempotent};

struct Service {
    orders: u64,
}

impl Service {
    #[idempotent(key = id, name = "service.create", detached)]
    async fn a_borrowed_self(&self, id: u64) -> Result<u64, Error> {
        Ok(self.orders)
    }

    #[idempotent(key = id, name = "service.create", detached)]
    async fn an_exclusive_self(&mut self, id: u64) -> Result<u64, Error> {
        Ok(self.orders)
    }

    #[idempotent(key = id, name = "service.create", detached)]
    async fn a_borrowed_self_of_a_type(self: &Self, id: u64) -> Result<u64, Error> {
        Ok(self.orders)
    }

    #[idempotent(key = id, name = "service.create", detached, abandoned = reconcile("self.lookup(id)"))]
    async fn a_borrowed_self_in_the_question(&self, id: u64) -> Result<u64, Error> {
        Ok(id)
    }

    async fn lookup(&self, id: u64) -> Result<Option<u64>, Error> {
        Ok(Some(id))
    }
}

#[idempotent(key = id, detached)]
async fn a_borrowed_argument(id: &str) -> Result<usize, Error> {
    Ok(id.len())
}

#[idempotent(key = id, detached)]
async fn a_borrowed_argument_of_a_lifetime<'a>(id: &'a str) -> Result<usize, Error> {
    Ok(id.len())
}

#[idempotent(key = id, detached)]
async fn an_exclusive_argument(id: u64, log: &mut Vec<u64>) -> Result<(), Error> {
    log.push(id);
    Ok(())
}

#[idempotent(key = id, detached)]
async fn a_borrowed_pattern(&(id, other): &(u64, u64)) -> Result<u64, Error> {
    Ok(id + other)
}

#[idempotent(key = id, detached)]
async fn a_borrowed_argument_in_a_macro(id: &str) -> Result<String, Error> {
    Ok(format!("{id}"))
}

#[idempotent(key = one, detached)]
async fn two_borrowed_arguments(one: &str, two: &str) -> Result<usize, Error> {
    Ok(one.len() + two.len())
}

#[idempotent(key = id, detached, errors(_ => retry(max = 3)))]
async fn a_borrowed_argument_of_a_retried_body(id: &mut String) -> Result<usize, Error> {
    Ok(id.len())
}

#[async_trait::async_trait]
trait Gateway {
    async fn charge(&self, id: u64) -> Result<u64, Error>;
}

#[async_trait::async_trait]
impl Gateway for Service {
    #[idempotent(key = id, name = "gateway.charge", detached)]
    async fn charge(&self, id: u64) -> Result<u64, Error> {
        Ok(self.orders)
    }
}

fn main() {}
