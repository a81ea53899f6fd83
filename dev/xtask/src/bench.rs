//! `cargo xtask bench`: builds the benchmarks, and runs them.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::workspace::Workspace;
use crate::{builds, redis, servers, suite};

const PACKAGE: &str = "idem-bench";
const REPORT: &str = "docs/benchmarks/report.md";
/// With fewer, the ranges say little.
const ROUNDS: u32 = 5;
/// How often each is built from nothing.
const BUILDS: u32 = 3;

#[derive(Args)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "they are flags of a command line"
)]
pub(crate) struct Options {
    /// Measure at this server, with keys that begin with `idem-bench-` and expire; only what needs
    /// Redis, and no server to itself. Nothing is written without `--write`
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// See quickly that it works. Nothing is written without `--write`
    #[arg(long)]
    quick: bool,
    /// Write the report there; docs/benchmarks/report.md, unless only a part is measured
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Measure everything so many times, one run after the other, and make one report of all
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// These parts alone: physical, redis, valkey, http, sql, transactions, queues, threads,
    /// memory, in-process. Nothing is written without `--write`
    #[arg(long, value_name = "PARTS")]
    only: Option<String>,
    /// How many rounds a run has; at least 5
    #[arg(
        long,
        default_value_t = ROUNDS,
        value_parser = clap::value_parser!(u32).range(i64::from(ROUNDS)..)
    )]
    rounds: u32,
    /// Ten million records in the memory store in place of one million; takes six gigabytes
    #[arg(long)]
    full: bool,
    /// Instead, time builds from nothing: of this library and of `cached`, each as the one
    /// dependency of an empty program
    #[arg(long, conflicts_with_all = ["redis", "write", "full", "runs", "only"])]
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
        ensure_servers(workspace)?;
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
    let shell = workspace.shell();
    let folder = workspace.target_dir()?.join("bench");
    shell.create_dir(&folder)?;
    let mut files = Vec::new();
    for run in 1..=options.runs {
        let file = folder.join(format!("run-{run}.json"));
        let mut bench = shell
            .cmd(program(PACKAGE)?)
            .args(["run", "--rounds", &options.rounds.to_string()])
            .arg("--in-process")
            .arg(program("in_process")?)
            .arg("--json")
            .arg(&file);
        if let Some(url) = &options.redis {
            // A URL may have a password.
            bench = bench.args(["--redis", url]).secret();
        }
        if let Some(parts) = &options.only {
            bench = bench.args(["--only", parts]);
        }
        for (wanted, flag) in [(options.quick, "--quick"), (options.full, "--full")] {
            bench = if wanted { bench.arg(flag) } else { bench };
        }
        bench.arg("--").args(&options.args).run()?;
        files.push(file);
    }
    let mut report = shell
        .cmd(program(PACKAGE)?)
        .args(["report", "--command", &command(options)]);
    let is_whole = options.redis.is_none() && options.only.is_none() && !options.quick;
    let usual = is_whole.then(|| PathBuf::from(REPORT));
    if let Some(file) = options.write.clone().or(usual) {
        report = report.arg("--write").arg(file);
    }
    report.args(files).run()?;
    Ok(())
}

/// Makes sure of the servers that are installed, and makes the others in `target`. Without one of
/// those, what is measured on it is left out.
fn ensure_servers(workspace: &Workspace) -> Result<()> {
    redis::ensure(workspace.shell())?;
    suite::ensure_databases(workspace.shell())?;
    suite::ensure_brokers(workspace.shell())?;
    for server in [&servers::MYSQL, &servers::VALKEY] {
        if let Some(program) = server.find(workspace) {
            workspace.shell().set_var(server.given, program);
        }
    }
    if let Some(program) = servers::tansu(workspace) {
        workspace.shell().set_var(servers::TANSU, program);
    }
    Ok(())
}

/// The command that a reader repeats.
fn command(options: &Options) -> String {
    let mut words = vec!["cargo xtask bench".to_owned()];
    if options.runs > 1 {
        words.push(format!("--runs {}", options.runs));
    }
    if options.rounds != ROUNDS {
        words.push(format!("--rounds {}", options.rounds));
    }
    if let Some(parts) = &options.only {
        words.push(format!("--only {parts}"));
    }
    for (is_wanted, flag) in [(options.quick, "--quick"), (options.full, "--full")] {
        if is_wanted {
            words.push(flag.to_owned());
        }
    }
    words.join(" ")
}
