//! The Redis store against real servers, one for each test; under Sentinel and in a cluster once
//! each. The program `topologies` has the other failovers.
//!
//! The conformance suite of `idem-testkit` tests the duties of every store; these tests cover the
//! mistakes that only a Redis store can make. Tests and helpers measure time, and panic if they
//! cannot continue.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

mod batch;
#[cfg(feature = "tls")]
#[path = "../support/certificate.rs"]
mod certificate;
#[cfg(target_os = "linux")]
mod clock;
mod compared;
mod connecting;
mod cost;
mod faults;
mod foreign;
mod front;
mod issued;
mod life;
mod listing;
#[path = "../support/patience.rs"]
mod patience;
mod runtimes;
mod server;
mod states;
#[path = "../support/still.rs"]
mod still;
#[cfg(feature = "tls")]
mod tls;
mod topologies;
#[path = "../support/trouble.rs"]
mod trouble;
mod waking;

use std::time::Duration;

use bytes::Bytes;
use idem_core::record::{
    Claim, Commit, Encoded, Issue, Origin, Owner, RecordId, Release, ReleaseTo, Renewal,
};
use idem_core::{CodecId, Key};
use idem_redis::RedisStore;

use crate::patience::{patient, patient_builder, usual};
use crate::server::Server;

const SECOND: Duration = Duration::from_secs(1);

/// A server, and a store whose steps may take 20 s.
async fn server_and_store() -> (Server, RedisStore) {
    let server = Server::start(&[]).await;
    let store = patient(server.url()).await;
    (server, store)
}

/// A server, and a store with the usual limits.
async fn server_and_usual_store() -> (Server, RedisStore) {
    let server = Server::start(&[]).await;
    let store = usual(server.url()).await;
    (server, store)
}

fn id(key: &str) -> RecordId {
    RecordId::new("orders", &Key::encode(key).unwrap()).unwrap()
}

/// A first claim of `key`, with a lease of 30 s.
fn claim(key: &str) -> Claim {
    Claim::new(id(key), Owner::generate(), 30 * SECOND, 300 * SECOND)
}

/// A claim of a key that must have been issued.
fn claim_issued(key: &str) -> Claim {
    claim(key).with_must_be_issued(true)
}

fn issue(key: &str) -> Issue {
    Issue::new(id(key), 60 * SECOND).with_grace(20 * SECOND)
}

/// A claim whose lease is given, by its own owner.
fn claim_for(key: &str, lease: Duration) -> Claim {
    claim(key).with_lease(lease)
}

fn outcome(json: &'static str) -> Encoded {
    Encoded::new(CodecId::JSON, Bytes::from_static(json.as_bytes()))
}

/// A commit by a claim's owner, kept for 60 s and remembered no longer.
fn commit(claim: &Claim, attempt: u64, json: &'static str) -> Commit {
    Commit::new(
        claim.id.clone(),
        claim.owner,
        attempt,
        Some(outcome(json)),
        60 * SECOND,
    )
    .with_fingerprint(claim.fingerprint)
    .with_as_claimed((attempt == 1).then(|| claim.as_claimed(Origin::Nothing)))
}

fn release(claim: &Claim) -> Release {
    Release::new(
        claim.id.clone(),
        claim.owner,
        ReleaseTo::Released { keep: 60 * SECOND },
    )
}

fn give_up(claim: &Claim) -> Release {
    Release::new(claim.id.clone(), claim.owner, ReleaseTo::Abandoned)
}

fn renewal(claim: &Claim) -> Renewal {
    Renewal::new(claim.id.clone(), claim.owner, claim.hold)
}
