//! The steps of operators: listings by `SCAN`, and decisions about one record.

use std::time::Duration;

use idem_core::record::{Record, RecordId, RecordState};
use idem_core::store::admin::{
    Cursor, Intervened, Intervention, Listed, Listing, OnIntervention, Page, Unreadable,
};
use idem_core::wire::{self, HEAD};
use idem_core::{StoreError, StoreErrorKind};
use redis::{Cmd, Value};

use crate::connection::command::{evalsha, millis};
use crate::connection::error::{refused, unexpected};
use crate::connection::pipeline::{self, KeyedCommand};
use crate::connection::step_connection::StepConnection;
use crate::connection::step_runner::StepRunner;
use crate::store::keys::Keys;
use crate::store::look::{describe_by, is_aside, look, record_of};
use crate::store::remove::{ROUNDS, changed_too_often, remove_found};
use crate::store::script::{FoundRecord, INTERVENE, PEEK, REPLACE, Swap, inspected, swap};

/// The most keys that the server looks at in one command, for less than a millisecond.
const MAX_BATCH: usize = 1000;
/// The most `SCAN`s for a page.
const SCANS: usize = 20;
/// The most records that one script reads outside a cluster, in a fraction of a millisecond.
const MAX_READ_BATCH: usize = 100;

/// The position of a listing.
///
/// The cursor holds the ids that a `SCAN` returned beyond the page. They cannot be scanned again:
/// while the server's table of keys grows, the same `SCAN` covers other keys.
#[derive(Clone)]
struct Position {
    /// The master's address; empty if there is one server.
    node: String,
    /// The cursor of its next `SCAN`.
    scan: String,
    /// Ids that come before those of the next `SCAN`.
    left: Vec<RecordId>,
}

impl Position {
    fn at(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            scan: "0".to_owned(),
            left: Vec::new(),
        }
    }

    fn read(cursor: &Cursor) -> Result<Self, StoreError> {
        let [node, scan, left] = cursor.fields()?;
        if scan.is_empty() || !scan.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Cursor::foreign());
        }
        let left = left
            .split(' ')
            .filter(|id| !id.is_empty())
            .map(RecordId::parse)
            .collect::<Option<_>>();
        Ok(Self {
            node,
            scan,
            left: left.ok_or_else(Cursor::foreign)?,
        })
    }

    fn cursor(&self) -> Cursor {
        // No id has a space.
        let left: Vec<&str> = self.left.iter().map(RecordId::as_str).collect();
        Cursor::of_fields(&[&self.node, &self.scan, &left.join(" ")])
    }
}

pub(crate) async fn list(
    runner: &StepRunner,
    keys: &Keys,
    listing: &Listing,
) -> Result<Page, StoreError> {
    if runner.is_given() && runner.is_cluster() {
        return Err(refused(
            "records of a cluster cannot be listed through the application's connection, because \
             SCAN reaches one node of it only; connect with `redis+cluster://..`",
        ));
    }
    let position = match &listing.cursor {
        Some(cursor) => Position::read(cursor)?,
        None => Position::at(""),
    };
    let mut scanner = Scanner {
        runner,
        keys,
        listing,
        masters: masters(runner),
        position,
    };
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
        // While the records of a batch are read, the server looks for the next keys: unless they are
        // likely to be beyond this page.
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
    let cursor = (!scanner.is_at_end()).then(|| scanner.position.cursor());
    let Found {
        records,
        unreadable,
        looked_at,
        has_digests,
    } = found;
    let page = Page::new(records, unreadable, cursor);
    Ok(page.with_looked_at(looked_at).with_digests(has_digests))
}

/// Goes through the keys of one master after the other.
struct Scanner<'a> {
    runner: &'a StepRunner,
    keys: &'a Keys,
    listing: &'a Listing,
    masters: Vec<Master>,
    position: Position,
}

impl Scanner<'_> {
    /// Returns the next ids: those that the cursor holds, or those of one `SCAN` of `count` keys.
    /// Returns `None` at the end.
    async fn next(&mut self, count: usize) -> Result<Option<ScannedIds>, StoreError> {
        if !self.position.left.is_empty() {
            return Ok(Some(ScannedIds {
                ids: std::mem::take(&mut self.position.left),
                looked_at: 0,
                has_digests: false,
            }));
        }
        let Some(master) = self.master() else {
            return Ok(None);
        };
        let slot = master.slot;
        let address = master.address.clone();
        if address != self.position.node {
            self.position = Position::at(&address);
        }
        let (next, ids) = self.scan(slot, count).await?;
        match next {
            Some(next) => self.position.scan = next,
            // The character is in no address: this sorts after this node, and before any other.
            None => self.position = Position::at(&format!("{address}\u{1}")),
        }
        Ok(Some(ids))
    }

    /// Returns the first master that is not done yet. A master that is gone is passed over.
    fn master(&self) -> Option<&Master> {
        self.masters
            .iter()
            .find(|master| master.address >= self.position.node)
    }

    fn is_at_end(&self) -> bool {
        self.position.left.is_empty() && self.master().is_none()
    }

    /// Sends one `SCAN`. Returns the cursor of the next one at this node, and the ids.
    async fn scan(
        &self,
        slot: u16,
        count: usize,
    ) -> Result<(Option<String>, ScannedIds), StoreError> {
        let mut scan = Cmd::with_capacity(6, 128);
        scan.arg("SCAN")
            .arg(&self.position.scan)
            .arg("MATCH")
            .arg(self.keys.pattern(self.listing));
        scan.arg("COUNT").arg(count);
        let answer = self.runner.step_at(slot, |mut connection| async move {
            let answer = connection.send(&scan).await?;
            match answer {
                Value::Array(fields) => match <[Value; 2]>::try_from(fields) {
                    Ok([Value::BulkString(next), Value::Array(found)]) => Ok((next, found)),
                    _ => Err(unexpected(connection.server(), &Value::Nil)),
                },
                other => Err(unexpected(connection.server(), &other)),
            }
        });
        let (next, found) = answer.await?;
        let text = |value: Value| match value {
            Value::BulkString(text) => String::from_utf8(text).ok(),
            _ => None,
        };
        let mut ids: Vec<RecordId> = found
            .into_iter()
            .filter_map(text)
            .filter_map(|key| RecordId::parse(self.keys.id(&key)?))
            .collect();
        let looked_at = ids.len();
        let has_digests = ids.iter().any(|id| self.listing.cannot_tell(id));
        ids.retain(|id| self.listing.may_match(id));
        ids.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        ids.dedup();
        let next = Some(String::from_utf8(next).unwrap_or_default()).filter(|next| next != "0");
        let ids = ScannedIds {
            ids,
            looked_at,
            has_digests,
        };
        Ok((next, ids))
    }
}

/// Ids whose records may match.
struct ScannedIds {
    ids: Vec<RecordId>,
    /// How many ids the server returned.
    looked_at: usize,
    /// Whether the filter cannot tell of some of them.
    has_digests: bool,
}

/// A page that is being filled.
#[derive(Default)]
struct Found {
    records: Vec<Listed>,
    unreadable: Vec<Unreadable>,
    looked_at: usize,
    has_digests: bool,
}

/// A master, and one of its slots. Masters are sorted by address.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Master {
    /// Empty if there is one server.
    address: String,
    slot: u16,
}

fn masters(runner: &StepRunner) -> Vec<Master> {
    let address = |slot| {
        runner
            .node(slot)
            .map_or_else(String::new, |(host, port)| format!("{host}:{port}"))
    };
    let mut masters: Vec<Master> = runner
        .slots()
        .into_iter()
        .map(|slot| Master {
            address: address(slot),
            slot,
        })
        .collect();
    masters.sort();
    masters
}

/// Reads records into the page: those that match, and those that cannot be read.
async fn read_all(
    runner: &StepRunner,
    keys: &Keys,
    listing: &Listing,
    ids: &[RecordId],
    page: &mut Found,
) -> Result<(), StoreError> {
    let chunks: Vec<&[RecordId]> = ids
        .chunks(if runner.is_cluster() {
            1
        } else {
            MAX_READ_BATCH
        })
        .collect();
    let steps: Vec<KeyedCommand> = chunks.iter().map(|ids| peek(keys, listing, ids)).collect();
    let read = |_, server: &str, answer| match answer {
        Value::Array(answers) => answers
            .iter()
            .map(|answer| inspected(server, answer))
            .collect::<Result<Vec<_>, _>>(),
        other => Err(unexpected(server, &other)),
    };
    let answers = pipeline::carry_out(runner, &steps, Some(&PEEK), read).await;
    for (ids, answer) in chunks.into_iter().zip(answers) {
        let found = match answer {
            Err(error) if error.kind() == StoreErrorKind::Unavailable => {
                let mut found = Vec::with_capacity(ids.len());
                for id in ids {
                    found.push(look_at_one(runner, keys, id).await?);
                }
                found
            }
            answer => answer?,
        };
        for (id, found) in ids.iter().zip(found) {
            if let Some(found) = found {
                page.add(listing, id, &found)?;
            }
        }
    }
    Ok(())
}

/// Returns the command that reads some records, as far as a listing shows them.
fn peek(keys: &Keys, listing: &Listing, ids: &[RecordId]) -> KeyedCommand {
    let head = HEAD.to_string();
    let letters = matching_state_letters(listing);
    let names: Vec<String> = ids
        .iter()
        .flat_map(|id| [keys.record(id), keys.aside(id)])
        .collect();
    let key = names.first().cloned().unwrap_or_default();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    KeyedCommand {
        command: evalsha(&PEEK, &names, &[head.as_bytes(), letters.as_bytes()]),
        key,
        // More than one key, so that the answer "these are at two nodes" is final.
        weight: names.len(),
    }
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

/// Reads a record whose slot is moving to another node.
async fn look_at_one(
    runner: &StepRunner,
    keys: &Keys,
    id: &RecordId,
) -> Result<Option<FoundRecord>, StoreError> {
    let key = &keys.record(id);
    let aside = &keys.aside(id);
    runner
        .step(key, |mut connection| async move {
            look(&mut connection, key, aside).await
        })
        .await
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
    match swap(connection.server(), &answer)? {
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

/// What takes the place of a record.
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
