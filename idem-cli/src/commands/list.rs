//! `list`.

use std::collections::HashSet;

use futures_util::stream::{self, StreamExt as _};
use idem_core::record::{RecordId, is_valid_operation};
use idem_core::store::admin::{Cursor, Listed, Listing, Unreadable};
use idem_core::store::trail;
use idem_core::{StoreError, StoreErrorKind};
use serde_json::json;

use crate::args::List;
use crate::failure::Failure;
use crate::print;
use crate::store::AnyStore;

/// How many outcomes are read at a time.
const AT_A_TIME: usize = 16;

pub(crate) async fn run(store: &AnyStore, args: &List, json: bool) -> Result<(), Failure> {
    let mut listing = Listing::all();
    if let Some(operation) = &args.operation {
        listing = listing.operation(valid(operation)?);
    }
    listing.state = args.state.map(Into::into);
    listing.older_than = args.older_than;
    listing.digest = args.digest;
    listing.cursor = args.cursor.as_deref().map(Cursor::from_text);
    let most = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let wants_trail = args.operation.as_deref() == Some(trail::OPERATION) || args.digest.is_some();
    let mut found_any = false;
    let (mut records, mut seen) = (Vec::<Listed>::new(), HashSet::<RecordId>::new());
    let cursor = loop {
        listing.limit = most - records.len();
        let page = store.list(&listing).await.map_err(|error| of_cursor(error, &listing, args.cursor.as_deref()))?;
        tell(&page.unreadable);
        found_any |= !page.unreadable.is_empty() || !page.records.is_empty();
        let is_wanted = |listed: &Listed| wants_trail || listed.id.operation() != trail::OPERATION;
        records.extend(page.records.into_iter().filter(|listed| is_wanted(listed) && seen.insert(listed.id.clone())));
        match page.next {
            Some(cursor) if records.len() < most => listing = listing.after(cursor),
            next => break next,
        }
    };
    records.sort_by(Listed::oldest_first);
    if json {
        let records = with_outcomes(store, records).await?;
        let cursor = cursor.as_ref().map(Cursor::as_str);
        return Ok(print::json(&json!({ "records": records, "cursor": cursor }))?);
    }
    let rows: Vec<_> = records.iter().map(|listed| print::row(&listed.id, &listed.info)).collect();
    print::table(&print::COLUMNS, &rows)?;
    if let Some(cursor) = cursor {
        print::aside(&format!("there may be more: --cursor {}", cursor.as_str()));
    } else if !found_any && args.cursor.is_none() {
        print::aside(
            "no such records; if there should be some, check the database in the URL, `--prefix` or `--table`",
        );
    }
    Ok(())
}

/// The records with their outcomes, which a listing leaves out.
async fn with_outcomes(store: &AnyStore, records: Vec<Listed>) -> Result<Vec<serde_json::Value>, Failure> {
    let objects = stream::iter(records).map(|mut listed| async move {
        if listed.info.state == idem_core::RecordState::Committed {
            match store.inspect(&listed.id).await {
                Ok(Some(info)) => listed.info = info,
                Ok(None) => {}
                // Without its outcome, as the table shows it.
                Err(error) if error.kind() == StoreErrorKind::Unreadable => tell_of(&listed.id, &error),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(print::object(&listed.id, &listed.info))
    });
    objects.buffered(AT_A_TIME).collect::<Vec<_>>().await.into_iter().collect()
}

/// The failure of a page: a cursor that was typed is a wrong argument.
pub(super) fn of_cursor(error: StoreError, listing: &Listing, typed: Option<&str>) -> Failure {
    let is_typed = typed.is_some() && typed == listing.cursor.as_ref().map(Cursor::as_str);
    if is_typed && error.kind() == StoreErrorKind::Refused {
        return Failure::Arguments(error.to_string());
    }
    error.into()
}

/// Returns an operation's name, or an error about the argument.
pub(crate) fn valid(operation: &str) -> Result<&str, Failure> {
    if is_valid_operation(operation) {
        return Ok(operation);
    }
    Err(Failure::Arguments(format!("`{}` is not a valid operation name", print::shown(operation))))
}

/// Says on the side what cannot be read.
pub(crate) fn tell(unreadable: &[Unreadable]) {
    for Unreadable { id, error, .. } in unreadable {
        tell_of(id, error);
    }
}

pub(super) fn tell_of(id: &RecordId, error: &StoreError) {
    print::aside(&format!("idem: {}", unreadable(id, error)));
}

pub(super) fn unreadable(id: &RecordId, error: &StoreError) -> String {
    format!("`{}` of `{}` cannot be read: {error}", print::shown(id.key()), id.operation())
}
