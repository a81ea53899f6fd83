//! The benchmarks: what a call costs beside the bare commands of its store, and beside caches in
//! process.
//!
//! `idem-bench run` measures all that has a goal and prints one report; `cargo xtask bench` builds
//! and runs it. It also runs `benches/in_process.rs`, in which criterion measures single calls in
//! process. The other subcommands each measure one thing, and print its tables.
#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark times itself; it is no part of the library"
)]

mod at_once;
mod cost;
mod crowd;
mod floor;
mod in_process;
mod latency;
mod layer;
mod leases;
mod machine;
mod memory;
mod queues;
mod renewals;
mod report;
mod run;
mod scaling;
mod sizes;
mod sql;
mod stats;
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
    /// Measure how many messages a second consumers handle, beside bare ones
    Queues(queues::Args),
    /// Measure the SQL stores beside the same statements by hand, or as their table grows
    Sql(sql::Args),
    /// Measure the HTTP layer alone, and show it
    Layer(layer::Args),
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
        What::Run(args) => run::run(args),
        What::Scaling(args) => scaling::run(args),
        What::Queues(args) => queues::run(&args),
        What::Sql(args) => sql::run(args),
        What::Layer(args) => layer::run(args),
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
