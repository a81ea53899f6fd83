//! Opens connections, before the handshake.

use idem_core::StoreError;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};

use crate::connection::error::{refused, unconnected};
use crate::connection::target::Target;

/// Opens a connection that is not replaced when it is lost. The caller sets a time limit around it.
pub(crate) async fn plain(
    target: &Target,
    config: AsyncConnectionConfig,
) -> Result<MultiplexedConnection, StoreError> {
    let config = config
        .set_connection_timeout(None)
        .set_response_timeout(None);
    let connection = client(target.clone())?
        .get_multiplexed_async_connection_with_config(&config)
        .await;
    connection.map_err(|error| unconnected(&target.name, error))
}

/// Returns redis-rs's client for a server.
pub(crate) fn client(target: Target) -> Result<Client, StoreError> {
    #[cfg(feature = "tls")]
    if target.tls && rustls::crypto::CryptoProvider::get_default().is_none() {
        // If two crates switch on two providers, rustls cannot choose one and panics.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    Client::open(target.info).map_err(|error| {
        refused(format!(
            "the Redis URL `{}` cannot be used: {error}",
            target.name
        ))
        .with_source(error)
    })
}
