//! Both ends of the header: responses of a service behind the layer, lookups, the client of gRPC,
//! and `wire`, where client and service speak over real connections.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "tests of pauses read the paused clock"
)]

mod grpc_client;
mod layer;
mod lookup;
mod support;
mod wire;
