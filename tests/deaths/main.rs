//! Deaths at each step of a call, over a real server behind a proxy: owners are killed and stopped,
//! futures dropped, requests and replies lost. `matrix` has the driver; the tables next to it list
//! what the next caller sees, on Redis, PostgreSQL, MariaDB and MySQL alike. `options` and `store`
//! have the options of an operation under the same faults, `bad_input` records changed by hand,
//! `keeper` many leases at once: these on Redis.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    missing_docs
)]

mod bad_input;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod beside;
mod dropped;
mod keeper;
mod killed;
mod late;
mod load;
mod log;
mod lost;
mod matrix;
mod options;
mod owner;
mod recognised;
mod server;
mod steps;
mod stopped;
mod store;
#[path = "../support/mod.rs"]
mod support;
mod wire;
