//! `purge`.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::future::ready;

use futures_util::stream::{self, StreamExt as _};
use idem_core::record::{Owner, RecordId, is_step};
use idem_core::store::admin::{Intervened, Intervention, Listed, Listing, Unreadable};
use idem_core::store::trail::{self, Decision, EVERY_OPERATION, Ended, Noted};
use idem_core::{RecordState, StoreError, StoreErrorKind};
use serde_json::json;

use super::change::refuse_trail;
use super::list::{tell_of, tell_of_digests, valid};
use super::purged_steps::{PurgedCalls, PurgedSteps, is_in_run};
use super::steps::PREFIX;
use crate::args::{Purge, State};
use crate::ask;
use crate::failure::{Failure, without_entry};
use crate::print;
use crate::progress::Progress;
use crate::store::{AnyStore, Operator};

/// How many records are listed before they are removed.
const BATCH: usize = 1000;
/// How many removals are under way at a time.
const AT_A_TIME: usize = 16;

pub(crate) async fn run(store: &AnyStore, args: &Purge, json: bool) -> Result<(), Failure> {
    check(args)?;
    let listings = listings(args)?;
    let scope = scope(args);
    confirm(store, args, &listings, &scope).await?;
    let noted = note(store, args).await?;
    let mut purged = Purged::default();
    let ended = remove_with_steps(store, args, &listings, &mut purged).await;
    let removed = purged.removed;
    if let Some(noted) = noted {
        let ended = Ended::Done { records: removed };
        let written = store.end(noted, ended, args.consent.audit_ttl).await;
        if let Err(error) = written {
            print::aside(&format!(
                "idem: the audit trail does not say how many records were removed: {error}"
            ));
        }
    }
    if let Err(error) = ended {
        print::aside(&format!(
            "idem: {removed} records of {scope} were removed before the store failed"
        ));
        return Err(error.into());
    }
    tell_of_digests(purged.has_digests);
    let kept = purged.kept + u64::try_from(purged.unreadable.len()).unwrap_or(u64::MAX);
    if json {
        return Ok(print::json(&json!({
            "operation": args.operation,
            "removed": removed,
            "kept": kept,
            "steps_left": purged.steps_left,
            "who": ask::who(),
        }))?);
    }
    let of_steps = match purged.steps {
        0 => String::new(),
        steps => format!(" ({steps} of them of steps)"),
    };
    let left = match purged.steps_left {
        0 => String::new(),
        left => format!("; {left} steps of other calls are left"),
    };
    Ok(print::line(&format!(
        "{removed} records of {scope} removed{of_steps}, {kept} kept because they are alive, have \
         changed or cannot be read{left}"
    ))?)
}

/// Lists the records that are removed, without those of the steps of an operation's calls.
fn listings(args: &Purge) -> Result<Vec<Listing>, Failure> {
    let mut listing = Listing::all().limit(BATCH);
    listing.key = args.keys.filter();
    listing.state = args.state.map(Into::into);
    listing.older_than = args.older_than;
    let Some(operation) = &args.operation else {
        return Ok(vec![listing]);
    };
    let operation = valid(operation)?;
    let mut listings = vec![listing.clone().operation(operation)];
    if !is_step(operation) {
        // The runs of calls in transactions that were rolled back.
        listings.push(listing.operation([PREFIX, operation].concat()));
    }
    Ok(listings)
}

/// Removes the records of calls, and then those of steps: a call that is kept needs its steps.
async fn remove_with_steps(
    store: &AnyStore,
    args: &Purge,
    listings: &[Listing],
    purged: &mut Purged,
) -> Result<(), StoreError> {
    let mut steps = PurgedSteps::from_args(args);
    steps.look(store, args, listings).await?;
    for listing in listings {
        remove_all(store, args, listing, |id| !is_in_run(id), purged).await?;
    }
    steps.note(std::mem::take(&mut purged.calls));
    let before = purged.removed;
    let has_digests = purged.has_digests;
    for listing in steps.listings(store, args, listings).await? {
        remove_all(store, args, &listing, |id| steps.has(id), purged).await?;
    }
    while let Some((outer, run)) = purged.long.pop() {
        let listing = Listing::all().limit(BATCH).steps_of(outer, run);
        remove_all(store, args, &listing, |_| true, purged).await?;
    }
    purged.steps = purged.removed - before;
    purged.steps_left = steps.left.get();
    if steps.knows_keys() {
        purged.has_digests = has_digests;
    }
    Ok(())
}

/// The program's word for them.
fn scope(args: &Purge) -> String {
    let operation = args.operation.as_deref().unwrap_or("every operation");
    match (&args.keys.key, &args.keys.first_part) {
        (Some(key), _) => format!("{operation} with the key `{}`", print::shown(key)),
        (_, Some(part)) => format!(
            "{operation} with the first part `{}` of their keys",
            print::shown(part)
        ),
        _ => operation.to_owned(),
    }
}

/// Asks before records are removed, unless `--yes` answers.
async fn confirm(
    store: &AnyStore,
    args: &Purge,
    listings: &[Listing],
    scope: &str,
) -> Result<(), Failure> {
    // In a script, `"$USER*"` with an empty variable is `*`.
    let is_all = args.keys.filter().is_some_and(|filter| filter.is_all());
    if args.consent.yes && !is_all {
        return Ok(());
    }
    let mut counted = Counted::default();
    for listing in listings {
        count(store, listing.clone(), args.consent.force, &mut counted).await?;
    }
    let question = question(scope, &counted);
    if is_all {
        return ask::confirm_by_hand(
            &format!("The filter `*` has EVERY key. {question}"),
            "to remove all records of an operation, leave `--key` out",
        );
    }
    ask::confirm(&args.consent, &question)
}

/// Refuses arguments that contradict each other or need consent.
fn check(args: &Purge) -> Result<(), Failure> {
    let state = args.state;
    args.operation.as_deref().map_or(Ok(()), refuse_trail)?;
    if args.older_than.is_some()
        && state.is_some_and(|state| !matches!(state, State::InFlight | State::Abandoned))
    {
        return Err(Failure::Arguments(
            "`--older-than` is for `in_flight` and `abandoned`: stores do not record the age of \
             records in other states"
                .to_owned(),
        ));
    }
    if state == Some(State::InFlight) && !args.consent.force {
        return Err(Failure::Refused(
            "records in flight are alive: their bodies are running. With `--force` they are \
             removed all the same, and the bodies continue until their owners notice"
                .to_owned(),
        ));
    }
    Ok(())
}

/// The question to the operator before records are removed.
fn question(scope: &str, counted: &Counted) -> String {
    let total: u64 = counted.by_state.values().sum();
    let by_state: Vec<String> = counted
        .by_state
        .iter()
        .map(|(state, count)| format!("{count} {state}"))
        .collect();
    let steps = if counted.has_runs {
        " The steps of those that had not ended are removed too."
    } else {
        ""
    };
    format!(
        "{total} records of {scope} will be removed ({}). Their keys are forgotten: the next \
         call of each runs the body again.{steps}",
        if by_state.is_empty() {
            "none".to_owned()
        } else {
            by_state.join(", ")
        }
    )
}

/// The records that a purge has met.
#[derive(Default)]
struct Purged {
    removed: u64,
    /// How many of them were steps.
    steps: u64,
    /// How many steps of other calls were met, which may go on.
    steps_left: u64,
    /// Records that are alive or have changed.
    kept: u64,
    /// A set, because a listing may repeat a record.
    unreadable: HashSet<RecordId>,
    has_digests: bool,
    calls: PurgedCalls,
    /// Removed records and their runs, whose steps have a digest in place of the key.
    long: Vec<(RecordId, Owner)>,
}

impl Purged {
    fn keep_unreadable(&mut self, id: RecordId, error: &StoreError) {
        if !self.unreadable.contains(&id) {
            tell_of(&id, error);
            self.calls.unknown.push(id.clone());
            self.unreadable.insert(id);
        }
    }
}

/// Removes those of the listed records that are wanted. It stops at an error, and `purged` says how
/// many were removed until then.
async fn remove_all(
    store: &AnyStore,
    args: &Purge,
    listing: &Listing,
    is_wanted: impl Fn(&RecordId) -> bool,
    purged: &mut Purged,
) -> Result<(), StoreError> {
    let mut listing = listing.clone();
    loop {
        let page = store.list(&listing).await?;
        purged.has_digests |= page.has_digests;
        for Unreadable { id, error, .. } in page.unreadable {
            purged.keep_unreadable(id, &error);
        }
        // A step inside of these has a digest of the key, so it is removed after its outer step only.
        let long = page.records.iter().filter(|listed| {
            is_in_run(&listed.id) && listed.id.key().len() > RecordId::MAX_KEY_IN_STEPS
        });
        purged
            .calls
            .kept
            .extend(long.filter_map(|step| step.info.run));
        let (alive, batch): (Vec<Listed>, Vec<Listed>) = page
            .records
            .into_iter()
            .filter(|listed| is_no_entry(listed) && is_wanted(&listed.id))
            .partition(|listed| listed.info.state == RecordState::InFlight && !args.consent.force);
        purged.kept += u64::try_from(alive.len()).unwrap_or(u64::MAX);
        let alive = alive.iter().filter_map(|listed| listed.info.run);
        purged.calls.kept.extend(alive);
        // After a failure no more removals begin, and the running ones are awaited.
        let has_failed = Cell::new(false);
        let removals = stream::iter(batch)
            .take_while(|_| ready(!has_failed.get()))
            .map(|listed| {
                let has_failed = &has_failed;
                async move {
                    let answer = remove(store, args, &listed).await;
                    has_failed.set(
                        answer.as_ref().is_err_and(|error| !is_unreadable(error))
                            || has_failed.get(),
                    );
                    (listed, answer)
                }
            });
        let answers: Vec<_> = removals.buffer_unordered(AT_A_TIME).collect().await;
        let mut failed = Ok(());
        for (Listed { id, info, .. }, answer) in answers {
            match answer {
                Ok(Intervened::Done { .. }) => {
                    purged.removed += 1;
                    let removed = info.run.map(|run| (run, id.clone()));
                    purged.calls.removed.extend(removed);
                    let run = info
                        .run
                        .filter(|_| id.key().len() > RecordId::MAX_KEY_IN_STEPS);
                    purged.long.extend(run.map(|run| (id, run)));
                }
                Ok(Intervened::Nothing) => {}
                Ok(_) => {
                    purged.kept += 1;
                    purged.calls.unknown.push(id);
                }
                Err(error) if is_unreadable(&error) => purged.keep_unreadable(id, &error),
                Err(error) => failed = Err(error),
            }
        }
        failed?;
        match page.next {
            Some(cursor) => {
                print::aside(&format!("{} removed", purged.removed));
                listing = listing.after(cursor);
            }
            None => return Ok(()),
        }
    }
}

/// A purge of every operation leaves the trail alone: its keys are made of digests.
fn is_no_entry(listed: &Listed) -> bool {
    listed.id.operation() != trail::OPERATION
}

/// Removes a record only if it is as it was listed: one that was claimed or committed meanwhile
/// stays.
async fn remove(store: &AnyStore, args: &Purge, listed: &Listed) -> Result<Intervened, StoreError> {
    let forget = Intervention::forget(listed.id.clone())
        .by(
            &ask::who(),
            args.consent.reason.as_deref().unwrap_or_default(),
        )
        .force(args.consent.force)
        .only_attempt(listed.info.attempt)
        .only_state(listed.info.state);
    let answer = store.intervene(&forget).await?;
    if let Intervened::Done { attempt } = answer {
        ask::report("forgotten", &listed.id, attempt, &args.consent);
    }
    Ok(answer)
}

fn is_unreadable(error: &StoreError) -> bool {
    error.kind() == StoreErrorKind::Unreadable
}

/// Writes one entry for the whole purge: an entry for each record would take as much room as the
/// purge makes.
async fn note(store: &AnyStore, args: &Purge) -> Result<Option<Noted>, Failure> {
    let Purge { consent, .. } = args;
    if consent.no_audit {
        return Ok(None);
    }
    let decision = Decision::purge(args.operation.as_deref().unwrap_or(EVERY_OPERATION))
        .by_key(args.keys.filter().is_some())
        .of_state(args.state.map(Into::into))
        .older_than(args.older_than)
        .force(consent.force);
    let who = ask::who();
    let by = Operator {
        who: &who,
        why: consent.reason.as_deref().unwrap_or_default(),
    };
    store
        .note(&decision, by, consent.audit_ttl)
        .await
        .map(Some)
        .map_err(without_entry)
}

/// The records that would be removed.
#[derive(Default)]
struct Counted {
    by_state: BTreeMap<&'static str, u64>,
    has_runs: bool,
}

/// Counts them, by state.
async fn count(
    store: &AnyStore,
    mut listing: Listing,
    force: bool,
    counted: &mut Counted,
) -> Result<(), Failure> {
    let mut progress = Progress::new();
    loop {
        let page = store.list(&listing).await?;
        progress.add_page(&page);
        for Listed { info, .. } in page.records.into_iter().filter(is_no_entry) {
            if info.state != RecordState::InFlight || force {
                let state = print::state(info.state);
                *counted.by_state.entry(state).or_default() += 1;
                counted.has_runs |= info.run.is_some();
            }
        }
        match page.next {
            Some(cursor) => listing = listing.after(cursor),
            None => return Ok(()),
        }
    }
}
