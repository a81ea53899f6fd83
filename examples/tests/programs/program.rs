//! The programs that cargo builds, beside this one.

use std::path::{Path, PathBuf};
use std::process::Command;

/// An example, which cargo builds with the tests of its package.
pub(crate) fn example(name: &str) -> Command {
    let program = built().join("examples").join(name);
    assert!(
        program.is_file(),
        "{} is missing: build the examples, or run all tests of the package",
        program.display()
    );
    Command::new(program)
}

/// The directory of everything that cargo has built with this program.
pub(crate) fn built() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    this.parent().and_then(Path::parent).unwrap().to_owned()
}

/// Runs an example, which must end well, and returns its output.
pub(crate) fn said_by(name: &str, arguments: &[&str]) -> String {
    let ended = example(name).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(
        ended.status.success(),
        "{}: {said}\n{}",
        ended.status,
        String::from_utf8_lossy(&ended.stderr)
    );
    said
}
