//! What the attribute says of mistakes: golden messages of the pinned compiler. `cargo xtask bless` writes them anew.

#![allow(clippy::unwrap_used, missing_docs)]

use std::process::Command;

/// The compiler whose messages the golden files hold.
const PINNED: &str = env!("CARGO_PKG_RUST_VERSION");

#[test]
fn ui_mistakes_are_said_at_the_token_in_plain_words() {
    let version = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into())).arg("--version").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    assert!(
        version.starts_with(&format!("rustc {PINNED}.")),
        "the golden files hold the messages of rustc {PINNED}, and this is {version}; run the UI tests with that toolchain"
    );
    let cases = trybuild::TestCases::new();
    // What must compile, in `tests/ui/pass`, is compiled by `tests/attribute.rs`: here it would build everything a second time.
    for subject in ["options", "signature", "types", "derive"] {
        cases.compile_fail(format!("tests/ui/{subject}/*.rs"));
    }
}
