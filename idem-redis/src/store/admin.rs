//! The operators' steps: listings by `SCAN`, and decisions about one record.

use std::time::Duration;

use bytes::Bytes;
use idem_core::record::{Record, RecordId};
use idem_core::store::admin::{Cursor, Intervened, Intervention, Listed, Listing, OnIntervention, Page, Unreadable};
use idem_core::wire::{self, HEAD, Parsed};
use idem_core::{CodecId, StoreError, StoreErrorKind};
use redis::{Cmd, Value};

use crate::client::command::{evalsha, millis};
use crate::client::error::{refused, unexpected};
use crate::client::lane::Lane;
use crate::client::many::{self, KeyedCommand};
use crate::client::server::Server;
use crate::store::keys::Keys;
use crate::store::look::{describe_by, is_aside};
use crate::store::remove::{ROUNDS, changed_too_often, remove_found};
use crate::store::script::{INTERVENE, PEEK, Swap, inspected, swap};
use crate::store::unreadable::unreadable;

/// How many keys the server looks at in one command, at most: less than a millisecond of its time.
const MOST: usize = 1000;
/// The same at the least.
const LEAST: usize = 100;
/// How many such commands a page may take that find nothing.
const SCANS: usize = 20;

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
    let (mut records, mut unreadable) = (Vec::new(), Vec::new());
    let mut is_over = false;
    for _ in 0..SCANS {
        let ids = if position.left.is_empty() {
            // The first node that is not yet done. One that is gone is passed over.
            let Some((node, slot)) = nodes.iter().find(|(node, _)| *node >= position.node) else {
                is_over = true;
                break;
            };
            if *node != position.node {
                position = Position::at(node);
            }
            let (next, ids) = scan(server, keys, *slot, &position, listing).await?;
            position = match next {
                Some(next) => Position { scan: next, ..position },
                // A character that no address has: after this node, and before any other.
                None => Position::at(&format!("{node}\u{1}")),
            };
            ids
        } else {
            std::mem::take(&mut position.left)
        };
        let (mut found, damaged) = read_all(server, keys, listing, &ids).await?;
        let beyond = found.split_off(found.len().min(limit));
        position.left = beyond.into_iter().map(|listed| listed.id).collect();
        (records, unreadable) = (found, damaged);
        if !(records.is_empty() && unreadable.is_empty()) {
            break;
        }
    }
    let more = !position.left.is_empty() || (!is_over && nodes.iter().any(|(node, _)| *node >= position.node));
    Ok(Page::new(records, unreadable, more.then(|| position.cursor())))
}

/// The masters by their addresses, each with one of its slots.
fn nodes(server: &Server) -> Vec<(String, u16)> {
    let address = |slot| server.node(slot).map_or_else(String::new, |(host, port)| format!("{host}:{port}"));
    let mut nodes: Vec<(String, u16)> = server.slots().into_iter().map(|slot| (address(slot), slot)).collect();
    nodes.sort();
    nodes
}

/// One `SCAN`: where to go on at this node, and the ids that may match.
async fn scan(
    server: &Server,
    keys: &Keys,
    slot: u16,
    position: &Position,
    listing: &Listing,
) -> Result<(Option<String>, Vec<RecordId>), StoreError> {
    // One record has a digest, so nothing is left over.
    let count = if listing.digest.is_some() { MOST } else { listing.limit.clamp(LEAST, MOST) };
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
    let mut ids: Vec<RecordId> = found
        .into_iter()
        .filter_map(text)
        .filter_map(|key| RecordId::parse(keys.id(&key)?))
        .filter(|id| listing.may_match(id))
        .collect();
    ids.sort_by(|one, other| one.as_str().cmp(other.as_str()));
    ids.dedup();
    let next = String::from_utf8(next).unwrap_or_default();
    Ok(((next != "0").then_some(next), ids))
}

/// Reads records: those that match, and those that cannot be read.
async fn read_all(
    server: &Server,
    keys: &Keys,
    listing: &Listing,
    ids: &[RecordId],
) -> Result<(Vec<Listed>, Vec<Unreadable>), StoreError> {
    let head = HEAD.to_string();
    let step = |id: &RecordId| {
        let (key, aside) = (keys.record(id), keys.aside(id));
        // Heavier than one record, so that an answer that the two are apart is an answer.
        KeyedCommand { command: evalsha(&PEEK, &[&key, &aside], &[head.as_bytes()]), key, weight: 2 }
    };
    let steps: Vec<KeyedCommand> = ids.iter().map(step).collect();
    let read = |_, server: &str, answer| inspected(server, &answer);
    let answers = many::carry_out(server, &steps, Some(&PEEK), read).await;
    let (mut records, mut unreadable) = (Vec::new(), Vec::new());
    for (id, answer) in ids.iter().zip(answers) {
        let found = match answer {
            Err(error) if error.kind() == StoreErrorKind::Unavailable => look_alone(server, keys, id).await,
            answer => answer,
        };
        let described = found.and_then(|found| {
            found.map(|(record, outcome)| describe_by(wire::decode_head, &record, outcome)).transpose()
        });
        match described {
            Ok(Some(info)) if listing.matches(&info) => records.push(Listed::new(id.clone(), info)),
            Ok(_) => {}
            Err(error) if error.kind() == StoreErrorKind::Unreadable => {
                unreadable.push(Unreadable::new(id.clone(), error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((records, unreadable))
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
    let mut found = match lane.send(redis::cmd("GET").arg(key)).await? {
        Value::Nil => return Ok(Intervened::Nothing),
        Value::BulkString(found) => Bytes::from(found),
        other => return Err(unexpected(lane.server(), &other)),
    };
    for _ in 0..ROUNDS {
        let record = match wire::decode(&found).map_err(unreadable)? {
            Parsed::Record(record) => record,
            Parsed::Aside { attempt, fingerprint } => committed_aside(attempt, fingerprint),
        };
        let (attempt, lease) = (record.attempt(), lease(&record));
        let (new, expires_in, if_ran_out) = match record.on_intervention(intervention) {
            OnIntervention::Answer(answer) => return Ok(answer),
            OnIntervention::Put { record, expires_in, if_ran_out } => (wire::encode(&record), expires_in, if_ran_out),
            OnIntervention::Remove { if_ran_out } => (Vec::new(), Duration::ZERO, if_ran_out),
        };
        let renewed_by = lane.renewed_by(lease);
        let as_read = wire::without_waited(&found);
        let answer = if is_aside(&found) {
            remove_found(lane, key, aside, &found, &[as_read, renewed_by.as_bytes()]).await?
        } else {
            let (expiry, must): (_, &[u8]) = (millis(expires_in).to_string(), if if_ran_out { b"1" } else { b"" });
            lane.script(&INTERVENE, &[key], &[as_read, &new, expiry.as_bytes(), must, renewed_by.as_bytes()]).await?
        };
        match swap(lane.server(), &answer)? {
            Swap::Gone => return Ok(Intervened::Nothing),
            Swap::Changed(other) => found = other,
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

fn lease(record: &Record) -> Duration {
    match record {
        Record::InFlight(held) => held.lease,
        _ => Duration::ZERO,
    }
}

/// A committed record as far as a decision about it goes.
fn committed_aside(attempt: u64, fingerprint: Option<idem_core::Fingerprint>) -> Record {
    let outcome = idem_core::record::Encoded::new(CodecId::JSON, Bytes::new());
    Record::Committed { attempt, fingerprint, outcome }
}
