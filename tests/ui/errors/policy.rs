#![allow(unused)]

use idem::{Error, ErrorPolicy, idempotent};
use serde::{Deserialize, Serialize};

// A policy that there is not.

struct Silent;

impl From<Error> for Silent {
    fn from(_: Error) -> Self {
        Self
    }
}

#[idempotent(key = id, errors(policy))]
async fn the_policy_of_a_type_without_one(id: u64) -> Result<(), Silent> {
    Ok(())
}

#[idempotent(key = id, errors(policy))]
async fn the_policy_of_the_errors_of_idem(id: u64) -> Result<(), Error> {
    Ok(())
}

// A policy that retries.

#[derive(ErrorPolicy)]
enum Retrying {
    #[idem(retry(max = 3))]
    Timeout,
    Idempotency(Error),
}

impl From<Error> for Retrying {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

#[idempotent(key = id)]
async fn a_policy_that_retries(id: u64) -> Result<(), Retrying> {
    Ok(())
}

type Answer = Result<(), Retrying>;

#[idempotent(key = id)]
async fn a_policy_that_retries_under_another_name(id: u64) -> Answer {
    Ok(())
}

#[derive(ErrorPolicy)]
#[idem(inner)]
struct Outer(Retrying);

impl From<Error> for Outer {
    fn from(error: Error) -> Self {
        Self(error.into())
    }
}

#[idempotent(key = id)]
async fn a_policy_that_retries_inside(id: u64) -> Result<(), Outer> {
    Ok(())
}

struct Job;

#[idempotent(key = id, errors(policy))]
async fn a_policy_that_retries_with_what_is_not_clone(id: u64, job: Job) -> Result<(), Retrying> {
    drop(job);
    Ok(())
}

// A policy that keeps what cannot be stored.

#[derive(ErrorPolicy)]
enum Keeping {
    #[idem(keep)]
    Declined,
    #[idem(keep(ttl = "1h"))]
    Empty,
    Idempotency(Error),
}

impl From<Error> for Keeping {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

#[idempotent(key = id)]
async fn a_policy_that_keeps(id: u64) -> Result<(), Keeping> {
    Ok(())
}

#[idempotent(key = id, errors(policy))]
async fn a_policy_that_keeps_and_is_asked(id: u64) -> Result<(), Keeping> {
    Ok(())
}

#[derive(ErrorPolicy)]
enum GenericKeeping<T> {
    #[idem(keep)]
    Declined(T),
    Idempotency(Error),
}

impl<T> From<Error> for GenericKeeping<T> {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

#[idempotent(key = id)]
async fn a_generic_policy_that_keeps(id: u64) -> Result<(), GenericKeeping<u64>> {
    Ok(())
}

#[derive(ErrorPolicy)]
#[idem(inner)]
struct OuterKeeping(Kept);

#[derive(Serialize, Deserialize, ErrorPolicy)]
#[idem(keep)]
struct Kept;

impl From<Error> for OuterKeeping {
    fn from(_: Error) -> Self {
        Self(Kept)
    }
}

#[idempotent(key = id)]
async fn a_policy_that_keeps_inside(id: u64) -> Result<(), OuterKeeping> {
    Ok(())
}

#[derive(ErrorPolicy)]
#[idem(inner)]
struct Generic<E>(E);

impl<E: From<Error>> From<Error> for Generic<E> {
    fn from(error: Error) -> Self {
        Self(error.into())
    }
}

#[derive(Serialize, Deserialize, ErrorPolicy)]
enum Storable {
    #[idem(keep)]
    Declined,
    #[serde(skip)]
    Idempotency(Error),
}

impl From<Error> for Storable {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

#[idempotent(key = id)]
async fn a_policy_that_keeps_inside_of_a_generic_one(id: u64) -> Result<(), Generic<Storable>> {
    Ok(())
}

// A policy by hand.

struct ByHand;

impl ErrorPolicy for ByHand {
    type Keeps = idem::Sometimes;
    type Retries = idem::Never;

    fn action(&self) -> idem::ErrorAction {
        idem::ErrorAction::Keep
    }
}

impl From<Error> for ByHand {
    fn from(_: Error) -> Self {
        Self
    }
}

#[idempotent(key = id)]
async fn a_policy_by_hand_that_keeps(id: u64) -> Result<(), ByHand> {
    Ok(())
}

#[idempotent(key = id, name = "generic")]
async fn a_type_parameter<E: From<Error> + ErrorPolicy>(id: u64) -> Result<(), E> {
    Ok(())
}

fn main() {}
