//! Checks of the written pages.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::Workspace;

const DECISIONS: &str = "docs/decisions";
const INDEX: &str = "README.md";
const TEST_COMMAND: &str = "cargo xtask test";

/// Each file in `docs/decisions` has a number of its own, and a line in the index there.
pub(crate) fn check_decisions(workspace: &Workspace) -> Result<()> {
    let files = workspace
        .shell()
        .read_dir(DECISIONS)
        .with_context(|| format!("cannot read {DECISIONS}"))?;
    ensure!(!files.is_empty(), "{DECISIONS} is empty");
    let index = workspace
        .shell()
        .read_file(format!("{DECISIONS}/{INDEX}"))?;
    let mut numbers = BTreeMap::new();
    for file in files {
        let name = file
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name == INDEX {
            continue;
        }
        ensure!(
            index.contains(&format!("({name})")),
            "{DECISIONS}/{INDEX} has no line for {name}"
        );
        let Some(number) = decision_number(&name) else {
            bail!("{DECISIONS}/{name} is not named like 0001-some-title.md");
        };
        if let Some(other) = numbers.insert(number, name.clone()) {
            bail!("{DECISIONS}/{other} and {name} have the same number");
        }
    }
    println!("{} decisions", numbers.len());
    Ok(())
}

/// The README says how to run the tests.
pub(crate) fn check_readme(workspace: &Workspace) -> Result<()> {
    let readme = workspace.shell().read_file("README.md")?;
    ensure!(
        readme.contains(TEST_COMMAND),
        "README.md does not say `{TEST_COMMAND}`"
    );
    Ok(())
}

/// Each file in `tests` and in `examples` that is a target of its own is named in the manifest
/// beside it. Cargo finds none by itself there.
pub(crate) fn check_targets(workspace: &Workspace) -> Result<()> {
    for (folder, table) in [("tests", "[[test]]"), ("examples", "[[example]]")] {
        let manifest = workspace
            .shell()
            .read_file(format!("{folder}/Cargo.toml"))?;
        let mut targets = 0;
        for path in workspace.shell().read_dir(folder)? {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let target = if path.join("main.rs").is_file() {
                format!("{name}/main.rs")
            } else {
                name
            };
            if Path::new(&target)
                .extension()
                .is_some_and(|extension| extension == "rs")
            {
                ensure!(
                    names_target(&manifest, &target),
                    "{folder}/{target} is never built: {folder}/Cargo.toml has no `{table}` with \
                     `path = \"{target}\"`"
                );
                targets += 1;
            }
        }
        println!("{targets} targets in {folder}");
    }
    Ok(())
}

fn names_target(manifest: &str, target: &str) -> bool {
    let path = format!("path = \"{target}\"");
    manifest.lines().any(|line| line == path)
}

fn decision_number(name: &str) -> Option<u32> {
    let (number, title) = name.strip_suffix(".md")?.split_once('-')?;
    let word = |part: &str| {
        !part.is_empty()
            && part
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    let well_formed = number.len() == 4
        && number.chars().all(|c| c.is_ascii_digit())
        && title.split('-').all(word);
    if well_formed {
        number.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{decision_number, names_target};

    #[test]
    fn a_test_is_named_by_its_whole_path() {
        let manifests = "[[test]]\npath = \"edges.rs\"\npath = \"deaths/main.rs\"\n";
        for named in ["edges.rs", "deaths/main.rs"] {
            assert!(names_target(manifests, named), "{named}");
        }
        assert!(!names_target(manifests, "dges.rs"));
        assert!(!names_target(manifests, "flights.rs"));
    }

    #[test]
    fn a_decision_is_named_by_four_digits_and_words() {
        assert_eq!(decision_number("0006-msrv.md"), Some(6));
        assert_eq!(decision_number("0012-one-round-trip.md"), Some(12));
        for wrong in [
            "6-msrv.md",
            "0006.md",
            "0006-.md",
            "0006-msrv.txt",
            "0006-MSRV.md",
            "msrv.md",
            "+006-msrv.md",
        ] {
            assert_eq!(decision_number(wrong), None, "{wrong}");
        }
    }
}
