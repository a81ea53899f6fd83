//! Removals.

use std::time::Duration;

use bytes::Bytes;
use idem_core::record::{Record, Removed};
use idem_core::wire::{self, Parsed};
use idem_core::{StoreError, StoreErrorKind};
use redis::Value;

use crate::client::error::unexpected;
use crate::client::lane::Lane;
use crate::store::look::is_aside;
use crate::store::script::{REMOVE, Swap, swap};
use crate::store::unreadable::unreadable;

/// How often a record may change under a removal.
pub(crate) const ROUNDS: usize = 16;

pub(crate) fn changed_too_often(what: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        format!("the record changed {ROUNDS} times while it was being {what}; this may be tried again"),
    )
}

/// Reads, then removes what was read: a script cannot tell a damaged record from a whole one, and
/// what is damaged is left alone.
pub(crate) async fn remove(lane: &mut Lane, key: &str, aside: &str) -> Result<Removed, StoreError> {
    let mut found = match lane.send(redis::cmd("GET").arg(key)).await? {
        Value::Nil => return Ok(Removed::Nothing),
        Value::BulkString(found) => Bytes::from(found),
        other => return Err(unexpected(lane.server(), &other)),
    };
    for _ in 0..ROUNDS {
        let lease = match wire::decode(&found).map_err(unreadable)? {
            Parsed::Record(Record::InFlight(held)) => held.lease,
            _ => Duration::ZERO,
        };
        let renewed_by = lane.renewed_by(lease);
        let args = [wire::without_waited(&found), renewed_by.as_bytes()];
        let answer = remove_found(lane, key, aside, &found, &args).await?;
        match swap(lane.server(), &answer)? {
            Swap::Gone => return Ok(Removed::Nothing),
            Swap::Changed(other) => found = other,
            Swap::Alive(lease_left) => return Ok(Removed::InFlight { lease_left }),
            Swap::Unsure(left) => {
                if let Some(lease_left) = lane.sure_after(left, lease).await? {
                    return Ok(Removed::InFlight { lease_left });
                }
            }
            Swap::Done | Swap::Free => return Ok(Removed::Removed),
        }
    }
    Err(changed_too_often("removed"))
}

/// Removes the record that was read, and with a mark the outcome that is kept aside.
pub(crate) async fn remove_found(
    lane: &mut Lane,
    key: &str,
    aside: &str,
    found: &Bytes,
    args: &[&[u8]],
) -> Result<Value, StoreError> {
    if !is_aside(found) {
        return lane.script(&REMOVE, &[key], args).await;
    }
    if let Some(answer) = lane.script_on_all(&REMOVE, &[key, aside], args).await? {
        return Ok(answer);
    }
    // Their slot is on its way to another node: one after the other. The outcome only if it is
    // still the same, since the key may have a new life as soon as its record is gone.
    let outcome = lane.send(redis::cmd("GET").arg(aside)).await?;
    let answer = lane.script(&REMOVE, &[key], args).await?;
    if let (Swap::Done, Value::BulkString(outcome)) = (swap(lane.server(), &answer)?, outcome) {
        lane.script(&REMOVE, &[aside], &[&outcome, b""]).await?;
    }
    Ok(answer)
}
