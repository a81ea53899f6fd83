//! The messages about mistakes in the attribute: golden files of the pinned compiler.
//! `cargo xtask bless` rewrites them.

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The compiler whose messages the golden files hold. It is not the `rust-version` of the packages, which may be older.
const PINNED: &str = include_str!("RUST_VERSION").trim_ascii_end();

/// The golden files hold at least so many mistakes.
const MISTAKES: usize = 500;

/// The folders of cases, one for each subject. What must compile, in `pass`, is compiled by `tests/macros/main.rs`: here it would build
/// everything a second time.
fn subjects() -> Vec<PathBuf> {
    let entries = fs::read_dir(".")
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.is_dir() && !path.ends_with("pass"))
        .collect()
}

#[test]
fn ui_mistakes_are_said_at_the_token_in_plain_words() {
    let version = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
        .arg("--version")
        .output()
        .unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    assert!(
        version.starts_with(&format!("rustc {PINNED}.")),
        "the golden files hold the messages of rustc {PINNED}, and this is {version}; run the UI tests with that toolchain"
    );
    let cases = trybuild::TestCases::new();
    for subject in subjects() {
        cases.compile_fail(subject.join("*.rs"));
    }
}

/// The golden files, with their texts.
fn golden() -> impl Iterator<Item = (PathBuf, String)> {
    let is_golden = |path: &Path| {
        path.extension()
            .is_some_and(|extension| extension == "stderr")
    };
    let files = subjects()
        .into_iter()
        .flat_map(|subject| fs::read_dir(subject).unwrap());
    let golden = files
        .map(|file| file.unwrap().path())
        .filter(move |path| is_golden(path));
    golden.map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
}

#[test]
fn no_message_points_into_the_standard_library() {
    // If the component rust-src is installed, rustc also prints the line that it points at.
    for (path, text) in golden() {
        assert!(
            !text.contains("--> $RUST"),
            "write the case so that {} comes out the same everywhere",
            path.display()
        );
    }
}

#[test]
fn no_mistake_is_left_out_unknowingly() {
    let mistakes: usize = golden()
        .map(|(_, text)| {
            text.lines()
                .filter(|line| line.starts_with("error"))
                .count()
        })
        .sum();
    assert!(
        mistakes >= MISTAKES,
        "the golden files hold {mistakes} mistakes, not {MISTAKES} or more"
    );
}
