#![allow(unused)]

use idem::{Error, idempotent};

#[idempotent(key = id, ttl = 300)]
async fn no_unit(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = "300")]
async fn no_unit_in_quotes(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = "1h 30")]
async fn no_second_unit(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = 5m)]
async fn no_quotes(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = 5 m)]
async fn no_quotes_and_a_space(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = 1h 30m)]
async fn no_quotes_and_two_units(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, lease = "0s")]
async fn zero(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, lease = "")]
async fn empty(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, lease = "-5s")]
async fn negative(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, lease = -5)]
async fn negative_without_quotes(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = "soon")]
async fn a_word(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = "5 minuts")]
async fn a_misspelt_unit(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = "PT5M")]
async fn as_iso_8601_writes_it(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = "1M")]
async fn a_month(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, remember = "1 year")]
async fn a_year(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = "99999999999999999999s")]
async fn without_end(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = "Duration::from_secs(5)")]
async fn an_expression_in_quotes(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, lease = "10ms")]
async fn too_short_a_lease(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = "1h", remember = "5m")]
async fn remembers_too_little(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = ("5m", "6m"))]
async fn two_durations(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = 'm')]
async fn a_char(id: u64) -> Result<(), Error> {
    Ok(())
}

fn main() {}
