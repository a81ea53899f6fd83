//! A rolling deployment: processes of this version and of the one before it over one Redis.
//!
//! The scripts in `earlier/` are unchanged from the version that wrote only `i1` records. A process
//! of that version applies them to a record that it owns or claims. A change of the format keeps
//! them, and adds a folder.

use idem_core::record::{Claimed, Origin, Ownership, ReleaseTo};
use idem_core::wire;
use idem_core::{Store as _, StoreErrorKind};
use redis::Value;

use crate::server::Server;
use crate::{SECOND, claim, claim_for, commit, release, renewal, server_and_store, with_print};

const KEY: &str = "idem:orders:1";
const COMMIT: &str = include_str!("earlier/commit.lua");
const RELEASE: &str = include_str!("earlier/release.lua");
const RENEW: &str = include_str!("earlier/renew.lua");
const TAKEOVER: &str = include_str!("earlier/takeover.lua");

/// Runs a script of the earlier version.
async fn earlier(server: &Server, script: &str, args: &[&str]) -> Value {
    server.send(&[&["EVAL", script, "1", KEY], args].concat()).await
}

async fn text(server: &Server) -> String {
    server.get(KEY).await.unwrap()
}

/// A record in flight as the earlier version writes it, whose lease is over at once.
async fn abandoned_by_the_earlier(server: &Server, prefix: &str) {
    let record = format!("{prefix}n 1 1 300000 -.");
    let () = server.send(&["SET", KEY, &record, "PX", "299000"]).await;
}

#[tokio::test]
async fn p9_an_owner_of_the_earlier_version_commits_once_a_later_claim_was_undone() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    let owner = wire::owner_prefix(first.owner);
    abandoned_by_the_earlier(&server, &owner).await;
    let second = with_print(claim("1"), "two");
    assert_eq!(store.claim(&second).await.unwrap(), Claimed::Owned { attempt: 2, from: Origin::Abandoned });
    let written = text(&server).await;
    assert!(written.starts_with("i2f"), "{written}");

    let outcome = "i1c 1 j - n1n1HA {\"a\":\"b c\"}";
    let refused = earlier(&server, COMMIT, &[&owner, outcome, "60000"]).await;
    assert_eq!(refused, Value::BulkString(written.into_bytes()), "left as it is, and told apart from an own record");

    let undo = release(&second).with_to(ReleaseTo::Undone { keep: 60 * SECOND });
    assert_eq!(store.release(&undo).await.unwrap(), Ownership::Held);
    assert_eq!(text(&server).await, format!("{owner}n 1 0 300000 -."), "as the earlier version reads it");
    assert_eq!(earlier(&server, COMMIT, &[&owner, outcome, "60000"]).await, Value::Int(1));
    let answer = store.claim(&claim("1")).await.unwrap();
    assert!(matches!(answer, Claimed::Committed { attempt: 1, .. }), "{answer:?}");
}

#[tokio::test]
async fn a_record_in_flight_with_a_trace_is_left_alone_by_the_earlier_version() {
    let (server, store) = server_and_store().await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let first = claim("1").with_trace(Some(trace.into()));
    store.claim(&first).await.unwrap();
    let written = text(&server).await;
    assert!(written.starts_with("i3f") && written.contains(trace), "{written}");
    let theirs = wire::owner_prefix(claim("1").owner);
    let found = Value::BulkString(written.clone().into_bytes());
    for (script, args) in [
        (COMMIT, &[theirs.as_str(), "i1c 1 j - n1n1HA {\"a\":\"b c\"}", "60000"][..]),
        (RENEW, &[&theirs, "300000"]),
        (RELEASE, &[&theirs, "60000", ""]),
    ] {
        assert_eq!(earlier(&server, script, args).await, found, "{script}");
    }
    assert_eq!(text(&server).await, written);
    // Its owner has written it, and does all it may.
    assert_eq!(store.renew(&[renewal(&first)]).await.remove(0).unwrap(), Ownership::Held);
    let outcome = commit(&first, 1, "1").with_trace(first.trace.clone());
    assert_eq!(store.commit(&outcome).await.unwrap(), Ownership::Held);
}

#[tokio::test]
async fn the_two_versions_take_turns_on_records_that_say_nothing_new() {
    let (server, store) = server_and_store().await;
    // The later claims: the earlier reads it, and takes it over when it is abandoned.
    let first = claim_for("1", SECOND / 1000);
    store.claim(&first).await.unwrap();
    let found = text(&server).await;
    assert!(found.starts_with("i1f"), "{found}");
    tokio::time::sleep(SECOND / 100).await;
    let theirs = wire::owner_prefix(claim("1").owner);
    let next = format!("{theirs}a 2 30000 300000 -.");
    let taken = earlier(&server, TAKEOVER, &[&found, &next, "300000", "1", ""]).await;
    assert_eq!(taken, Value::Array(vec![Value::Int(5)]));
    assert_eq!(store.commit(&commit(&first, 1, "1")).await.unwrap(), Ownership::Lost);
    // The earlier keeps its lease, and gives the key up: the later claims it.
    assert_eq!(earlier(&server, RENEW, &[&theirs, "300000"]).await, Value::Int(1));
    assert!(matches!(store.claim(&claim("1")).await.unwrap(), Claimed::InFlight { attempt: 2, .. }));
    assert_eq!(earlier(&server, RELEASE, &[&theirs, "60000", ""]).await, Value::Int(1));
    let third = claim("1");
    assert_eq!(store.claim(&third).await.unwrap(), Claimed::Owned { attempt: 3, from: Origin::Released });
    assert!(text(&server).await.starts_with("i1f"));
    assert_eq!(store.release(&release(&third)).await.unwrap(), Ownership::Held);
    assert_eq!(text(&server).await, "i1r 3.");
}

#[tokio::test]
async fn the_earlier_version_changes_nothing_that_it_cannot_read() {
    let (server, store) = server_and_store().await;
    let first = claim_for("1", SECOND / 1000);
    store.claim(&first).await.unwrap();
    tokio::time::sleep(SECOND / 100).await;
    let second = claim("1");
    store.claim(&second).await.unwrap();
    let written = text(&server).await;
    for owner in [wire::owner_prefix(first.owner), wire::owner_prefix(second.owner)] {
        let found = Value::BulkString(written.clone().into_bytes());
        assert_eq!(earlier(&server, COMMIT, &[&owner, "i1d 1 -.", "60000"]).await, found);
        assert_eq!(earlier(&server, RELEASE, &[&owner, "60000", ""]).await, found);
        assert_eq!(earlier(&server, RENEW, &[&owner, "60000"]).await, found);
    }
    assert_eq!(text(&server).await, written);
    assert_eq!(store.renew(&[renewal(&second)]).await[0].as_ref().unwrap(), &Ownership::Held);
}

/// As this version is the earlier one to the next.
#[tokio::test]
async fn a_record_of_a_later_version_is_an_error_from_every_step_and_stays() {
    let (server, store) = server_and_store().await;
    let own = claim("1");
    let later = format!("i4f{}n 1 30000 300000 - new.", &wire::owner_prefix(own.owner)[3..]);
    let () = server.send(&["SET", KEY, &later, "PX", "300000"]).await;
    let unreadable = |kind| assert_eq!(kind, StoreErrorKind::Unreadable);
    unreadable(store.claim(&own).await.unwrap_err().kind());
    unreadable(store.commit(&commit(&own, 1, "1")).await.unwrap_err().kind());
    unreadable(store.release(&release(&own)).await.unwrap_err().kind());
    unreadable(store.renew(&[renewal(&own)]).await.remove(0).unwrap_err().kind());
    unreadable(store.inspect(&own.id).await.unwrap_err().kind());
    unreadable(store.remove(&own.id).await.unwrap_err().kind());
    assert_eq!(text(&server).await, later);
}
