//! Programs that the chores need and a machine may not have.

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

/// Makes sure of a program, and installs its package if there is none.
pub(crate) fn ensure(shell: &Shell, package: Package, why: &str) -> Result<()> {
    if exists(package.program) {
        Ok(())
    } else {
        install(shell, package, why)
    }
}

/// The same for a program that some systems keep in a directory of its own, outside of `PATH`.
pub(crate) fn ensure_at(shell: &Shell, package: Package, why: &str, directory: &str) -> Result<()> {
    let is_there = || exists(package.program) || fs::metadata(directory).is_ok();
    if is_there() {
        return Ok(());
    }
    // Its check of `PATH` does not see the directory.
    let installed = install(shell, package, why);
    if is_there() { Ok(()) } else { installed }
}

/// Installs a package of the operating system. `why` ends the line that says so.
fn install(shell: &Shell, package: Package, why: &str) -> Result<()> {
    let Package { program, apt, brew } = package;
    if exists("apt-get") {
        println!("{program} is not installed: installing {apt} with apt-get, because {why}");
        update(shell);
        apt_get(shell, &["install", "--yes", "--no-install-recommends", apt])?;
    } else if cfg!(target_os = "macos") && exists("brew") {
        println!("{program} is not installed: installing {brew} with brew, because {why}");
        cmd!(shell, "brew install {brew}").run()?;
    } else {
        bail!(
            "{program} is not in PATH, and there is neither apt-get nor brew to install it with: \
             install it, because {why}"
        );
    }
    if !exists(program) {
        bail!("{program} was installed but is not in PATH");
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
