//! Both ends over real connections: the client against a scripted server, chains of services,
//! HTTP/2, two processes.

mod answers;
mod chain;
mod client;
mod credentials;
mod disconnects;
mod http2;
mod lookups;
mod processes;
mod raw;
mod redirects;
mod scripted;
mod unsent;

use std::net::SocketAddr;

use axum::Router;
use tokio::net::TcpListener;

/// The builder of each client. With TLS among its features, reqwest needs a provider of
/// cryptography, and reads the platform's certificates unless it is given some.
fn reqwest_builder() -> reqwest::ClientBuilder {
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().tls_certs_only([])
}

/// Serves an application at a port of this machine, until the runtime ends.
async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}
