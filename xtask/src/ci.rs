//! What CI runs, step by step.

use std::path::PathBuf;
use std::{env, fs};

use anyhow::Result;
use clap::ValueEnum;
use xshell::cmd;

use crate::steps::Steps;
use crate::workspace::{FACADE, Package, Workspace};
use crate::{chaos, deliveries, documents, fuzz, redis, suite, tool};

/// In the order in which they run: cheap ones first.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    Fmt,
    Decisions,
    Readme,
    Deliveries,
    Clippy,
    Docs,
    Features,
    Test,
    Chaos,
    Explore,
    Fuzz,
    Examples,
    Package,
}

pub(crate) fn list() {
    for step in Step::value_variants() {
        println!("{:<12}{}", step.name(), step.about());
    }
}

/// Runs all steps, or those named, and stops at the first failure.
pub(crate) fn run(workspace: &Workspace, only: &[Step]) -> Result<()> {
    let mut steps = Steps::of("ci");
    for step in Step::value_variants() {
        let wanted = only.is_empty() || only.contains(step);
        if wanted && !steps.run(step.name(), step.about(), || step.run(workspace)) {
            break;
        }
    }
    steps.finish()
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Decisions => "decisions",
            Self::Readme => "readme",
            Self::Deliveries => "deliveries",
            Self::Clippy => "clippy",
            Self::Docs => "docs",
            Self::Features => "features",
            Self::Test => "test",
            Self::Chaos => "chaos",
            Self::Explore => "explore",
            Self::Fuzz => "fuzz",
            Self::Examples => "examples",
            Self::Package => "package",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Fmt => "the code is formatted",
            Self::Decisions => "every decision has a number of its own",
            Self::Readme => "the README says how to run the tests",
            Self::Deliveries => "the examples' data is what its generator makes",
            Self::Clippy => "no lint fires, on all targets with all features",
            Self::Docs => "the API docs build without a warning",
            Self::Features => "each feature builds alone",
            Self::Test => "cargo xtask test",
            Self::Chaos => "a short fault run finds no broken promise, and finds some mutants",
            Self::Explore => "no schedule of threads is found that breaks a promise",
            Self::Fuzz => "the fuzz targets pass over their corpus",
            Self::Examples => "the examples build, run and end well",
            Self::Package => "each package builds from what would be published",
        }
    }

    fn run(self, workspace: &Workspace) -> Result<()> {
        match self {
            Self::Fmt => fmt(workspace),
            Self::Decisions => documents::check_decisions(workspace),
            Self::Readme => documents::check_readme(workspace),
            Self::Deliveries => deliveries::check(workspace),
            Self::Clippy => clippy(workspace),
            Self::Docs => docs(workspace),
            Self::Features => features(workspace),
            Self::Test => suite::run(workspace, &[]),
            Self::Chaos => chaos::short(workspace),
            Self::Explore => suite::explore(workspace),
            Self::Fuzz => fuzz::corpus(workspace),
            Self::Examples => examples(workspace),
            Self::Package => package(workspace),
        }
    }
}

fn fmt(workspace: &Workspace) -> Result<()> {
    tool::ensure_component(workspace, "rustfmt", "fmt")?;
    workspace.cargo().args(["fmt", "--all", "--check"]).run()?;
    Ok(())
}

fn clippy(workspace: &Workspace) -> Result<()> {
    tool::ensure_component(workspace, "clippy", "clippy")?;
    let args = ["clippy", "--workspace", "--all-features", "--all-targets", "--", "-D", "warnings"];
    workspace.cargo().args(args).run()?;
    Ok(())
}

fn docs(workspace: &Workspace) -> Result<()> {
    let args = ["doc", "--workspace", "--all-features", "--no-deps"];
    workspace.cargo().args(args).env("RUSTDOCFLAGS", "-D warnings").run()?;
    Ok(())
}

/// One check for each feature of each package, and one without any: built together, one feature hides what another
/// lacks.
fn features(workspace: &Workspace) -> Result<()> {
    for package in workspace.published()? {
        let check = || workspace.cargo().args(["check", "-p", &package.name, "--no-default-features"]);
        check().run()?;
        for feature in package.features() {
            check().args(["--features", feature]).run()?;
        }
    }
    Ok(())
}

fn examples(workspace: &Workspace) -> Result<()> {
    workspace.cargo().args(["build", "--workspace", "--all-features", "--examples"]).run()?;

    // As the README has it: no features, no server.
    for example in ["quickstart", "payments"] {
        workspace.cargo().args(["run", "--example", example]).run()?;
    }

    let server = redis::Server::start(workspace.shell())?;
    for example in ["quickstart", "workers"] {
        let args = ["run", "-p", FACADE, "--all-features", "--example", example, "--", "--redis", &server.url()];
        workspace.cargo().args(args).run()?;
    }
    Ok(())
}

fn package(workspace: &Workspace) -> Result<()> {
    let mut cargo = workspace.cargo().arg("package");
    // Named, because `--workspace` has those in it that are never published. Packed together, each builds on the
    // others' packages.
    let packages = workspace.published()?;
    for package in &packages {
        cargo = cargo.args(["-p", &package.name]);
    }
    forget_unpacked(&packages)?;
    // CI has a clean checkout, and a change there is a fault that cargo shall report. At home it is work not yet
    // committed.
    if env::var_os("CI").is_none() && is_dirty(workspace) {
        println!("There are uncommitted changes: packaging them as well.");
        cargo = cargo.arg("--allow-dirty");
    }
    cargo.run()?;
    Ok(())
}

/// Removes what cargo has unpacked of our own packages in an earlier run. It does not unpack a version twice, so the packages would be
/// built on those of the earlier run. They lie under the name of a registry without a host, which is the folder that they are packed into.
fn forget_unpacked(packages: &[Package]) -> Result<()> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cargo")));
    let Some(Ok(registries)) = home.map(|home| fs::read_dir(home.join("registry/src"))) else { return Ok(()) };
    for registry in registries {
        let registry = registry?;
        if !registry.file_name().to_string_lossy().starts_with('-') {
            continue;
        }
        for package in packages {
            let unpacked = registry.path().join(format!("{}-{}", package.name, package.version));
            if unpacked.exists() {
                fs::remove_dir_all(unpacked)?;
            }
        }
    }
    Ok(())
}

fn is_dirty(workspace: &Workspace) -> bool {
    let changes = cmd!(workspace.shell(), "git status --porcelain").quiet().ignore_stderr().read();
    changes.is_ok_and(|changes| !changes.is_empty())
}
