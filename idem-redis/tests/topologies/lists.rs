//! Sentinels and nodes of a cluster that a builder has as lists.

use idem_core::{Idempotency, Store as _};
use idem_redis::{RedisNode, RedisStore};
use idem_testkit::{RedisSentinels, RedisServer};

use crate::{
    RIGHTS, SECOND, allow, calls_go_on, claim, connected, refusal, steady_cluster, use_everything,
};

#[tokio::test]
async fn sentinels_of_a_list_have_their_own_logins_and_a_failover_is_followed() {
    let redis = RedisSentinels::start().await.unwrap();
    for server in redis.servers() {
        allow(server, &format!("{RIGHTS} +role +select")).await;
    }
    let rights = "+sentinel|get-master-addr-by-name +subscribe +ping &+switch-master";
    let mut nodes = Vec::new();
    // The password of each is its number, with characters that a URL could not have as they are.
    for (number, sentinel) in redis.sentinels().iter().enumerate() {
        allow(sentinel, &format!("{rights} resetpass >p@s/s:{number}")).await;
        let node = RedisNode::new(format!("127.0.0.1:{}", sentinel.port()));
        nodes.push(node.user("app").password(format!("p@s/s:{number}")));
    }
    let builder = |nodes: Vec<RedisNode>, password: &str| {
        let builder = RedisStore::builder().sentinels("main", nodes);
        builder.user("app").password(password).database(1)
    };
    let store = connected(builder(nodes.clone(), "secret")).await;
    use_everything(&store).await;
    for (nodes, password) in [
        (nodes.clone(), "wrong"),
        (
            nodes
                .into_iter()
                .rev()
                .map(|node| node.password("wrong"))
                .collect(),
            "secret",
        ),
    ] {
        let error = refusal(builder(nodes, password)).await;
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
    let idempotency = Idempotency::new(store);
    calls_go_on(&idempotency, "a", async {
        redis.servers()[0].kill().unwrap();
        redis.failed_over(0).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn nodes_of_a_list_have_one_login_or_their_own_and_the_others_are_found() {
    let cluster = steady_cluster().await;
    let rights = format!("{RIGHTS} +cluster|slots +asking");
    for (number, node) in cluster.nodes().iter().enumerate() {
        // The first node has a password of its own.
        let password = if number == 0 { "resetpass >p@s/s" } else { "" };
        allow(node, format!("{rights} {password}").trim()).await;
    }
    let address = |node: &RedisServer| format!("127.0.0.1:{}", node.port());
    let first = RedisNode::new(address(&cluster.nodes()[0]));
    let builder = |nodes: Vec<RedisNode>| {
        let builder = RedisStore::builder().cluster_nodes(nodes);
        let builder = builder.user("app").password("secret");
        builder
            .time_limit(20 * SECOND)
            .connect_time_limit(20 * SECOND)
    };
    // Also in the list for its own login alone.
    let own = first.clone().user("app").password("p@s/s");
    let second = RedisNode::new(address(&cluster.nodes()[1]));
    let store = connected(builder(vec![second.clone(), own])).await;
    use_everything(&store).await;
    for number in 0..60 {
        store.claim(&claim(&format!("n{number}"))).await.unwrap();
    }
    let error = refusal(builder(vec![first])).await;
    assert!(!error.to_string().contains("secret"), "{error}");
}
