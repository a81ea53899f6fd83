use idem::{Error, idempotent};

struct Receipt;

#[idempotent(key = id)]
async fn not_storable(id: u64) -> Result<Receipt, Error> {
    Ok(Receipt)
}

#[idempotent(key = id)]
async fn no_result(id: u64) -> Option<u64> {
    Some(id)
}

#[derive(Debug)]
struct OrderError;

#[idempotent(key = id)]
async fn no_way_to_fail(id: u64) -> Result<u64, OrderError> {
    Ok(id)
}

// The body's own mistakes stay in the body.
#[idempotent(key = id)]
async fn wrong_value(id: u64) -> Result<u64, Error> {
    if id == 0 {
        return Ok("zero");
    }
    Ok(id == 1)
}

fn main() {}
