//! Layers that can be taken out: `idem-core` builds without each of them, and its tests pass, over
//! memory.
//!
//! It is tried in a copy of the tree. Out go the layer's folder, its line in `layers/mod.rs`, what
//! is exported again of it, and the tests that use it.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use xshell::cmd;

use crate::workspace::Workspace;

/// A layer, and the modules of `idem-core/tests/core` that use it.
struct Layer {
    name: &'static str,
    tests: &'static [&'static str],
}

const LAYERS: [Layer; 6] = [
    Layer {
        name: "steps",
        tests: &["steps"],
    },
    Layer {
        name: "locks",
        tests: &["durations"],
    },
    Layer {
        name: "tokens",
        tests: &["durations", "face"],
    },
    Layer {
        name: "encryption",
        tests: &[],
    },
    Layer {
        name: "cache",
        tests: &[],
    },
    Layer {
        name: "ops",
        tests: &["endings", "hold", "opentelemetry", "steps", "transitions"],
    },
];

/// The files that export again what layers have.
const EXPORTS: [&str; 2] = ["lib.rs", "store/mod.rs"];

/// Tries each layer, or those named.
pub(crate) fn check(workspace: &Workspace, only: &[String]) -> Result<()> {
    if let Some(unknown) = only
        .iter()
        .find(|name| LAYERS.iter().all(|layer| layer.name != **name))
    {
        let names: Vec<_> = LAYERS.iter().map(|layer| layer.name).collect();
        bail!("`{unknown}` is none of {}", names.join(", "));
    }
    // One run shows every failure.
    let mut failed = Vec::new();
    for layer in LAYERS {
        let is_wanted = only.is_empty() || only.iter().any(|name| name == layer.name);
        if is_wanted && let Err(error) = try_without(workspace, &layer) {
            failed.push(format!("without `{}`: {error:#}", layer.name));
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}

fn try_without(workspace: &Workspace, layer: &Layer) -> Result<()> {
    println!("idem-core without its layer `{}`", layer.name);
    let shell = workspace.shell();
    let target = workspace.target_dir()?.join("without");
    let temp = shell.create_temp_dir()?;
    let files = cmd!(
        shell,
        "git ls-files --cached --others --exclude-standard --deduplicate"
    );
    for file in files.quiet().read()?.lines() {
        // One that was moved is still in the index.
        if shell.path_exists(file) {
            let copy = temp.path().join(file);
            shell.create_dir(copy.parent().context("a file is in a folder")?)?;
            shell.copy_file(file, copy)?;
        }
    }
    take_out(&temp.path().join("idem-core"), layer)?;
    let _in_copy = shell.push_dir(temp.path());
    let test = workspace
        .cargo()
        .args(["test", "-p", "idem-core", "--all-features", "--lib"])
        .args(["--test", "core", "--target-dir"])
        .arg(&target);
    Ok(test.run()?)
}

/// Takes a layer out of the package in this folder.
fn take_out(package: &Path, layer: &Layer) -> Result<()> {
    let source = package.join("src");
    let module = source.join("layers").join(layer.name);
    if module.is_dir() {
        fs::remove_dir_all(module)?;
    } else {
        let file = module.with_extension("rs");
        fs::remove_file(&file).with_context(|| format!("there is no {}", file.display()))?;
    }
    edit(&source.join("layers/mod.rs"), |text| {
        without_module(text, layer.name)
    })?;
    let names = exported(&fs::read_to_string(source.join("lib.rs"))?, layer.name);
    for file in EXPORTS {
        edit(&source.join(file), |text| {
            without_exports(text, layer.name, &names)
        })?;
    }
    edit(&package.join("tests/core/main.rs"), |text| {
        let tests = layer.tests.iter();
        tests.fold(text.to_owned(), |text, test| without_module(&text, test))
    })
}

fn edit(path: &Path, change: impl FnOnce(&str) -> String) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(fs::write(path, change(&text))?)
}

/// Takes a module's declaration out, and the attribute before it.
fn without_module(text: &str, name: &str) -> String {
    let declaration = format!("mod {name};");
    let mut kept: Vec<&str> = Vec::new();
    for line in text.lines() {
        let is_it = line
            .strip_suffix(&declaration)
            .is_some_and(|before| before.is_empty() || before.starts_with("pub"));
        if !is_it {
            kept.push(line);
        } else if kept.last().is_some_and(|line| line.starts_with("#[cfg")) {
            kept.pop();
        }
    }
    kept.join("\n") + "\n"
}

/// The names that are exported again of a layer.
fn exported(text: &str, layer: &str) -> Vec<String> {
    let mut names = Vec::new();
    for statement in exports(text).filter(|statement| is_of(statement, layer)) {
        let listed = match statement.split_once('{') {
            Some((_, list)) => list,
            None => statement.rsplit("::").next().unwrap_or_default(),
        };
        names.extend(words(listed).map(str::to_owned));
    }
    names
}

/// Takes out what is exported again of a layer, and its names where they are exported once more.
fn without_exports(text: &str, layer: &str, names: &[String]) -> String {
    let mut left = text.to_owned();
    for statement in exports(text) {
        if is_of(statement, layer) {
            let cfg = left
                .find(statement)
                .and_then(|at| left[..at].trim_end().rsplit('\n').next())
                .filter(|line| line.trim_start().starts_with("#[cfg"))
                .map_or_else(String::new, |line| format!("{line}\n"));
            left = left.replacen(&format!("{cfg}{statement}"), "", 1);
        } else if let Some((path, list)) = statement.split_once('{') {
            let kept: Vec<_> = words(list)
                .filter(|word| !names.iter().any(|name| name == word))
                .collect();
            let kept = format!("{path}{{{}}};", kept.join(", "));
            left = left.replacen(statement, &kept, 1);
        }
    }
    left
}

/// The statements that export something again, up to their semicolons.
fn exports(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("pub use ").map(|(at, _)| {
        let rest = &text[at..];
        rest.split_inclusive(';').next().unwrap_or(rest)
    })
}

fn is_of(statement: &str, layer: &str) -> bool {
    statement.starts_with(&format!("pub use crate::layers::{layer}::"))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|sign: char| !sign.is_alphanumeric() && sign != '_')
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "\
        mod layers;\n\
        #[cfg(feature = \"two\")]\n\
        pub use crate::layers::two::{One, Other};\n\
        pub use crate::layers::twofold::One as Kept;\n\
        pub use crate::bounds::{\n    Other, Stays,\n};\n\
        pub mod bounds {\n    pub use crate::layers::two::inside::Third;\n}\n";

    #[test]
    fn a_layer_leaves_with_its_attribute_and_the_names_that_are_exported_of_it() {
        let names = exported(LIB, "two");
        assert_eq!(names, ["One", "Other", "Third"]);
        assert_eq!(
            without_exports(LIB, "two", &names).replace("\n\n", "\n"),
            "mod layers;\n\
            pub use crate::layers::twofold::One as Kept;\n\
            pub use crate::bounds::{Stays};\n\
            pub mod bounds {\n    \n}\n"
        );
    }

    #[test]
    fn a_module_leaves_with_its_attribute_and_what_only_ends_so_stays() {
        let text = "#[cfg(feature = \"b\")]\npub(crate) mod b;\n// no mod b;\n#[cfg(c)]\nmod c;\n";
        assert_eq!(
            without_module(text, "b"),
            "// no mod b;\n#[cfg(c)]\nmod c;\n"
        );
    }
}
