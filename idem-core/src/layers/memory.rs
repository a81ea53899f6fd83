//! The store inside the process.

mod in_process;
pub(crate) mod shard;
pub(crate) mod step;
mod sweeper;
#[cfg(test)]
mod tests;
mod waiting;

use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use self::in_process::InProcess;
use self::shard::{Shard, Target};
use self::step::LockedStep;
use self::sweeper::{NEVER, Sweeper, nanos};
use self::waiting::{Waiter, Waiters};
use crate::adapter::engine::clock::TokioClock;
use crate::adapter::engine::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::adapter::engine::sync::{Mutex, MutexGuard};
use crate::record::{
    Claim, Claimed, Commit, Issue, Issued, OnClaim, Ownership, Record, RecordId, RecordInfo,
    Release, Removed, Renewal,
};
use crate::store::{Clock, Store, StoreHandle};
use crate::{StoreError, StoreErrorKind};

const DEFAULT_CAPACITY: usize = 1_000_000;

/// The minimum number of records that share a lock and a table when the store is full. Only one
/// shard at a time grows its table or sweeps expired records, so that this stays short.
const RECORDS_A_SHARD: usize = 512;
/// Enough that threads seldom wait for each other. (The explorer wants them to.)
const FEWEST_SHARDS: usize = if cfg!(all(test, shuttle)) { 2 } else { 32 };
/// An empty shard takes some 100 bytes, so even a store without a limit costs only a few megabytes.
const MOST_SHARDS: usize = if cfg!(all(test, shuttle)) {
    2
} else {
    32 * 1024
};
/// The most records that a claim of a new key looks at in a full store, in search of expired ones.
const MOST_LOOKED_AT: usize = 2048;

/// Keeps records in the process: to try things, for tests, and for services of one process.
///
/// Nothing survives the process, so neither does any promise. It holds at most its capacity of
/// records, by default a million, and refuses new keys when it is full. It never evicts a record
/// that it promised to keep.
///
/// Cheap to clone; clones share their records.
///
/// # Memory
///
/// A record takes 250 to 310 bytes besides its operation, key and outcome. That includes the
/// allocator and the tables. An outcome keeps the allocation that its codec made, its spare part
/// included. (JSON of up to two kilobytes has none.)
///
/// # Time
///
/// A record that has expired is invisible at once. Its memory is freed within some seconds by a
/// thread of the store, `idem-sweeper`. The thread starts with the first record, sleeps until one
/// expires, and ends when no record is left that will expire, or with the store. It frees a million
/// records in two to four seconds, and holds one lock at a time, to take out the thousand or so
/// records that the lock guards; it frees them without the lock.
///
/// Freed memory goes back to the allocator, which may keep it for later: the resident memory of a
/// process over glibc's shrinks by half at most after a million records. Once, an allocation may
/// then take some ten milliseconds, because glibc joins the blocks that were freed.
///
/// New keys help: each pays for a look at three records. A full store looks at no more than some
/// two thousand records before it refuses a new key, and at none if none has expired. A store [with
/// a clock of your own](Self::with_clock) has no thread.
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
pub struct MemoryStore(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) shards: Box<[Mutex<Locked>]>,
    /// For each shard, a time before which none of its records changes by itself. Written under the
    /// shard's lock, read without it.
    due: Box<[AtomicU64]>,
    sweeper: Option<Arc<Sweeper>>,
    /// Seeded at random, because clients choose keys and could make them collide.
    hasher: RandomState,
    room: Room,
    pub(crate) clock: Box<dyn Clock>,
}

/// The data behind a lock.
#[derive(Default)]
pub(crate) struct Locked {
    pub(crate) records: Shard,
    pub(crate) waiters: Waiters,
}

/// How many records all shards have. It has a cache line of its own: only steps that add or remove
/// a record write it, and all other steps read its neighbours.
#[repr(align(128))]
pub(crate) struct Room {
    capacity: usize,
    len: AtomicUsize,
}

impl Room {
    /// Takes room for one record. There is one counter for all shards, so that the store accepts
    /// records until it is full, whichever shard they belong to.
    fn take(&self) -> Result<(), StoreError> {
        let capacity = self.capacity;
        self.len
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |len| {
                (len < capacity).then(|| len + 1)
            })
            .map_or_else(|_| Err(full(capacity)), |_| Ok(()))
    }

    fn free(&self, count: usize) {
        if count > 0 {
            self.len.fetch_sub(count, Ordering::Relaxed);
        }
    }
}

impl MemoryStore {
    /// A store for up to a million records.
    pub fn new() -> Self {
        Self::with_capacity(DEFAULT_CAPACITY)
    }

    /// A store for up to `capacity` records. With 0, every claim of a new key fails.
    pub fn with_capacity(capacity: usize) -> Self {
        // The explorer of schedules controls only its own threads.
        let sweeper = (!cfg!(all(test, shuttle))).then(Sweeper::new);
        Self::build(capacity, Box::new(TokioClock::new()), sweeper)
    }

    /// A store for up to a million records with a clock of your own: for tests that move time. Only
    /// calls free what has expired.
    pub fn with_clock(clock: impl Clock) -> Self {
        Self::build(DEFAULT_CAPACITY, Box::new(clock), None)
    }

    /// How many records it holds, those that have expired and were not yet found included.
    pub fn len(&self) -> usize {
        self.0.room.len.load(Ordering::Relaxed)
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn build(capacity: usize, clock: Box<dyn Clock>, sweeper: Option<Arc<Sweeper>>) -> Self {
        let shards = 1
            << (capacity / RECORDS_A_SHARD)
                .clamp(FEWEST_SHARDS, MOST_SHARDS)
                .ilog2();
        Self::with_shards(shards, capacity, clock, sweeper)
    }

    /// With so many shards, a power of two.
    fn with_shards(
        shards: usize,
        capacity: usize,
        clock: Box<dyn Clock>,
        sweeper: Option<Arc<Sweeper>>,
    ) -> Self {
        let room = Room {
            capacity,
            len: AtomicUsize::new(0),
        };
        Self(Arc::new(Inner {
            shards: std::iter::repeat_with(Mutex::default)
                .take(shards)
                .collect(),
            due: std::iter::repeat_with(|| AtomicU64::new(NEVER))
                .take(shards)
                .collect(),
            sweeper,
            hasher: RandomState::new(),
            room,
            clock,
        }))
    }

    /// Runs one atomic step on the record of an id.
    pub(crate) fn step<T>(&self, id: &RecordId, step: impl FnOnce(&mut LockedStep<'_>) -> T) -> T {
        let room = &self.0.room;
        let hash = self.0.hash(id);
        let index = self.shard(hash);
        let mut locked = lock(&self.0.shards[index]);
        let target = Target {
            id,
            hash,
            now: self.0.clock.elapsed(),
        };
        let answer = step(&mut LockedStep {
            room,
            locked: &mut locked,
            target,
            place: None,
        });
        let taken = locked.records.tend(target.now, room);
        let earlier = self.0.publish(index, &locked.records);
        drop(locked);
        drop(taken);
        if let (Some(due), Some(sweeper)) = (earlier, &self.0.sweeper)
            && sweeper.is_late_for(due)
        {
            sweeper.call(&self.0);
        }
        answer
    }

    fn locked(&self, hash: u64) -> MutexGuard<'_, Locked> {
        lock(&self.0.shards[self.shard(hash)])
    }

    fn shard(&self, hash: u64) -> usize {
        // The shard's table uses the lowest and the highest bits.
        usize::try_from(hash >> 32 & u64::from(u16::MAX)).unwrap_or_default()
            & (self.0.shards.len() - 1)
    }

    /// Whether the record is in flight under this attempt, and its lease alive.
    fn is_alive(&self, id: &RecordId, attempt: u64) -> bool {
        self.step(id, |step| {
            step.find().is_some_and(|(record, left)| {
                record.attempt() == attempt && record.lease_left(left).is_some()
            })
        })
    }

    /// Claims without a future, which would be made and moved only to be polled once.
    fn claim_now(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.try_claim(claim)
            .or_else(|full| self.when_full(&claim.id, full, || self.try_claim(claim)))
    }

    fn commit_now(&self, commit: &Commit) -> Ownership {
        self.step(&commit.id, |step| {
            step.end_lease(|record| record.on_commit(commit))
        })
    }

    fn release_now(&self, release: &Release) -> Ownership {
        self.step(&release.id, |step| {
            step.end_lease(|record| record.on_release(release))
        })
    }

    fn try_claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.step(&claim.id, |step| {
            let (on_claim, left, (lease_left, age)) = if let Some((record, left)) = step.find() {
                let times = (record.lease_left(left), record.lease_age(left));
                (record.on_claim(claim), left, times)
            } else {
                let on_nothing = claim.on_nothing();
                if matches!(on_nothing, OnClaim::Take(_)) {
                    step.room.take()?;
                }
                (on_nothing, Duration::ZERO, (None, Duration::ZERO))
            };
            let next = match on_claim {
                OnClaim::Answer(answer) => return Ok(answer),
                OnClaim::Take(next) => next,
                OnClaim::IfIssueLives { grace, .. } if left <= grace => {
                    return Ok(Claimed::IssueExpired);
                }
                OnClaim::IfIssueLives { then, .. } => then,
                OnClaim::IfLeaseRanOut { attempt, then } => {
                    if let Some(lease_left) = lease_left {
                        return Ok(Claimed::InFlight {
                            attempt,
                            lease_left,
                        });
                    }
                    match then.at_age(age) {
                        Ok(next) => next,
                        Err(answer) => return Ok(answer),
                    }
                }
            };
            let owned = Claimed::Owned {
                attempt: next.attempt,
                from: next.origin,
            };
            let hold = next.hold;
            step.put(Record::InFlight(next), hold, Duration::ZERO);
            Ok(owned)
        })
    }

    fn try_issue(&self, issue: &Issue) -> Result<Issued, StoreError> {
        self.step(&issue.id, |step| {
            if let Some((record, _)) = step.find() {
                return Ok(record.on_issue(issue));
            }
            step.room.take()?;
            step.put(issue.record(), issue.expires_in(), Duration::ZERO);
            Ok(Issued::Issued)
        })
    }

    /// Looks for an expired record from shard to shard, and adds the new record when one has made
    /// room.
    fn when_full<T>(
        &self,
        id: &RecordId,
        full: StoreError,
        add: impl Fn() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let now = self.0.clock.elapsed();
        let first = self.shard(self.0.hash(id));
        let mut looked_at = 0;
        for shard in (first..self.0.shards.len()).chain(0..first) {
            if !self.0.is_due(shard, now) {
                continue;
            }
            let swept = self.0.sweep(shard, now);
            // Runs after the lock is released, because the record may belong to another shard.
            if swept.dropped > 0
                && let Ok(added) = add()
            {
                return Ok(added);
            }
            looked_at += swept.looked_at;
            if looked_at >= MOST_LOOKED_AT {
                break;
            }
        }
        Err(full)
    }
}

/// The work of sweeps so far.
#[derive(Default)]
struct Swept {
    looked_at: usize,
    dropped: usize,
}

impl Inner {
    fn hash(&self, id: &RecordId) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(id.as_str().as_bytes());
        hasher.finish()
    }

    /// Publishes when the shard changes next by itself. The caller holds its lock. Returns the time
    /// if it is earlier than before.
    fn publish(&self, shard: usize, records: &Shard) -> Option<u64> {
        let due = nanos(records.earliest());
        let published = &self.due[shard];
        let before = published.load(Ordering::Relaxed);
        if due != before {
            published.store(due, Ordering::SeqCst);
        }
        (due < before).then_some(due)
    }

    fn is_due(&self, shard: usize, now: Duration) -> bool {
        self.due[shard].load(Ordering::Relaxed) <= nanos(now)
    }

    /// Drops what has expired in a shard.
    fn sweep(&self, shard: usize, now: Duration) -> Swept {
        let mut locked = lock(&self.shards[shard]);
        let looked_at = locked.records.count();
        let taken = locked.records.sweep(now, &self.room);
        self.publish(shard, &locked.records);
        drop(locked);
        Swept {
            looked_at,
            dropped: taken.count(),
        }
    }

    /// Sweeps up to `most` shards that are due, beginning with `from`. Returns where to continue,
    /// if more may be due.
    fn sweep_due(&self, from: usize, most: usize, all: &mut Swept) -> Option<usize> {
        let now = self.clock.elapsed();
        let due = (from..self.shards.len()).filter(|shard| self.is_due(*shard, now));
        let swept = due.take(most).map(|shard| {
            let swept = self.sweep(shard, now);
            all.looked_at += swept.looked_at;
            all.dropped += swept.dropped;
            shard + 1
        });
        swept.last()
    }

    /// When the first record changes by itself.
    fn next_due(&self) -> u64 {
        self.due
            .iter()
            .map(|due| due.load(Ordering::SeqCst))
            .min()
            .unwrap_or(NEVER)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(sweeper) = &self.sweeper {
            sweeper.end();
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("len", &self.len())
            .field("capacity", &self.0.room.capacity)
            .finish()
    }
}

impl Store for MemoryStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.claim_now(claim)
    }

    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        let issue = |issue: &Issue| {
            self.try_issue(issue)
                .or_else(|full| self.when_full(&issue.id, full, || self.try_issue(issue)))
        };
        issues.iter().map(issue).collect()
    }

    async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
        Ok(self.commit_now(commit))
    }

    async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
        Ok(self.release_now(release))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        let renew = |renewal: &Renewal| {
            self.step(&renewal.id, |step| {
                step.carry_out(|record| record.on_renew(renewal))
            })
        };
        renewals.iter().map(|renewal| Ok(renew(renewal))).collect()
    }

    async fn wait(&self, id: &RecordId, attempt: u64, limit: Duration) -> Result<(), StoreError> {
        if !self.is_alive(id, attempt) {
            return Ok(());
        }
        let waiting = Waiter::new(self, id);
        // Subscribes, and then looks again. An earlier commit or release is seen by the look, and a
        // later one wakes this waiter.
        let notified = waiting.notify.notified();
        if self.is_alive(id, attempt) {
            let _ = tokio::time::timeout(limit, notified).await;
        }
        Ok(())
    }

    async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        Ok(self.step(id, |step| {
            step.find()
                .map(|(record, left)| RecordInfo::new(record, left))
        }))
    }

    async fn remove(&self, id: &RecordId) -> Result<Removed, StoreError> {
        Ok(self.step(id, |step| {
            let Some((record, left)) = step.find() else {
                return Removed::Nothing;
            };
            let removed = record.on_remove(left);
            if removed == Removed::Removed {
                step.remove();
            }
            removed
        }))
    }

    fn into_handle(self) -> StoreHandle {
        StoreHandle::from_dyn(InProcess(self))
    }
}

fn full(capacity: usize) -> StoreError {
    StoreError::new(
        StoreErrorKind::Full,
        format!(
            "the memory store is full: it holds {capacity} records that are still kept; make it \
             larger (`MemoryStore::with_capacity`) or `ttl` shorter"
        ),
    )
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(test)]
    tests::LOCKED.set(tests::LOCKED.get() + 1);
    // A poisoned lock is used on. Only the application's clock can panic under it, before anything
    // was changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, shuttle))]
mod hooks {
    use super::*;

    impl MemoryStore {
        /// Makes a store whose sweeper the explorer controls, with the clock of the test.
        pub(crate) fn swept(clock: impl Clock) -> Self {
            Self::build(DEFAULT_CAPACITY, Box::new(clock), Some(Sweeper::new()))
        }

        /// Tells the sweeper that the test's clock has moved.
        pub(crate) fn time_passes(&self) {
            if let Some(sweeper) = &self.0.sweeper {
                sweeper.time_is(nanos(self.0.clock.elapsed()));
            }
        }

        /// The number of records with waiters.
        pub(crate) fn waiting(&self) -> usize {
            self.0
                .shards
                .iter()
                .map(|shard| lock(shard).waiters.len())
                .sum()
        }
    }
}
