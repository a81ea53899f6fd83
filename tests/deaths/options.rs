//! The options of an operation after a real kill, with the attribute and by hand.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use idem::{Abandoned, Error, Idempotency, Operation, RecordState, idempotent};
use idem_testkit::RedisServer;

use crate::log::Lines;
use crate::owner::{Call, Does, Failure, Process};
use crate::support::{LEASE, LONG, eventually, patient_store};

type Res<T = u64> = Result<T, Failure>;

/// That of all calls here, in this process and in others.
const KEY: &str = "k";

/// Begins a body in a process of its own, and kills that.
async fn kill_one(server: &RedisServer, operation: &str) {
    kill_one_that(server, operation, Does::NeverEnds).await;
}

async fn kill_one_that(server: &RedisServer, operation: &str, does: Does) {
    let before = Lines::read(server, operation).await.bodies();
    let mut process = start(server, operation, does);
    eventually("the body runs", async || {
        Lines::read(server, operation).await.bodies() > before
    })
    .await;
    process.kill().await;
}

/// Begins a call in a process of its own.
fn start(server: &RedisServer, operation: &str, does: Does) -> Process {
    Process::start(&Call {
        url: server.url(),
        direct: server.url(),
        port: server.port(),
        operation: operation.into(),
        does,
        lease: LEASE * 3,
    })
}

async fn process(server: &RedisServer) -> Idempotency {
    Idempotency::new(patient_store(&server.url()).await)
}

fn attempt() -> u64 {
    idem::current().unwrap().attempt()
}

fn at<'a>(idempotency: &Idempotency, operation: &'a str) -> Operation<'a> {
    idempotency.operation(operation).key(KEY).wait(LONG)
}

async fn is_abandoned(idempotency: &Idempotency, operation: &str, attempt: u64) {
    eventually("it is abandoned", async || {
        let info = at(idempotency, operation).inspect().await.unwrap().unwrap();
        assert_eq!(info.attempt, attempt);
        info.state == RecordState::Abandoned && info.lease_left.is_none()
    })
    .await;
}

#[idempotent(
    key = KEY,
    name = "reject",
    runtime = idempotency,
    in_flight = wait("20s"),
    abandoned = reject,
)]
async fn reject(idempotency: &Idempotency) -> Res {
    Ok(attempt())
}

#[idempotent(
    key = KEY,
    name = "reconcile",
    runtime = idempotency,
    in_flight = wait("20s"),
    abandoned = reconcile(async { asked.fetch_add(1, SeqCst); answer }),
)]
async fn reconcile(idempotency: &Idempotency, asked: &AtomicU32, answer: Res<Option<u64>>) -> Res {
    Ok(attempt())
}

#[tokio::test]
async fn p5_reject_refuses_the_key_of_a_killed_process_until_it_is_settled_or_forgotten_through_the_runtime()
 {
    let server = RedisServer::start().await.unwrap();
    let idempotency = process(&server).await;
    let by_hand = || {
        at(&idempotency, "reject.hand")
            .abandoned(Abandoned::Reject)
            .run(async || Res::Ok(attempt()))
    };
    let rejected = |answer: Failure| {
        matches!(
            answer,
            Failure::Idempotency(Error::Abandoned { attempt: 1, .. })
        )
    };
    tokio::join!(
        kill_one(&server, "reject"),
        kill_one(&server, "reject.hand")
    );
    // The first ones wait for the lease, the second ones need not.
    for _ in 0..2 {
        let (attribute, by_hand) = tokio::join!(reject(&idempotency), by_hand());
        assert!(rejected(attribute.unwrap_err()) && rejected(by_hand.unwrap_err()));
    }
    for operation in ["reject", "reject.hand"] {
        is_abandoned(&idempotency, operation, 1).await;
        assert_eq!(Lines::read(&server, operation).await.bodies(), 1);
    }

    at(&idempotency, "reject").settle(&7u64).await.unwrap();
    assert_eq!(reject(&idempotency).await.unwrap(), 7);
    let again = at(&idempotency, "reject").settle(&8u64).await;
    assert!(matches!(again, Err(Error::Duplicate { .. })), "{again:?}");

    assert!(at(&idempotency, "reject.hand").forget().await.unwrap());
    assert!(
        at(&idempotency, "reject.hand")
            .inspect()
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(by_hand().await.unwrap().into_inner(), 1);
}

#[tokio::test]
async fn p5_reconcile_asks_after_each_kill_and_an_error_has_the_next_call_ask_again() {
    let server = RedisServer::start().await.unwrap();
    let idempotency = process(&server).await;
    let asked = AtomicU32::new(0);
    let by_hand = |answer: Res<Option<u64>>| {
        let asking = at(&idempotency, "reconcile.hand").reconcile(async || {
            asked.fetch_add(1, SeqCst);
            answer
        });
        asking.run(async || Res::Ok(attempt()))
    };
    tokio::join!(
        kill_one(&server, "reconcile"),
        kill_one(&server, "reconcile.hand")
    );
    let failed = reconcile(&idempotency, &asked, Err(Failure::Declined)).await;
    assert!(matches!(failed, Err(Failure::Declined)));
    let failed = by_hand(Err(Failure::Declined)).await;
    assert!(matches!(failed, Err(Failure::Declined)));
    // One that is killed while it asks.
    kill_asking(&server, "reconcile").await;
    assert_eq!(reconcile(&idempotency, &asked, Ok(None)).await.unwrap(), 4);
    assert_eq!(by_hand(Ok(Some(70))).await.unwrap().into_inner(), 70);
    // Settled: the lookup is not asked.
    assert_eq!(reconcile(&idempotency, &asked, Ok(None)).await.unwrap(), 4);
    assert_eq!(by_hand(Ok(None)).await.unwrap().into_inner(), 70);
    assert_eq!(asked.load(SeqCst), 4);
}

async fn kill_asking(server: &RedisServer, operation: &str) {
    let mut process = start(server, operation, Does::Asks);
    eventually("it asks", async || {
        Lines::read(server, operation).await.has("asks")
    })
    .await;
    process.kill().await;
}

#[idempotent(
    key = KEY,
    name = "attempts",
    runtime = idempotency,
    in_flight = wait("20s"),
    max_attempts = 2,
)]
async fn two_attempts(idempotency: &Idempotency) -> Res {
    Ok(attempt())
}

#[tokio::test]
async fn max_attempts_counts_killed_owners() {
    let server = RedisServer::start().await.unwrap();
    let idempotency = process(&server).await;
    kill_one(&server, "attempts").await;
    kill_one(&server, "attempts").await;
    let exhausted = |error: Failure| {
        matches!(
            error,
            Failure::Idempotency(Error::AttemptsExhausted { attempts: 2, .. })
        )
    };
    assert!(exhausted(two_attempts(&idempotency).await.unwrap_err()));
    let by_hand = || at(&idempotency, "attempts");
    assert!(exhausted(
        by_hand()
            .max_attempts(2)
            .run(async || Res::Ok(attempt()))
            .await
            .unwrap_err()
    ));
    is_abandoned(&idempotency, "attempts", 2).await;
    assert_eq!(
        by_hand()
            .max_attempts(3)
            .run(async || Res::Ok(attempt()))
            .await
            .unwrap()
            .into_inner(),
        3
    );
    assert_eq!(two_attempts(&idempotency).await.unwrap(), 3);
    assert_eq!(Lines::read(&server, "attempts").await.bodies(), 2);
}

#[tokio::test]
async fn a_settled_key_has_used_up_no_attempts_of_those_that_are_allowed() {
    let server = RedisServer::start().await.unwrap();
    let idempotency = process(&server).await;
    kill_one(&server, "attempts").await;
    kill_one(&server, "attempts").await;
    is_abandoned(&idempotency, "attempts", 2).await;
    at(&idempotency, "attempts").settle(&7u64).await.unwrap();
    assert_eq!(two_attempts(&idempotency).await.unwrap(), 7);
    assert!(at(&idempotency, "attempts").forget().await.unwrap());
    assert_eq!(two_attempts(&idempotency).await.unwrap(), 1);
}

#[tokio::test]
async fn p8_a_detached_body_dies_with_its_process_as_in_a_crash() {
    let server = RedisServer::start().await.unwrap();
    let idempotency = process(&server).await;
    let mut owner = start(&server, "detached", Does::Detaches);
    // Its caller is gone by now, and the lease is over unless the body goes on and is renewed.
    eventually("the body goes on", async || {
        Lines::read(&server, "detached").await.lines() > 60
    })
    .await;
    let info = at(&idempotency, "detached")
        .inspect()
        .await
        .unwrap()
        .unwrap();
    assert_eq!((info.state, info.attempt), (RecordState::InFlight, 1));
    owner.kill().await;
    // A body that went on would keep the key for longer than this caller waits.
    assert_eq!(
        at(&idempotency, "detached")
            .run(async || Res::Ok(attempt()))
            .await
            .unwrap()
            .into_inner(),
        2
    );
}
