//! The steps of operators: listings by `SCAN`, and decisions about one record.

use std::time::Duration;

use idem_core::record::{Record, RecordId, RecordState};
use idem_core::store::admin::{
    Intervened, Intervention, Listed, Listing, OnIntervention, Page, Unreadable,
};
use idem_core::wire;
use idem_core::{StoreError, StoreErrorKind};
use redis::Value;

use crate::connection::command::millis;
use crate::connection::step_connection::StepConnection;
use crate::connection::step_runner::StepRunner;
use crate::store::keys::Keys;
use crate::store::look::{describe_by, is_aside, look, record_of};
use crate::store::peek::{Peeked, Wanted, peek_all};
use crate::store::remove::{ROUNDS, changed_too_often, remove_found};
use crate::store::scan::{MAX_BATCH, SCANS, Scanner};
use crate::store::script::{FoundRecord, INTERVENE, REPLACE, Swap, swap};

pub(crate) async fn list(
    runner: &StepRunner,
    keys: &Keys,
    listing: &Listing,
) -> Result<Page, StoreError> {
    let mut scanner = Scanner::new(runner, keys, listing, listing.cursor.as_ref())?;
    let limit = listing.limit.max(1);
    // As many keys as would fill the page: the cursor has to hold what is beyond it.
    let mut count = if listing.digest.is_some() || listing.steps_of.is_some() {
        MAX_BATCH
    } else {
        limit.min(MAX_BATCH)
    };
    let is_narrow =
        listing.state.is_some() || listing.older_than.is_some() || listing.digest.is_some();
    let mut found = Found::default();
    let mut ahead = None;
    for left in (0..SCANS).rev() {
        let batch = match ahead.take() {
            Some(batch) => batch,
            None => scanner.next(count).await?,
        };
        let Some(batch) = batch else {
            break;
        };
        found.looked_at += batch.looked_at;
        found.has_digests |= batch.has_digests;
        let before = found.records.len();
        // While the records of a batch are read, the server looks for the next keys: unless they
        // are likely to be beyond this page.
        let here = scanner.position.clone();
        let is_ahead = left > 0 && (is_narrow || limit - before >= batch.ids.len() + count);
        let reading = read_all(runner, keys, listing, &batch.ids, &mut found);
        if is_ahead {
            let (read, next) = tokio::join!(reading, scanner.next(count));
            read?;
            ahead = Some(next?);
        } else {
            reading.await?;
        }
        if found.records.len() >= limit {
            // The next page looks for those keys again.
            scanner.position = here;
            let beyond = found.records.split_off(limit);
            scanner.position.left = beyond.into_iter().map(|listed| listed.id).collect();
            break;
        }
        // Assumes that as many of the next keys match.
        let room = limit - found.records.len();
        let wanted = match found.records.len() - before {
            0 => count * 4,
            matched => count * room / matched,
        };
        count = wanted.clamp(1, MAX_BATCH);
    }
    let page = Page::new(found.records, found.unreadable, scanner.cursor());
    let page = page.with_looked_at(found.looked_at);
    Ok(page.with_digests(found.has_digests))
}

/// A page that is being filled.
#[derive(Default)]
struct Found {
    records: Vec<Listed>,
    unreadable: Vec<Unreadable>,
    looked_at: usize,
    has_digests: bool,
}

/// Reads records into the page: those that match, and those that cannot be read.
async fn read_all(
    runner: &StepRunner,
    keys: &Keys,
    listing: &Listing,
    ids: &[RecordId],
    page: &mut Found,
) -> Result<(), StoreError> {
    let wanted = Wanted {
        letters: matching_state_letters(listing),
        plain: "",
    };
    for (id, peeked) in ids.iter().zip(peek_all(runner, keys, ids, wanted).await?) {
        if let Peeked::Found(found) = peeked {
            page.add(listing, id, &found)?;
        }
    }
    Ok(())
}

impl Found {
    fn add(
        &mut self,
        listing: &Listing,
        id: &RecordId,
        found: &FoundRecord,
    ) -> Result<(), StoreError> {
        match describe_by(wire::decode_head, found) {
            Ok(info) if listing.matches(&info) => {
                self.records.push(Listed::new(id.clone(), info));
            }
            Ok(_) => {}
            Err(error) if error.kind() == StoreErrorKind::Unreadable => {
                self.unreadable.push(Unreadable::new(id.clone(), error));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Returns the third characters of the records that may match; an empty text for all.
fn matching_state_letters(listing: &Listing) -> &'static str {
    match listing.state {
        None if listing.older_than.is_some() => "f",
        Some(RecordState::Issued | RecordState::Expired) => "i",
        Some(RecordState::InFlight | RecordState::Abandoned) => "f",
        Some(RecordState::Released) => "r",
        // The last letter stands for an outcome that is kept aside, or expired.
        Some(RecordState::Committed) => "ceo",
        Some(RecordState::Done) => "do",
        _ => "",
    }
}

/// Reads a record, decides, then writes over what was read.
pub(crate) async fn intervene(
    connection: &mut StepConnection,
    key: &str,
    aside: &str,
    intervention: &Intervention,
) -> Result<Intervened, StoreError> {
    for _ in 0..ROUNDS {
        let Some(found) = look(connection, key, aside).await? else {
            return Ok(Intervened::Nothing);
        };
        if let Some(answer) = intervene_on(connection, key, aside, &found, intervention).await? {
            return Ok(answer);
        }
    }
    Err(changed_too_often("decided about"))
}

/// Decides about the record that was found. `None`: it is another by now, or has to be read again.
async fn intervene_on(
    connection: &mut StepConnection,
    key: &str,
    aside: &str,
    found: &FoundRecord,
    intervention: &Intervention,
) -> Result<Option<Intervened>, StoreError> {
    let (record, left) = record_of(found)?;
    let attempt = record.attempt();
    let lease = lease(&record);
    let put = match record.on_intervention(intervention, left) {
        OnIntervention::Answer(answer) => return Ok(Some(answer)),
        OnIntervention::Replace { record } => {
            if !replace(connection, key, aside, found, &record).await? {
                return Ok(None);
            }
            connection.acknowledged().await?;
            return Ok(Some(Intervened::Done { attempt }));
        }
        OnIntervention::Put {
            record,
            expires_in,
            if_ran_out,
        } => Put {
            record: wire::encode(&record),
            expires_in,
            if_ran_out,
        },
        OnIntervention::Remove { if_ran_out } => Put {
            record: Vec::new(),
            expires_in: Duration::ZERO,
            if_ran_out,
        },
    };
    let answer = if is_aside(&found.record.value) {
        let as_read = wire::without_waited(&found.record.value);
        let renewed_by = connection.renewed_by(lease);
        let args = [as_read, renewed_by.as_bytes()];
        remove_found(connection, key, aside, &found.record.value, &args).await?
    } else {
        write(connection, key, found, lease, put).await?
    };
    let swapped = swap(connection.server(), &answer)?;
    intervened(connection, swapped, attempt, lease).await
}

/// The answer to the operator. `None`: the record has to be read again.
async fn intervened(
    connection: &mut StepConnection,
    swapped: Swap,
    attempt: u64,
    lease: Duration,
) -> Result<Option<Intervened>, StoreError> {
    match swapped {
        Swap::Gone | Swap::Changed(_) => Ok(None),
        Swap::Alive(lease_left) => Ok(Some(Intervened::Alive {
            attempt,
            lease_left,
        })),
        Swap::Unsure(left) => {
            let lease_left = connection.recheck_lease(left, lease).await?;
            Ok(lease_left.map(|lease_left| Intervened::Alive {
                attempt,
                lease_left,
            }))
        }
        Swap::Done | Swap::Free => {
            connection.acknowledged().await?;
            Ok(Some(Intervened::Done { attempt }))
        }
    }
}

/// The value in place of a record.
struct Put {
    /// Empty to remove the record.
    record: Vec<u8>,
    expires_in: Duration,
    /// Only if the lease has expired.
    if_ran_out: bool,
}

/// Writes in place of the record that was found.
async fn write(
    connection: &mut StepConnection,
    key: &str,
    found: &FoundRecord,
    lease: Duration,
    put: Put,
) -> Result<Value, StoreError> {
    let as_read = wire::without_waited(&found.record.value);
    let renewed_by = connection.renewed_by(lease);
    let expiry = millis(put.expires_in).to_string();
    let must_be_expired: &[u8] = if put.if_ran_out { b"1" } else { b"" };
    let args = [
        as_read,
        &put.record,
        expiry.as_bytes(),
        must_be_expired,
        renewed_by.as_bytes(),
    ];
    connection.script(&INTERVENE, &[key], &args).await
}

/// Writes an outcome in place of the one that was found, at the same key. Returns `false` if that
/// is another by now.
async fn replace(
    connection: &mut StepConnection,
    key: &str,
    aside: &str,
    found: &FoundRecord,
    record: &Record,
) -> Result<bool, StoreError> {
    let current = &found.record.value;
    let new = wire::encode(record);
    let outcome = found.outcome.as_ref().filter(|_| is_aside(current));
    let answer = match outcome {
        None => {
            connection
                .script(&REPLACE, &[key], &[current, &new])
                .await?
        }
        Some(outcome) => {
            let values: [&[u8]; 3] = [&outcome.value, &new, current];
            match connection
                .script_on_all(&REPLACE, &[aside, key], &values)
                .await?
            {
                Some(answer) => answer,
                // Their slot is moving. If the key has been claimed again meanwhile, the outcome
                // that is written here is never read.
                None => connection.script(&REPLACE, &[aside], &values[..2]).await?,
            }
        }
    };
    Ok(matches!(swap(connection.server(), &answer)?, Swap::Done))
}

fn lease(record: &Record) -> Duration {
    match record {
        Record::InFlight(held) => held.lease,
        _ => Duration::ZERO,
    }
}
