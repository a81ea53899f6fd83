//! Steps: a run of a key does not repeat what it has recorded, and no other run sees it.

use super::outcomes::known_outcomes;
use super::owners::overlaps;
use super::{Body, Index, Rules, Step, Violation};
use crate::clock::nanos;
use crate::history::{How, Receipt};
use crate::keys;

/// By how much, in ns, an outcome may seem to expire later than it should.
const SLACK: u64 = 100_000_000;

/// Checks a step of a key, over all attempts.
pub(super) fn check(
    index: &Index,
    name: &str,
    step: &Step,
    rules: Rules,
    violations: &mut Vec<Violation>,
) {
    let mut broken = |at, text| {
        violations.push(Violation {
            promise: "steps",
            at,
            key: name.to_owned(),
            text,
        });
    };
    // A failover may have lost the last renewal of a step's lease.
    for (at, text) in overlaps(index.closures_of(step), |_| rules.forgets) {
        broken(at, text);
    }

    let returned = |receipt: &Receipt| {
        let closure = index
            .closures_of(step)
            .find(|closure| closure.number == receipt.body && closure.call == receipt.call);
        closure.filter(|closure| matches!(closure.ended, Some((_, How::Value))))
    };
    let mut known: Vec<(u64, &Body)> = Vec::new();
    for (at, receipt) in &step.recorded {
        known.extend(returned(receipt).map(|closure| (*at, closure)));
    }
    for value in step.given.iter().filter(|value| value.is_replayed()) {
        let Some(closure) = returned(&value.receipt) else {
            let text = format!(
                "{:?} was given, which no closure of it returned",
                value.receipt
            );
            broken(value.at, text);
            continue;
        };
        if index.closures.contains_key(&value.closure) {
            let text = format!(
                "closure {} ran, and the value of closure {} was given",
                value.closure, closure.number
            );
            broken(value.at, text);
        }
        // If servers forget, a value or an outcome that no replica has acknowledged may be lost.
        if !rules.forgets {
            known.push((value.at, closure));
        }
        if !rules.forgets && outlived(index, name, value.call, closure) {
            let text = format!(
                "the value of closure {} was given to call {}, which began when the outcome of \
                 its run had expired",
                closure.number, value.call
            );
            broken(value.at, text);
        }
    }

    // Of each value, when it was known first.
    known.sort_by_key(|(at, closure)| (closure.number, *at));
    known.dedup_by_key(|(_, closure)| closure.number);
    for (at, of) in known {
        // Only the last owner of a step's record can commit. So a closure that began later must
        // have found the value, no matter when the commit was answered.
        let since = if rules.forgets { at } else { of.begun };
        let again = index.closures_of(step).find(|closure| {
            closure.number != of.number
                && closure.first_from > since
                && is_same_run(index, name, of, closure)
        });
        if let Some(closure) = again {
            let text = format!(
                "closure {} (attempt {}) began although the value of closure {} (attempt {}) was \
                 recorded in the same run",
                closure.number, closure.attempt, of.number, of.attempt
            );
            broken(closure.begun, text);
        }
    }
}

/// Whether two closures certainly belong to one run of the key: no outcome that may have expired
/// since can have been recorded between them.
fn is_same_run(index: &Index, step: &str, earlier: &Body, later: &Body) -> bool {
    let Some(name) = keys::of_step(step) else {
        return false;
    };
    let mut bodies = index
        .keys
        .get(name)
        .into_iter()
        .flat_map(|key| index.bodies_of(key));
    !keys::is_short_lived(name)
        || !bodies.any(|body| {
            body.ended.is_some_and(|(at, how)| {
                (earlier.begun..=later.begun).contains(&at) && matches!(how, How::Value | How::Kept)
            })
        })
}

/// Whether the run that a closure belongs to has ended with an outcome that had expired when a call
/// began.
fn outlived(index: &Index, step: &str, call: u64, closure: &Body) -> bool {
    let key = keys::of_step(step).filter(|key| keys::is_short_lived(key));
    let (Some(name), Some(call)) = (key, index.calls.get(&call)) else {
        return false;
    };
    let Some(key) = index.keys.get(name) else {
        return false;
    };
    // The check of the outcomes reports what is wrong with them.
    let known = known_outcomes(index, name, key, &mut Vec::new());
    known.into_iter().any(|(at, body)| {
        // Bodies of a key never overlap, so the closure belongs to the run of this outcome, or to
        // an earlier one.
        body.ended.is_some_and(|(ended, _)| closure.begun < ended)
            && call.begun > at + nanos(keys::SHORT) + SLACK
    })
}
