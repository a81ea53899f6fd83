//! `settle`, `forget` and `release`.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use idem_core::record::{Encoded, Metadata, RecordId, RecordInfo};
use idem_core::store::admin::{Intervened, Intervention, Wish};
use idem_core::store::trail;
use idem_core::{CodecId, RecordState, StoreError, StoreErrorKind};
use serde::de::IgnoredAny;

use super::find;
use crate::args::{Change, Consent, Settle};
use crate::ask;
use crate::failure::Failure;
use crate::print;
use crate::store::AnyStore;

/// What is done to a record.
struct Action {
    /// As events and JSON name it.
    decision: &'static str,
    /// The result of the next call.
    then: &'static str,
    /// The state of the record afterwards, if there is one.
    state: Option<RecordState>,
    /// Whether a record that is not abandoned may be changed: committed, released, issued.
    any_state: bool,
}

const SETTLE: Action = Action {
    decision: "settled",
    then: "every duplicate gets this outcome",
    state: Some(RecordState::Committed),
    any_state: false,
};
const RELEASE: Action = Action {
    decision: "released",
    then: "the next call runs the body, as the next attempt",
    state: Some(RecordState::Released),
    any_state: false,
};
const FORGET: Action = Action {
    decision: "forgotten",
    then: "the next call runs the body, as the first attempt",
    state: None,
    any_state: true,
};

pub(crate) async fn settle(store: &AnyStore, args: &Settle, json: bool) -> Result<(), Failure> {
    let is_stdin = args.value == Path::new("-");
    if is_stdin && !args.change.consent.yes {
        return Err(Failure::Arguments(
            "with `--value -` the standard input is the outcome, so the program cannot ask; add `--yes`".to_owned(),
        ));
    }
    let text = read(&args.value)?;
    let outcome = Encoded::new(CodecId::JSON, text.into()).with_is_error(args.error);
    let outcome = outcome.with_metadata(metadata(args.outcome_version));
    let intervention = |id| {
        let settle = Intervention::settle(id, outcome.clone());
        match args.ttl {
            Some(ttl) => settle.keep_for(ttl),
            None => settle,
        }
    };
    carry_out(store, &args.change, json, &SETTLE, intervention).await
}

pub(crate) async fn forget(store: &AnyStore, args: &Change, json: bool) -> Result<(), Failure> {
    carry_out(store, args, json, &FORGET, Intervention::forget).await
}

pub(crate) async fn release(store: &AnyStore, args: &Change, json: bool) -> Result<(), Failure> {
    carry_out(store, args, json, &RELEASE, Intervention::release).await
}

/// What a record says of an outcome of this version: nothing of the first.
fn metadata(version: u32) -> Option<Arc<Metadata>> {
    let mut metadata = Metadata::default();
    metadata.version = Some(version).filter(|version| *version > 1);
    Some(metadata).filter(|metadata| !metadata.is_empty()).map(Arc::new)
}

/// An outcome as the default codec writes it: JSON, and nothing around it.
fn read(path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text))
    };
    read.map_err(|error| Failure::Arguments(format!("{} cannot be read: {error}", path.display())))?;
    serde_json::from_str::<IgnoredAny>(&text).map_err(|error| {
        Failure::Arguments(format!("{} is not JSON, which an outcome must be: {error}", path.display()))
    })?;
    Ok(text.trim().to_owned())
}

async fn carry_out(
    store: &AnyStore,
    args: &Change,
    json: bool,
    action: &Action,
    intervention: impl FnOnce(RecordId) -> Intervention,
) -> Result<(), Failure> {
    let Change { consent, .. } = args;
    refuse_trail(&args.operation)?;
    let (id, info) = find(store, &args.operation, &args.key).await?;
    may_change(&info, action, consent)?;
    let who = ask::who();
    let intervention = intervention(id.clone());
    ask::confirm(consent, &question(&id, &info, action, &intervention.wish))?;
    let intervention = intervention
        .by(&who, consent.reason.as_deref().unwrap_or_default())
        .force(consent.force)
        .only_attempt(info.attempt)
        .only_state(info.state);
    let answer = if consent.no_audit {
        store.intervene(&intervention).await?
    } else {
        store.intervene_noted(&intervention, consent.audit_ttl).await.map_err(without_entry)?
    };
    let attempt = match answer {
        Intervened::Done { attempt } => attempt,
        Intervened::Nothing => return Err(Failure::NoRecord("the record no longer exists".to_owned())),
        Intervened::Alive { lease_left, .. } => return Err(alive(Some(lease_left))),
        Intervened::NotAbandoned { state } => return Err(not_abandoned(state, action)),
        Intervened::Changed { .. } => {
            return Err(Failure::Refused(
                "the record has changed meanwhile, so nothing was done; look at it again".to_owned(),
            ));
        }
    };
    ask::report(action.decision, &id, attempt, consent);
    if json {
        let changed = match store.inspect(&id).await {
            Ok(now) => print::changed(action.decision, &id, now.as_ref(), attempt, &who),
            // The change was made, so this is no failure.
            Err(error) => {
                print::aside(&format!(
                    "idem: the record was {}, but cannot be read now, so only its state is shown: {error}",
                    action.decision
                ));
                print::changed_unread(action.decision, &id, action.state, attempt, &who)
            }
        };
        return Ok(print::json(&changed)?);
    }
    let reason = consent.reason.as_deref().map_or_else(String::new, |reason| format!(": {}", print::shown(reason)));
    Ok(print::line(&format!(
        "{} {} {} (digest {}), attempt {attempt}, by {who}{reason}; {}",
        action.decision,
        id.operation(),
        print::shown(id.key()),
        id.digest(),
        action.then
    ))?)
}

/// The trail is not changed by hand.
pub(super) fn refuse_trail(operation: &str) -> Result<(), Failure> {
    if operation == trail::OPERATION {
        return Err(Failure::Refused(format!(
            "`{}` is the audit trail of operators' decisions, and is not changed by hand; each entry expires by itself",
            trail::OPERATION
        )));
    }
    Ok(())
}

/// What an operator may do if a decision gets no entry.
pub(super) fn without_entry(error: StoreError) -> Failure {
    match error.kind() {
        StoreErrorKind::Full => Failure::Unavailable(format!(
            "{error}; nothing was changed, because a change needs room for its entry in the audit trail (`{}`). With `--no-audit` it leaves none, and only the log says who and why",
            trail::OPERATION
        )),
        _ => error.into(),
    }
}

fn may_change(info: &RecordInfo, action: &Action, consent: &Consent) -> Result<(), Failure> {
    match info.state {
        RecordState::InFlight if !consent.force => Err(alive(info.lease_left)),
        RecordState::InFlight | RecordState::Abandoned => Ok(()),
        _ if action.any_state => Ok(()),
        state => Err(not_abandoned(state, action)),
    }
}

fn alive(lease_left: Option<std::time::Duration>) -> Failure {
    let left =
        lease_left.map_or_else(String::new, |left| format!(", for {} unless it is renewed", print::length(left)));
    Failure::Refused(format!(
        "the record is in flight and alive{left}: a body is running. Wait until its lease ends. With `--force` the record is changed all the same; then the body continues until its owner notices, and its own outcome is not recorded"
    ))
}

fn not_abandoned(state: RecordState, action: &Action) -> Failure {
    Failure::Refused(format!(
        "the record is {}, not abandoned, so it cannot be {}; `forget` removes a record in any state",
        print::state(state),
        action.decision
    ))
}

/// So many characters of an outcome are shown before it is recorded.
const MOST_SHOWN: usize = 300;

fn question(id: &RecordId, info: &RecordInfo, action: &Action, wish: &Wish) -> String {
    // A wrong outcome cannot be taken back without a risk.
    let outcome = match wish {
        Wish::Settle { outcome, .. } => {
            let text = String::from_utf8_lossy(&outcome.payload);
            let kind = if outcome.is_error { "error" } else { "value" };
            let version =
                if outcome.is_error { String::new() } else { format!(" (outcome version {})", outcome.version()) };
            let shown: String = text.chars().take(MOST_SHOWN).collect();
            let more = if shown.len() < text.len() { " .." } else { "" };
            format!(", the {kind} {}{more}{version}", print::shown(&shown))
        }
        Wish::Release | Wish::Forget => String::new(),
    };
    let age = info.lease_age.map_or_else(String::new, |age| format!(", last sign of life {} ago", print::length(age)));
    let warning = if info.state == RecordState::InFlight {
        "\nIt is in flight and alive: a body is running, and continues until its owner notices. Its own outcome is not recorded, and another body may run at the same time."
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
        action.then
    )
}
