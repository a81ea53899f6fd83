//! `RedisStore` over Sentinel and Cluster: what every store must do, and what happens when servers
//! are lost. The program `redis` has one failover of each kind, and the conformance suite.
// Tests measure how long things take, and stop where they cannot go on: the helpers too.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

mod acknowledged;
#[cfg(feature = "cluster-connection")]
mod beside_redis_rs;
#[cfg(feature = "tls")]
#[path = "../support/certificate.rs"]
mod certificate;
mod cluster;
mod conformance;
mod lists;
#[cfg(feature = "tls")]
mod lists_by_tls;
mod moving_slots;
#[path = "../support/patience.rs"]
mod patience;
mod sentinel;
mod stale_sentinel;
#[path = "../support/still.rs"]
mod still;
#[path = "../support/trouble.rs"]
mod trouble;

use std::time::Duration;

use idem_core::record::{
    Claim, Claimed, Commit, Encoded, Issue, Issued, Origin, Owner, Ownership, RecordId, Renewal,
};
use idem_core::{CodecId, Idempotency, Key, Store as _, StoreError, StoreErrorKind};
use idem_redis::{RedisStore, RedisStoreBuilder};
use idem_testkit::{RedisCluster, RedisServer, Reply};

use self::patience::{connected, patient, patient_builder, usual};
use self::still::{until, within};
use self::trouble::{BUSY, FAILS_WITHIN, call, calls_go_on, tell_all};

const SECOND: Duration = Duration::from_secs(1);
/// The time within which replicas acknowledge. The store refuses three seconds.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_millis(2500);

/// The rights that the crate's documentation lists, and nothing more.
const RIGHTS: &str = "~idem:* &idem:* +set +get +del +append +pttl +pexpire +evalsha +script|load \
    +subscribe +unsubscribe +publish +ping +info +time";

/// A cluster that takes no node of a busy machine for lost.
async fn steady_cluster() -> RedisCluster {
    let cluster = RedisCluster::start().await.unwrap();
    no_failover(&cluster).await;
    cluster
}

async fn no_failover(cluster: &RedisCluster) {
    let setting = ["CONFIG", "SET", "cluster-node-timeout", "60000"];
    tell_all(cluster.nodes(), &setting).await;
}

/// Makes a user of these rights, whose password is `secret`.
async fn allow(server: &RedisServer, rights: &str) {
    let words = ["ACL", "SETUSER", "app", "reset", "on", ">secret"]
        .into_iter()
        .chain(rights.split(' '));
    let reply = server.cli(&words.collect::<Vec<_>>()).await.unwrap();
    assert_eq!(reply, Reply::Status("OK".into()));
}

/// Claims, waits, renews, commits and looks, as often as a store without rights would fail.
async fn use_everything(store: &RedisStore) {
    let first = claim("1");
    let second = claim("2");
    store.claim(&first).await.unwrap();
    store.claim(&first).await.unwrap();
    store.claim(&second).await.unwrap();
    store.wait(&first.id, 1, SECOND / 100).await.unwrap();
    let renewal = Renewal::new(first.id.clone(), first.owner, first.hold);
    assert_eq!(
        *store.renew(&[renewal]).await[0].as_ref().unwrap(),
        Ownership::Held
    );
    let kept = commit(&first).with_remember(600 * SECOND);
    assert_eq!(store.commit(&kept).await.unwrap(), Ownership::Held);
    assert_eq!(store.commit(&kept).await.unwrap(), Ownership::Held);
    assert!(matches!(
        store.claim(&claim("1")).await.unwrap(),
        Claimed::Committed { .. }
    ));
    assert!(store.inspect(&first.id).await.unwrap().is_some());
    store.remove(&first.id).await.unwrap();
    assert_eq!(
        *store.issue(&[issue("3")]).await[0].as_ref().unwrap(),
        Issued::Issued
    );
    assert_eq!(
        store.claim(&claim_issued("3")).await.unwrap(),
        OWNED_AS_ISSUED
    );
}

/// The result of a claim of an issued key.
const OWNED_AS_ISSUED: Claimed = Claimed::Owned {
    attempt: 1,
    from: Origin::Issued,
};

fn issue(key: &str) -> Issue {
    Issue::new(id(key), 300 * SECOND).with_grace(300 * SECOND)
}

fn claim_issued(key: &str) -> Claim {
    claim(key).with_must_be_issued(true)
}

fn id(key: &str) -> RecordId {
    RecordId::new("orders", &Key::encode(key).unwrap()).unwrap()
}

/// The key in Redis of `id(key)`.
fn redis_key(key: &str) -> String {
    format!("idem:{}", id(key).as_str())
}

fn claim(key: &str) -> Claim {
    Claim::new(id(key), Owner::generate(), 30 * SECOND, 300 * SECOND)
}

fn commit(claim: &Claim) -> Commit {
    Commit::new(
        claim.id.clone(),
        claim.owner,
        1,
        Some(Encoded::new(CodecId::JSON, "1".into())),
        300 * SECOND,
    )
    .with_as_claimed(Some(claim.as_claimed(Origin::Nothing)))
}

async fn idempotency(url: String) -> Idempotency {
    Idempotency::new(usual(url).await)
}

/// The refusal of settings. A server that is late on a busy machine is asked again.
async fn refusal(builder: RedisStoreBuilder) -> StoreError {
    for _ in 0..9 {
        let error = builder.clone().connect().await.unwrap_err();
        if error.kind() == StoreErrorKind::Refused {
            return error;
        }
    }
    let error = builder.connect().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    error
}

/// Fails unless a waiter of one store is woken by the commit of the other.
async fn wakes(owner: &RedisStore, other: &RedisStore, master: &RedisServer, held: &Claim) {
    let waiting = tokio::spawn({
        let (other, id) = (other.clone(), held.id.clone());
        async move { other.wait(&id, 1, 20 * SECOND).await }
    });
    let key = format!("idem:{}", held.id.as_str());
    let is_marked = || async {
        let record = master.cli(&["GET", &key]).await.unwrap().to_string();
        record.ends_with('w')
    };
    // The clock stands still: a subscription that is not confirmed within a second is given up.
    within(
        Duration::ZERO,
        until("the waiter has left its mark", is_marked),
    )
    .await;
    let woken = async {
        owner.commit(&commit(held)).await.unwrap();
        waiting.await.unwrap().unwrap();
    };
    // By itself it looks once a second.
    within(Duration::ZERO, woken).await;
}
