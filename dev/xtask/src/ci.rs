//! The steps of CI.

use anyhow::Result;
use clap::ValueEnum;

use crate::steps::Steps;
use crate::workspace::{FACADE, Workspace};
use crate::{alerts, chaos, documents, fuzz, house, packages, suite, tool};

/// In the order in which they run: cheap ones first.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    Fmt,
    Decisions,
    Readme,
    Targets,
    Alerts,
    House,
    Deny,
    Semver,
    Clippy,
    Docs,
    Features,
    Msrv,
    Test,
    Chaos,
    Explore,
    Fuzz,
    Package,
}

pub(crate) fn list() {
    for step in Step::value_variants() {
        println!("{:<12}{}", step.name(), step.about());
    }
}

/// Runs all steps, or those named, and stops at the first failure. With `full`, a step also does
/// what need not be done each time.
pub(crate) fn run(workspace: &Workspace, only: &[Step], full: bool) -> Result<()> {
    let mut steps = Steps::of("ci");
    for step in Step::value_variants() {
        let wanted = only.is_empty() || only.contains(step);
        if wanted && !steps.run(step.name(), step.about(), || step.run(workspace, full)) {
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
            Self::Targets => "targets",
            Self::Alerts => "alerts",
            Self::House => "house",
            Self::Deny => "deny",
            Self::Semver => "semver",
            Self::Clippy => "clippy",
            Self::Docs => "docs",
            Self::Features => "features",
            Self::Msrv => "msrv",
            Self::Test => "test",
            Self::Chaos => "chaos",
            Self::Explore => "explore",
            Self::Fuzz => "fuzz",
            Self::Package => "package",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Fmt => "the code is formatted",
            Self::Decisions => "every decision has a number of its own",
            Self::Readme => {
                "the README says how to run the tests, each guide is listed and rendered, and links and names of files lead somewhere"
            }
            Self::Targets => "each file of tests and of examples is built",
            Self::Alerts => "promtool accepts the alert rules, and their tests pass",
            Self::House => {
                "rooms and layers in their order, no new circle, no file over 600 lines, budgets"
            }
            Self::Deny => "the licences and sources of dependencies are allowed",
            Self::Semver => "nothing breaks the API of the last release",
            Self::Clippy => "no lint fires, on all targets with all features",
            Self::Docs => "the API docs build without a warning",
            Self::Features => {
                "each feature builds alone, and so do the tests of `cargo xtask test`"
            }
            Self::Msrv => "the packages need no newer compiler than they say",
            Self::Test => "the tests of `cargo xtask test`, and all that it leaves out",
            Self::Chaos => "a short fault run finds no broken promise",
            Self::Explore => "no schedule of threads is found that breaks a promise",
            Self::Fuzz => "the fuzz targets pass over their corpus",
            Self::Package => "what would be published has sources, licences and README",
        }
    }

    fn run(self, workspace: &Workspace, full: bool) -> Result<()> {
        match self {
            Self::Fmt => fmt(workspace),
            Self::Decisions => documents::check_decisions(workspace),
            Self::Readme => documents::check_readme(workspace),
            Self::Targets => documents::check_targets(workspace),
            Self::Alerts => alerts::check(workspace, full),
            Self::House => house::check(workspace),
            Self::Deny => packages::deny(workspace, full),
            Self::Semver => packages::semver(workspace, full),
            Self::Clippy => clippy(workspace),
            Self::Docs => docs(workspace, full),
            Self::Features => features(workspace, full),
            Self::Msrv => packages::check_msrv(workspace, full),
            Self::Test => suite::in_ci(workspace, full),
            Self::Chaos => chaos::in_ci(workspace, full),
            Self::Explore => suite::explore(workspace),
            Self::Fuzz => fuzz::corpus(workspace),
            Self::Package => packages::package(workspace, full),
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
    let args = [
        "clippy",
        "--workspace",
        "--all-features",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    workspace.cargo().args(args).run()?;
    Ok(())
}

/// The docs of all libraries, or also of the programs.
fn docs(workspace: &Workspace, full: bool) -> Result<()> {
    let mut cargo = workspace
        .cargo()
        .args(["doc", "--workspace", "--all-features", "--no-deps"]);
    if !full {
        // For an example, cargo enables the features that dev-dependencies ask for. So dependencies
        // are as clippy has checked them, and none is checked a second time.
        cargo = cargo.args(["--lib", "--example", "quickstart"]);
    }
    cargo.env("RUSTDOCFLAGS", "-D warnings").run()?;
    Ok(())
}

/// One check for each feature, and one without any: built together, one feature hides what another
/// lacks. The facade's features are those of the other packages, one by one, so only a full run
/// checks those packages by themselves, and each feature.
fn features(workspace: &Workspace, full: bool) -> Result<()> {
    for package in workspace
        .published()?
        .iter()
        .filter(|package| full || package.name == FACADE)
    {
        let check = |features: &str| {
            let cargo =
                workspace
                    .cargo()
                    .args(["check", "-p", &package.name, "--no-default-features"]);
            cargo.args(["--features", features]).run()
        };
        let needs = |feature| {
            INCOMPLETE
                .iter()
                .find(|(of, name, _)| (*of, *name) == (&package.name, feature))
        };
        let none = needs("").map_or("", |(_, _, needed)| needed);
        check(none)?;
        for feature in package
            .features()
            .filter(|feature| full || OFTEN.contains(feature))
        {
            let needed = needs(feature).map_or(none, |(_, _, needed)| needed);
            check(&format!("{needed},{feature}"))?;
        }
    }
    suite::check(workspace)
}

/// Features that say what else they need if they are enabled alone, and what they are checked with:
/// the package, the feature ("": no feature at all), and the other.
const INCOMPLETE: [(&str, &str, &str); 3] = [
    ("idem-sqlx", "", "sqlx-08"),
    (FACADE, "sqlx-08", "sqlite"),
    (FACADE, "sqlx-tls", "sqlx-08-postgres"),
];

/// The features that most changes concern.
const OFTEN: [&str; 4] = ["redis", "axum", "http", "sqlx-08-sqlite"];
