//! The conformance suite over `RedisStore`: on its own connection, and on one that the application has.

use idem_core::record::RecordId;
use idem_redis::{RedisStore, redis};
use idem_testkit::{BoxError, RedisServer, Subject, suite};

/// Each handle has a connection of its own, as each process has.
#[derive(Clone, Copy)]
enum Connection {
    Own,
    Applications,
}

impl Subject for Connection {
    type Store = RedisStore;

    async fn store(&self) -> Result<RedisStore, BoxError> {
        let url = RedisServer::shared().await?.url();
        Ok(match self {
            Self::Own => RedisStore::connect(url).await?,
            Self::Applications => {
                RedisStore::from_connection(redis::Client::open(url)?.get_multiplexed_async_connection().await?)
            }
        })
    }

    async fn plant(&self, id: &RecordId, value: &[u8]) -> Result<bool, BoxError> {
        let key = format!("idem:{}", id.as_str());
        RedisServer::shared().await?.cli(&[b"SET", key.as_bytes(), value, b"PX", b"60000"]).await?;
        Ok(true)
    }
}

fn main() {
    let mut trials = suite::tests("own::", || Connection::Own);
    trials.extend(suite::tests("applications::", || Connection::Applications));
    suite::run_tests(trials)
}
