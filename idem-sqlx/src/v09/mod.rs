//! The stores, for sqlx 0.9.

pub use ::sqlx;

use std::sync::Arc;

use self::sqlx::AssertSqlSafe;

/// A statement's text, as this version of sqlx takes it. All of it is ours; the table's name is a plain identifier.
pub(crate) fn sql(text: &Arc<str>) -> AssertSqlSafe<Arc<str>> {
    AssertSqlSafe(text.clone())
}

#[path = "../driver/mod.rs"]
mod driver;

pub use self::driver::*;
