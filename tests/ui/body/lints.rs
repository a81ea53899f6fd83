//! Lints look at the body, and find nothing of ours.

#![deny(warnings, unused_qualifications, clippy::all)]

use idem::{Error, idempotent};

#[idempotent(key = id)]
async fn an_unused_variable(id: u64) -> Result<u64, Error> {
    let unused = 1;
    Ok(id)
}

#[idempotent(key = id)]
async fn an_unused_mut(mut id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[idempotent(key = id, errors(_ => retry(max = 3)))]
async fn an_unused_mut_of_a_retried_body(mut id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[idempotent(key = id)]
async fn an_unused_parameter(id: u64, unused: u64) -> Result<u64, Error> {
    Ok(id)
}

#[idempotent(key = id)]
async fn only_the_key_uses_it(id: u64) -> Result<u64, Error> {
    Ok(1)
}

#[idempotent(key = id)]
async fn an_unused_result(id: u64) -> Result<u64, Error> {
    only_the_key_uses_it(id).await;
    Ok(1)
}

#[idempotent(key = id)]
async fn unreachable(id: u64) -> Result<u64, Error> {
    return Ok(id);
    Ok(1)
}

#[idempotent(key = id)]
async fn superfluous_braces(id: u64) -> Result<u64, Error> {
    { Ok(id) }
}

#[idempotent(key = id, errors(error if true => release, unused => release))]
async fn unused_names_in_arms(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn main() {
    drop((an_unused_variable(1), an_unused_mut(1), an_unused_mut_of_a_retried_body(1), an_unused_parameter(1, 2)));
    drop((an_unused_result(1), unreachable(1), superfluous_braces(1), unused_names_in_arms(1)));
}
