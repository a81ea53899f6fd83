//! A derive on a generic type has conditions. An unmet one is never taken for a type that says
//! nothing.
#![allow(unused)]

use idem::{ErrorAction, ErrorPolicy, Frequency, HasErrorPolicy, KeyPart, Never, idempotent};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Silent;

#[derive(Serialize, Deserialize, ErrorPolicy)]
enum Fail<E> {
    #[idem(keep)]
    Declined,
    #[idem(inner)]
    Inner(E),
    #[serde(skip)]
    Idempotency(String),
}

impl<E> From<idem::Error> for Fail<E> {
    fn from(error: idem::Error) -> Self {
        Self::Idempotency(error.to_string())
    }
}

impl<E> From<idem::Error> for Box<Fail<E>> {
    fn from(error: idem::Error) -> Self {
        Self::new(error.into())
    }
}

/// By hand.
struct Traced<E>(Result<E, idem::Error>);

impl<E: ErrorPolicy> ErrorPolicy for Traced<E> {
    type Keeps = Never;
    type Retries = <E::Retries as Frequency>::Or<Never>;

    fn action(&self) -> ErrorAction {
        self.0.as_ref().map_or(ErrorAction::Unlisted, ErrorPolicy::action)
    }
}

impl<E> HasErrorPolicy for Traced<E> {}

impl<E> From<idem::Error> for Traced<E> {
    fn from(error: idem::Error) -> Self {
        Self(Err(error))
    }
}

#[idempotent(key = id)]
async fn inner_without_a_policy(id: u64) -> Result<u64, Fail<Silent>> {
    Ok(id)
}

#[idempotent(key = id)]
async fn inner_in_a_box(id: u64) -> Result<u64, Box<Fail<Silent>>> {
    Ok(id)
}

#[idempotent(key = id, detached)]
async fn inner_of_a_detached_body(id: u64) -> Result<u64, Fail<Silent>> {
    Ok(id)
}

#[idempotent(key = id)]
async fn inner_by_hand(id: u64) -> Result<u64, Traced<Silent>> {
    Ok(id)
}

#[idempotent(key = id, name = "conditions.parameter_inside")]
async fn a_parameter_inside<E: Serialize + serde::de::DeserializeOwned>(id: u64, error: E) -> Result<u64, Fail<E>> {
    Ok(id)
}

#[idempotent(key = id, name = "conditions.parameter")]
async fn a_parameter<E: From<idem::Error>>(id: u64) -> Result<u64, E> {
    Ok(id)
}

#[idempotent(key = id, name = "conditions.not_kept")]
async fn a_parameter_that_cannot_be_kept<E: ErrorPolicy>(id: u64, error: E) -> Result<u64, Fail<E>> {
    Ok(id)
}

#[derive(ErrorPolicy)]
#[idem(dispose)]
enum HandleError {
    #[idem(inner)]
    Inner(Message<Mute>),
}

#[derive(ErrorPolicy)]
#[idem(dispose)]
enum Unmarked {
    Inner(Message<Mute>),
    Boxed(Box<Message<Mute>>),
    Io(std::io::Error),
}

#[derive(ErrorPolicy)]
enum Message<E> {
    #[idem(dead_letter)]
    Unreadable,
    #[idem(inner)]
    Inner(E),
}

/// A policy, and nothing about messages.
struct Mute;

impl ErrorPolicy for Mute {
    type Keeps = Never;
    type Retries = Never;

    fn action(&self) -> ErrorAction {
        ErrorAction::Release
    }
}

#[derive(KeyPart)]
struct Tenant<T>(T);

#[idempotent(key = tenant)]
async fn a_key_of_a_float(tenant: Tenant<f64>) -> Result<u64, idem::Error> {
    Ok(1)
}

#[idempotent(key = tenant)]
async fn a_key_that_is_perhaps_a_float(tenant: Option<f64>) -> Result<u64, idem::Error> {
    Ok(1)
}

#[idempotent(key = (tenant, 7), name = "conditions.key_parameter")]
async fn a_key_of_a_parameter<T>(tenant: Tenant<T>) -> Result<u64, idem::Error> {
    Ok(1)
}

fn main() {}
