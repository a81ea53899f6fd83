//! The run: all parts, each in rounds and in turns.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;

use crate::extent::Extent;
use crate::in_process::InProcess;
use crate::report::Report;
use crate::threads::Threads;
use crate::{in_process, memory, over_redis, physical, queues, sizes, sql, steps, transactions};

/// With fewer, the ranges say little.
const ROUNDS: usize = 5;
/// Records in the memory store of a full run.
const FULL: u32 = 10_000_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Use an existing server instead of starting one. Only calls are made there, with keys that
    /// begin with `idem-bench-` and expire; only what needs Redis is measured
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// How many rounds; at least 5
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,
    /// Two short rounds: to see that it works
    #[arg(long)]
    quick: bool,
    /// Ten million records in the memory store in place of one million
    #[arg(long)]
    full: bool,
    /// These parts alone
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
    /// The program of `benches/in_process.rs`; left out without it
    #[arg(long, value_name = "PROGRAM")]
    in_process: Option<PathBuf>,
    /// Write the run there, for `report`, instead of showing it
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Arguments for criterion, such as a filter
    #[arg(last = true)]
    criterion: Vec<String>,
}

/// The parts of a run, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Physical,
    Redis,
    Valkey,
    Http,
    Sql,
    Transactions,
    Steps,
    Queues,
    Threads,
    Memory,
    InProcess,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(
        args.rounds >= ROUNDS,
        "at least {ROUNDS} rounds, or the ranges say little; --quick for a look"
    );
    let mut extent = if args.quick {
        Extent::quick()
    } else {
        Extent::usual(args.rounds)
    };
    if args.full {
        extent.records = FULL;
    }
    let mut report = Report::begin(extent.rounds);
    for part in Part::value_variants().iter().copied() {
        let is_wanted = args.only.is_empty() || args.only.contains(&part);
        if is_wanted && (args.redis.is_none() || part.is_on_redis()) {
            part.run(&extent, args, &mut report)
                .with_context(|| format!("{part:?}"))?;
        }
    }
    if let Some(file) = &args.json {
        fs::write(file, serde_json::to_vec(&report)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    } else {
        print!("{}", report.markdown("idem-bench run"));
    }
    Ok(())
}

impl Part {
    /// Whether it can use a server that others use too.
    fn is_on_redis(self) -> bool {
        matches!(self, Self::Redis | Self::Http)
    }

    fn run(self, extent: &Extent, args: &Args, report: &mut Report) -> Result<()> {
        // A runtime of its own: tasks of one part do not run beside another.
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        let url = args.redis.clone();
        match self {
            Self::Physical => tokio.block_on(physical::measure(extent, report)),
            Self::Redis => tokio.block_on(over_redis::calls(extent, url, report)),
            Self::Valkey => tokio.block_on(over_redis::valkey(extent, report)),
            Self::Http => tokio.block_on(over_redis::http(extent, url, report)),
            Self::Sql => tokio.block_on(sql::measure(extent, report)),
            Self::Transactions => tokio.block_on(transactions::measure(extent, report)),
            Self::Steps => tokio.block_on(steps::measure(extent, report)),
            Self::Queues => tokio.block_on(queues::measure(extent, report)),
            Self::Threads => threads(extent, report),
            Self::Memory => {
                eprintln!("memory of {} records", extent.records);
                report.groups.push(memory::group(extent.records)?);
                report.groups.push(sizes::group());
                Ok(())
            }
            Self::InProcess => in_process(extent, args, report),
        }
    }
}

fn threads(extent: &Extent, report: &mut Report) -> Result<()> {
    eprintln!("in process, by threads");
    let mut threads = Threads::default();
    for _ in 0..extent.rounds {
        threads.round(extent.in_process)?;
    }
    report.groups.push(threads.group());
    Ok(())
}

fn in_process(extent: &Extent, args: &Args, report: &mut Report) -> Result<()> {
    let Some(program) = &args.in_process else {
        let why = "calls in process, by criterion: no program was named";
        report.left_out.push(why.to_owned());
        return Ok(());
    };
    report.groups.extend(in_process::groups(&InProcess {
        program,
        rounds: extent.rounds,
        quick: extent.is_quick,
        args: &args.criterion,
    })?);
    Ok(())
}
