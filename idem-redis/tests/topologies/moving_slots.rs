//! Slots that move from one master of a cluster to another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use idem_core::record::{
    Claimed, Encoded, Issue, Issued, Owner, Ownership, RecordState, Removed, Renewal,
};
use idem_core::{CodecId, Idempotency, Store as _};
use idem_redis::redis::cluster_routing::Slot;
use idem_testkit::{RedisCluster, RedisServer, Reply};

use crate::cluster::{Begun, count, tell};
use crate::{
    ACKNOWLEDGED_WITHIN, BUSY, OWNED_AS_ISSUED, SECOND, call, claim, claim_issued, commit,
    connected, id, issue, patient, patient_builder, redis_key, steady_cluster,
};

/// A slot on its way from one master to another.
struct Migration<'a> {
    from: &'a RedisServer,
    to: &'a RedisServer,
    slot: String,
    to_id: String,
}

/// Begins to move the slot of a key. Its keys stay where they are, and new ones come to be at the
/// other node.
async fn migrate<'a>(cluster: &'a RedisCluster, key: &str) -> Migration<'a> {
    let from = cluster.master_of(key).await.unwrap();
    let to = &cluster.nodes()[(from + 1) % 3];
    let from = &cluster.nodes()[from];
    let slot = from
        .cli(&["CLUSTER", "KEYSLOT", key])
        .await
        .unwrap()
        .to_string();
    let ids = [
        from.cli(&["CLUSTER", "MYID"]).await.unwrap(),
        to.cli(&["CLUSTER", "MYID"]).await.unwrap(),
    ];
    let [from_id, to_id] = ids.map(|id| id.to_string());
    tell(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]).await;
    tell(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]).await;
    Migration {
        from,
        to,
        slot,
        to_id,
    }
}

/// Another key whose record is in the same slot.
fn neighbour(of: &str) -> String {
    let slot = Slot::for_key(redis_key(of));
    (0..1_000_000)
        .map(|number| format!("neighbour{number}"))
        .find(|key| Slot::for_key(redis_key(key)) == slot)
        .unwrap()
}

#[tokio::test]
async fn a_listing_has_the_records_of_a_slot_that_moves_to_a_node_which_it_has_left() {
    let cluster = steady_cluster().await;
    let store = patient(cluster.url()).await;
    for number in 0..300 {
        store.claim(&claim(&number.to_string())).await.unwrap();
    }
    // The first node is done, the others are not.
    let begun = Begun::after(&store, 7).await;
    let mut keys = (0..300).map(|number| redis_key(&number.to_string()));
    let moving = loop {
        let key = keys.next().unwrap();
        if cluster.master_of(&key).await.unwrap() == 2 {
            break key;
        }
    };
    let Migration {
        from,
        to,
        slot,
        to_id,
    } = migrate(&cluster, &moving).await;
    assert_eq!(to.port(), cluster.nodes()[0].port());
    let in_slot = ["CLUSTER", "GETKEYSINSLOT", &slot, "99"];
    let Reply::List(keys) = from.cli(&in_slot).await.unwrap() else {
        panic!("the slot has no keys")
    };
    let port = to.port().to_string();
    for key in keys {
        let key = key.to_string();
        tell(from, &["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]).await;
    }
    for node in [to, from, &cluster.nodes()[1]] {
        tell(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).await;
    }
    assert_eq!(begun.all().await, 300);
}

#[tokio::test]
async fn leases_are_renewed_while_their_slot_moves() {
    let cluster = steady_cluster().await;
    let store = patient(cluster.url()).await;
    // One that has not gone yet, one that has, and others.
    let mut claims = vec![claim("1"), claim(&neighbour("1"))];
    claims.extend((0..20).map(|number| claim(&format!("other{number}"))));
    store.claim(&claims[0]).await.unwrap();
    let Migration { to, slot, .. } = migrate(&cluster, &redis_key("1")).await;
    for claim in &claims[1..] {
        store.claim(claim).await.unwrap();
    }
    assert!(matches!(
        to.cli(&["CLUSTER", "COUNTKEYSINSLOT", &slot])
            .await
            .unwrap(),
        Reply::Number(1)
    ));
    let renewals: Vec<_> = claims
        .iter()
        .map(|claim| Renewal::new(claim.id.clone(), claim.owner, 900 * SECOND))
        .collect();
    for round in 0..3 {
        if round == 2 {
            // The script has to be made known again, to that node too.
            for node in &cluster.nodes()[..3] {
                tell(node, &["SCRIPT", "FLUSH", "SYNC"]).await;
            }
        }
        for answer in store.renew(&renewals).await {
            assert_eq!(answer.unwrap(), Ownership::Held);
        }
    }
}

#[tokio::test]
async fn an_outcome_that_would_be_kept_aside_is_recorded_read_and_removed_while_its_slot_moves() {
    let cluster = steady_cluster().await;
    let builder = patient_builder(cluster.url()).replicas(1, ACKNOWLEDGED_WITHIN);
    let store = connected(builder).await;
    let stays = claim("1");
    let gone = claim(&neighbour("1"));
    store.claim(&stays).await.unwrap();
    let before = claim("before");
    let Migration { from, to, slot, .. } = migrate(&cluster, &redis_key("1")).await;
    store.claim(&before).await.unwrap();
    store.claim(&gone).await.unwrap();
    for first in [&stays, &gone, &before] {
        let kept = commit(first).with_remember(900 * SECOND);
        let outcome = Encoded::new(CodecId::JSON, "2".into());
        let strange = kept
            .clone()
            .with_owner(Owner::generate())
            .with_outcome(Some(outcome));
        assert_eq!(store.commit(&strange).await.unwrap(), Ownership::Lost);
        let start = Instant::now();
        assert_eq!(store.commit(&kept).await.unwrap(), Ownership::Held);
        assert_eq!(store.commit(&kept).await.unwrap(), Ownership::Held);
        assert_eq!(store.commit(&strange).await.unwrap(), Ownership::Lost);
        let limit = ACKNOWLEDGED_WITHIN + BUSY;
        assert!(start.elapsed() < limit, "{:?}", start.elapsed());
        let duplicate = store
            .claim(&first.clone().with_owner(Owner::generate()))
            .await
            .unwrap();
        assert!(
            matches!(&duplicate, Claimed::Committed { attempt: 1, outcome } if outcome.payload == "1"),
            "{duplicate:?}"
        );
        let info = store.inspect(&first.id).await.unwrap().unwrap();
        assert_eq!(info.state, RecordState::Committed);
    }
    // Each in one piece, which no other step can come between.
    assert_eq!((keys(from, &slot).await, keys(to, &slot).await), (1, 1));
    for first in [&stays, &gone, &before] {
        assert_eq!(store.remove(&first.id).await.unwrap(), Removed::Removed);
        assert!(store.inspect(&first.id).await.unwrap().is_none());
        assert_eq!(store.remove(&first.id).await.unwrap(), Removed::Nothing);
    }
    assert_eq!((keys(from, &slot).await, keys(to, &slot).await), (0, 0));
}

/// How many keys a node has in a slot.
async fn keys(node: &RedisServer, slot: &str) -> i64 {
    match node
        .cli(&["CLUSTER", "COUNTKEYSINSLOT", slot])
        .await
        .unwrap()
    {
        Reply::Number(count) => count,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_slot_that_moves_is_followed_without_an_error() {
    let cluster = steady_cluster().await;
    let store = patient(cluster.url()).await;
    let idempotency = Idempotency::new(patient(cluster.url()).await);
    let first = claim("1");
    let bodies = Arc::new(AtomicU64::new(0));
    let key = redis_key("1");
    let Migration {
        from,
        to,
        slot,
        to_id,
    } = migrate(&cluster, &key).await;
    // A new key of a slot that is on its way: ASK.
    store.claim(&first).await.unwrap();
    assert!(matches!(
        to.cli(&["CLUSTER", "COUNTKEYSINSLOT", &slot])
            .await
            .unwrap(),
        Reply::Number(1)
    ));
    let renewal = Renewal::new(first.id.clone(), first.owner, first.hold);
    assert!(matches!(
        store.claim(&claim("1")).await.unwrap(),
        Claimed::InFlight { attempt: 1, .. }
    ));
    assert!(store.inspect(&first.id).await.unwrap().is_some());
    let start = Instant::now();
    let waited = tokio::join!(
        async {
            store.wait(&first.id, 1, 10 * SECOND).await.unwrap();
            start.elapsed()
        },
        async {
            for node in [to, from] {
                tell(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).await;
            }
            // MOVED.
            let answers = store.renew(&[renewal]).await;
            assert_eq!(
                answers.into_iter().next().unwrap().unwrap(),
                Ownership::Held
            );
            assert_eq!(
                store.commit(&commit(&first)).await.unwrap(),
                Ownership::Held
            );
        }
    );
    assert!(waited.0 < 2 * SECOND + BUSY, "{waited:?}");
    assert!(matches!(
        store.claim(&claim("1")).await.unwrap(),
        Claimed::Committed { .. }
    ));
    let moved = count(from, "set").await;
    for number in 0..20 {
        call(&idempotency, &format!("n{number}"), &bodies)
            .await
            .unwrap();
        store.claim(&claim("1")).await.unwrap();
    }
    assert_eq!(bodies.load(Ordering::SeqCst), 20);
    assert!(count(from, "set").await >= moved);
}

#[tokio::test]
async fn keys_are_issued_and_claimed_while_their_slot_moves() {
    let cluster = steady_cluster().await;
    let store = patient(cluster.url()).await;
    let all_issued = async |all: &[Issue]| {
        for answer in store.issue(all).await {
            assert_eq!(answer.unwrap(), Issued::Issued);
        }
    };
    // One that has not gone yet, one that has, and others.
    let stays = issue("1");
    let gone = issue(&neighbour("1"));
    all_issued(std::slice::from_ref(&stays)).await;
    let Migration {
        from,
        to,
        slot,
        to_id,
    } = migrate(&cluster, &redis_key("1")).await;
    let mut all = vec![stays, gone];
    all.extend((0..20).map(|number| issue(&format!("other{number}"))));
    for _ in 0..2 {
        all_issued(&all).await;
        assert_eq!((keys(from, &slot).await, keys(to, &slot).await), (1, 1));
    }
    let never = claim_issued("1").with_id(id("never"));
    assert_eq!(store.claim(&never).await.unwrap(), Claimed::NotIssued);
    for node in &cluster.nodes()[..3] {
        tell(node, &["SCRIPT", "FLUSH", "SYNC"]).await;
    }
    for issue in &all {
        let first = claim_issued("1").with_id(issue.id.clone());
        assert_eq!(store.claim(&first).await.unwrap(), OWNED_AS_ISSUED);
        assert_eq!(store.claim(&first).await.unwrap(), OWNED_AS_ISSUED);
        let other = first.clone().with_owner(Owner::generate());
        assert!(matches!(
            store.claim(&other).await.unwrap(),
            Claimed::InFlight { attempt: 1, .. }
        ));
        assert_eq!(
            store.commit(&commit(&first)).await.unwrap(),
            Ownership::Held
        );
        assert!(matches!(
            store.claim(&other).await.unwrap(),
            Claimed::Committed { attempt: 1, .. }
        ));
    }
    assert_eq!(store.remove(&all[0].id).await.unwrap(), Removed::Removed);
    for node in [to, from] {
        tell(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).await;
    }
    // MOVED.
    all_issued(&all[..1]).await;
    let last = claim_issued("1").with_id(all[0].id.clone());
    assert_eq!(store.claim(&last).await.unwrap(), OWNED_AS_ISSUED);
    assert_eq!(keys(to, &slot).await, 2);
}
