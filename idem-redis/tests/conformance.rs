//! The conformance suite over `RedisStore`: on its own connection, to a server without
//! `SET .. IFEQ` and to one with it (emulated, as [`front`] says), and on one that the application
//! has.
// Of the helper: a test stops where it cannot go on.
#![allow(clippy::unwrap_used)]

#[path = "redis/front.rs"]
mod front;
#[path = "support/patience.rs"]
mod patience;

use std::time::Duration;

use idem_core::record::RecordId;
use idem_redis::RedisStore;
use idem_testkit::{BoxError, RedisServer, Subject, suite};

use crate::front::{Front, VALKEY_8_1};
use crate::patience::{connection, patient_builder};

/// Each handle has a connection of its own, as each process has.
#[derive(Clone, Copy)]
enum Connection {
    Own,
    Compares,
    Applications,
}

impl Subject for Connection {
    type Store = RedisStore;

    async fn store(&self) -> Result<RedisStore, BoxError> {
        let server = RedisServer::shared().await?;
        let url = server.url();
        let builder = match self {
            Self::Own => patient_builder(url),
            Self::Compares => patient_builder(Front::start(server.port(), VALKEY_8_1).await.url()),
            Self::Applications => RedisStore::builder()
                .connection(connection(url).await)
                .time_limit(Duration::from_secs(20)),
        };
        Ok(builder.connect().await?)
    }

    async fn plant(&self, id: &RecordId, value: &[u8]) -> Result<bool, BoxError> {
        let key = format!("idem:{}", id.as_str());
        RedisServer::shared()
            .await?
            .cli(&[b"SET", key.as_bytes(), value, b"PX", b"60000"])
            .await?;
        Ok(true)
    }
}

fn main() {
    let mut trials = suite::tests("own::", || Connection::Own);
    trials.extend(suite::tests("compares::", || Connection::Compares));
    trials.extend(suite::tests("applications::", || Connection::Applications));
    trials.extend(suite::admin_tests("own::", || Connection::Own));
    trials.extend(suite::admin_tests("applications::", || {
        Connection::Applications
    }));
    suite::run_tests(trials)
}
