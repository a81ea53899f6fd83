//! The checker: says of a history which promises it breaks. Pure, so that it can be tested with
//! histories made by hand.

mod counts;
mod index;
mod liveness;
mod messages;
mod outcomes;
mod owners;
mod steps;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::nanos;
use crate::history::Line;

pub(crate) use self::index::Index;
use self::index::{Body, Call, Claim, Ended, Given, Key, Step};

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) promise: &'static str,
    /// When it was broken.
    pub(crate) at: u64,
    pub(crate) key: String,
    pub(crate) text: String,
}

/// The rules for a history.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) lease: Duration,
    /// Another server takes the place of one that is gone, which takes time.
    pub(crate) fails_over: bool,
    /// That one may lack what was acknowledged last. Replicas acknowledge claims and commits;
    /// losses that are not promised against (`RedisStoreBuilder::replicas`) are counted, and do not
    /// violate a promise.
    pub(crate) forgets: bool,
}

/// The verdict on a history.
#[derive(Debug)]
pub(crate) struct Findings {
    /// In the order in which they happened.
    pub(crate) violations: Vec<Violation>,
    pub(crate) counts: Vec<(&'static str, u64)>,
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) decisions: BTreeMap<String, u64>,
    /// The longest time from the death of an owner to the next body, in a quiet time and with a
    /// call waiting.
    pub(crate) slowest_take_over: Option<Duration>,
}

/// What is not promised where servers fail over, and was seen.
#[derive(Debug, Default)]
struct Documented {
    /// Lost renewals that gave another caller the key before its owner stopped.
    lost_renewals: u64,
    /// A duplicate was given an outcome that no replica had acknowledged, and that was lost.
    unacknowledged: u64,
}

/// The promises that are checked, and what of each.
pub(crate) const PROMISES: &[(&str, &str)] = &[
    (
        "P1",
        "no body of a key is polled once another has begun; no key is given away while its lease \
         is held",
    ),
    (
        "P2",
        "once an outcome is recorded no body runs, and all replays are equal to it",
    ),
    (
        "P3",
        "attempts increase; of two outcomes one at most is recorded",
    ),
    (
        "P4",
        "no body of a call runs that was made while the server was dead",
    ),
    (
        "P5",
        "every call ends; a key whose owner died is taken over; in the end every key has an \
         outcome",
    ),
    (
        "P6",
        "an error that is kept is replayed as it is, and no body runs",
    ),
    ("P9", "a commit that fails is not turned into a release"),
    (
        "steps",
        "no later attempt of a run repeats a step that was recorded, no two closures of a step \
         overlap, and no run gets a value of one before it",
    ),
    (
        "messages",
        "no message is lost: each is handled by a body that succeeded, or put aside for its reason",
    ),
    (
        "P12",
        "every answer comes with a decision that was reported",
    ),
    (
        "none",
        "nothing unexpected: no error that cannot be here, no panic of idem's, no process that \
         ends by itself",
    ),
];

/// Checks a history. One that is not complete may have calls that go on.
pub(crate) fn check(history: &[Line], rules: Rules, complete: bool) -> Findings {
    let index = Index::new(history);
    let lease = nanos(rules.lease);
    let mut violations = Vec::new();
    let mut documented = Documented::default();
    for (name, key) in &index.keys {
        documented.lost_renewals += owners::check(&index, name, key, rules, &mut violations);
        documented.unacknowledged += outcomes::check(&index, name, key, rules, &mut violations);
    }
    for (name, step) in &index.steps {
        steps::check(&index, name, step, rules, &mut violations);
    }
    outcomes::check_answers(&index, &mut violations);
    liveness::check_dead(&index, &mut violations);
    let slowest = liveness::check_take_overs(&index, lease, rules.fails_over, &mut violations);
    if complete {
        liveness::check_ends(&index, &mut violations);
        messages::check(&index, &mut violations);
    }
    violations.sort_by(|one, two| (one.at, one.promise).cmp(&(two.at, two.promise)));
    let mut faults = BTreeMap::new();
    for fault in &index.faults {
        *faults.entry(fault.kind.clone()).or_default() += 1;
    }
    let mut counts = counts::of(&index);
    if index.left.is_some() {
        counts.extend(counts::of_messages(&index));
    }
    if rules.forgets {
        counts.push((
            "not promised: take-overs after a renewal was lost",
            documented.lost_renewals,
        ));
        counts.push((
            "not promised: replays of what was lost",
            documented.unacknowledged,
        ));
    }
    let slowest_take_over = slowest.map(Duration::from_nanos);
    Findings {
        violations,
        counts,
        faults,
        decisions: index.decisions,
        slowest_take_over,
    }
}
