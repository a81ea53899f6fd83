#![allow(unused)]

use idem::{Error, idempotent};
use std::time::Duration;

enum OrderError {
    Declined(u16),
    RateLimited { after: Duration },
    Timeout,
    Idempotency(Error),
}

impl From<Error> for OrderError {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

struct Job;

// Patterns.

#[idempotent(key = id, errors(OrderError::Timeot => release, _ => release))]
async fn no_such_variant(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(Error::InFlight { .. } => release, _ => release))]
async fn a_variant_of_another_type(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Declined => release, _ => release))]
async fn a_variant_without_its_field(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Declined(_, _) => release, _ => release))]
async fn a_variant_with_a_field_too_many(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::RateLimited { until, .. } => release, _ => release))]
async fn a_variant_without_such_a_field(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Declined("51") => release, _ => release))]
async fn a_text_for_a_number(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors("timeout" => release, _ => release))]
async fn a_text_for_an_error(id: u64) -> Result<(), OrderError> {
    Ok(())
}

// Guards.

#[idempotent(key = id, errors(OrderError::Declined(code) if code => release, _ => release))]
async fn a_guard_that_is_a_number(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Declined(code) if code == 51 => release, _ => release))]
async fn a_guard_that_compares_a_reference(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(error if error.is_final() => release, _ => release))]
async fn a_guard_without_such_a_method(id: u64) -> Result<(), OrderError> {
    Ok(())
}

// Actions.

#[idempotent(key = id, errors(OrderError::Declined(_) => keep, _ => release))]
async fn keeps_what_cannot_be_stored(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Timeout => release, OrderError::Declined(_) => keep(ttl = "1h"), _ => keep))]
async fn keeps_what_cannot_be_stored_twice(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(max = 3, then = keep)))]
async fn then_keeps_what_cannot_be_stored(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => keep))]
async fn keeps_an_error_of_idem(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, name = "generic", errors(_ => keep))]
async fn keeps_a_type_parameter<E: From<Error>>(id: u64) -> Result<(), E> {
    Ok(())
}

#[idempotent(key = id, errors(_ => keep(ttl = id)))]
async fn a_ttl_that_is_a_number(id: u64) -> Result<(), Stored> {
    Ok(())
}

#[idempotent(key = id, errors(Stored::After(seconds) => keep(ttl = *seconds), _ => release))]
async fn a_ttl_that_is_a_number_of_the_error(id: u64) -> Result<(), Stored> {
    Ok(())
}

#[idempotent(key = id, errors(OrderError::RateLimited { after } => retry(max = 3, backoff = after), _ => release))]
async fn a_backoff_that_is_a_reference(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(max = tries)))]
async fn a_max_that_is_a_text(id: u64, tries: &str) -> Result<(), OrderError> {
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(max = id)))]
async fn a_max_that_is_a_longer_number(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[derive(serde::Serialize, serde::Deserialize)]
enum Stored {
    After(u64),
    #[serde(skip)]
    Idempotency(Error),
}

impl From<Error> for Stored {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

// Arguments of a body that runs more than once.

#[idempotent(key = id, errors(_ => retry(max = 3)))]
async fn an_argument_that_is_not_clone(id: u64, job: Job) -> Result<(), OrderError> {
    drop(job);
    Ok(())
}

#[idempotent(key = id, errors(OrderError::Timeout => release, _ => retry(max = 3)))]
async fn two_arguments_that_are_not_clone(id: u64, one: Job, mut two: Job) -> Result<(), OrderError> {
    two = one;
    Ok(())
}

#[idempotent(key = id, errors(_ => retry(max = 3)))]
async fn a_pattern_of_which_one_is_not_clone((id, job): (u64, Job)) -> Result<(), OrderError> {
    drop((id, job));
    Ok(())
}

#[idempotent(key = id, name = "generic", errors(_ => retry(max = 3)))]
async fn a_type_parameter_that_is_not_clone<T>(id: u64, job: T) -> Result<(), OrderError> {
    drop(job);
    Ok(())
}

impl Job {
    #[idempotent(key = id, name = "job.run", errors(_ => retry(max = 3)))]
    async fn a_self_that_is_not_clone(self, id: u64) -> Result<(), OrderError> {
        drop(self);
        Ok(())
    }
}

fn main() {}
