//! The alert rules for Prometheus, and their tests.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};
use xshell::{Shell, cmd};

use crate::tool;
use crate::workspace::Workspace;

const FOLDER: &str = "docs/dashboards";

/// Why the rules were not checked.
static LEFT_OUT: OnceLock<String> = OnceLock::new();

/// Checks the rules by `promtool`. Where there is none, `full` unpacks it from Debian's package,
/// and otherwise says so; [`remind`] will once more.
pub(crate) fn check(workspace: &Workspace, full: bool) -> Result<()> {
    let shell = workspace.shell();
    let promtool = match found(workspace)? {
        Some(promtool) => promtool,
        None if full && tool::exists("apt-get") => unpacked(shell, &folder(workspace)?)?,
        None => {
            LEFT_OUT.get_or_init(|| {
                "there is no `promtool` here; `ci --full` unpacks it on Debian".to_owned()
            });
            remind();
            return Ok(());
        }
    };
    cmd!(shell, "{promtool} check rules {FOLDER}/alerts.yml").run()?;
    cmd!(shell, "{promtool} test rules {FOLDER}/alerts.test.yml").run()?;
    Ok(())
}

fn folder(workspace: &Workspace) -> Result<PathBuf> {
    Ok(workspace.target_dir()?.join("prometheus"))
}

/// The program in `PATH`, or as it was unpacked before.
fn found(workspace: &Workspace) -> Result<Option<PathBuf>> {
    if tool::exists("promtool") {
        return Ok(Some("promtool".into()));
    }
    Ok(Some(program(&folder(workspace)?)).filter(|program| program.is_file()))
}

fn program(folder: &Path) -> PathBuf {
    folder.join("usr/bin/promtool")
}

/// Takes the program out of its package. To install that would start a server.
fn unpacked(shell: &Shell, folder: &Path) -> Result<PathBuf> {
    println!(
        "promtool is not installed: unpacking it from Debian's package prometheus into {}",
        folder.display()
    );
    shell.create_dir(folder)?;
    {
        let _inside = shell.push_dir(folder);
        cmd!(shell, "apt-get download prometheus").run()?;
    }
    let mut files = shell.read_dir(folder)?.into_iter();
    let package = files.find(|file| file.extension().is_some_and(|extension| extension == "deb"));
    let package = package.context("apt-get has downloaded no package")?;
    cmd!(shell, "dpkg-deb --extract {package} {folder}").run()?;
    shell.remove_path(&package)?;
    let program = program(folder);
    ensure!(program.is_file(), "the package prometheus has no promtool");
    Ok(program)
}

/// The last word of a chore that has left the check out.
pub(crate) fn remind() {
    if let Some(why) = LEFT_OUT.get() {
        let line = "!".repeat(100);
        println!("\n{line}\n!!! NOT CHECKED: the alert rules in {FOLDER} ({why}).\n{line}");
    }
}
