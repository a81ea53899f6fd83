//! A connection that the application already has.

#[cfg(feature = "connection-manager")]
use redis::aio::ConnectionManager;
use redis::aio::{ConnectionLike, MultiplexedConnection};
#[cfg(feature = "cluster-connection")]
use redis::cluster_async::ClusterConnection;
use redis::{Cmd, Pipeline, RedisFuture, Value};

/// A connection that the application already has: a [`MultiplexedConnection`], which does not
/// reconnect. With the feature `connection-manager` (of `idem-rs`: `redis-connection-manager`) also
/// a `ConnectionManager`, which does. With `cluster-connection` (`redis-cluster-connection`) also a
/// `ClusterConnection`, which finds the nodes of a cluster by itself. That of redis-rs 1.8.1 can
/// stop answering when a master fails or slots move under many callers: prefer the URL of the
/// cluster.
///
/// Made by `From`, so [`RedisStore::from_connection`](crate::RedisStore::from_connection) takes
/// each as it is. Cheap to clone.
#[derive(Clone)]
pub struct Connection(Kind);

#[derive(Clone)]
enum Kind {
    #[cfg(feature = "connection-manager")]
    Manager(ConnectionManager),
    Multiplexed(MultiplexedConnection),
    #[cfg(feature = "cluster-connection")]
    Cluster(ClusterConnection),
}

impl Connection {
    /// Whether commands go to the nodes of a cluster, each to that which has its key.
    pub(crate) fn is_cluster(&self) -> bool {
        match self.0 {
            #[cfg(feature = "cluster-connection")]
            Kind::Cluster(_) => true,
            _ => false,
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the connection itself: redis-rs shows the user's name.
        f.write_str(match self.0 {
            #[cfg(feature = "connection-manager")]
            Kind::Manager(_) => "Connection(ConnectionManager)",
            Kind::Multiplexed(_) => "Connection(MultiplexedConnection)",
            #[cfg(feature = "cluster-connection")]
            Kind::Cluster(_) => "Connection(ClusterConnection)",
        })
    }
}

#[cfg(feature = "connection-manager")]
impl From<ConnectionManager> for Connection {
    fn from(connection: ConnectionManager) -> Self {
        Self(Kind::Manager(connection))
    }
}

impl From<MultiplexedConnection> for Connection {
    fn from(connection: MultiplexedConnection) -> Self {
        Self(Kind::Multiplexed(connection))
    }
}

#[cfg(feature = "cluster-connection")]
impl From<ClusterConnection> for Connection {
    fn from(connection: ClusterConnection) -> Self {
        Self(Kind::Cluster(connection))
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match &mut self.0 {
            #[cfg(feature = "connection-manager")]
            Kind::Manager(connection) => connection.req_packed_command(cmd),
            Kind::Multiplexed(connection) => connection.req_packed_command(cmd),
            #[cfg(feature = "cluster-connection")]
            Kind::Cluster(connection) => connection.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match &mut self.0 {
            #[cfg(feature = "connection-manager")]
            Kind::Manager(connection) => connection.req_packed_commands(pipeline, offset, count),
            Kind::Multiplexed(connection) => {
                connection.req_packed_commands(pipeline, offset, count)
            }
            #[cfg(feature = "cluster-connection")]
            Kind::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match &self.0 {
            #[cfg(feature = "connection-manager")]
            Kind::Manager(connection) => connection.get_db(),
            Kind::Multiplexed(connection) => connection.get_db(),
            #[cfg(feature = "cluster-connection")]
            Kind::Cluster(connection) => connection.get_db(),
        }
    }
}
