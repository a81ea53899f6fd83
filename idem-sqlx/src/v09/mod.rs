//! The stores, for sqlx 0.9.

#[doc(no_inline)]
pub use ::sqlx;

/// A statement's text, as this version of sqlx takes it. This crate writes all of it; the table's
/// name is a plain identifier.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) fn sql(text: &std::sync::Arc<str>) -> sqlx::AssertSqlSafe<std::sync::Arc<str>> {
    sqlx::AssertSqlSafe(text.clone())
}

/// A statement that begins a transaction.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) type Beginning = sqlx::SqlStr;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) fn fixed(text: &'static str) -> Beginning {
    sqlx::SqlSafeStr::into_sql_str(text)
}

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) fn composed(text: String) -> Beginning {
    sqlx::SqlSafeStr::into_sql_str(sqlx::AssertSqlSafe(text))
}

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) use ::sqlx_core::transaction::TransactionManager;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
#[path = "../driver/mod.rs"]
mod driver;

/// Tests for one version of sqlx alone.
#[cfg(all(test, feature = "postgres", feature = "mysql", feature = "sqlite"))]
#[path = "../driver/executor/tests/mod.rs"]
mod tests;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub use self::driver::*;
