//! The layers, which are built on the engine. Nothing below names a layer, and a layer uses only
//! the public API, `api`, what [`adapter::engine`](crate::adapter) offers, and layers before it.
//! `cargo xtask without` takes six of the ten out, one after the other, and tests the rest.

#[cfg(feature = "axum")]
mod axum;
pub(crate) mod cache;
#[cfg(feature = "encryption")]
pub(crate) mod encryption;
pub(crate) mod locks;
pub(crate) mod memory;
pub(crate) mod ops;
pub(crate) mod steps;
pub(crate) mod tokens;
pub(crate) mod transactions;
pub mod wire;
