//! Messages: none is lost, and each ends where it belongs.

use super::{Index, Violation};
use crate::history::How;

/// Checks what is left of the messages of a run that is over.
pub(super) fn check(index: &Index, violations: &mut Vec<Violation>) {
    let Some((at, left)) = index.left else { return };
    let mut broken = |key: &str, text| {
        violations.push(Violation {
            promise: "messages",
            at,
            key: key.into(),
            text,
        });
    };
    if left > 0 {
        broken(
            "",
            format!("{left} messages are left, although all is healed"),
        );
    }
    for (number, message) in &index.messages {
        let outcome = |wanted: How| {
            let bodies = index.keys.get(&message.key).map(|key| index.bodies_of(key));
            bodies.is_some_and(|mut bodies| {
                bodies.any(|body| body.ended.is_some_and(|(_, how)| how == wanted))
            })
        };
        let is_aside = !message.aside.is_empty();
        if message.poison {
            if !is_aside || message.aside.iter().any(|reason| reason != "poison") {
                broken(
                    &message.key,
                    format!(
                        "message {number} is poison, and is put aside for {:?}",
                        message.aside
                    ),
                );
            }
        } else if is_aside {
            if message.aside.iter().any(|reason| reason != "kept") || !outcome(How::Kept) {
                broken(
                    &message.key,
                    format!("message {number} is put aside for {:?}", message.aside),
                );
            }
        } else if !outcome(How::Value) {
            broken(
                &message.key,
                format!(
                    "message {number} is lost: no body of its key succeeded, and it is not put \
                     aside"
                ),
            );
        }
    }
}
