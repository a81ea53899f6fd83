//! The value at a key: a record, and the outcome that has its own key.

use std::time::Duration;

use bytes::Bytes;
use idem_core::StoreError;
use idem_core::record::{Record, RecordInfo};
use idem_core::wire::{self, Parsed, WireError};

use crate::client::lane::Lane;
use crate::store::script::{INSPECT, StoredValue, inspected};
use crate::store::unreadable::{no_expiry, unreadable};

/// Reads a record, and the outcome that is kept aside for it.
pub(crate) async fn look(
    lane: &mut Lane,
    key: &str,
    aside: &str,
) -> Result<Option<(StoredValue, Option<StoredValue>)>, StoreError> {
    if let Some(answer) = lane.script_on_all(&INSPECT, &[key, aside], &[]).await? {
        return inspected(lane.server(), &answer);
    }
    // Their slot is on its way to another node. The outcome is compared with the mark, so that it
    // matters little that they are read apart.
    let answer = lane.script(&INSPECT, &[key], &[]).await?;
    let Some((record, _)) = inspected(lane.server(), &answer)? else { return Ok(None) };
    let mut outcome = None;
    if is_aside(&record.value) {
        let answer = lane.script(&INSPECT, &[aside], &[]).await?;
        outcome = inspected(lane.server(), &answer)?.map(|(outcome, _)| outcome);
    }
    Ok(Some((record, outcome)))
}

/// Whether a record is the mark of an outcome that is kept aside.
pub(crate) fn is_aside(record: &Bytes) -> bool {
    matches!(wire::decode(record), Ok(Parsed::Aside { .. }))
}

/// Describes a record that was read whole.
pub(crate) fn describe(record: &StoredValue, outcome: Option<&StoredValue>) -> Result<RecordInfo, StoreError> {
    describe_by(wire::decode, record, outcome)
}

/// The record that counts, and how long it lives: an outcome that is kept aside with its mark.
pub(crate) fn record_of(record: &StoredValue, outcome: Option<&StoredValue>) -> Result<(Record, Duration), StoreError> {
    record_by(wire::decode, record, outcome)
}

/// Describes a record that is decoded in this way.
pub(crate) fn describe_by(
    decode: fn(&Bytes) -> Result<Parsed, WireError>,
    record: &StoredValue,
    outcome: Option<&StoredValue>,
) -> Result<RecordInfo, StoreError> {
    match record_by(decode, record, outcome)? {
        (Record::InFlight(_), _) if record.left.is_none() => Err(no_expiry()),
        (found, left) => Ok(RecordInfo::new(&found, left)),
    }
}

fn record_by(
    decode: fn(&Bytes) -> Result<Parsed, WireError>,
    record: &StoredValue,
    outcome: Option<&StoredValue>,
) -> Result<(Record, Duration), StoreError> {
    let lives = |found: &StoredValue| found.left.unwrap_or(Duration::MAX);
    match decode(&record.value).map_err(unreadable)? {
        Parsed::Record(found) => Ok((found, lives(record))),
        Parsed::Aside { attempt, fingerprint } => {
            let done = Record::Done { attempt, fingerprint };
            let Some(aside) = outcome else { return Ok((done, lives(record))) };
            match decode(&aside.value).map_err(unreadable)? {
                Parsed::Record(found @ Record::Committed { .. }) if found.attempt() == attempt => {
                    Ok((found, lives(aside)))
                }
                _ => Ok((done, lives(record))),
            }
        }
    }
}
