//! Failovers under Sentinel.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use idem_core::{Idempotency, Store as _, StoreErrorKind};
use idem_redis::RedisStore;
use idem_testkit::{RedisSentinels, Reply};

use crate::{
    ACKNOWLEDGED_WITHIN, BUSY, RIGHTS, SECOND, allow, call, calls_go_on, claim, connected, id,
    idempotency, patient, patient_builder, redis_key, refusal, tell_all, until, use_everything,
    usual, wakes,
};

#[tokio::test]
async fn a_stopped_master_is_left_when_the_sentinels_have_another() {
    let redis = RedisSentinels::start().await.unwrap();
    let idempotency = idempotency(redis.url()).await;
    let bodies = Arc::new(AtomicU64::new(0));
    calls_go_on(&idempotency, "a", async {
        redis.servers()[0].pause().unwrap();
        redis.failed_over(0).await.unwrap();
        let switched = Instant::now();
        until("the first success", || async {
            call(&idempotency, "first", &bodies).await.is_ok()
        })
        .await;
        let late = switched.elapsed();
        assert!(late < 2 * SECOND + BUSY, "{late:?} after the fail-over");
    })
    .await;
    let gap = calls_go_on(&idempotency, "b", async {
        redis.servers()[0].resume().unwrap();
        redis.settled().await.unwrap();
    })
    .await;
    assert!(gap < SECOND + BUSY, "{gap:?}");
}

/// Calls until the outcome of the first body is there.
async fn until_kept(idempotency: &Idempotency, bodies: &Arc<AtomicU64>) {
    until("the outcome", || async {
        let outcome = call(idempotency, "kept", bodies).await;
        outcome.is_ok_and(|outcome| outcome == 1)
    })
    .await;
}

#[tokio::test]
async fn a_fail_over_by_hand_is_followed() {
    let redis = RedisSentinels::start().await.unwrap();
    let idempotency = idempotency(redis.url()).await;
    let bodies = Arc::new(AtomicU64::new(0));
    until_kept(&idempotency, &bodies).await;
    // Redis acknowledges a write before the replicas have it.
    for replica in &redis.servers()[1..] {
        until("the replica has it", || async {
            let exists = replica.cli(&["EXISTS", &redis_key("kept")]).await;
            exists.unwrap() == Reply::Number(1)
        })
        .await;
    }
    calls_go_on(&idempotency, "a", async {
        until("the Sentinel begins", || async {
            redis.sentinels()[0]
                .cli(&["SENTINEL", "FAILOVER", "main"])
                .await
                .unwrap()
                == Reply::Status("OK".into())
        })
        .await;
        redis.failed_over(0).await.unwrap();
    })
    .await;
    until_kept(&idempotency, &bodies).await;
    assert_eq!(bodies.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn sentinels_that_are_dead_or_silent_are_passed_over() {
    let redis = RedisSentinels::start().await.unwrap();
    redis.sentinels()[0].pause().unwrap();
    redis.sentinels()[1].kill().unwrap();
    let start = Instant::now();
    let store = usual(redis.url()).await;
    assert!(
        start.elapsed() < Duration::from_millis(800) + BUSY,
        "{:?}",
        start.elapsed()
    );
    until("it is claimed", || async {
        store.claim(&claim("1")).await.is_ok()
    })
    .await;
    redis.sentinels()[2].kill().unwrap();
    // Whoever is connected does not need them.
    until("it is claimed", || async {
        store.claim(&claim("2")).await.is_ok()
    })
    .await;
    let error = RedisStore::connect(redis.url()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn the_rights_that_are_documented_are_enough_and_what_is_wrong_is_refused() {
    let redis = RedisSentinels::start().await.unwrap();
    let setting = "SENTINEL SET main down-after-milliseconds 60000";
    tell_all(redis.sentinels(), &setting.split(' ').collect::<Vec<_>>()).await;
    let url = redis.url().replace("/main", "/other");
    let error = refusal(patient_builder(url)).await;
    assert!(error.to_string().contains("`other`"), "{error}");
    for server in redis.servers() {
        allow(server, &format!("{RIGHTS} +role +wait")).await;
    }
    for sentinel in redis.sentinels() {
        allow(
            sentinel,
            "+sentinel|get-master-addr-by-name +subscribe +ping &+switch-master",
        )
        .await;
    }
    let url = |data: &str, sentinel: &str| {
        let url = redis.url().replace("://", &format!("://app:{data}@"));
        format!("{url}?sentinel_user=app&sentinel_password={sentinel}")
    };
    let builder = patient_builder(url("secret", "secret")).replicas(1, ACKNOWLEDGED_WITHIN);
    let store = connected(builder).await;
    use_everything(&store).await;
    let listeners = async || {
        let mut listeners = 0;
        for sentinel in redis.sentinels() {
            let clients = sentinel
                .cli(&["CLIENT", "LIST", "TYPE", "PUBSUB"])
                .await
                .unwrap()
                .to_string();
            listeners += clients.matches("user=app").count();
        }
        listeners
    };
    until("it listens to a Sentinel", || async {
        listeners().await == 1
    })
    .await;
    let clients = redis.servers()[0]
        .cli(&["CLIENT", "LIST"])
        .await
        .unwrap()
        .to_string();
    assert!(clients.contains("user=app"), "{clients}");
    for (data, sentinel) in [("wrong", "secret"), ("secret", "wrong")] {
        let error = refusal(patient_builder(url(data, sentinel))).await;
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
    drop(store);
    until("it no longer listens", || async { listeners().await == 0 }).await;
    let sentinel = format!("redis://127.0.0.1:{}", redis.sentinels()[0].port());
    let error = patient_builder(sentinel).connect().await.unwrap_err();
    assert!(error.to_string().contains("redis+sentinel://"), "{error}");
    let replica = patient_builder(redis.servers()[1].url());
    let error = replica.connect().await.unwrap_err();
    assert!(error.to_string().contains("is a replica"), "{error}");
}

#[tokio::test]
async fn waiters_are_woken_after_a_fail_over() {
    let redis = RedisSentinels::start().await.unwrap();
    let one = patient(redis.url()).await;
    let other = patient(redis.url()).await;
    redis.servers()[0].kill().unwrap();
    redis.failed_over(0).await.unwrap();
    let first = claim("1");
    until("it goes on", || async {
        one.claim(&first).await.is_ok() && other.inspect(&id("1")).await.is_ok()
    })
    .await;
    let master = &redis.servers()[redis.master().await.unwrap()];
    wakes(&one, &other, master, &first).await;
}
