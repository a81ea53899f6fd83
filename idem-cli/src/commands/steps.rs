//! The steps of a call: which run of its key they belong to, for `show`, `forget` and `purge`.

use std::collections::BTreeMap;

use idem_core::record::{Owner, RecordId, RecordInfo, is_step};
use idem_core::store::admin::{Listed, Listing};
use idem_core::{RecordState, StoreError};
use serde_json::{Value, json};

use crate::print;
use crate::progress::Progress;
use crate::store::AnyStore;

/// How the operations of the records of steps begin.
pub(super) const PREFIX: &str = "idem.step/";
/// How many steps a question names.
const MOST_NAMED: usize = 10;

/// The run of a key that the next call goes on with.
pub(super) struct Run {
    pub(super) id: Owner,
    /// The record that holds it, if that is not the record of the call.
    pub(super) beside: Option<(RecordId, RecordInfo)>,
}

/// Returns the current run of a call. If its record has none because it does not exist or is
/// released, the run is in the record beside it, of a transaction that was rolled back.
pub(super) async fn current_run(
    store: &AnyStore,
    call: &RecordId,
    info: Option<&RecordInfo>,
) -> Result<Option<Run>, StoreError> {
    if let Some(id) = info.and_then(|info| info.run) {
        return Ok(Some(Run { id, beside: None }));
    }
    let may_be_beside =
        info.is_none_or(|info| matches!(info.state, RecordState::Released | RecordState::Issued));
    if !may_be_beside || is_step(call.operation()) {
        return Ok(None);
    }
    let at = call.beside();
    let Some(info) = store.inspect(&at).await? else {
        return Ok(None);
    };
    let Some(id) = info.run else {
        return Ok(None);
    };
    // A transaction that was committed has left a record which says that the run has ended.
    if store.inspect(&at.end_of(id)).await?.is_some() {
        return Ok(None);
    }
    let beside = Some((at, info));
    Ok(Some(Run { id, beside }))
}

/// Finds the steps of a run of a call, and those inside of a step that has not ended, each in the
/// current run of its step.
pub(super) async fn find(
    store: &AnyStore,
    call: &RecordId,
    run: Owner,
) -> Result<Vec<Listed>, StoreError> {
    let mut listed = Steps::new();
    let mut found = Steps::new();
    let mut unfinished = vec![(call.clone(), run)];
    while let Some((outer, run)) = unfinished.pop() {
        // The listing of the call has the others already.
        if outer == *call || outer.key().len() > RecordId::MAX_KEY_IN_STEPS {
            let inside = Listing::all().steps_of(outer.clone(), run);
            list(store, inside, &mut listed).await?;
        }
        for step in listed.values() {
            if is_directly_in(&step.id, &outer) && step.id.is_step_of(&outer, run) {
                unfinished.extend(step.info.run.map(|run| (step.id.clone(), run)));
                found.insert(place(step), step.clone());
            }
        }
    }
    Ok(found.into_values().collect())
}

/// Steps by operation and key, since a listing may repeat one.
type Steps = BTreeMap<(String, String), Listed>;

fn place(step: &Listed) -> (String, String) {
    (step.id.operation().to_owned(), step.id.key().to_owned())
}

async fn list(store: &AnyStore, listing: Listing, listed: &mut Steps) -> Result<(), StoreError> {
    let mut listing = listing.limit(1000);
    let mut progress = Progress::new();
    loop {
        let page = store.list(&listing).await?;
        progress.add_page(&page);
        listed.extend(page.records.into_iter().map(|step| (place(&step), step)));
        match page.next {
            Some(cursor) => listing = listing.after(cursor),
            None => break,
        }
    }
    progress.clear();
    Ok(())
}

/// Returns whether the name of a step is that of its call and one more.
fn is_directly_in(step: &RecordId, call: &RecordId) -> bool {
    step.name()
        .rsplit_once('/')
        .is_some_and(|(outer, _)| outer == call.name())
}

/// Returns the parts of a step's key that may be the id of its run, or of that of a step around it.
pub(super) fn runs_in(id: &RecordId) -> impl Iterator<Item = Owner> {
    let key = if is_step(id.operation()) {
        id.key()
    } else {
        ""
    };
    key.split(':').filter_map(run_of)
}

/// Reads a run's id, a UUID of version 7. Other ids of people may have as many characters.
fn run_of(part: &str) -> Option<Owner> {
    let is_run = |owner: &Owner| {
        let bytes = owner.to_bytes();
        bytes[6] >> 4 == 7 && bytes[8] >> 6 == 0b10
    };
    Owner::parse(part).filter(is_run)
}

/// Prints the steps of a call, for people.
pub(super) fn show(steps: &[Listed]) -> std::io::Result<()> {
    if steps.is_empty() {
        return Ok(());
    }
    let rows: Vec<Vec<String>> = steps
        .iter()
        .map(|Listed { id, info, .. }| {
            vec![
                id.operation().to_owned(),
                print::shown(id.key()).into_owned(),
                print::state(info.state).to_owned(),
                info.attempt.to_string(),
                info.lease_age.map_or_else(|| "-".to_owned(), print::length),
                print::length(info.expires_in),
            ]
        })
        .collect();
    print::text("\n")?;
    print::table(
        &["STEP", "KEY", "STATE", "ATTEMPT", "AGE", "EXPIRES IN"],
        &rows,
    )
}

/// Adds the run of a call and its steps to an object.
pub(super) fn add(object: &mut Value, run: Option<Owner>, steps: &[Listed]) {
    if let Value::Object(object) = object {
        if let Some(run) = run {
            object.insert("run".to_owned(), json!(run.to_string()));
        }
        let steps = steps.iter().map(|step| print::object(&step.id, &step.info));
        object.insert("steps".to_owned(), steps.collect());
    }
}

/// Says what a record beside a transaction is.
pub(super) fn describe_beside(beside: &RecordId) -> String {
    format!(
        "The steps ran beside a transaction that was rolled back, or has not ended. The record `{}` \
         with this key holds their run, and the next call goes on after them.",
        beside.operation()
    )
}

/// The question's part about the steps of a run that ends.
pub(super) fn question(call: &RecordId, run: Owner, steps: &[Listed]) -> String {
    if steps.is_empty() {
        return String::new();
    }
    let names: Vec<String> = steps
        .iter()
        .take(MOST_NAMED)
        .map(|step| name_below(call, run, &step.id))
        .collect();
    let more = match steps.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let count = match steps.len() {
        1 => "step runs".to_owned(),
        count => format!("{count} steps run"),
    };
    format!(
        "\nIts run ends, so its {count} again: {}{more}.",
        names.join(", ")
    )
}

/// Returns the name of a step below its call, with its further parts.
fn name_below(call: &RecordId, run: Owner, step: &RecordId) -> String {
    let name = step.name().strip_prefix(call.name()).unwrap_or_default();
    let mut text = name.trim_start_matches('/').to_owned();
    let after_run = step.key().split_once(&run.to_string());
    let parts = after_run.map_or("", |(_, parts)| parts).split(':');
    let parts = parts.filter(|part| !part.is_empty() && run_of(part).is_none());
    for (index, part) in parts.enumerate() {
        text.push(if index == 0 { ' ' } else { ':' });
        text.push_str(&print::shown(part));
    }
    text
}
