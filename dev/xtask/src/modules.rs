//! Which modules of a crate use which, read off the paths that begin with `crate`, `super` or
//! `self`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The words with which a path of this crate begins.
const ROOTS: [&str; 3] = ["crate", "super", "self"];

/// A module's path inside its crate. The root's is empty.
pub(crate) type Module = Vec<String>;

/// The modules of one crate, and their texts.
pub(crate) type Texts = BTreeMap<Module, String>;

/// The modules of one crate, and those that each uses. A parent uses a child where it names it.
pub(crate) type Uses = BTreeMap<Module, BTreeSet<Module>>;

/// Reads all files under `source` except for tests and programs in `bin`.
pub(crate) fn read(source: &Path) -> Result<Texts> {
    let mut texts = Texts::new();
    collect(source, &mut Vec::new(), &mut texts)?;
    Ok(texts)
}

fn collect(dir: &Path, place: &mut Module, texts: &mut Texts) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            if name != "bin" {
                place.push(name);
                collect(&path, place, texts)?;
                place.pop();
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") && name != "tests" {
            let mut module = place.clone();
            if !["lib", "main", "mod"].contains(&name.as_str()) {
                module.push(name);
            }
            texts
                .entry(module)
                .or_default()
                .push_str(&fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

/// Finds the modules that each one uses. The root's name for a part of a layer is that layer.
pub(crate) fn uses(texts: &Texts) -> Result<Uses> {
    let exported = exported(texts)?;
    let mut uses = Uses::new();
    for (module, text) in texts {
        let mut paths = Vec::new();
        find_paths(&tokens(module, text)?, &mut paths);
        let is_child = |name: &String| {
            let child = module.iter().chain([name]).cloned().collect::<Module>();
            texts.contains_key(&child)
        };
        for path in &mut paths {
            // In a parent, `child::name` is `self::child::name`.
            if !ROOTS.contains(&path[0].as_str()) && is_child(&path[0]) {
                path.insert(0, "self".to_owned());
            }
        }
        let paths = paths
            .iter()
            .filter(|path| ROOTS.contains(&path[0].as_str()));
        let targets = paths.map(|path| {
            let target = resolve(module, path, texts);
            // Names of layers that these modules export again.
            let is_exported = target.is_empty() || *target == ["store"];
            let is_again = is_exported && !is_export_of_store(module, path);
            let mut words = path.iter().filter(|_| is_again);
            words
                .find_map(|word| exported.get(word))
                .cloned()
                .unwrap_or(target)
        });
        // The root ties everything together.
        let targets = targets.filter(|target| !module.is_empty() && !target.is_empty());
        let targets = targets.filter(|target| target != module);
        uses.insert(module.clone(), targets.collect());
    }
    Ok(uses)
}

/// Whether a path is that by which `store` exports what layers have for stores. The module comes
/// before them, and does not use it.
fn is_export_of_store(module: &Module, path: &[String]) -> bool {
    *module == ["store"] && path.get(1).is_some_and(|word| word == "of_layers")
}

/// Finds what the root exports of layers, each name with its module.
fn exported(texts: &Texts) -> Result<BTreeMap<String, Module>> {
    let root = Module::new();
    let mut paths = Vec::new();
    if let Some(text) = texts.get(&root) {
        find_paths(&tokens(&root, text)?, &mut paths);
    }
    let named = paths.iter().filter_map(|path| {
        let target = resolve(&root, path, texts);
        let name = path
            .last()
            .filter(|_| target.first().is_some_and(|room| room == "layers"));
        name.map(|name| (name.clone(), target))
    });
    Ok(named.collect())
}

/// Reads the text of a module.
pub(crate) fn tokens(module: &Module, text: &str) -> Result<Vec<TokenTree>> {
    let tokens: TokenStream = text
        .parse()
        .map_err(|error| anyhow!("{}: {error}", module.join("::")))?;
    Ok(trees(tokens))
}

pub(crate) fn trees(tokens: TokenStream) -> Vec<TokenTree> {
    tokens.into_iter().collect()
}

/// The deepest module that a path goes through.
fn resolve(module: &Module, path: &[String], texts: &Texts) -> Module {
    let mut words = path.iter();
    let mut place = Module::new();
    match words.next().map(String::as_str) {
        Some("super") => place.extend_from_slice(&module[..module.len().saturating_sub(1)]),
        Some("self") => place.clone_from(module),
        _ => {}
    }
    for word in words {
        if word == "super" {
            drop(place.pop());
        } else {
            place.push(word.clone());
        }
    }
    while !texts.contains_key(&place) && place.pop().is_some() {}
    place
}

fn find_paths(trees: &[TokenTree], paths: &mut Vec<Module>) {
    let mut at = 0;
    while let Some(tree) = trees.get(at) {
        at += 1;
        match tree {
            TokenTree::Punct(punct) if punct.as_char() == '#' => at = after_attribute(trees, at),
            TokenTree::Ident(ident) if is_colon(trees.get(at)) && is_colon(trees.get(at + 1)) => {
                at = read_path(trees, at, vec![ident.to_string()], paths);
            }
            TokenTree::Group(group) => find_paths(&self::trees(group.stream()), paths),
            _ => {}
        }
    }
}

/// Returns the position after `#`: behind the whole item, if that is for tests alone.
pub(crate) fn after_attribute(trees: &[TokenTree], at: usize) -> usize {
    let Some(TokenTree::Group(attribute)) = trees.get(at) else {
        return at;
    };
    let text = attribute.stream().to_string().replace(' ', "");
    if text != "cfg(test)" && !text.starts_with("cfg(all(test") {
        return at;
    }
    let rest = trees.get(at..).unwrap_or_default();
    let ends = |tree: &TokenTree| match tree {
        TokenTree::Punct(punct) => punct.as_char() == ';',
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        _ => false,
    };
    rest.iter()
        .position(ends)
        .map_or(trees.len(), |end| at + end + 1)
}

/// Reads what follows the words of a path: `::word`, or `::{..}`, whose branches are paths of their
/// own. Gives where the path ends.
fn read_path(
    trees: &[TokenTree],
    mut at: usize,
    mut words: Module,
    paths: &mut Vec<Module>,
) -> usize {
    while is_colon(trees.get(at)) && is_colon(trees.get(at + 1)) {
        match trees.get(at + 2) {
            Some(TokenTree::Ident(ident)) => words.push(ident.to_string()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let branches = self::trees(group.stream());
                for branch in branches
                    .split(|tree| matches!(tree, TokenTree::Punct(comma) if comma.as_char() == ','))
                {
                    if let Some(TokenTree::Ident(ident)) = branch.first() {
                        let mut words = words.clone();
                        if *ident != "self" {
                            words.push(ident.to_string());
                        }
                        read_path(branch, 1, words, paths);
                    }
                }
                return at + 3;
            }
            _ => break,
        }
        at += 3;
    }
    paths.push(words);
    at
}

fn is_colon(tree: Option<&TokenTree>) -> bool {
    matches!(tree, Some(TokenTree::Punct(punct)) if punct.as_char() == ':')
}

/// Modules that reach each other, circle by circle, by their names. A module and its children share
/// names, so they may use each other: a circle among them has siblings in it that do not go through
/// their parent, or a module from outside.
pub(crate) fn circles(uses: &Uses) -> Vec<BTreeSet<String>> {
    let mut without_parents = uses.clone();
    for (module, used) in &mut without_parents {
        used.retain(|used| !module.starts_with(used));
    }
    let mut circles = connected(&without_parents);
    for circle in connected(uses) {
        let is_family = circle
            .iter()
            .any(|parent| circle.iter().all(|module| module.starts_with(parent)));
        let is_known = circles.iter().any(|known| known.is_subset(&circle));
        if !is_family && !is_known {
            circles.insert(circle);
        }
    }
    let names = |circle: BTreeSet<Module>| circle.iter().map(|module| module.join("::")).collect();
    circles.into_iter().map(names).collect()
}

/// Sets of modules in which each reaches each other.
fn connected(uses: &Uses) -> BTreeSet<BTreeSet<Module>> {
    let reached: BTreeMap<_, _> = uses
        .keys()
        .map(|module| (module, reach(uses, module)))
        .collect();
    let mut sets = BTreeSet::new();
    for (module, reached_by_it) in &reached {
        let is_mutual = |other: &&Module| {
            let back = reached.get(other);
            back.is_some_and(|back| back.contains(*module))
        };
        let set: BTreeSet<_> = reached_by_it.iter().filter(is_mutual).cloned().collect();
        if set.len() > 1 {
            sets.insert(set);
        }
    }
    sets
}

/// Says which uses go against the order of the rooms, and which rooms are not in it. A room is a
/// module with all that is in it. It uses only rooms that come before it. A folder that holds rooms
/// counts as the first of them where it uses a module, and as the last one where it is used.
pub(crate) fn against_order(uses: &Uses, order: &[String]) -> Vec<String> {
    let order: Vec<_> = order.iter().map(|room| module(room)).collect();
    let touches = |room: &Module, module: &[String]| {
        module.starts_with(room.as_slice()) || room.starts_with(module)
    };
    let first = |module: &[String]| order.iter().position(|room| touches(room, module));
    let last = |module: &[String]| order.iter().rposition(|room| touches(room, module));
    let is_there = |room: &&Module| {
        uses.keys()
            .any(|module| module.starts_with(room.as_slice()))
    };
    let gone = order.iter().filter(|room| !is_there(room));
    let gone = gone.map(|room| format!("there is no room `{}`", room.join("::")));
    let new: BTreeSet<_> = uses
        .keys()
        .filter_map(|module| {
            let mut beginnings = (1..=module.len()).map(|length| &module[..length]);
            beginnings.find(|room| first(room).is_none())
        })
        .collect();
    let new = new
        .into_iter()
        .map(|room| format!("the room `{}` has no place", room.join("::")));
    let mut faults: Vec<_> = gone.chain(new).collect();
    for (module, used) in pairs(uses) {
        if first(module) < last(used) {
            faults.push(format!(
                "`{}` uses `{}`, which comes after it",
                module.join("::"),
                used.join("::")
            ));
        }
    }
    faults
}

/// Each module with each one that it uses.
pub(crate) fn pairs(uses: &Uses) -> impl Iterator<Item = (&Module, &Module)> {
    uses.iter()
        .flat_map(|(module, used)| used.iter().map(move |used| (module, used)))
}

/// Reads a module's path.
pub(crate) fn module(path: &str) -> Module {
    let words = path.split("::").filter(|word| !word.is_empty());
    words.map(str::to_owned).collect()
}

fn reach(uses: &Uses, from: &Module) -> BTreeSet<Module> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        for used in uses.get(module).into_iter().flatten() {
            if reached.insert(used.clone()) {
                open.push(used);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses_of(files: &[(&str, &str)]) -> Uses {
        let texts = files
            .iter()
            .map(|(path, text)| (module(path), (*text).to_owned()));
        uses(&texts.collect()).unwrap()
    }

    fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
        let circles = circles(&uses_of(files));
        circles
            .into_iter()
            .map(|circle| circle.into_iter().collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn modules_that_use_each_other_are_a_circle_however_the_paths_are_written() {
        assert_eq!(
            circles_of(&[("a", "use crate::b::B;"), ("b", "use super::a;")]),
            ["a b"]
        );
        assert_eq!(
            circles_of(&[
                ("a", "use crate::{x, b::{self, B}};"),
                ("b", "fn f() { crate::a::f(); }")
            ]),
            ["a b"]
        );
        assert_eq!(
            circles_of(&[
                ("a", "m!(crate::b::f());"),
                ("b", "use crate::c;"),
                ("c", "use crate::a;")
            ]),
            ["a b c"]
        );
        assert_eq!(
            circles_of(&[
                ("r::a", "use super::b;"),
                ("r::b", "use super::super::r::a;"),
                ("r", "")
            ]),
            ["r::a r::b"]
        );
    }

    #[test]
    fn one_direction_is_no_circle_and_neither_are_a_parent_and_its_child() {
        assert!(
            circles_of(&[
                ("a", "use crate::b;"),
                ("b", ""),
                ("", "use crate::a; use crate::b;")
            ])
            .is_empty()
        );
        assert!(
            circles_of(&[
                ("r", "use self::a::A; use crate::r::a;"),
                ("r::a", "use super::R;")
            ])
            .is_empty()
        );
        let siblings_that_use_their_parent = [
            ("r", "use a::A; use b::B;"),
            ("r::a", "use super::R; use super::b::B;"),
            ("r::b", "use super::R;"),
        ];
        assert!(circles_of(&siblings_that_use_their_parent).is_empty());
    }

    #[test]
    fn a_circle_through_a_parent_and_its_child_is_one() {
        let down = [
            ("suite", "use crate::cases; fn all() { cases::ALL; }"),
            ("cases", "mod trace; const ALL: &[Trial] = trace::TRIALS;"),
            (
                "cases::trace",
                "use super::trials; use crate::suite::Trial;",
            ),
        ];
        assert_eq!(circles_of(&down), ["cases cases::trace suite"]);
        let up = [
            ("a", "use crate::r::x::X;"),
            ("r", "use crate::a::A;"),
            ("r::x", "use super::R;"),
        ];
        assert_eq!(circles_of(&up), ["a r r::x"]);
    }

    #[test]
    fn a_word_of_another_path_is_no_child() {
        let files = [
            ("r", "use std::a::A; fn f() { other::a::f(); x.a; }"),
            ("r::a", "use crate::b;"),
            ("b", "use crate::r;"),
        ];
        assert!(circles_of(&files).is_empty());
    }

    #[test]
    fn tests_comments_and_texts_are_no_uses() {
        let tests =
            "#[cfg(test)] mod tests { use crate::a; } #[cfg(all(test, shuttle))] use crate::a;";
        assert!(circles_of(&[("a", "use crate::b;"), ("b", tests)]).is_empty());
        assert!(
            circles_of(&[
                ("a", "use crate::b;"),
                (
                    "b",
                    "// crate::a\n/// crate::a\nconst C: &str = \"crate::a\";"
                )
            ])
            .is_empty()
        );
        assert_eq!(
            circles_of(&[
                ("a", "use crate::b;"),
                ("b", "#[cfg(feature = \"x\")] use crate::a;")
            ]),
            ["a b"]
        );
    }
    #[test]
    fn what_the_root_exports_of_a_layer_is_that_layer() {
        let root = "pub use crate::layers::locks::{Lock, Locks}; pub use crate::low::Low; \
            pub mod bounds { pub use crate::layers::tokens::AsToken; } \
            mod of_layers { pub use crate::layers::locks::api::Driver; }";
        let used = |module: &str, text: &str| {
            let uses = uses_of(&[
                ("", root),
                ("low", ""),
                ("layers::locks", ""),
                ("layers::tokens", ""),
                ("store", ""),
                ("high", ""),
                (module, text),
            ]);
            let of_module = uses.get(&self::module(module)).unwrap().iter();
            of_module.map(|used| used.join("::")).collect::<Vec<_>>()
        };
        for text in ["use crate::{Lock, Low};", "fn f() { super::Locks::g(); }"] {
            assert_eq!(used("high", text), ["layers::locks"], "{text}");
        }
        assert_eq!(
            used("high", "use crate::bounds::AsToken;"),
            ["layers::tokens"]
        );
        let by_store = "use crate::store::{Driver, Store};";
        assert_eq!(used("high", by_store), ["layers::locks", "store"]);
        let export = "pub use crate::of_layers::Driver;";
        assert_eq!(used("high", export), ["layers::locks"]);
        assert!(used("store", export).is_empty());
    }

    #[test]
    fn a_room_uses_only_rooms_before_it() {
        let order = ["low", "high"].map(str::to_owned);
        let faults = |files: &[(&str, &str)]| against_order(&uses_of(files), &order);
        let right = [
            ("low", ""),
            ("low::a", "use crate::low::b;"),
            ("low::b", ""),
            ("high", "use crate::low::a::A;"),
        ];
        assert!(faults(&right).is_empty());
        assert_eq!(
            faults(&[
                ("low", ""),
                ("low::a", "use crate::high::b::B;"),
                ("high", ""),
                ("high::b", "")
            ]),
            ["`low::a` uses `high::b`, which comes after it"]
        );
        assert_eq!(
            faults(&[("low", ""), ("new", "")]),
            ["there is no room `high`", "the room `new` has no place"]
        );
    }

    #[test]
    fn a_room_in_a_folder_of_rooms_has_its_own_place() {
        let order = ["low", "rooms::one", "rooms::two", "high"].map(str::to_owned);
        let faults = |files: &[(&str, &str)]| {
            let all = order.iter().map(|room| (room.as_str(), ""));
            let files: Vec<_> = all
                .chain([("rooms", "")])
                .chain(files.iter().copied())
                .collect();
            against_order(&uses_of(&files), &order)
        };
        assert!(
            faults(&[
                ("rooms::two", "use crate::rooms::one::One; use crate::low;"),
                ("rooms::two::a", "use crate::rooms::one;"),
                ("high", "use crate::rooms::Any; use crate::rooms::two;"),
            ])
            .is_empty()
        );
        for (files, expected) in [
            (
                ("rooms::one", "use crate::rooms::two::Two;"),
                "`rooms::one` uses `rooms::two`, which comes after it",
            ),
            (
                ("low", "use crate::rooms::one;"),
                "`low` uses `rooms::one`, which comes after it",
            ),
            (
                ("low", "use crate::rooms::Any;"),
                "`low` uses `rooms`, which comes after it",
            ),
            (
                ("rooms", "use self::two::Two;"),
                "`rooms` uses `rooms::two`, which comes after it",
            ),
            (
                ("rooms::three::a", ""),
                "the room `rooms::three` has no place",
            ),
        ] {
            assert_eq!(faults(&[files]), [expected]);
        }
    }
}
