//! The steps of a call: for `show` and `forget`.

use std::collections::BTreeMap;

use idem_core::record::{RecordId, RecordInfo};
use idem_core::store::admin::{Intervened, Intervention, Listed, Listing};
use idem_core::{RecordState, StoreError};
use serde_json::json;

use super::{ids_of, intervene};
use crate::args::{Change, Consent};
use crate::ask;
use crate::failure::Failure;
use crate::print;
use crate::progress::Progress;
use crate::store::AnyStore;

/// Whether the steps of a record may still be of use. Those of a recorded value are removed.
pub(super) fn may_matter(info: &RecordInfo) -> bool {
    match info.state {
        RecordState::Issued | RecordState::Expired | RecordState::Done => false,
        RecordState::Committed => info.is_error,
        _ => true,
    }
}

/// Finds the steps of a call by their names and keys. A step has the fingerprint of its call: a
/// record with another one belongs to an operation whose name only looks like that of a step. A
/// released call has no fingerprint, and neither has one without a record, `None`.
pub(super) async fn find(
    store: &AnyStore,
    call: &RecordId,
    info: Option<&RecordInfo>,
) -> Result<Vec<Listed>, StoreError> {
    let fingerprint = info
        .filter(|info| info.state != RecordState::Released)
        .map(|info| info.fingerprint);
    let mut found = BTreeMap::new();
    let mut progress = Progress::new();
    let mut listing = Listing::all().steps_of(call.clone()).limit(1000);
    loop {
        let page = store.list(&listing).await?;
        progress.add_page(&page);
        for listed in page.records {
            let is_of_call = listed.info.state == RecordState::Released
                || fingerprint.is_none_or(|of_call| listed.info.fingerprint == of_call);
            if is_of_call {
                found.insert(listed.id.as_str().to_owned(), listed);
            }
        }
        match page.next {
            Some(cursor) => listing = listing.after(cursor),
            None => break,
        }
    }
    progress.clear();
    Ok(found.into_values().collect())
}

/// What is left of the name of a step, below its call.
fn name_below(call: &RecordId, step: &RecordId) -> String {
    let name = step.operation().get(call.operation().len() + 1..);
    let name = name.unwrap_or_default().to_owned();
    if step.key() == call.key() {
        return name;
    }
    format!("{name} {}", print::shown(step.key()))
}

/// Prints the steps of a call, for people.
pub(super) fn show(call: &RecordId, steps: &[Listed]) -> std::io::Result<()> {
    if steps.is_empty() {
        return Ok(());
    }
    let rows: Vec<Vec<String>> = steps
        .iter()
        .map(|Listed { id, info, .. }| {
            vec![
                name_below(call, id),
                print::state(info.state).to_owned(),
                info.attempt.to_string(),
                info.lease_age.map_or_else(|| "-".to_owned(), print::length),
                print::length(info.expires_in),
            ]
        })
        .collect();
    print::text("\n")?;
    print::table(&["STEP", "STATE", "ATTEMPT", "AGE", "EXPIRES IN"], &rows)
}

/// The question's part about the steps that are forgotten.
pub(super) fn question(call: &RecordId, steps: &[Listed]) -> String {
    /// More are counted.
    const MOST: usize = 10;
    if steps.is_empty() {
        return String::new();
    }
    let names: Vec<String> = steps
        .iter()
        .take(MOST)
        .map(|step| name_below(call, &step.id))
        .collect();
    let more = match steps.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "\nIts steps are forgotten too, so that they run again: {}{more}. With `--keep-steps` they \
         are kept.",
        names.join(", ")
    )
}

/// Removes the steps that are left of a call without a record. Without such steps, fails with what
/// was said of the record.
pub(super) async fn forget_left(
    store: &AnyStore,
    args: &Change,
    json: bool,
    no_record: String,
) -> Result<(), Failure> {
    let Change {
        operation,
        key,
        consent,
    } = args;
    for call in ids_of(operation, key) {
        let steps = find(store, &call, None).await?;
        if steps.is_empty() {
            continue;
        }
        let asked = format!("{no_record}.{}", question(&call, &steps));
        ask::confirm(consent, &asked)?;
        let who = ask::who();
        forget(store, &steps, consent, &who).await?;
        if json {
            let steps = steps
                .iter()
                .map(|Listed { id, info, .. }| {
                    print::changed_unread("forgotten", id, None, info.attempt, &who)
                })
                .collect::<Vec<_>>();
            return Ok(print::json(&json!({ "steps": steps }))?);
        }
        return Ok(print::line(&format!(
            "forgotten: {} records of steps of {} {}, which has no record itself, by {who}",
            steps.len(),
            call.operation(),
            print::shown(call.key()),
        ))?);
    }
    Err(Failure::NoRecord(no_record))
}

/// Removes steps, before the record of their call: a program that dies in between can do it again.
pub(super) async fn forget(
    store: &AnyStore,
    steps: &[Listed],
    consent: &Consent,
    who: &str,
) -> Result<(), Failure> {
    for Listed { id, info, .. } in steps {
        let intervention = Intervention::forget(id.clone())
            .by(who, consent.reason.as_deref().unwrap_or_default())
            .force(consent.force)
            .only_attempt(info.attempt)
            .only_state(info.state);
        match intervene(store, &intervention, consent).await? {
            Intervened::Done { .. } | Intervened::Nothing => {}
            _ => {
                return Err(Failure::Refused(format!(
                    "the step `{}` is in flight or has changed meanwhile, so the call was not \
                     forgotten; look at it again. With `--keep-steps` only the call is forgotten",
                    id.operation()
                )));
            }
        }
    }
    Ok(())
}
