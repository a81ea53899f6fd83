//! `settle`, `forget` and `release`.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use idem_core::record::{Encoded, Metadata, Owner, RecordId, RecordInfo, is_lock, is_step};
use idem_core::store::admin::{Intervened, Intervention, Wish};
use idem_core::store::trail;
use idem_core::{CodecId, RecordState};
use serde::de::IgnoredAny;
use serde_json::Value;

use super::pattern::{self, Wanted};
use super::steps::Run;
use super::{find, ids_of, intervene, steps};
use crate::args::{Change, Consent, Forget, Settle};
use crate::ask;
use crate::failure::Failure;
use crate::print;
use crate::store::AnyStore;

/// The result of the next call, for the record of a lock.
const THEN_HELD: &str = "the next holder acquires the lock, with a higher fencing number";
const THEN_FIRST: &str = "the next holder acquires the lock with fencing number 1, which \
    resources refuse if they have seen higher ones (`release` keeps the number)";

/// A change of a record.
struct Action {
    /// As events and JSON name it.
    decision: &'static str,
    /// The result of the next call.
    then: &'static str,
    /// The state of the record afterwards, if there is one.
    state: Option<RecordState>,
    /// The states in which a record may be changed, apart from records in flight; `None`: all
    /// states.
    states: Option<&'static [RecordState]>,
}

const SETTLE: Action = Action {
    decision: "settled",
    then: "every duplicate gets this outcome",
    state: Some(RecordState::Committed),
    states: Some(&[RecordState::Abandoned, RecordState::Released]),
};
const REPLACE: Action = Action {
    decision: "replaced",
    then: "every duplicate gets this outcome; callers that got the one before keep it",
    state: Some(RecordState::Committed),
    states: Some(&[RecordState::Committed]),
};
const RELEASE: Action = Action {
    decision: "released",
    then: "the next call runs the body, as the next attempt",
    state: Some(RecordState::Released),
    states: Some(&[RecordState::Abandoned]),
};
const FORGET: Action = Action {
    decision: "forgotten",
    then: "the next call runs the body, as the first attempt",
    state: None,
    states: None,
};

impl Action {
    /// Says what the next call gets.
    fn then(&self, id: &RecordId) -> &'static str {
        match self.state {
            _ if !is_lock(id.operation()) => self.then,
            Some(_) => THEN_HELD,
            None => THEN_FIRST,
        }
    }
}

pub(crate) async fn settle(store: &AnyStore, args: &Settle, json: bool) -> Result<(), Failure> {
    let is_stdin = args.value == Path::new("-");
    if is_stdin && !args.change.consent.yes {
        return Err(Failure::Arguments(
            "with `--value -` the standard input is the outcome, so the program cannot ask; add \
             `--yes`"
                .to_owned(),
        ));
    }
    if is_lock(&args.change.operation) {
        return Err(Failure::Refused(
            "the record of a lock has no outcome, so it cannot be settled; `release` frees the lock"
                .to_owned(),
        ));
    }
    refuse_beside(&args.change)?;
    let text = read(&args.value)?;
    let version = (!args.error).then_some(args.outcome_version);
    if !args.other_shape && args.change.operation != trail::OPERATION {
        compare(store, args, version, &text).await?;
    }
    let outcome = Encoded::new(CodecId::JSON, text.into()).with_is_error(args.error);
    let outcome = outcome.with_metadata(metadata(args.outcome_version));
    let intervention = |id, info: &RecordInfo| match (&info.outcome, args.ttl) {
        (Some(seen), _) if args.replace => Intervention::replace(id, seen.clone(), outcome.clone()),
        (_, Some(ttl)) => Intervention::settle(id, outcome.clone()).keep_for(ttl),
        (_, None) => Intervention::settle(id, outcome.clone()),
    };
    let action = if args.replace { &REPLACE } else { &SETTLE };
    let settled = carry_out(store, &args.change, json, action, intervention).await?;
    end_beside(store, &settled).await;
    Ok(())
}

/// Ends the run of a call beside a transaction. Once the outcome has ended, the next call would go
/// on with it.
async fn end_beside(store: &AnyStore, call: &RecordId) {
    if is_step(call.operation()) {
        return;
    }
    let forget = Intervention::forget(call.beside()).by(&ask::who(), "");
    if let Err(error) = store.intervene(&forget).await {
        print::aside(&format!(
            "idem: the outcome is recorded, but steps beside a transaction, if there are any, \
             stay; `idem forget {} {}` ends their run: {error}",
            forget.id.operation(),
            print::shown(forget.id.key())
        ));
    }
}

/// Refuses an outcome of another shape than those that the operation's function recorded, which its
/// callers could not decode.
async fn compare(
    store: &AnyStore,
    args: &Settle,
    version: Option<u32>,
    text: &str,
) -> Result<(), Failure> {
    let operation = &args.change.operation;
    let wanted = Wanted {
        operation: super::list::valid(operation)?,
        is_error: args.error,
        version,
    };
    let patterns = pattern::find(store, &wanted).await?;
    let consent =
        "With `--other-shape` it is settled all the same; callers that cannot read it get an error";
    if let Some(codec) = patterns.codec {
        return Err(Failure::Refused(format!(
            "other outcomes of `{operation}` are in the codec `{codec}`, and this program writes \
             JSON; settle it in a program that has the codec (`Operation::settle`). {consent}"
        )));
    }
    let value = serde_json::from_str(text).unwrap_or_default();
    // `null` is alike to any value.
    if patterns.found.iter().all(|pattern| pattern.value.is_null()) {
        return compare_with_call(store, args, &value, consent).await;
    }
    let Some(difference) = pattern::difference(&patterns.found, &value) else {
        return Ok(());
    };
    let names = patterns
        .found
        .iter()
        .find_map(|pattern| pattern.info.outcome_type.as_deref());
    let name = names.map_or_else(String::new, |name| format!(" (a `{}`)", print::shown(name)));
    Err(Failure::Refused(format!(
        "the outcome is not like others of `{operation}`{name}: {difference}; `idem show \
         --pattern` shows one of them. {consent}"
    )))
}

/// Compares an outcome with the type that the call that was cut off would have returned, as its
/// record has it.
async fn compare_with_call(
    store: &AnyStore,
    args: &Settle,
    value: &Value,
    consent: &str,
) -> Result<(), Failure> {
    let Change { operation, key, .. } = &args.change;
    // What cannot be found is reported when it is to be settled.
    let call = find(store, operation, key).await.ok();
    let returns = call
        .filter(|_| !args.error)
        .and_then(|(_, info)| info.outcome_type);
    let returns = returns.as_deref().unwrap_or_default();
    match pattern::is_read_as(returns, value) {
        Some(true) => return Ok(()),
        Some(false) => {
            return Err(Failure::Refused(format!(
                "the call would have returned a `{returns}`, and this is not one. {consent}"
            )));
        }
        None => {}
    }
    let kind = if args.error { "error" } else { "outcome" };
    let returns = match returns {
        "" => String::new(),
        name => format!(" as a `{}`", print::shown(name)),
    };
    print::aside(&format!(
        "idem: the shape of this {kind} was not checked, because no {kind} of `{operation}` that a \
         function recorded shows it: check yourself that its callers can read it{returns}"
    ));
    Ok(())
}

pub(crate) async fn forget(store: &AnyStore, args: &Forget, json: bool) -> Result<(), Failure> {
    if args.keep_steps {
        return release(store, &args.change, json).await;
    }
    let Change { consent, .. } = &args.change;
    refuse_trail(&args.change.operation)?;
    let Ending { call, run, records } = find_ending(store, &args.change).await?;
    let Some((id, info)) = records.first() else {
        return Ok(());
    };
    may_change(info, &FORGET, consent)?;
    if !consent.yes {
        let mut asked = question(id, info, &FORGET, &Wish::Forget);
        if let Some(run) = run {
            let steps = steps::find(store, &call, run).await?;
            asked.push_str(&steps::question(&call, run, &steps));
        }
        if *id != call {
            asked = format!("{}\n{asked}", steps::describe_beside(id));
        }
        ask::confirm(consent, &asked)?;
    }
    let mut attempts = Vec::new();
    for (id, info) in &records {
        let forget = Intervention::forget(id.clone());
        let attempt = change(store, forget, info, &FORGET, consent).await;
        if attempt.is_err() && !attempts.is_empty() {
            print::aside(
                "idem: the record of the call is forgotten, and that beside it, with the run of \
                 its steps, is not; do it again",
            );
        }
        attempts.push(attempt?);
    }
    let attempt = attempts.first().copied().unwrap_or_default();
    report(store, id, &FORGET, attempt, consent, json).await
}

/// The end of the run of a key.
struct Ending {
    call: RecordId,
    run: Option<Owner>,
    /// That of the call, and that beside a transaction: at least one of both.
    records: Vec<(RecordId, RecordInfo)>,
}

async fn find_ending(store: &AnyStore, args: &Change) -> Result<Ending, Failure> {
    let why = match find(store, &args.operation, &args.key).await {
        Ok((call, info)) => {
            let run = steps::current_run(store, &call, Some(&info)).await?;
            let mut records = vec![(call.clone(), info)];
            if !is_step(call.operation()) {
                let beside = call.beside();
                let info = store.inspect(&beside).await?;
                records.extend(info.map(|info| (beside, info)));
            }
            return Ok(Ending {
                call,
                run: run.map(|run| run.id),
                records,
            });
        }
        Err(Failure::NoRecord(why)) => why,
        Err(failure) => return Err(failure),
    };
    for call in ids_of(&args.operation, &args.key) {
        let run = steps::current_run(store, &call, None).await?;
        if let Some(Run {
            id,
            beside: Some(beside),
        }) = run
        {
            return Ok(Ending {
                call,
                run: Some(id),
                records: vec![beside],
            });
        }
    }
    Err(Failure::NoRecord(why))
}

pub(crate) async fn release(store: &AnyStore, args: &Change, json: bool) -> Result<(), Failure> {
    let release = |id, _: &RecordInfo| Intervention::release(id);
    carry_out(store, args, json, &RELEASE, release).await?;
    Ok(())
}

/// The metadata of an outcome of this version. The first version has none.
fn metadata(version: u32) -> Option<Arc<Metadata>> {
    let mut metadata = Metadata::default();
    metadata.version = Some(version).filter(|version| *version > 1);
    Some(metadata)
        .filter(|metadata| !metadata.is_empty())
        .map(Arc::new)
}

/// Reads an outcome as the default codec writes it: JSON, without white space around it, and without
/// the byte order mark that PowerShell writes.
fn read(path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text))
    };
    read.map_err(|error| {
        Failure::Arguments(format!("{} cannot be read: {error}", path.display()))
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text).trim();
    serde_json::from_str::<IgnoredAny>(text).map_err(|error| {
        Failure::Arguments(format!(
            "{} is not JSON, which an outcome must be: {error}",
            path.display()
        ))
    })?;
    Ok(text.to_owned())
}

/// Changes a record. Returns its id.
async fn carry_out(
    store: &AnyStore,
    args: &Change,
    json: bool,
    action: &Action,
    intervention: impl FnOnce(RecordId, &RecordInfo) -> Intervention,
) -> Result<RecordId, Failure> {
    let Change { consent, .. } = args;
    refuse_trail(&args.operation)?;
    let (id, info) = find(store, &args.operation, &args.key).await?;
    may_change(&info, action, consent)?;
    let intervention = intervention(id.clone(), &info);
    let asked = question(&id, &info, action, &intervention.wish);
    ask::confirm(consent, &asked)?;
    let attempt = change(store, intervention, &info, action, consent).await?;
    report(store, &id, action, attempt, consent, json).await?;
    Ok(id)
}

/// Changes a record if it still is as it was found. Returns its attempt.
async fn change(
    store: &AnyStore,
    intervention: Intervention,
    found: &RecordInfo,
    action: &Action,
    consent: &Consent,
) -> Result<u64, Failure> {
    let intervention = intervention
        .by(&ask::who(), consent.reason.as_deref().unwrap_or_default())
        .force(consent.force)
        .only_attempt(found.attempt)
        .only_state(found.state);
    let answer = intervene(store, &intervention, consent).await?;
    let attempt = attempt_of(answer, action)?;
    ask::report(action.decision, &intervention.id, attempt, consent);
    Ok(attempt)
}

/// Prints a change that was made.
async fn report(
    store: &AnyStore,
    id: &RecordId,
    action: &Action,
    attempt: u64,
    consent: &Consent,
    json: bool,
) -> Result<(), Failure> {
    let who = ask::who();
    if json {
        let changed = match store.inspect(id).await {
            Ok(now) => print::changed(action.decision, id, now.as_ref(), attempt, &who),
            // The change was made, so the program succeeds.
            Err(error) => {
                print::aside(&format!(
                    "idem: the record was {}, but cannot be read now, so only its state is shown: \
                     {error}",
                    action.decision
                ));
                print::changed_unread(action.decision, id, action.state, attempt, &who)
            }
        };
        return Ok(print::json(&changed)?);
    }
    let reason = consent
        .reason
        .as_deref()
        .map_or_else(String::new, |reason| format!(": {}", print::shown(reason)));
    Ok(print::line(&format!(
        "{} {} {} (digest {}), attempt {attempt}, by {who}{reason}; {}",
        action.decision,
        id.operation(),
        print::shown(id.key()),
        id.digest(),
        action.then(id)
    ))?)
}

/// Returns the attempt of a record that was changed, or why it was not.
fn attempt_of(answer: Intervened, action: &Action) -> Result<u64, Failure> {
    match answer {
        Intervened::Done { attempt } => Ok(attempt),
        Intervened::Nothing => Err(Failure::NoRecord("the record no longer exists".to_owned())),
        Intervened::Alive { lease_left, .. } => Err(alive(Some(lease_left))),
        Intervened::NotAbandoned { state } => Err(not_abandoned(state, action)),
        Intervened::Changed { .. } => Err(Failure::Refused(
            "the record has changed meanwhile, so nothing was done; look at it again".to_owned(),
        )),
    }
}

/// Refuses to settle the record beside a transaction, and the key of a call in place of that of a
/// step.
fn refuse_beside(args: &Change) -> Result<(), Failure> {
    let ids = ids_of(&args.operation, &args.key);
    let has_run = |id: &RecordId| steps::runs_in(id).next().is_some();
    if !is_step(&args.operation) || ids.is_empty() || ids.iter().any(has_run) {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "`{}` has no step with this key: the key of a step has its run behind the key of its call, \
         as `idem show` of the call lists it. The record beside a transaction has no outcome; \
         settle the call, or one of its steps",
        print::shown(&args.operation)
    )))
}

/// Refuses the operation of the trail, which is not changed by hand.
pub(super) fn refuse_trail(operation: &str) -> Result<(), Failure> {
    if operation == trail::OPERATION {
        return Err(Failure::Refused(format!(
            "`{}` is the audit trail of operators' decisions, and is not changed by hand; each \
             entry expires by itself",
            trail::OPERATION
        )));
    }
    Ok(())
}

fn may_change(info: &RecordInfo, action: &Action, consent: &Consent) -> Result<(), Failure> {
    let is_allowed = |state| action.states.is_none_or(|states| states.contains(&state));
    match info.state {
        RecordState::InFlight if !is_allowed(RecordState::Abandoned) => {
            Err(not_abandoned(info.state, action))
        }
        RecordState::InFlight if !consent.force => Err(alive(info.lease_left)),
        RecordState::InFlight => Ok(()),
        // An outcome that a function recorded is never replaced.
        RecordState::Committed
            if action.decision == REPLACE.decision && info.audit_age.is_none() =>
        {
            Err(not_abandoned(info.state, action))
        }
        state if is_allowed(state) => Ok(()),
        state => Err(not_abandoned(state, action)),
    }
}

fn alive(lease_left: Option<std::time::Duration>) -> Failure {
    let left = lease_left.map_or_else(String::new, |left| {
        format!(", for {} unless it is renewed", print::length(left))
    });
    Failure::Refused(format!(
        "the record is in flight and alive{left}: a body is running. Wait until its lease ends. \
         With `--force` the record is changed all the same; then the body continues until its \
         owner notices, and its own outcome is not recorded"
    ))
}

fn not_abandoned(state: RecordState, action: &Action) -> Failure {
    let found = print::state(state);
    let forget = "`forget` removes a record in any state, and the next call runs the body again";
    Failure::Refused(match (action.decision, state) {
        ("replaced", RecordState::Committed) => {
            "the outcome was recorded by the function and not by hand, so it is not replaced"
                .to_owned()
        }
        ("replaced", _) => {
            format!(
                "the record is {found}, so no outcome can be replaced; `settle` without \
                 `--replace` records one"
            )
        }
        ("settled", RecordState::Committed) => format!(
            "the record is committed, so it cannot be settled; `settle --replace` replaces an \
             outcome that was settled by hand. {forget}"
        ),
        (decision, _) => {
            format!("the record is {found}, not abandoned, so it cannot be {decision}; {forget}")
        }
    })
}

/// How many characters of an outcome are shown before it is recorded.
const MOST_SHOWN: usize = 300;

fn question(id: &RecordId, info: &RecordInfo, action: &Action, wish: &Wish) -> String {
    // The operator sees the outcome first, because callers may act on it before it can be replaced.
    let outcome = match wish {
        Wish::Settle { outcome, .. } | Wish::Replace { outcome, .. } => {
            let text = String::from_utf8_lossy(&outcome.payload);
            let kind = if outcome.is_error { "error" } else { "value" };
            let version = if outcome.is_error {
                String::new()
            } else {
                format!(" (outcome version {})", outcome.version())
            };
            let shown: String = text.chars().take(MOST_SHOWN).collect();
            let more = if shown.len() < text.len() { " .." } else { "" };
            format!(", the {kind} {}{more}{version}", print::shown(&shown))
        }
        Wish::Release | Wish::Forget => String::new(),
    };
    let age = info.lease_age.map_or_else(String::new, |age| {
        format!(", last sign of life {} ago", print::length(age))
    });
    let warning = if info.state == RecordState::InFlight {
        "\nIt is in flight and alive: a body is running, and continues until its owner notices. \
         Its own outcome is not recorded, and another body may run at the same time."
    } else {
        ""
    };
    format!(
        "{} {} (digest {}): {}, attempt {}{age}.{warning}\nAfter this, {}{outcome}.",
        id.operation(),
        print::shown(id.key()),
        id.digest(),
        print::state(info.state),
        info.attempt,
        action.then(id)
    )
}
