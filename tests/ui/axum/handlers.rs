#![allow(unused)]

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use idem::{Error, idempotent};

struct Receipt;

// What is no key.

#[idempotent(key = header)]
async fn a_header(header: HeaderValue) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = headers["idempotency-key"])]
async fn one_of_the_headers(headers: HeaderMap) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = headers.get("idempotency-key"), missing_key = run)]
async fn a_header_that_can_be_missing(headers: HeaderMap) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id)]
async fn the_extractor(id: Path<u64>) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = id)]
async fn the_name_inside_of_another_pattern(Path(order): Path<u64>) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = (tenant, order))]
async fn a_float_inside_of_the_extractor(Path((tenant, order)): Path<(u64, f64)>) -> Result<(), Error> {
    Ok(())
}

// What is no outcome.

#[idempotent(key = id)]
async fn not_storable_inside_of_json(id: u64) -> Result<Json<Receipt>, Error> {
    Ok(Json(Receipt))
}

#[idempotent(key = id)]
async fn a_response(id: u64) -> Result<Response, Error> {
    Ok(Default::default())
}

#[idempotent(key = id)]
async fn a_status_and_not_storable(id: u64) -> Result<(StatusCode, Json<Receipt>), Error> {
    Ok((StatusCode::OK, Json(Receipt)))
}

#[idempotent(key = id)]
async fn a_status_behind_its_body(id: u64) -> Result<(Json<u64>, StatusCode), Error> {
    Ok((Json(id), StatusCode::OK))
}

#[idempotent(key = id)]
async fn only_a_status(Path(id): Path<u64>) -> StatusCode {
    StatusCode::OK
}

#[idempotent(key = id)]
async fn fails_with_a_status(Path(id): Path<u64>) -> Result<Json<u64>, StatusCode> {
    Ok(Json(id))
}

#[idempotent(key = id)]
async fn shows_something(Path(id): Path<u64>) -> impl axum::response::IntoResponse {
    Json(id)
}

#[idempotent(key = id, detached)]
async fn borrows_its_state(State(state): State<&str>, Path(id): Path<u64>) -> Result<Json<usize>, Error> {
    Ok(Json(state.len()))
}

fn main() {}
