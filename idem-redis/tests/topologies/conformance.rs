//! The conformance suite in a cluster, over connections that the program `redis` does not test,
//! with one set of servers for all its trials: a test each would start a cluster each.

use idem_core::record::RecordId;
use idem_redis::RedisStore;
use idem_testkit::{BoxError, RedisCluster, Subject, suite};

#[derive(Clone, Copy)]
enum Connection {
    #[cfg(feature = "cluster-connection")]
    Applications,
    Replicated,
}

impl Subject for Connection {
    type Store = RedisStore;

    async fn store(&self) -> Result<RedisStore, BoxError> {
        let cluster = RedisCluster::shared().await?;
        Ok(match self {
            Self::Replicated => {
                let within = std::time::Duration::from_millis(400);
                RedisStore::builder()
                    .url(cluster.url())
                    .replicas(1, within)
                    .connect()
                    .await?
            }
            #[cfg(feature = "cluster-connection")]
            Self::Applications => {
                let nodes = cluster.nodes().iter().map(idem_testkit::RedisServer::url);
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
        let cluster = RedisCluster::shared().await?;
        cluster.nodes()[cluster.master_of(&key).await?]
            .cli(&[b"SET", key.as_bytes(), value, b"PX", b"60000"])
            .await?;
        Ok(true)
    }
}

#[cfg(feature = "cluster-connection")]
#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes_in_a_cluster_by_the_applications_connection() {
    suite::run_all(|| Connection::Applications)
        .await
        .assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes_where_replicas_acknowledge() {
    suite::run_all(|| Connection::Replicated)
        .await
        .assert_passed();
}
