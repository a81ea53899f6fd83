//! A master that dies, and comes back.

use idem_core::Idempotency;
use idem_testkit::{RedisCluster, RedisSentinels};

use crate::trouble::{BUSY, calls_go_on};
use crate::{SECOND, id, usual};

async fn idempotency(url: String) -> Idempotency {
    Idempotency::new(usual(url).await)
}

#[tokio::test]
async fn a_dead_master_costs_retryable_errors_until_there_is_another() {
    let redis = RedisSentinels::start().await.unwrap();
    let idempotency = idempotency(redis.url()).await;
    let gap = calls_go_on(&idempotency, "a", async {
        redis.servers()[0].kill().unwrap();
        redis.failed_over(0).await.unwrap();
    })
    .await;
    eprintln!("without a success for {gap:?}");
    // It comes back as a master without callers, and then as a replica.
    let gap = calls_go_on(&idempotency, "b", async {
        redis.servers()[0].restart().await.unwrap();
        redis.settled().await.unwrap();
    })
    .await;
    assert!(gap < SECOND + BUSY, "{gap:?}");
}

#[tokio::test]
async fn a_dead_master_costs_retryable_errors_until_its_replica_takes_over() {
    let cluster = RedisCluster::start().await.unwrap();
    let idempotency = idempotency(cluster.url()).await;
    let key = format!("idem:{}", id("x").as_str());
    let old = cluster.master_of(&key).await.unwrap();
    let gap = calls_go_on(&idempotency, "a", async {
        cluster.nodes()[old].kill().unwrap();
        cluster.failed_over(&key, old).await.unwrap();
    })
    .await;
    eprintln!("without a success for {gap:?}");
    let gap = calls_go_on(&idempotency, "b", async {
        cluster.nodes()[old].restart().await.unwrap();
        cluster.settled().await.unwrap();
    })
    .await;
    assert!(gap < SECOND + BUSY, "{gap:?}");
}
