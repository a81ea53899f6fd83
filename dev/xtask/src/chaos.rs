//! `cargo xtask chaos`: real processes and real servers under faults made on purpose, and the same
//! against mutants.

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};

use crate::steps::Steps;
use crate::workspace::Workspace;
use crate::{redis, servers, suite};

const PACKAGE: &str = "idem-chaos";
/// How long CI runs each topology, and the seed, so that its faults are the same each time.
const CI_SECONDS: u64 = 10;
const CI_SEED: u64 = 1;
/// The mutants that a full run of CI has: one of the lease, one of the outcome, one of the store
/// that fails.
const CI_MUTANTS: &str = "renewal-lies,forgets,forgets-steps,store-failure-runs";

/// Which servers there are, and how they stand to each other.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Topology {
    Single,
    Sentinel,
    Cluster,
    Postgres,
    PostgresPair,
    Mariadb,
    Mysql,
    Sqlite,
    /// The first three: all with Redis.
    Redis,
    All,
}

#[derive(Args)]
pub(crate) struct Options {
    /// For how long faults are made, with each topology
    #[arg(long, default_value_t = 1)]
    minutes: u64,
    /// Which servers there are, and how they stand to each other
    #[arg(long, value_enum, default_value = "all")]
    topology: Topology,
    /// The calls come from messages of this broker: nats or rabbitmq. On a single Redis
    #[arg(long, value_name = "BROKER")]
    broker: Option<String>,
    /// Which faults are made, with commas between: kill, pause, cut, swallow, delay, server-kill,
    /// server-pause, broker-kill, broker-cut; all that fit unless they are given
    #[arg(long)]
    nemesis: Option<String>,
    /// The seed of the dice, for a run to be repeated; a run prints its own
    #[arg(long)]
    seed: Option<u64>,
    /// Run against each mutant of the store instead, until it is found: on one Redis unless
    /// another topology is given
    #[arg(long)]
    mutants: bool,
    /// Add the results to this file, as Markdown
    #[arg(long, value_name = "FILE")]
    report: Option<String>,
}

impl Topology {
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Single => &["single"],
            Self::Sentinel => &["sentinel"],
            Self::Cluster => &["cluster"],
            Self::Postgres => &["postgres"],
            Self::PostgresPair => &["postgres-pair"],
            Self::Mariadb => &["mariadb"],
            Self::Mysql => &["mysql"],
            Self::Sqlite => &["sqlite"],
            Self::Redis => &["single", "sentinel", "cluster"],
            Self::All => &[
                "single",
                "sentinel",
                "cluster",
                "postgres",
                "postgres-pair",
                "mariadb",
                "mysql",
                "sqlite",
            ],
        }
    }

    /// Whether there is a server that is not a Redis.
    fn has_databases(self) -> bool {
        matches!(
            self,
            Self::Postgres | Self::PostgresPair | Self::Mariadb | Self::All
        )
    }
}

/// The chore, with what was asked for.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    prepare(workspace, options.topology)?;
    let mut args = Vec::new();
    for (name, value) in [
        ("--nemesis", &options.nemesis),
        ("--report", &options.report),
        ("--broker", &options.broker),
    ] {
        args.extend(
            value
                .iter()
                .flat_map(|value| [name.to_owned(), value.clone()]),
        );
    }
    let seed = options
        .seed
        .map(|seed| ["--seed".to_owned(), seed.to_string()]);
    let mut steps = Steps::of("chaos");
    if options.mutants {
        let topology = if options.topology == Topology::All {
            "single"
        } else {
            options.topology.names()[0]
        };
        steps.run("mutants", "each is found", || {
            chaos(
                workspace,
                &["mutants", "--topology", topology],
                seed.as_ref().map_or(&[], |seed| seed),
            )
        });
    } else {
        args.extend(seed.into_iter().flatten());
        let seconds = (options.minutes * 60).to_string();
        let topologies = if options.broker.is_some() {
            Topology::Single
        } else {
            options.topology
        };
        for topology in topologies.names() {
            steps.run(topology, "no promise is broken", || {
                chaos(
                    workspace,
                    &["run", "--topology", topology, "--seconds", &seconds],
                    &args,
                )
            });
        }
    }
    steps.finish()
}

/// CI's step: a short run with Redis. With `full`, databases and some mutants as well.
pub(crate) fn in_ci(workspace: &Workspace, full: bool) -> Result<()> {
    let topology = if full { Topology::All } else { Topology::Redis };
    ensure(workspace, topology)?;
    // As the tests were built. A build with optimisations takes longer than the run.
    let programs =
        workspace.programs(&["--workspace", "--all-features", "--tests", "--bin", PACKAGE])?;
    let program = programs
        .get(PACKAGE)
        .with_context(|| format!("cargo has built no {PACKAGE}"))?;
    let chaos = |args: &[&str]| anyhow::Ok(workspace.shell().cmd(program).args(args).run()?);
    let seconds = CI_SECONDS.to_string();
    let seed = CI_SEED.to_string();
    let mut steps = Steps::of("chaos");
    for topology in topology.names() {
        let args = [
            "run",
            "--topology",
            topology,
            "--seconds",
            &seconds,
            "--seed",
            &seed,
        ];
        steps.run(topology, "no promise is broken", || chaos(&args));
    }
    if full {
        steps.run("mutants", "some are found", || {
            chaos(&["mutants", "--only", CI_MUTANTS])
        });
    } else {
        println!("The fault run over databases is left to `cargo xtask chaos` and `ci --full`.");
    }
    steps.finish()
}

/// Built apart, so that the time of the run is its own.
fn prepare(workspace: &Workspace, topology: Topology) -> Result<()> {
    ensure(workspace, topology)?;
    workspace
        .cargo()
        .args(["build", "--release", "-p", PACKAGE])
        .run()?;
    Ok(())
}

fn ensure(workspace: &Workspace, topology: Topology) -> Result<()> {
    redis::ensure(workspace.shell())?;
    if topology.names().contains(&"mysql") {
        let program = servers::MYSQL.find(workspace);
        let program = program.context("the fault run on MySQL needs one")?;
        workspace.shell().set_var(servers::MYSQL.given, program);
    }
    if topology.has_databases() {
        suite::ensure_databases(workspace.shell())
    } else {
        Ok(())
    }
}

fn chaos(workspace: &Workspace, args: &[&str], more: &[String]) -> Result<()> {
    workspace
        .cargo()
        .args(["run", "--quiet", "--release", "-p", PACKAGE, "--"])
        .args(args)
        .args(more)
        .run()?;
    Ok(())
}
