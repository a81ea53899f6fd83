use idem::{Error, idempotent};

#[derive(Clone)]
struct Req {
    order_id: u64,
}

#[idempotent(key = req.order_id, errors(_ => retry(max = 3)), detached)]
async fn half_typed(req: Req) -> Result<u64, Error> {
    let _field = req.;
    Ok(1)
}

fn main() {}
