//! Listings by a key filter: the rows that match, by the primary key, operation after operation.

use std::sync::Arc;

use idem_core::store::admin::{KeyFilter, KeyRange, Listing, Page};
use idem_core::{MAX_KEY_LEN, StoreError};

use super::super::dialect::{Dialect, ListedRow, Position};
use super::super::executor::{Executor, Resend};
use super::page::{Found, WINDOW, WINDOWS, count};

/// Lists the records that a key filter has, after a position.
pub(super) async fn list_keys<D: Dialect>(
    executor: &Arc<Executor<D>>,
    listing: &Listing,
    filter: &KeyFilter,
    position: Position,
) -> Result<Page, StoreError> {
    let limit = listing.limit.max(1);
    let is_narrow = listing.state.is_some() || listing.older_than.is_some();
    let mut scan = KeyScan {
        executor,
        listing,
        window: if is_narrow { WINDOW } else { limit.min(WINDOW) },
        ranges: filter.ranges(),
        position,
    };
    let mut found = Found::default();
    if scan.position.operation.is_empty() && !scan.next_operation().await? {
        return Ok(found.page(None));
    }
    for _ in 0..WINDOWS {
        found.has_digests = found.has_digests || scan.has_digests().await?;
        let rows = scan.next_rows().await?;
        if rows.is_empty() && !scan.next_operation().await? {
            return Ok(found.page(None));
        }
        for ListedRow { position, row } in rows {
            scan.position = position;
            found.looked_at += 1;
            if let Some(id) = scan.position.id().filter(|id| listing.may_match(id)) {
                found.add(listing, id, row);
            }
            if found.records.len() == limit {
                return Ok(found.page(Some(scan.position)));
            }
        }
    }
    Ok(found.page(Some(scan.position)))
}

/// Goes through the ranges of a filter in one operation after the other.
struct KeyScan<'a, D: Dialect> {
    executor: &'a Arc<Executor<D>>,
    listing: &'a Listing,
    /// How many rows one statement reads.
    window: usize,
    /// In ascending order.
    ranges: Vec<KeyRange>,
    /// Its time is of no use here.
    position: Position,
}

impl<D: Dialect> KeyScan<'_, D> {
    /// Reads the next rows of the operation; none at its end.
    async fn next_rows(&self) -> Result<Vec<ListedRow>, StoreError> {
        let left = self.ranges.iter();
        for keys in left.filter_map(|range| range.after(&self.position.key)) {
            let rows = self.read(keys, self.window).await?;
            if !rows.is_empty() {
                return Ok(rows);
            }
        }
        Ok(Vec::new())
    }

    /// Returns whether the operation has keys of which the filter cannot tell.
    async fn has_digests(&self) -> Result<bool, StoreError> {
        let rows = self.read(KeyFilter::digests(), 1).await?;
        let id = rows.first().and_then(|row| row.position.id());
        Ok(id.is_some_and(|id| self.listing.cannot_tell(&id)))
    }

    /// Moves on to the next operation of the listing. `false`: there is none.
    async fn next_operation(&mut self) -> Result<bool, StoreError> {
        let is_first = self.position.operation.is_empty();
        let next = match &self.listing.operation {
            Some(operation) => is_first.then(|| operation.to_string()),
            None => self.operation_after().await?,
        };
        let Some(operation) = next else {
            return Ok(false);
        };
        self.position = Position {
            operation,
            ..Position::default()
        };
        Ok(true)
    }

    /// Reads the next operation in the table, beyond the last possible key of this one.
    async fn operation_after(&self) -> Result<Option<String>, StoreError> {
        let from = Position {
            operation: self.position.operation.clone(),
            key: char::MAX.to_string().repeat(MAX_KEY_LEN),
            ..Position::default()
        };
        let ids = self.executor.step(Resend::Reads, move |dialect, on| {
            let from = from.clone();
            Box::pin(async move { Ok(dialect.ids(on, &from, 1).await?) })
        });
        Ok(ids.await?.pop().map(|(operation, _)| operation))
    }

    async fn read(&self, keys: KeyRange, limit: usize) -> Result<Vec<ListedRow>, StoreError> {
        let operation: Arc<str> = self.position.operation.as_str().into();
        let rows = self.executor.step(Resend::Reads, move |dialect, on| {
            let operation = operation.clone();
            let keys = keys.clone();
            Box::pin(async move {
                let rows = dialect.window_of_keys(on, &operation, &keys, count(limit));
                Ok(rows.await?)
            })
        });
        rows.await
    }
}
