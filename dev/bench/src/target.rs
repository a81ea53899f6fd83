//! The server that is measured against: one of our own, or one that was named.

use std::env;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use idem::{Idempotency, RedisStore};
use idem_testkit::{RedisServer, Reply};

/// How long records are kept on a server of our own: a usual time.
const DAY: Duration = Duration::from_secs(86_400);
/// On a server that others use too: long enough for a round.
const SHORT: Duration = Duration::from_secs(300);
/// Names the program of a Valkey.
const VALKEY: &str = "IDEM_VALKEY_SERVER";

/// A server, and the prefix of its keys.
pub(crate) struct Target {
    /// `None`: an existing server, which gets only calls.
    own: Option<RedisServer>,
    url: String,
    /// The prefix of all keys of this run.
    pub(crate) run: String,
}

impl Target {
    /// The server at a URL, or one of our own.
    pub(crate) async fn open(url: Option<String>) -> Result<Self> {
        let run = run_prefix();
        if let Some(url) = url {
            return Ok(Self {
                own: None,
                url,
                run,
            });
        }
        Ok(Self::of(RedisServer::start().await?, run))
    }

    /// A Valkey of our own, whose program `IDEM_VALKEY_SERVER` names.
    pub(crate) async fn valkey() -> Result<Self> {
        let program = env::var_os(VALKEY).with_context(|| format!("{VALKEY} names none"))?;
        let server = RedisServer::builder().program(program).start().await?;
        Ok(Self::of(server, run_prefix()))
    }

    fn of(server: RedisServer, run: String) -> Self {
        Self {
            url: server.url(),
            own: Some(server),
            run,
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The server, if it is our own.
    pub(crate) fn own(&self) -> Option<&RedisServer> {
        self.own.as_ref()
    }

    pub(crate) fn ttl(&self) -> Duration {
        if self.own.is_some() { DAY } else { SHORT }
    }

    pub(crate) fn ttl_ms(&self) -> u64 {
        self.ttl().as_secs() * 1000
    }

    /// The prefix of the library's records: its default, unless others may use it.
    pub(crate) fn prefix(&self) -> String {
        if self.own.is_some() {
            "idem".to_owned()
        } else {
            self.run.clone()
        }
    }

    /// One more store, with connections of its own.
    pub(crate) async fn store(&self) -> Result<RedisStore> {
        store(&self.url, &self.prefix()).await
    }

    /// A runtime with the settings of this run.
    pub(crate) fn idempotency(&self, store: RedisStore) -> Idempotency {
        Idempotency::builder(store).ttl(self.ttl()).build()
    }

    /// Forgets all records, if the server is our own.
    pub(crate) async fn clear(&self) -> Result<()> {
        if self.own.is_some() {
            self.ask(&["FLUSHALL", "SYNC"]).await?;
        }
        Ok(())
    }

    /// The server's name and version.
    pub(crate) async fn version(&self) -> Result<String> {
        let client = redis::Client::open(self.url.as_str())?;
        let mut connection = client
            .get_multiplexed_async_connection()
            .await
            .context("cannot connect to Redis")?;
        let info: String = redis::cmd("INFO")
            .arg("server")
            .query_async(&mut connection)
            .await?;
        let value = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::trim_end)
        };
        let valkey = value("valkey_version:").map(|version| format!("Valkey {version}"));
        let redis = value("redis_version:").map(|version| format!("Redis {version}"));
        Ok(valkey.or(redis).unwrap_or_else(|| "unknown".to_owned()))
    }

    /// The number that our own server replies.
    pub(crate) async fn number(&self, command: &[&str]) -> Result<i64> {
        let reply = self.ask(command).await?;
        reply
            .number()
            .with_context(|| format!("{}: no number: {reply}", command.join(" ")))
    }

    async fn ask(&self, command: &[&str]) -> Result<Reply> {
        let server = self.own.as_ref().context("the server is not our own")?;
        match server.cli(command).await? {
            Reply::Error(error) => bail!("{}: {error}", command.join(" ")),
            reply => Ok(reply),
        }
    }
}

/// A store of its own connections, by a URL.
pub(crate) async fn store(url: &str, prefix: &str) -> Result<RedisStore> {
    Ok(RedisStore::builder()
        .url(url)
        .prefix(prefix)
        .connect()
        .await?)
}

fn run_prefix() -> String {
    format!("idem-bench-{:05x}", fastrand::u32(..1 << 20))
}
