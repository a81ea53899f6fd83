#![allow(unused)]

use idem::{Error, idempotent};

#[idempotent(key = id, crate = "::idempotency")]
async fn a_crate_that_is_not_there(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, crate = "crate::idempotency")]
async fn a_module_that_is_not_there(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, crate = "idem::record")]
async fn a_module_that_is_another_one(id: u64) -> Result<(), Error> {
    Ok(())
}

#[derive(idem::KeyPart)]
#[idem(crate = "::idempotency")]
struct OrderId(u64);

#[derive(idem::ErrorPolicy)]
#[idem(crate = "::idempotency")]
struct OrderError;

fn main() {}
