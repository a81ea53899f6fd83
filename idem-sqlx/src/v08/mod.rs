//! The same stores, for sqlx 0.8.

pub use ::sqlx08 as sqlx;

use std::sync::Arc;

/// A statement's text, as this version of sqlx takes it.
pub(crate) fn sql(text: &Arc<str>) -> &str {
    text
}

#[path = "../driver/mod.rs"]
mod driver;

pub use self::driver::*;
