//! The project's own chores, run as `cargo xtask <chore>`. CI runs nothing else.
#![allow(
    clippy::disallowed_methods,
    reason = "chores time their own steps; they are no part of the library"
)]

mod alerts;
mod bench;
mod browser;
mod budget;
mod builds;
mod chaos;
mod ci;
mod clients;
mod documents;
mod floors;
mod fuzz;
mod golden;
mod guides;
mod house;
mod layers;
mod modules;
mod packages;
mod redis;
mod runner;
mod servers;
mod steps;
mod suite;
mod tool;
mod without;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "The chores of this project"
)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Test every promise over memory, Redis, PostgreSQL, MariaDB and SQLite, and every guide;
    /// installs the servers that are missing. All other tests are part of `ci`
    Test {
        /// Arguments for each test program, such as a part of a test's name; with any, the guides
        /// are left out
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Run what CI runs, up to the first failure
    Ci {
        /// Run this step alone; may be given several times
        #[arg(long, value_name = "STEP")]
        only: Vec<ci::Step>,
        /// Also do what need not be done each time: mutants of the fault run, the oldest compiler,
        /// builds as newcomers have them, advisories; installs the programs for it
        #[arg(long)]
        full: bool,
        /// List the steps
        #[arg(long)]
        list: bool,
    },
    /// Run what takes too long for `ci`: the largest worlds of the model, storms of 10,000
    /// messages, clients in Python and Node, the stores on PostgreSQL 18, Redis 8 and Valkey 9,
    /// builds with the oldest dependencies, and the core without each layer
    Night,
    /// Run the HTTP layer with clients in Python and Node, which is a part of `night`
    Clients,
    /// Take each layer out of a copy of idem-core, and test what is left, which is a part of `night`
    Without {
        /// Take this layer out alone; may be given several times
        layers: Vec<String>,
    },
    /// Look for circles among modules, rooms and layers out of order, long files, and packages
    /// over their budgets
    House {
        /// Take what is gone from the list of known ones
        #[arg(long)]
        write: bool,
    },
    /// Run what threads do at once inside a process under thousands of schedules
    Explore,
    /// Run the fuzz targets under libFuzzer; installs cargo-fuzz if there is none
    Fuzz {
        /// For how long, each target
        #[arg(long, default_value_t = 20)]
        seconds: u32,
        /// Run this target alone; may be given several times
        #[arg(long, value_name = "NAME")]
        target: Vec<String>,
        /// Only run each target over its corpus and over changes of it, without libFuzzer, as CI
        /// does
        #[arg(long, conflicts_with_all = ["seconds", "target"])]
        corpus: bool,
    },
    /// Run processes and a real Redis under faults made on purpose, and check the promises;
    /// installs redis-server if there is none
    Chaos(chaos::Options),
    /// Rewrite the golden files of the UI tests
    Bless,
    /// Write docs/guide, the guides as GitHub shows them; `ci` compares them, and follows the links
    /// of all pages
    Guides,
    /// Measure everything against goals, and write docs/benchmarks/report.md; installs the servers
    /// that are missing
    Bench(bench::Options),
}

fn main() -> ExitCode {
    let result = run(Cli::parse().chore);
    browser::remind();
    servers::remind();
    clients::remind();
    alerts::remind();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // In one line: a backtrace of xtask does not help.
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> Result<()> {
    let workspace = Workspace::open()?;
    match chore {
        Chore::Test { args } => suite::run(&workspace, &args),
        Chore::Night => suite::night(&workspace),
        Chore::Ci { list: true, .. } => {
            ci::list();
            Ok(())
        }
        Chore::Ci { only, full, .. } => ci::run(&workspace, &only, full),
        Chore::Clients => clients::test(&workspace),
        Chore::Without { layers } => without::check(&workspace, &layers),
        Chore::House { write: true } => house::write(&workspace),
        Chore::House { write: false } => house::check(&workspace),
        Chore::Explore => suite::explore(&workspace),
        Chore::Fuzz { corpus: true, .. } => fuzz::corpus(&workspace),
        Chore::Fuzz {
            seconds, target, ..
        } => fuzz::run(&workspace, seconds, &target),
        Chore::Chaos(options) => chaos::run(&workspace, &options),
        Chore::Bless => golden::bless(&workspace),
        Chore::Guides => guides::write(&workspace),
        Chore::Bench(options) => bench::run(&workspace, &options),
    }
}
