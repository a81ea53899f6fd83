//! Outcomes that this process has committed, kept in its memory too, so that a duplicate of such a
//! call needs no round trip.
//!
//! The store still decides: it confirmed every entry here. An entry serves no call with another
//! fingerprint, and is dropped before the store can forget it. Its time begins before the commit
//! was sent, and is nine tenths of the retention, so that the rates of the two clocks may differ,
//! as for a lease. The cache does not notice if another process forgets the record.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::{Arc, PoisonError};

use futures_util::future::{BoxFuture, Either, FutureExt as _};
use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use tokio::time::Instant;

use crate::adapter::engine::sync::{Mutex, MutexGuard};
use crate::adapter::engine::{AnyStore, DynStore, FirstSent, StepAnswer, clock, reserved};
use crate::record::{Commit, Encoded, Ownership, RecordId, Removed};
use crate::{Builder, Fingerprint, StoreError};

/// The largest outcome that is cached. The cache limits the number of its entries, so this limits
/// its memory.
const MAX_BYTES: usize = 64 << 10;
const STRIPES: usize = 32;

impl Builder {
    /// Also keeps up to `max_entries` of this process's own outcomes in memory. A duplicate in the
    /// same process then gets its answer without asking the store. Default: 0, none.
    ///
    /// An outcome stays in the cache for at most nine tenths of its `ttl`. Outcomes above 64 KiB
    /// are not cached, nor are those of other processes, because this process does not know their
    /// age. Fingerprints are compared as always.
    ///
    /// If *another* runtime, here or in another process, [forgets](crate::Operation::forget) a
    /// record, or it is removed from the store by hand, it stays known here: duplicates get the old
    /// outcome until its time is over. If a store loses confirmed records (a restart without its
    /// data, a failover), this process still replays outcomes that others would run again. A
    /// [`MemoryStore`](crate::MemoryStore) is in the process already and needs no cache.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # fn example(store: impl idem::Store) {
    /// let idempotency = idem::Idempotency::builder(store).local_cache(100_000).build();
    /// # }
    /// ```
    #[must_use]
    pub fn local_cache(mut self, max_entries: usize) -> Self {
        let is_wanted = max_entries > 0 && !self.store.is_local();
        let cached = is_wanted.then(|| Cached::new(self.store.clone(), max_entries));
        self.wrap(
            "local_cache",
            cached.map(|cached| Arc::new(cached) as AnyStore),
        );
        self
    }
}

/// A store, and the outcomes that were committed through it. Steps, locks and the trail have no
/// entries: another process may remove a step, and the others have no outcomes that are replayed.
struct Cached {
    inside: Arc<dyn DynStore>,
    entries: Cache<RecordId, CachedOutcome, UnitWeighter, RandomState>,
    /// For each part of the keys, how many records this process has removed. A commit that was
    /// under way during a removal finds another number, and leaves no entry. Locked while an entry
    /// is added or removed.
    removals: [Mutex<u64>; STRIPES],
    hasher: RandomState,
}

impl DynStore for Cached {
    fn inside(&self) -> &dyn DynStore {
        &*self.inside
    }

    fn commit(
        &self,
        commit: Commit,
        first_sent: &mut Option<FirstSent>,
    ) -> StepAnswer<'_, Ownership> {
        if reserved(commit.id.operation()).is_some() {
            return self.inside.commit(commit, first_sent);
        }
        let sent = *first_sent.get_or_insert_with(|| self.sending(&commit.id));
        let sending = self.inside.commit(commit.clone(), first_sent);
        let answered = async move {
            let answer = sending.await;
            if let Ok(Ownership::Held) = answer {
                self.committed(sent, commit);
            }
            answer
        };
        Either::Right(answered.boxed())
    }

    fn remove<'a>(&'a self, id: &'a RecordId) -> BoxFuture<'a, Result<Removed, StoreError>> {
        if reserved(id.operation()).is_some() {
            return self.inside.remove(id);
        }
        async move {
            let _removing = self.removing(id);
            self.inside.remove(id).await
        }
        .boxed()
    }

    fn known(
        &self,
        id: &RecordId,
        fingerprint: Option<Fingerprint>,
        now: Instant,
    ) -> Option<(u64, Encoded)> {
        let entry = self.entries.get(id)?;
        if now >= entry.until {
            self.entries.remove_if(id, |entry| now >= entry.until);
            return None;
        }
        // The store reports a mismatch, not the cache.
        let differs =
            matches!((entry.fingerprint, fingerprint), (Some(one), Some(two)) if one != two);
        (!differs).then_some((entry.attempt, entry.outcome))
    }

    fn forget_known(&self, id: &RecordId) {
        let mut removals = self.removals(id);
        *removals += 1;
        self.entries.remove(id);
    }
}

#[derive(Clone)]
struct CachedOutcome {
    fingerprint: Option<Fingerprint>,
    attempt: u64,
    outcome: Encoded,
    until: Instant,
}

impl Cached {
    fn new(inside: Arc<dyn DynStore>, max_entries: usize) -> Self {
        let expected = max_entries.min(1 << 10);
        let most = u64::try_from(max_entries).unwrap_or(u64::MAX);
        let hasher = RandomState::new();
        let lifecycle = DefaultLifecycle::default();
        let entries = Cache::with(expected, most, UnitWeighter, hasher, lifecycle);
        Self {
            inside,
            entries,
            removals: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
        }
    }

    /// Notes that a commit is about to be sent.
    fn sending(&self, id: &RecordId) -> FirstSent {
        FirstSent {
            at: clock::now(),
            mark: *self.removals(id),
        }
    }

    /// Adds the outcome of a commit that the store has accepted.
    fn committed(&self, sent: FirstSent, commit: Commit) {
        let is_small = |outcome: &Encoded| outcome.payload.len() <= MAX_BYTES;
        let Some(outcome) = commit.outcome.filter(is_small) else {
            return;
        };
        let entry = CachedOutcome {
            fingerprint: commit.fingerprint,
            attempt: commit.attempt,
            outcome,
            until: clock::after(sent.at, (commit.ttl / 10).saturating_mul(9)),
        };
        let removals = self.removals(&commit.id);
        // Compares the count before it adds the entry: a call that began after the removal must not
        // find the entry in between.
        if *removals == sent.mark {
            self.entries.insert(commit.id, entry);
        }
    }

    /// Forgets a record that is about to be removed from the store. It is forgotten again when the
    /// removal is over, because the store may carry the removal out even if its reply is lost.
    fn removing<'a>(&'a self, id: &'a RecordId) -> Removing<'a> {
        self.forget_known(id);
        Removing { cache: self, id }
    }

    fn removals(&self, id: &RecordId) -> MutexGuard<'_, u64> {
        let stripe = usize::try_from(self.hasher.hash_one(id)).unwrap_or_default() % STRIPES;
        self.removals[stripe]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A removal that is under way.
struct Removing<'a> {
    cache: &'a Cached,
    id: &'a RecordId,
}

impl Drop for Removing<'_> {
    fn drop(&mut self) {
        self.cache.forget_known(self.id);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use std::time::Duration;

    use super::*;
    use crate::record::{Claim, Claimed, CodecId, Owner};
    use crate::store::StoreHandle;
    use crate::{Idempotency, Key, MemoryStore};

    const TTL: Duration = Duration::from_secs(100);

    fn id(key: u64) -> RecordId {
        RecordId::new("orders", &Key::encode(&key).unwrap()).unwrap()
    }

    fn outcome(payload: impl Into<Bytes>) -> Encoded {
        Encoded {
            is_error: false,
            codec: CodecId::JSON,
            payload: payload.into(),
            metadata: None,
        }
    }

    #[test]
    fn a_second_layer_around_the_store_is_refused_when_the_runtime_is_built() {
        let mut builder = Idempotency::builder(remote()).local_cache(10);
        let another = builder.store.clone();
        builder.wrap("another", Some(another));
        let refused = builder.try_build().unwrap_err().to_string();
        assert!(refused.contains("`local_cache`"), "{refused}");
    }

    fn cached(max_entries: usize) -> Cached {
        Cached::new(Arc::new(MemoryStore::new()), max_entries)
    }

    /// A commit that the store has accepted.
    fn accepted(key: u64, payload: impl Into<Bytes>) -> Commit {
        Commit::new(id(key), Owner::NOBODY, 1, Some(outcome(payload)), TTL)
    }

    #[tokio::test(start_paused = true)]
    async fn an_outcome_is_gone_before_the_store_can_forget_it() {
        let cache = cached(10);
        let sending = cache.sending(&id(1));
        // The store took its time.
        tokio::time::advance(TTL / 2).await;
        cache.committed(sending, accepted(1, "1"));
        assert_eq!(
            cache.known(&id(1), None, clock::now()),
            Some((1, outcome("1")))
        );
        tokio::time::advance(TTL * 4 / 10).await;
        assert_eq!(cache.known(&id(1), None, clock::now()), None);
        assert_eq!(cache.entries.len(), 0);
    }

    #[tokio::test]
    async fn another_payload_does_not_get_it() {
        let cache = cached(10);
        let now = clock::now();
        let [one, two] = ["one", "two"].map(|value| Fingerprint::of(value).ok());
        let commit = accepted(1, "1").with_fingerprint(one);
        cache.committed(cache.sending(&id(1)), commit);
        assert_eq!(cache.known(&id(1), two, now), None);
        for fingerprint in [one, None] {
            assert_eq!(
                cache.known(&id(1), fingerprint, now),
                Some((1, outcome("1")))
            );
        }
    }

    #[tokio::test]
    async fn a_commit_that_was_under_way_during_a_removal_leaves_nothing_behind() {
        let cache = cached(10);
        let now = clock::now();
        let sending = cache.sending(&id(1));
        drop(cache.removing(&id(1)));
        cache.committed(sending, accepted(1, "1"));
        assert_eq!(cache.known(&id(1), None, now), None);
        cache.committed(cache.sending(&id(1)), accepted(1, "1"));
        drop(cache.removing(&id(1)));
        assert_eq!(cache.known(&id(1), None, now), None);
    }

    #[tokio::test]
    async fn a_commit_that_is_sent_during_a_removal_leaves_nothing_behind() {
        let cache = cached(10);
        let now = clock::now();
        let id = id(1);
        let removing = cache.removing(&id);
        let sending = cache.sending(&id);
        drop(removing);
        cache.committed(sending, accepted(1, "1"));
        assert_eq!(cache.known(&id, None, now), None);
        let removing = cache.removing(&id);
        cache.committed(cache.sending(&id), accepted(1, "1"));
        drop(removing);
        assert_eq!(cache.known(&id, None, now), None);
    }

    #[tokio::test]
    async fn it_holds_no_more_than_it_may_and_nothing_that_is_large() {
        let cache = cached(100);
        let now = clock::now();
        for key in 0..10_000 {
            cache.committed(cache.sending(&id(key)), accepted(key, "1"));
        }
        let entries = cache.entries.len();
        assert!((1..=100).contains(&entries), "{entries}");
        let large = cached(100);
        let largest = outcome(vec![b'1'; MAX_BYTES]);
        large.committed(large.sending(&id(2)), accepted(2, largest.payload.clone()));
        assert_eq!(large.known(&id(2), None, now), Some((1, largest)));
        let too_large = vec![b'1'; MAX_BYTES + 1];
        large.committed(large.sending(&id(1)), accepted(1, too_large));
        assert_eq!(large.entries.len(), 1);
        // Even the largest size does not allocate all memory at once.
        let _ = cached(usize::MAX);
    }

    /// A store whose records are reached like those of another process.
    fn remote() -> StoreHandle {
        StoreHandle::new(MemoryStore::new())
    }

    fn store(builder: Builder) -> AnyStore {
        let runtime = builder.build().runtime.unwrap();
        runtime.store.clone()
    }

    async fn commit(store: &AnyStore, id: &RecordId) -> Commit {
        let owner = Owner::generate();
        let claimed = store.claim(Claim::new(id.clone(), owner, TTL, TTL)).await;
        assert!(matches!(claimed, Ok(Claimed::Owned { .. })), "{claimed:?}");
        Commit::new(id.clone(), owner, 1, Some(outcome("1")), TTL)
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_that_is_sent_again_counts_from_its_first_time() {
        let store = store(Idempotency::builder(remote()).local_cache(10));
        let commit = commit(&store, &id(1)).await;
        let mut first_sent = None;
        let began = clock::now();
        for _ in 0..2 {
            let answer = store.commit(commit.clone(), &mut first_sent).await;
            assert_eq!(answer.unwrap(), Ownership::Held);
            tokio::time::advance(TTL / 2).await;
        }
        let known = |at| store.known(&id(1), None, clock::after(began, at));
        assert_eq!(known(TTL * 8 / 10), Some((1, outcome("1"))));
        assert_eq!(known(TTL * 9 / 10), None);
    }

    #[tokio::test]
    async fn records_of_the_library_itself_leave_no_entry() {
        let store = store(Idempotency::builder(remote()).local_cache(10));
        for (operation, is_known) in [
            ("orders", true),
            ("idem.audit", false),
            ("idem.lock/orders", false),
            ("idem.step/orders/charge", false),
        ] {
            let id = RecordId::new(operation, &Key::encode("k").unwrap()).unwrap();
            let commit = commit(&store, &id).await;
            let answer = store.commit(commit, &mut None).await;
            assert_eq!(answer.unwrap(), Ownership::Held);
            let known = store.known(&id, None, clock::now());
            assert_eq!(known.is_some(), is_known, "{operation}");
        }
    }

    #[tokio::test]
    async fn what_is_removed_or_forgotten_is_not_known_any_more() {
        let store = store(Idempotency::builder(remote()).local_cache(10));
        for removes in [true, false] {
            let commit = commit(&store, &id(1)).await;
            store.commit(commit, &mut None).await.unwrap();
            assert!(store.known(&id(1), None, clock::now()).is_some());
            if removes {
                assert_eq!(store.remove(&id(1)).await.unwrap(), Removed::Removed);
            } else {
                store.forget_known(&id(1));
            }
            assert_eq!(store.known(&id(1), None, clock::now()), None);
        }
    }

    #[tokio::test]
    async fn the_last_number_of_entries_holds_and_the_store_inside_is_still_found() {
        for (numbers, is_known) in [([10, 0], false), ([0, 10], true)] {
            let builder = Idempotency::builder(remote());
            let store = store(numbers.into_iter().fold(builder, Builder::local_cache));
            assert!(store.downcast::<MemoryStore>().is_some());
            let commit = commit(&store, &id(1)).await;
            store.commit(commit, &mut None).await.unwrap();
            let known = store.known(&id(1), None, clock::now());
            assert_eq!(known.is_some(), is_known, "{numbers:?}");
        }
    }
}

/// A commit, a removal and a duplicate of one key at once, under many schedules.
#[cfg(all(test, shuttle))]
mod explored {
    use shuttle::thread;

    use super::*;
    use crate::MemoryStore;
    use crate::base::sync::atomic::{AtomicBool, Ordering};
    use crate::explored::{at_once, claim, commit, explore, id};

    /// A call that begins after the removal never gets the outcome from before it.
    #[test]
    fn cache_gives_no_outcome_that_was_removed_before_the_call_began() {
        explore(|| {
            let cache = Arc::new(Cached::new(Arc::new(MemoryStore::new()), 10));
            let stored = Arc::new(AtomicBool::new(false));
            let removed = Arc::new(AtomicBool::new(false));
            let committing = cache.clone();
            let removing = cache.clone();
            let calling = cache.clone();
            let stores = stored.clone();
            let takes = stored.clone();
            let says = removed.clone();
            let sees = removed;
            let futures: [std::pin::Pin<Box<dyn Future<Output = ()> + Send>>; 3] = [
                Box::pin(async move {
                    let sending = committing.sending(&id("k"));
                    thread::yield_now();
                    stores.store(true, Ordering::SeqCst);
                    // The reply takes its time.
                    thread::yield_now();
                    committing.committed(sending, commit(&claim("k"), 1));
                }),
                Box::pin(async move {
                    let id = id("k");
                    let under_way = removing.removing(&id);
                    thread::yield_now();
                    let was_there = takes.swap(false, Ordering::SeqCst);
                    thread::yield_now();
                    drop(under_way);
                    says.store(was_there, Ordering::SeqCst);
                }),
                Box::pin(async move {
                    for _ in 0..3 {
                        let is_removed = sees.load(Ordering::SeqCst);
                        let found = calling.known(&id("k"), None, clock::now());
                        assert!(
                            !is_removed || found.is_none(),
                            "an outcome that was removed"
                        );
                        thread::yield_now();
                    }
                }),
            ];
            at_once(futures);
            let found = cache.known(&id("k"), None, clock::now());
            assert!(
                stored.load(Ordering::SeqCst) || found.is_none(),
                "it stays for calls to come"
            );
        });
    }
}
