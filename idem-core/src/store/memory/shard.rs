//! A part of the store, behind one lock.
//!
//! A record that changes is *fresh*: it has memory of its own. A settled record only expires. It is
//! written with others into a *pack*, which is one run of bytes, and a replayed outcome is a slice
//! of that run. So a settled record costs its own bytes and an entry of the table, without a
//! separate allocation.
//!
//! Sweeps find unused bytes of packs, and drop expired records. A sweep looks at all records of the
//! shard. It comes after so many changes that its cost for each change is constant.

mod pack;

use std::hash::{BuildHasher as _, Hasher as _};
use std::ops::Deref;
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashTable;
use slab::Slab;

use self::pack::{Pack, Packing};
use super::Shared;
use super::slot::{MOST_OVERHEAD, Packed, Slot};
use crate::record::{Claim, Metadata, OnClaim, Record, RecordId};

/// The number of records in a pack. More would let more records wait for a pack, and a caller that
/// keeps an outcome would hold more memory. Fewer would waste more on each pack.
pub(super) const PACK: usize = 16;
/// The largest payload that is packed. For a larger one, packing saves little memory, and copying
/// takes time.
pub(super) const MOST_PAYLOAD: usize = 1024;
/// Fewer records are not worth a sweep.
const LEAST_SWEPT: usize = 64;

pub(super) struct Shard {
    places: HashTable<Place>,
    fresh: Slab<Fresh>,
    /// How many of the fresh ones have settled.
    settled: usize,
    packs: Slab<Pack>,
    /// No record changes by itself before this.
    earliest: Duration,
    /// No lease of a fresh record expires before this.
    earliest_lease: Duration,
    /// How many more changes there may be before the next sweep.
    until_sweep: usize,
    /// Whether records have left their pack since the last sweep.
    has_gaps: bool,
    /// How many records sweeps have looked at.
    #[cfg(test)]
    pub(super) looked_at: usize,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            places: HashTable::new(),
            fresh: Slab::new(),
            settled: 0,
            packs: Slab::new(),
            earliest: Duration::MAX,
            earliest_lease: Duration::MAX,
            until_sweep: 0,
            has_gaps: false,
            #[cfg(test)]
            looked_at: 0,
        }
    }
}

/// The place of a record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// In which pack, or [`FRESH`].
    pack: u32,
    /// Its start in the pack, or its index among the fresh ones.
    at: u32,
}

const FRESH: u32 = u32::MAX;

struct Fresh {
    /// Known here so that growing and packing need not look at each record.
    settled: bool,
    hash: u64,
    of: Box<FreshRecord>,
}

struct FreshRecord {
    id: RecordId,
    slot: Slot,
}

/// Records that a sweep took out of a shard. The caller frees them after it has released the
/// shard's lock, because freeing a thousand records takes longer than finding them.
#[derive(Default)]
#[must_use]
pub(super) struct Taken {
    packs: Vec<Bytes>,
    // The boxes move as they are, which costs less than moving the records.
    #[allow(clippy::vec_box)]
    fresh: Vec<Box<FreshRecord>>,
}

/// A record as it was found.
pub(super) enum FoundRecord<'a> {
    Fresh(&'a Record),
    Packed(Record),
}

impl FoundRecord<'_> {
    /// Returns the effect of a claim on it.
    pub(super) fn on_claim(self, claim: &Claim) -> OnClaim {
        match self {
            Self::Fresh(record) => record.on_claim(claim),
            Self::Packed(record) => record.into_on_claim(claim),
        }
    }
}

impl Deref for FoundRecord<'_> {
    type Target = Record;

    fn deref(&self) -> &Record {
        match self {
            Self::Fresh(record) => record,
            Self::Packed(record) => record,
        }
    }
}

/// The record that a step is about.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) id: &'a RecordId,
    pub(super) hash: u64,
    pub(super) now: Duration,
}

impl Shared {
    pub(super) fn hash(&self, id: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(id);
        hasher.finish()
    }
}

impl Shard {
    /// Returns the record at a place as it is now, and the time until it changes by itself. Removes
    /// it if it has expired.
    pub(super) fn find(
        &mut self,
        target: Target<'_>,
        place: Place,
        shared: &Shared,
    ) -> Option<(FoundRecord<'_>, Duration)> {
        if place.pack == FRESH {
            if self.fresh[index(place.at)].of.slot.pass(target.now) {
                self.remove(target, place, shared);
                return None;
            }
            let slot = &self.fresh[index(place.at)].of.slot;
            return Some((
                FoundRecord::Fresh(&slot.record),
                slot.expires.saturating_sub(target.now),
            ));
        }
        let bytes = &self.packs[index(place.pack)].bytes;
        let mut slot = Packed::at(bytes, index(place.at)).slot(bytes);
        if slot.pass(target.now) {
            self.remove(target, place, shared);
            return None;
        }
        Some((
            FoundRecord::Packed(slot.record),
            slot.expires.saturating_sub(target.now),
        ))
    }

    /// Returns how long the record stays as done after it has expired.
    pub(super) fn then_done(&self, place: Place) -> Duration {
        if place.pack == FRESH {
            self.fresh[index(place.at)].of.slot.then_done
        } else {
            let bytes = &self.packs[index(place.pack)].bytes;
            Packed::at(bytes, index(place.at)).slot(bytes).then_done
        }
    }

    /// Writes a record, new or in place of the one at `place`. For a new one, the caller has taken
    /// room.
    pub(super) fn put(
        &mut self,
        target: Target<'_>,
        place: Option<Place>,
        slot: Slot,
        shared: &Shared,
    ) {
        self.earliest = self.earliest.min(slot.expires);
        self.earliest_lease = self
            .earliest_lease
            .min(lease_ends(&slot, target.now).unwrap_or(Duration::MAX));
        let settled = settles(&slot.record);
        if let Some(fresh) = place
            .filter(|place| place.pack == FRESH)
            .map(|place| &mut self.fresh[index(place.at)])
        {
            self.settled -= usize::from(fresh.settled);
            self.settled += usize::from(settled);
            fresh.settled = settled;
            fresh.of.slot = slot;
            return;
        }
        self.settled += usize::from(settled);
        self.until_sweep = self.until_sweep.saturating_sub(1);
        let of = Box::new(FreshRecord {
            id: target.id.clone(),
            slot,
        });
        let new = Place {
            pack: FRESH,
            at: narrow(self.fresh.insert(Fresh {
                settled,
                hash: target.hash,
                of,
            })),
        };
        let Some(old) = place else {
            let Self {
                places,
                fresh,
                packs,
                ..
            } = self;
            places.insert_unique(target.hash, new, |place| {
                hash_of(*place, fresh, packs, shared)
            });
            return;
        };
        if let Some(place) = self.places.find_mut(target.hash, |place| *place == old) {
            *place = new;
        }
        self.leave_pack(old.pack);
    }

    pub(super) fn remove(&mut self, target: Target<'_>, place: Place, shared: &Shared) {
        if let Ok(entry) = self.places.find_entry(target.hash, |found| *found == place) {
            entry.remove();
        }
        if place.pack == FRESH {
            self.settled -= usize::from(self.fresh.remove(index(place.at)).settled);
        } else {
            self.until_sweep = self.until_sweep.saturating_sub(1);
            self.leave_pack(place.pack);
        }
        if self.places.is_empty() {
            (self.earliest, self.earliest_lease) = (Duration::MAX, Duration::MAX);
        }
        shared.room.give_back(1);
    }

    /// Packs and sweeps what is due after a step. The caller frees what this returns without the
    /// lock.
    pub(super) fn tend(&mut self, now: Duration, shared: &Shared) -> Taken {
        let mut taken = Taken::default();
        if self.settled >= PACK {
            self.pack_settled();
        }
        if self.until_sweep == 0 {
            let in_flight = self.fresh.len() - self.settled;
            // A record in flight may have been abandoned.
            let have_settled = in_flight >= PACK && self.earliest_lease <= now;
            if self.earliest <= now || self.has_gaps || have_settled {
                self.sweep(now, shared, &mut taken);
            }
            self.until_sweep = (self.places.len() / 2).max(LEAST_SWEPT);
        }
        taken
    }

    /// Takes out what has expired. The caller frees it without the lock.
    pub(super) fn make_room(&mut self, now: Duration, shared: &Shared) -> Taken {
        let mut taken = Taken::default();
        if self.earliest <= now {
            self.sweep(now, shared, &mut taken);
        }
        taken
    }

    /// How many records it has.
    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    /// Returns the records whose ids are wanted, as they are now, in no order.
    pub(super) fn slots(
        &self,
        now: Duration,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Vec<(RecordId, Slot)> {
        let slot_at = |place: &Place| {
            let (id, mut slot) = if place.pack == FRESH {
                let FreshRecord { id, slot } = &*self.fresh[index(place.at)].of;
                wanted(id.as_str().as_bytes()).then(|| (id.clone(), slot.clone()))?
            } else {
                let bytes = &self.packs[index(place.pack)].bytes;
                let packed = Packed::at(bytes, index(place.at));
                let id = wanted(packed.id).then(|| {
                    std::str::from_utf8(packed.id)
                        .ok()
                        .and_then(RecordId::parse)
                })??;
                (id, packed.slot(bytes))
            };
            (!slot.pass(now)).then_some((id, slot))
        };
        self.places.iter().filter_map(slot_at).collect()
    }

    /// No record changes by itself before this.
    pub(super) fn earliest(&self) -> Duration {
        self.earliest
    }

    /// How many records it has.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    #[cfg(test)]
    pub(super) fn packs(&self) -> usize {
        self.packs.len()
    }

    /// Whether nothing is left of any record.
    #[cfg(test)]
    pub(super) fn is_bare(&self) -> bool {
        self.places.is_empty()
            && self.fresh.is_empty()
            && self.packs.is_empty()
            && self.settled == 0
    }

    /// Finds the place of a record.
    pub(super) fn place(&self, target: Target<'_>) -> Option<Place> {
        let id = target.id.as_str().as_bytes();
        let is_at = |place: &Place| match place.pack {
            FRESH => self.fresh[index(place.at)].of.id.as_str().as_bytes() == id,
            pack => Packed::id_at(&self.packs[index(pack)].bytes, index(place.at)) == id,
        };
        self.places.find(target.hash, is_at).copied()
    }

    fn leave_pack(&mut self, key: u32) {
        self.has_gaps = true;
        let pack = &mut self.packs[index(key)];
        pack.records -= 1;
        if pack.records == 0 {
            self.packs.remove(index(key));
        }
    }

    fn pack_settled(&mut self) {
        let settled = self
            .fresh
            .iter()
            .filter(|(_, fresh)| fresh.settled)
            .map(|(key, _)| key);
        let mut keys = Vec::with_capacity(self.settled);
        keys.extend(settled.take(self.settled));
        for keys in keys.chunks(PACK) {
            let most = |key: &usize| {
                let FreshRecord { id, slot, .. } = &*self.fresh[*key].of;
                id.as_str().len() + payload_len(&slot.record) + MOST_OVERHEAD
            };
            let mut pack = Packing::new(&self.packs, keys.iter().map(most).sum());
            for &key in keys {
                let Fresh { hash, of, .. } = self.fresh.remove(key);
                let FreshRecord { id, slot } = *of;
                let old = Place {
                    pack: FRESH,
                    at: narrow(key),
                };
                if let Some(place) = self.places.find_mut(hash, |place| *place == old) {
                    *place = pack.add(id.as_str().as_bytes(), &slot);
                }
            }
            pack.end(&mut self.packs);
        }
        self.settled = 0;
    }

    /// Looks at every record once: drops what has expired and packs that are empty, and merges thin
    /// packs.
    fn sweep(&mut self, now: Duration, shared: &Shared, taken: &mut Taken) {
        let before = self.places.len();
        #[cfg(test)]
        {
            self.looked_at += before;
        }
        self.drop_expired(now, taken);
        self.packs.retain(|_, pack| {
            if pack.records == 0 {
                taken.packs.push(std::mem::take(&mut pack.bytes));
            }
            pack.records > 0
        });
        self.has_gaps = false;
        shared.room.give_back(before - self.places.len());
        self.merge_thin(now, taken);
        if self.settled >= PACK {
            self.pack_settled();
        }
        self.shrink(shared);
    }

    /// Drops expired records. Notes when the next one changes, which fresh ones have settled, and
    /// how many bytes of each pack are still needed.
    fn drop_expired(&mut self, now: Duration, taken: &mut Taken) {
        let Self {
            places,
            fresh,
            packs,
            settled,
            ..
        } = self;
        let mut earliest = Duration::MAX;
        let mut earliest_lease = Duration::MAX;
        packs.iter_mut().for_each(|(_, pack)| pack.used = 0);
        places.retain(|place| {
            let changes_at = if place.pack == FRESH {
                let Fresh {
                    settled: has_settled,
                    of,
                    ..
                } = &mut fresh[index(place.at)];
                let slot = &mut of.slot;
                if slot.pass(now) {
                    let gone = fresh.remove(index(place.at));
                    *settled -= usize::from(gone.settled);
                    taken.fresh.push(gone.of);
                    return false;
                }
                if let Some(lease_ends) = lease_ends(slot, now) {
                    earliest_lease = earliest_lease.min(lease_ends);
                } else if !*has_settled && payload_len(&slot.record) <= MOST_PAYLOAD {
                    // What is abandoned may stay so for long.
                    *has_settled = true;
                    *settled += 1;
                }
                slot.expires
            } else {
                let pack = &mut packs[index(place.pack)];
                let packed = Packed::at(&pack.bytes, index(place.at));
                if packed.is_over(now) {
                    pack.records -= 1;
                    return false;
                }
                let changes_at = packed.changes_at(now);
                let used = packed.used(now);
                pack.used += used;
                changes_at
            };
            earliest = earliest.min(changes_at);
            true
        });
        self.earliest = earliest;
        self.earliest_lease = earliest_lease;
    }

    /// Writes the records of packs that are half empty or small into new packs.
    fn merge_thin(&mut self, now: Duration, taken: &mut Taken) {
        let is_thin = |pack: &Pack| pack.used < pack.bytes.len() / 2 || pack.records < PACK / 2;
        let thin: Vec<bool> = (0..self.packs.capacity())
            .map(|key| self.packs.get(key).is_some_and(is_thin))
            .collect();
        // A single small pack could only be copied.
        let mut count = 0;
        let mut gaps = 0;
        for (_, pack) in self.packs.iter().filter(|(_, pack)| is_thin(pack)) {
            count += 1;
            gaps += pack.bytes.len() - pack.used;
        }
        if count == 0 || (count == 1 && gaps == 0) {
            return;
        }
        let Self { places, packs, .. } = self;
        let mut packing: Option<Packing> = None;
        for place in places.iter_mut() {
            if place.pack == FRESH || !thin.get(index(place.pack)).copied().unwrap_or_default() {
                continue;
            }
            let bytes = &packs[index(place.pack)].bytes;
            let packed = Packed::at(bytes, index(place.at));
            let id = packed.id;
            let mut slot = packed.slot(bytes);
            slot.pass(now);
            let most = PACK * (id.len() + payload_len(&slot.record) + MOST_OVERHEAD);
            *place = packing
                .get_or_insert_with(|| Packing::new(packs, most))
                .add(id, &slot);
            if let Some(full) = packing.take_if(|packing| packing.records == PACK) {
                full.end(packs);
            }
        }
        if let Some(rest) = packing {
            rest.end(packs);
        }
        for (key, _) in thin.iter().enumerate().filter(|(_, thin)| **thin) {
            taken
                .packs
                .extend(packs.try_remove(key).map(|pack| pack.bytes));
        }
    }

    /// Gives memory back after there were many more.
    fn shrink(&mut self, shared: &Shared) {
        let Self {
            places,
            fresh,
            packs,
            ..
        } = self;
        let len = places.len();
        if places.capacity() > 4 * len.max(LEAST_SWEPT) {
            places.shrink_to(2 * len, |place| hash_of(*place, fresh, packs, shared));
        }
        if fresh.capacity() > 4 * fresh.len().max(PACK) {
            fresh.shrink_to_fit();
        }
        if packs.capacity() > 4 * packs.len().max(PACK) {
            packs.shrink_to_fit();
        }
    }
}

/// Whether a record will only expire, and is small enough to be packed.
fn settles(record: &Record) -> bool {
    !matches!(record, Record::InFlight(_)) && payload_len(record) <= MOST_PAYLOAD
}

/// When the lease runs out, if it has not.
fn lease_ends(slot: &Slot, now: Duration) -> Option<Duration> {
    let lease_left = slot.record.lease_left(slot.expires.saturating_sub(now))?;
    Some(now.saturating_add(lease_left))
}

fn payload_len(record: &Record) -> usize {
    match record {
        Record::Committed { outcome, .. } => {
            outcome.payload.len() + outcome.metadata.as_ref().map_or(0, |_| Metadata::MOST_TEXT)
        }
        _ => 0,
    }
}

fn hash_of(place: Place, fresh: &Slab<Fresh>, packs: &Slab<Pack>, shared: &Shared) -> u64 {
    match place.pack {
        FRESH => fresh[index(place.at)].hash,
        pack => shared.hash(Packed::id_at(&packs[index(pack)].bytes, index(place.at))),
    }
}

fn index(place: u32) -> usize {
    place as usize
}

/// A shard has fewer than 2^32 fresh records, and a pack fewer bytes.
fn narrow(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(FRESH)
}
