//! The guides as GitHub shows them, made of those that rustdoc shows: without the hidden lines of
//! samples, and with links to pages. And the links of all pages, which lead somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use xshell::cmd;

use crate::workspace::Workspace;

const SOURCES: &str = "src/docs";
const PAGES: &str = "docs/guide";
/// The front page of the crate, to which the README corresponds.
const FRONT: &str = "front.md";
/// How guides name files of the repository, because a reader of docs.rs has none of them.
const REPOSITORY: [&str; 2] = [
    "https://github.com/idem-rs/idem/blob/main/",
    "https://github.com/idem-rs/idem/tree/main/",
];

/// Writes the pages.
pub(crate) fn write(workspace: &Workspace) -> Result<()> {
    let shell = workspace.shell();
    let pages = rendered(workspace)?;
    let old = shell.read_dir(PAGES).unwrap_or_default();
    for page in old.iter().filter(|page| !pages.contains_key(&*name(page))) {
        shell.remove_path(page)?;
    }
    for (name, text) in &pages {
        shell.write_file(format!("{PAGES}/{name}"), text)?;
    }
    println!("{} pages in {PAGES}", pages.len());
    Ok(())
}

/// The pages are those that [`write`] makes, and every link in the repository leads somewhere.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let shell = workspace.shell();
    let pages = rendered(workspace)?;
    let there = shell.read_dir(PAGES).unwrap_or_default();
    let there: BTreeSet<_> = there.iter().map(|page| name(page).to_string()).collect();
    let known: BTreeSet<_> = pages.keys().cloned().collect();
    ensure!(
        there == known,
        "{PAGES} lacks a page, or has one too many: `cargo xtask guides` writes them"
    );
    for (name, text) in &pages {
        ensure!(
            shell.read_file(format!("{PAGES}/{name}"))? == *text,
            "{PAGES}/{name} is not what {SOURCES}/{name} says: `cargo xtask guides` writes it"
        );
    }
    let dead = dead_links(workspace)?;
    ensure!(
        dead.is_empty(),
        "links that lead nowhere:\n  {}",
        dead.join("\n  ")
    );
    Ok(())
}

fn name(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// All pages, by the names of their files.
fn rendered(workspace: &Workspace) -> Result<BTreeMap<String, String>> {
    let shell = workspace.shell();
    let mut pages = BTreeMap::new();
    for source in shell.read_dir(SOURCES)? {
        let name = name(&source).to_string();
        if name != FRONT {
            let text = render(&name, &shell.read_file(&source)?);
            pages.insert(name, text);
        }
    }
    Ok(pages)
}

/// A page as GitHub shows it.
fn render(name: &str, source: &str) -> String {
    let mut page =
        format!("<!-- Made of {SOURCES}/{name} by `cargo xtask guides`: change that. -->\n\n");
    for part in parts(source) {
        match part {
            Part::Text(text) => page.push_str(&with_links(text)),
            Part::Block { fence, lines } => page.push_str(&block(fence, lines)),
        }
    }
    page
}

/// A part of a page.
enum Part<'a> {
    /// Outside of blocks of code.
    Text(&'a str),
    /// A block of code: its first line, and the others with the last one.
    Block { fence: &'a str, lines: &'a str },
}

/// Divides a page into text and blocks.
fn parts(page: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let (mut begin, mut at) = (0, 0);
    let mut fence: Option<(&str, usize)> = None;
    for line in page.split_inclusive('\n') {
        let end = at + line.len();
        let is_fence = line.trim_start().starts_with("```");
        match fence {
            None if is_fence => {
                parts.push(Part::Text(&page[begin..at]));
                fence = Some((line, end));
            }
            Some((first, from)) if is_fence => {
                let lines = &page[from..end];
                parts.push(Part::Block {
                    fence: first,
                    lines,
                });
                (fence, begin) = (None, end);
            }
            _ => {}
        }
        at = end;
    }
    parts.push(Part::Text(&page[begin..]));
    parts
}

/// A block as people copy it: a sample of Rust with its imports, and without the other lines that
/// only its test needs.
fn block(fence: &str, lines: &str) -> String {
    let words = fence.trim_start().trim_start_matches('`').trim();
    if words.split(',').next() != Some("rust") {
        return format!("{fence}{lines}");
    }
    let indent = &fence[..fence.len() - fence.trim_start().len()];
    let mut shown: Vec<&str> = Vec::new();
    for line in lines.lines() {
        let text = line.trim_start();
        let import = text
            .strip_prefix("# ")
            .filter(|text| text.starts_with("use "));
        let is_hidden = import.is_none() && (text == "#" || text.starts_with("# "));
        // The lines around hidden ones leave no gap.
        let is_gap = text.is_empty() && shown.last().is_none_or(|last| last.trim().is_empty());
        if !is_hidden && !is_gap {
            shown.push(import.unwrap_or(line));
        }
    }
    if let Some(place) = shown.len().checked_sub(2)
        && shown.get(place).is_some_and(|line| line.trim().is_empty())
    {
        shown.remove(place);
    }
    format!("{indent}```rust\n{}\n", shown.join("\n"))
}

/// A text whose links lead to pages. A link to an item of the API becomes its text.
fn with_links(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((target, behind)) = after.split_once(')') else {
            break;
        };
        shown.push_str(before);
        match on_github(target) {
            Some(target) => shown.extend(["](", &target, ")"]),
            None => {
                if let Some(open) = opening(&shown) {
                    shown.remove(open);
                }
            }
        }
        rest = behind;
    }
    shown.push_str(rest);
    shown
}

/// The place of the bracket that the end of this text closes.
fn opening(text: &str) -> Option<usize> {
    let mut depth = 1;
    for (place, letter) in text.char_indices().rev() {
        match letter {
            ']' => depth += 1,
            '[' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(place);
        }
    }
    None
}

/// The target of a link on GitHub, from a page in `docs/guide`; `None` for an item of the API.
fn on_github(target: &str) -> Option<String> {
    if target == "crate" {
        return Some("../../README.md".to_owned());
    }
    if target == "crate::guide" {
        return Some("README.md".to_owned());
    }
    if let Some(guide) = target.strip_prefix("crate::guide::") {
        let (name, place) = guide.split_at(guide.find('#').unwrap_or(guide.len()));
        return Some(format!("{name}.md{place}"));
    }
    if target.starts_with("crate::") || target.contains('@') && !target.contains("://") {
        return None;
    }
    let file = REPOSITORY
        .iter()
        .find_map(|prefix| target.strip_prefix(prefix));
    Some(file.map_or_else(|| target.to_owned(), |file| format!("../../{file}")))
}

/// The links of all pages that GitHub shows, and the addresses of pages in other files, as far as
/// they lead nowhere.
fn dead_links(workspace: &Workspace) -> Result<Vec<String>> {
    let shell = workspace.shell();
    let root = shell.current_dir();
    let list = cmd!(
        shell,
        "git ls-files --cached --others --exclude-standard *.md *.rs *.toml *.yml"
    );
    let list = list.quiet().read()?;
    let mut anchors = BTreeMap::new();
    let mut dead = Vec::new();
    // The tests of this file have links of their own.
    let files = list.lines().map(Path::new);
    for file in files.filter(|file| root.join(file).exists() && !file.ends_with(file!())) {
        let text = shell.read_file(file)?;
        // Pages in `src` are for rustdoc, which checks their links itself.
        let is_shown = file.extension().is_some_and(|kind| kind == "md")
            && !file.components().any(|part| part.as_os_str() == "src");
        let links = targets(&text).into_iter().filter(|_| is_shown);
        let links = links.map(|target| (file, target));
        let addresses = addresses(&text).into_iter();
        for (page, target) in links.chain(addresses.map(|target| (Path::new(""), target))) {
            if !leads(&root, page, target, &mut anchors)? {
                dead.push(format!("{}: {target}", file.display()));
            }
        }
    }
    Ok(dead)
}

/// The files of the repository that a text names by their addresses: alerts, issue templates,
/// errors, and the pages of packages do.
fn addresses(text: &str) -> Vec<&str> {
    let ends = |letter: char| letter.is_whitespace() || "\"'`<>()[]{}\\,|".contains(letter);
    let behind = REPOSITORY
        .iter()
        .flat_map(|prefix| text.split(prefix).skip(1));
    behind
        .filter_map(|rest| rest.split(ends).next())
        .map(|target| target.trim_end_matches(['.', ';', ':']))
        .filter(|target| !target.is_empty())
        .collect()
}

/// The targets of the links of a page.
fn targets(page: &str) -> Vec<&str> {
    let mut targets = Vec::new();
    for part in parts(page) {
        let Part::Text(text) = part else { continue };
        let inline = text.split("](").skip(1);
        targets.extend(inline.filter_map(|rest| Some(rest.split_once(')')?.0)));
        let defined = text.lines().filter(|line| line.starts_with('['));
        targets.extend(defined.filter_map(|line| Some(line.split_once("]: ")?.1.trim())));
    }
    targets
}

/// Whether a link leads somewhere: a file of the repository, and a heading in it. Other sites are
/// not asked.
fn leads(
    root: &Path,
    page: &Path,
    target: &str,
    anchors: &mut BTreeMap<PathBuf, BTreeSet<String>>,
) -> Result<bool> {
    // A site, or the end of an expression in a code span.
    if target.contains("://") || target.starts_with("mailto:") || target.contains(['`', ' ']) {
        return Ok(true);
    }
    let (file, place) = target.split_once('#').unwrap_or((target, ""));
    let file = if file.is_empty() {
        page.to_owned()
    } else {
        normal(&page.parent().unwrap_or(Path::new("")).join(file))
    };
    let path = root.join(&file);
    if !path.exists() {
        return Ok(false);
    }
    if place.is_empty() || file.extension().is_none_or(|kind| kind != "md") {
        return Ok(true);
    }
    if !anchors.contains_key(&file) {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        anchors.insert(file.clone(), anchors_of(&text));
    }
    Ok(anchors
        .get(&file)
        .is_some_and(|anchors| anchors.contains(place)))
}

/// A path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// The anchors of a page: of its headings, as GitHub makes them, and those that it sets itself.
fn anchors_of(page: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for part in parts(page) {
        let Part::Text(text) = part else { continue };
        for line in text.lines() {
            let heading = line.trim_start_matches('#');
            if let Some(heading) = heading.strip_prefix(' ').filter(|_| line.starts_with('#')) {
                let mut anchor = slug(heading);
                let mut number = 0;
                while !anchors.insert(anchor.clone()) {
                    number += 1;
                    anchor = format!("{}-{number}", slug(heading));
                }
            }
            let ids = line.split("id=\"").skip(1);
            anchors.extend(ids.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }
    anchors
}

fn slug(heading: &str) -> String {
    heading
        .trim()
        .chars()
        .filter(|letter| letter.is_alphanumeric() || matches!(letter, '-' | '_' | ' '))
        .map(|letter| if letter == ' ' { '-' } else { letter })
        .flat_map(char::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{addresses, anchors_of, on_github, render, targets};

    #[test]
    fn a_page_has_hidden_imports_alone_and_links_to_pages() {
        let source = "\
            # Steps\n\n\
            See [locks](crate::guide::locks#fencing), [`step`](crate::step) and [one](crate).\n\n\
            ```rust,no_run\n\
            # #[cfg(feature = \"http\")] mod example {\n\
            use idem::Error;\n\
            #\n\
            # use std::fmt;\n\
            # struct Hidden;\n\n\
            #[idempotent(key = id)]\n\
            async fn f() {}\n\n\
            # }\n\
            ```\n\
            After [it](https://github.com/idem-rs/idem/blob/main/docs/proof.md).\n\n\
            ```text\n\
            # a comment](crate::x)\n\
            ```\n";
        let (_, page) = render("steps.md", source)
            .split_once("-->\n\n")
            .map(|(head, page)| (head.to_owned(), page.to_owned()))
            .unwrap_or_default();
        assert_eq!(
            page,
            "# Steps\n\n\
             See [locks](locks.md#fencing), `step` and [one](../../README.md).\n\n\
             ```rust\n\
             use idem::Error;\n\
             use std::fmt;\n\n\
             #[idempotent(key = id)]\n\
             async fn f() {}\n\
             ```\n\
             After [it](../../docs/proof.md).\n\n\
             ```text\n\
             # a comment](crate::x)\n\
             ```\n"
        );
    }

    #[test]
    fn a_link_to_an_item_is_none_and_other_sites_stay() {
        assert_eq!(on_github("crate::Builder#method.strict"), None);
        assert_eq!(on_github("macro@idempotent"), None);
        for same in ["https://docs.rs/cached", "#pitfalls", "options.md"] {
            assert_eq!(on_github(same).as_deref(), Some(same));
        }
    }

    #[test]
    fn an_address_of_a_file_ends_where_its_text_does() {
        let text = "runbook: https://github.com/idem-rs/idem/blob/main/docs/a.md#b\n\
                    [c](https://github.com/idem-rs/idem/tree/main/examples), and \
                    \"https://github.com/idem-rs/idem/blob/main/d.md.\" \
                    https://github.com/idem-rs/idem/issues";
        assert_eq!(addresses(text), ["docs/a.md#b", "d.md", "examples"]);
    }

    #[test]
    fn the_links_and_the_anchors_of_a_page_are_outside_of_its_blocks() {
        let page = "## `hold`, and more\n\n<span id=\"in_flight\">x</span> [a](b.md#c)\n\n\
                    ```sh\n# no heading [d](e)\n```\n[pic]: f.svg\n";
        assert_eq!(targets(page), ["b.md#c", "f.svg"]);
        let anchors = anchors_of(page);
        assert_eq!(
            anchors.iter().map(String::as_str).collect::<Vec<_>>(),
            ["hold-and-more", "in_flight"]
        );
    }
}
