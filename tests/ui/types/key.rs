use idem::{Error, idempotent};

struct Req {
    id: u64,
    weight: f64,
}

#[idempotent(key = "req.idd")]
async fn no_such_field(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = rek.id)]
async fn no_such_parameter(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.weight)]
async fn a_float(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req)]
async fn no_key_part(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.id, ttl = req.id)]
async fn no_duration(req: Req) -> Result<(), Error> {
    Ok(())
}

fn main() {}
