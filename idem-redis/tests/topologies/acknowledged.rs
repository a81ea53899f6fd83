//! `replicas`: what is acknowledged survives a failover, and what is not starts no body.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use idem_core::record::{Claimed, Issued, Ownership};
use idem_core::{Error, Idempotency, Store as _, StoreErrorKind};
use idem_redis::RedisStore;
use idem_testkit::{RedisSentinels, RedisServer, Reply};

use crate::{
    ACKNOWLEDGED_WITHIN, FAILS_WITHIN, OWNED_AS_ISSUED, call, claim, claim_issued, commit,
    connected, id, issue, patient, patient_builder, redis_key, steady_cluster, until,
};

/// A master and one replica, without failover.
async fn pair() -> (RedisServer, RedisServer) {
    let master = RedisServer::builder()
        .arg("--repl-diskless-sync-delay")
        .arg("0")
        .start()
        .await
        .unwrap();
    let replica = RedisServer::start().await.unwrap();
    follow(&replica, &master).await;
    (master, replica)
}

async fn follow(replica: &RedisServer, master: &RedisServer) {
    replica
        .cli(&["REPLICAOF", "127.0.0.1", &master.port().to_string()])
        .await
        .unwrap();
    until("the replica follows", || async {
        is_followed(master).await
    })
    .await;
}

async fn is_followed(master: &RedisServer) -> bool {
    master.cli(&["SET", "x", "1"]).await.unwrap();
    let info = master
        .cli(&["INFO", "replication"])
        .await
        .unwrap()
        .to_string();
    info.contains("state=online") && !info.contains("offset=0,")
}

async fn connect(url: String) -> RedisStore {
    connected(patient_builder(url).replicas(1, ACKNOWLEDGED_WITHIN)).await
}

#[tokio::test]
async fn a_master_without_enough_replicas_is_refused_at_the_start() {
    let (master, _replica) = pair().await;
    connect(master.url()).await;
    let builder = patient_builder(master.url()).replicas(2, ACKNOWLEDGED_WITHIN);
    let error = builder.connect().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("1 replicas answered"), "{error}");
}

#[tokio::test]
async fn a_claim_that_no_replica_has_starts_no_body_and_is_given_back() {
    let (master, replica) = pair().await;
    let idempotency = Idempotency::new(connect(master.url()).await);
    let bodies = Arc::new(AtomicU64::new(0));
    call(&idempotency, "1", &bodies).await.unwrap();
    replica.pause().unwrap();
    let start = Instant::now();
    let error = call(&idempotency, "2", &bodies).await.unwrap_err();
    // The claim is sent twice.
    let limit = 2 * ACKNOWLEDGED_WITHIN + FAILS_WITHIN;
    assert!(start.elapsed() < limit, "{:?}", start.elapsed());
    assert!(
        matches!(error, Error::Store { .. }) && error.is_retryable(),
        "{error}"
    );
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    assert_eq!(bodies.load(Ordering::SeqCst), 1);
    until("the claim is given back", || async {
        master.cli(&["EXISTS", &redis_key("2")]).await.unwrap() == Reply::Number(0)
    })
    .await;
    // The record there is replayed all the same.
    assert_eq!(call(&idempotency, "1", &bodies).await.unwrap(), 1);
    replica.resume().unwrap();
    until("calls go on", || async {
        call(&idempotency, "2", &bodies).await.is_ok()
    })
    .await;
    assert_eq!(bodies.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_claim_that_is_sent_again_waits_again_on_a_new_connection_too() {
    let (master, replica) = pair().await;
    let one = connect(master.url()).await;
    let other = connect(master.url()).await;
    replica.pause().unwrap();
    let first = claim("1");
    let commits = claim("2");
    for store in [&one, &one, &other] {
        let error = store.claim(&first).await.unwrap_err();
        assert!(error.is_unknown(), "{error}");
    }
    let unreplicated = patient(master.url()).await;
    unreplicated.claim(&commits).await.unwrap();
    for store in [&one, &one, &other] {
        let error = store.commit(&commit(&commits)).await.unwrap_err();
        assert!(error.is_unknown(), "{error}");
    }
    // It stands there, and is replayed: only its fate at a failover is open.
    assert!(matches!(
        one.claim(&claim("2")).await.unwrap(),
        Claimed::Committed { .. }
    ));
    replica.resume().unwrap();
    until("the claim is acknowledged", || async {
        other.claim(&first).await.is_ok()
    })
    .await;
    assert!(matches!(
        one.claim(&first).await.unwrap(),
        Claimed::Owned { attempt: 1, .. }
    ));
    assert_eq!(
        other.commit(&commit(&commits)).await.unwrap(),
        Ownership::Held
    );
    // Each has written something, without which a newer server's WAIT would look at what the
    // connection wrote before, perhaps nothing.
    for (again, wrote) in [(true, 2), (false, 1)] {
        master.cli(&["CONFIG", "RESETSTAT"]).await.unwrap();
        if again {
            one.claim(&first).await.unwrap();
        } else {
            one.commit(&commit(&commits)).await.unwrap();
        }
        let stats = master
            .cli(&["INFO", "commandstats"])
            .await
            .unwrap()
            .to_string();
        assert!(
            stats.contains(&format!("cmdstat_set:calls={wrote},")),
            "{stats}"
        );
    }
}

#[tokio::test]
async fn p13_the_use_of_a_token_that_no_replica_has_starts_no_body_and_is_given_back() {
    let (master, replica) = pair().await;
    let store = connect(master.url()).await;
    let idempotency = Idempotency::new(store.clone());
    let bodies = Arc::new(AtomicU64::new(0));
    let token = idempotency
        .operation("orders")
        .issue("ada", 60 * crate::SECOND)
        .await
        .unwrap();
    let submit = async || {
        let bodies = bodies.clone();
        let call = idempotency.operation("orders").token(&token, "ada");
        call.run(async move || Ok::<_, Error>(bodies.fetch_add(1, Ordering::SeqCst)))
            .await
    };
    assert_eq!(
        *store.issue(&[issue("1")]).await[0].as_ref().unwrap(),
        Issued::Issued
    );
    replica.pause().unwrap();
    let error = submit().await.unwrap_err();
    assert!(
        matches!(error, Error::Store { .. }) && error.is_retryable(),
        "{error}"
    );
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    assert_eq!(bodies.load(Ordering::SeqCst), 0);
    // Sent again, it waits again.
    let first = claim_issued("1");
    for _ in 0..2 {
        let error = store.claim(&first).await.unwrap_err();
        assert!(error.is_unknown(), "{error}");
    }
    // What is refused writes nothing that could be waited for.
    assert_eq!(
        store.claim(&claim_issued("2")).await.unwrap(),
        Claimed::NotIssued
    );
    replica.resume().unwrap();
    until("the token can be used", || async { submit().await.is_ok() }).await;
    assert!(submit().await.unwrap().is_replayed());
    assert_eq!(bodies.load(Ordering::SeqCst), 1);
    until("the claim is acknowledged", || async {
        store.claim(&first).await.is_ok()
    })
    .await;
    assert_eq!(store.claim(&first).await.unwrap(), OWNED_AS_ISSUED);
}

#[tokio::test]
async fn a_take_over_is_waited_for() {
    let (master, replica) = pair().await;
    let store = connect(master.url()).await;
    let brief = claim("1").with_lease(Duration::ZERO);
    store.claim(&brief).await.unwrap();
    replica.pause().unwrap();
    assert!(store.claim(&claim("1")).await.unwrap_err().is_unknown());
    replica.resume().unwrap();
}

#[tokio::test]
async fn the_caller_of_a_commit_that_no_replica_has_gets_its_value_and_it_is_tried_on() {
    let (master, replica) = pair().await;
    let idempotency = Idempotency::new(connect(master.url()).await);
    let replica = Arc::new(replica);
    let bodies = Arc::new(AtomicU64::new(0));
    let body = || {
        let replica = replica.clone();
        async move {
            replica.pause().unwrap();
            Ok::<_, Error>(7)
        }
    };
    let start = Instant::now();
    assert_eq!(
        idempotency
            .operation("orders")
            .key("1")
            .run(body)
            .await
            .unwrap()
            .into_inner(),
        7
    );
    assert!(
        (ACKNOWLEDGED_WITHIN..ACKNOWLEDGED_WITHIN + FAILS_WITHIN).contains(&start.elapsed()),
        "{:?}",
        start.elapsed()
    );
    replica.resume().unwrap();
    let is_replicated = || async {
        replica
            .cli(&["GET", &redis_key("1")])
            .await
            .unwrap()
            .to_string()
            .starts_with("i1c")
    };
    until("the replica has the outcome", is_replicated).await;
    assert_eq!(call(&idempotency, "1", &bodies).await.unwrap(), 7);
    assert_eq!(bodies.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn calls_at_the_same_time_share_one_wait() {
    let (master, _replica) = pair().await;
    let store = connect(master.url()).await;
    master.cli(&["CONFIG", "RESETSTAT"]).await.unwrap();
    let claims = (0..200).map(|number| {
        let store = store.clone();
        tokio::spawn(async move { store.claim(&claim(&format!("k{number}"))).await.unwrap() })
    });
    for claim in claims.collect::<Vec<_>>() {
        claim.await.unwrap();
    }
    let stats = master
        .cli(&["INFO", "commandstats"])
        .await
        .unwrap()
        .to_string();
    let waits = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_wait:calls=")?.split(',').next())
        .unwrap();
    assert!(waits.parse::<u32>().unwrap() < 50, "{waits}");
}

#[tokio::test]
async fn no_acknowledged_commit_is_lost_at_a_fail_over() {
    let redis = RedisSentinels::start().await.unwrap();
    let idempotency = Idempotency::new(connect(redis.url()).await);
    let bodies = Arc::new(AtomicU64::new(0));
    let mut kept = Vec::new();
    for number in 0..100 {
        let key = format!("k{number}");
        kept.push((call(&idempotency, &key, &bodies).await.unwrap(), key));
    }
    redis.servers()[0].kill().unwrap();
    redis.failed_over(0).await.unwrap();
    let ran = bodies.load(Ordering::SeqCst);
    until("calls go on", || async {
        call(&idempotency, &kept[0].1, &bodies).await.is_ok()
    })
    .await;
    for (value, key) in &kept {
        assert_eq!(call(&idempotency, key, &bodies).await.unwrap(), *value);
    }
    assert_eq!(bodies.load(Ordering::SeqCst), ran);
}

#[tokio::test]
async fn in_a_cluster_each_master_is_asked_for_its_own_replicas() {
    let cluster = steady_cluster().await;
    let store = connect(cluster.url()).await;
    let [mut without, mut with] = [None, None];
    let replica = cluster.nodes().last().unwrap();
    let port = format!("port={}", replica.port());
    let mut master = 0;
    for index in 0..3 {
        let info = cluster.nodes()[index]
            .cli(&["INFO", "replication"])
            .await
            .unwrap()
            .to_string();
        if info.contains(&port) {
            master = index;
        }
    }
    for number in 0..100 {
        let key = format!("k{number}");
        let at = cluster.master_of(&redis_key(&key)).await.unwrap();
        *(if at == master {
            &mut without
        } else {
            &mut with
        }) = Some(key);
    }
    replica.pause().unwrap();
    assert!(
        store
            .claim(&claim(&without.unwrap()))
            .await
            .unwrap_err()
            .is_unknown()
    );
    let with = with.unwrap();
    store.claim(&claim(&with)).await.unwrap();
    assert!(store.inspect(&id(&with)).await.unwrap().is_some());
    replica.resume().unwrap();
}
