//! Servers under Sentinel and in a cluster: they fail over, and come back as members.

use std::time::Duration;

use idem_testkit::{RedisCluster, RedisSentinels, RedisServer, Reply};

/// A key of the cluster's first node, and one of its last master.
const KEYS: [&str; 2] = ["b", "a"];

async fn role(server: &RedisServer) -> String {
    match server.cli(&["ROLE"]).await.unwrap() {
        Reply::List(role) => role[0].to_string(),
        reply => panic!("{reply}"),
    }
}

/// Waits until so many of these servers have the only key there is.
async fn copied(servers: &[RedisServer], copies: usize) {
    for _ in 0..3_000 {
        let mut having = 0;
        for server in servers {
            having += usize::from(server.cli(&["DBSIZE"]).await.unwrap() == Reply::Number(1));
        }
        if having == copies {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not in {copies} places in 30 s");
}

/// Plays something through again if a server was taken for dead that lives, as on a busy machine.
async fn until_only_the_dead_are_replaced(plays: impl AsyncFn() -> bool) {
    for _ in 0..5 {
        if plays().await {
            return;
        }
    }
    panic!("a server was taken for dead that lives, five times");
}

#[tokio::test]
async fn sentinels_put_a_replica_in_the_place_of_a_dead_master_which_comes_back_as_a_replica() {
    until_only_the_dead_are_replaced(a_master_dies_under_sentinels).await;
}

async fn a_master_dies_under_sentinels() -> bool {
    let redis = RedisSentinels::start().await.unwrap();
    assert_eq!((redis.servers().len(), redis.sentinels().len()), (3, 3));
    let ports: Vec<_> = redis
        .sentinels()
        .iter()
        .map(|server| format!("127.0.0.1:{}", server.port()))
        .collect();
    assert_eq!(
        redis.url(),
        format!("redis+sentinel://{}/main", ports.join(","))
    );
    if redis.master().await.unwrap() != 0 {
        return false;
    }
    redis.servers()[0].cli(&["SET", "a", "1"]).await.unwrap();
    copied(redis.servers(), 3).await;
    redis.servers()[0].kill().unwrap();
    redis.sentinels()[0].kill().unwrap();
    let master = redis.failed_over(0).await.unwrap();
    if redis.master().await.unwrap() != master {
        return false;
    }
    assert_eq!(
        redis.servers()[master].cli(&["GET", "a"]).await.unwrap(),
        Reply::Value(b"1".into())
    );
    redis.servers()[0].restart().await.unwrap();
    redis.sentinels()[0].restart().await.unwrap();
    redis.settled().await.unwrap();
    if redis.master().await.unwrap() != master {
        return false;
    }
    assert_eq!(role(&redis.servers()[0]).await, "slave");
    assert_eq!(
        redis.servers()[0].cli(&["GET", "a"]).await.unwrap(),
        Reply::Value(b"1".into())
    );
    // The promoted one stays what it is when it is started again at once.
    redis.servers()[master].restart().await.unwrap();
    assert_eq!(role(&redis.servers()[master]).await, "master");
    true
}

#[tokio::test]
async fn a_cluster_puts_a_replica_in_the_place_of_a_dead_master_which_comes_back_as_a_replica() {
    until_only_the_dead_are_replaced(a_master_of_a_cluster_dies).await;
}

async fn a_master_of_a_cluster_dies() -> bool {
    let cluster = RedisCluster::start().await.unwrap();
    assert_eq!(cluster.nodes().len(), 6);
    let ports: Vec<_> = cluster.nodes()[..3]
        .iter()
        .map(|server| format!("127.0.0.1:{}", server.port()))
        .collect();
    assert_eq!(
        cluster.url(),
        format!("redis+cluster://{}", ports.join(","))
    );
    let [first, last] = KEYS.map(|key| cluster.master_of(key));
    if (first.await.unwrap(), last.await.unwrap()) != (0, 2) {
        return false;
    }
    let moved = cluster.nodes()[0]
        .cli(&["SET", KEYS[1], "1"])
        .await
        .unwrap();
    assert!(
        matches!(&moved, Reply::Error(error) if error.starts_with("MOVED")),
        "{moved}"
    );
    cluster.nodes()[2]
        .cli(&["SET", KEYS[1], "1"])
        .await
        .unwrap();
    copied(cluster.nodes(), 2).await;
    cluster.nodes()[2].kill().unwrap();
    let master = cluster.failed_over(KEYS[1], 2).await.unwrap();
    assert_eq!(
        cluster.nodes()[master]
            .cli(&["GET", KEYS[1]])
            .await
            .unwrap(),
        Reply::Value(b"1".into())
    );
    cluster.nodes()[2].restart().await.unwrap();
    cluster.settled().await.unwrap();
    if cluster.master_of(KEYS[1]).await.unwrap() != master {
        return false;
    }
    assert_eq!(role(&cluster.nodes()[2]).await, "slave");
    true
}

#[tokio::test]
async fn a_stopped_master_that_goes_on_becomes_a_replica() {
    let redis = RedisSentinels::start().await.unwrap();
    for _ in 0..5 {
        let stopped = redis.master().await.unwrap();
        redis.servers()[stopped].pause().unwrap();
        redis.failed_over(stopped).await.unwrap();
        redis.servers()[stopped].resume().unwrap();
        redis.settled().await.unwrap();
        // On a busy machine, its successor may have been taken for dead too.
        if redis.master().await.unwrap() != stopped {
            assert_eq!(role(&redis.servers()[stopped]).await, "slave");
            return;
        }
    }
    panic!("it was the master again, five times");
}
