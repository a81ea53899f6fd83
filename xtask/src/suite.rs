//! The tests of the workspace.

use anyhow::Result;

use crate::steps::Steps;
use crate::workspace::Workspace;
use crate::{browser, redis, runner, tool, valkey};

const OPENSSL: tool::Package = tool::Package { program: "openssl", apt: "openssl", brew: "openssl" };

const MARIADB: tool::Package = tool::Package { program: "mariadb-install-db", apt: "mariadb-server", brew: "mariadb" };
const POSTGRES: tool::Package = tool::Package { program: "postgres", apt: "postgresql", brew: "postgresql" };

/// `cargo xtask test`, which is also CI's test step.
pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<()> {
    redis::ensure(workspace.shell())?;
    tool::ensure(workspace.shell(), OPENSSL, "the test of TLS connections makes its certificates with it")?;
    tool::ensure(workspace.shell(), MARIADB, "the MySQL store is tested against a real server")?;
    // Debian keeps its programs out of `PATH`.
    let debian = "/usr/lib/postgresql";
    tool::ensure_at(workspace.shell(), POSTGRES, "the PostgreSQL store is tested against a real server", debian)?;
    let left_out: &[&str] = if browser::is_there(workspace.shell()) { &[] } else { &["--exclude", browser::PACKAGE] };
    let mut steps = Steps::of("test");
    steps.run("tests", "unit, integration and UI tests, all features", || tests(workspace, left_out, args));
    if args.is_empty() {
        // Also after a failure: one run shows everything.
        steps.run("doctests", "README, guides and API docs", || {
            workspace.cargo().args(["test", "--workspace", "--all-features", "--doc"]).run()?;
            Ok(())
        });
        steps.run("valkey", "the Redis store on a real Valkey", || valkey::test(workspace));
    } else {
        println!("The doctests and the tests on Valkey are left out, because arguments were given.");
    }
    steps.finish()
}

/// `idem-core/src/explored.rs`. Its locks are those of the explorer, so it is built apart from
/// everything else.
pub(crate) fn explore(workspace: &Workspace) -> Result<()> {
    let cargo =
        workspace.cargo().args(["test", "-p", "idem-core", "--lib", "--target-dir", "target/explore", "explored"]);
    cargo.env("RUSTFLAGS", "--cfg shuttle").run()?;
    Ok(())
}

fn tests(workspace: &Workspace, left_out: &[&str], args: &[String]) -> Result<()> {
    runner::all(workspace).args(left_out).args(args).run()?;
    Ok(())
}
