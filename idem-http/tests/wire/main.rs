//! Both ends over real connections: the client against a scripted server, chains of services,
//! HTTP/2, two processes.
#![cfg(all(feature = "axum", feature = "client"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "tests of pauses read the paused clock")]

mod chain;
mod client;
mod disconnects;
mod http2;
mod lookups;
mod processes;
mod scripted;
#[path = "../support/mod.rs"]
mod support;

use std::net::SocketAddr;

use axum::Router;
use tokio::net::TcpListener;

/// Serves an application at a port of this machine, until the runtime ends.
async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}
