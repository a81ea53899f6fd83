//! The run: all parts, in rounds, in turns.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::crowd::Crowds;
use crate::in_process::InProcess;
use crate::latency::Latencies;
use crate::layer::{Layers, Services};
use crate::machine::Machine;
use crate::renewals::Renewals;
use crate::report::{Group, Report, tables};
use crate::subject::Subjects;
use crate::target::Target;
use crate::threads::Threads;
use crate::throughput::Throughputs;
use crate::{cost, in_process, memory, sizes, transactions};

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
    /// Only records in the caller's own transaction, on servers of their own and a file of SQLite
    #[arg(long)]
    transactions: bool,
    /// The program of `benches/in_process.rs`; left out without it
    #[arg(long, value_name = "PROGRAM")]
    in_process: Option<PathBuf>,
    /// Also write the report there
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// The command that the report names
    #[arg(long, default_value = "idem-bench run")]
    command: String,
    /// Arguments for criterion, such as a filter
    #[arg(last = true)]
    criterion: Vec<String>,
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
        if args.quick {
            return Self {
                rounds: 2,
                calls: 300,
                slice: Duration::from_millis(40),
                turns: 1,
                crowds: 2,
                in_process: 2000,
                renewals: 1,
                records: 100_000,
            };
        }
        Self {
            rounds: args.rounds,
            calls: 2000,
            slice: Duration::from_millis(150),
            turns: 4,
            crowds: 5,
            in_process: 20_000,
            renewals: args.rounds,
            records: if args.full { 10_000_000 } else { 1_000_000 },
        }
    }
}

impl Extent {
    async fn transactions(&self) -> Result<Group> {
        let calls = u32::try_from(self.calls / 4)?;
        transactions::group(self.rounds, calls, self.slice * self.turns).await
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    ensure!(
        args.rounds >= ROUNDS,
        "at least {ROUNDS} rounds, or the ranges say little; --quick for a look"
    );
    let machine = Machine::look();
    let extent = Extent::of(&args);
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    if args.transactions {
        print!("{}", tables(&[tokio.block_on(extent.transactions())?]));
        return Ok(());
    }
    // Benchmarks without Redis are left to runs without a named server.
    let is_everything = args.redis.is_none();
    let mut report = tokio.block_on(over_redis(machine, &extent, args.redis))?;
    if is_everything {
        report.groups.push(tokio.block_on(extent.transactions())?);
    }
    drop(tokio);
    if is_everything {
        report.groups.extend(without_redis(&extent)?);
    }
    if let Some(program) = args.in_process.as_deref().filter(|_| is_everything) {
        report.groups.extend(in_process::groups(&InProcess {
            program,
            rounds: extent.rounds,
            quick: args.quick,
            args: &args.criterion,
        })?);
    }
    let text = report.markdown(&args.command);
    print!("{text}");
    if let Some(file) = &args.write {
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        println!("written: {}", file.display());
    }
    Ok(())
}

fn without_redis(extent: &Extent) -> Result<[Group; 3]> {
    eprintln!("in process, by threads");
    let mut threads = Threads::default();
    for _ in 0..extent.rounds {
        threads.round(extent.in_process)?;
    }
    eprintln!("memory of {} records", extent.records);
    Ok([
        threads.group(),
        memory::group(extent.records)?,
        sizes::group(),
    ])
}

async fn over_redis(machine: Machine, extent: &Extent, url: Option<String>) -> Result<Report> {
    let target = Target::open(url).await?;
    let subjects = Arc::new(Subjects::connect(&target).await?);
    let mut latencies = Latencies::default();
    let mut throughputs = Throughputs::default();
    let mut crowds = Crowds::default();
    let mut renewals = Renewals::default();
    let mut layers = Layers::default();
    let services = Services::start(&target).await?;
    for round in 0..=extent.rounds {
        // The first one warms up.
        let name = if round == 0 {
            "to warm up".to_owned()
        } else {
            format!("{round} of {}", extent.rounds)
        };
        eprintln!("over Redis, round {name}");
        if round == 1 {
            (latencies, throughputs, crowds, layers) = Default::default();
        }
        let from = NUMBERS * 3 * round as u64;
        latencies.round(&subjects, extent.calls, from).await?;
        throughputs
            .round(&subjects, extent.slice, extent.turns, from + NUMBERS)
            .await?;
        layers
            .round(&services, extent.calls, extent.slice, from + 2 * NUMBERS)
            .await?;
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
        left_out.push(
            "commands and bytes as the server counts them: they need a server of our own"
                .to_owned(),
        );
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
        left_out,
    })
}
