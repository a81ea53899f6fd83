//! `purge`.

use std::collections::BTreeMap;

use futures_util::stream::{self, StreamExt as _};
use idem_core::RecordState;
use idem_core::store::admin::{Intervened, Intervention, Listed, Listing};
use idem_core::store::trail::{Decision, Ended, Noted};
use serde_json::json;

use super::change::{refuse_trail, without_entry};
use super::list::{tell, valid};
use crate::args::{Purge, State};
use crate::ask;
use crate::failure::Failure;
use crate::print;
use crate::store::AnyStore;

/// How many records are listed before they are removed.
const BATCH: usize = 1000;
/// How many removals are under way at a time.
const AT_A_TIME: usize = 16;

pub(crate) async fn run(store: &AnyStore, args: &Purge, json: bool) -> Result<(), Failure> {
    let state = args.state;
    refuse_trail(&args.operation)?;
    if args.older_than.is_some() && state.is_some_and(|state| !matches!(state, State::InFlight | State::Abandoned)) {
        return Err(Failure::Arguments(
            "`--older-than` is for `in_flight` and `abandoned`: stores do not record the age of records in other states"
                .to_owned(),
        ));
    }
    if state == Some(State::InFlight) && !args.consent.force {
        return Err(Failure::Refused(
            "records in flight are alive: their bodies are running. With `--force` they are removed all the same, and the bodies continue until their owners notice".to_owned(),
        ));
    }
    let mut listing = Listing::all().operation(valid(&args.operation)?).limit(BATCH);
    listing.state = state.map(Into::into);
    listing.older_than = args.older_than;
    if !args.consent.yes {
        let counted = count(store, listing.clone(), args.consent.force).await?;
        let total: u64 = counted.values().sum();
        let by_state: Vec<String> = counted.iter().map(|(state, count)| format!("{count} {state}")).collect();
        let question = format!(
            "{total} records of {} will be removed ({}). Their keys are forgotten: the next call of each runs the body again.",
            args.operation,
            if by_state.is_empty() { "none".to_owned() } else { by_state.join(", ") }
        );
        ask::confirm(&args.consent, &question)?;
    }
    let noted = note(store, args).await?;
    let (mut removed, mut kept) = (0_u64, 0_u64);
    loop {
        let page = store.list(&listing).await?;
        tell(&page.unreadable);
        let (alive, batch): (Vec<Listed>, Vec<Listed>) = page
            .records
            .into_iter()
            .partition(|listed| listed.info.state == RecordState::InFlight && !args.consent.force);
        kept += u64::try_from(alive.len()).unwrap_or(u64::MAX);
        let removals = stream::iter(batch).map(|listed| async move {
            // Only what was listed: a key that was claimed since, or was committed, stays.
            let forget = Intervention::forget(listed.id.clone())
                .by(&ask::who(), args.consent.reason.as_deref().unwrap_or_default())
                .force(args.consent.force)
                .only_attempt(listed.info.attempt)
                .only_state(listed.info.state);
            let answer = store.intervene(&forget).await?;
            if let Intervened::Done { attempt } = answer {
                ask::report("forgotten", &listed.id, attempt, &args.consent);
            }
            Ok::<_, Failure>(answer)
        });
        let answers: Vec<_> = removals.buffer_unordered(AT_A_TIME).collect().await;
        for answer in answers {
            match answer? {
                Intervened::Done { .. } => removed += 1,
                Intervened::Nothing => {}
                _ => kept += 1,
            }
        }
        match page.next {
            Some(cursor) => {
                print::aside(&format!("{removed} removed"));
                listing = listing.after(cursor);
            }
            None => break,
        }
    }
    if let Some(noted) = noted {
        let ended = store.end(noted, Ended::Done { records: removed }, args.consent.audit_ttl).await;
        if let Err(error) = ended {
            print::aside(&format!("idem: the audit trail does not say how many records were removed: {error}"));
        }
    }
    if json {
        return Ok(print::json(
            &json!({ "operation": args.operation, "removed": removed, "kept": kept, "who": ask::who() }),
        )?);
    }
    let operation = &args.operation;
    Ok(print::line(&format!(
        "{removed} records of {operation} removed, {kept} kept because they are alive or have changed"
    ))?)
}

/// The entry of the whole: one for each record would take the room that a purge makes.
async fn note(store: &AnyStore, args: &Purge) -> Result<Option<Noted>, Failure> {
    let Purge { consent, .. } = args;
    if consent.no_audit {
        return Ok(None);
    }
    let decision = Decision::purge(&args.operation)
        .of_state(args.state.map(Into::into))
        .older_than(args.older_than)
        .force(consent.force);
    let (who, why) = (ask::who(), consent.reason.as_deref().unwrap_or_default());
    store.note(&decision, (&who, why), consent.audit_ttl).await.map(Some).map_err(without_entry)
}

/// How many records would go, by state.
async fn count(store: &AnyStore, mut listing: Listing, force: bool) -> Result<BTreeMap<&'static str, u64>, Failure> {
    let mut counted = BTreeMap::new();
    loop {
        let page = store.list(&listing).await?;
        for listed in page.records {
            if listed.info.state != RecordState::InFlight || force {
                *counted.entry(print::state(listed.info.state)).or_default() += 1;
            }
        }
        match page.next {
            Some(cursor) => listing = listing.after(cursor),
            None => return Ok(counted),
        }
    }
}
