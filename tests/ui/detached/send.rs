#![allow(unused)]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

use idem::{Error, idempotent};

#[idempotent(key = id, detached)]
async fn an_argument_that_is_not_send(id: Rc<str>) -> Result<usize, Error> {
    Ok(id.len())
}

#[idempotent(key = id, detached)]
async fn a_variable_that_is_not_send(id: u64) -> Result<u64, Error> {
    let cell = Rc::new(id);
    std::future::ready(()).await;
    Ok(*cell)
}

#[idempotent(key = id, detached)]
async fn a_guard_of_a_mutex_that_is_not_send(id: u64) -> Result<u64, Error> {
    let mutex = Mutex::new(id);
    let guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
    std::future::ready(()).await;
    Ok(*guard)
}

#[idempotent(key = id, detached)]
async fn an_outcome_that_is_not_send(id: u64) -> Result<Cell<u64>, NotSend> {
    Ok(Cell::new(id))
}

struct NotSend(Rc<u64>);

impl From<Error> for NotSend {
    fn from(_: Error) -> Self {
        Self(Rc::new(1))
    }
}

#[idempotent(key = id, detached, errors(_ => retry(max = 3)))]
async fn an_argument_of_a_retried_body_that_is_not_send(id: Rc<str>) -> Result<usize, Error> {
    Ok(id.len())
}

#[idempotent(key = id, name = "generic", detached)]
async fn a_type_parameter_that_is_not_send<T: 'static>(id: u64, item: T) -> Result<(), Error> {
    drop(item);
    Ok(())
}

fn main() {}
