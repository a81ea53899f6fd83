//! `RedisStore` over Sentinel and Cluster: what every store must do, and what happens when servers
//! are lost.
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
mod sentinel;
mod stale_sentinel;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use idem_core::record::{
    Claim, Claimed, Commit, Encoded, Issue, Issued, Origin, Owner, Ownership, RecordId, Renewal,
};
use idem_core::{CodecId, Error, Idempotency, Key, Outcome, Store as _};
use idem_redis::RedisStore;
use idem_testkit::{RedisServer, Reply};
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);
/// The time that a busy machine may add to a promised time.
const BUSY: Duration = Duration::from_secs(5);
/// Every call on servers that are gone must have failed within this time: two steps of 900 ms, and
/// what a busy machine adds.
const FAILS_WITHIN: Duration = Duration::from_secs(2 + BUSY.as_secs());

/// The rights that the crate's documentation lists, and nothing more.
const RIGHTS: &str = "~idem:* &idem:* +set +get +del +append +pttl +pexpire +evalsha +script|load \
    +subscribe +unsubscribe +publish +ping +info +time";

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

/// One call with a key, whose body counts.
async fn call(idempotency: &Idempotency, key: &str, bodies: &Arc<AtomicU64>) -> Result<u64, Error> {
    let bodies = bodies.clone();
    let body = || async move { Ok::<_, Error>(bodies.fetch_add(1, Ordering::SeqCst) + 1) };
    idempotency
        .operation("orders")
        .key(key)
        .run(body)
        .await
        .map(Outcome::into_inner)
}

/// Calls with ever new keys, one after the other, until they have succeeded for some time. No error
/// but one that may pass is seen. Gives how long the longest time without a success was.
async fn calls_go_on(
    idempotency: &Idempotency,
    prefix: &str,
    trouble: impl Future<Output = ()>,
) -> Duration {
    let bodies = Arc::new(AtomicU64::new(0));
    let mut last = Instant::now();
    let mut longest = Duration::ZERO;
    let mut trouble = std::pin::pin!(trouble);
    let mut is_over = false;
    let mut good = 0;
    let mut number = 0_u64;
    while good < 50 {
        number += 1;
        let start = Instant::now();
        let key = format!("{prefix}{number}");
        let outcome = tokio::select! {
            biased;
            () = &mut trouble, if !is_over => { is_over = true; continue }
            outcome = call(idempotency, &key, &bodies) => outcome,
        };
        assert!(start.elapsed() < FAILS_WITHIN, "{:?}", start.elapsed());
        match outcome {
            Ok(_) => {
                longest = longest.max(last.elapsed());
                last = Instant::now();
                good += u32::from(is_over);
                // Not to fill the log.
                sleep(Duration::from_millis(5)).await;
            }
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                assert!(last.elapsed() < 15 * SECOND, "still: {error}");
                good = 0;
            }
        }
    }
    longest
}

/// Waits until something holds, for at most ten seconds.
async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = Instant::now() + 10 * SECOND;
    while !holds().await {
        assert!(Instant::now() < deadline, "not within ten seconds: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

async fn idempotency(url: String) -> Idempotency {
    Idempotency::new(RedisStore::connect(url).await.unwrap())
}
