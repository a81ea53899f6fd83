//! The operators' steps: listings by `SCAN`, and decisions about one record.

use std::time::Duration;

use idem_core::record::{Record, RecordId, RecordState};
use idem_core::store::admin::{Cursor, Intervened, Intervention, Listed, Listing, OnIntervention, Page, Unreadable};
use idem_core::wire::{self, HEAD};
use idem_core::{StoreError, StoreErrorKind};
use redis::{Cmd, Value};

use crate::client::command::{evalsha, millis};
use crate::client::error::{refused, unexpected};
use crate::client::lane::Lane;
use crate::client::many::{self, KeyedCommand};
use crate::client::server::Server;
use crate::store::keys::Keys;
use crate::store::look::{describe_by, is_aside, look, record_of};
use crate::store::remove::{ROUNDS, changed_too_often, remove_found};
use crate::store::script::{INTERVENE, PEEK, REPLACE, StoredValue, Swap, inspected, swap};

/// How many keys the server looks at in one command, at most: less than a millisecond of its time.
const MOST: usize = 1000;
/// How many such commands a page may take.
const SCANS: usize = 20;
/// How many records one script reads where no slots divide them: a fraction of a millisecond.
const TOGETHER: usize = 100;

/// The position of a listing.
///
/// The cursor holds what a `SCAN` returned beyond its page. The same `SCAN` sent again covers other
/// keys while the server's table of keys grows.
struct Position {
    /// The node's address; empty where there is one server.
    node: String,
    /// The cursor of its next `SCAN`.
    scan: String,
    /// Records that come before that.
    left: Vec<RecordId>,
}

impl Position {
    fn at(node: &str) -> Self {
        Self { node: node.to_owned(), scan: "0".to_owned(), left: Vec::new() }
    }

    fn read(cursor: &Cursor) -> Result<Self, StoreError> {
        let [node, scan, left] = cursor.fields()?;
        if scan.is_empty() || !scan.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Cursor::foreign());
        }
        let left = left.split(' ').filter(|id| !id.is_empty()).map(RecordId::parse).collect::<Option<_>>();
        Ok(Self { node, scan, left: left.ok_or_else(Cursor::foreign)? })
    }

    fn cursor(&self) -> Cursor {
        // No id has a space.
        let left: Vec<&str> = self.left.iter().map(RecordId::as_str).collect();
        Cursor::of_fields(&[&self.node, &self.scan, &left.join(" ")])
    }
}

pub(crate) async fn list(server: &Server, keys: &Keys, listing: &Listing) -> Result<Page, StoreError> {
    if server.is_given() && server.is_cluster() {
        return Err(refused(
            "records of a cluster cannot be listed through the application's connection, because SCAN reaches one node of it only; connect with `redis+cluster://..`",
        ));
    }
    let nodes = nodes(server);
    let mut position = match &listing.cursor {
        Some(cursor) => Position::read(cursor)?,
        None => Position::at(""),
    };
    let limit = listing.limit.max(1);
    // As many keys as would fill the page: what is beyond it has to be in the cursor.
    let mut count = if listing.digest.is_some() { MOST } else { limit.min(MOST) };
    let mut found = Found::default();
    for _ in 0..SCANS {
        let ids = if position.left.is_empty() {
            // The first node that is not yet done. One that is gone is passed over.
            let Some((node, slot)) = nodes.iter().find(|(node, _)| *node >= position.node) else { break };
            if *node != position.node {
                position = Position::at(node);
            }
            let scanned = scan(server, keys, *slot, &position, listing, count).await?;
            position = match scanned.next {
                Some(next) => Position { scan: next, ..position },
                // A character that no address has: after this node, and before any other.
                None => Position::at(&format!("{node}\u{1}")),
            };
            found.looked_at += scanned.looked_at;
            scanned.ids
        } else {
            std::mem::take(&mut position.left)
        };
        let before = found.records.len();
        read_all(server, keys, listing, &ids, &mut found).await?;
        let beyond = found.records.split_off(found.records.len().min(limit));
        position.left = beyond.into_iter().map(|listed| listed.id).collect();
        let room = limit - found.records.len();
        if room == 0 {
            break;
        }
        // If the next ones are like these.
        let wanted = match found.records.len() - before {
            0 => count * 4,
            matched => count * room / matched,
        };
        count = wanted.clamp(1, MOST);
    }
    let more = !position.left.is_empty() || nodes.iter().any(|(node, _)| *node >= position.node);
    let Found { records, unreadable, looked_at } = found;
    Ok(Page::new(records, unreadable, more.then(|| position.cursor())).with_looked_at(looked_at))
}

/// A page that is being filled.
#[derive(Default)]
struct Found {
    records: Vec<Listed>,
    unreadable: Vec<Unreadable>,
    looked_at: usize,
}

/// The masters by their addresses, each with one of its slots.
fn nodes(server: &Server) -> Vec<(String, u16)> {
    let address = |slot| server.node(slot).map_or_else(String::new, |(host, port)| format!("{host}:{port}"));
    let mut nodes: Vec<(String, u16)> = server.slots().into_iter().map(|slot| (address(slot), slot)).collect();
    nodes.sort();
    nodes
}

/// What one `SCAN` returned.
struct Scanned {
    /// Where to go on at this node.
    next: Option<String>,
    /// The ids that may match.
    ids: Vec<RecordId>,
    /// How many ids there were.
    looked_at: usize,
}

async fn scan(
    server: &Server,
    keys: &Keys,
    slot: u16,
    position: &Position,
    listing: &Listing,
    count: usize,
) -> Result<Scanned, StoreError> {
    let mut scan = Cmd::with_capacity(6, 128);
    scan.arg("SCAN").arg(&position.scan).arg("MATCH").arg(keys.pattern(listing.operation.as_deref()));
    scan.arg("COUNT").arg(count);
    let answer = server.step_at(slot, |mut lane| async move {
        let answer = lane.send(&scan).await?;
        match answer {
            Value::Array(fields) => match <[Value; 2]>::try_from(fields) {
                Ok([Value::BulkString(next), Value::Array(found)]) => Ok((next, found)),
                _ => Err(unexpected(lane.server(), &Value::Nil)),
            },
            other => Err(unexpected(lane.server(), &other)),
        }
    });
    let (next, found) = answer.await?;
    let text = |value: Value| match value {
        Value::BulkString(text) => String::from_utf8(text).ok(),
        _ => None,
    };
    let mut ids: Vec<RecordId> =
        found.into_iter().filter_map(text).filter_map(|key| RecordId::parse(keys.id(&key)?)).collect();
    let looked_at = ids.len();
    ids.retain(|id| listing.may_match(id));
    ids.sort_by(|one, other| one.as_str().cmp(other.as_str()));
    ids.dedup();
    let next = Some(String::from_utf8(next).unwrap_or_default()).filter(|next| next != "0");
    Ok(Scanned { next, ids, looked_at })
}

/// Reads records: those that match, and those that cannot be read.
async fn read_all(
    server: &Server,
    keys: &Keys,
    listing: &Listing,
    ids: &[RecordId],
    page: &mut Found,
) -> Result<(), StoreError> {
    let head = HEAD.to_string();
    let letters = letters(listing);
    let step = |ids: &[RecordId]| {
        let names: Vec<String> = ids.iter().flat_map(|id| [keys.record(id), keys.aside(id)]).collect();
        let key = names.first().cloned().unwrap_or_default();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        // Heavier than one record, so that an answer that the two are apart is an answer.
        let weight = names.len();
        KeyedCommand { command: evalsha(&PEEK, &names, &[head.as_bytes(), letters.as_bytes()]), key, weight }
    };
    let chunks: Vec<&[RecordId]> = ids.chunks(if server.is_cluster() { 1 } else { TOGETHER }).collect();
    let steps: Vec<KeyedCommand> = chunks.iter().map(|ids| step(ids)).collect();
    let read = |_, server: &str, answer| match answer {
        Value::Array(answers) => answers.iter().map(|answer| inspected(server, answer)).collect::<Result<Vec<_>, _>>(),
        other => Err(unexpected(server, &other)),
    };
    let answers = many::carry_out(server, &steps, Some(&PEEK), read).await;
    for (ids, answer) in chunks.into_iter().zip(answers) {
        let found = match answer {
            Err(error) if error.kind() == StoreErrorKind::Unavailable => {
                let mut found = Vec::with_capacity(ids.len());
                for id in ids {
                    found.push(look_alone(server, keys, id).await?);
                }
                found
            }
            answer => answer?,
        };
        for (id, found) in ids.iter().zip(found) {
            let Some((record, outcome)) = found else { continue };
            match describe_by(wire::decode_head, &record, outcome.as_ref()) {
                Ok(info) if listing.matches(&info) => page.records.push(Listed::new(id.clone(), info)),
                Ok(_) => {}
                Err(error) if error.kind() == StoreErrorKind::Unreadable => {
                    page.unreadable.push(Unreadable::new(id.clone(), error));
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// The third characters of the records that may match; empty for all.
fn letters(listing: &Listing) -> &'static str {
    match listing.state {
        None if listing.older_than.is_some() => "f",
        Some(RecordState::Issued | RecordState::Expired) => "i",
        Some(RecordState::InFlight | RecordState::Abandoned) => "f",
        Some(RecordState::Released) => "r",
        // With the outcome at its own key, or without, if that is gone.
        Some(RecordState::Committed) => "ceo",
        Some(RecordState::Done) => "do",
        _ => "",
    }
}

/// Reads a record whose slot is on its way to another node.
async fn look_alone(
    server: &Server,
    keys: &Keys,
    id: &RecordId,
) -> Result<Option<(crate::store::script::StoredValue, Option<crate::store::script::StoredValue>)>, StoreError> {
    let (key, aside) = (&keys.record(id), &keys.aside(id));
    server.step(key, |mut lane| async move { crate::store::look::look(&mut lane, key, aside).await }).await
}

/// Reads, decides, then writes over what was read.
pub(crate) async fn intervene(
    lane: &mut Lane,
    key: &str,
    aside: &str,
    intervention: &Intervention,
) -> Result<Intervened, StoreError> {
    for _ in 0..ROUNDS {
        let Some((found, outcome)) = look(lane, key, aside).await? else { return Ok(Intervened::Nothing) };
        let (record, left) = record_of(&found, outcome.as_ref())?;
        let (attempt, lease) = (record.attempt(), lease(&record));
        let as_read = wire::without_waited(&found.value);
        let renewed_by = lane.renewed_by(lease);
        let (new, expires_in, if_ran_out) = match record.on_intervention(intervention, left) {
            OnIntervention::Answer(answer) => return Ok(answer),
            OnIntervention::Replace { record } => {
                if replace(lane, key, aside, (&found, outcome.as_ref()), &record).await? {
                    lane.acknowledged().await?;
                    return Ok(Intervened::Done { attempt });
                }
                continue;
            }
            OnIntervention::Put { record, expires_in, if_ran_out } => (wire::encode(&record), expires_in, if_ran_out),
            OnIntervention::Remove { if_ran_out } => (Vec::new(), Duration::ZERO, if_ran_out),
        };
        let answer = if is_aside(&found.value) {
            remove_found(lane, key, aside, &found.value, &[as_read, renewed_by.as_bytes()]).await?
        } else {
            let expiry = millis(expires_in).to_string();
            let must: &[u8] = if if_ran_out { b"1" } else { b"" };
            lane.script(&INTERVENE, &[key], &[as_read, &new, expiry.as_bytes(), must, renewed_by.as_bytes()]).await?
        };
        match swap(lane.server(), &answer)? {
            // It is looked at again.
            Swap::Gone | Swap::Changed(_) => {}
            Swap::Alive(lease_left) => return Ok(Intervened::Alive { attempt, lease_left }),
            Swap::Unsure(left) => {
                if let Some(lease_left) = lane.sure_after(left, lease).await? {
                    return Ok(Intervened::Alive { attempt, lease_left });
                }
            }
            Swap::Done | Swap::Free => {
                lane.acknowledged().await?;
                return Ok(Intervened::Done { attempt });
            }
        }
    }
    Err(changed_too_often("decided about"))
}

/// Writes an outcome in place of the one that was read, where that is kept. `false`: it is another
/// by now.
async fn replace(
    lane: &mut Lane,
    key: &str,
    aside: &str,
    (found, outcome): (&StoredValue, Option<&StoredValue>),
    record: &Record,
) -> Result<bool, StoreError> {
    let new = wire::encode(record);
    let answer = match outcome.filter(|_| is_aside(&found.value)) {
        None => lane.script(&REPLACE, &[key], &[&found.value, &new]).await?,
        Some(outcome) => {
            let values: [&[u8]; 3] = [&outcome.value, &new, &found.value];
            match lane.script_on_all(&REPLACE, &[aside, key], &values).await? {
                Some(answer) => answer,
                // Their slot is on its way to another node. An outcome whose record has another
                // life by now is never read again.
                None => lane.script(&REPLACE, &[aside], &values[..2]).await?,
            }
        }
    };
    Ok(matches!(swap(lane.server(), &answer)?, Swap::Done))
}

fn lease(record: &Record) -> Duration {
    match record {
        Record::InFlight(held) => held.lease,
        _ => Duration::ZERO,
    }
}
