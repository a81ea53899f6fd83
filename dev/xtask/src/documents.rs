//! Checks of the written pages.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use xshell::cmd;

use crate::guides;
use crate::workspace::{Workspace, rust_files};

const DECISIONS: &str = "docs/decisions";
const INDEX: &str = "README.md";
const GUIDES: &str = "src/docs";
/// The page of the crate itself, which is not a guide.
const FRONT: &str = "front.md";
const TEST_COMMAND: &str = "cargo xtask test";
/// Pages that name files of the code, besides the decisions.
const MAPS: [&str; 3] = ["ARCHITECTURE.md", "docs/proof.md", "docs/benchmarks.md"];

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

/// Each Rust file that the pages about the code name exists.
fn check_paths(workspace: &Workspace) -> Result<()> {
    let root = workspace.shell().current_dir();
    let mut files = Vec::new();
    rust_files(&root, &mut files)?;
    let mut pages: Vec<PathBuf> = MAPS.iter().map(PathBuf::from).collect();
    pages.extend(workspace.shell().read_dir(DECISIONS)?);
    let mut missing = Vec::new();
    for page in pages {
        let text = workspace.shell().read_file(&page)?;
        for named in rust_paths(&text) {
            // `ends_with` compares whole parts: `src/glib.rs` does not end with `lib.rs`.
            if !files.iter().any(|file| file.ends_with(named)) {
                let page = page.strip_prefix(&root).unwrap_or(&page).display();
                missing.push(format!("{page}: {named}"));
            }
        }
    }
    if !missing.is_empty() {
        bail!(
            "these pages name files that are gone:\n  {}",
            missing.join("\n  ")
        );
    }
    Ok(())
}

/// The code spans of a page that are the path of a Rust file.
fn rust_paths(page: &str) -> impl Iterator<Item = &str> {
    let is_path = |span: &&str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_-.".contains(c);
        let named = span.strip_suffix(".rs");
        named.is_some_and(|path| !path.is_empty() && path.chars().all(is_plain))
    };
    page.split('`').skip(1).step_by(2).filter(is_path)
}

/// The README says how to run the tests.
pub(crate) fn check_readme(workspace: &Workspace) -> Result<()> {
    let readme = workspace.shell().read_file("README.md")?;
    ensure!(
        readme.contains(TEST_COMMAND),
        "README.md does not say `{TEST_COMMAND}`"
    );
    check_guides(workspace)?;
    guides::check(workspace)?;
    check_paths(workspace)
}

/// Each guide has a line in the index beside it, and a module with a line in the table of `guide`.
fn check_guides(workspace: &Workspace) -> Result<()> {
    let index = workspace.shell().read_file(format!("{GUIDES}/{INDEX}"))?;
    let facade = workspace.shell().read_file("src/lib.rs")?;
    for file in workspace.shell().read_dir(GUIDES)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if name == INDEX || name == FRONT {
            continue;
        }
        let missing = missing_of_guide(&name, &index, &facade);
        ensure!(
            missing.is_none(),
            "{GUIDES}/{name}: {}",
            missing.unwrap_or_default()
        );
    }
    Ok(())
}

/// The places that should name a guide and do not.
fn missing_of_guide(file: &str, index: &str, facade: &str) -> Option<String> {
    let module = file.strip_suffix(".md").unwrap_or(file);
    let in_index = format!("]({file})");
    let in_table = format!("[`{module}`](guide::{module})");
    let page = format!("include_str!(\"docs/{file}\")");
    if !index.contains(&in_index) {
        return Some(format!("{GUIDES}/{INDEX} has no `{in_index}`"));
    }
    let in_facade = [in_table, page];
    let missing = in_facade.iter().find(|named| !facade.contains(*named))?;
    Some(format!("src/lib.rs has no `{missing}`"))
}

/// Each file in `tests` and in `examples` that is a target of its own is named in the manifest
/// there, and each other file of tests is a module. Cargo finds none by itself there.
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
    check_modules(workspace)
}

/// The folders of test programs.
const TESTS: [&str; 4] = [
    "tests/**.rs",
    "idem-*/tests/**.rs",
    "examples/tests/**.rs",
    "dev/*/tests/**.rs",
];

/// Each file of a test program is a module of one. The compiler does not mention a file that no
/// `mod` names, and its tests would be lost.
fn check_modules(workspace: &Workspace) -> Result<()> {
    let shell = workspace.shell();
    let list = cmd!(shell, "git ls-files --cached --others --exclude-standard");
    let list = list.args(TESTS).quiet().read()?;
    // The UI tests are programs that the compiler refuses.
    let files: Vec<_> = list
        .lines()
        .filter(|file| !file.starts_with("tests/ui/") && Path::new(file).exists())
        .collect();
    let sources = files.iter().map(|file| shell.read_file(file));
    let sources = sources.collect::<Result<Vec<_>, _>>()?.concat();
    for file in &files {
        let Some(module) = module_name(Path::new(file)) else {
            continue;
        };
        ensure!(
            sources.contains(&format!("mod {module};")),
            "{file} is never built: no `mod {module};` names it"
        );
    }
    println!("{} files of tests are modules of a program", files.len());
    Ok(())
}

/// The module that a file is, unless it is a program.
fn module_name(file: &Path) -> Option<&str> {
    match file.file_stem()?.to_str()? {
        "main" => None,
        // A file in the folder itself is a program.
        _ if file.parent()?.ends_with("tests") => None,
        "mod" => file.parent()?.file_name()?.to_str(),
        name => Some(name),
    }
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
    use super::{decision_number, missing_of_guide, names_target, rust_paths};

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
    fn a_file_is_named_by_its_module_and_a_program_by_none() {
        let name = |file| super::module_name(std::path::Path::new(file));
        assert_eq!(name("tests/engine/edges/mod.rs"), Some("edges"));
        assert_eq!(name("tests/engine/flights.rs"), Some("flights"));
        assert_eq!(name("tests/engine/main.rs"), None);
        assert_eq!(name("idem-redis/tests/conformance.rs"), None);
    }

    #[test]
    fn a_guide_is_named_in_the_index_the_table_and_the_modules() {
        let index = "| [steps](steps.md) |";
        let table = "/// | [`steps`](guide::steps) | .. |\n";
        let page = "#[doc = include_str!(\"docs/steps.md\")]";
        let whole = format!("{table}{page}");
        assert_eq!(missing_of_guide("steps.md", index, &whole), None);
        let cases = [
            ("", whole.as_str(), "README.md"),
            (index, page, "guide::steps"),
            (index, table, "include_str!"),
        ];
        for (index, facade, named) in cases {
            let missing = missing_of_guide("steps.md", index, facade);
            assert!(missing.is_some_and(|missing| missing.contains(named)));
        }
    }

    #[test]
    fn a_path_is_a_code_span_that_ends_in_rs() {
        let page = "See `call/start.rs` and `lib.rs`, not start.rs, `.rs`, `cargo test` or `*.rs`.";
        assert_eq!(
            rust_paths(page).collect::<Vec<_>>(),
            ["call/start.rs", "lib.rs"]
        );
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
