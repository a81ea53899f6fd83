//! Failovers under Sentinel.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use idem_core::{Store as _, StoreErrorKind};
use idem_redis::RedisStore;
use idem_testkit::{RedisSentinels, Reply};

use crate::{
    BUSY, RIGHTS, SECOND, allow, call, calls_go_on, claim, id, idempotency, until, use_everything,
    wakes,
};

#[tokio::test]
async fn a_stopped_master_is_left_when_the_sentinels_have_another() {
    let redis = RedisSentinels::start().await.unwrap();
    let idempotency = idempotency(redis.url()).await;
    let switched = std::cell::Cell::new(None);
    calls_go_on(&idempotency, "a", async {
        redis.servers()[0].pause().unwrap();
        redis.failed_over(0).await.unwrap();
        switched.set(Some(Instant::now()));
    })
    .await;
    let late = switched.get().unwrap().elapsed();
    assert!(late < 2 * SECOND + BUSY, "{late:?} after the fail-over");
    let gap = calls_go_on(&idempotency, "b", async {
        redis.servers()[0].resume().unwrap();
        redis.settled().await.unwrap();
    })
    .await;
    assert!(gap < SECOND + BUSY, "{gap:?}");
}

#[tokio::test]
async fn a_fail_over_by_hand_is_followed() {
    let redis = RedisSentinels::start().await.unwrap();
    let idempotency = idempotency(redis.url()).await;
    let bodies = Arc::new(AtomicU64::new(0));
    assert_eq!(call(&idempotency, "kept", &bodies).await.unwrap(), 1);
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
    assert_eq!(call(&idempotency, "kept", &bodies).await.unwrap(), 1);
    assert_eq!(bodies.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn sentinels_that_are_dead_or_silent_are_passed_over() {
    let redis = RedisSentinels::start().await.unwrap();
    redis.sentinels()[0].pause().unwrap();
    redis.sentinels()[1].kill().unwrap();
    let start = Instant::now();
    let store = RedisStore::connect(redis.url()).await.unwrap();
    assert!(
        start.elapsed() < Duration::from_millis(800) + BUSY,
        "{:?}",
        start.elapsed()
    );
    store.claim(&claim("1")).await.unwrap();
    redis.sentinels()[2].kill().unwrap();
    // Whoever is connected does not need them.
    store.claim(&claim("2")).await.unwrap();
    let error = RedisStore::connect(redis.url()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn the_rights_that_are_documented_are_enough_and_what_is_wrong_is_refused() {
    let redis = RedisSentinels::start().await.unwrap();
    let url = redis.url().replace("/main", "/other");
    let error = RedisStore::connect(url).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused);
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
    let store = RedisStore::builder()
        .url(url("secret", "secret"))
        .replicas(1, SECOND / 2)
        .connect()
        .await
        .unwrap();
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
        let error = RedisStore::connect(url(data, sentinel)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
    drop(store);
    until("it no longer listens", || async { listeners().await == 0 }).await;
    let sentinel = format!("redis://127.0.0.1:{}", redis.sentinels()[0].port());
    let error = RedisStore::connect(sentinel).await.unwrap_err();
    assert!(error.to_string().contains("redis+sentinel://"), "{error}");
    let error = RedisStore::connect(redis.servers()[1].url())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("is a replica"), "{error}");
}

#[tokio::test]
async fn waiters_are_woken_after_a_fail_over() {
    let redis = RedisSentinels::start().await.unwrap();
    let one = RedisStore::connect(redis.url()).await.unwrap();
    let other = RedisStore::connect(redis.url()).await.unwrap();
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
