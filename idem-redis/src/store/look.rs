//! The value at a key: a record, and the outcome that is kept aside for it.

use std::time::Duration;

use bytes::Bytes;
use idem_core::StoreError;
use idem_core::record::{Record, RecordInfo};
use idem_core::wire::{self, Parsed, WireError};

use crate::connection::step_connection::StepConnection;
use crate::store::script::{FoundRecord, INSPECT, StoredValue, inspected};
use crate::store::unreadable::{no_expiry, unreadable};

/// Reads a record, and the outcome that is kept aside for it.
pub(crate) async fn look(
    connection: &mut StepConnection,
    key: &str,
    aside: &str,
) -> Result<Option<FoundRecord>, StoreError> {
    if let Some(answer) = connection
        .script_on_all(&INSPECT, &[key, aside], &[])
        .await?
    {
        return inspected(connection.server(), &answer);
    }
    // Their slot is moving, so they are read one after the other. An outcome that does not belong
    // to the record is recognized by its attempt.
    let answer = connection.script(&INSPECT, &[key], &[]).await?;
    let Some(mut found) = inspected(connection.server(), &answer)? else {
        return Ok(None);
    };
    if is_aside(&found.record.value) {
        let answer = connection.script(&INSPECT, &[aside], &[]).await?;
        found.outcome = inspected(connection.server(), &answer)?.map(|outcome| outcome.record);
    }
    Ok(Some(found))
}

/// Returns whether a record says that its outcome is kept aside.
pub(crate) fn is_aside(record: &Bytes) -> bool {
    matches!(wire::decode(record), Ok(Parsed::Aside { .. }))
}

/// Describes a record.
pub(crate) fn describe(found: &FoundRecord) -> Result<RecordInfo, StoreError> {
    describe_by(wire::decode, found)
}

/// Returns the record, and how long it lives. If its outcome is kept aside, that is the outcome's.
pub(crate) fn record_of(found: &FoundRecord) -> Result<(Record, Duration), StoreError> {
    record_by(wire::decode, found)
}

/// Describes a record of which `decode` reads as much as is needed.
pub(crate) fn describe_by(
    decode: fn(&Bytes) -> Result<Parsed, WireError>,
    found: &FoundRecord,
) -> Result<RecordInfo, StoreError> {
    match record_by(decode, found)? {
        (Record::InFlight(_), _) if found.record.left.is_none() => Err(no_expiry()),
        (record, left) => Ok(RecordInfo::new(&record, left)),
    }
}

fn record_by(
    decode: fn(&Bytes) -> Result<Parsed, WireError>,
    found: &FoundRecord,
) -> Result<(Record, Duration), StoreError> {
    let lives = |value: &StoredValue| value.left.unwrap_or(Duration::MAX);
    match decode(&found.record.value).map_err(unreadable)? {
        Parsed::Record(record) => Ok((record, lives(&found.record))),
        Parsed::Aside {
            attempt,
            fingerprint,
        } => {
            let done = Record::Done {
                attempt,
                fingerprint,
            };
            let Some(aside) = &found.outcome else {
                return Ok((done, lives(&found.record)));
            };
            match decode(&aside.value).map_err(unreadable)? {
                Parsed::Record(record @ Record::Committed { .. })
                    if record.attempt() == attempt =>
                {
                    Ok((record, lives(aside)))
                }
                _ => Ok((done, lives(&found.record))),
            }
        }
    }
}
