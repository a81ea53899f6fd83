//! Names that only evaluation shows to be invalid.

#![allow(unused)]

use idem::{Error, idempotent};

const EMPTY: &str = "";
const RESERVED: &str = "idem.audit";
const WITH_A_SPACE: &str = "orders submit";

#[idempotent(key = id, name = EMPTY)]
async fn empty(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, name = WITH_A_SPACE)]
async fn with_a_space(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, name = concat!("orders", ":", "submit"))]
async fn with_one_colon(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, name = RESERVED)]
async fn reserved(id: u64) -> Result<(), Error> {
    Ok(())
}

fn main() {
    drop((reserved(1), empty(1), with_a_space(1), with_one_colon(1)));
}
