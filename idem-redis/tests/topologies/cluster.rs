//! Clusters: keys in all slots, nodes that are lost.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use idem_core::record::{Claimed, Issue, Issued, Ownership, RecordId, Renewal};
use idem_core::store::AdminStore as _;
use idem_core::store::admin::Listing;
use idem_core::{Store as _, StoreErrorKind};
use idem_redis::RedisStore;
use idem_redis::redis::cluster_routing::Slot;
use idem_testkit::{RedisCluster, RedisServer, Reply};
use tokio::time::sleep;

use crate::{
    ACKNOWLEDGED_WITHIN, BUSY, FAILS_WITHIN, OWNED_AS_ISSUED, RIGHTS, SECOND, allow, calls_go_on,
    claim, claim_issued, connected, id, idempotency, issue, patient, patient_builder, redis_key,
    refusal, steady_cluster, until, use_everything, usual, wakes,
};

/// How often a server carried out a command in scripts or not.
pub(crate) async fn count(server: &RedisServer, command: &str) -> u64 {
    let stats = server
        .cli(&["INFO", "commandstats"])
        .await
        .unwrap()
        .to_string();
    let line = stats.lines().find_map(|line| {
        line.strip_prefix(&format!("cmdstat_{command}:calls="))?
            .split(',')
            .next()
    });
    line.map_or(0, |count| count.parse().unwrap())
}

pub(crate) async fn tell(server: &RedisServer, command: &[&str]) {
    let reply = server.cli(command).await.unwrap();
    assert!(!matches!(reply, Reply::Error(_)), "{command:?}: {reply}");
}

#[tokio::test]
async fn a_stopped_master_costs_the_calls_of_its_keys_alone() {
    // The others are served also when the cluster notices.
    let partly = RedisCluster::builder()
        .arg("--cluster-require-full-coverage")
        .arg("no")
        .start();
    let cluster = partly.await.unwrap();
    let store = usual(cluster.url()).await;
    let keys: Vec<String> = (0..60).map(|number| format!("k{number}")).collect();
    let mut masters = Vec::new();
    for key in &keys {
        masters.push(cluster.master_of(&redis_key(key)).await.unwrap());
    }
    cluster.nodes()[0].pause().unwrap();
    let (dead, alive): (Vec<_>, Vec<_>) = keys
        .iter()
        .zip(&masters)
        .partition(|(_, master)| **master == 0);
    assert!(!dead.is_empty() && !alive.is_empty());
    let silent = claim(dead[0].0);
    let (failed, ()) = tokio::join!(store.claim(&silent), async {
        for (key, _) in &alive {
            let start = Instant::now();
            until("it is claimed", || async {
                store.claim(&claim(key)).await.is_ok()
            })
            .await;
            assert!(start.elapsed() < SECOND / 5 + BUSY, "{:?}", start.elapsed());
        }
    });
    assert!(failed.unwrap_err().is_unknown());
    let new = cluster.failed_over(&redis_key(dead[0].0), 0).await.unwrap();
    assert_ne!(new, 0);
    let start = Instant::now();
    until("the keys of the stopped node are served", || async {
        store.claim(&silent).await.is_ok()
    })
    .await;
    assert!(start.elapsed() < 2 * SECOND + BUSY, "{:?}", start.elapsed());
    cluster.nodes()[0].resume().unwrap();
    cluster.settled().await.unwrap();
    for (key, _) in &dead {
        until("it is claimed", || async {
            store.claim(&claim(key)).await.is_ok()
        })
        .await;
    }
}

#[tokio::test]
async fn a_cluster_that_is_gone_fails_in_time_and_is_found_when_it_is_back() {
    let cluster = RedisCluster::start().await.unwrap();
    let store = usual(cluster.url()).await;
    until("it is claimed", || async {
        store.claim(&claim("1")).await.is_ok()
    })
    .await;
    for node in cluster.nodes() {
        node.kill().unwrap();
    }
    for _ in 0..3 {
        let start = Instant::now();
        let error = store.claim(&claim("1")).await.unwrap_err();
        assert!(
            error.is_unknown() && start.elapsed() < FAILS_WITHIN / 2,
            "{error}: {:?}",
            start.elapsed()
        );
    }
    let error = RedisStore::connect(cluster.url()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    for node in cluster.nodes() {
        node.restart().await.unwrap();
    }
    cluster.settled().await.unwrap();
    let start = Instant::now();
    until("the cluster is found", || async {
        store.claim(&claim("2")).await.is_ok()
    })
    .await;
    assert!(start.elapsed() < SECOND + BUSY, "{:?}", start.elapsed());
}

/// A listing on its way.
pub(crate) struct Begun<'a> {
    store: &'a RedisStore,
    listing: Option<Listing>,
    found: HashSet<RecordId>,
}

impl<'a> Begun<'a> {
    /// Takes so many pages of 20 records.
    pub(crate) async fn after(store: &'a RedisStore, pages: usize) -> Self {
        let mut begun = Self {
            store,
            listing: Some(Listing::all().limit(20)),
            found: HashSet::new(),
        };
        for _ in 0..pages {
            begun.go_on().await;
        }
        begun
    }

    async fn go_on(&mut self) {
        let Some(listing) = self.listing.take() else {
            return;
        };
        let page = loop {
            match self.store.list(&listing).await {
                Ok(page) => break page,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        };
        let ids = page.records.into_iter().map(|listed| listed.id);
        self.found.extend(ids);
        self.listing = page.next.map(|cursor| listing.after(cursor));
    }

    /// How many records it has found in the end.
    pub(crate) async fn all(mut self) -> usize {
        while self.listing.is_some() {
            self.go_on().await;
        }
        self.found.len()
    }
}

#[tokio::test]
async fn a_listing_goes_on_after_a_failover_and_misses_none() {
    let cluster = RedisCluster::start().await.unwrap();
    let builder = patient_builder(cluster.url()).replicas(1, ACKNOWLEDGED_WITHIN);
    let store = connected(builder).await;
    for number in 0..300 {
        store.claim(&claim(&number.to_string())).await.unwrap();
    }
    let mut keys = (0..300).map(|number| redis_key(&number.to_string()));
    let key = loop {
        let key = keys.next().unwrap();
        if cluster.master_of(&key).await.unwrap() == 0 {
            break key;
        }
    };
    // To a node that is after all masters by its address, and back.
    let mut lost = 0;
    for _ in 0..2 {
        let mut begun = Vec::new();
        for pages in 0..15 {
            begun.push(Begun::after(&store, pages).await);
        }
        cluster.nodes()[lost].kill().unwrap();
        let new = cluster.failed_over(&key, lost).await.unwrap();
        for begun in begun {
            assert_eq!(begun.all().await, 300, "the master was {lost}");
        }
        cluster.nodes()[lost].restart().await.unwrap();
        cluster.settled().await.unwrap();
        lost = new;
    }
}

#[tokio::test]
async fn thousands_of_leases_are_renewed_in_few_round_trips_to_each_node() {
    let cluster = steady_cluster().await;
    let store = patient(cluster.url()).await;
    let claims: Vec<_> = (0..2000)
        .map(|number| claim(&format!("lease{number}")))
        .collect();
    for claims in claims.chunks(200) {
        let claims = claims.iter().cloned().map(|claim| {
            let store = store.clone();
            tokio::spawn(async move { store.claim(&claim).await.unwrap() })
        });
        for claim in claims.collect::<Vec<_>>() {
            claim.await.unwrap();
        }
    }
    for node in &cluster.nodes()[..3] {
        tell(node, &["SCRIPT", "FLUSH", "SYNC"]).await;
    }
    let renewals: Vec<_> = claims
        .iter()
        .map(|claim| Renewal::new(claim.id.clone(), claim.owner, claim.hold))
        .collect();
    let start = Instant::now();
    let answers = store.renew(&renewals).await;
    assert!(start.elapsed() < SECOND + BUSY, "{:?}", start.elapsed());
    for answer in answers {
        assert_eq!(answer.unwrap(), Ownership::Held);
    }
}

#[tokio::test]
async fn keys_of_all_nodes_are_issued_in_one_batch_and_claimed_by_scripts_that_are_not_known() {
    let cluster = steady_cluster().await;
    let store = patient(cluster.url()).await;
    let keys: Vec<String> = (0..1200).map(|number| format!("k{number}")).collect();
    let mut issues: Vec<Issue> = keys.iter().map(|key| issue(key)).collect();
    // One is taken.
    issues[700].grace = SECOND;
    assert_eq!(
        *store.issue(&[issue("k700")]).await[0].as_ref().unwrap(),
        Issued::Issued
    );
    let start = Instant::now();
    let answers = store.issue(&issues).await;
    assert!(start.elapsed() < SECOND + BUSY, "{:?}", start.elapsed());
    for (number, answer) in answers.into_iter().enumerate() {
        assert_eq!(
            answer.unwrap(),
            if number == 700 {
                Issued::Taken
            } else {
                Issued::Issued
            },
            "{number}"
        );
    }
    for node in &cluster.nodes()[..3] {
        let keys = node.cli(&["DBSIZE"]).await.unwrap().number().unwrap();
        assert!(
            (200..600).contains(&keys),
            "{keys} of 1200 are at one of three nodes"
        );
        tell(node, &["SCRIPT", "FLUSH", "SYNC"]).await;
    }
    for key in &keys[..60] {
        assert_eq!(
            store.claim(&claim_issued(key)).await.unwrap(),
            OWNED_AS_ISSUED
        );
        assert_eq!(
            store
                .claim(&claim_issued(&format!("no{key}")))
                .await
                .unwrap(),
            Claimed::NotIssued
        );
    }
}

#[tokio::test]
async fn a_waiter_is_woken_by_a_commit_through_another_connection() {
    let cluster = steady_cluster().await;
    let one = patient(cluster.url()).await;
    let other = patient(cluster.url()).await;
    for key in ["a", "b", "c", "d", "e", "f"] {
        let first = claim(key);
        one.claim(&first).await.unwrap();
        let master = &cluster.nodes()[cluster.master_of(&redis_key(key)).await.unwrap()];
        wakes(&one, &other, master, &first).await;
    }
}

#[tokio::test]
async fn urls_of_the_wrong_form_say_which_to_write_and_the_rights_that_are_documented_are_enough() {
    let cluster = steady_cluster().await;
    let error = refusal(patient_builder(cluster.nodes()[0].url())).await;
    assert!(error.to_string().contains("redis+cluster://"), "{error}");
    let single = RedisServer::start().await.unwrap();
    let url = single.url().replace("redis://", "redis+cluster://");
    let error = refusal(patient_builder(url)).await;
    assert!(error.to_string().contains("`redis://`"), "{error}");
    for node in cluster.nodes() {
        allow(node, &format!("{RIGHTS} +cluster|slots +asking +wait")).await;
    }
    let url = |password: &str| cluster.url().replace("://", &format!("://app:{password}@"));
    let builder = patient_builder(url("secret")).replicas(1, ACKNOWLEDGED_WITHIN);
    use_everything(&connected(builder).await).await;
    refusal(patient_builder(url("wrong"))).await;
}

#[tokio::test]
async fn while_all_nodes_are_connected_no_call_has_them_asked_for_their_slots() {
    let cluster = steady_cluster().await;
    let store = patient(cluster.url()).await;
    let asked = async || {
        let mut asked = 0;
        for node in cluster.nodes() {
            asked += count(node, "cluster|slots").await;
        }
        asked
    };
    for number in 0..60 {
        store.inspect(&id(&number.to_string())).await.unwrap();
    }
    let before = asked().await;
    for number in 0..60 {
        store.inspect(&id(&number.to_string())).await.unwrap();
        sleep(Duration::from_millis(20)).await;
    }
    // A question or two may still have been under way.
    let after = asked().await;
    assert!(
        after - before <= 2 * cluster.nodes().len() as u64,
        "{before} {after}"
    );
}

#[tokio::test]
async fn a_slot_that_no_node_has_is_named_at_once_and_nothing_was_sent() {
    let partly = RedisCluster::builder()
        .arg("--cluster-require-full-coverage")
        .arg("no")
        .replicas(0)
        .start();
    let cluster = partly.await.unwrap();
    let store = usual(cluster.url()).await;
    let key = redis_key("1");
    let slot = cluster.nodes()[0]
        .cli(&["CLUSTER", "KEYSLOT", &key])
        .await
        .unwrap()
        .to_string();
    for node in cluster.nodes() {
        tell(node, &["CLUSTER", "DELSLOTS", &slot]).await;
    }
    until("it is known", || async {
        let error = store.claim(&claim("1")).await.unwrap_err();
        error.is_retryable()
            && !error.is_unknown()
            && error.to_string().contains(&format!("slot {slot}"))
    })
    .await;
    // Other slots are served.
    let mut others = (0..9).map(|number| format!("k{number}"));
    let other = others.find(|other| Slot::for_key(redis_key(other)) != Slot::for_key(&key));
    let other = claim(&other.unwrap());
    until("it is claimed", || async {
        store.claim(&other).await.is_ok()
    })
    .await;
    let error = patient_builder(cluster.url()).connect().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(
        error.to_string().contains(&format!("slot {slot}")),
        "{error}"
    );
}

#[tokio::test]
async fn a_restart_of_all_nodes_under_load_costs_retryable_errors_alone() {
    let cluster = RedisCluster::start().await.unwrap();
    let idempotency = idempotency(cluster.url()).await;
    calls_go_on(&idempotency, "a", async {
        for node in cluster.nodes() {
            node.kill().unwrap();
        }
        for node in cluster.nodes() {
            node.restart().await.unwrap();
        }
        cluster.settled().await.unwrap();
    })
    .await;
}

mod quiet {
    use super::*;

    #[test]
    fn nodes_are_kept_in_the_runtime_of_the_store_whoever_comes_to_them_first() {
        let runtime = || {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap()
        };
        let one = runtime();
        let two = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let cluster = one
            .block_on(RedisCluster::builder().replicas(0).start())
            .unwrap();
        let store = one.block_on(RedisStore::connect(cluster.url())).unwrap();
        for node in cluster.nodes() {
            one.block_on(tell(
                node,
                &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
            ));
        }
        // All nodes are come to from a runtime that then stands still.
        two.block_on(async {
            for number in 0..20 {
                let claim = claim(&format!("a{number}"));
                let _ = tokio::time::timeout(SECOND / 50, store.claim(&claim)).await;
            }
        });
        one.block_on(async {
            let start = Instant::now();
            for number in 0..20 {
                let claim = claim(&format!("b{number}"));
                until("it is claimed", || async {
                    store.claim(&claim).await.is_ok()
                })
                .await;
            }
            assert!(start.elapsed() < 2 * SECOND, "{:?}", start.elapsed());
        });
        drop(two);
        one.block_on(async {
            // Each node's clock is looked at every five seconds.
            let mut before = Vec::new();
            for node in cluster.nodes() {
                before.push(count(node, "time").await);
            }
            for (node, before) in cluster.nodes().iter().zip(before) {
                until("its clock is looked at", || async {
                    count(node, "time").await > before
                })
                .await;
            }
        });
    }
}
