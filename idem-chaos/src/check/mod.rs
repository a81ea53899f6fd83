//! The checker: says of a history which promises it breaks. Pure, so that it can be tested with histories made by hand.

mod index;
mod liveness;
mod outcomes;
mod owners;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::nanos;
use crate::history::{Answer, How, Line};

pub(crate) use self::index::Index;
use self::index::{Body, Call, Claim, Ended, Given, Key};

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) promise: &'static str,
    /// When it was broken.
    pub(crate) at: u64,
    pub(crate) key: String,
    pub(crate) text: String,
}

/// What a history comes to.
#[derive(Debug)]
pub(crate) struct Findings {
    /// In the order in which they happened.
    pub(crate) violations: Vec<Violation>,
    pub(crate) counts: Vec<(&'static str, u64)>,
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) decisions: BTreeMap<String, u64>,
    /// The longest time from the death of an owner to the next body, in a quiet time and with a call waiting.
    pub(crate) slowest_take_over: Option<Duration>,
}

/// The promises that are checked, and what of each.
pub(crate) const PROMISES: &[(&str, &str)] = &[
    ("P1", "no body of a key is polled once another has begun; no key is given away while its lease is held"),
    ("P2", "once an outcome is recorded no body runs, and all replays are equal to it"),
    ("P3", "attempts increase; of two outcomes one at most is recorded"),
    ("P4", "no body of a call runs that was made while the server was dead"),
    ("P5", "every call ends; a key whose owner died is taken over; in the end every key has an outcome"),
    ("P6", "an error that is kept is replayed as it is, and no body runs"),
    ("P9", "a commit that fails is not turned into a release"),
    ("P12", "every answer comes with a decision that was reported"),
    ("none", "nothing unexpected: no error that cannot be here, no panic of idem's, no process that ends by itself"),
];

/// Checks a history. One that is not complete may have calls that go on.
pub(crate) fn check(history: &[Line], lease: Duration, complete: bool) -> Findings {
    let index = Index::new(history);
    let lease = nanos(lease);
    let mut violations = Vec::new();
    for (name, key) in &index.keys {
        owners::check(&index, name, key, lease, &mut violations);
        outcomes::check(&index, name, key, &mut violations);
    }
    outcomes::check_answers(&index, &mut violations);
    liveness::check_dead(&index, &mut violations);
    let slowest = liveness::check_take_overs(&index, lease, &mut violations);
    if complete {
        liveness::check_ends(&index, &mut violations);
    }
    violations.sort_by(|one, two| (one.at, one.promise).cmp(&(two.at, two.promise)));
    let mut faults = BTreeMap::new();
    for fault in &index.faults {
        *faults.entry(fault.kind.clone()).or_default() += 1;
    }
    let counts = counts(&index);
    let slowest_take_over = slowest.map(Duration::from_nanos);
    Findings { violations, counts, faults, decisions: index.decisions, slowest_take_over }
}

fn counts(index: &Index) -> Vec<(&'static str, u64)> {
    let calls = |which: &dyn Fn(&Call) -> bool| index.calls.values().filter(|call| which(call)).count() as u64;
    let bodies = |how: How| {
        index.bodies.values().filter(|body| body.ended.is_some_and(|(_, ended)| ended == how)).count() as u64
    };
    let error = |wanted: &str| calls(&|call| matches!(&call.answer, Some(Answer::Error { name }) if name == wanted));
    let decided = |name: &str| index.decisions.get(name).copied().unwrap_or_default();
    vec![
        ("keys", index.called().len() as u64),
        ("calls", calls(&|_| true)),
        ("calls answered with a value", calls(&|call| matches!(call.answer, Some(Answer::Value { .. })))),
        ("replays", index.keys.values().map(|key| key.replays.len() as u64).sum()),
        ("calls that had to wait", decided("waited")),
        ("calls: InFlight", error("InFlight")),
        ("calls: Store", error("Store")),
        ("calls: LeaseLost", error("LeaseLost")),
        ("calls dropped by their callers", calls(&|call| call.ended.is_some() && call.answer.is_none())),
        ("bodies", index.bodies.len() as u64),
        ("bodies that returned a value", bodies(How::Value)),
        ("bodies that returned an error to keep", bodies(How::Kept)),
        ("bodies that returned another error", bodies(How::Failed)),
        ("bodies that panicked", bodies(How::Panicked)),
        ("bodies that were stopped or dropped", bodies(How::Cut)),
        (
            "bodies that died with their process",
            index.bodies.values().filter(|body| body.ended.is_none()).count() as u64,
        ),
        ("take-overs", decided("taken_over")),
        ("commits refused", decided("commit_refused")),
        ("processes", index.processes.len() as u64),
    ]
}
