use idem::{Error, idempotent};

#[idempotent]
async fn no_key(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "")]
async fn empty_key(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "id +")]
async fn half_a_key(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, tll = "5m")]
async fn misspelt(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = "5m", ttl = "6m")]
async fn twice(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = 300)]
async fn no_unit(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, lease = "0s")]
async fn no_lease(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = "soon")]
async fn no_duration(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, ttl = "1h", remember = "5m")]
async fn remembers_too_little(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, max_attempts = 0)]
async fn no_attempts(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, duplicate = refuse)]
async fn no_such_word(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, name = "")]
async fn empty_name(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, name = "orders create")]
async fn name_with_a_space(id: u64) -> Result<(), Error> {
    Ok(())
}

// All mistakes at once, each at its place, and the function is there all the same.
#[idempotent(key = "", ttl = 5, retention = "1h", in_flight = wiat)]
async fn many(id: u64) -> Result<(), Error> {
    Ok(())
}

fn main() {
    drop(many(1));
}
