#![allow(clippy::unwrap_used, clippy::panic)]

mod plain;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use fastrand::Rng;
use futures_util::FutureExt as _;

use super::*;
use crate::encoding::fingerprint::Fingerprint;
use crate::encoding::key::Key;
use crate::record::{CodecId, Encoded, Origin, Owner, ReleaseTo};

#[derive(Clone, Default)]
struct ByHand(Arc<Mutex<Duration>>);

impl Clock for ByHand {
    fn elapsed(&self) -> Duration {
        *self.0.lock().unwrap()
    }
}

impl ByHand {
    fn advance(&self, by: Duration) {
        *self.0.lock().unwrap() += by;
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn id(key: usize) -> RecordId {
    RecordId::new("op", &Key::encode(&key).unwrap()).unwrap()
}

fn claim(key: usize, hold: Duration) -> Claim {
    let id = id(key);
    let owner = Owner::generate();
    Claim {
        id,
        owner,
        lease: hold / 2,
        hold,
        fingerprint: None,
        take_over: true,
        take_over_after: None,
        max_attempts: None,
        must_be_issued: false,
        metadata: None,
    }
}

fn commit(claim: &Claim, payload: usize, ttl: Duration, remember: Duration) -> Commit {
    let Claim {
        id,
        owner,
        fingerprint,
        ..
    } = claim.clone();
    let payload = Bytes::from(vec![u8::try_from(payload % 256).unwrap(); payload]);
    let outcome = Some(Encoded {
        is_error: payload.len() % 7 == 0,
        codec: CodecId::JSON,
        payload,
        metadata: None,
    });
    Commit {
        id,
        owner,
        attempt: 1,
        fingerprint,
        outcome,
        ttl,
        remember,
        as_claimed: None,
        claim_metadata: None,
    }
}

fn now<T>(step: impl Future<Output = T>) -> T {
    step.now_or_never().unwrap()
}

fn looked_at(store: &MemoryStore) -> usize {
    store
        .0
        .shards
        .iter()
        .map(|shard| lock(shard).records.looked_at)
        .sum()
}

fn largest(store: &MemoryStore) -> usize {
    store
        .0
        .shards
        .iter()
        .map(|shard| lock(shard).records.count())
        .max()
        .unwrap()
}

#[test]
fn a_new_key_pays_for_a_look_at_three_records_and_at_one_shard_at_the_most() {
    let clock = ByHand::default();
    let store = MemoryStore::build(8_000, Box::new(clock.clone()), None);
    let mut most = 0;
    for key in 0..40_000 {
        // 4,000 are alive at a time.
        clock.advance(SECOND);
        let claim = claim(key, 4_000 * SECOND);
        let before = looked_at(&store);
        now(store.claim(&claim)).unwrap();
        now(store.commit(&commit(&claim, 10, 4_000 * SECOND, 4_000 * SECOND))).unwrap();
        most = most.max(looked_at(&store) - before);
        assert!(most <= largest(&store) + 200, "{most} in one call");
    }
    let each = looked_at(&store) / 40_000;
    assert!((1..=3).contains(&each), "{each} for each new key");
}

/// The work of a call because other records expire, in numbers that are the same on every machine.
#[test]
fn a_store_with_a_clock_of_the_test_has_no_thread_and_only_calls_drop_what_has_expired() {
    let clock = ByHand::default();
    let store = MemoryStore::with_clock(clock.clone());
    assert!(store.0.sweeper.is_none());
    now(store.claim(&claim(0, SECOND))).unwrap();
    clock.advance(SECOND);
    assert_eq!(store.len(), 1);
}

#[test]
fn while_all_records_expire_a_call_frees_and_writes_no_more_than_a_shard_has() {
    const RECORDS: usize = 32 * 1024;
    let clock = ByHand::default();
    // As full as it may be, so that the shards are as large as they may be.
    let store = MemoryStore::build(RECORDS + RECORDS / 10, Box::new(clock.clone()), None);
    assert_eq!(store.0.shards.len(), 64);
    let mut most_looked_at = 0;
    let mut most_freed = 0;
    let mut most_made = 0;
    let mut most_bytes = 0;
    for key in 0..2 * RECORDS {
        if key == RECORDS {
            clock.advance(SECOND);
        }
        let claim = claim(key, 10 * SECOND);
        let commit = commit(&claim, 200, SECOND, SECOND);
        let before = looked_at(&store);
        let call = allocation_counter::measure(|| {
            now(store.claim(&claim)).unwrap();
            now(store.commit(&commit)).unwrap();
        });
        if key >= RECORDS {
            let made = i64::try_from(call.count_total).unwrap();
            most_looked_at = most_looked_at.max(looked_at(&store) - before);
            most_freed = most_freed.max(made - call.count_current);
            most_made = most_made.max(made);
            most_bytes = most_bytes.max(call.bytes_total);
        }
    }
    assert_eq!(store.len(), RECORDS, "all that had expired were found");
    // Two shards at the most: one that is full looks for room in others, and finds it in the first
    // of them.
    assert!(
        (300..=1_400).contains(&most_looked_at),
        "{most_looked_at} records looked at"
    );
    // A record is four allocations: its box, its id, its outcome, and the count of those who share
    // that.
    assert!(
        (4 * 300..=4 * 1_400).contains(&most_freed),
        "{most_freed} allocations freed"
    );
    assert!(most_made <= 32, "{most_made} allocations made");
    assert!(most_bytes <= 64 * 1024, "{most_bytes} bytes allocated");
}

/// An allocator may need long to free much, and other calls wait for the lock.
#[test]
fn what_a_sweep_takes_out_is_freed_without_the_lock() {
    const RECORDS: usize = 640;
    // Nothing is left of the records, or only that they are done.
    for (remember, left, each) in [(SECOND, 0, 4), (2 * SECOND, RECORDS, 2)] {
        let clock = ByHand::default();
        let store = MemoryStore::with_shards(1, 1_000, Box::new(clock.clone()), None);
        for key in 0..RECORDS {
            let claim = claim(key, SECOND);
            now(store.claim(&claim)).unwrap();
            now(store.commit(&commit(&claim, 200, SECOND, remember))).unwrap();
        }
        clock.advance(SECOND);
        let freed = |info: allocation_counter::AllocationInfo| {
            usize::try_from(i64::try_from(info.count_total).unwrap() - info.count_current).unwrap()
        };
        let mut taken = None;
        let mut guarded = lock(&store.0.shards[0]);
        let locked = allocation_counter::measure(|| {
            taken = Some(guarded.records.sweep(clock.elapsed(), &store.0.room));
        });
        drop(guarded);
        let unlocked = allocation_counter::measure(|| drop(taken));
        assert_eq!(store.len(), left);
        // The list of what was taken out grows under the lock, and the table shrinks.
        assert!(freed(locked) < 20, "{} under the lock", freed(locked));
        assert!(
            freed(unlocked) >= each * RECORDS,
            "{} without it",
            freed(unlocked)
        );
    }
}

#[test]
fn what_has_expired_is_dropped_although_nobody_asks_for_it_again() {
    let clock = ByHand::default();
    // Each shard gets over a thousand of the new keys, and has swept before that.
    let store = MemoryStore::with_shards(8, 100_000, Box::new(clock.clone()), None);
    for key in 0..10_000 {
        let claim = claim(key, SECOND);
        now(store.claim(&claim)).unwrap();
        now(store.commit(&commit(&claim, 10, SECOND, SECOND))).unwrap();
    }
    assert_eq!(store.len(), 10_000);
    clock.advance(SECOND);
    for key in 10_000..20_000 {
        now(store.claim(&claim(key, SECOND))).unwrap();
    }
    assert_eq!(store.len(), 10_000);
}

/// Most records expire soon and one in sixteen late, so that every table loses most of what it has.
#[test]
fn what_has_expired_leaves_no_memory_behind() {
    const ALIVE: usize = 5_000;
    const ROUNDS: usize = 10;
    let clock = ByHand::default();
    let mut kept = None;
    let info = allocation_counter::measure(|| {
        let store = MemoryStore::with_shards(8, 100_000, Box::new(clock.clone()), None);
        for key in 0..ALIVE * ROUNDS {
            let ttl = if key % 16 == 0 {
                100_000 * SECOND
            } else {
                5_000 * SECOND
            };
            let claim = claim(key, ttl);
            now(store.claim(&claim)).unwrap();
            now(store.commit(&commit(&claim, 200, ttl, ttl))).unwrap();
            clock.advance(SECOND);
        }
        kept = Some(store);
    });
    let alive = ALIVE + ALIVE * (ROUNDS - 1) / 16;
    let each = usize::try_from(info.bytes_current).unwrap() / alive;
    // Up to half as many more wait to be found.
    assert!(
        each <= 3 * (200 + 310) / 2,
        "{each} bytes for each that is alive"
    );
}

#[test]
fn a_full_store_finds_the_one_that_has_expired_wherever_it_is() {
    for expired in 0..200 {
        let clock = ByHand::default();
        let store = MemoryStore::build(200, Box::new(clock.clone()), None);
        for key in 0..200 {
            let hold = if key == expired { SECOND } else { 100 * SECOND };
            let claim = claim(key, hold);
            now(store.claim(&claim)).unwrap();
            if key % 2 == 0 {
                now(store.commit(&commit(&claim, 10, hold, hold))).unwrap();
            }
        }
        assert!(
            now(store.claim(&claim(200, SECOND)))
                .unwrap_err()
                .to_string()
                .contains("full")
        );
        clock.advance(SECOND);
        let owned = Claimed::Owned {
            attempt: 1,
            from: Origin::Nothing,
        };
        assert_eq!(now(store.claim(&claim(201, 100 * SECOND))).unwrap(), owned);
        assert!(
            now(store.claim(&claim(202, SECOND))).is_err(),
            "there was no more room"
        );
        assert_eq!(store.len(), 200);
    }
}

thread_local! {
    /// How often this thread has locked a shard.
    pub(super) static LOCKED: Cell<usize> = const { Cell::new(0) };
}

#[test]
fn a_full_store_in_which_nothing_has_expired_refuses_a_key_without_a_look_at_other_shards() {
    let store = MemoryStore::build(200, Box::new(ByHand::default()), None);
    for key in 0..200 {
        now(store.claim(&claim(key, SECOND))).unwrap();
    }
    for key in 200..300 {
        let before = LOCKED.get();
        assert!(now(store.claim(&claim(key, SECOND))).is_err());
        assert_eq!(LOCKED.get() - before, 1);
    }
}

/// All records seem due, because each was claimed for a second and then committed for longer.
#[test]
fn a_refused_key_looks_at_a_bounded_number_of_records() {
    const RECORDS: usize = 16 * 1024;
    let clock = ByHand::default();
    let store = MemoryStore::build(RECORDS, Box::new(clock.clone()), None);
    for key in 0..RECORDS {
        let claim = claim(key, SECOND);
        now(store.claim(&claim)).unwrap();
        now(store.commit(&commit(&claim, 10, 100 * SECOND, 100 * SECOND))).unwrap();
    }
    clock.advance(2 * SECOND);
    let mut all = 0;
    for key in 0..100 {
        let before = looked_at(&store);
        assert!(now(store.claim(&claim(RECORDS + key, SECOND))).is_err());
        let looked_at = looked_at(&store) - before;
        assert!(
            looked_at <= MOST_LOOKED_AT + 2 * largest(&store),
            "{looked_at}"
        );
        all += looked_at;
    }
    assert!(
        (RECORDS / 2..=2 * RECORDS).contains(&all),
        "each shard is looked at once: {all}"
    );
    clock.advance(100 * SECOND);
    now(store.claim(&claim(RECORDS, SECOND))).unwrap();
}

/// Over tokio's clock, which stands still here until it is moved, while that of the machine goes
/// on.
#[tokio::test(start_paused = true)]
async fn a_thread_drops_what_has_expired_although_nobody_calls_and_ends_when_nothing_will_expire() {
    let store = MemoryStore::with_capacity(100_000);
    let sweeper = store.0.sweeper.clone().unwrap();
    assert!(!sweeper.is_running(), "an empty store has no thread");
    for key in 0..10_000 {
        let ttl = if key % 10 == 0 {
            1_000 * SECOND
        } else {
            Duration::from_millis(1)
        };
        let claim = claim(key, ttl);
        now(store.claim(&claim)).unwrap();
        now(store.commit(&commit(&claim, 200, ttl, ttl))).unwrap();
    }
    sweeper.look_now();
    assert_eq!(
        store.len(),
        10_000,
        "nothing has expired by the clock of the store"
    );
    tokio::time::advance(SECOND).await;
    sweeper.look_now();
    assert_eq!(store.len(), 1_000);
    assert!(sweeper.is_running());
    tokio::time::advance(1_000 * SECOND).await;
    sweeper.look_now();
    assert!(
        store.is_empty()
            && store
                .0
                .shards
                .iter()
                .all(|shard| lock(shard).records.count() == 0)
    );
    eventually("the thread ends", || !sweeper.is_running());
    // It begins again, and ends without a look at the clock when its last record is removed.
    now(store.claim(&Claim {
        lease: Duration::ZERO,
        ..claim(1, 1_000 * SECOND)
    }))
    .unwrap();
    assert!(sweeper.is_running());
    assert_eq!(now(store.remove(&id(1))).unwrap(), Removed::Removed);
    sweeper.look_now();
    eventually("the thread ends again", || !sweeper.is_running());
}

#[tokio::test(start_paused = true)]
async fn a_record_that_expires_earlier_than_the_others_wakes_the_thread() {
    let store = MemoryStore::new();
    let sweeper = store.0.sweeper.clone().unwrap();
    let late = |seconds: u64| sweeper.is_late_for(nanos(Duration::from_secs(seconds)));
    now(store.claim(&claim(1, 1_000 * SECOND))).unwrap();
    eventually("the thread waits for the first record", || {
        late(500) && !late(1_000)
    });
    now(store.claim(&claim(2, 500 * SECOND))).unwrap();
    eventually("the thread waits for the second record", || {
        late(100) && !late(500)
    });
    // One that hardly differs is not worth a wake-up.
    now(store.claim(&claim(3, 499 * SECOND))).unwrap();
    assert!(!late(499));
}

#[test]
fn the_thread_ends_with_the_store() {
    let store = MemoryStore::new();
    now(store.claim(&claim(1, 1_000 * SECOND))).unwrap();
    let sweeper = store.0.sweeper.clone().unwrap();
    assert!(sweeper.is_running());
    drop(store);
    eventually(
        "the thread has let go of what it shared with the store",
        || Arc::strong_count(&sweeper) == 1,
    );
}

fn eventually(what: &str, happens: impl Fn() -> bool) {
    for _ in 0..30_000 {
        if happens() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("not in thirty seconds: {what}");
}

#[test]
fn a_shard_is_as_large_as_can_be_swept_in_passing() {
    let shards = |capacity| MemoryStore::with_capacity(capacity).0.shards.len();
    assert_eq!(
        [0, 100, 1_000_000, 10_000_000].map(shards),
        [32, 32, 1024, 16_384]
    );
    assert_eq!(shards(usize::MAX), MOST_SHARDS);
}
