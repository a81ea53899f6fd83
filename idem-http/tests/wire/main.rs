//! Both ends over real connections: the client against a scripted server, chains of services, HTTP/2, two processes.
#![cfg(all(feature = "axum", feature = "client"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "tests of pauses read the paused clock")]

mod chain;
mod client;
mod lookups;
mod scripted;
