//! Lines of code: without blanks, comments, docs and tests.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::workspace::rust_files;

/// The page that names the files to read first.
pub(crate) const READING: &str = "docs/reading.md";

/// Counts the code of a package, whose sources are in this folder.
pub(crate) fn of_package(source: &Path) -> Result<usize> {
    let mut files = Vec::new();
    rust_files(source, &mut files)?;
    let is_test = |file: &&PathBuf| {
        let mut names = file.strip_prefix(source).unwrap_or(file).iter();
        names.any(|name| {
            ["tests", "tests.rs", "explored.rs"]
                .iter()
                .any(|test| name == *test)
        })
    };
    files
        .iter()
        .filter(|file| !is_test(file))
        .map(|file| of_file(file))
        .sum()
}

/// Counts the code of the files to which the page links.
pub(crate) fn of_page(root: &Path) -> Result<usize> {
    let page = root.join(READING);
    let text = fs::read_to_string(&page).with_context(|| format!("cannot read {READING}"))?;
    let files: BTreeSet<_> = links(&text)
        .map(Path::new)
        .filter(|link| link.extension().is_some_and(|extension| extension == "rs"))
        .collect();
    let folder = page.parent().unwrap_or(root);
    files.iter().map(|file| of_file(&folder.join(file))).sum()
}

/// The addresses to which a page links.
fn links(page: &str) -> impl Iterator<Item = &str> {
    page.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(link, _)| link)
}

fn of_file(file: &Path) -> Result<usize> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(count(&text))
}

/// Counts the lines of code of a formatted file.
fn count(text: &str) -> usize {
    let mut lines = 0;
    let mut is_for_tests = false;
    let mut rest = text.lines();
    while let Some(line) = rest.next() {
        let code = line.trim_start();
        let is_module = code.trim_start_matches("pub(crate) ").starts_with("mod ");
        if is_for_tests && is_module && code.ends_with('{') {
            // The line that ends the module is indented as its first one.
            let end = format!("{}}}", &line[..line.len() - code.len()]);
            rest.by_ref().find(|line| *line == end);
            is_for_tests = false;
            continue;
        }
        let is_gate = code.starts_with("#[cfg(test") || code.starts_with("#[cfg(all(test");
        is_for_tests = is_gate || (is_for_tests && code.starts_with('#'));
        if !code.is_empty() && !code.starts_with("//") {
            lines += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_comments_docs_and_tests_are_no_code() {
        let text = "//! Docs.\n\nuse a::b;\n\n/// Docs.\nfn c() {\n    // Why.\n    d();\n}\n";
        assert_eq!(count(text), 4);
        let tests = "#[cfg(test)]\n#[allow(clippy::e)]\nmod tests {\n    fn f() {\n    }\n}\n";
        // The attributes of the module are counted.
        assert_eq!(count(&format!("{text}{tests}fn g() {{}}\n")), 7);
        assert_eq!(count("#[cfg(test)]\nmod tests;\nfn g() {}\n"), 3);
    }

    #[test]
    fn a_page_is_read_by_its_links() {
        let page = "| [a](../x/src/a.rs) | first |\n[b](b.md), [c](../x/src/c.rs)";
        assert_eq!(
            links(page).collect::<Vec<_>>(),
            ["../x/src/a.rs", "b.md", "../x/src/c.rs"]
        );
    }
}
