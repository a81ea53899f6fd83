//! `stats` and `watch`.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use idem_core::RecordState;
use idem_core::store::trail;
use serde_json::{Map, Value};

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
    let mut unreadable = 0;
    let mut progress = Progress::new();
    let mut after = None;
    loop {
        let counted = store.count(after.as_ref()).await?;
        let part = counted.ok_or_else(|| {
            Failure::Unavailable("this store cannot count its records; use `list`".to_owned())
        })?;
        unreadable += part.unreadable;
        for count in part.counts {
            progress.add(usize::try_from(count.records).unwrap_or(usize::MAX));
            if *count.operation != *trail::OPERATION {
                let counts = operations.entry(count.operation.into()).or_default();
                counts.add(count.state, count.records, count.silent_for);
            }
        }
        after = match part.next {
            Some(next) => Some(next),
            None => break,
        };
    }
    if unreadable > 0 {
        progress.clear();
        print::aside(&format!(
            "idem: {unreadable} records cannot be read; `idem list` names them"
        ));
    }
    Ok(operations)
}

impl Counts {
    /// Adds records of which nothing was heard for at most so long.
    fn add(&mut self, state: RecordState, records: u64, silent_for: Option<Duration>) {
        let state = match state {
            // An expired token.
            RecordState::Expired => RecordState::Issued,
            state => state,
        };
        let counts = self.by_state.iter_mut().zip(STATES);
        for (count, _) in counts.filter(|(_, other)| *other == state) {
            *count += records;
        }
        let oldest = match state {
            RecordState::InFlight => &mut self.oldest_in_flight,
            RecordState::Abandoned => &mut self.oldest_abandoned,
            _ => return,
        };
        *oldest = (*oldest).max(silent_for);
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
