//! `missing_key` on keys that always have a value.

use idem::http::IdempotencyKey;
use idem::{Error, KeyPart, idempotent};

#[derive(KeyPart)]
struct OrderId(u64);

#[derive(KeyPart)]
struct Line {
    order: OrderId,
    position: u8,
}

#[derive(KeyPart)]
struct Tenant<T>(T);

#[derive(KeyPart)]
enum Region {
    Europe,
    Africa,
}

#[idempotent(key = key, missing_key = run)]
async fn a_header(key: IdempotencyKey) -> Result<u64, Error> {
    Ok(key.as_str().len() as u64)
}

#[idempotent(key = (user, key), missing_key = reject)]
async fn a_header_of_a_user(user: u64, key: IdempotencyKey) -> Result<u64, Error> {
    Ok(user)
}

#[idempotent(key = line, missing_key = run)]
async fn a_type_of_types(line: Line) -> Result<u64, Error> {
    Ok(line.order.0)
}

#[idempotent(key = tenant, missing_key = run)]
async fn a_generic_one_of_a_number(tenant: Tenant<u64>) -> Result<u64, Error> {
    Ok(tenant.0)
}

#[idempotent(key = region, missing_key = run)]
async fn an_enum_of_words(region: Region) -> Result<u64, Error> {
    Ok(1)
}

fn main() {
    let _ = [Region::Europe, Region::Africa];
}
