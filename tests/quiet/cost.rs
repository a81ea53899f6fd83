//! The cost of a call in the process: allocations, rounds of renewals. They
//! are counted, so that no machine is too slow for it.

use std::pin::pin;
use std::time::Duration;

use allocation_counter::{AllocationInfo, measure};
use idem::{Begin, Error, Idempotency, MemoryStore, idempotent};
use idem_testkit::{FaultStore, Step};
use tokio::runtime::Runtime;

/// 200 bytes, as they are written.
const OUTCOME: &str = "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\
                       0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789";

#[idempotent(name = "cost.bare", key = key)]
async fn annotated(key: u32) -> Result<u32, Error> {
    Ok(key)
}

#[idempotent(name = "cost.text", key = key)]
async fn annotated_text(key: u32) -> Result<String, Error> {
    Ok(format!("{key}{OUTCOME}"))
}

/// The allocations of the facade `metrics` for names and labels: of a counter and a histogram, and
/// of a counter.
const METRICS: (u64, u64) = if cfg!(feature = "metrics") {
    (5, 3)
} else {
    (0, 0)
};
/// The bytes of these in a first execution, and in a replay.
const METRICS_BYTES: (u64, u64) = if cfg!(feature = "metrics") {
    (165, 107)
} else {
    (0, 0)
};

/// Allocations of a call in a scope of its own, less those of the scope.
fn allocations(runtime: &Runtime, idempotency: &Idempotency, key: u32) -> u64 {
    allocated(runtime, idempotency, key).count_total
}

/// What such a call allocates.
fn allocated(runtime: &Runtime, idempotency: &Idempotency, key: u32) -> AllocationInfo {
    let scoped = idempotency.clone();
    measure(|| {
        // Pinned here: in a debug build, tokio would put a future of more than two kilobytes into a
        // box.
        runtime.block_on(pin!(idem::scope(scoped, async {
            assert_eq!(annotated(key).await.unwrap(), key);
        })));
    })
}

/// The usual one of several counts: now and then a table grows.
fn usual(mut counts: Vec<u64>) -> u64 {
    counts.sort_unstable();
    counts[counts.len() / 2]
}

#[test]
fn a_call_allocates_six_times_at_most_beside_its_codec_and_a_replay_or_a_disabled_one_once() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    // Few enough shards that none has to make its first table while it is measured.
    let idempotency = Idempotency::new(MemoryStore::with_capacity(10_000));
    for key in 0..5_000 {
        allocations(&runtime, &idempotency, key);
    }
    let codec = measure(|| drop(serde_json::to_vec(&7_000u32))).count_total;
    let first = usual(
        (7_000..7_100)
            .map(|key| allocations(&runtime, &idempotency, key))
            .collect(),
    );
    // The id, the lease, the call, the body, the record, and the count of those who share the
    // outcome.
    // In a build for tests, the outcome is read back, and the forms of both values are compared.
    let read_back = 3;
    assert!(
        first <= codec + 6 + read_back + METRICS.0,
        "{first} allocations, {codec} of the codec"
    );
    let replay = usual(
        (7_000..7_100)
            .map(|key| allocations(&runtime, &idempotency, key))
            .collect(),
    );
    assert!(replay <= 1 + METRICS.1, "{replay} allocations");
    // The body.
    assert_eq!(allocations(&runtime, &Idempotency::disabled(), 1), 1);
}

/// Bytes that a first execution allocates on `MemoryStore`: mostly its lease, its call, its
/// body and its record. They are written once and copied several times, so more bytes are more time.
const FIRST_BYTES: u64 = 760 + METRICS_BYTES.0;
/// Bytes that a replay allocates: its id.
const REPLAY_BYTES: u64 = 32 + METRICS_BYTES.1;

#[test]
fn the_lease_the_call_and_the_record_of_a_first_execution_stay_small() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let idempotency = Idempotency::new(MemoryStore::with_capacity(10_000));
    let bytes = |key| allocated(&runtime, &idempotency, key).bytes_total;
    for key in 0..5_000 {
        bytes(key);
    }
    let first = usual((7_000..7_100).map(bytes).collect());
    let replay = usual((7_000..7_100).map(bytes).collect());
    assert!(
        first <= FIRST_BYTES && replay <= REPLAY_BYTES,
        "{first} bytes, and {replay} of a replay"
    );
}

#[test]
fn an_outcome_of_some_kilobytes_is_written_in_one_allocation_however_often_the_encoder_grows() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let idempotency = Idempotency::new(MemoryStore::with_capacity(10_000));
    let call = |key: u32| {
        let scoped = idempotency.clone();
        let called = || {
            runtime.block_on(pin!(idem::scope(scoped, async {
                drop(annotated_text(key).await.unwrap());
            })));
        };
        measure(called).count_total
    };
    for key in 0..5_000 {
        call(key);
    }
    let body = measure(|| drop(format!("{}{OUTCOME}", 7_000))).count_total;
    // A build for tests reads the outcome back, writes that again, and compares the forms of both.
    let read_back = 8;
    let first = usual((7_000..7_100).map(call).collect());
    // What is counted above, and the outcome.
    assert!(
        first <= body + 7 + read_back + METRICS.0,
        "{first} allocations, {body} of the body"
    );
}

#[tokio::test(start_paused = true)]
async fn two_thousand_bodies_in_flight_are_renewed_in_forty_rounds_a_second_at_most() {
    const SECONDS: u64 = 10;
    let store = FaultStore::new(MemoryStore::new());
    let faults = store.faults();
    let idempotency = Idempotency::builder(store)
        .lease(Duration::from_secs(1))
        .build();
    let mut leases = Vec::new();
    for key in 0..2_000u32 {
        let Begin::Execute(lease) = idempotency
            .operation("cost")
            .key(&key)
            .begin()
            .await
            .unwrap()
        else {
            panic!()
        };
        leases.push(lease);
        // They begin at different times.
        if key % 20 == 0 {
            tokio::time::sleep(Duration::from_millis(7)).await;
        }
    }
    let before = faults.calls(Step::Renew);
    tokio::time::sleep(Duration::from_secs(SECONDS)).await;
    let counted = faults.calls(Step::Renew) - before;
    assert!(
        (SECONDS..=40 * SECONDS).contains(&counted),
        "{counted} rounds in {SECONDS} s"
    );
    for lease in leases {
        lease.commit(&1u32).await.unwrap();
    }
}
