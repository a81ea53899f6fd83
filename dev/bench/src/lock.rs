//! What people write who have a lock in Redis: take it, look for the result, work, write the
//! result, and give the lock back if it is still theirs.

use anyhow::{Context as _, Result, ensure};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Script, cmd};

const UNLOCK: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
/// How long the lock lasts, in milliseconds.
const LEASE: u64 = 30_000;

/// A connection, and the commands on it.
pub(crate) struct Lock {
    connection: MultiplexedConnection,
    unlock: Script,
    ttl: u64,
}

impl Lock {
    pub(crate) async fn connect(url: &str, ttl: u64) -> Result<Self> {
        let client = redis::Client::open(url)?;
        let connection = client.get_multiplexed_async_connection().await;
        Ok(Self {
            connection: connection.context("cannot connect to Redis")?,
            unlock: Script::new(UNLOCK),
            ttl,
        })
    }

    /// A first execution or a replay; returns the length of the result.
    pub(crate) async fn run(&self, key: &str, result: &str) -> Result<usize> {
        let mut connection = self.connection.clone();
        let lock = format!("{key}:lock");
        let token = format!("{:032x}", fastrand::u128(..));
        let mut take = cmd("SET");
        take.arg(&lock).arg(&token).arg("NX").arg("PX").arg(LEASE);
        let answer: Option<String> = take.query_async(&mut connection).await?;
        ensure!(answer.is_some(), "the lock is another's");
        let found: Option<String> = Cmd::get(key).query_async(&mut connection).await?;
        let length = if let Some(found) = found {
            found.len()
        } else {
            let mut write = cmd("SET");
            write.arg(key).arg(result).arg("PX").arg(self.ttl);
            let () = write.query_async(&mut connection).await?;
            result.len()
        };
        let mut unlock = self.unlock.key(&lock);
        let unlocked: u8 = unlock.arg(token).invoke_async(&mut connection).await?;
        ensure!(unlocked == 1, "the lock has gone");
        Ok(length)
    }
}
