//! A page of a listing, and its position.

use idem_core::store::admin::{Cursor, Listed, Listing, Page, Unreadable};
use idem_core::store::record::{RecordId, RecordInfo};
use idem_core::{Key, StoreError};

use super::super::dialect::Position;
use crate::row::{FoundRow, Row};

/// How many rows one statement reads, which takes milliseconds of the server's time.
pub(super) const WINDOW: usize = 1000;
/// How many rows one statement passes by at most to find some in a state, which takes as long.
pub(super) const WIDEST: usize = 16 * WINDOW;
/// How many such statements may find nothing before the page is returned.
pub(super) const WINDOWS: usize = 10;

impl Position {
    pub(super) fn read(cursor: &Cursor) -> Result<Self, StoreError> {
        let [sweep_at, operation, key] = cursor.fields()?;
        let sweep_at = sweep_at.parse().map_err(|_| Cursor::foreign())?;
        Ok(Self {
            sweep_at,
            operation,
            key,
        })
    }

    /// The position after all rows: in the year 9999 in microseconds, and far beyond in
    /// milliseconds.
    pub(super) fn far() -> Self {
        Self {
            sweep_at: 253_370_764_800_000_000,
            ..Self::default()
        }
    }

    pub(super) fn cursor(&self) -> Cursor {
        Cursor::of_fields(&[&self.sweep_at.to_string(), &self.operation, &self.key])
    }

    /// Returns the id of the row, or `None` if another program wrote it.
    pub(super) fn id(&self) -> Option<RecordId> {
        RecordId::new(&self.operation, &Key::from_encoded(&self.key)?)
    }
}

/// A page that is being filled.
#[derive(Default)]
pub(super) struct Found {
    pub(super) records: Vec<Listed>,
    unreadable: Vec<Unreadable>,
    pub(super) looked_at: usize,
    pub(super) has_digests: bool,
}

impl Found {
    pub(super) fn add(&mut self, listing: &Listing, id: RecordId, row: Row) {
        match row.read() {
            Ok(FoundRow {
                record: Some(record),
                left,
                ..
            }) => {
                let info = RecordInfo::new(&record, left);
                if listing.matches(&info) {
                    self.records.push(Listed::new(id, info));
                }
            }
            Ok(_) => {}
            Err(error) => self.unreadable.push(Unreadable::new(id, error)),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.unreadable.is_empty()
    }

    pub(super) fn page(self, next: Option<Position>) -> Page {
        let next = next.map(|position| position.cursor());
        Page::new(self.records, self.unreadable, next)
            .with_looked_at(self.looked_at)
            .with_digests(self.has_digests)
    }
}

pub(super) fn count(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}
