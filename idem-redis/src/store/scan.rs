//! Going through all keys by `SCAN`, node after node.

use std::collections::BTreeSet;

use idem_core::StoreError;
use idem_core::record::RecordId;
use idem_core::store::admin::{Cursor, Listing};
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

use crate::connection::error::{failed, refused, unexpected};
use crate::connection::hash_slot::SLOTS;
use crate::connection::server_info::{self, ServerInfo};
use crate::connection::step_connection::StepConnection;
use crate::connection::step_runner::StepRunner;
use crate::store::keys::Keys;

/// The most keys that the server looks at in one command, for less than a millisecond.
pub(crate) const MAX_BATCH: usize = 1000;
/// The most `SCAN`s for a page of a listing, or for a part of a count.
pub(crate) const SCANS: usize = 20;

/// The cursor of the first `SCAN` of a server, and the server's answer to the last one.
const START: &str = "0";

/// The position of a listing.
///
/// It counts slots, because servers come and go: after a failover the same slots have another
/// master, at another address. A single server has slot 0 alone.
///
/// The cursor holds the ids that a `SCAN` returned beyond the page. They cannot be scanned again:
/// while the server's table of keys grows, the same `SCAN` covers other keys.
#[derive(Clone)]
pub(crate) struct Position {
    /// The slots whose keys were all seen.
    done: BTreeSet<u16>,
    /// The slots of the server that is gone through now. Empty between two servers.
    current: BTreeSet<u16>,
    /// What is different in another [life](ServerInfo::life) of that server, or at another server.
    life: String,
    /// The cursor of its next `SCAN`.
    scan: String,
    /// Ids that come before those of the next `SCAN`.
    pub(crate) left: Vec<RecordId>,
}

impl Position {
    /// Before the first key of the next server.
    fn after(done: BTreeSet<u16>) -> Self {
        Self {
            done,
            current: BTreeSet::new(),
            life: String::new(),
            scan: START.to_owned(),
            left: Vec::new(),
        }
    }

    fn read(cursor: &Cursor) -> Result<Self, StoreError> {
        let [done, current, life, scan, left] = cursor.fields()?;
        if scan.is_empty() || !scan.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Cursor::foreign());
        }
        let left = left
            .split(' ')
            .filter(|id| !id.is_empty())
            .map(RecordId::parse)
            .collect::<Option<_>>();
        Ok(Self {
            done: read_slots(&done).ok_or_else(Cursor::foreign)?,
            current: read_slots(&current).ok_or_else(Cursor::foreign)?,
            life,
            scan,
            left: left.ok_or_else(Cursor::foreign)?,
        })
    }

    fn cursor(&self) -> Cursor {
        // No id has a space.
        let left: Vec<&str> = self.left.iter().map(RecordId::as_str).collect();
        let [done, current] = [&self.done, &self.current].map(write_slots);
        Cursor::of_fields(&[&done, &current, &self.life, &self.scan, &left.join(" ")])
    }
}

/// Writes slots as ranges: `0-5460 10923-16383`.
fn write_slots(slots: &BTreeSet<u16>) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for slot in slots {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *slot => *last = *slot,
            _ => ranges.push((*slot, *slot)),
        }
    }
    let ranges = ranges.iter().map(|(first, last)| format!("{first}-{last}"));
    ranges.collect::<Vec<_>>().join(" ")
}

fn read_slots(text: &str) -> Option<BTreeSet<u16>> {
    let mut slots = BTreeSet::new();
    for range in text.split(' ').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-')?;
        let last: u16 = last.parse().ok().filter(|last| *last < SLOTS)?;
        slots.extend(first.parse().ok()?..=last);
    }
    Some(slots)
}

/// Goes through the keys of one master after the other.
pub(crate) struct Scanner<'a> {
    runner: &'a StepRunner,
    keys: &'a Keys,
    listing: &'a Listing,
    pub(crate) position: Position,
    /// Whether a server was lost before all its keys were seen, so that ids come again.
    pub(crate) has_begun_again: bool,
}

impl<'a> Scanner<'a> {
    /// Goes on after a cursor, or begins.
    pub(crate) fn new(
        runner: &'a StepRunner,
        keys: &'a Keys,
        listing: &'a Listing,
        after: Option<&Cursor>,
    ) -> Result<Self, StoreError> {
        if runner.is_given() && runner.is_cluster() {
            return Err(refused(
                "records of a cluster cannot be listed through the application's connection, \
                 because SCAN reaches one node of it only; connect with `redis+cluster://..`",
            ));
        }
        let position = match after {
            Some(cursor) => Position::read(cursor)?,
            None => Position::after(BTreeSet::new()),
        };
        Ok(Self {
            runner,
            keys,
            listing,
            position,
            has_begun_again: false,
        })
    }

    /// Returns the cursor of what comes next; `None` at the end.
    pub(crate) fn cursor(&self) -> Option<Cursor> {
        let is_at_end = self.position.left.is_empty() && self.slot().is_none();
        (!is_at_end).then(|| self.position.cursor())
    }

    /// Returns the next ids: those that the cursor holds, or those of one `SCAN` of `count` keys.
    /// Returns `None` at the end.
    pub(crate) async fn next(&mut self, count: usize) -> Result<Option<ScannedIds>, StoreError> {
        if !self.position.left.is_empty() {
            return Ok(Some(ScannedIds {
                ids: std::mem::take(&mut self.position.left),
                looked_at: 0,
                has_digests: false,
            }));
        }
        let Some(slot) = self.slot() else {
            return Ok(None);
        };
        if self.position.current.is_empty() {
            self.position.current = &self.runner.slots_beside(slot) - &self.position.done;
        }
        let node = self.runner.node(slot);
        let Scanned { life, next, ids } = self.scan(slot, count).await?;
        let position = &mut self.position;
        let is_first = position.scan == START;
        if !is_first && life != position.life {
            self.begin_again();
        } else if next != START {
            if life.is_empty() {
                return Err(refused(
                    "Redis does not say which process answers, so idem cannot tell whether the \
                     next SCAN reaches the same one, and a listing could miss records: let this \
                     user ask for INFO (ACL SETUSER .. +info), and let it have a run_id",
                ));
            }
            (position.life, position.scan) = (life, next);
        } else {
            // The keys of a slot that has moved on meanwhile were not all seen.
            self.runner.refresh_slots().await?;
            if self.runner.node(slot) == node {
                let here = self.runner.slots_beside(slot);
                let mut done = std::mem::take(&mut self.position.done);
                done.extend(self.position.current.intersection(&here));
                self.position = Position::after(done);
            } else {
                self.begin_again();
            }
        }
        Ok(Some(ids))
    }

    fn begin_again(&mut self) {
        self.position = Position::after(std::mem::take(&mut self.position.done));
        self.has_begun_again = true;
    }

    /// Returns a slot of the server that is next; `None` at the end.
    fn slot(&self) -> Option<u16> {
        let count = if self.runner.is_cluster() { SLOTS } else { 1 };
        let Position { done, current, .. } = &self.position;
        let first = || (0..count).find(|slot| !done.contains(slot));
        current.first().copied().or_else(first)
    }

    /// Sends one `SCAN`, and asks in the same message which server answers.
    async fn scan(&self, slot: u16, count: usize) -> Result<Scanned, StoreError> {
        let mut scan = Cmd::with_capacity(6, 128);
        scan.arg("SCAN")
            .arg(&self.position.scan)
            .arg("MATCH")
            .arg(self.keys.pattern(self.listing));
        scan.arg("COUNT").arg(count);
        let mut info = redis::cmd("INFO");
        info.arg("server").arg("replication");
        let answer = self.runner.step_at(slot, |mut connection| async move {
            let server = connection.server().to_owned();
            let answers = connection.send_all(vec![info, scan]).await;
            let answers = answers.map_err(|error| failed(&server, error))?;
            let Ok([info, scan]) = <[_; 2]>::try_from(answers) else {
                return Err(unexpected(&server, &Value::Nil));
            };
            let life = life(&connection, &info)?;
            let scan = scan.map_err(|error| failed(&server, error))?;
            match scan {
                Value::Array(fields) => match <[Value; 2]>::try_from(fields) {
                    Ok([Value::BulkString(next), Value::Array(found)]) => Ok((life, next, found)),
                    _ => Err(unexpected(&server, &Value::Nil)),
                },
                other => Err(unexpected(&server, &other)),
            }
        });
        let (life, next, found) = answer.await?;
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
        Ok(Scanned {
            life,
            next: String::from_utf8(next).unwrap_or_default(),
            ids: ScannedIds {
                ids,
                looked_at,
                has_digests,
            },
        })
    }
}

/// Returns the [life](ServerInfo::life) of the server that answered; empty if it does not say. A
/// replica is refused: it may be about to load the keys of its master.
fn life(
    connection: &StepConnection,
    info: &Result<Value, RedisError>,
) -> Result<String, StoreError> {
    // An administrator may have forbidden or renamed it.
    let Ok(info) = info else {
        return Ok(String::new());
    };
    let text = server_info::text(info).unwrap_or_default();
    let server = ServerInfo::read(text);
    if server.is_replica() {
        let kind = ErrorKind::Server(ServerErrorKind::ReadOnly);
        let error = RedisError::from((kind, "the server is a replica by now"));
        connection.handle_error(&error);
        connection.note_redirect(&error);
        return Err(failed(connection.server(), error));
    }
    Ok(server.life())
}

/// The answer to one `SCAN`.
struct Scanned {
    life: String,
    next: String,
    ids: ScannedIds,
}

/// Ids whose records may match.
pub(crate) struct ScannedIds {
    pub(crate) ids: Vec<RecordId>,
    /// How many ids the server returned.
    pub(crate) looked_at: usize,
    /// Whether the filter cannot tell of some of them.
    pub(crate) has_digests: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_read_as_they_were_written_and_others_are_refused() {
        for (slots, text) in [
            (vec![], ""),
            (vec![0], "0-0"),
            (vec![0, 1, 2, 4, 16_383], "0-2 4-4 16383-16383"),
            ((0..SLOTS).collect(), "0-16383"),
        ] {
            let slots = BTreeSet::from_iter(slots);
            assert_eq!(write_slots(&slots), text);
            assert_eq!(read_slots(text), Some(slots));
        }
        for text in ["0", "0-", "-1", "0-16384", "a-b", "0-1,3-4"] {
            assert_eq!(read_slots(text), None, "{text}");
        }
    }
}
