//! P1, P3, P9: one owner at a time, each later one under a higher attempt.

use std::collections::BTreeSet;

use super::{Body, Claim, Index, Key, Rules, Violation};
use crate::clock::nanos;
use crate::history::How;
use crate::keys;

/// Says how often a key was given away because a failover had lost a renewal.
pub(super) fn check(
    index: &Index,
    name: &str,
    key: &Key,
    rules: Rules,
    violations: &mut Vec<Violation>,
) -> u64 {
    let mut broken = |promise, at, text| {
        violations.push(Violation {
            promise,
            at,
            key: name.to_owned(),
            text,
        });
    };

    // When an outcome has expired, attempts start at 1 again.
    let is_short_lived = keys::is_short_lived(name);
    let lost_renewals = if is_short_lived {
        BTreeSet::new()
    } else {
        check_claims(index, key, rules, &mut broken)
    };
    let is_expected =
        |body: &Body| lost_renewals.contains(&body.attempt) || (is_short_lived && rules.forgets);
    for (at, text) in overlaps(index.bodies_of(key), is_expected) {
        broken("P1", at, text);
    }
    if is_short_lived {
        return 0;
    }

    // P3: attempts increase from body to body; several bodies of one call are tries under one
    // attempt.
    let mut last: Option<&Body> = None;
    for body in index.bodies_of(key) {
        if let Some(last) =
            last.filter(|last| last.call != body.call && last.attempt >= body.attempt)
        {
            let text = format!(
                "attempt {} (body {}) came after attempt {}",
                body.attempt, body.number, last.attempt
            );
            broken("P3", body.begun, text);
        }
        last = Some(body);
    }
    lost_renewals.len() as u64
}

/// Says when a body was polled after a later one had begun. The poll counts from when that of the
/// whole call began, which is before the look at the lease.
pub(super) fn overlaps<'a>(
    bodies: impl Iterator<Item = &'a Body>,
    is_expected: impl Fn(&Body) -> bool,
) -> Vec<(u64, String)> {
    let mut found = Vec::new();
    let mut latest: Option<&Body> = None;
    for body in bodies {
        let overlapped = latest.filter(|earlier| earlier.last_from > body.begun);
        if let Some(earlier) = overlapped.filter(|_| !is_expected(body)) {
            let after = (earlier.last_from - body.begun) / 1_000;
            let text = format!(
                "body {} (attempt {}) was polled {after} µs after body {} (attempt {}) had begun",
                earlier.number, earlier.attempt, body.number, body.attempt
            );
            found.push((earlier.last_from, text));
        }
        if latest.is_none_or(|latest| latest.last_from < body.last_from) {
            latest = Some(body);
        }
    }
    found
}

/// P1 and P9: no key is given away as long as its owner may count on its lease, unless the owner
/// gave it up. Gives the attempts that were begun too early because a failover had lost a renewal:
/// those are not waited for, as is documented.
fn check_claims(
    index: &Index,
    key: &Key,
    rules: Rules,
    broken: &mut impl FnMut(&'static str, u64, String),
) -> BTreeSet<u64> {
    let mut lost_renewals = BTreeSet::new();
    // An owner counts on nine tenths of a lease, from when it sent what was confirmed.
    let counts_on = nanos(rules.lease) / 10 * 9;
    let mut owners: Vec<(u64, u64, &Claim)> = key
        .claims
        .values()
        .filter_map(|claim| claim.owned.map(|(at, attempt)| (attempt, at, claim)))
        .collect();
    owners.sort_by_key(|(attempt, at, _)| (*attempt, *at));
    for (i, (attempt, _, earlier)) in owners.iter().enumerate() {
        let confirmed = earlier
            .renewed
            .iter()
            .copied()
            .max()
            .unwrap_or_default()
            .max(earlier.sent);
        for (later_attempt, at, _) in &owners[i + 1..] {
            let gave_up = earlier.releasing.is_some_and(|releasing| releasing <= *at);
            if later_attempt > attempt && *at < confirmed + counts_on && !gave_up {
                if rules.forgets && *at >= earlier.sent + counts_on {
                    lost_renewals.insert(*later_attempt);
                    continue;
                }
                let mut of = index.bodies_of(key).filter(|body| body.attempt == *attempt);
                let done = of.any(|body| {
                    body.ended.is_some_and(|(end, how)| {
                        end < *at && matches!(how, How::Value | How::Kept)
                    })
                });
                let early = (confirmed + counts_on - at) / 1_000;
                let text = format!(
                    "attempt {later_attempt} was given {early} µs before the owner of attempt \
                     {attempt} had to stop"
                );
                broken(if done { "P9" } else { "P1" }, *at, text);
            }
        }
    }
    lost_renewals
}
