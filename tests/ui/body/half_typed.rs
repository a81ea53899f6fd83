use idem::{Error, idempotent};

struct Req {
    order_id: u64,
}

#[idempotent(key = req.order_id)]
async fn half_typed(req: Req) -> Result<u64, Error> {
    req.
}

fn main() {}
