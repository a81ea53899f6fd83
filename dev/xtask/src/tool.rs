//! Programs that the chores need and a machine may not have.

use std::path::Path;
use std::sync::Once;
use std::{env, fs};

use anyhow::{Context, Result, bail};
use xshell::{Shell, cmd};

use crate::workspace::Workspace;

/// Whether there is a program of this name in `PATH`.
pub(crate) fn exists(program: &str) -> bool {
    let Some(path) = env::var_os("PATH") else {
        return false;
    };
    env::split_paths(&path)
        .any(|dir| fs::metadata(dir.join(program)).is_ok_and(|file| file.is_file()))
}

/// Whether cargo knows this subcommand. Rustup leaves a stub where a component is missing, so the
/// program is asked.
pub(crate) fn has_subcommand(workspace: &Workspace, subcommand: &str) -> bool {
    let asked = workspace
        .cargo()
        .args([subcommand, "--version"])
        .quiet()
        .ignore_status()
        .output();
    asked.is_ok_and(|output| output.status.success())
}

/// Makes sure of a component of the toolchain, such as `clippy`.
pub(crate) fn ensure_component(
    workspace: &Workspace,
    component: &str,
    subcommand: &str,
) -> Result<()> {
    if has_subcommand(workspace, subcommand) {
        return Ok(());
    }
    if !exists("rustup") {
        bail!(
            "`cargo {subcommand}` is missing: install the component {component} of the Rust \
             toolchain"
        );
    }
    println!("`cargo {subcommand}` is missing: adding the component {component} with rustup");
    cmd!(workspace.shell(), "rustup component add {component}").run()?;
    Ok(())
}

/// Makes sure of programs, and installs the packages of those that are missing, all at once.
pub(crate) fn ensure(shell: &Shell, packages: &[Package]) -> Result<()> {
    let missing = || packages.iter().filter(|package| !package.is_there());
    let names: Vec<_> = missing().map(|package| package.program).collect();
    if names.is_empty() {
        return Ok(());
    }
    let names = names.join(", ");
    if exists("apt-get") {
        let apt: Vec<_> = missing().map(|package| package.apt).collect();
        println!(
            "not installed: {names}. Installing with apt-get: {}",
            apt.join(", ")
        );
        update(shell);
        let install = ["install", "--yes", "--no-install-recommends", "--quiet=2"];
        apt_get(shell, &[&install, &*apt].concat())?;
    } else if cfg!(target_os = "macos") && exists("brew") {
        let brew: Vec<_> = missing().map(|package| package.brew).collect();
        println!(
            "not installed: {names}. Installing with brew: {}",
            brew.join(", ")
        );
        cmd!(shell, "brew install {brew...}").run()?;
    } else {
        bail!(
            "not in PATH: {names}. The tests run against real servers, and there is neither \
             apt-get nor brew to install them with: install them by hand"
        );
    }
    let missing: Vec<_> = missing().map(|package| package.program).collect();
    if !missing.is_empty() {
        bail!("installed, but not in PATH: {}", missing.join(", "));
    }
    Ok(())
}

/// Has apt read what there is, once for each run.
fn update(shell: &Shell) {
    static UPDATED: Once = Once::new();
    UPDATED.call_once(|| {
        if let Err(error) = apt_get(shell, &["update"]) {
            // An unreachable source need not be the one that has the package.
            println!("apt-get update failed, going on with the lists that are here: {error:#}");
        }
    });
}

/// A program, and the packages that bring it.
#[derive(Clone, Copy)]
pub(crate) struct Package {
    pub(crate) program: &'static str,
    pub(crate) apt: &'static str,
    pub(crate) brew: &'static str,
    /// Where some systems keep the program, outside of `PATH`.
    pub(crate) elsewhere: Option<&'static str>,
}

impl Package {
    fn is_there(&self) -> bool {
        let elsewhere = self.elsewhere.is_some_and(|path| Path::new(path).exists());
        exists(self.program) || elsewhere
    }
}

fn apt_get(shell: &Shell, args: &[&str]) -> Result<()> {
    let user = cmd!(shell, "id -u")
        .quiet()
        .read()
        .context("cannot ask who runs this")?;
    // `env`, because sudo does not hand the environment on.
    let needs_sudo = user.trim() != "0";
    if needs_sudo && !exists("sudo") {
        bail!(
            "apt-get needs root, and there is no sudo: run `apt-get {}` as root",
            args.join(" ")
        );
    }
    let env = if needs_sudo {
        cmd!(shell, "sudo env")
    } else {
        cmd!(shell, "env")
    };
    env.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"])
        .args(args)
        .run()?;
    Ok(())
}
