//! Counting records: the server tells the states of most of them without anything else.

use std::collections::BTreeMap;

use idem_core::record::{RecordId, RecordState};
use idem_core::store::admin::{Count, Counts, Cursor, Listing};
use idem_core::{StoreError, StoreErrorKind, wire};

use crate::connection::step_runner::StepRunner;
use crate::store::keys::Keys;
use crate::store::look::describe_by;
use crate::store::peek::{Peeked, Wanted, peek_all};
use crate::store::scan::{MAX_BATCH, SCANS, Scanner};

/// The state of all other records depends on their fields, their expiry or another key.
const WANTED: Wanted = Wanted {
    letters: "",
    plain: "cerd",
};

/// Counts the records of some `SCAN`s.
pub(crate) async fn count(
    runner: &StepRunner,
    keys: &Keys,
    after: Option<&Cursor>,
) -> Result<Counts, StoreError> {
    let listing = Listing::all();
    let mut scanner = Scanner::new(runner, keys, &listing, after)?;
    let mut tally = Tally::default();
    let mut batch = scanner.next(MAX_BATCH).await?;
    for left in (0..SCANS).rev() {
        let Some(current) = batch else {
            break;
        };
        // While these records are read, the server looks for the next keys.
        let scanning = async {
            if left > 0 {
                scanner.next(MAX_BATCH).await
            } else {
                Ok(None)
            }
        };
        let peeking = peek_all(runner, keys, &current.ids, WANTED);
        let (peeked, next) = tokio::join!(peeking, scanning);
        for (id, peeked) in current.ids.iter().zip(peeked?) {
            tally.add(id, peeked)?;
        }
        batch = next?;
    }
    if scanner.has_begun_again {
        return Err(StoreError::new(
            StoreErrorKind::Unavailable,
            "a server of Redis was lost, or gave slots away, while its records were counted; count \
             again",
        ));
    }
    let counts = tally.counts.into_values().flatten().collect();
    Ok(Counts::new(counts, tally.unreadable, scanner.cursor()))
}

#[derive(Default)]
struct Tally {
    /// Those of each operation.
    counts: BTreeMap<Box<str>, Vec<Count>>,
    unreadable: u64,
}

impl Tally {
    fn add(&mut self, id: &RecordId, peeked: Peeked) -> Result<(), StoreError> {
        let mut silent_for = None;
        let state = match peeked {
            Peeked::Nothing => return Ok(()),
            Peeked::Letter(b'r') => RecordState::Released,
            Peeked::Letter(b'd') => RecordState::Done,
            Peeked::Letter(_) => RecordState::Committed,
            Peeked::Found(found) => match describe_by(wire::decode_head, &found) {
                Ok(info) => {
                    silent_for = info.lease_age;
                    info.state
                }
                Err(error) if error.kind() == StoreErrorKind::Unreadable => {
                    self.unreadable += 1;
                    return Ok(());
                }
                Err(error) => return Err(error),
            },
        };
        let operation = id.operation();
        if !self.counts.contains_key(operation) {
            self.counts.insert(operation.into(), Vec::new());
        }
        let Some(counts) = self.counts.get_mut(operation) else {
            return Ok(());
        };
        match counts.iter_mut().find(|count| count.state == state) {
            Some(count) => {
                count.records += 1;
                count.silent_for = count.silent_for.max(silent_for);
            }
            None => counts.push(Count::new(operation, state, 1, silent_for)),
        }
        Ok(())
    }
}
