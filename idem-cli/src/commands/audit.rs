//! `audit`: what operators decided.

use std::collections::HashSet;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use idem_core::record::RecordId;
use idem_core::store::admin::{Cursor, Listing};
use idem_core::store::trail::{self, EVERY_OPERATION, Entry};
use idem_core::{RecordState, StoreError, StoreErrorKind};
use serde_json::json;

use super::list::{of_cursor, tell, tell_of, valid};
use crate::args::Audit;
use crate::failure::Failure;
use crate::print;
use crate::progress::Progress;
use crate::store::AnyStore;

/// How many entries are read at a time.
const AT_A_TIME: usize = 16;

pub(crate) async fn run(store: &AnyStore, args: &Audit, json: bool) -> Result<(), Failure> {
    let operation = args.operation.as_deref().map(valid).transpose()?;
    let is_wanted = |entry: &Entry| {
        let of = &*entry.decision.operation;
        operation.is_none_or(|operation| of == operation || of == EVERY_OPERATION)
            && args
                .digest
                .is_none_or(|digest| entry.decision.digest == Some(digest))
    };
    let mut listing = Listing::all()
        .operation(trail::OPERATION)
        .state(RecordState::Committed);
    listing.cursor = args.cursor.as_deref().map(Cursor::from_text);
    let most = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let mut entries = Vec::<Entry>::new();
    let mut seen = HashSet::<RecordId>::new();
    let mut progress = Progress::new();
    let cursor = loop {
        listing.limit = most - entries.len();
        let page = store
            .list(&listing)
            .await
            .map_err(|error| of_cursor(error, &listing, args.cursor.as_deref()))?;
        progress.add_page(&page);
        tell(&page.unreadable);
        let ids = page
            .records
            .into_iter()
            .map(|listed| listed.id)
            .filter(|id| seen.insert(id.clone()));
        let read = stream::iter(ids).map(|id| entry_of(store, id));
        let read: Vec<Option<Entry>> = read.buffered(AT_A_TIME).try_collect().await?;
        entries.extend(read.into_iter().flatten().filter(is_wanted));
        match page.next {
            Some(cursor) if entries.len() < most => listing = listing.after(cursor),
            next => break next,
        }
    };
    progress.clear();
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.age));
    if json {
        let decisions: Vec<_> = entries.iter().map(print::entry_object).collect();
        return Ok(print::json(
            &json!({ "decisions": decisions, "cursor": cursor.as_ref().map(Cursor::as_str) }),
        )?);
    }
    let rows: Vec<_> = entries.iter().map(print::entry_row).collect();
    print::table(&print::ENTRY_COLUMNS, &rows)?;
    if let Some(cursor) = cursor {
        print::aside(&format!("there may be more: --cursor {}", cursor.as_str()));
    }
    Ok(())
}

/// Reads an entry of the trail. Says if it cannot be read, and leaves it out.
async fn entry_of(store: &AnyStore, id: RecordId) -> Result<Option<Entry>, StoreError> {
    match store.entry(&id).await {
        Err(error) if error.kind() == StoreErrorKind::Unreadable => {
            tell_of(&id, &error);
            Ok(None)
        }
        entry => entry,
    }
}
