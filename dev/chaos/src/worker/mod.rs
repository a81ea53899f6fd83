//! A process of workers: it calls one operation again and again, with keys that other processes use
//! too.

mod body;
mod calls;
mod consume;
pub(crate) mod mutant;
mod noted;
mod place;
mod stamp;
mod witness;

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use idem_core::{Idempotency, Store};
use tokio::task::JoinSet;

use self::body::ON_PURPOSE;
use self::calls::Caller;
use self::mutant::{Flaw, Mutant};
use self::noted::Noted;
use self::place::{Place, Raw};
use self::witness::Witness;
use crate::clock;
use crate::history::{Event, Journal};
use crate::keys;

/// How many calls of one process are made at once.
const CALLERS: u64 = 6;
/// How long the calls that are under way may take when the run is over.
const LAST_CALLS: Duration = Duration::from_secs(15);

/// The parent's arguments for a worker process.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the history is written
    #[arg(long)]
    pub(crate) folder: PathBuf,
    /// The number of this process, from 1: each that is started has its own
    #[arg(long)]
    pub(crate) process: u64,
    /// The seed of its dice
    #[arg(long)]
    pub(crate) seed: u64,
    /// The store
    #[arg(long)]
    pub(crate) url: String,
    /// The lease, in ms
    #[arg(long)]
    pub(crate) lease: u64,
    /// When the run began, by the clock that all share
    #[arg(long)]
    pub(crate) epoch: u64,
    /// How many replicas acknowledge each claim and commit
    #[arg(long, default_value_t = 0)]
    pub(crate) replicas: u32,
    /// The broker, if the calls come from messages
    #[arg(long)]
    pub(crate) broker: Option<String>,
    /// Breaks the store
    #[arg(long)]
    pub(crate) mutant: Option<Flaw>,
}

/// Whether this process is to come to its end.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Works until the parent says that it is over, or is gone.
pub(crate) fn run(args: &Args) -> Result<()> {
    dies_with_its_parent();
    std::thread::spawn(obey);
    std::panic::set_hook(Box::new(|panic| {
        if panic.payload_as_str() != Some(ON_PURPOSE) {
            eprintln!("{panic}");
        }
    }));
    let journal = Journal::open(&args.folder, args.process)?;
    tracing::subscriber::set_global_default(Witness::new(journal.clone()))?;
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(work(args, journal))
}

async fn work(args: &Args, journal: Journal) -> Result<()> {
    let place = Place::open(&args.url, Duration::from_millis(args.lease), args.replicas).await?;
    // Mutants are for servers that stand alone: the way around the store knows no others.
    let wrong = match args.mutant {
        Some(flaw) => Some((flaw, place.raw(&args.url).await?)),
        None => None,
    };
    let idempotency = match place {
        Place::Redis(store) => perhaps_wrong(store, wrong, args, &journal),
        Place::Postgres(store, _) => perhaps_wrong(store, wrong, args, &journal),
        Place::MySql(store, _) => perhaps_wrong(store, wrong, args, &journal),
        Place::Sqlite(store, _) => perhaps_wrong(store, wrong, args, &journal),
    };
    // Numbers that no other process gives.
    let next = Arc::new(AtomicU64::new((args.process << 32) + 1));
    let lease = Duration::from_millis(args.lease);
    let caller = Caller {
        idempotency,
        journal: journal.clone(),
        lease,
        next,
    };
    if let Some(broker) = &args.broker {
        let dice = Rng::with_seed(args.seed ^ (args.process << 16));
        consume::run(broker, args.process, &caller, dice).await;
        journal.write(Event::Drained { left: 0 });
        std::process::exit(0);
    }
    let mut callers = JoinSet::new();
    for number in 0..CALLERS {
        let caller = caller.clone();
        let epoch = args.epoch;
        let mut dice = Rng::with_seed(args.seed ^ (args.process << 16) ^ number);
        callers.spawn(async move {
            while !ENDING.load(Ordering::Relaxed) {
                let key = keys::pick_short_lived(&mut dice)
                    .unwrap_or_else(|| keys::pick(clock::now().saturating_sub(epoch), &mut dice));
                caller.call(&key, &mut dice).await;
                tokio::time::sleep(Duration::from_millis(dice.u64(..25))).await;
            }
            // Everything is healed by now, so each key can be brought to its end.
            for key in keys::last(clock::now().saturating_sub(epoch)) {
                caller.finish(&key).await;
            }
        });
    }
    while !ENDING.load(Ordering::Relaxed) && !callers.is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let all = async { while callers.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_CALLS, all).await;
    journal.write(Event::Drained {
        left: u64::try_from(callers.len())?,
    });
    std::process::exit(0);
}

fn perhaps_wrong(
    store: impl Store,
    wrong: Option<(Flaw, Raw)>,
    args: &Args,
    journal: &Journal,
) -> Idempotency {
    match wrong {
        None => idempotency(store, args, journal),
        Some((flaw, raw)) => idempotency(Mutant::new(store, flaw, raw), args, journal),
    }
}

fn idempotency(store: impl Store, args: &Args, journal: &Journal) -> Idempotency {
    Idempotency::builder(Noted::new(store, journal.clone()))
        .lease(Duration::from_millis(args.lease))
        .ttl(Duration::from_secs(3_600))
        .log_keys()
        .build()
}

/// Input from the parent ends the run; the end of the input means that the parent has ended.
fn obey() {
    let mut word = [0];
    match std::io::stdin().read(&mut word) {
        Ok(1) => ENDING.store(true, Ordering::Relaxed),
        _ => std::process::exit(4),
    }
    if !matches!(std::io::stdin().read(&mut word), Ok(1)) {
        std::process::exit(4);
    }
}

/// Also where it stands still by then, and cannot see that its parent is gone.
fn dies_with_its_parent() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        // If that is not available, the pipe from the parent has to suffice.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
}
