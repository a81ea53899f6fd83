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
