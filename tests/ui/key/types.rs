#![allow(unused)]

use std::time::SystemTime;

use idem::{Error, KeyPart, idempotent};

struct Req {
    order_id: u64,
    tenant: String,
    weight: f64,
    shipped: bool,
}

impl Req {
    fn number(&self) -> u64 {
        self.order_id
    }
}

// No such field or method.

#[idempotent(key = "req.order_idd")]
async fn no_such_field_in_a_string(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.order_idd)]
async fn no_such_field(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "req.numbr()")]
async fn no_such_method_in_a_string(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.numbr())]
async fn no_such_method(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "req.number")]
async fn a_method_without_parentheses_in_a_string(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.number)]
async fn a_method_without_parentheses(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "req.order_id()")]
async fn a_field_with_parentheses_in_a_string(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = ("req.tenant", "req.order_idd"))]
async fn no_such_field_in_a_part(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "req.as_ref().unwrap().order_idd")]
async fn no_such_field_in_an_option(req: Option<Req>) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.order_id)]
async fn a_field_of_an_option(req: Option<Req>) -> Result<(), Error> {
    Ok(())
}

struct Service;

impl Service {
    #[idempotent(key = self.order_id, name = "service.create")]
    async fn no_such_field_of_self(&self) -> Result<(), Error> {
        Ok(())
    }

    #[idempotent(key = id, name = "service.run", runtime = "self.idempotency")]
    async fn no_such_runtime(&self, id: u64) -> Result<(), Error> {
        Ok(())
    }
}

// No key part.

#[idempotent(key = req.weight)]
async fn a_float(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "req.weight")]
async fn a_float_in_a_string(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = 1.5)]
async fn a_float_as_it_is_written(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = (req.order_id, req.weight))]
async fn a_float_in_a_part(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = ("req.order_id", "req.weight"))]
async fn a_float_in_a_part_in_a_string(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = (req.order_id, (req.tenant, req.weight)))]
async fn a_float_in_a_part_of_a_part(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "(req.order_id, req.weight)")]
async fn a_float_in_a_tuple_in_a_string(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = pair)]
async fn a_float_in_a_parameter(pair: (u64, f64)) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = weight)]
async fn a_float_in_an_option(weight: Option<f64>) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req)]
async fn a_type_without_a_derive(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = (req.order_id, req))]
async fn a_type_without_a_derive_in_a_part(req: &Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = at)]
async fn a_foreign_type(at: SystemTime) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = (id, at))]
async fn a_foreign_type_in_a_part(id: u64, at: SystemTime) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = bytes)]
async fn bytes(bytes: Vec<u8>) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = unit)]
async fn a_unit(unit: ()) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, name = "generic")]
async fn a_type_parameter<Id>(id: Id) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = |req: &Req| req.order_id)]
async fn a_closure(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = order_id)]
async fn two_mistakes(order_id: f32, tenant: String) -> Result<(), Error> {
    tenant
}

// A key that cannot be missing.

#[derive(KeyPart)]
struct OrderId(u64);

#[idempotent(key = id, missing_key = run)]
async fn a_number_is_never_missing(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "id", missing_key = reject)]
async fn a_number_in_a_string_is_never_missing(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = (id, other), missing_key = run)]
async fn two_numbers_are_never_missing(id: u64, other: &i32) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, missing_key = run)]
async fn a_newtype_of_a_number_is_never_missing(id: OrderId) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = ("id", at), missing_key = run)]
async fn no_key_part_and_a_missing_key(id: u64, at: SystemTime) -> Result<(), Error> {
    Ok(())
}

// Other values.

#[idempotent(key = id, ttl = id)]
async fn no_duration(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, in_flight = wait(id))]
async fn no_duration_to_wait(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, max_attempts = tries)]
async fn no_number(id: u64, tries: &str) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, fingerprint = req)]
async fn no_fingerprint(id: u64, req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, fingerprint = (id, req))]
async fn no_fingerprint_in_a_part(id: u64, req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, runtime = id)]
async fn no_runtime(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, runtime = runtime)]
async fn perhaps_a_runtime(id: u64, runtime: Option<idem::Idempotency>) -> Result<(), Error> {
    Ok(())
}

fn main() {}
