//! Mistakes of the body that are found last: they lie in the body, too.

#![allow(unused)]

use idem::{Error, idempotent};

#[derive(Clone)]
struct Req {
    order_id: String,
}

#[idempotent(key = req.order_id)]
async fn moved_twice(req: Req) -> Result<(), Error> {
    drop(req);
    drop(req);
    Ok(())
}

#[idempotent(key = req.order_id)]
async fn changed_without_mut(req: Req) -> Result<(), Error> {
    req.order_id.clear();
    Ok(())
}

#[idempotent(key = req.order_id, errors(_ => retry(max = 3)))]
async fn moved_twice_in_a_retried_body(req: Req) -> Result<(), Error> {
    drop(req);
    drop(req);
    Ok(())
}

#[idempotent(key = req.order_id, errors(_ => retry(max = 3)))]
async fn changed_without_mut_in_a_retried_body(req: Req) -> Result<(), Error> {
    req.order_id.clear();
    Ok(())
}

#[idempotent(key = req.order_id)]
async fn moved_out_of_a_reference(req: &Req) -> Result<String, Error> {
    Ok(req.order_id)
}

fn main() {}
