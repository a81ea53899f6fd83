use idem::{Error, idempotent};

#[idempotent(key = id)]
fn not_async(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id)]
async fn returns_nothing(id: u64) {}

#[idempotent(key = id)]
const fn constant(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id)]
async fn generic<T>(id: u64, item: T) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id)]
struct NotAFunction {
    id: u64,
}

struct Service;

impl Service {
    #[idempotent(key = id)]
    async fn method(&self, id: u64) -> Result<(), Error> {
        Ok(())
    }
}

trait Gateway {
    #[idempotent(key = id)]
    async fn charge(&self, id: u64) -> Result<(), Error>;
}

fn main() {}
