//! Items by the time when they are due, in slots. A look costs as much as is due, however many
//! items there are.

use std::collections::BTreeMap;
use std::time::Duration;

use slab::Slab;
use tokio::time::Instant;

/// How many empty slots keep their memory.
const SPARE: usize = 8;

/// Items, each due at some time.
pub(crate) struct Schedule<T> {
    /// The time that slots are counted from, in milliseconds.
    origin: Instant,
    entries: Slab<Entry<T>>,
    slots: BTreeMap<u64, Vec<usize>>,
    /// The slot that was emptied last, if it still is. It stays, because the next item is often due
    /// in it too. All other slots have items.
    emptied: Option<u64>,
    spare: Vec<Vec<usize>>,
}

struct Entry<T> {
    item: T,
    /// The slot, and the place in it. `None` while the item has no time.
    due: Option<(u64, usize)>,
}

impl<T> Schedule<T> {
    pub(crate) fn new(origin: Instant) -> Self {
        Self {
            origin,
            entries: Slab::new(),
            slots: BTreeMap::new(),
            emptied: None,
            spare: Vec::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an item that is due at `at`, or up to `slack` later so that it can share a slot.
    /// Returns its key.
    pub(crate) fn insert(&mut self, item: T, at: Instant, slack: Duration) -> usize {
        let key = self.entries.vacant_key();
        let due = Some(self.enter(key, at, slack));
        self.entries.insert(Entry { item, due })
    }

    pub(crate) fn get(&self, key: usize) -> Option<&T> {
        self.entries.get(key).map(|entry| &entry.item)
    }

    pub(crate) fn remove(&mut self, key: usize) -> Option<T> {
        self.unplan(key);
        self.entries.try_remove(key).map(|entry| entry.item)
    }

    /// Sets when an item is due.
    pub(crate) fn plan(&mut self, key: usize, at: Instant, slack: Duration) {
        self.unplan(key);
        if self.entries.contains(key) {
            let due = Some(self.enter(key, at, slack));
            if let Some(entry) = self.entries.get_mut(key) {
                entry.due = due;
            }
        }
    }

    /// Puts a key into the slot of its time. Returns the slot, and the place in it.
    fn enter(&mut self, key: usize, at: Instant, slack: Duration) -> (u64, usize) {
        let slot = slot(at.saturating_duration_since(self.origin), slack);
        let spare = &mut self.spare;
        let keys = self
            .slots
            .entry(slot)
            .or_insert_with(|| spare.pop().unwrap_or_default());
        keys.push(key);
        self.emptied = self.emptied.filter(|emptied| *emptied != slot);
        (slot, keys.len() - 1)
    }

    /// Removes the item's time.
    fn unplan(&mut self, key: usize) {
        let Some((slot, place)) = self.entries.get_mut(key).and_then(|entry| entry.due.take())
        else {
            return;
        };
        let Some(keys) = self.slots.get_mut(&slot) else {
            return;
        };
        keys.swap_remove(place);
        let moved = keys.get(place).copied();
        if keys.is_empty()
            && let Some(earlier) = self.emptied.replace(slot)
            && let Some(keys) = self.slots.remove(&earlier)
            && self.spare.len() < SPARE
        {
            self.spare.push(keys);
        }
        if let Some(entry) = moved.and_then(|moved| self.entries.get_mut(moved)) {
            entry.due = Some((slot, place));
        }
    }

    /// Takes an item that is due. It then has no time until [`plan`](Self::plan) sets one.
    pub(crate) fn next_due(&mut self, now: Instant) -> Option<(usize, &T)> {
        let (slot, keys) = self.first_slot()?;
        let key = keys
            .last()
            .copied()
            .filter(|_| self.origin + Duration::from_millis(slot) <= now)?;
        self.unplan(key);
        self.entries.get(key).map(|entry| (key, &entry.item))
    }

    /// When the next item is due.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.first_slot()
            .map(|(slot, _)| self.origin + Duration::from_millis(slot))
    }

    /// The first slot with items.
    fn first_slot(&self) -> Option<(u64, &Vec<usize>)> {
        let mut slots = self.slots.iter().filter(|(_, keys)| !keys.is_empty());
        slots.next().map(|(slot, keys)| (*slot, keys))
    }
}

/// Returns a slot that is not earlier than `at`: the next multiple of a power of two that is at
/// most `slack`. So slots of different widths coincide.
fn slot(at: Duration, slack: Duration) -> u64 {
    /// Thirty years, which stands for never.
    const NEVER: u64 = 1000 * 60 * 60 * 24 * 365 * 30;
    let millis = |length: Duration| {
        let rest = u64::from(length.subsec_nanos().div_ceil(1_000_000));
        length
            .as_secs()
            .saturating_mul(1000)
            .saturating_add(rest)
            .min(NEVER)
    };
    let width = 1 << millis(slack).clamp(1, 1024).ilog2();
    millis(at).next_multiple_of(width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn taken(schedule: &mut Schedule<u64>, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| schedule.next_due(now).map(|(_, item)| *item)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn items_come_when_they_are_due_and_no_others_are_visited() {
        let now = clock::now();
        let mut schedule = Schedule::new(now);
        let keys: Vec<_> = (0..10_000)
            .map(|item| schedule.insert(item, now + millis(item), millis(1)))
            .collect();
        assert_eq!(schedule.next_at(), Some(now));
        assert_eq!(taken(&mut schedule, now + millis(2)), [0, 1, 2]);
        // Taken, it is not due until a new time is set.
        assert_eq!(taken(&mut schedule, now + millis(2)), [0; 0]);
        schedule.plan(keys[1], now + millis(1), millis(1));
        schedule.plan(keys[9_000], now, millis(1));
        schedule.remove(keys[3]);
        assert_eq!(taken(&mut schedule, now + millis(4)), [9_000, 1, 4]);
        assert_eq!(schedule.next_at(), Some(now + millis(5)));
        for key in keys {
            schedule.remove(key);
        }
        assert!(
            schedule.is_empty() && schedule.next_at().is_none() && schedule.spare.len() == SPARE
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_that_stays_without_items_is_one_and_is_never_due() {
        let now = clock::now();
        let mut schedule = Schedule::new(now);
        for item in 0..100 {
            let key = schedule.insert(item, now + millis(item), millis(1));
            schedule.remove(key);
        }
        assert_eq!((schedule.slots.len(), schedule.next_at()), (1, None));
        assert_eq!(taken(&mut schedule, now + millis(200)), [0; 0]);
        // A later item is found behind the empty slot, and an item in that slot is found again.
        schedule.insert(1, now + millis(150), millis(1));
        assert_eq!(schedule.next_at(), Some(now + millis(150)));
        let again = schedule.insert(2, now + millis(99), millis(1));
        assert_eq!(schedule.next_at(), Some(now + millis(99)));
        assert_eq!(taken(&mut schedule, now + millis(150)), [2, 1]);
        schedule.plan(again, now + millis(99), millis(1));
        assert_eq!(taken(&mut schedule, now + millis(150)), [2]);
        assert!(schedule.slots.len() <= 2);
        // A slot that is in use again is not removed when another one is emptied.
        schedule.remove(again);
        schedule.insert(3, now + millis(99), millis(1));
        let other = schedule.insert(4, now + millis(160), millis(1));
        schedule.remove(other);
        assert_eq!(taken(&mut schedule, now + millis(150)), [3]);
    }

    #[tokio::test(start_paused = true)]
    async fn items_that_are_due_at_nearly_the_same_time_share_a_slot_and_none_is_early() {
        let now = clock::now();
        let mut schedule = Schedule::new(now);
        for item in 0..1_000 {
            schedule.insert(item, now + millis(10_000 + item), millis(2_500));
        }
        assert_eq!(schedule.slots.len(), 2);
        assert!(schedule.next_at() >= Some(now + millis(10_000)));
        assert_eq!(taken(&mut schedule, now + millis(10_000)), [0; 0]);
        // Items that leave a slot must not remove others.
        for key in (0..1_000).step_by(3) {
            schedule.remove(key);
        }
        let mut left = taken(&mut schedule, now + millis(12_000));
        left.sort_unstable();
        assert_eq!(
            left,
            (0..1_000).filter(|item| item % 3 != 0).collect::<Vec<_>>()
        );
        let never = clock::after(now, Duration::MAX);
        schedule.insert(1, never, Duration::MAX);
        assert!(schedule.next_at() > Some(now + millis(1 << 39)));
    }
}
