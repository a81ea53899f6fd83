//! Arms that do not cover every error, or one twice.

#![allow(unused)]

use idem::{Error, idempotent};

enum OrderError {
    Declined(u16),
    Timeout,
    Down,
    Idempotency(Error),
}

use OrderError::Timeout;

impl From<Error> for OrderError {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

#[idempotent(key = id, errors(OrderError::Declined(_) => release, OrderError::Timeout | OrderError::Down => release))]
async fn not_every_error(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Declined(51) => release, Timeout | OrderError::Down | OrderError::Idempotency(_) => release))]
async fn not_every_code(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ if id == 1 => release))]
async fn only_under_a_guard(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(Error::InFlight { .. } => release))]
async fn an_error_of_idem_which_may_have_more_variants(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, errors(_ => release, OrderError::Timeout => retry(max = 3)))]
async fn never_reached(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Timeout => release, Timeout => release, _ => release))]
async fn one_error_twice(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(Down => retry(max = 3), _ => release))]
async fn a_variant_that_is_not_imported(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(Down => release))]
async fn a_variant_that_is_not_imported_alone(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[allow(unreachable_patterns)]
#[idempotent(key = id, errors(_ => release, OrderError::Timeout => retry(max = 3)))]
async fn never_reached_and_nobody_minds(id: u64) -> Result<(), OrderError> {
    Ok(())
}

fn main() {}
