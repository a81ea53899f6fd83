//! `cargo xtask bench`: everything is measured in rounds, shown as tables, and written as a page
//! with plots.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use xshell::Cmd;

use crate::workspace::Workspace;
use crate::{builds, redis};

const PACKAGE: &str = "idem-bench";
/// With fewer, the ranges say little.
const ROUNDS: u32 = 9;
/// Of a quick run.
const FEW: u32 = 2;
/// How often each is built from nothing.
const BUILDS: u32 = 3;
/// The arguments of criterion in a quick run: too short to mean anything.
const BRIEFLY: [&str; 4] = ["--warm-up-time", "0.05", "--measurement-time", "0.1"];

#[derive(Args)]
#[allow(clippy::struct_excessive_bools, reason = "they are flags of a command line")]
pub(crate) struct Options {
    /// Measure at this server, with keys that begin with `idem-bench-` and expire; only what needs
    /// Redis, and no server to itself. Nothing is written
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// See quickly that it works. Nothing is written
    #[arg(long)]
    quick: bool,
    /// Write docs/benchmarks.md all the same
    #[arg(long)]
    write: bool,
    /// How many rounds; at least 9
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(i64::from(ROUNDS)..))]
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
    let programs = Programs::build(workspace)?;
    let dir = workspace.shell().create_temp_dir()?;
    let [report, allocations, expiry, criterion] =
        ["report.json", "allocations.json", "expiry.json", "criterion"].map(|name| dir.path().join(name));
    let program = |name| anyhow::Ok(workspace.shell().cmd(programs.get(name)?));
    measure(program(PACKAGE)?, options, &report)?;
    let mut page = program(PACKAGE)?.arg("page").arg("--report").arg(&report);
    // The benchmarks that do not use a named server.
    if options.redis.is_none() {
        program("allocations")?.arg(&allocations).run()?;
        let records = if options.quick { "100000" } else { "1000000" };
        program("expiry")?.arg(records).arg(&expiry).run()?;
        let rounds = if options.quick { FEW } else { options.rounds };
        for round in 1..=rounds {
            println!("in process, round {round} of {rounds}");
            in_process(program("in_process")?, options, &criterion.join(format!("round-{round:03}")))?;
        }
        page = page.arg("--allocations").arg(&allocations).arg("--expiry").arg(&expiry);
        page = page.arg("--criterion").arg(&criterion);
    }
    if options.write || (options.redis.is_none() && !options.quick) {
        page = page.args(["--write", "docs", "--command", &command(options)]);
    }
    page.run()?;
    Ok(())
}

fn measure(program: Cmd<'_>, options: &Options, report: &Path) -> Result<()> {
    let mut program = program.arg("run").arg("--report").arg(report);
    program = program.args(["--rounds", &options.rounds.to_string()]);
    if let Some(url) = &options.redis {
        // A URL may have a password.
        program = program.args(["--redis", url]).secret();
    }
    for (wanted, flag) in [(options.quick, "--quick"), (options.full, "--full")] {
        program = if wanted { program.arg(flag) } else { program };
    }
    program.run()?;
    Ok(())
}

/// Criterion runs all benchmarks one after the other, so it runs once for each round. Each run has
/// its own directory, because criterion would compare it with the one before.
fn in_process(program: Cmd<'_>, options: &Options, home: &Path) -> Result<()> {
    let bench =
        program.args(["--bench", "--noplot", "--quiet"]).args(if options.quick { BRIEFLY.as_slice() } else { &[] });
    bench.args(&options.args).env("CRITERION_HOME", home).ignore_stdout().run()?;
    Ok(())
}

/// The programs, built before anything is measured, and not touched by changes of the sources
/// meanwhile.
struct Programs(BTreeMap<String, PathBuf>);

impl Programs {
    fn build(workspace: &Workspace) -> Result<Self> {
        Ok(Self(workspace.programs(&["--release", "-p", PACKAGE, "--bins", "--bench", "in_process"])?))
    }

    fn get(&self, name: &str) -> Result<&Path> {
        self.0.get(name).map(PathBuf::as_path).with_context(|| format!("cargo has built no {name}"))
    }
}

/// The command that a reader repeats.
fn command(options: &Options) -> String {
    let rounds = if options.rounds == ROUNDS { String::new() } else { format!(" --rounds {}", options.rounds) };
    let quick = if options.quick { " --quick" } else { "" };
    let full = if options.full { " --full" } else { "" };
    format!("cargo xtask bench{rounds}{quick}{full}")
}
