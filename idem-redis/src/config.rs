//! The settings of a store, and how it is made from them.

use std::fmt;
use std::time::Duration;

use idem_core::StoreError;

use crate::connect;
use crate::connection::Connection;
use crate::error::refused;
use crate::keys::{DEFAULT_PREFIX, Keys};
use crate::link::Link;
use crate::server::Server;
use crate::store::RedisStore;
use crate::target::Target;

/// Two of them fit into the two seconds within which a call on a dead server has to fail, so that a claim is sent twice.
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
    prefix: String,
    time_limit: Duration,
    connect_time_limit: Duration,
}

impl RedisStoreBuilder {
    pub(crate) fn new() -> Self {
        Self {
            url: None,
            connection: None,
            wake_url: None,
            prefix: DEFAULT_PREFIX.to_owned(),
            time_limit: TIME_LIMIT,
            connect_time_limit: CONNECT_TIME_LIMIT,
        }
    }

    /// Where the server is: `redis://user:password@host:6379/0`, `rediss://..` for TLS (feature `tls`), `unix:///path?db=0`. User,
    /// password, port and database can be left out. Special characters in user and password are percent-encoded.
    ///
    /// This, or [`connection`](Self::connection).
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// A connection that the application already has, in place of a URL. It is not replaced by the store when it is lost: a
    /// [`ConnectionManager`](redis::aio::ConnectionManager) does that by itself, a
    /// [`MultiplexedConnection`](redis::aio::MultiplexedConnection) does not.
    ///
    /// The server cannot push to a store that did not make the connection, so waiters look again and again, after 5 ms and then at
    /// twice the time up to 200 ms, unless there is a [`wake_url`](Self::wake_url).
    pub fn connection(mut self, connection: impl Into<Connection>) -> Self {
        self.connection = Some(connection.into());
        self
    }

    /// The URL of the same server, for a second connection on which waiters are woken. Only with a
    /// [`connection`](Self::connection): one made from a [`url`](Self::url) serves for both.
    pub fn wake_url(mut self, url: impl Into<String>) -> Self {
        self.wake_url = Some(url.into());
        self
    }

    /// What all keys and channels begin with, before a colon; `idem` unless it is set. Not empty, without braces, white space and
    /// control characters. Stores with one prefix share their records: that is how several processes guard one operation. Of two
    /// prefixes that are to be apart, none may be the other with a colon and more behind it (`a` and `a:b`).
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long one step of the store may take in all, connecting again included; 900 ms unless it is set. Then it fails, and may or
    /// may not have been carried out. A wait is not bounded by it, but its questions to the server are.
    ///
    /// Whoever makes it longer should know that a claim is sent a second time when the first got no answer.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// How long one attempt to connect may take, name look-up, TLS and password included; 2 s unless it is set. The first attempt is
    /// made by [`connect`](Self::connect), which fails with it; a connection that is lost later is tried again until there is one.
    pub fn connect_time_limit(mut self, limit: Duration) -> Self {
        self.connect_time_limit = limit;
        self
    }

    /// Connects, and looks whether the server can be used.
    ///
    /// Takes at most one [`connect_time_limit`](Self::connect_time_limit) and one [`time_limit`](Self::time_limit). Must be called in a tokio runtime, which the connection then belongs to. When the future is
    /// dropped, the connection is closed.
    ///
    /// # Errors
    ///
    /// [`Refused`](idem_core::StoreErrorKind::Refused) for settings that cannot be, a wrong password, a server older than Redis 7.0, a
    /// replica, a Sentinel and a cluster's node; [`Unavailable`](idem_core::StoreErrorKind::Unavailable) for a server that does not
    /// answer. Each names the server, without user and password. A server that evicts keys is warned of (tracing, target `idem`).
    pub async fn connect(self) -> Result<RedisStore, StoreError> {
        let keys = Keys::new(&self.prefix)?;
        if self.time_limit.is_zero() || self.connect_time_limit.is_zero() {
            return Err(refused("a time limit is zero, so nothing could succeed; leave it out, or make it longer"));
        }
        let (server, wake) = match (self.url, self.connection, self.wake_url) {
            (Some(url), None, None) => {
                let link = Link::connect(Target::parse(&url)?, self.connect_time_limit).await?;
                (Server::own(link, self.time_limit), None)
            }
            (None, Some(connection), None) => (Server::given(connection, self.time_limit), None),
            (None, Some(connection), Some(wake)) => {
                let wake = Link::connect(Target::parse(&wake)?, self.connect_time_limit).await?;
                (Server::given(connection, self.time_limit), Some(wake))
            }
            (Some(_), Some(_), _) => {
                return Err(refused(
                    "the builder has a `url` and a `connection`; give it one of them (`wake_url` is for the second)",
                ));
            }
            (Some(_), None, Some(_)) => {
                return Err(refused(
                    "the builder has a `wake_url` without a `connection`; one made from a `url` is woken by itself",
                ));
            }
            (None, None, _) => {
                return Err(refused("the builder has neither a `url` nor a `connection`; give it one of them"));
            }
        };
        connect::check(&server).await?;
        Ok(RedisStore::new(server, wake, keys))
    }

    /// A store on the application's connection, with nothing looked at.
    pub(crate) fn unchecked(connection: Connection) -> RedisStore {
        // The default prefix is a valid one.
        RedisStore::new(Server::given(connection, TIME_LIMIT), None, Keys::default())
    }
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No URL: it has the password.
        f.debug_struct("RedisStoreBuilder")
            .field("prefix", &self.prefix)
            .field("time_limit", &self.time_limit)
            .field("connect_time_limit", &self.connect_time_limit)
            .finish_non_exhaustive()
    }
}
