//! What a guard and an action may take from the parameters.

#![allow(unused)]

use std::time::Duration;

use idem::{Error, idempotent};

#[derive(Clone)]
struct Req {
    tenant: String,
    keep: Duration,
}

#[idempotent(key = req.tenant, errors(_ if req.tenant == "acme" => release, _ => release))]
async fn a_guard_that_uses_what_the_body_moves(req: Req) -> Result<String, Error> {
    Ok(req.tenant)
}

#[idempotent(key = req.tenant, errors(_ if req.tenant == "acme" => retry(max = 3), _ => release))]
async fn a_guard_that_uses_what_a_retried_body_moves(req: Req) -> Result<String, Error> {
    Ok(req.tenant)
}

#[idempotent(key = req.tenant, errors(_ if drop_it(req) => release, _ => release))]
async fn a_guard_that_moves_a_parameter(req: Req) -> Result<usize, Error> {
    Ok(1)
}

fn drop_it(_: Req) -> bool {
    true
}

#[idempotent(key = req.tenant, errors(_ if req.tenant == "acme" => release, _ => release))]
async fn a_guard_that_uses_what_the_body_changes(mut req: Req) -> Result<usize, Error> {
    req.tenant.clear();
    Ok(1)
}

#[idempotent(key = tenant, errors(_ if tenant == "acme" => release, _ => release), detached)]
async fn a_guard_that_borrows_in_a_detached_body(tenant: &str) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = 1, errors(_ if req.tenant == "acme" => release, _ => release), detached)]
async fn a_guard_that_takes_a_field_from_a_detached_body(req: Req) -> Result<u64, Error> {
    Ok(req.keep.as_secs())
}

fn main() {}
