//! `stats` and `watch`.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use idem_core::RecordState;
use idem_core::store::admin::Listing;
use idem_core::store::trail;
use serde_json::{Map, Value};

use super::list::tell;
use crate::args::Watch;
use crate::failure::Failure;
use crate::print;
use crate::progress::Progress;
use crate::store::AnyStore;

/// The states, in the order of the columns.
const STATES: [RecordState; 6] = [
    RecordState::Issued,
    RecordState::InFlight,
    RecordState::Abandoned,
    RecordState::Released,
    RecordState::Committed,
    RecordState::Done,
];
/// How many records a page has.
const PAGE: usize = 1000;

/// The counts of an operation.
#[derive(Default)]
struct Counts {
    by_state: [u64; STATES.len()],
    oldest_in_flight: Option<Duration>,
    oldest_abandoned: Option<Duration>,
}

pub(crate) async fn run(store: &AnyStore, json: bool) -> Result<(), Failure> {
    show(&count(store).await?, json)
}

/// Counts repeatedly, until it is interrupted.
pub(crate) async fn watch(store: &AnyStore, args: &Watch, json: bool) -> Result<(), Failure> {
    let clears = !json && io::stdout().is_terminal();
    loop {
        let counted = tokio::select! {
            counted = count(store) => counted?,
            _ = tokio::signal::ctrl_c() => return Ok(()),
        };
        if clears {
            // Moves the cursor to the top left, and clears the screen below it.
            write!(io::stdout(), "\u{1b}[H\u{1b}[2J")?;
        }
        show(&counted, json)?;
        io::stdout().flush()?;
        tokio::select! {
            () = tokio::time::sleep(args.interval) => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

async fn count(store: &AnyStore) -> Result<BTreeMap<String, Counts>, Failure> {
    let mut operations: BTreeMap<String, Counts> = BTreeMap::new();
    let mut seen = std::collections::HashSet::new();
    let mut listing = Listing::all().limit(PAGE);
    let mut progress = Progress::new();
    loop {
        let page = store.list(&listing).await?;
        progress.add(&page);
        tell(&page.unreadable);
        for listed in page.records {
            // A listing may repeat a record. The digest takes less memory than the id.
            if listed.id.operation() == trail::OPERATION || !seen.insert(listed.id.digest()) {
                continue;
            }
            let state = match listed.info.state {
                // An expired token.
                RecordState::Expired => RecordState::Issued,
                state => state,
            };
            let counts = operations
                .entry(listed.id.operation().to_owned())
                .or_default();
            for (count, _) in counts
                .by_state
                .iter_mut()
                .zip(STATES)
                .filter(|(_, other)| *other == state)
            {
                *count += 1;
            }
            let oldest = match state {
                RecordState::InFlight => &mut counts.oldest_in_flight,
                RecordState::Abandoned => &mut counts.oldest_abandoned,
                _ => continue,
            };
            *oldest = (*oldest).max(listed.info.lease_age);
        }
        match page.next {
            Some(cursor) => listing = listing.after(cursor),
            None => return Ok(operations),
        }
    }
}

fn show(operations: &BTreeMap<String, Counts>, json: bool) -> Result<(), Failure> {
    if json {
        let objects = operations
            .iter()
            .map(|(name, counts)| object(name, counts))
            .collect();
        return Ok(print::json(&Value::Array(objects))?);
    }
    let head = [
        "OPERATION",
        "ISSUED",
        "IN FLIGHT",
        "ABANDONED",
        "RELEASED",
        "COMMITTED",
        "DONE",
        "OLDEST IN FLIGHT",
        "OLDEST ABANDONED",
    ];
    let row = |(name, counts): (&String, &Counts)| {
        let age = |age: Option<Duration>| age.map_or_else(|| "-".to_owned(), print::length);
        let counted = counts.by_state.iter().map(u64::to_string);
        let ages = [age(counts.oldest_in_flight), age(counts.oldest_abandoned)];
        std::iter::once(name.clone())
            .chain(counted)
            .chain(ages)
            .collect()
    };
    let rows: Vec<Vec<String>> = operations.iter().map(row).collect();
    Ok(print::table(&head, &rows)?)
}

fn object(name: &str, counts: &Counts) -> Value {
    let mut object = Map::new();
    object.insert("operation".to_owned(), name.into());
    for (state, count) in STATES.into_iter().zip(counts.by_state) {
        object.insert(print::state(state).to_owned(), count.into());
    }
    object.insert(
        "oldest_in_flight_ms".to_owned(),
        counts.oldest_in_flight.map(print::millis).into(),
    );
    object.insert(
        "oldest_abandoned_ms".to_owned(),
        counts.oldest_abandoned.map(print::millis).into(),
    );
    Value::Object(object)
}
