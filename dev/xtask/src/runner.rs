//! The test runner: cargo-nextest, or cargo alone.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use xshell::Cmd;

use crate::tool;
use crate::workspace::Workspace;

/// Names the server that the tests are to start, in place of `redis-server`.
pub(crate) const SERVER: &str = "IDEM_REDIS_SERVER";

/// Tests that share a server of each kind, by package and target: the conformance suite, and the
/// promises over every store. In one process, hundreds of them wait at the same time.
/// cargo-nextest would start a process for each, and most of them a server, which takes ten times
/// as long.
const SHARING: [(&str, &str); 5] = [
    ("idem-redis", "conformance"),
    ("idem-testkit", "memory"),
    ("idem-testkit", "memory_real_time"),
    ("idem-tests", "promises"),
    ("idem-tests", "runtimes"),
];

/// They wait more than they compute, as the other tests: see `.config/nextest.toml`.
const THREADS: &str = "--test-threads=6";

pub(crate) fn has_nextest(workspace: &Workspace) -> bool {
    tool::has_subcommand(workspace, "nextest")
}

/// The runner, with the whole workspace: fewer packages would have fewer features, and be built
/// once more.
pub(crate) fn all(workspace: &Workspace) -> Cmd<'_> {
    let cargo = workspace.cargo();
    if has_nextest(workspace) {
        cargo.args(["nextest", "run", "--workspace", "--all-features"])
    } else {
        println!(
            "cargo-nextest is not installed: running the tests with cargo test, which is slower."
        );
        cargo.args([
            "test",
            "--workspace",
            "--all-features",
            "--tests",
            "--lib",
            "--bins",
            "--no-fail-fast",
        ])
    }
}

/// The runner, for these tests of one package as the workspace has built them. Cargo alone runs all
/// of its tests.
pub(crate) fn of<'a>(workspace: &'a Workspace, package: &str, tests: &str) -> Cmd<'a> {
    if has_nextest(workspace) {
        all(workspace).args(["--filterset", tests])
    } else {
        workspace.cargo().args([
            "test",
            "--package",
            package,
            "--all-features",
            "--tests",
            "--no-fail-fast",
        ])
    }
}

/// A filter of cargo-nextest that leaves [those that share a server](SHARING) out.
pub(crate) fn without_sharing() -> String {
    SHARING
        .map(|(package, target)| format!("not binary_id({package}::{target})"))
        .join(" and ")
}

/// Runs [those that share a server](SHARING), of one package or of all, as the workspace has built
/// them: each target in one process, and none whose name has `skip` in it. With `server`, on
/// another program than `redis-server`.
pub(crate) fn sharing(
    workspace: &Workspace,
    left_out: &[&str],
    skip: Option<&str>,
    package: Option<&str>,
    server: Option<&Path>,
) -> Result<()> {
    let built = workspace.test_programs(left_out)?;
    let mut failed = Vec::new();
    for (of, target) in SHARING
        .into_iter()
        .filter(|(of, _)| package.is_none_or(|package| package == *of))
    {
        // The package of the folder `tests` is the only one that is not named for its folder.
        let folder = if of == "idem-tests" { "tests" } else { of };
        let program = built.iter().find(|built| built.is(folder, target));
        let program =
            program.with_context(|| format!("cargo has built no test {target} of {of}"))?;
        let _in = workspace.shell().push_dir(&program.dir);
        let mut tests = workspace
            .shell()
            .cmd(&program.path)
            .args(["--quiet", THREADS]);
        if let Some(skip) = skip {
            tests = tests.args(["--skip", skip]);
        }
        if let Some(server) = server {
            tests = tests.env(SERVER, server);
        }
        // One run shows every failure.
        if let Err(error) = tests.run() {
            failed.push(format!("{of}: {error}"));
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}
