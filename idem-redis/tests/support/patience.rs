//! Connections and stores that do not fail on a busy machine.

use std::time::Duration;

use idem_redis::{RedisStore, RedisStoreBuilder};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};

/// The time that a step, and an attempt to connect, may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection of redis-rs without its own time limits.
#[allow(dead_code, reason = "one of the test programs may not use it")]
pub(crate) async fn connection(url: impl Into<String>) -> MultiplexedConnection {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None);
    let url: String = url.into();
    let client = Client::open(url).unwrap();
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    connecting.await.unwrap()
}

/// The settings of a store with long limits.
pub(crate) fn patient_builder(url: impl Into<String>) -> RedisStoreBuilder {
    let builder = RedisStore::builder().url(url).time_limit(PATIENCE);
    builder.connect_time_limit(PATIENCE)
}

/// A store with long limits.
#[allow(dead_code, reason = "one of the test programs does not use it")]
pub(crate) async fn patient(url: impl Into<String>) -> RedisStore {
    connected(patient_builder(url)).await
}

/// A store with the usual limits.
#[allow(dead_code, reason = "one of the test programs does not use it")]
pub(crate) async fn usual(url: impl Into<String>) -> RedisStore {
    connected(RedisStore::builder().url(url)).await
}

/// Connects. A busy machine may miss a limit of one attempt, so there are several.
#[allow(dead_code, reason = "one of the test programs does not use it")]
pub(crate) async fn connected(builder: RedisStoreBuilder) -> RedisStore {
    for _ in 0..9 {
        if let Ok(store) = builder.clone().connect().await {
            return store;
        }
    }
    builder.connect().await.unwrap()
}
