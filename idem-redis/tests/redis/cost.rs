//! What a call costs the server.

use std::collections::BTreeMap;
use std::time::Duration;

use idem_core::Store as _;
use idem_core::record::{Claimed, Commit, Ownership};

use crate::{SECOND, claim, claim_for, commit, release, renewal, server_and_store};

fn counts<const N: usize>(counts: [(&str, u64); N]) -> BTreeMap<String, u64> {
    counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}

#[tokio::test]
async fn a_first_execution_is_one_set_and_one_script() {
    let (server, store) = server_and_store().await;
    server.commands().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    assert_eq!(server.commands().await, counts([("set", 1)]));
    store.commit(&commit(&first, 1, "1")).await.unwrap();
    // The script's own GET and SET are counted too. It was loaded when the connection was made.
    assert_eq!(server.commands().await, counts([("evalsha", 1), ("get", 1), ("set", 1)]));
}

#[tokio::test]
async fn a_replay_is_one_set() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    store.commit(&commit(&first, 1, "1")).await.unwrap();
    server.commands().await;
    for _ in 0..3 {
        assert!(matches!(store.claim(&claim("1")).await.unwrap(), Claimed::Committed { .. }));
    }
    assert_eq!(server.commands().await, counts([("set", 3)]));
}

#[tokio::test]
async fn a_replay_from_aside_is_one_get_more() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    store.commit(&Commit { remember: 600 * SECOND, ..commit(&first, 1, "1") }).await.unwrap();
    server.commands().await;
    assert!(matches!(store.claim(&claim("1")).await.unwrap(), Claimed::Committed { .. }));
    assert_eq!(server.commands().await, counts([("set", 1), ("get", 1)]));
}

#[tokio::test]
async fn releases_and_takeovers_are_one_script_each() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    server.commands().await;
    store.release(&release(&first)).await.unwrap();
    assert_eq!(server.commands().await, counts([("evalsha", 1), ("get", 1), ("set", 1)]));
    store.claim(&claim("1")).await.unwrap();
    assert_eq!(server.commands().await, counts([("evalsha", 1), ("get", 1), ("set", 2)]));

    store.claim(&claim_for("2", Duration::ZERO)).await.unwrap();
    server.commands().await;
    assert!(matches!(store.claim(&claim("2")).await.unwrap(), Claimed::Owned { attempt: 2, .. }));
    assert_eq!(server.commands().await, counts([("evalsha", 1), ("get", 1), ("pttl", 1), ("set", 2)]));
}

#[tokio::test]
async fn renewals_are_one_script_each() {
    let (server, store) = server_and_store().await;
    let claims: Vec<_> = (0..700).map(|n| claim(&n.to_string())).collect();
    for claim in &claims {
        store.claim(claim).await.unwrap();
    }
    server.commands().await;
    let answers = store.renew(&claims.iter().map(renewal).collect::<Vec<_>>()).await;
    assert!(answers.into_iter().all(|answer| answer.unwrap() == Ownership::Held));
    assert_eq!(server.commands().await, counts([("evalsha", 700), ("get", 700), ("pexpire", 700)]));
}

#[tokio::test]
async fn a_commit_that_nobody_waits_for_publishes_nothing() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    // Duplicates alone leave no mark.
    store.claim(&claim("1")).await.unwrap();
    server.commands().await;
    store.commit(&commit(&first, 1, "1")).await.unwrap();
    assert!(!server.commands().await.contains_key("publish"));
}
