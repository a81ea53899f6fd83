#![allow(unused)]

use idem::{Error, idempotent};

#[idempotent(key = id, abandoned = rerun, hold = "90d")]
async fn nothing_to_hold(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, abandoned = reject, hold = 90)]
async fn no_unit(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, abandoned = (rerun), hold = "30d")]
async fn nothing_to_hold_in_parentheses(id: u64) -> Result<(), Error> {
    Ok(())
}

fn main() {}
