//! Tests that assert a duration or an allocation. They run alone on the machine, one after the
//! other, because other tests would change what they measure.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    missing_docs
)]

mod cost;
mod keeper;
mod redis_cost;
#[path = "../support/mod.rs"]
mod support;
