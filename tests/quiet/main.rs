//! All that asserts a duration or an allocation. These tests run alone on the machine, one after the
//! other: beside others, what they measure would be the others' work.

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
