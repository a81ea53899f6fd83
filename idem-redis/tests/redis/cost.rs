//! The server's cost of a call.

use std::collections::BTreeMap;
use std::time::Duration;

use idem_core::record::{Claimed, Ownership};
use idem_core::{Error, Idempotency, Store as _};

use crate::server::Server;
use crate::{SECOND, claim, claim_for, commit, release, renewal, server_and_store};

fn counts<const N: usize>(counts: [(&str, u64); N]) -> BTreeMap<String, u64> {
    counts
        .into_iter()
        .map(|(name, count)| (name.to_owned(), count))
        .collect()
}

/// The clock is looked at every few seconds, whatever is called.
async fn commands(server: &Server) -> BTreeMap<String, u64> {
    let mut commands = server.commands().await;
    commands.remove("time");
    commands
}

#[tokio::test]
async fn a_first_execution_is_one_set_and_one_script_or_two_sets() {
    let (server, store) = server_and_store().await;
    let compares = server.compares().await;
    commands(&server).await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    assert_eq!(commands(&server).await, counts([("set", 1)]));
    store.commit(&commit(&first, 1, "1")).await.unwrap();
    // The script's own GET and SET are counted too. It was loaded when the connection was made.
    let script = counts([("evalsha", 1), ("get", 1), ("set", 1)]);
    assert_eq!(
        commands(&server).await,
        if compares {
            counts([("set", 1)])
        } else {
            script
        }
    );
}

#[tokio::test]
async fn a_replay_is_one_set() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    store.commit(&commit(&first, 1, "1")).await.unwrap();
    commands(&server).await;
    for _ in 0..3 {
        assert!(matches!(
            store.claim(&claim("1")).await.unwrap(),
            Claimed::Committed { .. }
        ));
    }
    assert_eq!(commands(&server).await, counts([("set", 3)]));
}

#[tokio::test]
async fn a_replay_from_aside_is_one_get_more() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    store
        .commit(&commit(&first, 1, "1").with_remember(600 * SECOND))
        .await
        .unwrap();
    commands(&server).await;
    assert!(matches!(
        store.claim(&claim("1")).await.unwrap(),
        Claimed::Committed { .. }
    ));
    assert_eq!(commands(&server).await, counts([("set", 1), ("get", 1)]));
}

#[tokio::test]
async fn releases_and_takeovers_are_one_script_each() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    commands(&server).await;
    store.release(&release(&first)).await.unwrap();
    assert_eq!(
        commands(&server).await,
        counts([("evalsha", 1), ("get", 1), ("set", 1)])
    );
    store.claim(&claim("1")).await.unwrap();
    assert_eq!(
        commands(&server).await,
        counts([("evalsha", 1), ("get", 1), ("set", 2)])
    );

    store.claim(&claim_for("2", Duration::ZERO)).await.unwrap();
    commands(&server).await;
    assert!(matches!(
        store.claim(&claim("2")).await.unwrap(),
        Claimed::Owned { attempt: 2, .. }
    ));
    assert_eq!(
        commands(&server).await,
        counts([("evalsha", 1), ("get", 1), ("pttl", 1), ("set", 2)])
    );
}

#[tokio::test]
async fn renewals_are_few_scripts() {
    let (server, store) = server_and_store().await;
    let claims: Vec<_> = (0..700).map(|n| claim(&n.to_string())).collect();
    for claim in &claims {
        store.claim(claim).await.unwrap();
    }
    commands(&server).await;
    let answers = store
        .renew(&claims.iter().map(renewal).collect::<Vec<_>>())
        .await;
    assert!(
        answers
            .into_iter()
            .all(|answer| answer.unwrap() == Ownership::Held)
    );
    assert_eq!(
        commands(&server).await,
        counts([("evalsha", 3), ("get", 700), ("pexpire", 700)])
    );
}

/// A call with a token, and whether it ran its body or got the answer of before; `None` where it is
/// refused.
async fn submit(idempotency: &Idempotency, token: &str, subject: &str) -> Option<bool> {
    let call = idempotency.operation("orders").token(token, subject);
    match call.run(async || Ok::<_, Error>(7)).await {
        Ok(outcome) => Some(!outcome.is_replayed()),
        Err(Error::UnknownToken { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_token_is_one_set_to_issue_two_scripts_to_use_and_one_script_to_replay_or_refuse() {
    let (server, store) = server_and_store().await;
    let idempotency = Idempotency::new(store);
    let compares = server.compares().await;
    commands(&server).await;
    let token = idempotency
        .operation("orders")
        .issue("ada", 600 * SECOND)
        .await
        .unwrap()
        .to_string();
    assert_eq!(commands(&server).await, counts([("set", 1)]));
    assert_eq!(submit(&idempotency, &token, "ada").await, Some(true));
    // The scripts' own commands are counted too.
    let scripts = if compares { 1 } else { 2 };
    assert_eq!(
        commands(&server).await,
        counts([
            ("evalsha", scripts),
            ("get", scripts),
            ("pttl", 1),
            ("set", 2)
        ])
    );
    assert_eq!(submit(&idempotency, &token, "ada").await, Some(false));
    assert_eq!(
        commands(&server).await,
        counts([("evalsha", 1), ("get", 1)])
    );

    let elsewhere = Idempotency::new(idem_core::MemoryStore::new());
    let unknown = elsewhere
        .operation("orders")
        .issue("ada", 600 * SECOND)
        .await
        .unwrap()
        .to_string();
    assert_eq!(submit(&idempotency, &unknown, "ada").await, None);
    assert_eq!(
        commands(&server).await,
        counts([("evalsha", 1), ("get", 1)])
    );
    // The store is not asked for what can be told without it.
    assert_eq!(submit(&idempotency, &token, "grace").await, None);
    assert_eq!(submit(&idempotency, "no token at all", "ada").await, None);
    assert_eq!(commands(&server).await, counts([]));
}

#[tokio::test]
async fn a_commit_that_nobody_waits_for_publishes_nothing() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    // Duplicates alone leave no mark.
    store.claim(&claim("1")).await.unwrap();
    commands(&server).await;
    store.commit(&commit(&first, 1, "1")).await.unwrap();
    assert!(!commands(&server).await.contains_key("publish"));
}

mod quiet {
    use std::time::Instant;

    use idem_redis::RedisStore;
    use idem_testkit::Proxy;

    use super::*;

    #[tokio::test]
    async fn very_many_renewals_do_not_wait_for_one_another() {
        let server = Server::start(&[]).await;
        let proxy = Proxy::start(&server.url()).await.unwrap();
        let store = RedisStore::connect(proxy.url()).await.unwrap();
        let first = claim("1");
        store.claim(&first).await.unwrap();
        let mut renewals: Vec<_> = (0..20_000)
            .map(|n| renewal(&claim(&format!("gone{n}"))))
            .collect();
        renewals.push(renewal(&first));
        // One after the other, they would take two seconds; a step has 900 ms.
        proxy.delay(Duration::from_millis(50));
        let answers: Vec<_> = store
            .renew(&renewals)
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
        assert_eq!(answers.len(), 20_001);
        assert_eq!(answers[20_000], Ownership::Held);
        assert!(
            answers[..20_000]
                .iter()
                .all(|answer| *answer == Ownership::Lost)
        );
    }

    #[tokio::test]
    async fn four_hundred_tokens_are_one_round_trip() {
        let server = Server::start(&[]).await;
        let proxy = Proxy::start(&server.url()).await.unwrap();
        let store = RedisStore::builder()
            .url(proxy.url())
            .time_limit(20 * SECOND)
            .connect()
            .await
            .unwrap();
        let idempotency = Idempotency::new(store);
        let sets = proxy.passing(|words| words[0] == b"SET");
        let trip = SECOND / 2;
        proxy.delay(trip);
        let start = Instant::now();
        let subjects = std::iter::repeat_n("ada", 400);
        let tokens = idempotency
            .operation("orders")
            .issue_many(subjects, 600 * SECOND)
            .await
            .unwrap();
        let took = start.elapsed();
        assert_eq!((tokens.len(), sets.calls()), (400, 400));
        // Replies that come in several pieces are held up one after the other.
        assert!((trip..trip * 8).contains(&took), "{took:?}");
        let keys: u32 = server.send(&["DBSIZE"]).await;
        assert_eq!(keys, 400);
    }
}
