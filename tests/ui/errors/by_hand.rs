#![allow(unused)]

use idem::{Error, ErrorAction, ErrorPolicy, Idempotency, Never, Sometimes};

/// Nothing of serde.
#[derive(Debug)]
struct Plain;

impl From<Error> for Plain {
    fn from(_: Error) -> Self {
        Self
    }
}

// Each of these is one mistake, and said once.

async fn a_policy_that_keeps(idempotency: Idempotency) -> Result<u32, Plain> {
    let call = idempotency.operation("orders").key("k").errors(|_: &Plain| ErrorAction::Keep);
    Ok(call.run(async || Ok(1)).await?.into_inner())
}

async fn a_policy_that_keeps_in_a_detached_call(idempotency: Idempotency) -> Result<u32, Plain> {
    let call = idempotency.operation("orders").key("k").errors(|_: &Plain| ErrorAction::Keep);
    Ok(call.run_detached(async || Ok(1)).await?.into_inner())
}

impl ErrorPolicy for Plain {
    type Keeps = Sometimes;
    type Retries = Never;

    fn action(&self) -> ErrorAction {
        ErrorAction::Keep
    }
}

async fn a_policy_of_the_type(idempotency: Idempotency) -> Result<u32, Plain> {
    let call = idempotency.operation("orders").key("k").errors_by_type::<Plain>();
    Ok(call.run(async || Ok(1)).await?.into_inner())
}

async fn a_policy_that_gives_a_text(idempotency: Idempotency) -> Result<u32, Plain> {
    let call = idempotency.operation("orders").key("k").errors(|_: &Plain| "keep");
    Ok(call.run(async || Ok(1)).await?.into_inner())
}

fn main() {}
