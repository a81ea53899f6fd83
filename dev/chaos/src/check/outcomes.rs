//! P2, P3, P6, P12: one outcome, which every duplicate gets, and nothing that is not said.

use super::{Body, Given, Index, Key, Rules, Violation};
use crate::history::{Answer, How};
use crate::keys;

/// Says how often an outcome was replayed that was lost since, and that no replica had
/// acknowledged.
pub(super) fn check(
    index: &Index,
    name: &str,
    key: &Key,
    rules: Rules,
    violations: &mut Vec<Violation>,
) -> u64 {
    let mut known = known_outcomes(index, name, key, violations);
    if keys::is_short_lived(name) {
        // Once the outcome has expired, the next body runs.
        return 0;
    }
    let mut lost = 0;
    if rules.forgets {
        // An outcome that a replica has acknowledged stays; a replay before that may be lost.
        let is_acknowledged = |body: &Body| {
            key.recorded
                .iter()
                .any(|(_, _, attempt)| *attempt == body.attempt)
        };
        let (acknowledged, others): (Vec<_>, Vec<_>) = known
            .into_iter()
            .partition(|(_, body)| is_acknowledged(body));
        lost = if acknowledged.is_empty() {
            0
        } else {
            others.len() as u64
        };
        known = acknowledged;
    }
    let mut broken = |promise, at, text| {
        violations.push(Violation {
            promise,
            at,
            key: name.to_owned(),
            text,
        });
    };
    known.sort_by_key(|(at, _)| *at);
    let Some((first, of)) = known.first().copied() else {
        return lost;
    };
    let promise = if matches!(of.ended, Some((_, How::Kept))) {
        "P6"
    } else {
        "P2"
    };
    for (at, other) in known.iter().filter(|(_, other)| other.number != of.number) {
        let text = format!(
            "the outcome of body {} was given or recorded after that of body {}",
            other.number, of.number
        );
        broken(if promise == "P6" { promise } else { "P3" }, *at, text);
    }
    for body in index.bodies_of(key).filter(|body| body.call != of.call) {
        // Of two bodies, that of the higher attempt was begun after the other's commit, whenever
        // that was answered: a commit is accepted from the last owner alone.
        if body.first_from > first || body.attempt > of.attempt {
            let text = format!(
                "body {} (attempt {}) began although the outcome of body {} (attempt {}) was \
                 recorded",
                body.number, body.attempt, of.number, of.attempt
            );
            broken(promise, body.begun, text);
        }
    }
    lost
}

/// Says when each outcome was known to be recorded, and whose it is.
pub(super) fn known_outcomes<'a>(
    index: &'a Index,
    name: &str,
    key: &'a Key,
    violations: &mut Vec<Violation>,
) -> Vec<(u64, &'a Body)> {
    let mut broken = |promise, at, text| {
        violations.push(Violation {
            promise,
            at,
            key: name.to_owned(),
            text,
        });
    };

    let mut known = Vec::new();
    for (at, decision, attempt) in &key.recorded {
        let how = if decision == "error_kept" {
            How::Kept
        } else {
            How::Value
        };
        let ended = |body: &&Body| body.ended.is_some_and(|(_, ended)| ended == how);
        let mut bodies = index
            .bodies_of(key)
            .filter(|body| body.attempt == *attempt)
            .filter(ended);
        match bodies.next() {
            Some(body) => known.push((*at, body)),
            None => broken(
                "P3",
                *at,
                format!("`{decision}` under attempt {attempt}, of which no body ended so"),
            ),
        }
    }
    for (at, receipt, given) in &key.replays {
        let body = index
            .bodies
            .get(&receipt.body)
            .filter(|body| body.key == name && body.call == receipt.call);
        match (body, body.and_then(|body| body.ended)) {
            (Some(body), Some((_, How::Value))) if *given == Given::Value => {
                known.push((*at, body));
            }
            (Some(body), Some((_, How::Kept))) if *given == Given::Kept => known.push((*at, body)),
            (Some(body), Some((_, How::Value | How::Kept))) => {
                broken(
                    "P6",
                    *at,
                    format!(
                        "the outcome of body {} was replayed as {given:?}",
                        body.number
                    ),
                );
            }
            _ => broken(
                "P2",
                *at,
                format!("a replay of {receipt:?}, which no body of this key returned"),
            ),
        }
    }
    known
}

/// Answers that cannot be, and those that nothing was reported of.
pub(super) fn check_answers(index: &Index, violations: &mut Vec<Violation>) {
    for (number, call) in &index.calls {
        let (Some(at), Some(answer)) = (call.ended, &call.answer) else {
            continue;
        };
        let mut broken = |promise, text| {
            violations.push(Violation {
                promise,
                at,
                key: call.key.clone(),
                text,
            });
        };
        match answer {
            Answer::Error { name } if name == "AlreadyDone" => {
                broken(
                    "P2",
                    format!("call {number} was told AlreadyDone while the outcome is to be kept"),
                );
            }
            Answer::Error { name } if !matches!(&**name, "InFlight" | "Store" | "LeaseLost") => {
                broken("none", format!("call {number} failed with {name}"));
            }
            Answer::Unexpected { text } => {
                broken("none", format!("call {number} ended with {text}"));
            }
            _ => {}
        }
        if call.decisions == 0 {
            broken(
                "P12",
                format!(
                    "call {number} ({}) was answered {answer:?}, and no decision was reported",
                    call.mode
                ),
            );
        }
    }
}
