//! Mistakes in the policy of a call by hand: each is said once, where the policy is.

use idem::{Error, ErrorAction, Idempotency};

/// It has no stored form.
struct OrderError;

impl From<Error> for OrderError {
    fn from(_: Error) -> Self {
        Self
    }
}

async fn an_error_that_cannot_be_stored(idempotency: &Idempotency) -> Result<u64, OrderError> {
    let charged = idempotency
        .operation("orders.charge")
        .key("o-1")
        .errors(|_: &OrderError| ErrorAction::Keep)
        .run(|| async { Ok(1) })
        .await?;
    Ok(charged.into_inner())
}

async fn an_error_without_a_policy(idempotency: &Idempotency) -> Result<u64, Error> {
    let charged = idempotency
        .operation("orders.charge")
        .key("o-1")
        .errors_by_type::<Error>()
        .run(|| async { Ok(1) })
        .await?;
    Ok(charged.into_inner())
}

fn main() {}
