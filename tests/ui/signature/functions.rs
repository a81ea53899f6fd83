#![allow(unused)]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use idem::{Error, idempotent};

// Not async.

#[idempotent(key = id)]
fn not_async(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id)]
fn neither_async_nor_a_result(id: u64) {}

#[idempotent(key = id)]
fn gives_a_future(id: u64) -> impl Future<Output = Result<(), Error>> {
    async { Ok(()) }
}

#[idempotent(key = id)]
fn gives_a_future_that_is_send(id: u64) -> impl Send + std::future::Future<Output = Result<(), Error>> {
    async { Ok(()) }
}

#[idempotent(key = id)]
fn gives_a_box(id: u64) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
    Box::pin(async { Ok(()) })
}

#[idempotent(key = id)]
const fn constant(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id)]
extern "C" fn foreign(id: u64) -> u64 {
    id
}

// No result.

#[idempotent(key = id)]
async fn returns_nothing(id: u64) {}

#[idempotent(key = id)]
async fn returns_unit(id: u64) -> () {}

#[idempotent(key = id)]
async fn returns_never(id: u64) -> ! {
    std::process::exit(1)
}

#[idempotent(key = id)]
async fn returns_a_tuple(id: u64) -> (u64, u64) {
    (id, id)
}

#[idempotent(key = id)]
async fn returns_a_reference(id: &u64) -> &u64 {
    id
}

#[idempotent(key = id)]
async fn returns_an_array(id: u8) -> [u8; 1] {
    [id]
}

#[idempotent(key = id)]
async fn returns_impl_trait(id: u64) -> impl Send {
    id
}

#[idempotent(key = id)]
async fn hides_the_value(id: u64) -> Result<impl Send, Error> {
    Ok(id)
}

#[idempotent(key = id)]
async fn hides_the_error(id: u64) -> Result<u64, impl From<Error>> {
    Ok::<u64, Error>(id)
}

#[idempotent(key = id)]
async fn borrows_the_value(id: &str) -> Result<&str, Error> {
    Ok(id)
}

#[idempotent(key = id)]
async fn borrows_the_value_for_ever(id: u64) -> Result<&'static str, Error> {
    Ok("")
}

// No name.

#[idempotent(key = id)]
async fn generic<T>(id: u64, item: T) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id)]
async fn generic_in_a_number<const N: usize>(id: u64, items: [u8; N]) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id)]
async fn generic_without_a_parameter(id: u64, item: impl Send) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id)]
async fn generic_inside_of_a_parameter(id: u64, items: Vec<impl Send>) -> Result<(), Error> {
    Ok(())
}

struct Service;

impl Service {
    #[idempotent(key = id)]
    async fn method(&self, id: u64) -> Result<(), Error> {
        Ok(())
    }

    #[idempotent(key = id)]
    async fn method_that_changes(&mut self, id: u64) -> Result<(), Error> {
        Ok(())
    }

    #[idempotent(key = id)]
    async fn method_of_an_arc(self: Arc<Self>, id: u64) -> Result<(), Error> {
        Ok(())
    }

    #[idempotent(key = id)]
    async fn names_its_type(id: u64) -> Result<Self, Error> {
        Ok(Self)
    }
}

// Two mistakes.
impl Service {
    #[idempotent(key = id)]
    fn method_that_is_not_async(&self, id: u64) {}
}

// In traits.

trait Gateway {
    #[idempotent(key = id)]
    async fn charge(&self, id: u64) -> Result<(), Error>;

    #[idempotent(key = id)]
    async fn refund(&self, id: u64) -> Result<(), Error> {
        Ok(())
    }
}

#[async_trait::async_trait]
trait Bank {
    #[idempotent(key = id)]
    async fn charge(&self, id: u64) -> Result<(), Error>;
    async fn refund(&self, id: u64) -> Result<(), Error>;
    async fn look(&self, id: u64);
    async fn count(id: u64) -> Result<u64, Error>;
}

#[async_trait::async_trait]
impl Bank for Service {
    async fn charge(&self, id: u64) -> Result<(), Error> {
        Ok(())
    }

    #[idempotent(key = id)]
    async fn refund(&self, id: u64) -> Result<(), Error> {
        Ok(())
    }

    #[idempotent(key = id, name = "bank.look")]
    async fn look(&self, id: u64) {}

    #[idempotent(key = id)]
    async fn count(id: u64) -> Result<u64, Error> {
        Ok(id)
    }
}

fn main() {}
