//! Waiters: woken, not polling, and gone when they leave.

use std::time::{Duration, Instant};

use idem_core::Store as _;
use idem_core::record::{Claimed, Ownership};
use idem_redis::RedisStore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::server::{Server, connection_manager};
use crate::still::{until, within};
use crate::{SECOND, claim, claim_for, commit, give_up, id, patient, release, server_and_store};

/// A waiter that is woken returns at once. By itself it looks once a second.
const AT_ONCE: Duration = Duration::ZERO;
/// A waiter that polls looks within this time.
const POLLS_WITHIN: Duration = Duration::from_millis(250);

/// Waits in a task.
fn waiter(store: &RedisStore, key: &str) -> JoinHandle<()> {
    let store = store.clone();
    let id = id(key);
    tokio::spawn(async move { store.wait(&id, 1, 20 * SECOND).await.unwrap() })
}

async fn until_marked(server: &Server, key: &str) {
    let key = format!("idem:orders:{key}");
    let marked = until("the mark of a waiter", || async {
        server
            .get(&key)
            .await
            .is_some_and(|text| text.as_bytes().ends_with(b".w"))
    });
    // The clock stands still: a subscription that is not confirmed within a second is given up.
    within(Duration::ZERO, marked).await;
}

#[tokio::test]
async fn a_commit_or_release_wakes_waiters_of_other_processes_at_once() {
    let (server, owner) = server_and_store().await;
    let other = patient(server.url()).await;
    for key in ["commit", "release", "give-up"] {
        let first = claim(key);
        owner.claim(&first).await.unwrap();
        let waiters: Vec<_> = (0..10).map(|_| waiter(&other, key)).collect();
        until_marked(&server, key).await;
        let woken = async {
            match key {
                "commit" => drop(owner.commit(&commit(&first, 1, "1")).await.unwrap()),
                "release" => drop(owner.release(&release(&first)).await.unwrap()),
                _ => drop(owner.release(&give_up(&first)).await.unwrap()),
            }
            for waiter in waiters {
                waiter.await.unwrap();
            }
        };
        within(AT_ONCE, woken).await;
        let text = server.get(&format!("idem:orders:{key}")).await.unwrap();
        assert!(!text.as_bytes().ends_with(b".w"), "the mark goes: {text}");
    }
}

#[tokio::test]
async fn waiting_does_not_poll_and_one_subscription_serves_all_waiters_of_a_process() {
    let (server, owner) = server_and_store().await;
    let other = patient(server.url()).await;
    let first = claim("1");
    owner.claim(&first).await.unwrap();
    server.commands().await;
    let began = Instant::now();
    let waiters: Vec<_> = (0..5).map(|_| waiter(&other, "1")).collect();
    until_marked(&server, "1").await;
    assert_eq!(server.channels().await, ["idem:orders:1"]);
    // Long enough for a poll to show, and on an idle machine short enough that no waiter makes its
    // regular look, which is once a second.
    tokio::time::sleep(Duration::from_millis(600)).await;
    owner.commit(&commit(&first, 1, "1")).await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    let regular = 5 * began.elapsed().as_secs();
    until("the end of the subscription", || async {
        server.channels().await.is_empty()
    })
    .await;
    let commands = server.commands().await;
    let count = |name: &str| commands.get(name).copied().unwrap_or_default();
    // A look for each waiter, and the commit.
    assert!(
        (6..=6 + regular).contains(&count("evalsha")),
        "{regular} regular looks, {commands:?}"
    );
    assert_eq!(
        (
            count("subscribe"),
            count("unsubscribe"),
            count("publish"),
            count("append")
        ),
        (1, 1, 1, 1),
        "{commands:?}"
    );
}

#[tokio::test]
async fn waiting_for_what_is_not_in_flight_returns_at_once() {
    let (server, store) = server_and_store().await;
    let at_once = async |key: &str, attempt| {
        let id = id(key);
        let waited = store.wait(&id, attempt, 20 * SECOND);
        within(AT_ONCE, waited).await.unwrap();
    };
    at_once("nothing", 1).await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    at_once("1", 2).await;
    store.claim(&claim_for("2", Duration::ZERO)).await.unwrap();
    at_once("2", 1).await;
    store.commit(&commit(&first, 1, "1")).await.unwrap();
    at_once("1", 1).await;
    for key in ["1", "2"] {
        assert!(
            !server
                .get(&format!("idem:orders:{key}"))
                .await
                .unwrap()
                .as_bytes()
                .ends_with(b".w")
        );
    }
}

#[tokio::test]
async fn a_waiter_that_gives_up_changes_nothing_and_leaves_no_subscription() {
    let (server, store) = server_and_store().await;
    let first = claim("1");
    store.claim(&first).await.unwrap();
    let one = waiter(&store, "1");
    let two = waiter(&store, "1");
    until_marked(&server, "1").await;
    one.abort();
    let _ = one.await;
    assert!(matches!(
        store.claim(&claim("1")).await.unwrap(),
        Claimed::InFlight { attempt: 1, .. }
    ));
    assert_eq!(
        server.channels().await,
        ["idem:orders:1"],
        "the other one still waits"
    );
    two.abort();
    until("the end of the subscription", || async {
        server.channels().await.is_empty()
    })
    .await;
    assert!(matches!(
        store.claim(&first).await.unwrap(),
        Claimed::Owned { attempt: 1, .. }
    ));
    store.commit(&commit(&first, 1, "1")).await.unwrap();
}

#[tokio::test]
async fn a_waiter_that_comes_while_the_last_one_leaves_is_woken() {
    let (server, owner) = server_and_store().await;
    let other = patient(server.url()).await;
    for round in 0..300_u64 {
        let key = round.to_string();
        let first = claim(&key);
        owner.claim(&first).await.unwrap();
        // Cut off at some moment of its subscribing, waiting and leaving.
        let _ = timeout(
            Duration::from_micros(50 * (round % 40)),
            other.wait(&first.id, 1, 20 * SECOND),
        )
        .await;
        let next = waiter(&other, &key);
        until_marked(&server, &key).await;
        let woken = async {
            owner.commit(&commit(&first, 1, "1")).await.unwrap();
            next.await.unwrap();
        };
        within(AT_ONCE, woken).await;
    }
    until("the end of all subscriptions", || async {
        server.channels().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn many_keys_are_waited_for_at_once() {
    let (server, owner) = server_and_store().await;
    let other = patient(server.url()).await;
    let claims: Vec<_> = (0..500).map(|n| claim(&n.to_string())).collect();
    for claim in &claims {
        owner.claim(claim).await.unwrap();
    }
    let waiters: Vec<_> = claims
        .iter()
        .map(|claim| waiter(&other, claim.id.key()))
        .collect();
    let subscribed = until("the subscriptions", || async {
        server.channels().await.len() == 500
    });
    within(AT_ONCE, subscribed).await;
    for claim in &claims {
        owner.commit(&commit(claim, 1, "1")).await.unwrap();
    }
    for waiter in waiters {
        timeout(20 * SECOND, waiter).await.expect("woken").unwrap();
    }
    until("the end of all subscriptions", || async {
        server.channels().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_store_on_the_applications_connection_polls_and_leaves_no_mark() {
    let server = Server::start(&[]).await;
    let builder = RedisStore::builder().connection(connection_manager(server.url()).await);
    let store = builder.time_limit(20 * SECOND).connect().await.unwrap();
    let first = claim("1");
    store.claim(&first).await.unwrap();
    let before = server.scripts().await;
    let woken = waiter(&store, "1");
    until("two looks", || async {
        server.scripts().await >= before + 2
    })
    .await;
    assert!(server.channels().await.is_empty());
    assert!(
        !server
            .get("idem:orders:1")
            .await
            .unwrap()
            .as_bytes()
            .ends_with(b".w")
    );
    let looks = async {
        store.commit(&commit(&first, 1, "1")).await.unwrap();
        server.steps(woken).await.unwrap();
    };
    within(POLLS_WITHIN, looks).await;
}

#[tokio::test]
async fn a_store_on_the_applications_connection_is_woken_on_a_second_one() {
    let server = Server::start(&[]).await;
    let store = RedisStore::builder()
        .connection(server.client().await)
        .wake_url(server.url())
        .time_limit(20 * SECOND)
        .connect_time_limit(20 * SECOND)
        .connect()
        .await
        .unwrap();
    let first = claim("1");
    store.claim(&first).await.unwrap();
    let woken = waiter(&store, "1");
    until_marked(&server, "1").await;
    let woken = async {
        store.commit(&commit(&first, 1, "1")).await.unwrap();
        woken.await.unwrap();
    };
    within(AT_ONCE, woken).await;
    until("the end of the subscription", || async {
        server.channels().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn replies_are_not_cut_off_by_the_limit_of_clients_that_subscribe() {
    let (server, store) = server_and_store().await;
    let () = server
        .send(&[
            "CONFIG",
            "SET",
            "client-output-buffer-limit",
            "pubsub 32kb 32kb 1",
        ])
        .await;
    let done = claim("done");
    let held = claim("held");
    store.claim(&done).await.unwrap();
    let large = crate::outcome("").with_payload("y".repeat(4_000_000).into());
    let large = commit(&done, 1, "").with_outcome(Some(large));
    store.commit(&large).await.unwrap();
    store.claim(&held).await.unwrap();
    let waiting = waiter(&store, "held");
    until("the subscription", || async {
        !server.channels().await.is_empty()
    })
    .await;
    for _ in 0..10 {
        let claim = claim("done");
        let claims = (0..4).map(|_| store.claim(&claim));
        for answer in futures_util::future::join_all(claims).await {
            assert!(matches!(answer.unwrap(), Claimed::Committed { .. }));
        }
    }
    store.commit(&commit(&held, 1, "1")).await.unwrap();
    waiting.await.unwrap();
}

#[tokio::test]
async fn a_store_that_nobody_waits_on_has_one_connection() {
    let (server, store) = server_and_store().await;
    let clients = async |kind: &str| -> usize {
        let list: String = server.send(&["CLIENT", "LIST", "TYPE", kind]).await;
        list.lines().count()
    };
    store.claim(&claim("1")).await.unwrap();
    // The other is the question's own.
    until("one connection", || async {
        clients("normal").await == 2 && clients("pubsub").await == 0
    })
    .await;
    let waiting = waiter(&store, "1");
    until("a second one", || async { clients("pubsub").await == 1 }).await;
    waiting.abort();
}

#[tokio::test]
async fn waiters_are_woken_after_their_connection_was_lost() {
    let (server, store) = server_and_store().await;
    for round in 0..3 {
        let key = format!("k{round}");
        let first = claim(&key);
        store.claim(&first).await.unwrap();
        let waiting = waiter(&store, &key);
        until_marked(&server, &key).await;
        let lost = async {
            let _: i64 = server.send(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
            // The caller looks again; the record is unchanged.
            waiting.await.unwrap();
        };
        within(AT_ONCE, lost).await;
        let before = server.scripts().await;
        let waiting = waiter(&store, &key);
        // It subscribes before it looks.
        let looked = until("its look", || async {
            server.scripts().await > before && !server.channels().await.is_empty()
        });
        within(AT_ONCE, looked).await;
        let woken = async {
            store.commit(&commit(&first, 1, "1")).await.unwrap();
            waiting.await.unwrap();
        };
        within(AT_ONCE, woken).await;
    }
}

/// Processes, stores in each, and calls of each store.
const MANY: [u32; 3] = [4, 10, 25];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "this is one of the processes of the test below, which starts it"]
async fn waits_among_many() {
    let url = std::env::var("IDEM_TEST_URL").unwrap();
    let mut calls = JoinSet::new();
    for _ in 0..MANY[1] {
        let idempotency = idem_core::Idempotency::new(patient(url.clone()).await);
        for _ in 0..MANY[2] {
            let call = idempotency
                .operation("orders")
                .key("many")
                .wait(60 * SECOND);
            calls.spawn(
                call.run(async || Ok::<_, idem_core::Error>(format!("by {}", std::process::id()))),
            );
        }
    }
    println!("\nwaits");
    while let Some(call) = calls.join_next().await {
        match call.unwrap() {
            Ok(outcome) => {
                let how = if outcome.is_replayed() {
                    "replay"
                } else {
                    "body"
                };
                println!("{how} {}", outcome.into_inner());
            }
            Err(error) => println!("error {error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_p11_of_a_thousand_waiters_in_several_processes_one_runs_what_was_released_and_all_get_its_outcome()
 {
    let (server, owner) = server_and_store().await;
    let first = claim("many");
    owner.claim(&first).await.unwrap();
    let processes: Vec<_> = (0..MANY[0])
        .map(|_| {
            tokio::process::Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "waking::waits_among_many",
                    "--ignored",
                    "--nocapture",
                ])
                .env("IDEM_TEST_URL", server.url())
                .stdout(std::process::Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .unwrap()
        })
        .collect();
    let channel = "idem:orders:many";
    // One whose server does not confirm it in time polls.
    let all_wait = async {
        while server
            .send::<(String, u32)>(&["PUBSUB", "NUMSUB", channel])
            .await
            .1
            < MANY[0] * (MANY[1] - 1)
        {
            tokio::time::sleep(SECOND / 50).await;
        }
    };
    timeout(30 * SECOND, all_wait)
        .await
        .expect("most stores are subscribed");
    assert_eq!(
        owner.release(&release(&first)).await.unwrap(),
        Ownership::Held
    );
    let mut bodies = 0;
    let mut outcomes = Vec::new();
    for process in processes {
        let output = process.wait_with_output().await.unwrap();
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            match line.split_once(' ') {
                Some(("body", outcome)) => {
                    bodies += 1;
                    outcomes.push(outcome.to_owned());
                }
                Some(("replay", outcome)) => outcomes.push(outcome.to_owned()),
                Some(("error", error)) => panic!("{error}"),
                _ => {}
            }
        }
    }
    assert_eq!((bodies, outcomes.len()), (1, 1_000));
    assert!(
        outcomes.iter().all(|outcome| *outcome == outcomes[0]),
        "{outcomes:?}"
    );
}

mod quiet {
    use idem_core::RecordState;

    use super::*;

    /// Sooner than a waiter looks by itself.
    const SOON: Duration = Duration::from_millis(900);

    #[tokio::test]
    async fn a_wait_ends_with_its_limit_or_with_the_lease() {
        let (_server, store) = server_and_store().await;
        store.claim(&claim("1")).await.unwrap();
        let start = Instant::now();
        store
            .wait(&id("1"), 1, Duration::from_millis(150))
            .await
            .unwrap();
        let took = start.elapsed();
        assert!(
            took >= Duration::from_millis(149) && took < SOON,
            "{took:?}"
        );

        store
            .claim(&claim_for("2", Duration::from_millis(200)))
            .await
            .unwrap();
        let start = Instant::now();
        store.wait(&id("2"), 1, 20 * SECOND).await.unwrap();
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        assert_eq!(
            store.inspect(&id("2")).await.unwrap().unwrap().state,
            RecordState::Abandoned
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_wake_up_is_lost_however_waits_and_commits_meet() {
        let (server, owner) = server_and_store().await;
        let other = patient(server.url()).await;
        for round in 0..2000_u64 {
            let key = round.to_string();
            let first = claim(&key);
            owner.claim(&first).await.unwrap();
            let mut waiters = JoinSet::new();
            for store in [&owner, &other, &other] {
                let store = store.clone();
                let id = first.id.clone();
                waiters.spawn(async move { timeout(SOON, store.wait(&id, 1, 20 * SECOND)).await });
            }
            if round % 3 > 0 {
                tokio::time::sleep(Duration::from_micros(20 * (round % 50))).await;
            }
            if round % 2 == 0 {
                owner.commit(&commit(&first, 1, "1")).await.unwrap();
            } else {
                owner.release(&release(&first)).await.unwrap();
            }
            while let Some(waited) = waiters.join_next().await {
                waited
                    .unwrap()
                    .unwrap_or_else(|_| panic!("round {round}: a wake-up was lost"))
                    .unwrap();
            }
        }
        until("the end of all subscriptions", || async {
            server.channels().await.is_empty()
        })
        .await;
    }
}
