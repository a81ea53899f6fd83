//! The settings of a store, and the ways to make one.

use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;
use idem_core::StoreError;

use crate::connection::error::refused;
use crate::connection::given::Connection;
use crate::connection::link::SILENCE;
use crate::connection::lists::{RedisNode, ServerLists};
use crate::connection::location::Location;
use crate::connection::managed::ManagedConnection;
use crate::connection::replicas::Replicas;
use crate::connection::step_runner::StepRunner;
use crate::store::keys::{DEFAULT_PREFIX, Keys};
use crate::store::{RedisStore, check, script};

/// A claim without an answer is sent twice, and a call on a dead server must fail within two
/// seconds.
const TIME_LIMIT: Duration = Duration::from_millis(900);
const CONNECT_TIME_LIMIT: Duration = Duration::from_secs(2);

/// The settings of a [`RedisStore`]; made by [`RedisStore::builder`].
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
///
/// use idem_redis::RedisStore;
///
/// # async fn example() -> Result<(), idem_core::StoreError> {
/// let store = RedisStore::builder()
///     .url("redis://user:password@redis.internal:6379/0")
///     .prefix("shop:idem")
///     .time_limit(Duration::from_millis(500))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "settings do nothing until `connect` is called"]
pub struct RedisStoreBuilder {
    url: Option<String>,
    connection: Option<Connection>,
    wake_url: Option<String>,
    /// In place of the URL.
    lists: ServerLists,
    prefix: String,
    time_limit: Duration,
    connect_time_limit: Duration,
    replicas: Option<Replicas>,
}

impl RedisStore {
    /// Connects to the server that a URL names, and checks whether the server is suitable. For
    /// other settings use [`builder`](Self::builder); its methods [`url`](RedisStoreBuilder::url)
    /// and [`connect`](RedisStoreBuilder::connect) have the details.
    ///
    /// Takes at most 2.9 s. Must be called in a tokio runtime. When the future is dropped, the
    /// connection is closed.
    ///
    /// # Errors
    ///
    /// As [`RedisStoreBuilder::connect`]. No error shows the password.
    pub async fn connect(url: impl Into<String>) -> Result<Self, StoreError> {
        Self::builder().url(url).connect().await
    }

    /// Creates a store on a connection that the application already has. That is a
    /// [`MultiplexedConnection`](redis::aio::MultiplexedConnection), a
    /// `redis::aio::ConnectionManager` (feature `connection-manager`, in `idem-rs`
    /// `redis-connection-manager`), or a `redis::cluster_async::ClusterConnection`
    /// (`cluster-connection`, `redis-cluster-connection`). For a cluster, a [`url`](RedisStoreBuilder::url) is better.
    /// redis-rs holds all commands back while one node is silent, and its own retries and timeouts
    /// (seconds by default) outlast the store's time limit.
    ///
    /// This sends nothing: call [`check`](Self::check) once at start-up, or make the store with
    /// [`builder`](Self::builder), [`connection`](RedisStoreBuilder::connection) and
    /// [`connect`](RedisStoreBuilder::connect), which checks. Waiters on such a store ask again and
    /// again instead of being woken, unless the builder is given a
    /// [`wake_url`](RedisStoreBuilder::wake_url). The connection's own timeouts apply too.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use idem_redis::{RedisStore, redis};
    ///
    /// # #[cfg(feature = "connection-manager")]
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = redis::Client::open("redis://127.0.0.1/")?;
    /// let store = RedisStore::from_connection(client.get_connection_manager().await?);
    /// store.check().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_connection(connection: impl Into<Connection>) -> Self {
        RedisStoreBuilder::unchecked(connection.into())
    }

    /// Creates a builder, to set everything else.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::new()
    }
}

impl RedisStoreBuilder {
    pub(crate) fn new() -> Self {
        Self {
            url: None,
            connection: None,
            wake_url: None,
            lists: ServerLists::default(),
            prefix: DEFAULT_PREFIX.to_owned(),
            time_limit: TIME_LIMIT,
            connect_time_limit: CONNECT_TIME_LIMIT,
            replicas: None,
        }
    }

    /// Sets the location of the records:
    ///
    /// | URL | |
    /// | --- | --- |
    /// | `redis://user:password@host:6379/0` | one server |
    /// | `unix:///path?db=0` | one server, by its socket |
    /// | `redis+sentinel://user:password@host:26379,host:26379/main?db=0&sentinel_user=..&sentinel_password=..` | the master that these Sentinels know as `main` |
    /// | `redis+cluster://user:password@host:6379,host:6379` | a cluster: some of its nodes, which know the others |
    ///
    /// `rediss` in place of `redis` uses TLS (feature `tls`), also to the Sentinels. User,
    /// password, port and database are optional. The user and password before the `@` are for the
    /// servers that hold the records; those for the Sentinels are parameters. Special characters
    /// are percent-encoded.
    ///
    /// Under Sentinel, a new connection goes to the server that most Sentinels name, or for 10 s to
    /// the one that a failover announced. That server must itself say that it is a master. These
    /// lead to a new connection: a failover that a Sentinel announces; another answer of most
    /// Sentinels, which are asked every few seconds; a `READONLY` reply; a silent server; a lost
    /// connection. In a cluster each command goes to the node that has its key. A lost or silent
    /// node costs only the calls of its keys.
    ///
    /// Set one of this, [`sentinels`](Self::sentinels), [`cluster_nodes`](Self::cluster_nodes) and
    /// [`connection`](Self::connection).
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// Sets the Sentinels as a list, in place of a [`url`](Self::url), and the name under which
    /// they know the master.
    ///
    /// Each Sentinel has its own user, password and TLS, or none. Those of the servers that hold
    /// the records are set by [`user`](Self::user), [`password`](Self::password),
    /// [`tls`](Self::tls) and [`database`](Self::database). An empty list, a node twice and an
    /// invalid address are errors of [`connect`](Self::connect).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use idem_redis::{RedisNode, RedisStore};
    ///
    /// # async fn example() -> Result<(), idem_core::StoreError> {
    /// let hosts = ["s1.internal", "s2.internal", "s3.internal:26380"];
    /// let store = RedisStore::builder()
    ///     .sentinels(
    ///         "main",
    ///         hosts.map(|host| RedisNode::new(host).user("watch").password("w@tch")),
    ///     )
    ///     .user("app")
    ///     .password("p@ss/word")
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sentinels<N: Into<RedisNode>>(
        mut self,
        master: impl Into<String>,
        nodes: impl IntoIterator<Item = N>,
    ) -> Self {
        let nodes = nodes.into_iter().map(Into::into).collect();
        self.lists.set_sentinels(master.into(), nodes);
        self
    }

    /// Sets some nodes of a cluster as a list, in place of a [`url`](Self::url). They are asked for
    /// the others.
    ///
    /// [`user`](Self::user), [`password`](Self::password) and [`tls`](Self::tls) are those of all
    /// nodes, also of those that the cluster names. A node of the list may have its own: they are
    /// used wherever the cluster names the node by the same host and port.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), idem_core::StoreError> {
    /// let store = idem_redis::RedisStore::builder()
    ///     .cluster_nodes(["n1.internal:6379", "n2.internal:6379"])
    ///     .user("app")
    ///     .password("p@ss/word")
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn cluster_nodes<N: Into<RedisNode>>(mut self, nodes: impl IntoIterator<Item = N>) -> Self {
        self.lists
            .set_cluster(nodes.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the user of the servers that hold the records, if they come from
    /// [`sentinels`](Self::sentinels) or [`cluster_nodes`](Self::cluster_nodes). It needs a
    /// [`password`](Self::password).
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.lists.set_user(user.into());
        self
    }

    /// Sets the password of the servers that hold the records, as it is and not percent-encoded, if
    /// they come from [`sentinels`](Self::sentinels) or [`cluster_nodes`](Self::cluster_nodes).
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.lists.set_password(password.into());
        self
    }

    /// Sets whether the servers that hold the records use TLS (feature `tls`), if they come from
    /// [`sentinels`](Self::sentinels) or [`cluster_nodes`](Self::cluster_nodes). Default: `false`.
    pub fn tls(mut self, tls: bool) -> Self {
        self.lists.set_tls(tls);
        self
    }

    /// Sets the number of the database, if the servers come from [`sentinels`](Self::sentinels).
    /// Default: 0.
    pub fn database(mut self, database: u32) -> Self {
        self.lists.set_database(database);
        self
    }

    /// Sets a connection that the application already has, instead of a URL or a list of servers.
    /// The store does not replace it when it is lost. A `ConnectionManager` and a
    /// `ClusterConnection` do that by themselves, a
    /// [`MultiplexedConnection`](redis::aio::MultiplexedConnection) does not.
    ///
    /// The server cannot push over a connection that the store did not make. So without a
    /// [`wake_url`](Self::wake_url) waiters poll: after 5 ms, then at twice the time up to 200 ms.
    pub fn connection(mut self, connection: impl Into<Connection>) -> Self {
        self.connection = Some(connection.into());
        self
    }

    /// Sets the URL of the same server, in any form of [`url`](Self::url), for a second connection
    /// on which waiters are woken. Use it only with a [`connection`](Self::connection): with a
    /// [`url`](Self::url), the store makes the second connection by itself.
    pub fn wake_url(mut self, url: impl Into<String>) -> Self {
        self.wake_url = Some(url.into());
        self
    }

    /// Sets the text before the first colon of all keys and channels; the default is `idem`. It
    /// must not be empty, and must not contain braces, white space or control characters. Stores
    /// with the same prefix share their records: so several processes guard one operation. Two
    /// prefixes that must not share records must not be like `a` and `a:b`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets how long one step of the store may take, including a new connection. Default: 900 ms;
    /// zero is refused by [`connect`](Self::connect). After that the step fails, and may have been
    /// carried out. A wait is not limited by it, but its questions to the server are.
    ///
    /// A claim without an answer is sent a second time, so a call on a dead server takes twice this
    /// limit.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Sets how long one attempt to connect may take, including name resolution, TLS and password.
    /// Default: 2 s. [`connect`](Self::connect) makes one attempt. A connection that is lost later
    /// is retried until it succeeds.
    pub fn connect_time_limit(mut self, limit: Duration) -> Self {
        self.connect_time_limit = limit;
        self
    }

    /// Makes each claim and each commit wait until `count` replicas have acknowledged it, for at
    /// most `timeout` (`WAIT`). If fewer acknowledge, the step fails closed: a claim starts no body
    /// and is undone; a commit is retried while the caller already has its value. Off by default.
    ///
    /// Redis replicates asynchronously: without this, a failover forgets what the master had
    /// acknowledged and not yet passed on. After a forgotten claim, a second body may run at the
    /// same time as the first. After a forgotten commit, the body runs again. With it, a claim
    /// starts a body, and a commit counts as recorded, only when `count` replicas besides the
    /// master have it.
    ///
    /// `WAIT` does not provide consensus. These risks remain:
    ///
    /// - A failover may choose a replica that did not acknowledge. Sentinel and a cluster prefer
    ///   the replica with the most data, among those that they can reach. A master that comes back
    ///   while it is being failed over can still get acknowledgements from its own replica; these
    ///   writes are lost when both become replicas of the new master. If losing nothing matters
    ///   more than working while a replica is down, ask for all replicas. A smaller count narrows
    ///   the gap and does not close it.
    /// - A replica acknowledges writes that it has in memory. A restart of all servers without
    ///   their data forgets them.
    /// - A master that is cut off still accepts writes that it cannot replicate. Claims and commits
    ///   there fail. But a duplicate that asks it meanwhile gets its record, which the others may
    ///   never have.
    /// - Releases and renewals do not wait. A failover that loses the last renewal shortens the
    ///   lease by up to the time between two renewals (a third of the lease). In that time another
    ///   call may take it over, while the owner's body runs until its next renewal is refused.
    /// - A write without acknowledgement is still at the master, and a duplicate sees it there.
    ///
    /// It costs a claim and a commit one more round trip, and the way from the master to its
    /// replicas. Concurrent calls share one `WAIT`. While a connection waits, its other commands
    /// queue, so a silent replica delays all calls by `timeout`. Make it a fraction of the
    /// [`time_limit`](Self::time_limit), such as 100 to 300 ms.
    ///
    /// Only with a [`url`](Self::url) or a list of servers, since a `WAIT` must go on the very
    /// connection of the write. At least one replica, and a timeout shorter than the `time_limit`
    /// and than three seconds, or [`connect`](Self::connect) fails; it also fails while a master
    /// has fewer replicas.
    pub fn replicas(mut self, count: u32, timeout: Duration) -> Self {
        self.replicas = Some(Replicas { count, timeout });
        self
    }

    /// Connects, and checks whether the server is suitable.
    ///
    /// It takes at most one [`connect_time_limit`](Self::connect_time_limit) and one
    /// [`time_limit`](Self::time_limit), or two with [`replicas`](Self::replicas) or a
    /// [`connection`](Self::connection). Call it in a tokio runtime: all connections of the store
    /// then live there. If that runtime ends, or runs nothing for three seconds, they move to the
    /// runtime of a call. If the future is dropped, the connection is closed.
    ///
    /// # Errors
    ///
    /// Each error names the server, without user and password.
    /// [`Refused`](idem_core::StoreErrorKind::Refused) is returned for
    ///
    /// - invalid settings, or a wrong password;
    /// - a user without the [rights](../idem/guide/redis/index.html#requirements)
    ///   to record an outcome, or a server that renames or disables their commands;
    /// - a server older than Redis 7.0, or a replica;
    /// - a URL of the wrong form: a Sentinel or a cluster's node by `redis://`, a single server by
    ///   `redis+cluster://`.
    ///
    /// [`Unavailable`](idem_core::StoreErrorKind::Unavailable) is returned for a server that cannot
    /// be reached, a cluster in which a slot has no node, and a master with fewer
    /// [replicas](Self::replicas) than required; [`Timeout`](idem_core::StoreErrorKind::Timeout)
    /// for a server that accepts the connection and does not answer. A server that evicts keys is
    /// logged as a warning (tracing, target `idem`).
    pub async fn connect(self) -> Result<RedisStore, StoreError> {
        self.connecting().await
    }

    /// Boxes the future here, so that it is compiled once and not in each program that connects.
    fn connecting(self) -> BoxFuture<'static, Result<RedisStore, StoreError>> {
        Box::pin(self.connect_and_check())
    }

    async fn connect_and_check(self) -> Result<RedisStore, StoreError> {
        let keys = Keys::new(&self.prefix)?;
        if self.time_limit.is_zero() || self.connect_time_limit.is_zero() {
            return Err(refused(
                "a time limit is zero, so nothing could succeed; leave it out, or make it longer",
            ));
        }
        self.check_replicas()?;
        let location = self.location()?;
        let (runner, wake) = match (location, self.connection, self.wake_url) {
            (Some(location), None, None) => {
                let managed = ManagedConnection::connect(
                    location,
                    self.connect_time_limit,
                    script::handshake(&keys),
                )
                .await?;
                (
                    StepRunner::managed(managed, self.time_limit, self.replicas),
                    None,
                )
            }
            (None, Some(connection), None) => {
                (StepRunner::given(connection, self.time_limit), None)
            }
            (None, Some(connection), Some(wake)) => {
                let wake = ManagedConnection::connect(
                    Location::parse(&wake)?,
                    self.connect_time_limit,
                    script::handshake(&keys),
                )
                .await?;
                (StepRunner::given(connection, self.time_limit), Some(wake))
            }
            (Some(_), Some(_), _) => {
                return Err(refused(
                    "the builder has a `url` or a list of servers, and a `connection`; give it \
                     one of them (`wake_url` is for the second)",
                ));
            }
            (Some(_), None, Some(_)) => {
                return Err(refused(
                    "the builder has a `wake_url` without a `connection`; a store that \
                     connects by itself is woken by itself",
                ));
            }
            (None, None, _) => {
                return Err(refused(
                    "the builder has neither a `url` nor `sentinels`, `cluster_nodes` or a `connection`; give it one of them",
                ));
            }
        };
        check::check(&runner, &keys).await?;
        Ok(RedisStore::new(runner, wake, keys))
    }

    /// Returns the servers that the store connects to; `None` if there are none to connect to.
    fn location(&self) -> Result<Option<Location>, StoreError> {
        match (&self.url, self.lists.location()?) {
            (Some(_), Some(_)) => Err(refused(
                "the builder has a `url` and a list of servers; give it one of them",
            )),
            (Some(url), None) => Location::parse(url).map(Some),
            (None, listed) => Ok(listed),
        }
    }

    fn check_replicas(&self) -> Result<(), StoreError> {
        let Some(Replicas { count, timeout }) = self.replicas else {
            return Ok(());
        };
        if count == 0 || timeout.is_zero() {
            return Err(refused(
                "`replicas` asks for none, or gives them no time, so it would prove nothing; ask \
                 for at least one, or leave it out",
            ));
        }
        if timeout >= self.time_limit {
            return Err(refused(format!(
                "`replicas` may wait for {timeout:?}, and a step has {:?} in all; make the timeout \
                 of `replicas` shorter, or the `time_limit` longer",
                self.time_limit
            )));
        }
        if timeout >= SILENCE {
            return Err(refused(format!(
                "`replicas` may wait for {timeout:?}, and a connection that is silent for \
                 {SILENCE:?} is taken for lost; make the timeout of `replicas` shorter"
            )));
        }
        if self.url.is_none() && self.lists.are_empty() {
            return Err(refused(
                "`replicas` needs a `url` or a list of servers: WAIT must go on the \
                 connection that wrote, and one that the application gave may have been replaced in between",
            ));
        }
        Ok(())
    }

    /// Returns a store on the application's connection, without a check of the server.
    pub(crate) fn unchecked(connection: Connection) -> RedisStore {
        RedisStore::new(
            StepRunner::given(connection, TIME_LIMIT),
            None,
            Keys::default(),
        )
    }
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No URL: it has the password.
        f.debug_struct("RedisStoreBuilder")
            .field("prefix", &self.prefix)
            .field("time_limit", &self.time_limit)
            .field("connect_time_limit", &self.connect_time_limit)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}
