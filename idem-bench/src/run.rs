//! The run: all parts, in rounds, in turns.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::crowd::Crowds;
use crate::latency::Latencies;
use crate::layer::{Layers, Services};
use crate::machine::Machine;
use crate::renewals::Renewals;
use crate::report::{Group, Report};
use crate::subject::Subjects;
use crate::target::Target;
use crate::threads::Threads;
use crate::throughput::Throughputs;
use crate::{cost, memory, page, sizes, transactions};

/// With fewer, the ranges say little.
const ROUNDS: usize = 9;
/// So many numbers of keys has each round for each of its parts.
const NUMBERS: u64 = 1_000_000_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Use an existing server instead of starting one. Only calls are made there, with keys that
    /// begin with `idem-bench-` and expire; benchmarks that need their own server are left out
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// How many rounds; at least 9
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,
    /// Two short rounds: to see that it works
    #[arg(long)]
    quick: bool,
    /// Ten million records in the memory store in place of one million
    #[arg(long)]
    full: bool,
    /// Only records in the caller's own transaction, on a PostgreSQL and a SQLite of their own
    #[arg(long)]
    transactions: bool,
    /// Where to leave the report; the tables are printed unless it is given
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// How much is done.
struct Extent {
    rounds: usize,
    /// Sequential calls a round.
    calls: u64,
    slice: Duration,
    turns: u32,
    crowds: usize,
    /// Calls of each task in process.
    in_process: u32,
    renewals: usize,
    records: u32,
}

impl Extent {
    fn of(args: &Args) -> Self {
        let rounds = args.rounds;
        if args.quick {
            let slice = Duration::from_millis(40);
            let (calls, turns, crowds, in_process, renewals, records) = (300, 1, 2, 2000, 1, 100_000);
            return Self { rounds: 2, calls, slice, turns, crowds, in_process, renewals, records };
        }
        let slice = Duration::from_millis(150);
        let records = if args.full { 10_000_000 } else { 1_000_000 };
        Self { rounds, calls: 2000, slice, turns: 4, crowds: 5, in_process: 20_000, renewals: rounds, records }
    }
}

impl Extent {
    async fn transactions(&self) -> Result<Group> {
        let calls = u32::try_from(self.calls / 4)?;
        transactions::group(self.rounds, calls, self.slice * self.turns).await
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    ensure!(args.rounds >= ROUNDS, "at least {ROUNDS} rounds, or the ranges say little; --quick for a look");
    let (machine, extent) = (Machine::look(), Extent::of(&args));
    // Benchmarks that do not use a named server are left to runs without one.
    let in_process = args.redis.is_none();
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut report = if args.transactions {
        let group = tokio.block_on(extent.transactions())?;
        print!("{}", page::tables(&[group]));
        return Ok(());
    } else {
        tokio.block_on(over_redis(machine, &extent, args.redis))?
    };
    if in_process {
        report.groups.push(tokio.block_on(extent.transactions())?);
    }
    drop(tokio);
    if in_process {
        report.groups.extend(without_redis(&extent)?);
    }

    let Some(file) = &args.report else {
        print!("{}", page::tables(&report.groups));
        return Ok(());
    };
    let json = serde_json::to_vec_pretty(&report)?;
    fs::write(file, json).with_context(|| format!("cannot write {}", file.display()))
}

fn without_redis(extent: &Extent) -> Result<[Group; 3]> {
    eprintln!("in process, by threads");
    let mut threads = Threads::default();
    for _ in 0..extent.rounds {
        threads.round(extent.in_process)?;
    }
    eprintln!("memory of {} records", extent.records);
    Ok([threads.group(), memory::group(extent.records)?, sizes::group()])
}

async fn over_redis(machine: Machine, extent: &Extent, url: Option<String>) -> Result<Report> {
    let target = Target::open(url).await?;
    let subjects = Arc::new(Subjects::connect(&target).await?);
    let (mut latencies, mut throughputs) = (Latencies::default(), Throughputs::default());
    let (mut crowds, mut renewals) = (Crowds::default(), Renewals::default());
    let (services, mut layers) = (Services::start(&target).await?, Layers::default());
    for round in 0..=extent.rounds {
        // The first one warms up.
        let name = if round == 0 { "to warm up".to_owned() } else { format!("{round} of {}", extent.rounds) };
        eprintln!("over Redis, round {name}");
        if round == 1 {
            (latencies, throughputs, crowds, layers) = Default::default();
        }
        let from = NUMBERS * 3 * round as u64;
        latencies.round(&subjects, extent.calls, from).await?;
        throughputs.round(&subjects, extent.slice, extent.turns, from + NUMBERS).await?;
        layers.round(&services, extent.calls, extent.slice, from + 2 * NUMBERS).await?;
        crowds.round(&target, extent.crowds).await?;
        if target.own().is_some() && (1..=extent.renewals).contains(&round) {
            renewals.round(&target, round).await?;
        }
        target.clear().await?;
    }
    let mut groups = vec![latencies.group(), throughputs.group()];
    let mut left_out = Vec::new();
    if target.own().is_some() {
        groups.push(cost::group(&target, &subjects).await?);
    } else {
        left_out.push("commands and bytes as the server counts them: they need a server of our own".to_owned());
    }
    groups.push(crowds.group());
    groups.push(layers.group());
    if target.own().is_some() {
        groups.push(renewals.group());
    } else {
        left_out.push("round trips of renewals: they need a server of our own".to_owned());
    }
    Ok(Report {
        machine,
        server: target.version().await?,
        rounds: extent.rounds,
        groups,
        latencies: latencies.plotted(),
        throughputs: throughputs.plotted(),
        left_out,
    })
}
