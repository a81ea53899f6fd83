#![allow(unused)]

use idem::{Error, idempotent};

struct Req {
    order_id: u64,
    tenant: String,
}

// What is no expression.

#[idempotent(key = "")]
async fn empty(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "  ")]
async fn blank(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = ())]
async fn no_parts(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "()")]
async fn no_parts_in_a_string(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = ("req.tenant", ""))]
async fn an_empty_part(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "req.order_id +")]
async fn half(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "req.")]
async fn half_a_field(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.)]
async fn half_a_field_without_quotes(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "req.order id")]
async fn two_words(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "req.tenant, req.order_id")]
async fn two_parts_without_parentheses(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.tenant, req.order_id)]
async fn two_parts_without_parentheses_or_quotes(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "order-{req.order_id}")]
async fn as_a_template(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "#req.orderId")]
async fn as_spring_writes_it(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "format(req.order_id")]
async fn an_open_parenthesis(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = ("req.tenant", "req.", "req.order_id +"))]
async fn two_wrong_parts(req: Req) -> Result<(), Error> {
    Ok(())
}

// What is no parameter.

#[idempotent(key = "rek.order_id")]
async fn misspelt(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = rek.order_id)]
async fn misspelt_without_quotes(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "order.order_id")]
async fn unknown(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = order_id)]
async fn of_two(req: Req, attempt: u32) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = order_id)]
async fn of_none() -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "acme")]
async fn a_constant_text(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = ("acme", "req.order_id"))]
async fn a_constant_part(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = self.order_id)]
async fn self_in_a_function(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = self.order_id)]
async fn self_in_a_function_of_nothing() -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = json.order_id)]
async fn the_pattern_has_another_name((req, _attempt): (Req, u32)) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = &rek.tenant)]
async fn behind_a_reference(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = rek.tenant.to_lowercase())]
async fn under_a_method(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = ids[0])]
async fn under_an_index(orders: Vec<u64>) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.order_id + atempt)]
async fn in_a_sum(req: Req, attempt: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = ("rek.tenant", rek.order_id))]
async fn in_two_parts(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.order_id, fingerprint = "rek")]
async fn in_the_fingerprint(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.order_id, ttl = keep)]
async fn in_a_duration(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.order_id, in_flight = wait(limit))]
async fn in_a_wait(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.order_id, runtime = "self.idempotency")]
async fn in_the_runtime(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.order_id, abandoned = reconcile(rek.lookup()))]
async fn in_the_question(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.order_id, errors(_ => keep(ttl = keep)))]
async fn in_an_action(req: Req) -> Result<(), Error> {
    Ok(())
}

struct Service;

impl Service {
    #[idempotent(key = self.order_id, name = "service.create")]
    async fn self_in_an_associated_function(req: Req) -> Result<(), Error> {
        Ok(())
    }
}

// Strings that are no expressions where they stand.

#[idempotent(key = ["tenant", "id"])]
async fn parts_in_brackets(tenant: String, id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = &"id")]
async fn a_reference_to_a_string(id: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, fingerprint = ["tenant", "cents"])]
async fn a_fingerprint_in_brackets(id: u64, tenant: String, cents: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = (id, &"tenant"))]
async fn a_reference_to_a_string_in_a_part(id: u64, tenant: String) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id, fingerprint = { "tenant" })]
async fn a_string_in_a_block(id: u64, tenant: String) -> Result<(), Error> {
    Ok(())
}

// More parts than a tuple has.

#[idempotent(key = (a, a, a, a, a, a, a, a, a))]
async fn nine_parts(a: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "(a, (a, a, a, a, a, a, a, a, a))")]
async fn nine_parts_in_one(a: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = a, fingerprint = (a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, "a"))]
async fn seventeen_parts(a: u64) -> Result<(), Error> {
    Ok(())
}

fn main() {}
