//! The conformance suite, with one set of servers for all its trials: a test each would start a
//! cluster each.

use idem_core::record::RecordId;
use idem_redis::RedisStore;
use idem_testkit::{BoxError, RedisCluster, RedisSentinels, RedisServer, Subject, suite};

#[derive(Clone, Copy)]
enum Topology {
    Sentinel,
    Cluster,
    #[cfg(feature = "cluster-connection")]
    ApplicationsCluster,
    Replicated,
}

impl Topology {
    /// The server that has a key.
    async fn server(self, key: &str) -> Result<&'static RedisServer, BoxError> {
        if let Self::Sentinel = self {
            let redis = RedisSentinels::shared().await?;
            return Ok(&redis.servers()[redis.master().await?]);
        }
        let cluster = RedisCluster::shared().await?;
        Ok(&cluster.nodes()[cluster.master_of(key).await?])
    }
}

impl Subject for Topology {
    type Store = RedisStore;

    async fn store(&self) -> Result<RedisStore, BoxError> {
        let url = match self {
            Self::Sentinel => RedisSentinels::shared().await?.url(),
            _ => RedisCluster::shared().await?.url(),
        };
        Ok(match self {
            Self::Sentinel | Self::Cluster => RedisStore::connect(url).await?,
            Self::Replicated => {
                let within = std::time::Duration::from_millis(400);
                RedisStore::builder()
                    .url(url)
                    .replicas(1, within)
                    .connect()
                    .await?
            }
            #[cfg(feature = "cluster-connection")]
            Self::ApplicationsCluster => {
                let nodes = RedisCluster::shared()
                    .await?
                    .nodes()
                    .iter()
                    .map(RedisServer::url);
                let client = idem_redis::redis::cluster::ClusterClient::new(nodes)?;
                RedisStore::builder()
                    .connection(client.get_async_connection().await?)
                    .connect()
                    .await?
            }
        })
    }

    async fn plant(&self, id: &RecordId, value: &[u8]) -> Result<bool, BoxError> {
        let key = format!("idem:{}", id.as_str());
        self.server(&key)
            .await?
            .cli(&[b"SET", key.as_bytes(), value, b"PX", b"60000"])
            .await?;
        Ok(true)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes_under_sentinel() {
    suite::run_all(|| Topology::Sentinel).await.assert_passed();
    suite::run_all_admin(|| Topology::Sentinel)
        .await
        .assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes_in_a_cluster() {
    suite::run_all(|| Topology::Cluster).await.assert_passed();
    suite::run_all_admin(|| Topology::Cluster)
        .await
        .assert_passed();
}

#[cfg(feature = "cluster-connection")]
#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes_in_a_cluster_by_the_applications_connection() {
    suite::run_all(|| Topology::ApplicationsCluster)
        .await
        .assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes_where_replicas_acknowledge() {
    suite::run_all(|| Topology::Replicated)
        .await
        .assert_passed();
}
