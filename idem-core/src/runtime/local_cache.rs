//! Outcomes that this process has committed, kept in its memory too, so that a duplicate of such a
//! call needs no round trip.
//!
//! The store still decides: it confirmed every entry here. An entry serves no call with another
//! fingerprint, and is dropped before the store can forget it. Its time begins before the commit
//! was sent, and is nine tenths of the retention, so that the rates of the two clocks may differ,
//! as for a lease. The cache does not notice if another process forgets the record.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::PoisonError;
use std::time::Duration;

use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use tokio::time::Instant;

use crate::base::clock;
use crate::base::sync::{Mutex, MutexGuard};
use crate::encoding::fingerprint::Fingerprint;
use crate::record::{Encoded, RecordId};

/// The largest outcome that is cached. The cache limits the number of its entries, so this limits
/// its memory.
const MAX_BYTES: usize = 64 << 10;
const STRIPES: usize = 32;

/// The cache of a runtime.
pub(crate) struct LocalCache {
    entries: Cache<RecordId, CachedOutcome, UnitWeighter, RandomState>,
    /// For each part of the keys, how many records this process has removed. A commit that was
    /// under way during a removal finds another number, and leaves no entry. Locked while an entry
    /// is added or removed.
    removals: [Mutex<u64>; STRIPES],
    hasher: RandomState,
}

#[derive(Clone)]
struct CachedOutcome {
    fingerprint: Option<Fingerprint>,
    attempt: u64,
    outcome: Encoded,
    until: Instant,
}

/// A commit that is about to be sent.
#[derive(Clone, Copy)]
pub(crate) struct Sending {
    at: Instant,
    removals: u64,
}

impl LocalCache {
    pub(crate) fn new(max_entries: usize) -> Self {
        let expected = max_entries.min(1 << 10);
        let most = u64::try_from(max_entries).unwrap_or(u64::MAX);
        let hasher = RandomState::new();
        let lifecycle = DefaultLifecycle::default();
        let entries = Cache::with(expected, most, UnitWeighter, hasher, lifecycle);
        Self {
            entries,
            removals: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
        }
    }

    /// Returns the outcome of a key and its attempt, for a call with this fingerprint.
    pub(crate) fn find(
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

    /// Notes that a commit is about to be sent.
    pub(crate) fn sending(&self, id: &RecordId) -> Sending {
        Sending {
            at: clock::now(),
            removals: *self.removals(id),
        }
    }

    /// Adds the outcome of a commit that the store has accepted.
    pub(crate) fn committed(
        &self,
        sending: Sending,
        id: &RecordId,
        fingerprint: Option<Fingerprint>,
        (attempt, outcome): (u64, &Encoded),
        ttl: Duration,
    ) {
        if outcome.payload.len() > MAX_BYTES {
            return;
        }
        let until = clock::after(sending.at, (ttl / 10).saturating_mul(9));
        let removals = self.removals(id);
        // Compares the count before it adds the entry: a call that began after the removal must not
        // find the entry in between.
        if *removals == sending.removals {
            let outcome = outcome.clone();
            self.entries.insert(
                id.clone(),
                CachedOutcome {
                    fingerprint,
                    attempt,
                    outcome,
                    until,
                },
            );
        }
    }

    /// Forgets a record that is about to be removed from the store. It is forgotten again when the
    /// removal is over, because the store may carry the removal out even if its reply is lost.
    pub(crate) fn removing<'a>(&'a self, id: &'a RecordId) -> Removing<'a> {
        self.forget(id);
        Removing { cache: self, id }
    }

    fn forget(&self, id: &RecordId) {
        let mut removals = self.removals(id);
        *removals += 1;
        self.entries.remove(id);
    }

    fn removals(&self, id: &RecordId) -> MutexGuard<'_, u64> {
        let stripe = usize::try_from(self.hasher.hash_one(id)).unwrap_or_default() % STRIPES;
        self.removals[stripe]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A removal that is under way.
pub(crate) struct Removing<'a> {
    cache: &'a LocalCache,
    id: &'a RecordId,
}

impl Drop for Removing<'_> {
    fn drop(&mut self) {
        self.cache.forget(self.id);
    }
}

impl fmt::Debug for LocalCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalCache")
            .field("entries", &self.entries.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::encoding::key::Key;
    use crate::record::CodecId;

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

    #[tokio::test(start_paused = true)]
    async fn an_outcome_is_gone_before_the_store_can_forget_it() {
        let cache = LocalCache::new(10);
        let sending = cache.sending(&id(1));
        // The store took its time.
        tokio::time::advance(TTL / 2).await;
        cache.committed(sending, &id(1), None, (1, &outcome("1")), TTL);
        assert_eq!(
            cache.find(&id(1), None, clock::now()),
            Some((1, outcome("1")))
        );
        tokio::time::advance(TTL * 4 / 10).await;
        assert_eq!(cache.find(&id(1), None, clock::now()), None);
        assert_eq!(cache.entries.len(), 0);
    }

    #[tokio::test]
    async fn another_payload_does_not_get_it() {
        let cache = LocalCache::new(10);
        let now = clock::now();
        let [one, two] = ["one", "two"].map(|value| Fingerprint::of(value).ok());
        cache.committed(cache.sending(&id(1)), &id(1), one, (1, &outcome("1")), TTL);
        assert_eq!(cache.find(&id(1), two, now), None);
        for fingerprint in [one, None] {
            assert_eq!(
                cache.find(&id(1), fingerprint, now),
                Some((1, outcome("1")))
            );
        }
    }

    #[tokio::test]
    async fn a_commit_that_was_under_way_during_a_removal_leaves_nothing_behind() {
        let cache = LocalCache::new(10);
        let now = clock::now();
        let sending = cache.sending(&id(1));
        drop(cache.removing(&id(1)));
        cache.committed(sending, &id(1), None, (1, &outcome("1")), TTL);
        assert_eq!(cache.find(&id(1), None, now), None);
        cache.committed(cache.sending(&id(1)), &id(1), None, (1, &outcome("1")), TTL);
        drop(cache.removing(&id(1)));
        assert_eq!(cache.find(&id(1), None, now), None);
    }

    #[tokio::test]
    async fn a_commit_that_is_sent_during_a_removal_leaves_nothing_behind() {
        let cache = LocalCache::new(10);
        let now = clock::now();
        let id = id(1);
        let removing = cache.removing(&id);
        let sending = cache.sending(&id);
        drop(removing);
        cache.committed(sending, &id, None, (1, &outcome("1")), TTL);
        assert_eq!(cache.find(&id, None, now), None);
        let removing = cache.removing(&id);
        cache.committed(cache.sending(&id), &id, None, (1, &outcome("1")), TTL);
        drop(removing);
        assert_eq!(cache.find(&id, None, now), None);
    }

    #[tokio::test]
    async fn it_holds_no_more_than_it_may_and_nothing_that_is_large() {
        let cache = LocalCache::new(100);
        let now = clock::now();
        for key in 0..10_000 {
            cache.committed(
                cache.sending(&id(key)),
                &id(key),
                None,
                (1, &outcome("1")),
                TTL,
            );
        }
        assert!((1..=100).contains(&cache.entries.len()), "{cache:?}");
        let large = LocalCache::new(100);
        let largest = outcome(vec![b'1'; MAX_BYTES]);
        large.committed(large.sending(&id(2)), &id(2), None, (1, &largest), TTL);
        assert_eq!(large.find(&id(2), None, now), Some((1, largest)));
        large.committed(
            large.sending(&id(1)),
            &id(1),
            None,
            (1, &outcome(vec![b'1'; MAX_BYTES + 1])),
            TTL,
        );
        assert_eq!(large.entries.len(), 1);
        // Even the largest size does not allocate all memory at once.
        let _ = LocalCache::new(usize::MAX);
    }
}
