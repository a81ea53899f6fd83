//! Names that the compiler looks for, because more than a parameter can be meant.

#![allow(unused)]

use idem::{Error, idempotent};

struct Req {
    order_id: u64,
    tenant: String,
}

const TENANT: &str = "acme";

fn order_id(req: &Req) -> u64 {
    req.order_id
}

#[idempotent(key = (TENNANT, req.order_id))]
async fn a_misspelt_constant(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "(TENNANT, req.order_id)")]
async fn a_misspelt_constant_in_a_string(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = ordr_id(&req))]
async fn a_misspelt_function(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "ordr_id(&req)")]
async fn a_misspelt_function_in_a_string(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "order_id(&rek)")]
async fn a_misspelt_argument_in_a_string(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = order_id(&rek))]
async fn a_misspelt_argument(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "format!(\"{}-{}\", rek.tenant, req.order_id)")]
async fn in_a_macro_in_a_string(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = format!("{tennant}"))]
async fn in_a_format_string(tenant: String) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = idd as u64)]
async fn under_a_cast(id: u32) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = Reg::order_id(&req))]
async fn a_misspelt_type(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "Uuid::nil()")]
async fn a_type_that_is_not_imported(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.order_id, ttl = Duration::from_secs(5))]
async fn a_duration_that_is_not_imported(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.order_id, abandoned = reconcile("lookupp(&req)"))]
async fn a_misspelt_question(req: Req) -> Result<(), Error> {
    Ok(())
}

async fn lookup(req: &Req) -> Result<Option<()>, Error> {
    Ok(None)
}

#[idempotent(key = self::id)]
async fn a_static_that_is_not_there(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.order_id, errors(OrderError::Declined => release, _ => release))]
async fn a_misspelt_error(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.order_id, errors(Eror::InFlight { .. } => release, _ => release))]
async fn a_misspelt_error_with_a_close_name(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.order_id, errors(InFlight { .. } => release, _ => release))]
async fn a_variant_without_its_type(req: Req) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.order_id, errors(error if atempt > 3 => release, _ => release))]
async fn a_misspelt_name_in_a_guard(req: Req, attempt: u32) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = req.order_id, errors(_ => retry(max = 3, backoff = LONGG)))]
async fn a_misspelt_duration_in_an_action(req: Req) -> Result<(), Error> {
    Ok(())
}

const LONG: std::time::Duration = std::time::Duration::MAX;

fn main() {}
