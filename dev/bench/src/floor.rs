//! The floor: the commands of a claim, a commit and a replay by redis-rs alone.

use anyhow::{Context as _, Result, ensure};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Script, cmd};

/// The record's value while a body runs.
const IN_FLIGHT: &str = "in flight, by an owner";

/// Writes the outcome if the owner's record still stands there, as any guard must that outlives a
/// pause.
const COMMIT: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], \
                      ARGV[2], 'PX', ARGV[3]) return 1 end return 0";

/// A connection, and the commands on it.
#[derive(Clone)]
pub(crate) struct Floor {
    connection: MultiplexedConnection,
    commit: Script,
    ttl: u64,
}

impl Floor {
    pub(crate) async fn connect(url: &str, ttl: u64) -> Result<Self> {
        let client = redis::Client::open(url)?;
        let connection = client
            .get_multiplexed_async_connection()
            .await
            .context("cannot connect to Redis")?;
        Ok(Self {
            connection,
            commit: Script::new(COMMIT),
            ttl,
        })
    }

    /// Claim, and commit by a script that compares the owner.
    pub(crate) async fn first(&self, key: &str, result: &str) -> Result<()> {
        ensure!(self.claim(key).await?.is_none(), "the key was used before");
        self.commit(key, result).await
    }

    /// Claim, and commit without a look at the owner.
    pub(crate) async fn first_unchecked(&self, key: &str, result: &str) -> Result<()> {
        ensure!(self.claim(key).await?.is_none(), "the key was used before");
        let mut commit = cmd("SET");
        commit
            .arg(key)
            .arg(result)
            .arg("XX")
            .arg("PX")
            .arg(self.ttl);
        let done: Option<String> = commit.query_async(&mut self.connection.clone()).await?;
        ensure!(done.is_some(), "the record has gone");
        Ok(())
    }

    /// A claim that finds the outcome.
    pub(crate) async fn replay(&self, key: &str) -> Result<usize> {
        self.claim(key)
            .await?
            .map(|found| found.len())
            .context("there was no outcome")
    }

    /// Claims the key and returns its earlier value; `None` if it is claimed now.
    pub(crate) async fn claim(&self, key: &str) -> Result<Option<String>> {
        let mut claim = cmd("SET");
        claim
            .arg(key)
            .arg(IN_FLIGHT)
            .arg("NX")
            .arg("GET")
            .arg("PX")
            .arg(self.ttl);
        Ok(claim.query_async(&mut self.connection.clone()).await?)
    }

    pub(crate) async fn commit(&self, key: &str, result: &str) -> Result<()> {
        let mut commit = self.commit.key(key);
        commit.arg(IN_FLIGHT).arg(result).arg(self.ttl);
        let committed: u8 = commit.invoke_async(&mut self.connection.clone()).await?;
        ensure!(committed == 1, "the record is another's");
        Ok(())
    }

    /// The outcome, if it is there by now.
    pub(crate) async fn poll(&self, key: &str) -> Result<Option<String>> {
        let found: Option<String> = Cmd::get(key)
            .query_async(&mut self.connection.clone())
            .await?;
        Ok(found.filter(|found| found != IN_FLIGHT))
    }
}
