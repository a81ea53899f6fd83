//! Each layer and each lookup says whose keys it takes.
#![allow(unused)]

use axum::Router;
use axum::routing::{get_service, post};
use idem::http::{IdempotencyLayer, lookup};
use idem::{Idempotency, MemoryStore};

async fn charge() {}

fn runtime() -> Idempotency {
    Idempotency::new(MemoryStore::new())
}

fn a_layer_without_a_scope() -> Router {
    Router::new().route("/charges", post(charge)).layer(IdempotencyLayer::new(runtime()).name("payments"))
}

fn of_routes_without_a_scope() -> Router {
    Router::new().route("/charges", post(charge)).route_layer(IdempotencyLayer::new(runtime()))
}

fn of_one_method_without_a_scope() -> Router {
    Router::new().route("/charges", post(charge).layer(IdempotencyLayer::new(runtime())))
}

fn a_lookup_without_a_scope() -> Router {
    Router::new().route_service("/charges/by-key/{key}", lookup(runtime()).name("payments"))
}

fn a_lookup_of_one_method_without_a_scope() -> Router {
    Router::new().route("/charges/by-key/{key}", get_service(lookup(runtime())))
}

fn main() {}
