//! Servers that forget their scripts, stop, die and come back.

use std::cell::Cell;
use std::time::Duration;

use idem_core::record::{Claim, Claimed, Ownership};
use idem_core::{Store as _, StoreError, StoreErrorKind};
use idem_redis::RedisStore;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::connecting::warnings;
use crate::patience::connected;
use crate::server::Server;
use crate::still::{HANGS, pass, pause, until, within};
use crate::{
    SECOND, claim, commit, give_up, patient, release, renewal, server_and_store,
    server_and_usual_store,
};

/// Within this time every call on a dead or stopped server must have failed.
const FAILS_WITHIN: Duration = Duration::from_millis(900);
/// Within this time a store works again when its server does: its longest pause is a quarter of a
/// second, and a connection that is given up for its silence costs three seconds.
pub(crate) const BACK_WITHIN: Duration = Duration::from_millis(2500);

/// Every method fails in time with an error that says nothing is known.
async fn assert_all_fail(store: &RedisStore) {
    let first = claim("1");
    let commit = commit(&first, 1, "1");
    let release = release(&first);
    let renewal = renewal(&first);
    let check = |what: &str, error: StoreError| {
        assert!(
            error.is_unknown() && error.is_retryable(),
            "{what}: {error}"
        );
    };
    let calls = async {
        tokio::join!(
            async { check("claim", store.claim(&first).await.unwrap_err()) },
            async { check("commit", store.commit(&commit).await.unwrap_err()) },
            async { check("release", store.release(&release).await.unwrap_err()) },
            async {
                let renewals = vec![renewal.clone(); 1200];
                let answers = store.renew(&renewals).await;
                assert_eq!(answers.len(), renewals.len());
                for answer in answers {
                    check("renew", answer.unwrap_err());
                }
            },
            async {
                let waited = store.wait(&first.id, 1, 20 * SECOND).await;
                check("wait", waited.unwrap_err());
            },
            async { check("inspect", store.inspect(&first.id).await.unwrap_err()) },
            async { check("remove", store.remove(&first.id).await.unwrap_err()) },
            pass(FAILS_WITHIN),
        )
    };
    within(FAILS_WITHIN, Box::pin(calls)).await;
}

/// A claim that does not fail, however busy the machine is.
async fn claimed(store: &RedisStore, claim: &Claim) {
    let claimed = within(Duration::ZERO, store.claim(claim)).await;
    claimed.unwrap();
}

/// A claim, which fails in time.
async fn failed_claim(store: &RedisStore, key: &str) -> StoreError {
    let claim = claim(key);
    let failed = async { tokio::join!(store.claim(&claim), pass(FAILS_WITHIN)) };
    within(FAILS_WITHIN, failed).await.0.unwrap_err()
}

/// Waits until a claim succeeds, and gives how long that took.
pub(crate) async fn until_usable(store: &RedisStore) -> Duration {
    let start = Instant::now();
    let claim = claim("usable");
    loop {
        match store.claim(&claim).await {
            Ok(_) => return start.elapsed(),
            Err(error) => assert!(start.elapsed() < HANGS, "{error}"),
        }
    }
}

/// Fails unless a claim succeeds soon after the server works again.
pub(crate) async fn usable_within(limit: Duration, server: &Server, store: &RedisStore) {
    within(limit, server.steps(until_usable(store))).await;
}

#[tokio::test]
async fn a_server_that_forgets_its_scripts_is_told_again() {
    let (server, store) = server_and_store().await;
    let flush = async || {
        let () = server.send(&["SCRIPT", "FLUSH", "SYNC"]).await;
    };
    let first = claim("1");
    store.claim(&first).await.unwrap();
    flush().await;
    assert!(matches!(
        store.claim(&claim("1")).await.unwrap(),
        Claimed::InFlight { .. }
    ));
    flush().await;
    let renewals = vec![renewal(&first); 600];
    for answer in store.renew(&renewals).await {
        assert_eq!(answer.unwrap(), Ownership::Held);
    }
    flush().await;
    store
        .wait(&first.id, 1, Duration::from_millis(20))
        .await
        .unwrap();
    flush().await;
    assert_eq!(
        store.commit(&commit(&first, 1, "1")).await.unwrap(),
        Ownership::Held
    );
    flush().await;
    assert!(store.inspect(&first.id).await.unwrap().is_some());
    flush().await;
    store.remove(&first.id).await.unwrap();
    let second = claim("2");
    store.claim(&second).await.unwrap();
    flush().await;
    assert_eq!(
        store.release(&give_up(&second)).await.unwrap(),
        Ownership::Held
    );
}

#[tokio::test]
async fn on_a_stopped_server_every_call_fails_in_time_and_works_when_it_goes_on() {
    let (server, store) = server_and_usual_store().await;
    claimed(&store, &claim("1")).await;
    server.pause().unwrap();
    Box::pin(assert_all_fail(&store)).await;
    let error = failed_claim(&store, "2").await;
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    assert!(
        error
            .to_string()
            .contains(&format!("127.0.0.1:{}", server.port())),
        "{error}"
    );
    server.resume().unwrap();
    usable_within(BACK_WITHIN, &server, &store).await;
}

#[tokio::test]
async fn a_server_that_was_stopped_for_long_works_when_it_goes_on() {
    let (server, store) = server_and_usual_store().await;
    server.pause().unwrap();
    // Longer than a silent connection is kept, so that it is replaced, and new ones are not
    // answered either.
    for _ in 0..6 {
        assert!(failed_claim(&store, "1").await.is_unknown());
        // A new connection is made.
        pause(SECOND / 20).await;
    }
    server.resume().unwrap();
    usable_within(BACK_WITHIN, &server, &store).await;
}

#[tokio::test]
async fn on_a_dead_server_every_call_fails_in_time_and_works_when_it_is_back() {
    let (server, store) = server_and_usual_store().await;
    claimed(&store, &claim("1")).await;
    server.kill().unwrap();
    Box::pin(assert_all_fail(&store)).await;
    // The first attempt to connect may still be under way.
    until("attempts to connect fail", || async {
        failed_claim(&store, "1").await.kind() == StoreErrorKind::Unavailable
    })
    .await;
    let error = failed_claim(&store, "1").await;
    let cause = error.to_string();
    assert!(cause.contains("cannot connect"), "{cause}");
    assert!(
        cause.contains("refused") || cause.contains("reset"),
        "{cause}"
    );
    server.restart().await.unwrap();
    usable_within(BACK_WITHIN, &server, &store).await;
    let first = claim("2");
    claimed(&store, &first).await;
    let commit = commit(&first, 1, "1");
    let committed = within(Duration::ZERO, store.commit(&commit)).await;
    assert_eq!(committed.unwrap(), Ownership::Held);
}

#[tokio::test]
async fn waiters_look_again_when_the_connection_is_lost() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    let waiter = {
        let store = store.clone();
        let id = first.id.clone();
        tokio::spawn(async move { store.wait(&id, 1, 20 * SECOND).await })
    };
    let is_marked = || async {
        server
            .get("idem:orders:1")
            .await
            .is_some_and(|record| record.ends_with('w'))
    };
    within(Duration::ZERO, until("the waiter's mark", is_marked)).await;
    let woken = async {
        server.kill().unwrap();
        waiter.await.unwrap().unwrap();
    };
    within(Duration::ZERO, woken).await;
    server.restart().await.unwrap();
    until_usable(&store).await;
    assert!(server.channels().await.is_empty(), "nobody waits any more");
    // And the new connection wakes as the old one did.
    store.claim(&first).await.unwrap();
    let waiter = {
        let store = store.clone();
        let id = first.id.clone();
        tokio::spawn(async move { store.wait(&id, 1, 20 * SECOND).await })
    };
    within(Duration::ZERO, until("the waiter's mark", is_marked)).await;
    let woken = async {
        store.commit(&commit(&first, 1, "1")).await.unwrap();
        waiter.await.unwrap().unwrap();
    };
    within(Duration::ZERO, woken).await;
}

/// A way to the server whose first connection carries nothing when that is said, and is never
/// closed.
pub(crate) async fn dying_way(server: &Server) -> (String, tokio::sync::watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (cut, is_cut) = tokio::sync::watch::channel(false);
    let server_port = server.port();
    tokio::spawn(async move {
        let mut first = true;
        while let Ok((mut inbound, _)) = listener.accept().await {
            let mut outbound = TcpStream::connect(("127.0.0.1", server_port))
                .await
                .unwrap();
            let mut is_cut = is_cut.clone();
            let dies = std::mem::take(&mut first);
            tokio::spawn(async move {
                tokio::select! {
                    _ = copy_bidirectional(&mut inbound, &mut outbound) => {}
                    _ = async { is_cut.wait_for(|cut| *cut).await.is_ok() }, if dies => std::future::pending().await,
                }
            });
        }
    });
    (format!("redis://127.0.0.1:{port}"), cut)
}

#[tokio::test]
async fn a_connection_that_is_silently_dead_is_replaced() {
    let server = Server::start(&[]).await;
    let (url, cut) = dying_way(&server).await;
    let store = within(Duration::ZERO, RedisStore::connect(url)).await;
    let store = store.unwrap();
    claimed(&store, &claim("1")).await;
    cut.send(true).unwrap();
    let error = failed_claim(&store, "2").await;
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    usable_within(4 * SECOND, &server, &store).await;
}

#[tokio::test]
async fn a_connection_that_is_lost_while_no_call_is_made_is_replaced() {
    let (server, store) = server_and_store().await;
    let mut admin = server.client().await;
    let () = redis::cmd("CONFIG")
        .arg("RESETSTAT")
        .query_async(&mut admin)
        .await
        .unwrap();
    let words = ["TYPE", "normal", "SKIPME", "yes"];
    let () = redis::cmd("CLIENT")
        .arg("KILL")
        .arg(&words)
        .query_async(&mut admin)
        .await
        .unwrap();
    let info = async || {
        redis::cmd("INFO")
            .query_async::<String>(&mut admin.clone())
            .await
            .unwrap()
    };
    until("the store connects", || async {
        !info().await.contains("total_connections_received:0\r\n")
    })
    .await;
    store.claim(&claim("1")).await.unwrap();
}

#[tokio::test]
async fn a_server_that_was_only_slow_keeps_its_connection() {
    let (server, store) = server_and_usual_store().await;
    let admin = server.client().await;
    let info = async || {
        redis::cmd("INFO")
            .arg("all")
            .query_async::<String>(&mut admin.clone())
            .await
            .unwrap()
    };
    claimed(&store, &claim("1")).await;
    let () = redis::cmd("CONFIG")
        .arg("RESETSTAT")
        .query_async(&mut admin.clone())
        .await
        .unwrap();
    server.pause().unwrap();
    let second = claim("2");
    // The clock stands still afterwards, so that a busy machine does not make the server silent.
    let slow = async {
        let (slow, ()) = tokio::join!(store.claim(&second), pass(FAILS_WITHIN));
        assert_eq!(slow.unwrap_err().kind(), StoreErrorKind::Timeout);
        server.resume().unwrap();
        until("it is asked whether it still answers", || async {
            info().await.contains("cmdstat_ping:")
        })
        .await;
        // Their answers come after that to the question.
        for number in 0..20 {
            store.claim(&claim(&format!("a{number}"))).await.unwrap();
        }
    };
    within(FAILS_WITHIN, Box::pin(slow)).await;
    let info = info().await;
    assert!(info.contains("total_connections_received:0\r\n"), "{info}");
}

#[tokio::test]
async fn p12_in_an_outage_one_attempt_follows_another_however_many_calls_fail_and_one_warning_is_logged()
 {
    let server = Server::start(&[]).await;
    let builder = RedisStore::builder()
        .url(server.url())
        .time_limit(SECOND * 3 / 10);
    let store = connected(builder).await;
    server.kill().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", server.port()))
        .await
        .unwrap();
    let attempts = Cell::new(0);
    let start = Instant::now();
    let log = warnings(async {
        let accept = async {
            while let Ok(attempt) = listener.accept().await {
                drop(attempt);
                attempts.set(attempts.get() + 1);
            }
        };
        let calls = async {
            while attempts.get() < 24 {
                assert!(start.elapsed() < 60 * SECOND, "{attempts:?} attempts");
                let error = store.claim(&claim("1")).await.unwrap_err();
                assert!(
                    !error.to_string().contains("accepted"),
                    "it refuses nobody: {error}"
                );
            }
        };
        tokio::select! { () = accept => {} () = calls => {} }
    })
    .await;
    // Six within the first 155 ms, and then one in 125 ms at most.
    let most = 7 + start.elapsed().as_millis() / 125;
    assert!(
        attempts.get() <= most,
        "{attempts:?} attempts in {:?}",
        start.elapsed()
    );
    assert_eq!(log.matches("cannot be replaced yet").count(), 1, "{log}");
}

#[tokio::test]
async fn a_store_that_is_dropped_closes_its_connection() {
    let (server, store) = server_and_store().await;
    let clients = async || -> usize {
        let list: String = server.send(&["CLIENT", "LIST", "TYPE", "normal"]).await;
        let pubsub: String = server.send(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
        list.lines().count() + pubsub.lines().count()
    };
    let first = claim("1");
    store.claim(&first).await.unwrap();
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.wait(&first.id, 1, 20 * SECOND).await }
    });
    until("the subscription", || async {
        !server.channels().await.is_empty()
    })
    .await;
    waiting.abort();
    let _ = waiting.await;
    drop(store);
    // One is the question's own; those of earlier questions may be on their way out.
    until("the end of the connection", || async {
        clients().await == 1
    })
    .await;
}

#[test]
fn a_store_whose_runtime_has_ended_connects_again_in_the_next_one() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let one = runtime();
    let server = one.block_on(Server::start(&[]));
    let store = one.block_on(patient(server.url()));
    let first = claim("1");
    one.block_on(store.claim(&first)).unwrap();
    drop(one);
    let two = runtime();
    // Without an error.
    let again = two.block_on(store.claim(&first));
    assert!(matches!(again.unwrap(), Claimed::Owned { attempt: 1, .. }));
}

#[tokio::test]
async fn thousands_of_callers_share_one_connection() {
    let server = Server::start(&[]).await;
    // Not a question of speed here.
    let store = patient(server.url()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..5000 {
        let store = store.clone();
        tasks.spawn(async move {
            let claim: Claim = claim(&n.to_string());
            assert!(matches!(
                store.claim(&claim).await.unwrap(),
                Claimed::Owned { .. }
            ));
            assert_eq!(
                store.commit(&commit(&claim, 1, "1")).await.unwrap(),
                Ownership::Held
            );
        });
    }
    tasks.join_all().await;
    let keys: u32 = server.send(&["DBSIZE"]).await;
    assert_eq!(keys, 5000);
}

#[tokio::test]
async fn p10_a_step_that_was_sent_is_of_unknown_fate_whoever_is_refused_since() {
    let (server, store) = server_and_store().await;
    store.claim(&claim("1")).await.unwrap();
    let mut admin = server.client().await;
    let mut tell = async |words: &[&str]| -> redis::Value {
        redis::cmd(words[0])
            .arg(&words[1..])
            .query_async(&mut admin)
            .await
            .unwrap()
    };
    // The claim is held back at the server. Then its connection is lost, and no other is let in.
    tell(&["CLIENT", "PAUSE", "60000", "WRITE"]).await;
    let sent = tokio::spawn({
        let store = store.clone();
        async move { store.claim(&claim("2")).await }
    });
    let is_held_back = async || {
        server
            .send::<String>(&["INFO", "clients"])
            .await
            .contains("blocked_clients:1")
    };
    until("the claim has arrived", is_held_back).await;
    tell(&["CONFIG", "SET", "requirepass", "secret"]).await;
    tell(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    let error = sent.await.unwrap().unwrap_err();
    assert!(error.is_unknown(), "{error}");
    // One that finds no connection was not sent.
    let error = store.claim(&claim("3")).await.unwrap_err();
    assert!(!error.is_unknown(), "{error}");
}

/// With the usual limits of a step: a call succeeds within a second of the server's return.
mod quiet {
    use super::*;

    #[tokio::test]
    async fn a_restart_in_the_middle_is_not_seen_by_the_next_call() {
        let (server, store) = server_and_usual_store().await;
        for round in 0..5 {
            store.claim(&claim("1")).await.unwrap();
            server.kill().unwrap();
            server.restart().await.unwrap();
            // It may be told of the loss, but not twice.
            let claim = claim("2");
            let claimed = match store.claim(&claim).await {
                Err(error) if error.is_unknown() => store.claim(&claim).await,
                claimed => claimed,
            };
            assert!(
                matches!(claimed.unwrap(), Claimed::Owned { .. }),
                "round {round}"
            );
        }
    }
}
