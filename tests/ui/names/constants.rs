//! Names of operations that are constants, which the compiler evaluates.

#![allow(unused)]

use idem::{Error, idempotent};

const SUBMIT: &str = "orders.submit";
const NUMBER: u32 = 5;

#[idempotent(key = id, name = SUBMITT)]
async fn misspelt(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, name = NUMBER)]
async fn a_number(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, name = Self::SUBMIT)]
async fn a_constant_of_no_type(id: u64) -> Result<(), Error> {
    Ok(())
}

struct Service;

impl Service {
    const OPERATION: &'static str = "service.submit";

    #[idempotent(key = id, name = Self::OPERATON)]
    async fn misspelt_constant_of_the_type(&self, id: u64) -> Result<(), Error> {
        Ok(())
    }
}

#[idempotent(key = id, name = format!("orders.{}", 1))]
async fn made_at_run_time(id: u64) -> Result<(), Error> {
    Ok(())
}

fn main() {}
