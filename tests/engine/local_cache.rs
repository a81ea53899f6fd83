//! `local_cache` must never return an outcome that the store has forgotten, by itself or by
//! `forget`.

use std::time::Duration;

use idem::{Error, Idempotency, MemoryStore};
use idem_testkit::{Fault, FaultStore, Step};

type Res = Result<String, Error>;

async fn call(idempotency: &Idempotency, value: &str) -> (bool, String) {
    let outcome = idempotency
        .operation("cached")
        .key("k")
        .run(async || Res::Ok(value.to_owned()))
        .await
        .unwrap();
    (outcome.is_replayed(), outcome.into_inner())
}

fn with_cache(store: FaultStore<MemoryStore>) -> Idempotency {
    let builder = Idempotency::builder(store)
        .ttl(Duration::from_secs(2))
        .lease(Duration::from_secs(1));
    builder.local_cache(100).build()
}

#[tokio::test(start_paused = true)]
async fn p2_an_outcome_whose_commit_was_tried_again_is_kept_from_the_first_try() {
    let store = FaultStore::new(MemoryStore::new());
    let faults = store.faults();
    let other = Idempotency::builder(store.clone())
        .ttl(Duration::from_secs(2))
        .build();
    let here = with_cache(store);
    // Recorded at once, and known to be so only after four more tries.
    faults.next(Step::Commit, Fault::LoseReply);
    for _ in 0..4 {
        faults.next(Step::Commit, Fault::LoseRequest);
    }
    let began = tokio::time::Instant::now();
    assert_eq!(call(&here, "first").await, (false, "first".to_owned()));
    faults.reached(Step::Commit, 6).await;
    assert_eq!(call(&here, "none").await, (true, "first".to_owned()));

    tokio::time::sleep_until(began + Duration::from_millis(2_010)).await;
    assert_eq!(
        call(&other, "second").await,
        (false, "second".to_owned()),
        "the retention is over"
    );
    assert_eq!(call(&here, "third").await, (true, "second".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_of_a_call_that_committed_here_asks_the_store_for_nothing() {
    let store = FaultStore::new(MemoryStore::new());
    let faults = store.faults();
    let here = with_cache(store);
    call(&here, "first").await;
    assert_eq!(call(&here, "none").await, (true, "first".to_owned()));
    assert_eq!(faults.calls(Step::Claim), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_told_to_be_forgotten_is_forgotten_here_whatever_the_store_answers() {
    let store = FaultStore::new(MemoryStore::new());
    let faults = store.faults();
    let here = with_cache(store);
    call(&here, "first").await;
    faults.next(Step::Remove, Fault::LoseReply);
    here.operation("cached")
        .key("k")
        .forget()
        .await
        .unwrap_err();
    assert_eq!(call(&here, "second").await, (false, "second".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_change_by_hand_is_about_the_record_in_the_store_and_not_about_the_one_that_is_known_here()
 {
    let store = FaultStore::new(MemoryStore::new());
    let other = Idempotency::new(store.clone());
    let here = with_cache(store);
    let operation = |idempotency: &Idempotency| idempotency.operation("cached").key("k");
    for settles in [true, false] {
        assert!(!call(&here, "first").await.0);
        // Another process removes it, and is cut off in its own call.
        assert!(operation(&other).forget().await.unwrap());
        drop(
            operation(&other)
                .lease(Duration::from_millis(100))
                .begin()
                .await
                .unwrap(),
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
        if settles {
            operation(&here)
                .settle(&"settled".to_owned())
                .await
                .unwrap();
            assert_eq!(call(&other, "none").await, (true, "settled".to_owned()));
            assert_eq!(call(&here, "none").await, (true, "settled".to_owned()));
        } else {
            assert!(operation(&here).release().await.unwrap());
            assert_eq!(call(&here, "second").await, (false, "second".to_owned()));
        }
        assert!(operation(&here).forget().await.unwrap());
    }
}
