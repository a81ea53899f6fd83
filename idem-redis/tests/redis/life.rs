//! How the record looks in Redis during its life. What each step answers is in the conformance
//! suite.

use std::time::Duration;

use idem_core::record::{Claim, Claimed, Origin, Ownership, RecordState, Removed};
use idem_core::{RecordInfo, Store as _};
use idem_redis::RedisStore;

use crate::still::until;
use crate::{
    SECOND, claim, claim_for, commit, give_up, id, outcome, patient_builder, release, renewal,
    server_and_store,
};

async fn inspect(store: &RedisStore, key: &str) -> Option<RecordInfo> {
    store.inspect(&id(key)).await.unwrap()
}

/// Claims a key, and waits until the lease has run out.
async fn abandon(store: &RedisStore, key: &str) -> Claim {
    let lost = claim_for(key, Duration::from_millis(1));
    store.claim(&lost).await.unwrap();
    until("the key is abandoned", || async {
        let record = inspect(store, key).await;
        record.is_some_and(|record| record.state == RecordState::Abandoned)
    })
    .await;
    lost
}

fn owned(attempt: u64, from: Origin) -> Claimed {
    Claimed::Owned { attempt, from }
}

#[tokio::test]
async fn a_new_key_is_owned_and_its_outcome_is_replayed() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    assert_eq!(
        store.claim(&first).await.unwrap(),
        owned(1, Origin::Nothing)
    );
    let text = server.get("idem:orders:1").await.unwrap();
    assert!(
        text.starts_with("i1f") && text.ends_with(" 1 30000 300000 -."),
        "{text}"
    );

    let Claimed::InFlight {
        attempt: 1,
        lease_left,
    } = store.claim(&claim("1")).await.unwrap()
    else {
        panic!()
    };
    assert!(
        lease_left > 10 * SECOND && lease_left <= 30 * SECOND,
        "{lease_left:?}"
    );

    assert_eq!(
        store
            .commit(&commit(&first, 1, r#"{"id":7}"#))
            .await
            .unwrap(),
        Ownership::Held
    );
    let text = server.get("idem:orders:1").await.unwrap();
    assert!(
        text.starts_with("i1c 1 j - ") && text.ends_with(r#" {"id":7}"#),
        "{text}"
    );
    let left: i64 = server.send(&["PTTL", "idem:orders:1"]).await;
    assert!((40_000..=60_000).contains(&left), "{left}");
    assert_eq!(
        store.claim(&claim("1")).await.unwrap(),
        Claimed::Committed {
            attempt: 1,
            outcome: outcome(r#"{"id":7}"#)
        }
    );
}

#[tokio::test]
async fn a_commit_sent_again_is_recognised() {
    let (_server, store) = server_and_store().await;
    for (key, remember, kept) in [
        ("1", 60, Some(outcome("1"))),
        ("2", 600, Some(outcome("1"))),
        ("3", 600, None),
    ] {
        let first = claim(key);
        store.claim(&first).await.unwrap();
        let commit = commit(&first, 1, "1")
            .with_remember(remember * SECOND)
            .with_outcome(kept);
        for _ in 0..3 {
            assert_eq!(store.commit(&commit).await.unwrap(), Ownership::Held);
        }
        let other = commit.clone().with_attempt(2);
        assert_eq!(store.commit(&other).await.unwrap(), Ownership::Lost);
        let other = commit.with_outcome(Some(outcome("2")));
        assert_eq!(store.commit(&other).await.unwrap(), Ownership::Lost);
    }
}

#[tokio::test]
async fn a_released_key_is_claimed_as_the_next_attempt() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    assert_eq!(
        store.release(&release(&first)).await.unwrap(),
        Ownership::Held
    );
    assert_eq!(server.get("idem:orders:1").await.unwrap(), "i1r 1.");
    assert_eq!(
        inspect(&store, "1").await.unwrap().state,
        RecordState::Released
    );
    assert_eq!(
        store.release(&release(&first)).await.unwrap(),
        Ownership::Lost
    );
    assert_eq!(
        store
            .claim(&claim("1").with_max_attempts(Some(1)))
            .await
            .unwrap(),
        Claimed::Exhausted { attempts: 1 }
    );
    assert_eq!(
        store.claim(&claim("1")).await.unwrap(),
        owned(2, Origin::Released)
    );
    let left: i64 = server.send(&["PTTL", "idem:orders:1"]).await;
    assert!((280_000..=300_000).contains(&left), "{left}");
}

#[tokio::test]
async fn a_token_that_was_given_out_is_claimed_as_the_first_attempt() {
    let (server, store) = server_and_store().await;
    let () = server
        .send(&["SET", "idem:orders:1", "i1i.", "PX", "60000"])
        .await;
    assert_eq!(
        inspect(&store, "1").await.unwrap().state,
        RecordState::Issued
    );
    assert_eq!(
        store.claim(&claim("1")).await.unwrap(),
        owned(1, Origin::Issued)
    );
}

#[tokio::test]
async fn a_record_that_is_given_up_is_abandoned_at_once_and_keeps_its_expiry() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    let () = server.send(&["PEXPIRE", "idem:orders:1", "290000"]).await;
    assert_eq!(
        store.release(&give_up(&first)).await.unwrap(),
        Ownership::Held
    );
    let text = server.get("idem:orders:1").await.unwrap();
    assert!(text.ends_with(" 1 0 300000 -."), "{text}");
    let left: i64 = server.send(&["PTTL", "idem:orders:1"]).await;
    assert!((270_000..=290_000).contains(&left), "{left}");
    assert_eq!(
        inspect(&store, "1").await.unwrap().state,
        RecordState::Abandoned
    );
    let cautious = claim("1").with_take_over(false);
    assert_eq!(
        store.claim(&cautious).await.unwrap(),
        Claimed::Abandoned { attempt: 1 }
    );
    assert_eq!(
        store.claim(&claim("1")).await.unwrap(),
        owned(2, Origin::Abandoned)
    );
}

#[tokio::test]
async fn a_renewal_with_another_expiry_keeps_the_age_of_the_lease_right() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    let longer = renewal(&first).with_hold(900 * SECOND);
    assert_eq!(
        *store.renew(&[longer]).await[0].as_ref().unwrap(),
        Ownership::Held
    );
    let info = inspect(&store, "1").await.unwrap();
    assert_eq!(info.state, RecordState::InFlight);
    assert!(
        info.lease_age.unwrap() < 20 * SECOND && info.expires_in > 880 * SECOND,
        "{info:?}"
    );
    let text = server.get("idem:orders:1").await.unwrap();
    assert!(text.ends_with(" 1 30000 900000 -."), "{text}");
}

#[tokio::test]
async fn renewals_are_answered_in_their_order_however_many_there_are() {
    let (_server, store) = server_and_store().await;
    let claims: Vec<_> = (0..1203).map(|n| claim(&n.to_string())).collect();
    for claim in claims.iter().filter(|claim| !claim.id.key().ends_with('3')) {
        store.claim(claim).await.unwrap();
    }
    let answers = store
        .renew(&claims.iter().map(renewal).collect::<Vec<_>>())
        .await;
    assert_eq!(answers.len(), claims.len());
    for (claim, answer) in claims.iter().zip(answers) {
        let expected = if claim.id.key().ends_with('3') {
            Ownership::Lost
        } else {
            Ownership::Held
        };
        assert_eq!(answer.unwrap(), expected, "{}", claim.id.key());
    }
    assert!(store.renew(&[]).await.is_empty());
}

#[tokio::test]
async fn the_outcome_is_forgotten_before_the_fact() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    let kept = commit(&first, 1, "1")
        .with_ttl(60 * SECOND)
        .with_remember(600 * SECOND);
    assert_eq!(store.commit(&kept).await.unwrap(), Ownership::Held);
    assert_eq!(server.get("idem:orders:1").await.unwrap(), "i1o 1 -.");
    let aside = "idem:{idem:orders:1}";
    let outcome_aside = server.get(aside).await.unwrap();
    assert!(outcome_aside.starts_with("i1c 1 j - "));
    let left: i64 = server.send(&["PTTL", aside]).await;
    assert!((1..=60_000).contains(&left), "{left}");
    assert_eq!(
        store.claim(&claim("1")).await.unwrap(),
        Claimed::Committed {
            attempt: 1,
            outcome: outcome("1")
        }
    );
    let info = inspect(&store, "1").await.unwrap();
    assert!(
        info.state == RecordState::Committed && info.expires_in <= 60 * SECOND,
        "{info:?}"
    );

    // The outcome's time is over.
    let () = server.send(&["PEXPIRE", aside, "1"]).await;
    until("the end of the outcome", || async {
        server.get(aside).await.is_none()
    })
    .await;
    assert_eq!(
        store.claim(&claim("1")).await.unwrap(),
        Claimed::Done { attempt: 1 }
    );
    let info = inspect(&store, "1").await.unwrap();
    assert!(
        info.state == RecordState::Done && info.expires_in > 590 * SECOND,
        "{info:?}"
    );
}

#[tokio::test]
async fn the_outcome_of_an_earlier_life_of_the_key_is_not_replayed() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    store
        .commit(&commit(&first, 1, "\"old\"").with_remember(600 * SECOND))
        .await
        .unwrap();
    let () = server
        .send(&["SET", "idem:orders:1", "i1o 2 -.", "PX", "60000"])
        .await;
    assert_eq!(
        store.claim(&claim("1")).await.unwrap(),
        Claimed::Done { attempt: 2 }
    );
}

#[tokio::test]
async fn an_outcome_that_could_not_be_kept_is_remembered() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    let bare = commit(&first, 1, "")
        .with_outcome(None)
        .with_remember(600 * SECOND);
    assert_eq!(store.commit(&bare).await.unwrap(), Ownership::Held);
    assert_eq!(server.get("idem:orders:1").await.unwrap(), "i1d 1 -.");
    assert_eq!(
        store.claim(&claim("1")).await.unwrap(),
        Claimed::Done { attempt: 1 }
    );
    assert!(inspect(&store, "1").await.unwrap().expires_in > 590 * SECOND);
}

#[tokio::test]
async fn removal_leaves_only_what_is_in_flight_and_alive() {
    let (server, store) = server_and_store().await;
    assert_eq!(store.remove(&id("1")).await.unwrap(), Removed::Nothing);
    let first = claim("1");
    store.claim(&first).await.unwrap();
    assert!(
        matches!(store.remove(&id("1")).await.unwrap(), Removed::InFlight { lease_left } if lease_left > 10 * SECOND)
    );
    store
        .commit(&commit(&first, 1, "1").with_remember(600 * SECOND))
        .await
        .unwrap();
    assert_eq!(store.remove(&id("1")).await.unwrap(), Removed::Removed);
    abandon(&store, "1").await;
    assert_eq!(store.remove(&id("1")).await.unwrap(), Removed::Removed);
    assert_eq!(inspect(&store, "1").await, None);
    let keys: Vec<String> = server.send(&["KEYS", "*"]).await;
    assert_eq!(keys, Vec::<String>::new());
}

#[tokio::test]
async fn prefixes_keep_stores_apart() {
    let (server, store) = server_and_store().await;
    let other = patient_builder(server.url()).prefix("shop/eu").connect();
    let other = other.await.unwrap();
    assert_eq!(
        store.claim(&claim("1")).await.unwrap(),
        owned(1, Origin::Nothing)
    );
    assert_eq!(
        other.claim(&claim("1")).await.unwrap(),
        owned(1, Origin::Nothing)
    );
    assert!(server.get("shop/eu:orders:1").await.is_some());
    assert_eq!(
        format!("{other:?}"),
        format!(
            "RedisStore {{ server: {}, prefix: \"shop/eu\", time_limit: 20s, .. }}",
            server.url().trim_end_matches('/')
        )
    );
}

#[tokio::test]
async fn lengths_of_time_beyond_all_measure_are_taken() {
    let (_server, store) = server_and_store().await;
    let ages = claim("1")
        .with_lease(Duration::MAX)
        .with_hold(Duration::MAX);
    assert_eq!(store.claim(&ages).await.unwrap(), owned(1, Origin::Nothing));
    assert!(matches!(
        store.claim(&claim("1")).await.unwrap(),
        Claimed::InFlight { attempt: 1, .. }
    ));
    let renewal = renewal(&ages).with_hold(Duration::MAX);
    assert_eq!(
        *store.renew(&[renewal]).await[0].as_ref().unwrap(),
        Ownership::Held
    );
    let kept = commit(&ages, 1, "1")
        .with_ttl(Duration::MAX)
        .with_remember(Duration::MAX);
    assert_eq!(store.commit(&kept).await.unwrap(), Ownership::Held);
    assert!(matches!(
        store.claim(&claim("1")).await.unwrap(),
        Claimed::Committed { .. }
    ));

    let none = claim("2")
        .with_lease(Duration::ZERO)
        .with_hold(Duration::ZERO);
    assert_eq!(store.claim(&none).await.unwrap(), owned(1, Origin::Nothing));
}

#[tokio::test]
async fn p9_an_outcome_that_was_recorded_in_one_piece_is_recognised_when_it_is_sent_again_to_be_kept_aside()
 {
    let (_server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    // As is done while the slot of the two keys is on its way to another node.
    let whole = commit(&first, 1, "1");
    assert_eq!(store.commit(&whole).await.unwrap(), Ownership::Held);
    let aside = whole.clone().with_remember(whole.ttl * 2);
    assert_eq!(store.commit(&aside).await.unwrap(), Ownership::Held);
}
