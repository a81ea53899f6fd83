//! Promises of the engine that do not depend on the store, most of them over `MemoryStore` with a
//! paused clock. The same promises over every store are in `promises`.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::too_many_lines,
    missing_docs
)]

mod batches;
mod callbacks;
mod edges;
mod events;
mod flights;
#[cfg(all(feature = "axum", feature = "http", feature = "sqlite"))]
mod http_sql;
mod local_cache;
mod lookup;
#[cfg(feature = "metrics")]
mod metrics;
mod sends;
mod shutdown;
#[path = "../support/mod.rs"]
mod support;
mod tokens;
