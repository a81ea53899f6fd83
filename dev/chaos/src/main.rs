//! A fault run: real processes, real servers, faults made on purpose, and a checker of the
//! promises.
//!
//! `idem-chaos run` starts servers and worker processes that call one operation with few keys. It
//! kills and stops them, and cuts and delays their connections. Then it checks their histories
//! against the promises of `docs/guarantees.md`. `idem-chaos mutants` does the same with stores
//! that each break a promise, and fails if one is not found. `cargo xtask chaos` builds and runs
//! both.
#![allow(
    clippy::disallowed_methods,
    reason = "a fault run times itself; it is no part of the library"
)]

mod broker;
mod check;
mod clock;
mod history;
mod keys;
mod messages;
mod nemesis;
mod plan;
mod process;
mod report;
mod run;
mod settings;
mod topology;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum as _};

use crate::plan::Kind;
use crate::run::Verdict;
use crate::settings::Settings;
use crate::topology::Topology;
use crate::worker::mutant::Flaw;

#[derive(Parser)]
#[command(about = "Faults made on purpose, and a checker of the promises")]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Run against the store as it is, or as one mutant is; fails if a promise is broken
    Run(RunArgs),
    /// Run against each mutant until it is found; fails if one is not
    Mutants {
        /// Which servers there are, and how they stand to each other
        #[arg(long, value_enum, default_value = "single")]
        topology: Topology,
        /// How long each may stay hidden
        #[arg(long, default_value_t = 40)]
        seconds: u64,
        /// The seed of the dice
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// These alone
        #[arg(long, value_delimiter = ',')]
        only: Vec<Flaw>,
    },
    /// A process of workers; the others start it
    #[command(hide = true)]
    Worker(worker::Args),
}

#[derive(clap::Args)]
struct RunArgs {
    /// How long faults are made
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The seed of the dice; one at random unless it is given
    #[arg(long)]
    seed: Option<u64>,
    /// Which servers there are, and how they stand to each other
    #[arg(long, value_enum, default_value = "single")]
    topology: Topology,
    /// The calls come from messages of this broker
    #[arg(long, value_enum)]
    broker: Option<broker::Kind>,
    /// Which faults are made; all that fit unless they are given
    #[arg(long, value_delimiter = ',')]
    nemesis: Vec<Kind>,
    /// How many processes of workers there are at once
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// The lease, in ms; 400 with Redis and 2000 with databases unless it is given
    #[arg(long)]
    lease: Option<u64>,
    /// How many replicas acknowledge each claim and commit; as many as there are unless it is
    /// given. With fewer, a failover loses what was acknowledged now and then, which this finds
    #[arg(long)]
    replicas: Option<u32>,
    /// Breaks the store
    #[arg(long)]
    mutant: Option<Flaw>,
    /// Adds the result to this file, as Markdown
    #[arg(long)]
    report: Option<PathBuf>,
    /// Leaves the history in this folder
    #[arg(long)]
    keep: Option<PathBuf>,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().what {
        What::Worker(args) => worker::run(&args).map(|()| true),
        What::Run(args) => on_tokio(run_once(args)),
        What::Mutants {
            topology,
            seconds,
            seed,
            only,
        } => on_tokio(mutants(topology, seconds, seed, only)),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn on_tokio<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(future)
}

async fn run_once(args: RunArgs) -> Result<bool> {
    let fits = |kind: &Kind| {
        args.topology.suffers(*kind) && (args.broker.is_some() || !kind.needs_broker())
    };
    let wanted = |kind: &Kind| args.nemesis.is_empty() || args.nemesis.contains(kind);
    let kinds = Kind::value_variants()
        .iter()
        .copied()
        .filter(fits)
        .filter(wanted)
        .collect();
    let temporary = tempfile::Builder::new().prefix("idem-chaos-").tempdir()?;
    let folder = args
        .keep
        .clone()
        .unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&folder)?;
    let settings = Settings {
        topology: args.topology,
        broker: args.broker,
        kinds,
        processes: args.workers.max(1),
        length: Duration::from_secs(args.seconds),
        lease: args
            .lease
            .map_or_else(|| args.topology.lease(), Duration::from_millis),
        seed: args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000)),
        replicas: args.replicas.unwrap_or_else(|| args.topology.replicas()),
        mutant: args.mutant.map(name_of),
        folder: folder.clone(),
        epoch: clock::now(),
    };
    println!("{}", report::headline(&settings));
    let verdict = run::run(settings.clone(), args.mutant.is_some()).await?;
    println!("{}", report::table(&settings, &verdict));
    print_details(&verdict, &folder)?;
    if let Some(path) = &args.report {
        report::append(path, &settings, &verdict)?;
    }
    Ok(verdict.findings.violations.is_empty())
}

async fn mutants(topology: Topology, seconds: u64, seed: u64, only: Vec<Flaw>) -> Result<bool> {
    let mut hidden = Vec::new();
    for flaw in Flaw::value_variants()
        .iter()
        .filter(|flaw| only.is_empty() || only.contains(flaw))
    {
        let folder = tempfile::Builder::new().prefix("idem-chaos-").tempdir()?;
        let settings = Settings {
            topology,
            broker: None,
            kinds: Kind::value_variants()
                .iter()
                .copied()
                .filter(|kind| topology.suffers(*kind) && !kind.needs_broker())
                .collect(),
            processes: 4,
            length: Duration::from_secs(seconds),
            lease: topology.lease(),
            seed,
            replicas: topology.replicas(),
            mutant: Some(name_of(*flaw)),
            folder: folder.path().to_owned(),
            epoch: clock::now(),
        };
        let verdict = run::run(settings, true).await?;
        let name = name_of(*flaw);
        let violations = &verdict.findings.violations;
        if let Some(first) = violations.first() {
            let at = report::seconds(first.at, verdict.epoch);
            println!(
                "{name:<26} found after {at:>10} s: {}; {}",
                report::by_promise(violations),
                first.text
            );
        } else {
            println!("{name:<26} NOT FOUND in {seconds} s");
            hidden.push(name);
        }
    }
    if !hidden.is_empty() {
        println!("not found: {}", hidden.join(", "));
    }
    Ok(hidden.is_empty())
}

fn print_details(verdict: &Verdict, folder: &std::path::Path) -> Result<()> {
    if !verdict.findings.violations.is_empty() {
        println!("{}", report::details(verdict, &history::read(folder)?));
    }
    Ok(())
}

fn name_of(flaw: Flaw) -> String {
    flaw.to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}
