//! One store, used from several tokio runtimes, which end or stand still.

use std::time::Duration;

use idem_core::Store as _;
use idem_core::record::Claimed;
use idem_redis::RedisStore;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::faults::until_usable;
use crate::patience::connected;
use crate::server::Server;
use crate::still::{until, within};
use crate::{SECOND, claim, patient, patient_builder};

/// A runtime that is driven by this thread alone, and only in `block_on`.
fn parked() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn running() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn a_question_to_replicas_does_not_end_with_the_runtime_of_whoever_asked_first() {
    asks_from_a_runtime_that(drop);
}

#[test]
fn a_question_to_replicas_does_not_stand_still_with_the_runtime_of_whoever_asked_first() {
    asks_from_a_runtime_that(std::mem::forget);
}

/// Sends questions from a runtime that is not driven any more, and then ends it in this way.
fn asks_from_a_runtime_that(ends: impl FnOnce(Runtime)) {
    let one = running();
    let two = parked();
    // The master pings its replicas every second. The default is ten.
    let news = [
        "--repl-diskless-sync-delay",
        "0",
        "--repl-ping-replica-period",
        "1",
    ];
    let server = one.block_on(Server::start(&news));
    let master = format!("127.0.0.1 {}", server.port());
    let replica = one.block_on(Server::start(&["--replicaof", &master]));
    let store = one.block_on(async {
        until("the replica", || async {
            // Before its first acknowledgement it is sent nothing.
            let info: String = server.send(&["INFO", "replication"]).await;
            info.contains("state=online") && !info.contains("offset=0,")
        })
        .await;
        let builder = patient_builder(server.url()).replicas(1, SECOND * 5 / 2);
        connected(builder).await
    });
    replica.pause().unwrap();
    two.block_on(async {
        // The first question is under way, the second waits for its turn.
        let first = claim("1");
        let second = claim("2");
        let second = async {
            until("the question", || async {
                let clients: String = server.send(&["CLIENT", "LIST"]).await;
                clients
                    .lines()
                    .any(|client| client.contains(" flags=b ") && client.contains(" cmd=wait "))
            })
            .await;
            timeout(Duration::from_millis(75), store.claim(&second))
                .await
                .unwrap_err()
        };
        tokio::select! {
            biased;
            answer = store.claim(&first) => panic!("no replica answers: {answer:?}"),
            _ = second => {}
        }
    });
    ends(two);
    replica.resume().unwrap();
    one.block_on(async {
        until("the replica's acknowledgement", || async {
            // On one connection: it waits for its own writes.
            let mut seen = redis::pipe();
            seen.cmd("SET")
                .arg("seen")
                .arg("1")
                .ignore()
                .cmd("WAIT")
                .arg(1)
                .arg(100);
            seen.query_async::<(i64,)>(&mut server.client().await)
                .await
                .unwrap()
                == (1,)
        })
        .await;
        for number in 0..10 {
            store.claim(&claim(&format!("k{number}"))).await.unwrap();
        }
    });
}

#[test]
fn a_lost_connection_is_replaced_after_the_runtime_of_the_store_has_ended() {
    reconnects_from_a_runtime_that(drop);
}

#[test]
fn a_lost_connection_is_replaced_although_the_runtime_of_the_store_stands_still() {
    reconnects_from_a_runtime_that(std::mem::forget);
}

/// Loses the connection, and then no longer drives the runtime that replaces it.
fn reconnects_from_a_runtime_that(ends: impl FnOnce(Runtime)) {
    let one = parked();
    let two = running();
    let server = two.block_on(Server::start(&[]));
    // Within this time a call notices that the other runtime stands still.
    let builder = patient_builder(server.url()).time_limit(3 * SECOND);
    let store = one.block_on(connected(builder));
    server.kill().unwrap();
    // An attempt says that the loss is known.
    one.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", server.port()))
            .await
            .unwrap();
        listener.accept().await.unwrap();
    });
    ends(one);
    two.block_on(server.restart()).unwrap();
    two.block_on(until("the connection is replaced", || async {
        store.claim(&claim("2")).await.is_ok()
    }));
}

#[test]
fn waiters_are_woken_after_the_runtime_of_the_store_has_ended() {
    let one = parked();
    let two = parked();
    let server = two.block_on(Server::start(&[]));
    let store = one.block_on(patient(server.url()));
    let first = claim("1");
    one.block_on(async {
        store.claim(&first).await.unwrap();
        // So that there is a subscription in the first one.
        store.wait(&first.id, 1, SECOND / 10).await.unwrap();
    });
    drop(one);
    two.block_on(async {
        let before = server.scripts().await;
        let waiting = tokio::spawn({
            let store = store.clone();
            let id = first.id.clone();
            async move { store.wait(&id, 1, 20 * SECOND).await }
        });
        until("the subscription", || async {
            !server.channels().await.is_empty()
        })
        .await;
        until("its look", || async { server.scripts().await > before }).await;
        let woken = async {
            store.commit(&crate::commit(&first, 1, "1")).await.unwrap();
            waiting.await.unwrap().unwrap();
        };
        within(Duration::ZERO, woken).await;
    });
}

mod quiet {
    use std::time::Instant;

    use idem_core::StoreErrorKind;

    use super::*;
    use crate::faults::dying_way;

    #[test]
    fn connections_leave_a_runtime_that_runs_nothing() {
        let one = parked();
        let two = running();
        let server = two.block_on(Server::start(&[]));
        let store = one.block_on(RedisStore::connect(server.url())).unwrap();
        one.block_on(store.claim(&claim("1"))).unwrap();
        two.block_on(async {
            let start = Instant::now();
            while store.claim(&claim("2")).await.is_err() {
                assert!(start.elapsed() < 8 * SECOND, "nobody drives the connection");
            }
            until_usable(&store).await;
        });
        // And the first one goes on as a caller like any other.
        assert!(matches!(
            one.block_on(store.claim(&claim("3"))).unwrap(),
            Claimed::Owned { attempt: 1, .. }
        ));
        drop(one);
        assert!(matches!(
            two.block_on(store.claim(&claim("4"))).unwrap(),
            Claimed::Owned { attempt: 1, .. }
        ));
    }

    #[test]
    fn the_clock_is_looked_at_after_the_runtime_of_the_store_has_ended() {
        let one = parked();
        let two = running();
        let server = two.block_on(Server::start(&[]));
        let store = one.block_on(RedisStore::connect(server.url())).unwrap();
        drop(one);
        two.block_on(async {
            store.claim(&claim("1")).await.unwrap();
            server.commands().await;
            let start = Instant::now();
            until("the watch goes on in this runtime", || async {
                server.commands().await.contains_key("time")
            })
            .await;
            assert!(start.elapsed() < 7 * SECOND, "{:?}", start.elapsed());
        });
    }

    #[test]
    fn a_silent_connection_is_replaced_although_whoever_noticed_it_is_gone() {
        let one = running();
        let two = parked();
        let server = one.block_on(Server::start(&[]));
        let (store, cut) = one.block_on(async {
            let (url, cut) = dying_way(&server).await;
            let store = RedisStore::connect(url).await.unwrap();
            store.claim(&claim("1")).await.unwrap();
            (store, cut)
        });
        cut.send(true).unwrap();
        assert_eq!(
            two.block_on(store.claim(&claim("2"))).unwrap_err().kind(),
            StoreErrorKind::Timeout
        );
        drop(two);
        let took = one.block_on(until_usable(&store));
        assert!(took < 5 * SECOND, "{took:?}");
    }

    #[test]
    fn a_runtime_that_stands_still_holds_up_nobody_else() {
        let one = running();
        let two = parked();
        let server = one.block_on(Server::start(&[]));
        let store = one.block_on(RedisStore::connect(server.url())).unwrap();
        // A call there finds the connection lost, and is left alone in the middle. One that writes
        // before the loss is noticed has an error at once.
        server.kill().unwrap();
        two.block_on(async {
            while let Ok(answer) =
                timeout(Duration::from_millis(30), store.claim(&claim("1"))).await
            {
                answer.unwrap_err();
            }
        });
        one.block_on(server.restart()).unwrap();
        let start = Instant::now();
        one.block_on(until_usable(&store));
        // Others wait for nothing of it: that would take three seconds, until its silence is noticed.
        assert!(start.elapsed() < SECOND * 5 / 2, "{:?}", start.elapsed());
    }
}
