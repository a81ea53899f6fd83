//! A key only borrows.

#![allow(unused)]

use idem::{Error, idempotent};

struct Req {
    order_id: String,
    number: Number,
}

struct Number(String);

impl Number {
    fn into_text(self) -> String {
        self.0
    }
}

impl Req {
    fn into_id(self) -> String {
        self.order_id
    }

    fn next_id(&mut self) -> String {
        self.order_id.clone()
    }
}

#[idempotent(key = req.into_id())]
async fn moves_what_the_body_uses(req: Req) -> Result<String, Error> {
    Ok(req.order_id)
}

#[idempotent(key = "req.into_id()")]
async fn moves_what_the_body_uses_in_a_string(req: Req) -> Result<String, Error> {
    Ok(req.order_id)
}

#[idempotent(key = req.number.into_text())]
async fn moves_out_of_a_reference(req: &Req) -> Result<String, Error> {
    Ok(req.order_id.clone())
}

#[idempotent(key = req.next_id())]
async fn changes(req: Req) -> Result<String, Error> {
    Ok(req.order_id)
}

fn main() {}
