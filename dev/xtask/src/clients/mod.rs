//! Clients that people use, in Python and Node, against the example `charges`. Where their packages
//! are not to be had, that is said aloud.

mod faulty;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use xshell::{Cmd, Shell, cmd};

use self::faulty::{Fault, Faulty};
use crate::workspace::Workspace;

/// The scripts, and which versions of the clients they use.
const SCRIPTS: &str = "tests/clients";

/// Why some tests were left out: a line for each language.
static LEFT_OUT: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Runs the scripts of both languages at once. Without their packages, says so, and [`remind`] will
/// once more.
pub(crate) fn test(workspace: &Workspace) -> Result<()> {
    let shell = workspace.shell();
    let folder = workspace.target_dir()?.join("clients");
    shell.create_dir(&folder)?;
    let mut scripts = Vec::new();
    scripts.extend(python(shell, &folder.join("python")));
    scripts.extend(node(shell, &folder.join("node")));
    if scripts.is_empty() {
        return Ok(());
    }
    let programs = workspace.programs(&[
        "-p",
        "idem-examples",
        "--features",
        "http",
        "--example",
        "charges",
    ])?;
    let charges = programs
        .get("charges")
        .context("cargo has built no example charges")?;
    let server = Server::start(charges, &[])?;
    // Its duplicates get 409 while the first request runs.
    let impatient = Server::start(charges, &["--wait", "0"])?;
    let faulty: Vec<_> = Fault::ALL
        .iter()
        .map(|fault| Faulty::start(&server.address, *fault))
        .collect::<Result<_>>()?;
    let running = scripts.into_iter().map(|(language, mut command)| {
        command
            .current_dir(shell.current_dir())
            .env("NO_PROXY", "127.0.0.1")
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("IMPATIENT", format!("http://{}", impatient.address));
        for faulty in &faulty {
            command.env(
                faulty.fault().variable(),
                format!("http://{}", faulty.address()),
            );
        }
        Ok((
            language,
            command
                .spawn()
                .with_context(|| format!("cannot start the script of {language}"))?,
        ))
    });
    // All are started before one is waited for.
    let running = running.collect::<Result<Vec<_>>>()?;
    let mut failed = Vec::new();
    for (language, mut script) in running {
        if !script.wait()?.success() {
            failed.push(language);
        }
    }
    ensure!(failed.is_empty(), "clients failed: {}", failed.join(", "));
    Ok(())
}

/// The script in Python, if its packages are there.
fn python(shell: &Shell, folder: &Path) -> Option<(&'static str, Command)> {
    let install = |folder: &Path| {
        let pip = cmd!(
            shell,
            "python3 -m pip install --quiet --no-warn-conflicts --upgrade --target {folder}"
        );
        let packages = format!("{SCRIPTS}/requirements.txt");
        vec![pip.args(["--root-user-action=ignore", "--requirement", &packages])]
    };
    if !installed("Python", folder, SCRIPTS, "requirements.txt", install) {
        return None;
    }
    let mut command = Command::new("python3");
    command
        .arg(format!("{SCRIPTS}/python_clients.py"))
        .env("PYTHONPATH", folder);
    Some(("Python", command))
}

/// The script in Node, if its packages are there.
fn node(shell: &Shell, folder: &Path) -> Option<(&'static str, Command)> {
    let install = |folder: &Path| {
        vec![
            cmd!(shell, "cp {SCRIPTS}/package.json {folder}"),
            cmd!(
                shell,
                "npm install --silent --ignore-scripts --no-audit --no-fund --prefix {folder}"
            ),
        ]
    };
    if !installed("Node", folder, SCRIPTS, "package.json", install) {
        return None;
    }
    let mut command = Command::new("node");
    command
        .arg(format!("{SCRIPTS}/node_clients.mjs"))
        .env("NODE_CLIENTS", folder);
    Some(("Node", command))
}

/// Whether the packages of a language are there, or could be installed into `folder`.
fn installed<'a>(
    language: &str,
    folder: &Path,
    scripts: &str,
    versions: &str,
    commands: impl FnOnce(&Path) -> Vec<Cmd<'a>>,
) -> bool {
    // What is installed is known by a copy of its list of versions.
    let wanted = Path::new(scripts).join(versions);
    let mark = folder.join("installed");
    let install = || {
        let wanted = std::fs::read(&wanted)?;
        if std::fs::read(&mark).is_ok_and(|found| found == wanted) {
            return anyhow::Ok(());
        }
        println!(
            "installing the clients for {language} into {}",
            folder.display()
        );
        std::fs::create_dir_all(folder)?;
        for command in commands(folder) {
            command.quiet().run()?;
        }
        std::fs::write(&mark, wanted)?;
        Ok(())
    };
    match install() {
        Ok(()) => true,
        Err(error) => {
            leave_out(format!("{language}: {error:#}"));
            remind();
            false
        }
    }
}

/// The example, which ends with this.
struct Server {
    child: Child,
    address: String,
    /// What it prints after its address goes here: without a reader, it would end.
    _output: BufReader<ChildStdout>,
}

impl Server {
    fn start(program: &Path, arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(program)
            .args(["--port", "0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().context("the example has no output")?;
        let mut line = String::new();
        let mut output = BufReader::new(output);
        let read = output.read_line(&mut line);
        let address = line
            .trim()
            .strip_prefix("listening on http://")
            .map(str::to_owned);
        // From here on, it ends with the server.
        let server = Self {
            child,
            address: address.unwrap_or_default(),
            _output: output,
        };
        read?;
        ensure!(
            !server.address.is_empty(),
            "the example did not say where it listens, but {line:?}"
        );
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn leave_out(why: String) {
    LEFT_OUT
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(why);
}

/// The last word of a chore that has left the tests out.
pub(crate) fn remind() {
    print!(
        "{}",
        reminder(&LEFT_OUT.lock().unwrap_or_else(PoisonError::into_inner))
    );
}

/// A box that names each language that was left out, and why; empty if none was.
fn reminder(left_out: &[String]) -> String {
    if left_out.is_empty() {
        return String::new();
    }
    let line = "!".repeat(100);
    let said =
        |why: &String| format!("!!! NOT TESTED: the HTTP layer with real clients ({why}).\n");
    let all: Vec<_> = left_out.iter().map(said).collect();
    let all = all.concat();
    format!(
        "\n{line}\n{all}!!! The test needs python3 with pip, node with npm, and their \
         registries.\n{line}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_box_names_each_language_that_was_left_out() {
        assert_eq!(reminder(&[]), "");
        let text = reminder(&["Python: no pip".to_owned(), "Node: no npm".to_owned()]);
        assert_eq!(text.matches("NOT TESTED").count(), 2, "{text}");
        assert!(
            text.contains("(Python: no pip)") && text.contains("(Node: no npm)"),
            "{text}"
        );
    }
}
