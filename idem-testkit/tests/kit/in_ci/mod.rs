//! Tests that take long, or need a server that only CI installs.

mod pgbouncer;
#[cfg(target_os = "linux")]
mod ports;
mod topologies;
