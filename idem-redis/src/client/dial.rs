//! How a connection to a server is made, before anything is said on it.

use idem_core::StoreError;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};

use crate::client::error::{refused, unconnected};
use crate::client::target::Target;

/// Opens a connection without upkeep. The caller sets a time limit around it.
pub(crate) async fn plain(target: &Target, config: AsyncConnectionConfig) -> Result<MultiplexedConnection, StoreError> {
    let config = config.set_connection_timeout(None).set_response_timeout(None);
    let connection = client(target.clone())?.get_multiplexed_async_connection_with_config(&config).await;
    connection.map_err(|error| unconnected(&target.name, error))
}

/// The client of redis-rs for a server.
pub(crate) fn client(target: Target) -> Result<Client, StoreError> {
    #[cfg(feature = "tls")]
    if target.tls && rustls::crypto::CryptoProvider::get_default().is_none() {
        // rustls panics where it cannot tell which provider to use, which is so as soon as another
        // crate switches on a second one.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    Client::open(target.info)
        .map_err(|error| refused(format!("the Redis URL `{}` cannot be used: {error}", target.name)).with_source(error))
}
