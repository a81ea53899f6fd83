//! The golden files of the UI tests: what the compiler says about each misuse of the macros.

use anyhow::{Context, Result, bail};
use xshell::cmd;

use crate::workspace::Workspace;

/// The compiler that writes the golden files. Messages change from one compiler to the next, so the
/// UI test reads the same file and fails on any other. It is not the `rust-version` of the
/// packages, which may be older.
const PINNED: &str = include_str!("../../../tests/ui/RUST_VERSION").trim_ascii_end();

pub(crate) fn bless(workspace: &Workspace) -> Result<()> {
    let said = cmd!(workspace.shell(), "rustc --version").quiet().read()?;
    let version = said
        .split_whitespace()
        .nth(1)
        .with_context(|| format!("cannot read the version in `{said}`"))?;
    if !is_pinned(version) {
        bail!(
            "golden files are written with rustc {PINNED}, and this is {version}: run `cargo \
             +{PINNED} xtask bless`"
        );
    }
    workspace
        .cargo()
        .args(["test", "-p", "idem-ui"])
        .env("TRYBUILD", "overwrite")
        .run()?;
    // What is generated.
    workspace
        .cargo()
        .args(["test", "-p", "idem-macros", "snapshots"])
        .env("UPDATE_EXPECT", "1")
        .run()?;
    println!("Read the changes before you commit them: git diff tests/ui idem-macros/snapshots");
    Ok(())
}

fn is_pinned(version: &str) -> bool {
    version
        .strip_prefix(PINNED)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_patch_release_of_the_pinned_compiler_is_taken_and_no_other() {
        assert!(is_pinned(PINNED));
        assert!(is_pinned(&format!("{PINNED}.1")));
        assert!(!is_pinned(&format!("{PINNED}0.0")));
        assert!(!is_pinned("1.0.0"));
    }
}
