//! The conformance suite, with one set of servers for all its trials: a test each would start a
//! cluster each.

use idem_core::record::RecordId;
use idem_redis::RedisStore;
use idem_testkit::{BoxError, RedisCluster, RedisSentinels, RedisServer, Subject, suite};

use crate::patient;
use crate::trouble::tell_all;

#[derive(Clone, Copy)]
enum Topology {
    Sentinel,
    Cluster,
}

impl Topology {
    /// The server that has a key.
    async fn server(self, key: &str) -> Result<&'static RedisServer, BoxError> {
        match self {
            Self::Sentinel => {
                let redis = RedisSentinels::shared().await?;
                Ok(&redis.servers()[redis.master().await?])
            }
            Self::Cluster => {
                let cluster = RedisCluster::shared().await?;
                Ok(&cluster.nodes()[cluster.master_of(key).await?])
            }
        }
    }
}

impl Subject for Topology {
    type Store = RedisStore;

    async fn store(&self) -> Result<RedisStore, BoxError> {
        let url = match self {
            Self::Sentinel => RedisSentinels::shared().await?.url(),
            Self::Cluster => RedisCluster::shared().await?.url(),
        };
        // Dozens of handles are made at the same time, too many for the usual limits of a busy
        // machine.
        Ok(patient(url).await)
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
    let sentinels = RedisSentinels::shared().await.unwrap().sentinels();
    let setting = [
        "SENTINEL",
        "SET",
        "main",
        "down-after-milliseconds",
        "60000",
    ];
    tell_all(sentinels, &setting).await;
    suite::run_all(|| Topology::Sentinel).await.assert_passed();
    suite::run_all_admin(|| Topology::Sentinel)
        .await
        .assert_passed();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes_in_a_cluster() {
    let nodes = RedisCluster::shared().await.unwrap().nodes();
    let setting = ["CONFIG", "SET", "cluster-node-timeout", "60000"];
    tell_all(nodes, &setting).await;
    suite::run_all(|| Topology::Cluster).await.assert_passed();
    suite::run_all_admin(|| Topology::Cluster)
        .await
        .assert_passed();
}
