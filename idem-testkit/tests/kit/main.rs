//! The kit itself: its servers and their ports, its network, and its store that fails on demand.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod databases;
mod fault_store;
mod in_ci;
mod leftovers;
mod outcomes;
#[cfg(target_os = "linux")]
mod ports;
mod proxy;
mod server;
mod until;
