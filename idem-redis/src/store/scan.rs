//! Going through all keys by `SCAN`, node after node.

use idem_core::StoreError;
use idem_core::record::RecordId;
use idem_core::store::admin::{Cursor, Listing};
use redis::{Cmd, Value};

use crate::connection::error::{refused, unexpected};
use crate::connection::step_runner::StepRunner;
use crate::store::keys::Keys;

/// The most keys that the server looks at in one command, for less than a millisecond.
pub(crate) const MAX_BATCH: usize = 1000;
/// The most `SCAN`s for a page of a listing, or for a part of a count.
pub(crate) const SCANS: usize = 20;

/// The position of a listing.
///
/// The cursor holds the ids that a `SCAN` returned beyond the page. They cannot be scanned again:
/// while the server's table of keys grows, the same `SCAN` covers other keys.
#[derive(Clone)]
pub(crate) struct Position {
    /// The master's address; empty if there is one server.
    node: String,
    /// The cursor of its next `SCAN`.
    scan: String,
    /// Ids that come before those of the next `SCAN`.
    pub(crate) left: Vec<RecordId>,
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

/// Goes through the keys of one master after the other.
pub(crate) struct Scanner<'a> {
    runner: &'a StepRunner,
    keys: &'a Keys,
    listing: &'a Listing,
    masters: Vec<Master>,
    pub(crate) position: Position,
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
        Ok(Self {
            runner,
            keys,
            listing,
            masters: masters(runner),
            position: after.map_or_else(|| Ok(Position::at("")), Position::read)?,
        })
    }

    /// Returns the cursor of what comes next; `None` at the end.
    pub(crate) fn cursor(&self) -> Option<Cursor> {
        let is_at_end = self.position.left.is_empty() && self.master().is_none();
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
pub(crate) struct ScannedIds {
    pub(crate) ids: Vec<RecordId>,
    /// How many ids the server returned.
    pub(crate) looked_at: usize,
    /// Whether the filter cannot tell of some of them.
    pub(crate) has_digests: bool,
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
