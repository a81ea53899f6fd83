//! Those who wait for a record that is in flight.

use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::MemoryStore;
use super::shard::Target;
use crate::base::sync::Notify;
use crate::record::RecordId;

/// Those of one shard.
#[derive(Default)]
pub(super) struct Waiters(HashTable<WaitedFor>);

/// Those who wait for one record. Counted by hand, under the lock, because a count of pointers goes
/// down only after it.
struct WaitedFor {
    id: RecordId,
    hash: u64,
    notify: Arc<Notify>,
    count: usize,
}

impl Waiters {
    /// The number of records with waiters.
    #[cfg(all(test, shuttle))]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Wakes all who wait for a record.
    pub(super) fn wake(&mut self, target: Target<'_>) {
        if !self.0.is_empty()
            && let Entry::Occupied(place) = self.place(target.id, target.hash)
        {
            place.remove().0.notify.notify_waiters();
        }
    }

    fn place(&mut self, id: &RecordId, hash: u64) -> Entry<'_, WaitedFor> {
        self.0
            .entry(hash, |waited| waited.id == *id, |waited| waited.hash)
    }
}

/// A waiter's place. The last one to leave takes the place away.
pub(super) struct Waiter<'a> {
    store: &'a MemoryStore,
    id: &'a RecordId,
    hash: u64,
    pub(super) notify: Arc<Notify>,
}

impl<'a> Waiter<'a> {
    pub(super) fn new(store: &'a MemoryStore, id: &'a RecordId) -> Self {
        let hash = store.0.shared.hash(id.as_str().as_bytes());
        let mut locked = store.locked(hash);
        let new = || WaitedFor {
            id: id.clone(),
            hash,
            notify: Arc::default(),
            count: 0,
        };
        let waited = locked
            .waiters
            .place(id, hash)
            .or_insert_with(new)
            .into_mut();
        waited.count += 1;
        Self {
            store,
            id,
            hash,
            notify: waited.notify.clone(),
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut place) = self
            .store
            .locked(self.hash)
            .waiters
            .place(self.id, self.hash)
        {
            // Others may wait there by now, if these were woken.
            let waited = place.get_mut();
            if Arc::ptr_eq(&waited.notify, &self.notify) {
                waited.count -= 1;
                if waited.count == 0 {
                    place.remove();
                }
            }
        }
    }
}
