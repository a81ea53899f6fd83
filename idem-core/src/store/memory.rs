//! The store inside the process.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::Store;
use crate::clock::{Clock, TokioClock};
use crate::error::{StoreError, StoreErrorKind};
use crate::record::{
    Claim, Claimed, Commit, OnClaim, OnStep, Origin, Ownership, RanOut, Record, RecordId, RecordInfo, Release, Removed,
    Renewal,
};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify};

const SHARDS: usize = 32;
const DEFAULT_CAPACITY: usize = 1_000_000;

/// Keeps records in the process: to try things, for tests, and for services of one process.
///
/// Nothing survives the process, so neither does any promise. It holds at most its capacity of records, a million unless it is made
/// with another, and refuses new keys when it is full: it never evicts a record that it promised to keep.
///
/// Cheap to clone; clones share their records.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use idem::{Idempotency, MemoryStore};
///
/// let idempotency = Idempotency::new(MemoryStore::with_capacity(100_000));
/// ```
#[derive(Clone)]
pub struct MemoryStore(Arc<Inner>);

struct Inner {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    capacity: usize,
    /// How many records there are, in all shards.
    len: AtomicUsize,
    clock: Box<dyn Clock>,
}

#[derive(Default)]
struct Shard {
    slots: HashMap<RecordId, Slot>,
    waiters: HashMap<RecordId, Waiters>,
    /// No slot expires before this: what a search for expired ones can skip.
    earliest: Duration,
    /// The number of slots at which the next search is due. It doubles what a search left, so the searches cost each new record a
    /// constant share.
    search_at: usize,
}

struct Slot {
    record: Record,
    /// When the record changes by itself, by the store's clock.
    expires: Duration,
    /// For a committed one: how long after that it stays as done.
    then_done: Duration,
}

impl MemoryStore {
    /// A store for up to a million records.
    pub fn new() -> Self {
        Self::with_capacity(DEFAULT_CAPACITY)
    }

    /// A store for up to `capacity` records. With 0, every claim of a new key fails.
    pub fn with_capacity(capacity: usize) -> Self {
        Self::build(capacity, Box::new(TokioClock::new()))
    }

    /// A store for up to a million records with a clock of your own: for tests that move time.
    pub fn with_clock(clock: impl Clock) -> Self {
        Self::build(DEFAULT_CAPACITY, Box::new(clock))
    }

    /// How many records it holds, those that have expired and were not yet found included.
    pub fn len(&self) -> usize {
        self.0.len.load(Ordering::Relaxed)
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn build(capacity: usize, clock: Box<dyn Clock>) -> Self {
        Self(Arc::new(Inner {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            capacity,
            len: AtomicUsize::new(0),
            clock,
        }))
    }

    /// How many records somebody waits for.
    #[cfg(all(test, shuttle))]
    pub(crate) fn waiting(&self) -> usize {
        self.0.shards.iter().map(|shard| lock(shard).waiters.len()).sum()
    }

    /// Runs one atomic step on the record of an id.
    fn step<T>(&self, id: &RecordId, step: impl FnOnce(&mut Step<'_>) -> T) -> T {
        let mut shard = self.shard(id);
        step(&mut Step { store: &self.0, shard: &mut shard, id, now: self.0.clock.elapsed() })
    }

    fn shard(&self, id: &RecordId) -> MutexGuard<'_, Shard> {
        // The upper half: the map inside uses its own hash, and the lower bits would serve as well.
        let index = usize::try_from(self.0.hasher.hash_one(id) >> 32).unwrap_or_default() % SHARDS;
        lock(&self.0.shards[index])
    }

    /// Whether the record is in flight under this attempt, and its lease alive.
    fn is_alive(&self, id: &RecordId, attempt: u64) -> bool {
        self.step(id, |step| {
            step.find().is_some_and(|(record, left)| record.attempt() == attempt && record.lease_left(left).is_some())
        })
    }

    /// Makes room by dropping what has expired, shard by shard.
    fn drop_expired(&self) {
        let now = self.0.clock.elapsed();
        for shard in &self.0.shards {
            let mut shard = lock(shard);
            if shard.earliest <= now {
                shard.drop_expired(now, &self.0.len);
            }
        }
    }

    fn try_claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.step(&claim.id, |step| {
            let Some((record, left)) = step.find() else {
                step.insert(Record::InFlight(claim.in_flight(1, Origin::Nothing)), claim.hold)?;
                return Ok(Claimed::Owned { attempt: 1, from: Origin::Nothing });
            };
            let next = match record.on_claim(claim) {
                OnClaim::Answer(answer) => return Ok(answer),
                OnClaim::Take(next) => next,
                OnClaim::IfLeaseRanOut { attempt, then } => {
                    if let Some(lease_left) = record.lease_left(left) {
                        return Ok(Claimed::InFlight { attempt, lease_left });
                    }
                    match then {
                        RanOut::Answer(answer) => return Ok(answer),
                        RanOut::Take(next) => next,
                    }
                }
            };
            let owned = Claimed::Owned { attempt: next.attempt, from: next.origin };
            step.put(Record::InFlight(next), claim.hold, Duration::ZERO);
            Ok(owned)
        })
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("len", &self.len()).field("capacity", &self.0.capacity).finish()
    }
}

impl Store for MemoryStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let answer = self.try_claim(claim);
        if answer.is_err() {
            // Full. What has expired elsewhere makes room.
            self.drop_expired();
            return self.try_claim(claim);
        }
        answer
    }

    async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
        Ok(self.step(&commit.id, |step| {
            let on_commit = step.find().map(|(record, _)| record.on_commit(commit));
            step.carry_out(on_commit, Waking::Wakes)
        }))
    }

    async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
        Ok(self.step(&release.id, |step| {
            let on_release = step.find().map(|(record, _)| record.on_release(release));
            step.carry_out(on_release, Waking::Wakes)
        }))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        let renew = |renewal: &Renewal| {
            self.step(&renewal.id, |step| {
                let on_renew = step.find().map(|(record, _)| record.on_renew(renewal));
                step.carry_out(on_renew, Waking::LeavesWaiting)
            })
        };
        renewals.iter().map(|renewal| Ok(renew(renewal))).collect()
    }

    async fn wait(&self, id: &RecordId, attempt: u64, limit: Duration) -> Result<(), StoreError> {
        if !self.is_alive(id, attempt) {
            return Ok(());
        }
        let waiting = Waiting::new(self, id);
        // Then looked at again: a commit or release from here on wakes this waiter, polled or not; one before is seen now.
        let notified = waiting.notify.notified();
        if self.is_alive(id, attempt) {
            let _ = tokio::time::timeout(limit, notified).await;
        }
        Ok(())
    }

    async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        Ok(self.step(id, |step| step.find().map(|(record, left)| RecordInfo::new(record, left))))
    }

    async fn remove(&self, id: &RecordId) -> Result<Removed, StoreError> {
        Ok(self.step(id, |step| {
            let Some((record, left)) = step.find() else { return Removed::Nothing };
            let removed = record.on_remove(left);
            if removed == Removed::Removed {
                step.remove();
            }
            removed
        }))
    }
}

/// Whether a step tells those who wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waking {
    /// Where it changes the record.
    Wakes,
    /// They wait on.
    LeavesWaiting,
}

/// One atomic step: the lock is held.
struct Step<'a> {
    store: &'a Inner,
    shard: &'a mut Shard,
    id: &'a RecordId,
    now: Duration,
}

impl Step<'_> {
    /// The record as it is now, and the time until it changes by itself.
    fn find(&mut self) -> Option<(&mut Record, Duration)> {
        let Entry::Occupied(mut entry) = self.shard.slots.entry(self.id.clone()) else { return None };
        if entry.get_mut().pass(self.now) {
            entry.remove();
            self.store.len.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let slot = entry.into_mut();
        let left = slot.expires.saturating_sub(self.now);
        Some((&mut slot.record, left))
    }

    fn insert(&mut self, record: Record, expires_in: Duration) -> Result<(), StoreError> {
        if self.shard.slots.len() >= self.shard.search_at {
            self.shard.drop_expired(self.now, &self.store.len);
        }
        let capacity = self.store.capacity;
        self.store
            .len
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |len| (len < capacity).then(|| len + 1))
            .map_err(|_| full(capacity))?;
        self.put(record, expires_in, Duration::ZERO);
        Ok(())
    }

    /// Writes what a step of an owner makes of the record, `None` where there is none.
    fn carry_out(&mut self, on_step: Option<OnStep>, waking: Waking) -> Ownership {
        match on_step {
            None => return Ownership::Lost,
            Some(OnStep::Answer(answer)) => return answer,
            Some(OnStep::Put { record, expires_in, then_done }) => {
                let expires_in = expires_in.or_else(|| self.find().map(|(_, left)| left)).unwrap_or_default();
                self.put(record, expires_in, then_done);
            }
            Some(OnStep::Remove) => self.remove(),
        }
        if waking == Waking::Wakes {
            self.wake();
        }
        Ownership::Held
    }

    fn put(&mut self, record: Record, expires_in: Duration, then_done: Duration) {
        let expires = self.now.saturating_add(expires_in);
        self.shard.earliest = self.shard.earliest.min(expires);
        self.shard.slots.insert(self.id.clone(), Slot { record, expires, then_done });
    }

    fn remove(&mut self) {
        if self.shard.slots.remove(self.id).is_some() {
            self.store.len.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn wake(&mut self) {
        if let Some(waiters) = self.shard.waiters.remove(self.id) {
            waiters.notify.notify_waiters();
        }
    }
}

impl Shard {
    fn drop_expired(&mut self, now: Duration, len: &AtomicUsize) {
        let before = self.slots.len();
        self.slots.retain(|_, slot| !slot.pass(now));
        len.fetch_sub(before - self.slots.len(), Ordering::Relaxed);
        self.earliest = self.slots.values().map(|slot| slot.expires).min().unwrap_or(Duration::MAX);
        self.search_at = (self.slots.len() * 2).max(64);
    }
}

impl Slot {
    /// Lets the time pass: what has expired becomes done, or is over, which is said by `true`.
    fn pass(&mut self, now: Duration) -> bool {
        if now < self.expires {
            return false;
        }
        if let Some(expired) = self.record.expired() {
            self.record = expired;
            self.expires = self.expires.saturating_add(self.then_done);
        }
        now >= self.expires
    }
}

/// A waiter's place. The last one to leave takes the place away.
struct Waiting<'a> {
    store: &'a MemoryStore,
    id: &'a RecordId,
    notify: Arc<Notify>,
}

/// Those who wait for one record. Counted by hand, under the lock, because a count of pointers goes down only after it.
#[derive(Default)]
struct Waiters {
    notify: Arc<Notify>,
    count: usize,
}

impl<'a> Waiting<'a> {
    fn new(store: &'a MemoryStore, id: &'a RecordId) -> Self {
        let mut shard = store.shard(id);
        let waiters = shard.waiters.entry(id.clone()).or_default();
        waiters.count += 1;
        Self { store, id, notify: waiters.notify.clone() }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = self.store.shard(self.id).waiters.entry(self.id.clone()) {
            // Others may wait there by now, if these were woken.
            let waiters = entry.get_mut();
            if Arc::ptr_eq(&waiters.notify, &self.notify) {
                waiters.count -= 1;
                if waiters.count == 0 {
                    entry.remove();
                }
            }
        }
    }
}

fn full(capacity: usize) -> StoreError {
    StoreError::new(
        StoreErrorKind::Full,
        format!(
            "the memory store is full: it holds {capacity} records that are still kept; make it larger (`MemoryStore::with_capacity`) or `ttl` shorter"
        ),
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under the lock could come from a user's clock alone, before anything was changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
