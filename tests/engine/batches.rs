//! Many callers of one process, whose commands go to Redis in common messages.

use std::sync::mpsc;
use std::time::Duration;

use idem::{Error, Idempotency};
use idem_redis::RedisStore;
use idem_testkit::RedisServer;
use tokio::task::JoinSet;

use crate::support::patient_store;

type Res<T = u32> = Result<T, Error>;

async fn runtime(server: &RedisServer) -> Idempotency {
    Idempotency::new(patient_store(&server.url()).await)
}

async fn call(idempotency: Idempotency, key: u32) -> Res {
    idempotency
        .operation("batch")
        .key(&key)
        .run(async || Ok(key))
        .await
        .map(idem::Outcome::into_inner)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_many_callers_gets_the_answer_to_its_own_command() {
    let server = RedisServer::start().await.unwrap();
    let idempotency = runtime(&server).await;
    for _ in ["first", "replay"] {
        let mut calls = JoinSet::new();
        for key in 0..3_000 {
            let idempotency = idempotency.clone();
            calls.spawn(async move { (key, call(idempotency, key).await) });
        }
        for (key, answer) in calls.join_all().await {
            assert_eq!(answer.unwrap(), key);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_go_away_take_nobody_along() {
    let server = RedisServer::start().await.unwrap();
    let idempotency = runtime(&server).await;
    let mut kept = JoinSet::new();
    let mut dropped = JoinSet::new();
    for key in 0..2_000 {
        let set = if key % 3 == 0 {
            &mut dropped
        } else {
            &mut kept
        };
        set.spawn(call(idempotency.clone(), key));
        if key % 50 == 0 {
            tokio::task::yield_now().await;
            dropped.abort_all();
        }
    }
    dropped.abort_all();
    for answer in kept.join_all().await {
        answer.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p4_callers_are_answered_while_the_runtime_of_another_caller_is_not_driven() {
    let server = RedisServer::start().await.unwrap();
    // With the limits that a store has by default.
    let idempotency = Idempotency::new(RedisStore::connect(server.url()).await.unwrap());
    let other = idempotency.clone();
    let (polled, is_polled) = mpsc::channel();
    let (over, is_over) = mpsc::channel::<()>();
    let parked = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let mut calls = JoinSet::new();
        runtime.block_on(async {
            for key in 0..16 {
                calls.spawn(call(other.clone(), key));
            }
            // Each of them is polled once.
            tokio::task::yield_now().await;
        });
        polled.send(()).unwrap();
        // Nobody drives it, and it is not shut down.
        let _ = is_over.recv();
    });
    tokio::task::spawn_blocking(move || is_polled.recv().unwrap())
        .await
        .unwrap();
    for key in 100..120 {
        let answer =
            tokio::time::timeout(Duration::from_secs(30), call(idempotency.clone(), key)).await;
        assert_eq!(answer.expect("an answer").unwrap(), key);
    }
    drop(over);
    parked.join().unwrap();
}
