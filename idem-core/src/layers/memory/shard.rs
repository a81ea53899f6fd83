//! A part of the store, behind one lock: a table of records, each in a box.
//!
//! Sweeps drop expired records. A sweep looks at all records of the shard. It comes after so many
//! new records that its cost for each of them is constant.

use std::mem;
use std::time::Duration;

use hashbrown::HashTable;

use super::Room;
use crate::record::{Encoded, Record, RecordId};

/// Fewer records are not worth a sweep.
const LEAST_SWEPT: usize = 64;

pub(crate) struct Shard {
    entries: HashTable<Box<Entry>>,
    /// No record changes by itself before this.
    earliest: Duration,
    /// How many more new records there may be before the next sweep.
    until_sweep: usize,
    /// How many records sweeps have looked at.
    #[cfg(test)]
    pub(crate) looked_at: usize,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            entries: HashTable::new(),
            earliest: Duration::MAX,
            until_sweep: 0,
            #[cfg(test)]
            looked_at: 0,
        }
    }
}

struct Entry {
    id: RecordId,
    /// Known here so that a table that grows reads no ids.
    hash: u64,
    slot: Slot,
}

/// A record, and when it changes by itself.
#[derive(Clone)]
pub(crate) struct Slot {
    pub(crate) record: Record,
    /// When the record changes by itself, by the store's clock.
    pub(crate) expires: Duration,
    /// For a committed one: how long after that it stays as done. Zero for any other.
    pub(crate) then_done: Duration,
}

impl Slot {
    /// Whether nothing is left of it.
    pub(crate) fn is_over(&self, now: Duration) -> bool {
        now >= self.expires.saturating_add(self.then_done)
    }

    /// Lets time pass for a record that is not over: with its outcome expired, it is done. Returns
    /// that outcome.
    pub(crate) fn pass(&mut self, now: Duration) -> Option<Encoded> {
        if now < self.expires {
            return None;
        }
        let done = self.record.expired()?;
        self.expires = self.expires.saturating_add(mem::take(&mut self.then_done));
        match mem::replace(&mut self.record, done) {
            Record::Committed { outcome, .. } => Some(outcome),
            _ => None,
        }
    }
}

/// The records that a sweep took out of a shard. The caller frees them after it has released the
/// shard's lock, because freeing a thousand records takes longer than finding them.
#[derive(Default)]
#[must_use]
pub(crate) struct Taken {
    // The boxes move as they are, which costs less than moving the records.
    #[allow(clippy::vec_box)]
    entries: Vec<Box<Entry>>,
    /// Of records that stay as done.
    outcomes: Vec<Encoded>,
}

impl Taken {
    /// How many records it has.
    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }
}

/// The record that a step is about.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) id: &'a RecordId,
    pub(crate) hash: u64,
    pub(crate) now: Duration,
}

/// The place of a record in the table, until another one comes or goes.
#[derive(Clone, Copy)]
pub(crate) struct Place(usize);

impl Shard {
    /// Finds a record as it is now. Removes it if it has expired.
    pub(crate) fn find(&mut self, target: Target<'_>, room: &Room) -> Option<Place> {
        let Target { id, hash, now } = target;
        let place = self
            .entries
            .find_bucket_index(hash, |entry| entry.id == *id)?;
        let slot = &mut self.entries.get_bucket_mut(place)?.slot;
        if slot.is_over(now) {
            self.remove(Place(place), room);
            return None;
        }
        slot.pass(now);
        Some(Place(place))
    }

    pub(crate) fn slot(&self, place: Place) -> Option<&Slot> {
        self.entries.get_bucket(place.0).map(|entry| &entry.slot)
    }

    /// Writes a record, new or in place of the one at `place`. For a new one, the caller has taken
    /// room.
    pub(crate) fn put(&mut self, target: Target<'_>, place: Option<Place>, slot: Slot) {
        self.earliest = self.earliest.min(slot.expires);
        if let Some(entry) = place.and_then(|place| self.entries.get_bucket_mut(place.0)) {
            entry.slot = slot;
            return;
        }
        self.until_sweep = self.until_sweep.saturating_sub(1);
        let entry = Box::new(Entry {
            id: target.id.clone(),
            hash: target.hash,
            slot,
        });
        self.entries
            .insert_unique(target.hash, entry, |entry| entry.hash);
    }

    pub(crate) fn remove(&mut self, place: Place, room: &Room) {
        if let Ok(entry) = self.entries.get_bucket_entry(place.0) {
            entry.remove();
            room.free(1);
        }
        if self.entries.is_empty() {
            self.earliest = Duration::MAX;
        }
    }

    /// Sweeps if enough new records have come since the last sweep. The caller frees what this
    /// returns without the lock.
    pub(crate) fn tend(&mut self, now: Duration, room: &Room) -> Taken {
        if self.until_sweep > 0 {
            return Taken::default();
        }
        let taken = self.sweep(now, room);
        self.until_sweep = (self.entries.len() / 2).max(LEAST_SWEPT);
        taken
    }

    /// Takes out what has expired, with one look at every record. The caller frees it without the
    /// lock.
    pub(crate) fn sweep(&mut self, now: Duration, room: &Room) -> Taken {
        let mut taken = Taken::default();
        if now < self.earliest {
            return taken;
        }
        #[cfg(test)]
        {
            self.looked_at += self.entries.len();
        }
        self.earliest = Duration::MAX;
        let over = self.entries.extract_if(|entry| {
            let slot = &mut entry.slot;
            if slot.is_over(now) {
                return true;
            }
            taken.outcomes.extend(slot.pass(now));
            self.earliest = self.earliest.min(slot.expires);
            false
        });
        taken.entries.extend(over);
        room.free(taken.count());
        let enough = 2 * self.entries.len();
        self.entries.shrink_to(enough, |entry| entry.hash);
        taken
    }

    /// How many records it has.
    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the records whose ids are wanted, as they are now, in no order.
    pub(crate) fn slots(
        &self,
        now: Duration,
        wanted: impl Fn(&RecordId) -> bool,
    ) -> Vec<(RecordId, Slot)> {
        let mut slots: Vec<_> = self
            .entries
            .iter()
            .filter(|entry| wanted(&entry.id) && !entry.slot.is_over(now))
            .map(|entry| (entry.id.clone(), entry.slot.clone()))
            .collect();
        for (_, slot) in &mut slots {
            slot.pass(now);
        }
        slots
    }

    /// No record changes by itself before this.
    pub(crate) fn earliest(&self) -> Duration {
        self.earliest
    }
}
