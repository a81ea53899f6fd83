//! A master, its replicas, and the Sentinels that watch them.

use std::ffi::OsString;
use std::io;

use tokio::sync::OnceCell;

use super::members::{Looks, ask, index_of, majority_answer, replicas, says, tell, url};
use super::{RedisServer, RedisServerBuilder, Reply};

/// The name under which the Sentinels know the master.
const NAME: &str = "main";
/// The settings of Sentinels that find a dead master within a second, and put another in its place
/// a second or two later.
const QUICK: &[[&str; 2]] = &[
    ["down-after-milliseconds", "1000"],
    ["failover-timeout", "3000"],
    ["parallel-syncs", "2"],
];

/// Servers under Redis Sentinel: one master, three Sentinels, and two replicas unless the
/// [builder](Self::builder) says otherwise.
///
/// The Sentinels are quick: about two seconds after the master is gone, one of its replicas takes
/// its place. A server that comes back becomes a replica of the master of the day; for some seconds
/// it may still act as the master, as in production.
///
/// # Examples
///
/// ```no_run
/// use idem_testkit::RedisSentinels;
///
/// # async fn example() -> std::io::Result<()> {
/// let redis = RedisSentinels::start().await?;
/// let old = redis.master().await?;
/// redis.servers()[old].kill()?;
/// let new = redis.failed_over(old).await?;
/// assert_ne!(new, old);
/// redis.servers()[old].restart().await?;
/// redis.settled().await?; // the old master is a replica of the new one
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RedisSentinels {
    // Dropped first, so that they start no failover while the servers end.
    sentinels: Vec<RedisServer>,
    servers: Vec<RedisServer>,
}

/// [`RedisSentinels`] with other settings.
#[derive(Debug, Clone)]
pub struct RedisSentinelsBuilder {
    server: RedisServerBuilder,
    replicas: usize,
    sentinels: usize,
}

impl RedisSentinels {
    /// Starts them, and waits until they know each other.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::start`], and if they do not find each other.
    pub async fn start() -> io::Result<Self> {
        Self::builder().start().await
    }

    /// For other settings.
    pub fn builder() -> RedisSentinelsBuilder {
        RedisSentinelsBuilder {
            server: RedisServer::builder(),
            replicas: 2,
            sentinels: 3,
        }
    }

    /// One set for all tests of this process, as [`RedisServer::shared`].
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn shared() -> io::Result<&'static Self> {
        static SHARED: OnceCell<RedisSentinels> = OnceCell::const_new();
        SHARED.get_or_try_init(Self::start).await
    }

    /// `redis+sentinel://`, the Sentinels, and the master's name.
    pub fn url(&self) -> String {
        format!("{}/{NAME}", url("redis+sentinel", &self.sentinels))
    }

    /// The servers that hold data. At the start the first one is the master.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The Sentinels.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// Which of the [servers](Self::servers) is the master, by what most of the Sentinels say.
    ///
    /// # Errors
    ///
    /// If no Sentinel answers.
    pub async fn master(&self) -> io::Result<usize> {
        let port = majority_answer(
            &self.sentinels,
            &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME],
            |reply| match reply {
                Reply::List(address) => address.get(1)?.to_string().parse().ok(),
                _ => None,
            },
        );
        index_of(&self.servers, port.await?)
    }

    /// Waits until another server than this one is the master, in the eyes of the Sentinels and in
    /// its own, and gives it.
    ///
    /// # Errors
    ///
    /// If that takes longer than 40 seconds.
    pub async fn failed_over(&self, from: usize) -> io::Result<usize> {
        let mut looks = Looks::at("another server is the master");
        loop {
            if let Ok(master) = self.master().await
                && master != from
                && says(&self.servers[master], "replication", &["role:master"]).await
            {
                return Ok(master);
            }
            looks.again().await?;
        }
    }

    /// Waits until there is one master, all other servers are its replicas with its data, and all
    /// Sentinels know of all this and of each other.
    ///
    /// # Errors
    ///
    /// If that takes longer than 40 seconds, as it does while a server is stopped.
    pub async fn settled(&self) -> io::Result<()> {
        let mut looks = Looks::at("the servers have settled under their Sentinels");
        while !self.is_settled().await {
            looks.again().await?;
        }
        Ok(())
    }

    async fn is_settled(&self) -> bool {
        let Ok(master) = self.master().await else {
            return false;
        };
        let port = self.servers[master].port();
        let master_port = format!("master_port:{port}");
        for (index, server) in self.servers.iter().enumerate() {
            let replica: &[&str] = &["role:slave", &master_port, "master_link_status:up"];
            let lines = if index == master {
                &["role:master"]
            } else {
                replica
            };
            if !says(server, "replication", lines).await {
                return false;
            }
        }
        for sentinel in &self.sentinels {
            if !self.is_informed(sentinel, port).await {
                return false;
            }
        }
        replicas(&self.servers[master]).await == self.servers.len() - 1
    }

    async fn is_informed(&self, sentinel: &RedisServer, master: u16) -> bool {
        let Ok(Reply::List(facts)) = ask(sentinel, &["SENTINEL", "MASTER", NAME]).await else {
            return false;
        };
        let facts: Vec<String> = facts.iter().map(Reply::to_string).collect();
        let is = |name: &str, value: &str| {
            facts
                .chunks_exact(2)
                .any(|fact| fact[0] == name && fact[1] == value)
        };
        is("port", &master.to_string())
            && is("flags", "master")
            && is("num-slaves", &(self.servers.len() - 1).to_string())
            && is(
                "num-other-sentinels",
                &(self.sentinels.len() - 1).to_string(),
            )
    }
}

impl RedisSentinelsBuilder {
    /// Adds an argument to those of the servers that hold data, as [`RedisServerBuilder::arg`].
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.server = self.server.arg(arg);
        self
    }

    /// How many replicas there are.
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Starts them, and waits until they know each other.
    ///
    /// # Errors
    ///
    /// As for [`RedisSentinels::start`].
    pub async fn start(self) -> io::Result<RedisSentinels> {
        // By default a master waits five seconds for more replicas before it sends the first its
        // data, and has news for them every ten seconds.
        let server = self
            .server
            .arg("--repl-diskless-sync-delay")
            .arg("0")
            .arg("--repl-ping-replica-period")
            .arg("1");
        // A file, although it is empty, so that a server that was given another role comes back in
        // it.
        let master = server.clone().config(String::new()).start().await?;
        let port = master.port();
        let mut servers = vec![master];
        for _ in 0..self.replicas {
            servers.push(
                server
                    .clone()
                    .config(format!("replicaof 127.0.0.1 {port}\n"))
                    .start()
                    .await?,
            );
        }
        let quorum = self.sentinels / 2 + 1;
        let mut config = format!("sentinel monitor {NAME} 127.0.0.1 {port} {quorum}\n");
        for [setting, value] in QUICK {
            config.extend(["sentinel ", setting, " ", NAME, " ", value, "\n"]);
        }
        let mut sentinels = Vec::new();
        for _ in 0..self.sentinels {
            let sentinel = RedisServer::builder()
                .config(config.clone())
                .arg("--sentinel")
                .start()
                .await?;
            // They announce themselves, and ask the servers for their role, ten times as often as
            // usual. So they find each other at once, and a server that comes back is soon made a
            // replica.
            tell(
                &sentinel,
                &[
                    "SENTINEL",
                    "DEBUG",
                    "PUBLISH-PERIOD",
                    "200",
                    "INFO-PERIOD",
                    "500",
                ],
            )
            .await?;
            sentinels.push(sentinel);
        }
        let redis = RedisSentinels { sentinels, servers };
        redis.settled().await?;
        Ok(redis)
    }
}
