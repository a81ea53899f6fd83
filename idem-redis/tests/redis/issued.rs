//! Keys that are issued: how they look in Redis, and servers that forget, are full, or whose
//! replies get lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem_core::record::{
    Claimed, Issue, Issued, Origin, Ownership, RecordState, Release, ReleaseTo,
};
use idem_core::{Error, Idempotency, Store as _, StoreErrorKind};
use idem_redis::{Connection, RedisStore};
use idem_testkit::{Mishap, Proxy};

use crate::server::{Server, connection_manager};
use crate::{
    SECOND, claim, claim_issued, commit, id, issue, outcome, patient, patient_builder,
    server_and_store,
};

const OWNED: Claimed = Claimed::Owned {
    attempt: 1,
    from: Origin::Issued,
};

async fn issued(store: &RedisStore, issue: Issue) -> Issued {
    store.issue(&[issue]).await.remove(0).unwrap()
}

async fn left(server: &Server, key: &str) -> i64 {
    server.send(&["PTTL", key]).await
}

#[tokio::test]
async fn an_issued_key_is_its_grace_alone_and_what_was_undone_has_none() {
    let (server, store) = server_and_store().await;
    let bare = issue("2").with_grace(Duration::ZERO);
    assert_eq!(issued(&store, issue("1")).await, Issued::Issued);
    assert_eq!(issued(&store, bare).await, Issued::Issued);
    assert_eq!(server.get("idem:orders:1").await.unwrap(), "i1i 20000.");
    assert_eq!(server.get("idem:orders:2").await.unwrap(), "i1i.");
    let with = left(&server, "idem:orders:1").await;
    let without = left(&server, "idem:orders:2").await;
    assert!(
        (70_001..=80_000).contains(&with) && (50_001..=60_000).contains(&without),
        "{with}, {without}"
    );

    let first = claim_issued("1");
    assert_eq!(store.claim(&first).await.unwrap(), OWNED);
    let text = server.get("idem:orders:1").await.unwrap();
    assert!(
        text.starts_with("i1f") && text.ends_with("i 1 30000 300000 -."),
        "{text}"
    );
    let undo = Release::new(id("1"), first.owner, ReleaseTo::Undone { keep: SECOND });
    assert_eq!(store.release(&undo).await.unwrap(), Ownership::Held);
    assert_eq!(server.get("idem:orders:1").await.unwrap(), "i1i.");
    assert_eq!(store.claim(&claim_issued("1")).await.unwrap(), OWNED);
}

#[tokio::test]
async fn lengths_of_time_beyond_all_measure_are_taken() {
    let (_server, store) = server_and_store().await;
    for (key, ttl, grace) in [
        ("1", Duration::MAX, SECOND),
        ("2", Duration::MAX, Duration::MAX),
        ("3", SECOND, Duration::MAX),
    ] {
        let issue = Issue::new(id(key), ttl).with_grace(grace);
        for _ in 0..2 {
            assert_eq!(
                issued(&store, issue.clone()).await,
                Issued::Issued,
                "{ttl:?}, {grace:?}"
            );
        }
        let info = store.inspect(&id(key)).await.unwrap().unwrap();
        assert_eq!(info.state, RecordState::Issued, "{ttl:?}, {grace:?}");
        assert!(key != "3" || info.expires_in <= SECOND, "{info:?}");
        assert_eq!(store.claim(&claim_issued(key)).await.unwrap(), OWNED);
    }
}

#[tokio::test]
async fn a_server_that_forgets_its_scripts_is_told_again() {
    let server = Server::start(&[]).await;
    let given = |connection: Connection| {
        let builder = RedisStore::builder().connection(connection);
        builder.time_limit(20 * SECOND).connect()
    };
    for (number, store) in [
        patient(server.url()).await,
        given(server.client().await.into()).await.unwrap(),
        given(connection_manager(server.url()).await.into())
            .await
            .unwrap(),
    ]
    .into_iter()
    .enumerate()
    {
        let flush = async || {
            let () = server.send(&["SCRIPT", "FLUSH", "SYNC"]).await;
        };
        let key = number.to_string();
        flush().await;
        assert_eq!(
            store.claim(&claim_issued(&key)).await.unwrap(),
            Claimed::NotIssued
        );
        let many: Vec<_> = (0..700).map(|one| issue(&format!("{key}-{one}"))).collect();
        assert!(
            store
                .issue(&many)
                .await
                .into_iter()
                .all(|answer| answer.unwrap() == Issued::Issued)
        );
        assert_eq!(issued(&store, issue(&key)).await, Issued::Issued);
        flush().await;
        let first = claim_issued(&key);
        assert_eq!(store.claim(&first).await.unwrap(), OWNED);
        flush().await;
        assert_eq!(store.claim(&first).await.unwrap(), OWNED);
        flush().await;
        assert_eq!(
            store.commit(&commit(&first, 1, "1")).await.unwrap(),
            Ownership::Held
        );
        flush().await;
        let answer = store.claim(&claim_issued(&key)).await.unwrap();
        assert_eq!(
            answer,
            Claimed::Committed {
                attempt: 1,
                outcome: outcome("1")
            }
        );
    }
}

#[tokio::test]
async fn a_full_server_issues_nothing_begins_nothing_and_answers_duplicates() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
    let store = patient(server.url()).await;
    for key in ["unused", "running", "done"] {
        assert_eq!(issued(&store, issue(key)).await, Issued::Issued);
    }
    let running = claim_issued("running");
    let done = claim_issued("done");
    for claim in [&running, &done] {
        assert_eq!(store.claim(claim).await.unwrap(), OWNED);
    }
    assert_eq!(
        store.commit(&commit(&done, 1, "1")).await.unwrap(),
        Ownership::Held
    );
    let filler = "x".repeat(4_000_000);
    let () = server.send(&["SET", "filler", &filler]).await;
    let () = server.send(&["CONFIG", "SET", "maxmemory", "1mb"]).await;

    for answer in store.issue(&[issue("new"), issue("newer")]).await {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Full);
        assert!(
            !error.is_unknown() && error.to_string().contains("maxmemory"),
            "{error}"
        );
    }
    assert_eq!(server.get("idem:orders:new").await, None);
    let error = store.claim(&claim_issued("unused")).await.unwrap_err();
    assert_eq!(
        error.kind(),
        StoreErrorKind::Full,
        "a claim of an issued key begins a body"
    );
    assert_eq!(
        server.get("idem:orders:unused").await.as_deref(),
        Some("i1i 20000.")
    );

    assert_eq!(
        store.claim(&claim_issued("new")).await.unwrap(),
        Claimed::NotIssued
    );
    let answer = store.claim(&claim_issued("done")).await.unwrap();
    assert_eq!(
        answer,
        Claimed::Committed {
            attempt: 1,
            outcome: outcome("1")
        }
    );
    assert!(matches!(
        store.claim(&claim_issued("running")).await.unwrap(),
        Claimed::InFlight { attempt: 1, .. }
    ));
    assert_eq!(store.claim(&running).await.unwrap(), OWNED);
    assert_eq!(
        store.commit(&commit(&running, 1, "1")).await.unwrap(),
        Ownership::Held
    );

    let () = server.send(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(store.claim(&claim_issued("unused")).await.unwrap(), OWNED);
}

#[tokio::test]
async fn an_expiry_that_somebody_took_away_lets_it_count_for_ever_and_is_there_again_when_it_is_claimed()
 {
    let (server, store) = server_and_store().await;
    for grace in [Duration::ZERO, 20 * SECOND] {
        let issue = issue("1").with_grace(grace);
        assert_eq!(issued(&store, issue.clone()).await, Issued::Issued);
        let () = server.send(&["PERSIST", "idem:orders:1"]).await;
        let info = store.inspect(&id("1")).await.unwrap().unwrap();
        assert!(
            info.state == RecordState::Issued && info.expires_in > 1_000_000 * SECOND,
            "{info:?}"
        );
        assert_eq!(issued(&store, issue).await, Issued::Issued);
        assert_eq!(left(&server, "idem:orders:1").await, -1);
        let first = claim_issued("1");
        assert_eq!(store.claim(&first).await.unwrap(), OWNED);
        assert!(left(&server, "idem:orders:1").await > 290_000);
        let () = server.send(&["DEL", "idem:orders:1"]).await;
    }
}

#[tokio::test]
async fn p13_a_token_whose_issue_was_not_answered_is_given_out_all_the_same() {
    for mishap in [Mishap::LoseReply, Mishap::LoseRequest] {
        let server = Server::start(&[]).await;
        let proxy = Proxy::start(&server.url()).await.unwrap();
        let store = patient(proxy.url()).await;
        let sets = proxy.passing(|words| words[0] == b"SET");

        sets.next(mishap.clone());
        let error = store.issue(&[issue("1")]).await.remove(0).unwrap_err();
        assert!(error.is_unknown(), "{error}");
        assert_eq!(issued(&store, issue("1")).await, Issued::Issued);
        assert_eq!(store.claim(&claim_issued("1")).await.unwrap(), OWNED);

        let idempotency = Idempotency::new(store);
        sets.next(mishap.clone());
        let one = idempotency
            .operation("orders")
            .issue("ada", 60 * SECOND)
            .await
            .unwrap();
        // In the middle of a batch.
        for _ in 0..30 {
            sets.next(Mishap::Pass);
        }
        sets.next(mishap);
        let subjects = std::iter::repeat_n("ada", 100);
        let mut tokens = idempotency
            .operation("orders")
            .issue_many(subjects, 60 * SECOND)
            .await
            .unwrap();
        tokens.push(one);
        assert_eq!(tokens.len(), 101);
        for token in tokens {
            let call = idempotency.operation("orders").token(&token, "ada");
            assert!(
                !call
                    .run(async || Ok::<_, Error>(1))
                    .await
                    .unwrap()
                    .is_replayed()
            );
        }
    }
}

#[tokio::test]
async fn p13_a_submission_whose_claim_was_not_answered_runs_once() {
    let server = Server::start(&[]).await;
    let proxy = Proxy::start(&server.url()).await.unwrap();
    let store = patient(proxy.url()).await;
    let scripts = proxy.passing(|words| words[0] == b"EVALSHA");
    let first = claim_issued("1");
    assert_eq!(issued(&store, issue("1")).await, Issued::Issued);
    scripts.next(Mishap::LoseReply);
    assert!(store.claim(&first).await.unwrap_err().is_unknown());
    assert_eq!(store.claim(&first).await.unwrap(), OWNED);
    assert!(matches!(
        store.claim(&claim_issued("1")).await.unwrap(),
        Claimed::InFlight { attempt: 1, .. }
    ));

    let idempotency = Idempotency::new(store);
    let bodies = Arc::new(AtomicU32::new(0));
    let token = idempotency
        .operation("orders")
        .issue("ada", 60 * SECOND)
        .await
        .unwrap();
    let submit = async || {
        let bodies = bodies.clone();
        let call = idempotency.operation("orders").token(&token, "ada");
        call.run(async move || Ok::<_, Error>(bodies.fetch_add(1, Ordering::SeqCst)))
            .await
            .unwrap()
    };
    scripts.next(Mishap::LoseReply);
    assert!(!submit().await.is_replayed());
    assert!(submit().await.is_replayed());
    assert_eq!(bodies.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_key_that_is_issued_and_one_that_is_not_are_apart_by_prefix_and_database() {
    let (server, store) = server_and_store().await;
    let other = patient_builder(server.url()).prefix("shop").connect();
    let other = other.await.unwrap();
    let third = patient(format!("{}3", server.url())).await;
    assert_eq!(issued(&store, issue("1")).await, Issued::Issued);
    for apart in [&other, &third] {
        assert_eq!(
            apart.claim(&claim_issued("1")).await.unwrap(),
            Claimed::NotIssued
        );
        assert_eq!(
            apart
                .claim(&claim_issued("1").with_max_attempts(Some(0)))
                .await
                .unwrap(),
            Claimed::NotIssued
        );
    }
    assert_eq!(store.claim(&claim("1")).await.unwrap(), OWNED);
}
