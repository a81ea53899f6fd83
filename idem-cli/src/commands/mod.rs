//! The commands, one file for each kind.

mod audit;
mod change;
mod list;
mod pattern;
mod purge;
mod purged_steps;
mod schema;
mod stats;
mod steps;

use std::io::{self, Write as _};

use clap::CommandFactory as _;
use idem_core::record::{RecordId, RecordInfo};
use idem_core::store::admin::{Intervened, Intervention, KeyFilter, Listed, Listing, Unreadable};
use idem_core::store::trail::{self, Entry};
use idem_core::{Key, KeyDigest, RecordState, StoreError};
use serde_json::{Value, json};

use self::pattern::{Pattern, Patterns, Wanted};
use self::steps::Run;
use crate::args::{Args, Command, Consent, Show, Which};
use crate::doctor;
use crate::failure::{self, Failure, without_entry};
use crate::hints;
use crate::print;
use crate::progress::Progress;
use crate::store::AnyStore;

/// Carries the command out, and returns the exit code.
pub(crate) async fn run(args: Args) -> Result<u8, Failure> {
    match &args.command {
        Command::Completions { shell } => {
            // Written to memory first, because clap panics at a closed pipe.
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Args::command(), "idem", &mut text);
            let mut out = io::stdout().lock();
            out.write_all(&text)?;
            out.flush()?;
            return Ok(failure::DONE);
        }
        Command::Man => {
            clap_mangen::Man::new(Args::command()).render(&mut io::stdout())?;
            return Ok(failure::DONE);
        }
        Command::Schema { database } => {
            schema::run(*database, &args)?;
            return Ok(failure::DONE);
        }
        Command::Doctor => return doctor::run(&args).await,
        _ => {}
    }
    let store = AnyStore::open(&args).await?;
    match carry_out(&store, &args).await {
        Ok(()) => Ok(failure::DONE),
        Err(failure) => Err(hints::explain(&store, &args, failure).await),
    }
}

async fn carry_out(store: &AnyStore, args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::List(list) => list::run(store, list, args.json).await,
        Command::Show(show) => run_show(store, show, args.json).await,
        Command::Settle(settle) => change::settle(store, settle, args.json).await,
        Command::Forget(change) => change::forget(store, change, args.json).await,
        Command::Release(change) => change::release(store, change, args.json).await,
        Command::Stats => stats::run(store, args.json).await,
        Command::Watch(watch) => stats::watch(store, watch, args.json).await,
        Command::Purge(purge) => purge::run(store, purge, args.json).await,
        Command::Audit(audit) => audit::run(store, audit, args.json).await,
        Command::Completions { .. } | Command::Man | Command::Schema { .. } | Command::Doctor => {
            Ok(())
        }
    }
}

/// How many decisions about a record are shown, and how many about its whole operation.
const MOST_DECISIONS: usize = 20;
const MOST_PURGES: usize = 3;

async fn run_show(store: &AnyStore, show: &Show, json: bool) -> Result<(), Failure> {
    let (id, info) = match find_which(store, &show.which).await {
        Ok(found) => found,
        Err(Failure::NoRecord(why)) => {
            show_gone(store, &show.which, json).await?;
            return Err(Failure::NoRecord(why));
        }
        Err(failure) => return Err(failure),
    };
    // The record is shown even if its trail cannot be read.
    let entries = store
        .decisions(id.digest(), MOST_DECISIONS)
        .await
        .unwrap_or_else(|error| {
            print::aside(&format!("idem: the audit trail cannot be read: {error}"));
            Vec::new()
        });
    let run = steps::current_run(store, &id, Some(&info)).await?;
    let found = steps_of(store, &id, run.as_ref()).await?;
    let pattern = if show.pattern {
        pattern_of(store, id.operation()).await?
    } else {
        None
    };
    if json {
        let mut object = with_decisions(print::object(&id, &info), &entries);
        if may_go_on(info.state) {
            steps::add(&mut object, run.map(|run| run.id), &found);
        }
        if let (true, Value::Object(object)) = (show.pattern, &mut object) {
            let pattern = pattern.map(|pattern| print::object(&pattern.id, &pattern.info));
            object.insert("pattern".to_owned(), pattern.into());
        }
        return Ok(print::json(&object)?);
    }
    print::record(&id, &info)?;
    steps::show(&found)?;
    print::entries(&entries)?;
    if let Some(Pattern { id, info, value }) = pattern {
        print::pattern(&id, &info, &value)?;
    }
    Ok(())
}

/// Whether a next call may go on with the run of the record.
fn may_go_on(state: RecordState) -> bool {
    matches!(
        state,
        RecordState::InFlight | RecordState::Abandoned | RecordState::Released
    )
}

async fn steps_of(
    store: &AnyStore,
    call: &RecordId,
    run: Option<&Run>,
) -> Result<Vec<Listed>, StoreError> {
    match run {
        Some(run) => steps::find(store, call, run.id).await,
        None => Ok(Vec::new()),
    }
}

async fn find_which(store: &AnyStore, which: &Which) -> Result<(RecordId, RecordInfo), Failure> {
    match which {
        Which {
            operation: Some(operation),
            key: Some(key),
            ..
        } => find(store, operation, key).await,
        Which {
            digest: Some(digest),
            ..
        } => find_digest(store, *digest).await,
        _ => Err(Failure::Arguments(
            "an operation and a key, or a digest, are needed".to_owned(),
        )),
    }
}

/// An outcome that the operation's function recorded.
async fn pattern_of(store: &AnyStore, operation: &str) -> Result<Option<Pattern>, Failure> {
    let wanted = Wanted {
        operation,
        is_error: false,
        version: None,
    };
    let Patterns { found, codec } = pattern::find(store, &wanted).await?;
    if found.is_empty() {
        let codec = codec.map_or_else(String::new, |codec| {
            format!(" in JSON; others are in the codec `{codec}`")
        });
        print::aside(&format!(
            "no outcome of `{operation}` that a function recorded is there{codec}"
        ));
    }
    Ok(found.into_iter().next())
}

/// Shows what is left of a record that does not exist: the decisions of operators about it, and the
/// run of its steps, if it has one beside a transaction.
async fn show_gone(store: &AnyStore, which: &Which, json: bool) -> Result<(), Failure> {
    let ids = match (&which.operation, &which.key) {
        (Some(operation), Some(key)) => ids_of(operation, key),
        _ => Vec::new(),
    };
    let digests: Vec<_> = ids
        .iter()
        .map(RecordId::digest)
        .chain(which.digest)
        .collect();
    let mut left = None;
    for (index, digest) in digests.into_iter().enumerate() {
        let entries = store.decisions(digest, MOST_DECISIONS).await?;
        let id = ids.get(index);
        let run = match id {
            Some(id) => steps::current_run(store, id, None).await?,
            None => None,
        };
        if !entries.is_empty() || run.is_some() || left.is_none() {
            left = Some((id, digest, entries, run));
        }
    }
    let Some((id, digest, mut entries, run)) = left else {
        return Ok(());
    };
    let operation = which.operation.clone().or_else(|| {
        entries
            .first()
            .map(|entry| entry.decision.operation.to_string())
    });
    let Some(operation) = operation else {
        return Ok(());
    };
    // A purge may have removed it.
    for purged in [operation.as_str(), trail::EVERY_OPERATION] {
        entries.extend(store.purges(purged, MOST_PURGES).await?);
    }
    entries.sort_by_key(|entry| entry.age);
    if entries.is_empty() && run.is_none() {
        return Ok(());
    }
    let found = match id {
        Some(id) => steps_of(store, id, run.as_ref()).await?,
        None => Vec::new(),
    };
    if json {
        let gone = json!({
            "operation": operation, "key": id.map(RecordId::key), "digest": digest.to_string(),
            "state": null, "attempt": null, "outcome": null,
        });
        let mut gone = with_decisions(gone, &entries);
        if let Some(run) = run {
            steps::add(&mut gone, Some(run.id), &found);
        }
        return Ok(print::json(&gone)?);
    }
    print::gone(&operation, id.map(RecordId::key), digest)?;
    if let Some((id, _)) = run.and_then(|run| run.beside) {
        print::line(&steps::describe_beside(&id))?;
    }
    steps::show(&found)?;
    Ok(print::entries(&entries)?)
}

fn with_decisions(mut object: Value, entries: &[Entry]) -> Value {
    if let Value::Object(object) = &mut object {
        object.insert(
            "decisions".to_owned(),
            entries.iter().map(print::entry_object).collect(),
        );
    }
    object
}

/// Finds the record of an operation and a key. The key is taken first as listings show it, and then
/// as a single part.
pub(crate) async fn find(
    store: &AnyStore,
    operation: &str,
    key: &str,
) -> Result<(RecordId, RecordInfo), Failure> {
    let ids = ids_of(operation, key);
    if ids.is_empty() {
        return Err(Failure::Arguments(
            "this is not an operation and a key; copy both from `idem list`".to_owned(),
        ));
    }
    for id in ids {
        if let Some(info) = store.inspect(&id).await? {
            return Ok((id, info));
        }
    }
    Err(Failure::NoRecord(format!(
        "no record of `{}` with the key `{}`; `idem stats` shows the operations, and `idem list \
         --operation {0}` the keys of their records",
        print::shown(operation),
        print::shown(key)
    )))
}

/// Changes a record, with an entry in the trail unless the operator wants none.
async fn intervene(
    store: &AnyStore,
    intervention: &Intervention,
    consent: &Consent,
) -> Result<Intervened, Failure> {
    if consent.no_audit {
        return Ok(store.intervene(intervention).await?);
    }
    let noted = store.intervene_noted(intervention, consent.audit_ttl).await;
    noted.map_err(without_entry)
}

/// The records that an argument can mean: as listings show keys, and then as a single part.
fn ids_of(operation: &str, key: &str) -> Vec<RecordId> {
    let keys = [Key::from_encoded(key), Key::encode(key)];
    let mut ids: Vec<RecordId> = keys
        .iter()
        .flatten()
        .filter_map(|key| RecordId::new(operation, key))
        .collect();
    ids.dedup();
    ids
}

/// The keys that `--key` means.
fn keys_of(key: &str) -> Vec<Key> {
    let filter = KeyFilter::from(key);
    filter.whole_keys().unwrap_or_default().to_vec()
}

async fn find_digest(
    store: &AnyStore,
    digest: KeyDigest,
) -> Result<(RecordId, RecordInfo), Failure> {
    let mut listing = Listing::all().digest(digest);
    let mut progress = Progress::new();
    loop {
        let page = store.list(&listing).await?;
        progress.add_page(&page);
        if let Some(listed) = page.records.into_iter().next() {
            // Read again for its outcome. It may have been removed meanwhile.
            if let Some(info) = store.inspect(&listed.id).await? {
                return Ok((listed.id, info));
            }
        }
        if let Some(Unreadable { id, error, .. }) = page.unreadable.into_iter().next() {
            let message = list::unreadable(&id, &error);
            return Err(Failure::Store(StoreError::new(error.kind(), message)));
        }
        match page.next {
            Some(cursor) => listing = listing.after(cursor),
            None => {
                return Err(Failure::NoRecord(format!(
                    "no record has the digest {digest}"
                )));
            }
        }
    }
}
