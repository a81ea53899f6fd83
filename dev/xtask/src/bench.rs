//! `cargo xtask bench`: builds the benchmarks, and runs them.

use anyhow::{Context as _, Result};
use clap::Args;

use crate::workspace::Workspace;
use crate::{builds, redis};

const PACKAGE: &str = "idem-bench";
const REPORT: &str = "docs/benchmarks/report.md";
/// With fewer, the ranges say little.
const ROUNDS: u32 = 9;
/// How often each is built from nothing.
const BUILDS: u32 = 3;

#[derive(Args)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "they are flags of a command line"
)]
pub(crate) struct Options {
    /// Measure at this server, with keys that begin with `idem-bench-` and expire; only what needs
    /// Redis, and no server to itself. Nothing is written
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// See quickly that it works. Nothing is written
    #[arg(long)]
    quick: bool,
    /// Write docs/benchmarks/report.md all the same
    #[arg(long)]
    write: bool,
    /// How many rounds; at least 9
    #[arg(
        long,
        default_value_t = ROUNDS,
        value_parser = clap::value_parser!(u32).range(i64::from(ROUNDS)..)
    )]
    rounds: u32,
    /// Ten million records in the memory store in place of one million; takes five gigabytes
    #[arg(long)]
    full: bool,
    /// Instead, time builds from nothing: of this library and of `cached`, each as the one
    /// dependency of an empty program
    #[arg(long, conflicts_with_all = ["redis", "write", "full"])]
    build: bool,
    /// Arguments for criterion, such as a filter
    #[arg(last = true)]
    args: Vec<String>,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if options.build {
        return builds::run(workspace.shell(), if options.quick { 1 } else { BUILDS });
    }
    if options.redis.is_none() {
        redis::ensure(workspace.shell())?;
    }
    // Built before anything is measured, and not touched by changes of the sources meanwhile.
    let programs = workspace.programs(&[
        "--release",
        "-p",
        PACKAGE,
        "--bins",
        "--bench",
        "in_process",
    ])?;
    let program = |name: &str| {
        let program = programs.get(name);
        program.with_context(|| format!("cargo has built no {name}"))
    };
    let mut bench = workspace
        .shell()
        .cmd(program(PACKAGE)?)
        .args(["run", "--command", &command(options)])
        .args(["--rounds", &options.rounds.to_string()])
        .arg("--in-process")
        .arg(program("in_process")?);
    if let Some(url) = &options.redis {
        // A URL may have a password.
        bench = bench.args(["--redis", url]).secret();
    }
    for (wanted, flag) in [(options.quick, "--quick"), (options.full, "--full")] {
        bench = if wanted { bench.arg(flag) } else { bench };
    }
    if options.write || (options.redis.is_none() && !options.quick) {
        bench = bench.args(["--write", REPORT]);
    }
    bench.arg("--").args(&options.args).run()?;
    Ok(())
}

/// The command that a reader repeats.
fn command(options: &Options) -> String {
    let rounds = if options.rounds == ROUNDS {
        String::new()
    } else {
        format!(" --rounds {}", options.rounds)
    };
    let quick = if options.quick { " --quick" } else { "" };
    let full = if options.full { " --full" } else { "" };
    format!("cargo xtask bench{rounds}{quick}{full}")
}
