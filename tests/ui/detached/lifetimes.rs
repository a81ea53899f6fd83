#![allow(unused)]

use std::borrow::Cow;

use idem::{Error, idempotent};

struct Req<'a> {
    id: &'a str,
}

#[idempotent(key = req.id, detached)]
async fn borrowed_inside(req: Req<'_>) -> Result<usize, Error> {
    Ok(req.id.len())
}

#[idempotent(key = id, detached)]
async fn perhaps_borrowed(id: Option<&str>) -> Result<usize, Error> {
    Ok(id.map_or(0, str::len))
}

#[idempotent(key = id, detached)]
async fn borrowed_or_owned(id: Cow<'_, str>) -> Result<usize, Error> {
    Ok(id.len())
}

#[idempotent(key = id, name = "generic", detached)]
async fn a_type_parameter<T: Send>(id: u64, item: T) -> Result<(), Error> {
    drop(item);
    Ok(())
}

#[idempotent(key = id, name = "generic", detached)]
async fn an_argument_of_some_type(id: u64, item: impl AsRef<str> + Send) -> Result<usize, Error> {
    Ok(item.as_ref().len())
}

fn main() {}
