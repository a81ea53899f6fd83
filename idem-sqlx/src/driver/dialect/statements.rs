//! Groups of statements that each database has.

use std::sync::Arc;

use super::ListScope;
use crate::row::SLACK;

/// Overwrites and removals of a row that the step owns, or has read.
pub(super) struct WriteStatements {
    pub(super) put_owned: Arc<str>,
    pub(super) put_as_read: Arc<str>,
    pub(super) remove: Arc<str>,
}

/// Matches the rows of a window whose state is one of two parameters, or none that is known.
pub(super) fn in_states(one: &str, other: &str) -> String {
    format!(
        "(state IN ({one}, {other}) \
         OR state NOT IN ('issued', 'in_flight', 'released', 'committed', 'done'))"
    )
}

/// The state of the record that a row holds, by the database's clock.
pub(super) fn state_now(now: &str) -> String {
    format!(
        "CASE WHEN state = 'in_flight' AND NOT (lease_until > {now}) THEN 'abandoned' \
         WHEN state = 'issued' AND valid_until <= {now} THEN 'expired' \
         WHEN state = 'committed' AND valid_until <= {now} THEN 'done' ELSE state END"
    )
}

/// The reads of listings.
pub(super) struct ListStatements {
    pub(super) window: Arc<str>,
    pub(super) window_of_operation: Arc<str>,
    pub(super) window_of_keys: Arc<str>,
    pub(super) window_end: Arc<str>,
    pub(super) window_in_states: Arc<str>,
    pub(super) count: Arc<str>,
    pub(super) has_more: Arc<str>,
    pub(super) ids: Arc<str>,
}

impl ListStatements {
    pub(super) fn window(&self, scope: &ListScope) -> &Arc<str> {
        match scope {
            ListScope::All => &self.window,
            ListScope::OfOperation(_) => &self.window_of_operation,
        }
    }
}

/// When a sweep looks at a row that is overwritten: the row's own time, if that is neither too
/// early nor too late, so that most writes change neither the column nor its index. `from_now`
/// writes the time at which a sweep has something to do with the row, and a slack for each whole
/// minute of it.
pub(super) fn sweep_at(own: &str, from_now: impl Fn(i64) -> String) -> String {
    let earliest = from_now(0);
    let latest = from_now(2 * SLACK);
    let otherwise = from_now(SLACK);
    format!(
        "CASE WHEN {own} BETWEEN {earliest} AND {latest} THEN {own} \
         ELSE coalesce({otherwise}, {own}) END"
    )
}

/// The statements of the background tasks. Each statement of a sweep looks at the first rows that
/// are due, and takes its own among them.
pub(super) struct UpkeepStatements {
    pub(super) sweep: Arc<str>,
    pub(super) sweep_outcomes: Arc<str>,
    /// Of rows that are due with nothing to do yet: written by hand, or with times changed by hand.
    pub(super) postpone: Arc<str>,
    pub(super) time: Arc<str>,
}

impl UpkeepStatements {
    /// Returns the statements of a batch, each with the revision that it writes.
    pub(super) fn sweeps(&self) -> [(&Arc<str>, Option<i64>); 3] {
        [
            (&self.sweep, None),
            (&self.sweep_outcomes, Some(fastrand::i64(..))),
            (&self.postpone, None),
        ]
    }
}

/// When a row has something for a sweep that stands in it: the end of its outcome, or of itself.
pub(super) const CHORE: &str =
    "CASE WHEN state = 'committed' THEN coalesce(valid_until, expires_at) ELSE expires_at END";

/// The check and the creation of the table.
pub(super) struct TableStatements {
    pub(super) schema: Arc<str>,
    pub(super) create: Arc<str>,
}

/// Changes each of these texts.
#[cfg(test)]
#[allow(dead_code, reason = "used with one version of sqlx alone")]
pub(super) fn rewrite<'s>(
    texts: impl IntoIterator<Item = &'s mut Arc<str>>,
    change: &dyn Fn(&str) -> String,
) {
    for text in texts {
        *text = change(text).into();
    }
}

#[cfg(test)]
#[allow(dead_code, reason = "used with one version of sqlx alone")]
impl WriteStatements {
    pub(super) fn rewrite(&mut self, change: &dyn Fn(&str) -> String) {
        let texts = [&mut self.put_owned, &mut self.put_as_read, &mut self.remove];
        rewrite(texts, change);
    }
}

#[cfg(test)]
#[allow(dead_code, reason = "used with one version of sqlx alone")]
impl ListStatements {
    pub(super) fn rewrite(&mut self, change: &dyn Fn(&str) -> String) {
        let texts = [
            &mut self.window,
            &mut self.window_of_operation,
            &mut self.window_of_keys,
            &mut self.window_end,
            &mut self.window_in_states,
            &mut self.count,
            &mut self.has_more,
            &mut self.ids,
        ];
        rewrite(texts, change);
    }
}

#[cfg(test)]
#[allow(dead_code, reason = "used with one version of sqlx alone")]
impl UpkeepStatements {
    pub(super) fn rewrite(&mut self, change: &dyn Fn(&str) -> String) {
        let texts = [
            &mut self.sweep,
            &mut self.sweep_outcomes,
            &mut self.postpone,
            &mut self.time,
        ];
        rewrite(texts, change);
    }
}
