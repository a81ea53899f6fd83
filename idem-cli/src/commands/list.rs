//! `list`.

use std::collections::HashSet;

use futures_util::stream::{self, StreamExt as _};
use idem_core::record::{RecordId, is_valid_operation};
use idem_core::store::admin::{Cursor, Listed, Listing, Unreadable};
use idem_core::store::trail;
use idem_core::{KeyDigest, StoreError, StoreErrorKind};
use serde_json::json;

use super::steps::PREFIX;
use crate::args::List;
use crate::failure::Failure;
use crate::print;
use crate::progress::Progress;
use crate::store::AnyStore;

/// How many outcomes are read at a time.
const AT_A_TIME: usize = 16;
/// How many records are held in memory and sorted by age together. More are printed in several
/// parts.
const SORTED: usize = 10_000;

pub(crate) async fn run(store: &AnyStore, args: &List, json: bool) -> Result<(), Failure> {
    let mut listing = listing(args)?;
    let mut left = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let wants_trail = args.operation.as_deref() == Some(trail::OPERATION) || args.digest.is_some();
    let mut found_any = false;
    let mut has_digests = false;
    let mut records = Vec::<Listed>::new();
    let mut seen = HashSet::<KeyDigest>::new();
    let mut output = Output::new(json);
    let mut progress = Progress::new();
    let cursor = loop {
        listing.limit = left.min(SORTED);
        let page = store
            .list(&listing)
            .await
            .map_err(|error| of_cursor(error, &listing, args.cursor.as_deref()))?;
        progress.add_page(&page);
        tell(&page.unreadable);
        has_digests |= page.has_digests;
        found_any |= !page.unreadable.is_empty() || !page.records.is_empty();
        let is_wanted = |listed: &Listed| wants_trail || listed.id.operation() != trail::OPERATION;
        let before = records.len();
        records.extend(
            page.records
                .into_iter()
                .filter(|listed| is_wanted(listed) && seen.insert(listed.id.digest())),
        );
        left -= records.len() - before;
        if records.len() >= SORTED {
            progress.clear();
            output.print(store, std::mem::take(&mut records)).await?;
        }
        match page.next {
            Some(cursor) if left > 0 => listing = listing.after(cursor),
            next => break next,
        }
    };
    progress.clear();
    output.print(store, records).await?;
    output.end(cursor.as_ref())?;
    tell_of_digests(has_digests);
    if json {
        return Ok(());
    }
    if let Some(cursor) = cursor {
        print::aside(&format!("there may be more: --cursor {}", cursor.as_str()));
    } else if !found_any && listing.key.is_some() && args.cursor.is_none() {
        print::aside(
            "no such records; in a key, case counts, and `*` has a meaning only at its end; \
             `idem list` shows keys as they are stored",
        );
    } else if !found_any && args.cursor.is_none() {
        print::aside(
            "no such records; if there should be some, check the database in the URL, `--prefix` \
             or `--table`",
        );
    }
    Ok(())
}

/// What is listed.
fn listing(args: &List) -> Result<Listing, Failure> {
    let mut listing = Listing::all();
    if let Some(operation) = &args.operation {
        listing = listing.operation(valid(operation)?);
    }
    listing.state = args.state.map(Into::into);
    listing.older_than = args.older_than;
    listing.digest = args.digest;
    listing.key = args.keys.filter();
    listing.cursor = args.cursor.as_deref().map(Cursor::from_text);
    Ok(listing)
}

/// A listing that is printed in parts.
struct Output {
    json: bool,
    table: print::Table,
    has_begun: bool,
}

impl Output {
    fn new(json: bool) -> Self {
        Self {
            json,
            table: print::Table::new(&print::COLUMNS),
            has_begun: false,
        }
    }

    /// Prints more records, the oldest of these first.
    async fn print(&mut self, store: &AnyStore, mut records: Vec<Listed>) -> Result<(), Failure> {
        records.sort_by(Listed::oldest_first);
        if !self.json {
            let rows: Vec<_> = records
                .iter()
                .map(|listed| print::row(&listed.id, &listed.info))
                .collect();
            return Ok(self.table.rows(&rows)?);
        }
        for object in with_outcomes(store, records).await? {
            print::text(if self.has_begun {
                ","
            } else {
                "{\"records\":["
            })?;
            print::text(&print::json_text(&object))?;
            self.has_begun = true;
        }
        Ok(())
    }

    fn end(&self, cursor: Option<&Cursor>) -> Result<(), Failure> {
        if self.json {
            let begin = if self.has_begun { "" } else { "{\"records\":[" };
            print::line(&format!(
                "{begin}],\"cursor\":{}}}",
                json!(cursor.map(Cursor::as_str))
            ))?;
        }
        Ok(())
    }
}

/// The records with their outcomes, which a listing leaves out.
async fn with_outcomes(
    store: &AnyStore,
    records: Vec<Listed>,
) -> Result<Vec<serde_json::Value>, Failure> {
    let objects = stream::iter(records).map(|mut listed| async move {
        if listed.info.state == idem_core::RecordState::Committed {
            match store.inspect(&listed.id).await {
                Ok(Some(info)) => listed.info = info,
                Ok(None) => {}
                // It is shown without its outcome, as in the table.
                Err(error) if error.kind() == StoreErrorKind::Unreadable => {
                    tell_of(&listed.id, &error);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(print::object(&listed.id, &listed.info))
    });
    objects
        .buffered(AT_A_TIME)
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .collect()
}

/// The failure of a page. A bad cursor on the command line is a wrong argument.
pub(super) fn of_cursor(error: StoreError, listing: &Listing, typed: Option<&str>) -> Failure {
    let is_typed = typed.is_some() && typed == listing.cursor.as_ref().map(Cursor::as_str);
    if is_typed && error.kind() == StoreErrorKind::Refused {
        return Failure::Arguments(error.to_string());
    }
    error.into()
}

/// Returns an operation's name, or an error about the argument.
pub(crate) fn valid(operation: &str) -> Result<&str, Failure> {
    let name = operation.strip_prefix(PREFIX).unwrap_or(operation);
    if is_valid_operation(name) {
        return Ok(operation);
    }
    Err(Failure::Arguments(format!(
        "`{}` is not a valid operation name",
        print::shown(operation)
    )))
}

/// Prints on the standard error output which records cannot be read.
pub(crate) fn tell(unreadable: &[Unreadable]) {
    for Unreadable { id, error, .. } in unreadable {
        tell_of(id, error);
    }
}

/// Prints that a key filter has not seen every key.
pub(super) fn tell_of_digests(has_digests: bool) {
    if has_digests {
        print::aside(
            "idem: some keys are stored as digests (keys of over 256 bytes, and those of tokens), \
             and no filter sees how they began: these records were passed over. \
             `list --operation` shows them, and `forget` takes a long key as it was written",
        );
    }
}

pub(super) fn tell_of(id: &RecordId, error: &StoreError) {
    print::aside(&format!("idem: {}", unreadable(id, error)));
}

pub(super) fn unreadable(id: &RecordId, error: &StoreError) -> String {
    format!(
        "`{}` of `{}` cannot be read: {error}",
        print::shown(id.key()),
        id.operation()
    )
}
