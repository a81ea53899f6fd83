//! The commands, one file for each kind.

mod change;
mod list;
mod purge;
mod stats;

use std::io::{self, Write as _};

use clap::CommandFactory as _;
use idem_core::record::{RecordId, RecordInfo};
use idem_core::store::admin::Listing;
use idem_core::{Key, KeyDigest};

use crate::args::{Args, Command, Show};
use crate::doctor;
use crate::failure::{self, Failure};
use crate::print;
use crate::store::AnyStore;

/// Carries the command out, and says the exit code.
pub(crate) async fn run(args: Args) -> Result<u8, Failure> {
    match &args.command {
        Command::Completions { shell } => {
            // Into memory first: it panics if a pipe is closed.
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
        Command::Doctor => return doctor::run(&args).await,
        _ => {}
    }
    let store = AnyStore::open(&args).await?;
    match &args.command {
        Command::List(list) => list::run(&store, list, args.json).await?,
        Command::Show(show) => run_show(&store, show, args.json).await?,
        Command::Settle(settle) => change::settle(&store, settle, args.json).await?,
        Command::Forget(change) => change::forget(&store, change, args.json).await?,
        Command::Release(change) => change::release(&store, change, args.json).await?,
        Command::Stats => stats::run(&store, args.json).await?,
        Command::Watch(watch) => stats::watch(&store, watch, args.json).await?,
        Command::Purge(purge) => purge::run(&store, purge, args.json).await?,
        Command::Completions { .. } | Command::Man | Command::Doctor => {}
    }
    Ok(failure::DONE)
}

async fn run_show(store: &AnyStore, show: &Show, json: bool) -> Result<(), Failure> {
    let (id, info) = match (&show.which.operation, &show.which.key, show.which.digest) {
        (Some(operation), Some(key), _) => find(store, operation, key).await?,
        (_, _, Some(digest)) => find_digest(store, digest).await?,
        _ => return Err(Failure::Arguments("an operation and a key, or a digest, are needed".to_owned())),
    };
    if json {
        print::json(&print::object(&id, &info))?;
    } else {
        print::record(&id, &info)?;
    }
    Ok(())
}

/// The record of an operation and a key: as listings show it, or else as one part that is typed as
/// it is.
pub(crate) async fn find(store: &AnyStore, operation: &str, key: &str) -> Result<(RecordId, RecordInfo), Failure> {
    let mut keys: Vec<Key> = [Key::from_encoded(key), Key::encode(key)].into_iter().flatten().collect();
    keys.dedup();
    let ids: Vec<RecordId> = keys.iter().filter_map(|key| RecordId::new(operation, key)).collect();
    if ids.is_empty() {
        return Err(Failure::Arguments("this is not an operation and a key; copy both from `idem list`".to_owned()));
    }
    for id in ids {
        if let Some(info) = store.inspect(&id).await? {
            return Ok((id, info));
        }
    }
    Err(Failure::NoRecord(format!(
        "no record of `{}` with the key `{}`; `idem list --operation {0}` shows the keys of its records",
        print::shown(operation),
        print::shown(key)
    )))
}

async fn find_digest(store: &AnyStore, digest: KeyDigest) -> Result<(RecordId, RecordInfo), Failure> {
    let mut listing = Listing::all().digest(digest);
    loop {
        let page = store.list(&listing).await?;
        if let Some(listed) = page.records.into_iter().next() {
            // With its outcome. It may have gone since.
            if let Some(info) = store.inspect(&listed.id).await? {
                return Ok((listed.id, info));
            }
        }
        match page.next {
            Some(cursor) => listing = listing.after(cursor),
            None => return Err(Failure::NoRecord(format!("no record has the digest {digest}"))),
        }
    }
}
