//! A redis-server for one test, and what it says of itself.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::Duration;

use idem_testkit::RedisServer;
use redis::aio::{ConnectionManager, ConnectionManagerConfig, MultiplexedConnection};
use redis::{Client, FromRedisValue};
use tokio::time::advance;

use crate::patience::connection;
use crate::still::pause;

/// Ends with the value that holds it.
pub(crate) struct Server(RedisServer);

impl Deref for Server {
    type Target = RedisServer;

    fn deref(&self) -> &RedisServer {
        &self.0
    }
}

impl Server {
    pub(crate) async fn start(args: &[&str]) -> Self {
        let builder = RedisServer::builder();
        let builder = args.iter().fold(builder, |builder, &arg| builder.arg(arg));
        Self(builder.start().await.unwrap())
    }

    /// A connection for the test itself.
    pub(crate) async fn client(&self) -> MultiplexedConnection {
        connection(self.url()).await
    }

    /// Sends one command, given as words.
    pub(crate) async fn send<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_send(words).await.unwrap()
    }

    pub(crate) async fn try_send<T: FromRedisValue>(
        &self,
        words: &[&str],
    ) -> redis::RedisResult<T> {
        let mut command = redis::Cmd::new();
        command.arg(words);
        command.query_async(&mut self.client().await).await
    }

    /// Whether it has `SET .. IFEQ`.
    pub(crate) async fn compares(&self) -> bool {
        self.try_send::<Option<String>>(&["SET", "probe", "", "IFEQ", "nothing"])
            .await
            .is_ok()
    }

    /// The value of a key, as text.
    pub(crate) async fn get(&self, key: &str) -> Option<String> {
        self.send(&["GET", key]).await
    }

    /// How often each command was carried out since the last call of this, in scripts or not.
    pub(crate) async fn commands(&self) -> BTreeMap<String, u64> {
        // In one step: a command between the two would be counted nowhere.
        let mut both = redis::pipe();
        both.atomic();
        both.cmd("INFO").arg("commandstats");
        both.cmd("CONFIG").arg("RESETSTAT").ignore();
        let (stats,): (String,) = both.query_async(&mut self.client().await).await.unwrap();
        let count = |line: &str| {
            let (name, counts) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let calls = counts
                .strip_prefix("calls=")?
                .split(',')
                .next()?
                .parse()
                .ok()?;
            Some((name.to_owned(), calls))
        };
        // The commands of the test's own connections.
        let own = [
            "info",
            "config|resetstat",
            "multi",
            "exec",
            "hello",
            "client|setinfo",
            "ping",
        ];
        stats
            .lines()
            .filter_map(count)
            .filter(|(name, _)| !own.contains(&name.as_str()))
            .collect()
    }

    /// How often scripts were called since the last call of [`commands`](Self::commands), which
    /// this does not count as.
    pub(crate) async fn scripts(&self) -> u64 {
        let stats: String = self.send(&["INFO", "commandstats"]).await;
        let calls = stats
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        calls
            .and_then(|calls| calls.split(',').next()?.parse().ok())
            .unwrap_or(0)
    }

    pub(crate) async fn channels(&self) -> Vec<String> {
        self.send(&["PUBSUB", "CHANNELS"]).await
    }

    /// Lets a clock that [stands still](crate::still::within) go on in small steps until a future
    /// ends. Each step lasts at least as long in real time, and until the server has answered.
    pub(crate) async fn steps<T>(&self, future: impl Future<Output = T>) -> T {
        let mut client = self.client().await;
        let steps = async {
            loop {
                advance(Duration::from_millis(2)).await;
                pause(Duration::from_millis(2)).await;
                redis::cmd("PING").exec_async(&mut client).await.unwrap();
            }
        };
        tokio::select! {
            biased;
            result = future => result,
            () = steps => unreachable!(),
        }
    }
}

/// A connection of redis-rs that is replaced when it is lost, without its own time limits.
pub(crate) async fn connection_manager(url: impl Into<String>) -> ConnectionManager {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None);
    let url: String = url.into();
    let client = Client::open(url).unwrap();
    let connecting = client.get_connection_manager_with_config(config);
    connecting.await.unwrap()
}
