#![allow(unused)]

use idem::{Error, idempotent};
use serde::{Deserialize, Serialize};

struct Receipt;

#[derive(Serialize)]
struct OnlyWritten;

#[derive(Serialize, Deserialize)]
struct Page<T> {
    items: Vec<T>,
}

#[derive(Debug)]
struct OrderError;

// What cannot be stored.

#[idempotent(key = id)]
async fn not_storable(id: u64) -> Result<Receipt, Error> {
    Ok(Receipt)
}

#[idempotent(key = id)]
async fn not_readable(id: u64) -> Result<OnlyWritten, Error> {
    Ok(OnlyWritten)
}

#[idempotent(key = id)]
async fn not_storable_inside(id: u64) -> Result<Vec<Receipt>, Error> {
    Ok(vec![Receipt])
}

#[idempotent(key = id)]
async fn not_storable_inside_of_a_page(id: u64) -> Result<Page<Receipt>, Error> {
    Ok(Page { items: vec![Receipt] })
}

#[idempotent(key = id)]
async fn borrowed_inside(id: &str) -> Result<Vec<&str>, Error> {
    Ok(vec![id])
}

#[idempotent(key = id, name = "generic")]
async fn a_type_parameter<T: Default>(id: u64) -> Result<T, Error> {
    Ok(T::default())
}

// What is no result.

#[idempotent(key = id)]
async fn no_result(id: u64) -> Option<u64> {
    Some(id)
}

#[idempotent(key = id)]
async fn a_plain_value(id: u64) -> u64 {
    id
}

type Answer = Option<u64>;

#[idempotent(key = id)]
async fn no_result_by_its_other_name(id: u64) -> Answer {
    Some(id)
}

#[idempotent(key = id)]
async fn a_result_of_a_result_that_is_no_error(id: u64) -> Result<Result<u64, OrderError>, Error> {
    Ok(Ok(id))
}

// What cannot hold the errors of `idem`.

#[idempotent(key = id)]
async fn no_way_to_fail(id: u64) -> Result<u64, OrderError> {
    Ok(id)
}

#[idempotent(key = id)]
async fn fails_with_a_text(id: u64) -> Result<u64, String> {
    Ok(id)
}

#[idempotent(key = id)]
async fn fails_with_nothing(id: u64) -> Result<u64, ()> {
    Ok(id)
}

#[idempotent(key = id)]
async fn fails_with_io(id: u64) -> std::io::Result<u64> {
    Ok(id)
}

#[idempotent(key = id)]
async fn neither_stored_nor_failing(id: u64) -> Result<Receipt, OrderError> {
    Ok(Receipt)
}

// What does not answer the question what became of an earlier call.

#[idempotent(key = id, abandoned = reconcile("later(id)"))]
async fn no_future(id: u64) -> Result<u64, Error> {
    Ok(id)
}

fn later(id: u64) -> Result<Option<u64>, Error> {
    Ok(Some(id))
}

#[idempotent(key = id, abandoned = reconcile(always(id)))]
async fn no_option(id: u64) -> Result<u64, Error> {
    Ok(id)
}

async fn always(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[idempotent(key = id, abandoned = reconcile(surely(id)))]
async fn no_result_of_an_option(id: u64) -> Result<u64, Error> {
    Ok(id)
}

async fn surely(id: u64) -> Option<u64> {
    Some(id)
}

#[idempotent(key = id, abandoned = reconcile("otherwise(id)"))]
async fn another_error(id: u64) -> Result<u64, Error> {
    Ok(id)
}

async fn otherwise(id: u64) -> Result<Option<u64>, OrderError> {
    Err(OrderError)
}

#[idempotent(key = id, abandoned = reconcile(otherwhat(id)))]
async fn another_value(id: u64) -> Result<u64, Error> {
    Ok(id)
}

async fn otherwhat(id: u64) -> Result<Option<String>, Error> {
    Ok(None)
}

#[idempotent(key = id, abandoned = reconcile("lookup(&id).await"))]
async fn already_awaited(id: u64) -> Result<u64, Error> {
    Ok(id)
}

async fn lookup(id: &u64) -> Result<Option<u64>, Error> {
    Ok(Some(*id))
}

fn main() {}
