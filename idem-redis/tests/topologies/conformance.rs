//! The conformance suite in a cluster, over connections that the program `redis` does not test,
//! with one set of servers for all its trials: a test each would start a cluster each.

use idem_core::record::RecordId;
use idem_redis::RedisStore;
use idem_testkit::{BoxError, RedisCluster, Subject, suite};

#[cfg(feature = "cluster-connection")]
use crate::SECOND;
use crate::{ACKNOWLEDGED_WITHIN, connected, no_failover, patient_builder};

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
        let builder = match self {
            Self::Replicated => patient_builder(cluster.url()).replicas(1, ACKNOWLEDGED_WITHIN),
            #[cfg(feature = "cluster-connection")]
            Self::Applications => {
                let nodes = cluster.nodes().iter().map(idem_testkit::RedisServer::url);
                let client = idem_redis::redis::cluster::ClusterClient::builder(nodes)
                    .connection_timeout(20 * SECOND)
                    .response_timeout(20 * SECOND)
                    .build()?;
                RedisStore::builder()
                    .connection(client.get_async_connection().await?)
                    .time_limit(20 * SECOND)
            }
        };
        Ok(connected(builder).await)
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
    no_failover(RedisCluster::shared().await.unwrap()).await;
    suite::run_all(|| Connection::Applications)
        .await
        .assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes_where_replicas_acknowledge() {
    no_failover(RedisCluster::shared().await.unwrap()).await;
    suite::run_all(|| Connection::Replicated)
        .await
        .assert_passed();
}
