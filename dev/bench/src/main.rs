//! The benchmarks: what a call costs beside the bare commands of its store, and beside caches in
//! process.
//!
//! `idem-bench run` measures all that has a goal and prints one report; `cargo xtask bench` builds
//! and runs it. It also runs `benches/in_process.rs`, in which criterion measures single calls in
//! process. `idem-bench report` makes one report of several runs. The other subcommands each
//! measure one thing that the run does not, and print its tables.
#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark times itself; it is no part of the library"
)]

mod at_once;
mod calls;
mod cost;
mod crowd;
mod extent;
mod figure;
mod floor;
mod in_process;
mod latency;
mod layer;
mod leases;
mod lock;
mod machine;
mod memory;
mod over_redis;
mod physical;
mod queues;
mod renewals;
mod report;
mod run;
mod scaling;
mod sizes;
mod sql;
mod stats;
mod steps;
mod subject;
mod tap;
mod target;
mod threads;
mod throughput;
mod transactions;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    about = "What a call costs beside the bare commands of its store, and beside caches in process"
)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Measure all that has a goal
    Run(run::Args),
    /// Measure the constants of docs/scaling.md: what a call costs server and caller
    Scaling(scaling::Args),
    /// Make one report of several runs
    Report(report::Args),
    /// Measure the SQL stores as their table grows
    Sql(sql::Args),
    /// Measure one subject that handles messages, for a profile of it
    Queues(queues::Args),
    /// Make calls of one subject, for a count of their instructions
    Calls(calls::Args),
    /// Measure calls while 100,000 leases are alive in their process, and show it
    Leases,
    /// Fill a store in memory, and say what it took; `run` starts it
    #[command(hide = true)]
    Memory {
        #[arg(long)]
        records: u32,
    },
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().what {
        What::Run(args) => run::run(&args),
        What::Report(args) => report::run(&args),
        What::Scaling(args) => scaling::run(args),
        What::Queues(args) => queues::run(&args),
        What::Sql(args) => sql::run(args),
        What::Calls(args) => calls::run(&args),
        What::Leases => leases::run(),
        What::Memory { records } => fill(records),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn fill(records: u32) -> Result<()> {
    println!("{}", serde_json::to_string(&memory::run(records)?)?);
    Ok(())
}
