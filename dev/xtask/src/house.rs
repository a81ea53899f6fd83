//! The shape of the code: modules of a crate that use each other in a circle, rooms that use each
//! other against their order, layers that use more than they may, files over 600 lines, and how many
//! lines of code there are.
//!
//! `dev/xtask/house.txt` lists the known circles and long files. The list may shrink, never grow.
//! It also has the order of a package's rooms, what its layers may use, and budgets: the lines of
//! code of each package, and of the files that `docs/reading.md` names. A change that needs more
//! raises the number, and says why.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context as _, Result, bail};

use crate::budget;
use crate::layers;
use crate::modules;
use crate::workspace::{Workspace, rust_files};

const LIST: &str = "dev/xtask/house.txt";
const HEADER: &str = "\
    # Circles among modules and files over 600 lines, as they are known. \
    `cargo xtask house --write` takes out what is gone.\n\
    # `rooms`: the folders of a package, in their order. \
    A room uses only rooms that come before it.\n\
    # `layers`: what the rooms in the folder `layers` use besides the public API. \
    Their methods on types of others are public or private.\n\
    # `budget`: the most lines of code of a package, or of the files that a page names. Blanks, \
    comments, docs and tests do not count.\n";
const MOST_LINES: usize = 600;

/// What is wrong with the shape, or known to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Shape {
    /// By package: its rooms, in their order. Stated, not found.
    rooms: BTreeMap<String, Vec<String>>,
    /// By package: the modules that are offered to its layers. Stated, not found.
    layers: BTreeMap<String, Vec<String>>,
    /// By package: modules that reach each other.
    circles: Vec<(String, BTreeSet<String>)>,
    /// By path: lines.
    long_files: BTreeMap<String, usize>,
    /// By package or page: lines of code.
    budgets: BTreeMap<String, usize>,
}

/// Fails where something is worse than the list says, or the list names something that is gone.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let found = Shape::of(workspace)?;
    let known = Shape::read(workspace)?;
    println!(
        "{} circles among modules, {} files over {MOST_LINES} lines, {} lines of code to read first",
        found.circles.len(),
        found.long_files.len(),
        found.budgets.get(budget::READING).unwrap_or(&0)
    );
    let mut faults = found.beyond(&known);
    faults.extend(against_rules(workspace, &known)?);
    faults.extend(
        known
            .gone(&found)
            .into_iter()
            .map(|gone| format!("{gone}: gone; run `cargo xtask house --write`")),
    );
    if !faults.is_empty() {
        bail!(
            "the shape of the code ({LIST} has what is known):\n  {}",
            faults.join("\n  ")
        );
    }
    Ok(())
}

/// Writes the list, unless something got worse.
pub(crate) fn write(workspace: &Workspace) -> Result<()> {
    let mut found = Shape::of(workspace)?;
    let known = Shape::read(workspace)?;
    let mut worse = found.beyond(&known);
    worse.extend(against_rules(workspace, &known)?);
    if !worse.is_empty() {
        bail!("the list only shrinks:\n  {}", worse.join("\n  "));
    }
    (found.rooms, found.layers) = (known.rooms, known.layers);
    let has_budget = |name: &String| known.budgets.contains_key(name);
    found.budgets.retain(|name, _| has_budget(name));
    workspace
        .shell()
        .write_file(LIST, format!("{HEADER}{found}"))?;
    Ok(())
}

/// Says where rooms use each other against their order, and layers more than they may.
fn against_rules(workspace: &Workspace, known: &Shape) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for package in workspace.members()? {
        let name = &package.name;
        let (order, offered) = (known.rooms.get(name), known.layers.get(name));
        if order.is_none() && offered.is_none() {
            continue;
        }
        let texts = modules::read(&package.dir()?.join("src"))?;
        let mut found = Vec::new();
        if let Some(order) = order {
            found.extend(modules::against_order(&modules::uses(&texts)?, order));
        }
        if let Some(offered) = offered {
            found.extend(layers::beyond_what_is_offered(&texts, offered)?);
            found.extend(layers::restricted_methods(&texts)?);
        }
        faults.extend(found.into_iter().map(|fault| format!("{name}: {fault}")));
    }
    Ok(faults)
}

impl Shape {
    fn of(workspace: &Workspace) -> Result<Self> {
        let root = workspace.shell().current_dir();
        let mut shape = Self::default();
        for package in workspace.members()? {
            let source = package.dir()?.join("src");
            if source.is_dir() {
                let circles = modules::circles(&modules::uses(&modules::read(&source)?)?);
                shape.circles.extend(
                    circles
                        .into_iter()
                        .map(|circle| (package.name.clone(), circle)),
                );
                let lines = budget::of_package(&source)?;
                shape.budgets.insert(package.name.clone(), lines);
            }
        }
        let reading = budget::of_page(&root)?;
        shape.budgets.insert(budget::READING.to_owned(), reading);
        let mut files = Vec::new();
        rust_files(&root, &mut files)?;
        for file in files {
            let lines = workspace.shell().read_file(&file)?.lines().count();
            if lines > MOST_LINES {
                let path = file.strip_prefix(&root)?.to_string_lossy().into_owned();
                shape.long_files.insert(path, lines);
            }
        }
        Ok(shape)
    }

    fn read(workspace: &Workspace) -> Result<Self> {
        Self::parse(&workspace.shell().read_file(LIST)?)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut shape = Self::default();
        for line in text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let mut words = line.split_whitespace();
            let kind = words.next();
            let name = words.next().map(str::to_owned);
            match (kind, name) {
                (Some("rooms"), Some(name)) => {
                    drop(shape.rooms.insert(name, words.map(str::to_owned).collect()));
                }
                (Some("layers"), Some(name)) => {
                    drop(
                        shape
                            .layers
                            .insert(name, words.map(str::to_owned).collect()),
                    );
                }
                (Some("budget"), Some(name)) => {
                    shape.budgets.insert(name, number(words.next(), line)?);
                }
                (Some("circle"), Some(name)) => shape
                    .circles
                    .push((name, words.map(str::to_owned).collect())),
                (Some("long"), Some(name)) => {
                    shape.long_files.insert(name, number(words.next(), line)?);
                }
                _ => bail!("{LIST}: cannot read `{line}`"),
            }
        }
        Ok(shape)
    }

    /// What is worse here than there.
    fn beyond(&self, known: &Self) -> Vec<String> {
        let is_known = |(package, circle): &(String, BTreeSet<String>)| {
            known
                .circles
                .iter()
                .any(|(name, known)| name == package && circle.is_subset(known))
        };
        let circles = self.circles.iter().filter(|circle| !is_known(circle));
        let circles =
            circles.map(|(package, circle)| format!("a circle in {package}: {}", words(circle)));
        let long_files = self
            .long_files
            .iter()
            .filter(|(path, lines)| known.long_files.get(*path).is_none_or(|most| most < *lines));
        let budgets = self.budgets.iter().filter_map(|(name, lines)| {
            let most = known.budgets.get(name).filter(|most| *most < lines)?;
            Some(format!(
                "{name} has {lines} lines of code, and a budget of {most}"
            ))
        });
        circles
            .chain(long_files.map(|(path, lines)| format!("{path} has {lines} lines")))
            .chain(budgets)
            .collect()
    }

    /// What is named here, and no part of it is there any more.
    fn gone(&self, found: &Self) -> Vec<String> {
        let is_there = |(package, circle): &(String, BTreeSet<String>)| {
            found
                .circles
                .iter()
                .any(|(name, found)| name == package && found.is_subset(circle))
        };
        let circles = self.circles.iter().filter(|circle| !is_there(circle));
        let circles =
            circles.map(|(package, circle)| format!("circle {package} {}", words(circle)));
        let long_files = self
            .long_files
            .keys()
            .filter(|path| !found.long_files.contains_key(*path));
        let budgets = self
            .budgets
            .keys()
            .filter(|name| !found.budgets.contains_key(*name));
        circles
            .chain(long_files.map(|path| format!("long {path}")))
            .chain(budgets.map(|name| format!("budget {name}")))
            .collect()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (package, rooms) in &self.rooms {
            writeln!(f, "rooms {package} {}", rooms.join(" "))?;
        }
        for (package, offered) in &self.layers {
            writeln!(f, "layers {package} {}", offered.join(" "))?;
        }
        for (package, circle) in &self.circles {
            writeln!(f, "circle {package} {}", words(circle))?;
        }
        for (path, lines) in &self.long_files {
            writeln!(f, "long {path} {lines}")?;
        }
        for (name, lines) in &self.budgets {
            writeln!(f, "budget {name} {lines}")?;
        }
        Ok(())
    }
}

fn number(word: Option<&str>, line: &str) -> Result<usize> {
    let number = word.and_then(|word| word.parse().ok());
    number.with_context(|| format!("{LIST}: how many in `{line}`?"))
}

fn words(circle: &BTreeSet<String>) -> String {
    circle
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> Shape {
        Shape::parse(text).unwrap()
    }

    #[test]
    fn a_list_is_read_as_it_is_written() {
        let text = "rooms idem-core low high::a\nlayers idem-core low::b\n\
            circle idem-core a b::c\nlong src/lib.rs 700\n\
            budget idem-core 900\n";
        assert_eq!(shape(&format!("{HEADER}{text}")).to_string(), text);
        assert!(Shape::parse("long src/lib.rs").is_err());
        assert!(Shape::parse("square idem-core").is_err());
    }

    #[test]
    fn a_circle_with_one_module_more_or_in_another_package_is_worse_and_with_one_less_is_not() {
        let known = shape("circle idem-core a b c");
        assert!(shape("circle idem-core a b").beyond(&known).is_empty());
        assert_eq!(
            shape("circle idem-core a b c d").beyond(&known),
            ["a circle in idem-core: a b c d"]
        );
        assert_eq!(
            shape("circle idem-redis a b").beyond(&known),
            ["a circle in idem-redis: a b"]
        );
    }

    #[test]
    fn a_file_that_grows_over_its_known_length_is_worse() {
        let known = shape("long a.rs 700");
        assert!(shape("long a.rs 650").beyond(&known).is_empty());
        assert_eq!(
            shape("long a.rs 701").beyond(&known),
            ["a.rs has 701 lines"]
        );
        assert_eq!(
            shape("long b.rs 601").beyond(&known),
            ["b.rs has 601 lines"]
        );
    }

    #[test]
    fn a_package_with_more_code_than_its_budget_is_worse_and_one_without_a_budget_is_not() {
        let known = shape("budget idem-core 700");
        assert!(shape("budget idem-core 700").beyond(&known).is_empty());
        assert!(shape("budget idem-redis 9000").beyond(&known).is_empty());
        assert_eq!(
            shape("budget idem-core 701").beyond(&known),
            ["idem-core has 701 lines of code, and a budget of 700"]
        );
    }

    #[test]
    fn what_is_gone_leaves_the_list() {
        let known = shape("circle idem-core a b c\nlong a.rs 700\nbudget a 9");
        assert!(
            known
                .gone(&shape("circle idem-core a b\nlong a.rs 601\nbudget a 8"))
                .is_empty()
        );
        assert_eq!(
            known.gone(&Shape::default()),
            ["circle idem-core a b c", "long a.rs", "budget a"]
        );
    }
}
