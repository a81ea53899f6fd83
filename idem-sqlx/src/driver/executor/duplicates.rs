//! Guesses what a claim finds at its key.
//!
//! One statement can write a row or else read the one that is there, so that every claim is one
//! message. The database works more for it than for either alone. So a claim reads first where this
//! process has lately claimed the key itself, and only inserts where the other claims of its
//! operation have lately found nothing. If it is mistaken, it costs one more message, and the next
//! ones do both at once again.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicI8, AtomicU64, Ordering};

use idem_core::store::record::RecordId;

/// How many claims in a row end in one way until the next one is expected to.
const RUN: i8 = 8;
/// Operations that share a place only make each other's guesses worse.
const OPERATIONS: usize = 64;
/// How many keys are known at most, in 32 KiB. A later key takes an earlier one's place.
const KEYS: usize = 4096;

/// The row that a claim is likely to find at its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    Nothing,
    Record,
    Unknown,
}

/// The findings of the last claims of this process.
pub(crate) struct Duplicates {
    /// How many claims of an operation in a row found a record at a key that was new to this
    /// process, or as a negative number, found none.
    runs: [AtomicI8; OPERATIONS],
    /// The hashes of keys that were claimed here.
    claimed: Box<[AtomicU64]>,
}

impl Default for Duplicates {
    fn default() -> Self {
        Self {
            runs: std::array::from_fn(|_| AtomicI8::new(0)),
            claimed: std::iter::repeat_with(AtomicU64::default)
                .take(KEYS)
                .collect(),
        }
    }
}

impl Duplicates {
    pub(crate) fn expected(&self, id: &RecordId) -> Expected {
        if self.was_claimed(id) {
            return Expected::Record;
        }
        match self.run(id).load(Ordering::Relaxed) {
            run if run >= RUN => Expected::Record,
            run if run <= -RUN => Expected::Nothing,
            _ => Expected::Unknown,
        }
    }

    /// Notes whether a claim has found a record.
    pub(crate) fn note(&self, id: &RecordId, has_found: bool) {
        if self.was_claimed(id) {
            return;
        }
        let hash = hash_of(id.as_str());
        self.claimed[place(hash, KEYS)].store(hash, Ordering::Relaxed);
        let run = self.run(id);
        let before = run.load(Ordering::Relaxed);
        let now = if has_found {
            before.max(0).saturating_add(1)
        } else {
            before.min(0).saturating_sub(1)
        };
        run.store(now.clamp(-RUN, RUN), Ordering::Relaxed);
    }

    fn was_claimed(&self, id: &RecordId) -> bool {
        let hash = hash_of(id.as_str());
        self.claimed[place(hash, KEYS)].load(Ordering::Relaxed) == hash
    }

    fn run(&self, id: &RecordId) -> &AtomicI8 {
        &self.runs[place(hash_of(id.operation()), OPERATIONS)]
    }
}

fn hash_of(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

fn place(hash: u64, places: usize) -> usize {
    let [.., low, high] = hash.to_be_bytes();
    usize::from(u16::from_be_bytes([low, high])) % places
}

#[cfg(test)]
mod tests {
    use idem_core::Key;

    use super::*;

    fn id(operation: &str, key: &str) -> RecordId {
        let key = Key::encode(key).unwrap();
        RecordId::new(operation, &key).unwrap()
    }

    /// Notes so many claims of new keys as it takes for a habit.
    fn accustom(duplicates: &Duplicates, operation: &str, has_found: bool) {
        for number in 0..RUN {
            duplicates.note(&id(operation, &format!("{has_found} {number}")), has_found);
        }
    }

    /// An operation that shares no place with this one.
    fn apart_from(operation: &str) -> String {
        let of = |name: &str| place(hash_of(name), OPERATIONS);
        (0..1000)
            .map(|number| format!("operation.{number}"))
            .find(|other| of(other) != of(operation))
            .unwrap()
    }

    #[test]
    fn a_habit_is_that_of_one_operation() {
        let duplicates = Duplicates::default();
        let other = apart_from("orders");
        accustom(&duplicates, "orders", false);
        let orders = id("orders", "new");
        assert_eq!(duplicates.expected(&orders), Expected::Nothing);
        assert_eq!(duplicates.expected(&id(&other, "new")), Expected::Unknown);
        accustom(&duplicates, &other, true);
        assert_eq!(duplicates.expected(&id(&other, "new")), Expected::Record);
        assert_eq!(duplicates.expected(&orders), Expected::Nothing);
    }

    #[test]
    fn a_mistake_ends_a_habit_at_once() {
        for has_found in [false, true] {
            let duplicates = Duplicates::default();
            accustom(&duplicates, "orders", has_found);
            accustom(&duplicates, "orders", has_found);
            duplicates.note(&id("orders", "mistaken"), !has_found);
            let next = duplicates.expected(&id("orders", "next"));
            assert_eq!(next, Expected::Unknown, "{has_found}");
        }
    }

    #[test]
    fn a_claimed_key_is_known_under_its_operation_alone_and_is_no_habit() {
        let duplicates = Duplicates::default();
        let other = apart_from("orders");
        for _ in 0..4 * RUN {
            duplicates.note(&id("orders", "k"), true);
        }
        assert_eq!(duplicates.expected(&id("orders", "k")), Expected::Record);
        assert_eq!(duplicates.expected(&id(&other, "k")), Expected::Unknown);
        assert_eq!(duplicates.expected(&id("orders", "l")), Expected::Unknown);
    }
}
