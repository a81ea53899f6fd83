//! Removals.

use std::time::Duration;

use bytes::Bytes;
use idem_core::record::{Record, Removed};
use idem_core::wire::{self, Parsed};
use idem_core::{StoreError, StoreErrorKind};
use redis::Value;

use crate::connection::error::unexpected;
use crate::connection::step_connection::StepConnection;
use crate::store::look::is_aside;
use crate::store::script::{REMOVE, Swap, swap};
use crate::store::unreadable::unreadable;

/// How often a record may change while it is removed.
pub(crate) const ROUNDS: usize = 16;

pub(crate) fn changed_too_often(what: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        format!(
            "the record changed {ROUNDS} times while it was being {what}; this may be tried again"
        ),
    )
}

/// Reads the record, then removes what was read. A script cannot recognize a damaged record, which
/// must stay untouched.
pub(crate) async fn remove(
    connection: &mut StepConnection,
    key: &str,
    aside: &str,
) -> Result<Removed, StoreError> {
    let mut found = match connection.send(redis::cmd("GET").arg(key)).await? {
        Value::Nil => return Ok(Removed::Nothing),
        Value::BulkString(found) => Bytes::from(found),
        other => return Err(unexpected(connection.server(), &other)),
    };
    for _ in 0..ROUNDS {
        let lease = match wire::decode(&found).map_err(unreadable)? {
            Parsed::Record(Record::InFlight(held)) => held.lease,
            _ => Duration::ZERO,
        };
        let renewed_by = connection.renewed_by(lease);
        let args = [wire::without_waited(&found), renewed_by.as_bytes()];
        let answer = remove_found(connection, key, aside, &found, &args).await?;
        match swap(connection.server(), &answer)? {
            Swap::Gone => return Ok(Removed::Nothing),
            Swap::Changed(other) => found = other,
            Swap::Alive(lease_left) => return Ok(Removed::InFlight { lease_left }),
            Swap::Unsure(left) => {
                if let Some(lease_left) = connection.recheck_lease(left, lease).await? {
                    return Ok(Removed::InFlight { lease_left });
                }
            }
            Swap::Done | Swap::Free => return Ok(Removed::Removed),
        }
    }
    Err(changed_too_often("removed"))
}

/// Removes the record that was read, and the outcome that is kept aside for it.
pub(crate) async fn remove_found(
    connection: &mut StepConnection,
    key: &str,
    aside: &str,
    found: &Bytes,
    args: &[&[u8]],
) -> Result<Value, StoreError> {
    if !is_aside(found) {
        return connection.script(&REMOVE, &[key], args).await;
    }
    if let Some(answer) = connection
        .script_on_all(&REMOVE, &[key, aside], args)
        .await?
    {
        return Ok(answer);
    }
    // Their slot is moving, so they are removed one after the other. As soon as the record is gone,
    // the key may be claimed again, so only this very outcome is removed.
    let outcome = connection.send(redis::cmd("GET").arg(aside)).await?;
    let answer = connection.script(&REMOVE, &[key], args).await?;
    if let (Swap::Done, Value::BulkString(outcome)) = (swap(connection.server(), &answer)?, outcome)
    {
        connection
            .script(&REMOVE, &[aside], &[&outcome, b""])
            .await?;
    }
    Ok(answer)
}
