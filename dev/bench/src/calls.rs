//! Calls of one subject and nothing else: for a count of their instructions, or another profile.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use idem::{Idempotency, MemoryStore};
use idem_bench::{Keys, result};
use tokio::task::JoinSet;

use crate::report::Kind;
use crate::subject::{Subject, Subjects, ours};
use crate::target::Target;

/// First executions before the calls that count.
const RECORDS: u64 = 12_000;
/// So many of their keys are called again.
const REPLAYED: u64 = 1_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the records are
    #[arg(long, value_enum)]
    over: Over,
    /// What makes the calls
    #[arg(long, value_enum)]
    subject: Subject,
    /// Which calls
    #[arg(long, value_enum)]
    kind: Kind,
    /// How many tasks call at once, on one thread
    #[arg(long, default_value_t = 1)]
    callers: u16,
    /// How many calls each of them makes
    #[arg(long)]
    calls: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Over {
    Memory,
    Redis,
}

/// Makes the calls. Starts a Redis of its own if it needs one.
pub(crate) fn run(args: &Args) -> Result<()> {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    tokio.block_on(all(args))
}

async fn all(args: &Args) -> Result<()> {
    let place = Arc::new(Place::open(args.over).await?);
    // Annotated functions use the installed runtime.
    idem::install(place.idempotency().clone()).context("a runtime is installed already")?;
    let mut keys = Keys::new(0);
    for _ in 0..RECORDS {
        let key = keys.advance();
        place.call(args.subject, Kind::First, key).await?;
    }
    let mut running = JoinSet::new();
    for caller in 1..=args.callers {
        let place = place.clone();
        let (subject, kind, calls) = (args.subject, args.kind, args.calls);
        running.spawn(async move {
            let mut keys = Keys::new(caller);
            for call in 0..calls {
                if kind == Kind::Replay && call % REPLAYED == 0 {
                    keys = Keys::new(0);
                }
                place.call(subject, kind, keys.advance()).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(called) = running.join_next().await {
        called??;
    }
    Ok(())
}

enum Place {
    Memory(Idempotency, String),
    Redis(Box<(Subjects, Target)>),
}

impl Place {
    async fn open(over: Over) -> Result<Self> {
        if over == Over::Memory {
            return Ok(Self::Memory(Idempotency::new(MemoryStore::new()), result()));
        }
        let target = Target::open(None).await?;
        let subjects = Subjects::connect(&target).await?;
        Ok(Self::Redis(Box::new((subjects, target))))
    }

    fn idempotency(&self) -> &Idempotency {
        match self {
            Self::Memory(idempotency, _) => idempotency,
            Self::Redis(redis) => &redis.0.idempotency,
        }
    }

    async fn call(&self, subject: Subject, kind: Kind, key: &str) -> Result<()> {
        match self {
            Self::Memory(idempotency, result) => {
                ensure!(subject.is_ours(), "only the library has a store in memory");
                ours(subject, idempotency, key, result).await
            }
            Self::Redis(redis) => redis.0.call(subject, kind, key).await,
        }
    }
}
