#![allow(unused)]

use idem::{Error, idempotent};

// Options that there are not.

#[idempotent(key = id, tll = "5m")]
async fn misspelt(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, fingreprints = id)]
async fn misspelt_twice_over(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(kye = id)]
async fn misspelt_key(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, colour = "red")]
async fn unknown(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, TTL = "5m")]
async fn in_capitals(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(id = id)]
async fn alias_of_key(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, expires_in = 300)]
async fn alias_of_ttl(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, timeout = "30s")]
async fn alias_of_lease_or_in_flight(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, wait = "5s")]
async fn alias_of_in_flight(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, retries = 3)]
async fn alias_of_max_attempts(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, reconcile("lookup(id)"))]
async fn alias_of_abandoned(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, keep(Error::InFlight { .. }))]
async fn alias_of_errors(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, max_attempt = 3)]
async fn in_the_singular(id: u64) -> Result<(), Error> {
    Ok(())
}

// Options that are there, and not as they are written.

#[idempotent]
async fn nothing_at_all(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent()]
async fn nothing_in_parentheses(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(ttl = "5m")]
async fn no_key(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent("id")]
async fn only_a_string(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(order_id)]
async fn only_a_parameter(order_id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(req.order_id)]
async fn only_a_field(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent = "id"]
async fn a_string_behind_equals(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = "5m", ttl = "6m")]
async fn twice(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, key = id)]
async fn two_keys(id: u64, other: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, detached, detached)]
async fn a_flag_twice(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, errors(policy), errors(_ => release))]
async fn errors_twice(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key)]
async fn no_value(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = , lease = "30s")]
async fn no_value_after_equals(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key(id))]
async fn parentheses_for_equals(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl: "5m")]
async fn a_colon_for_equals(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key => id)]
async fn an_arrow_for_equals(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key == id)]
async fn two_equals(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl "5m")]
async fn nothing_for_equals(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id ttl = "5m")]
async fn no_comma(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id detached)]
async fn no_comma_before_a_flag(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id; ttl = "5m")]
async fn a_semicolon_for_a_comma(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id,, ttl = "5m")]
async fn two_commas(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, 5)]
async fn a_number_for_an_option(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id id)]
async fn two_values(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = fn)]
async fn a_keyword_for_a_value(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, detached = true)]
async fn a_flag_with_a_value(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, detached(true))]
async fn a_flag_with_parentheses(id: u64) -> Result<(), Error> {
    Ok(())
}

// All mistakes at once, each at its place, and the function is there all the same.
#[idempotent(key = "", ttl = 5, retention = "1h", in_flight = wiat, max_attempts = 0, name = "", errors(_ => kep))]
async fn many(id: u64) -> Result<(), Error> {
    Ok(())
}

struct Req {
    order_id: u64,
}

fn main() {
    drop(many(1));
    drop(only_a_field(Req { order_id: 1 }));
}
