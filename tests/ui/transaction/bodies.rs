//! Bodies that cannot run as a transaction must, and what they return.

#![allow(unused)]

use std::rc::Rc;

use idem::sqlx::{PgPool, PgTransaction};
use idem::{Error, Idempotency, idempotent};

pub struct Receipt;

#[derive(Debug)]
pub struct Declined;

impl From<Error> for Declined {
    fn from(_: Error) -> Self {
        Self
    }
}

async fn pause() {}

// What belongs to one thread, in a task that may move.

fn an_rc_in_a_transaction(idempotency: Idempotency, pool: PgPool) {
    tokio::spawn(async move {
        let body = async |_: &mut PgTransaction<'_>| {
            let local = Rc::new(1);
            pause().await;
            Ok::<u64, Error>(*local)
        };
        idempotency.operation("o").key("k").transaction(&pool, body).await
    });
}

fn an_rc_in_the_callers_transaction(idempotency: Idempotency, pool: PgPool) {
    tokio::spawn(async move {
        let mut tx = pool.begin().await.unwrap();
        let body = async |_: &mut PgTransaction<'_>| {
            let local = Rc::new(1);
            pause().await;
            Ok::<u64, Error>(*local)
        };
        idempotency.operation("o").key("k").run_in(&mut tx, body).await
    });
}

#[idempotent(key = id, transaction = tx)]
async fn with_an_rc(tx: &mut PgTransaction<'_>, id: u64) -> Result<u64, Error> {
    let local = Rc::new(id);
    pause().await;
    Ok(*local)
}

fn an_rc_in_an_annotated_function(pool: PgPool) {
    tokio::spawn(async move {
        let mut tx = pool.begin().await.unwrap();
        with_an_rc(&mut tx, 1).await
    });
}

// What a second run of the transaction would not have.

async fn an_exclusive_borrow(idempotency: Idempotency, pool: PgPool) {
    let mut tries = 0;
    let body = async |_: &mut PgTransaction<'_>| {
        tries += 1;
        Ok::<u64, Error>(tries)
    };
    idempotency.operation("o").key("k").transaction(&pool, body).await;
}

async fn an_owned_value(idempotency: Idempotency, pool: PgPool, declined: Declined) {
    let body = async move |_: &mut PgTransaction<'_>| {
        let declined = &declined;
        Ok::<u64, Error>(1)
    };
    idempotency.operation("o").key("k").transaction(&pool, body).await;
}

// What cannot be stored.

#[idempotent(key = id, transaction = tx)]
async fn not_storable(tx: &mut PgTransaction<'_>, id: u64) -> Result<Receipt, Error> {
    Ok(Receipt)
}

#[idempotent(key = id, transaction = tx, errors(_ => keep))]
async fn not_keepable(tx: &mut PgTransaction<'_>, id: u64) -> Result<u64, Declined> {
    Ok(id)
}

fn main() {}
