//! How much has happened, so that it can be seen that the checks had something to look at.

use super::index::Message;
use super::{Call, Index, Key};
use crate::history::{Answer, How};

pub(super) fn of(index: &Index) -> Vec<(&'static str, u64)> {
    let calls = |which: &dyn Fn(&Call) -> bool| {
        index.calls.values().filter(|call| which(call)).count() as u64
    };
    let bodies = |how: How| {
        index
            .bodies
            .values()
            .filter(|body| body.ended.is_some_and(|(_, ended)| ended == how))
            .count() as u64
    };
    let error = |wanted: &str| {
        calls(&|call| matches!(&call.answer, Some(Answer::Error { name }) if name == wanted))
    };
    let in_the_dark = |call: &Call| {
        index
            .dead
            .iter()
            .any(|(down, up)| call.begun > *down && call.ended.is_some_and(|end| end < *up))
    };
    let values = |replayed| {
        let given = index.steps.values().flat_map(|step| &step.given);
        given
            .filter(|value| value.is_replayed() == replayed)
            .count() as u64
    };
    let decided = |name: &str| index.decisions.get(name).copied().unwrap_or_default();
    vec![
        ("keys", index.called().len() as u64),
        ("calls", calls(&|_| true)),
        (
            "calls answered with a value",
            calls(&|call| matches!(call.answer, Some(Answer::Value { .. }))),
        ),
        (
            "replays",
            index
                .keys
                .values()
                .map(|key| key.replays.len() as u64)
                .sum(),
        ),
        ("calls that had to wait", decided("waited")),
        ("calls: InFlight", error("InFlight")),
        ("calls: Store", error("Store")),
        (
            "calls from begin to end while the server was dead",
            calls(&in_the_dark),
        ),
        ("calls: LeaseLost", error("LeaseLost")),
        (
            "calls dropped by their callers",
            calls(&|call| call.ended.is_some() && call.answer.is_none()),
        ),
        ("bodies", index.bodies.len() as u64),
        ("bodies that returned a value", bodies(How::Value)),
        ("bodies that returned an error to keep", bodies(How::Kept)),
        ("bodies that returned another error", bodies(How::Failed)),
        ("bodies that panicked", bodies(How::Panicked)),
        ("bodies that were stopped or dropped", bodies(How::Cut)),
        (
            "bodies that died with their process",
            index
                .bodies
                .values()
                .filter(|body| body.ended.is_none())
                .count() as u64,
        ),
        ("closures of steps", index.closures.len() as u64),
        ("values of steps", values(false)),
        ("values of steps, replayed", values(true)),
        ("take-overs", decided("taken_over")),
        (
            "polls that a stop had cut in two",
            index.keys.values().map(|key| cut_in_two(index, key)).sum(),
        ),
        ("commits refused", decided("commit_refused")),
        ("processes", index.processes.len() as u64),
    ]
}

/// Of a run whose calls come from messages.
pub(super) fn of_messages(index: &Index) -> Vec<(&'static str, u64)> {
    let messages = || index.messages.values();
    let aside =
        |wanted: fn(&Message) -> bool| messages().filter(|message| wanted(message)).count() as u64;
    vec![
        ("messages", index.messages.len() as u64),
        (
            "messages published twice",
            aside(|message| message.published > 1),
        ),
        ("poison", aside(|message| message.poison)),
        (
            "poison that is put aside",
            aside(|message| message.poison && !message.aside.is_empty()),
        ),
        (
            "messages put aside with a kept error",
            aside(|message| !message.poison && !message.aside.is_empty()),
        ),
        ("messages left", index.left.map_or(0, |(_, left)| left)),
    ]
}

/// Counts the bodies that took the time of their last poll after another body had begun, in a poll
/// that had begun before. The process was stopped between the check of the lease and the body's own
/// first step, which no code can exclude.
fn cut_in_two(index: &Index, key: &Key) -> u64 {
    let mut bodies: Vec<_> = index.bodies_of(key).collect();
    bodies.sort_by_key(|body| body.begun);
    let cut = bodies
        .windows(2)
        .filter(|pair| pair[0].last_from <= pair[1].begun && pair[0].last_at > pair[1].begun);
    cut.count() as u64
}
