//! The test runner: cargo-nextest, or cargo alone.

use xshell::Cmd;

use crate::tool;
use crate::workspace::Workspace;

/// The runner, with the whole workspace: fewer packages would have fewer features, and be built
/// once more.
pub(crate) fn all(workspace: &Workspace) -> Cmd<'_> {
    let cargo = workspace.cargo();
    if tool::has_subcommand(workspace, "nextest") {
        cargo.args(["nextest", "run", "--workspace", "--all-features"])
    } else {
        println!("cargo-nextest is not installed: running the tests with cargo test, which is slower.");
        cargo.args(["test", "--workspace", "--all-features", "--tests", "--lib", "--bins", "--no-fail-fast"])
    }
}

/// The runner, for these tests of one package as the workspace has built them. Cargo alone runs all
/// of its tests.
pub(crate) fn of<'a>(workspace: &'a Workspace, package: &str, tests: &str) -> Cmd<'a> {
    if tool::has_subcommand(workspace, "nextest") {
        all(workspace).args(["--filterset", tests])
    } else {
        workspace.cargo().args(["test", "--package", package, "--all-features", "--tests", "--no-fail-fast"])
    }
}
