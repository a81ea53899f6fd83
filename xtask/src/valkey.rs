//! A real Valkey with `SET .. IFEQ`, for the tests of the Redis store. If none is available, the
//! output says so.

use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use xshell::{Shell, cmd};

use crate::runner::{self, SERVER};
use crate::workspace::Workspace;

/// Names a Valkey that is on this machine already.
const GIVEN: &str = "IDEM_VALKEY_SERVER";
const MAKE: &str = include_str!("valkey.sh");

/// Why the tests were left out.
static LEFT_OUT: OnceLock<String> = OnceLock::new();

/// Runs the tests of the Redis store on Valkey. Without one, says so, and [`remind`] will once
/// more.
pub(crate) fn test(workspace: &Workspace, left_out: &[&str], all: bool) -> Result<()> {
    let server = match server(workspace.shell()) {
        Ok(server) => server,
        Err(error) => {
            LEFT_OUT.get_or_init(|| format!("{error:#}"));
            remind();
            return Ok(());
        }
    };
    let said = cmd!(workspace.shell(), "{server} --version").quiet().read()?;
    println!("{said}");
    let tests = if all { "package(idem-redis)" } else { "package(idem-redis) and test(compared)" };
    if !runner::has_nextest(workspace) {
        runner::of(workspace, "idem-redis", tests).env(SERVER, &server).run()?;
        return Ok(());
    }
    let tests = format!("{tests} and {}", runner::without_trials());
    runner::of(workspace, "idem-redis", &tests).env(SERVER, &server).run()?;
    runner::trials(workspace, left_out, Some("idem-redis"), Some(&server))
}

fn server(shell: &Shell) -> Result<PathBuf> {
    if let Some(given) = std::env::var_os(GIVEN) {
        return Ok(given.into());
    }
    let folder = shell.current_dir().join("target").join("valkey");
    cmd!(shell, "sh -c {MAKE} sh {folder}").quiet().ignore_stdout().run().context("no Valkey could be made")?;
    Ok(folder.join("valkey-server"))
}

/// The last word of a chore that has left the tests out.
pub(crate) fn remind() {
    if let Some(why) = LEFT_OUT.get() {
        let line = "!".repeat(100);
        println!("\n{line}\n!!! NOT TESTED: `SET .. IFEQ` on a real Valkey ({why}).");
        println!(
            "!!! Commits in one plain command were seen on an emulation alone. {GIVEN} names a valkey-server 8.1 or newer.\n{line}"
        );
    }
}
