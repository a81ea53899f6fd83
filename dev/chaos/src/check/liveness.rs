//! P4 and P5: nothing runs without the store, and everything comes to an end.

use super::{Ended, Index, Violation};
use crate::history::{Answer, How};

/// The time that a take-over may need beyond the lease.
const SLACK: u64 = 2_000_000_000;
/// How long after a fault a process may need to find back to its server.
const RECOVERY: u64 = 1_000_000_000;
/// The same where another server has to take the place of one that is gone.
const FAIL_OVER: u64 = 6_000_000_000;

/// P4: a call that began and whose body began while the server was dead.
pub(super) fn check_dead(index: &Index, violations: &mut Vec<Violation>) {
    for body in index.bodies.values() {
        let Some(call) = index.calls.get(&body.call) else {
            continue;
        };
        if index
            .dead
            .iter()
            .any(|(down, up)| call.begun > *down && body.begun < *up)
        {
            let text = format!(
                "body {} began although the server was dead since before its call",
                body.number
            );
            violations.push(Violation {
                promise: "P4",
                at: body.begun,
                key: body.key.clone(),
                text,
            });
        }
    }
}

/// P5: in a time without faults, a call that waits for longer than a lease gets its turn or an
/// answer, or another call got it. Returns the longest time from the death of an owner to the next
/// body of its key, with a call waiting throughout.
pub(super) fn check_take_overs(
    index: &Index,
    lease: u64,
    fails_over: bool,
    violations: &mut Vec<Violation>,
) -> Option<u64> {
    let quiet = |from: u64, to: u64| is_quiet(index, fails_over, from, to);
    check_waits(index, lease, quiet, violations);
    let killed = |process: u64| match index.processes.get(&process) {
        Some(Some(Ended::Killed(at))) => Some(*at),
        _ => None,
    };
    let mut slowest = None;
    for (name, key) in &index.keys {
        for body in index.bodies_of(key) {
            let Some(died) = killed(body.by).filter(|_| body.ended.is_none()) else {
                continue;
            };
            let Some(next) = index.bodies_of(key).find(|next| next.begun > died) else {
                continue;
            };
            // A process that had been stopped for long may have lost the key before it died.
            let taken_before = index.bodies_of(key).any(|other| {
                other.number != body.number
                    && other.last_from > body.last_from
                    && other.begun < died
            });
            let waited = index
                .calls
                .values()
                .filter(|call| call.key == *name && call.by != body.by)
                // A call ends with its process.
                .any(|call| {
                    call.begun < died
                        && call
                            .ended
                            .or(killed(call.by))
                            .is_none_or(|ended| ended >= next.begun)
                });
            if waited && !taken_before && quiet(died, next.begun) {
                let took = next.begun - died;
                slowest = slowest.max(Some(took));
                if took > lease + SLACK {
                    let text = format!(
                        "{} ms from the death of body {} to the next",
                        took / 1_000_000,
                        body.number
                    );
                    violations.push(Violation {
                        promise: "P5",
                        at: next.begun,
                        key: name.clone(),
                        text,
                    });
                }
            }
        }
    }
    slowest
}

/// Whether no fault disturbs the servers in this time, or has disturbed them just before.
fn is_quiet(index: &Index, fails_over: bool, from: u64, to: u64) -> bool {
    let recovery = if fails_over { FAIL_OVER } else { RECOVERY };
    let hits = |began: u64, ended: u64| began < to && ended.saturating_add(recovery) > from;
    !index
        .faults
        .iter()
        .filter(|fault| fault.kind != "kill")
        .any(|fault| hits(fault.began, fault.ended))
}

/// A call that was told to wait no longer had another call before it.
fn check_waits(
    index: &Index,
    lease: u64,
    quiet: impl Fn(u64, u64) -> bool,
    violations: &mut Vec<Violation>,
) {
    for (number, call) in &index.calls {
        let (Some(at), Some(Answer::Error { name })) = (call.ended, &call.answer) else {
            continue;
        };
        let from = at.saturating_sub(lease + SLACK);
        if name != "InFlight" || call.begun > from || call.wait < lease + SLACK || !quiet(from, at)
        {
            continue;
        }
        let Some(key) = index.keys.get(&call.key) else {
            continue;
        };
        // Whoever claimed, polled or was confirmed in this time kept the call waiting by right.
        let claimed = key.claims.values().any(|claim| {
            let mut signs = claim
                .renewed
                .iter()
                .copied()
                .chain([claim.sent])
                .chain(claim.owned.map(|(at, _)| at));
            signs.any(|sign| sign >= from)
        });
        let polled = index.bodies_of(key).any(|body| body.last_from >= from);
        if !claimed && !polled {
            let text = format!(
                "call {number} waited for longer than a lease and two seconds, and no call had the key"
            );
            violations.push(Violation {
                promise: "P5",
                at,
                key: call.key.clone(),
                text,
            });
        }
    }
}

/// P5: when all is healed every call ends, every process ends, and every key that is called has an
/// outcome.
pub(super) fn check_ends(index: &Index, violations: &mut Vec<Violation>) {
    let end = index
        .calls
        .values()
        .filter_map(|call| call.ended)
        .max()
        .unwrap_or_default();
    let mut broken = |promise, key: &str, text| {
        violations.push(Violation {
            promise,
            at: end,
            key: key.into(),
            text,
        });
    };
    for (process, ended) in &index.processes {
        match ended {
            Some(Ended::Killed(_) | Ended::ByItself { left: 0 }) => {}
            Some(Ended::ByItself { left }) => {
                broken(
                    "P5",
                    "",
                    format!(
                        "process {process} did not end in time: {left} of its callers are still at work"
                    ),
                );
            }
            None => broken(
                "none",
                "",
                format!("process {process} ended, or had to be ended, unasked"),
            ),
        }
    }
    for (number, call) in index.calls.iter().filter(|(_, call)| call.ended.is_none()) {
        if matches!(
            index.processes.get(&call.by),
            Some(Some(Ended::ByItself { .. })) | None
        ) {
            broken(
                "P5",
                &call.key,
                format!("call {number} ({}) was never answered", call.mode),
            );
        }
    }
    let Some(healed) = index.healed else { return };
    let after = || index.calls.values().filter(|call| call.begun > healed);
    let answered = |name: &str| {
        after().filter(|call| call.key == name).any(|call| {
            matches!(
                call.answer,
                Some(Answer::Value { .. } | Answer::Kept { .. })
            )
        })
    };
    let last: std::collections::BTreeSet<&str> = after()
        .filter(|call| call.mode == "last")
        .map(|call| &*call.key)
        .collect();
    for key in last.into_iter().filter(|key| !answered(key)) {
        broken(
            "P5",
            key,
            "all is healed, and the key cannot be brought to its end".into(),
        );
    }
    // Other checks cover acknowledged successes; here at least one success must exist.
    if index.healed.is_some()
        && !index
            .bodies
            .values()
            .any(|body| matches!(body.ended, Some((_, How::Value))))
    {
        broken("P5", "", "no body ever returned a value".into());
    }
}
