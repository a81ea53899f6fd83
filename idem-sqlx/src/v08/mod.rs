//! The same stores, for sqlx 0.8.

#[doc(no_inline)]
pub use ::sqlx08 as sqlx;

/// A statement's text, as this version of sqlx takes it.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) fn sql(text: &std::sync::Arc<str>) -> &str {
    text
}

/// A statement that begins a transaction.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) type Beginning = std::borrow::Cow<'static, str>;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) fn fixed(text: &'static str) -> Beginning {
    text.into()
}

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) fn composed(text: String) -> Beginning {
    text.into()
}

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) use ::sqlx_core08::transaction::TransactionManager;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
#[path = "../driver/mod.rs"]
mod driver;

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub use self::driver::*;
