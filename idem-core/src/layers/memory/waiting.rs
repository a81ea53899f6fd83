//! The waiters for records in flight.

use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::MemoryStore;
use super::shard::Target;
use crate::adapter::engine::sync::Notify;
use crate::record::RecordId;

/// Those of one shard.
#[derive(Default)]
pub(crate) struct Waiters(HashTable<WaitedFor>);

/// The waiters for one record. Their count changes under the lock. The count of an `Arc` would go
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
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Wakes all who wait for a record.
    pub(crate) fn wake(&mut self, target: Target<'_>) {
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

/// A waiter's entry. The last waiter to leave removes the record's entry.
pub(crate) struct Waiter<'a> {
    store: &'a MemoryStore,
    id: &'a RecordId,
    hash: u64,
    pub(crate) notify: Arc<Notify>,
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(store: &'a MemoryStore, id: &'a RecordId) -> Self {
        let hash = store.0.hash(id);
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
            // If these were woken, others may wait there by now.
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
