//! The layers of a package, in its folder `layers`: what they use, and what they show.
//!
//! A path shows which module a layer uses. A method that a layer gives to a type from below shows in
//! no path, so the code below could call it: such a method is part of the public API, or private to
//! its file. A type of the layer itself is reached by a path, so its methods may be shown to the
//! package.

use std::collections::BTreeSet;

use anyhow::Result;
use proc_macro2::{Delimiter, TokenTree};

use crate::modules::{self, Module, Texts, after_attribute, module, pairs, tokens, trees};

const FOLDER: &str = "layers";

/// Says which modules layers use that are neither public nor offered to them. Their own order is
/// that of the rooms.
pub(crate) fn beyond_what_is_offered(texts: &Texts, offered: &[String]) -> Result<Vec<String>> {
    let offered: Vec<_> = offered.iter().map(|path| module(path)).collect();
    let gone = offered.iter().filter(|path| !texts.contains_key(*path));
    let gone = gone.map(|path| format!("there is no `{}` to offer to layers", path.join("::")));
    let mut faults: Vec<_> = gone.collect();
    let public = public(texts)?;
    for (module, used) in pairs(&modules::uses(texts)?) {
        let is_offered = offered.iter().any(|path| used.starts_with(path.as_slice()));
        if is_layer(module) && !is_layer(used) && !is_offered && !public.contains(used) {
            faults.push(format!(
                "`{}` uses `{}`, which is neither public nor offered to layers",
                module.join("::"),
                used.join("::")
            ));
        }
    }
    Ok(faults)
}

/// Says which methods that layers give to types from outside are shown to a part of the package
/// only.
pub(crate) fn restricted_methods(texts: &Texts) -> Result<Vec<String>> {
    let mut own = BTreeSet::new();
    for (module, text) in texts.iter().filter(|(module, _)| is_layer(module)) {
        let mut names = Vec::new();
        find_types(&tokens(module, text)?, &mut names);
        own.extend(names.into_iter().map(|name| (layer_of(module), name)));
    }
    let mut faults = Vec::new();
    for (module, text) in texts.iter().filter(|(module, _)| is_layer(module)) {
        let is_own = |name: String| own.contains(&(layer_of(module), name));
        let mut methods = Vec::new();
        find_restricted(&tokens(module, text)?, &is_own, &mut methods);
        faults.extend(methods.into_iter().map(|method| {
            format!(
                "`{}` shows the method `{method}` to a part of the package: a method that a layer \
                 gives to a type from outside is `pub`, as part of the public API, or private",
                module.join("::")
            )
        }));
    }
    Ok(faults)
}

/// The layer that a module belongs to: the folder, or the file.
fn layer_of(module: &Module) -> &[String] {
    &module[..module.len().min(2)]
}

/// Finds the names of the types that are defined here, without those of tests.
fn find_types(trees: &[TokenTree], names: &mut Vec<String>) {
    let mut at = 0;
    while let Some(tree) = trees.get(at) {
        at += 1;
        match tree {
            TokenTree::Punct(punct) if punct.as_char() == '#' => at = after_attribute(trees, at),
            TokenTree::Ident(word) if word == "struct" || word == "enum" => {
                if let Some(TokenTree::Ident(name)) = trees.get(at) {
                    names.push(name.to_string());
                }
            }
            TokenTree::Group(group) => find_types(&self::trees(group.stream()), names),
            _ => {}
        }
    }
}

fn is_layer(module: &Module) -> bool {
    module.first().is_some_and(|folder| folder == FOLDER)
}

/// The modules that are public up to the root.
fn public(texts: &Texts) -> Result<BTreeSet<Module>> {
    let mut public = BTreeSet::new();
    let mut open = vec![Module::new()];
    while let Some(parent) = open.pop() {
        let Some(text) = texts.get(&parent) else {
            continue;
        };
        for declared in tokens(&parent, text)?.windows(3) {
            if is_word(&declared[0], "pub")
                && is_word(&declared[1], "mod")
                && let TokenTree::Ident(name) = &declared[2]
            {
                open.push(parent.iter().cloned().chain([name.to_string()]).collect());
            }
        }
        public.insert(parent);
    }
    Ok(public)
}

/// Finds the restricted methods of all inherent `impl`s of types from outside.
fn find_restricted(
    trees: &[TokenTree],
    is_own: &impl Fn(String) -> bool,
    methods: &mut Vec<String>,
) {
    let mut at = 0;
    while let Some(tree) = trees.get(at) {
        at += 1;
        match tree {
            TokenTree::Punct(punct) if punct.as_char() == '#' => at = after_attribute(trees, at),
            TokenTree::Ident(word) if word == "impl" => {
                let header = trees.get(at..).unwrap_or_default();
                let Some(length) = header.iter().position(|tree| braces(tree).is_some()) else {
                    continue;
                };
                at += length + 1;
                let of_own = name_of_type(&header[..length]).is_some_and(is_own);
                if let (false, Some(body)) = (
                    of_own || is_of_trait(&header[..length]),
                    header.get(length).and_then(braces),
                ) {
                    find_restricted_in(&body, methods);
                }
            }
            TokenTree::Group(group) => {
                find_restricted(&self::trees(group.stream()), is_own, methods);
            }
            _ => {}
        }
    }
}

/// Finds `pub(..) .. fn name` in the body of an `impl`.
fn find_restricted_in(body: &[TokenTree], methods: &mut Vec<String>) {
    let mut at = 0;
    while let Some(tree) = body.get(at) {
        at += 1;
        let restriction = body.get(at);
        if matches!(tree, TokenTree::Punct(punct) if punct.as_char() == '#') {
            at = after_attribute(body, at);
        } else if is_word(tree, "pub")
            && matches!(restriction, Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis)
        {
            let rest = body.get(at + 1..).unwrap_or_default();
            let qualifiers = ["const", "async", "unsafe", "extern"];
            let mut words = rest.iter().skip_while(|tree| {
                matches!(tree, TokenTree::Literal(_))
                    || qualifiers.iter().any(|word| is_word(tree, word))
            });
            if let (Some(keyword), Some(name)) = (words.next(), words.next())
                && is_word(keyword, "fn")
            {
                methods.push(name.to_string());
            }
        }
    }
}

/// Whether an `impl` implements a trait: it has a `for` that begins no list of lifetimes.
fn is_of_trait(header: &[TokenTree]) -> bool {
    header.iter().enumerate().any(|(at, tree)| {
        let is_list =
            matches!(header.get(at + 1), Some(TokenTree::Punct(punct)) if punct.as_char() == '<');
        is_word(tree, "for") && !is_list
    })
}

/// The name of the type that an inherent `impl` is for, if that is a name and no path: a path leads
/// outside.
fn name_of_type(header: &[TokenTree]) -> Option<String> {
    let is = |tree: Option<&TokenTree>, sign: char| matches!(tree, Some(TokenTree::Punct(punct)) if punct.as_char() == sign);
    let mut at = 0;
    let mut depth = 0_usize;
    loop {
        if is(header.get(at), '<') {
            depth += 1;
        } else if is(header.get(at), '>') && !is(header.get(at.wrapping_sub(1)), '-') {
            depth = depth.saturating_sub(1);
        } else if depth == 0 {
            break;
        } else if header.get(at).is_none() {
            return None;
        }
        at += 1;
    }
    match header.get(at)? {
        TokenTree::Ident(name) if !is(header.get(at + 1), ':') => Some(name.to_string()),
        _ => None,
    }
}

fn braces(tree: &TokenTree) -> Option<Vec<TokenTree>> {
    match tree {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
            Some(trees(group.stream()))
        }
        _ => None,
    }
}

fn is_word(tree: &TokenTree, word: &str) -> bool {
    matches!(tree, TokenTree::Ident(ident) if ident == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(files: &[(&str, &str)]) -> Texts {
        let texts = files
            .iter()
            .map(|(path, text)| (module(path), (*text).to_owned()));
        texts.collect()
    }

    fn beyond(layer: &str) -> Vec<String> {
        let texts = texts(&[
            (
                "",
                "mod base; pub mod store; pub mod adapter; mod api; mod layers;",
            ),
            ("base", ""),
            ("base::clock", ""),
            ("store", "pub mod admin; mod dynamic;"),
            ("store::admin", ""),
            ("store::dynamic", ""),
            ("adapter", "pub(crate) mod engine; mod other;"),
            ("adapter::engine", "pub(crate) use crate::base::clock;"),
            ("adapter::other", ""),
            ("api", ""),
            ("api::lease", ""),
            ("layers", "pub(crate) mod one; pub(crate) mod two;"),
            ("layers::one", ""),
            ("layers::two", layer),
        ]);
        let offered = ["api", "adapter::engine"].map(str::to_owned);
        beyond_what_is_offered(&texts, &offered).unwrap()
    }

    #[test]
    fn a_layer_uses_what_is_public_what_is_offered_and_layers() {
        for layer in [
            "use crate::Error; use crate::{Builder, Key};",
            "use crate::store::{Store, admin::AdminStore};",
            "use crate::adapter::catch_user_panic;",
            "use crate::adapter::engine::clock::now;",
            "use crate::api::lease::Lease;",
            "use crate::layers::one::One; use super::one;",
            "#[cfg(test)] mod tests { use crate::base::clock; }",
        ] {
            assert_eq!(beyond(layer), [""; 0], "{layer}");
        }
    }

    #[test]
    fn a_layer_that_uses_anything_else_is_noticed_however_the_path_is_written() {
        for (layer, used) in [
            ("use crate::base::clock;", "base::clock"),
            (
                "use crate::{store::dynamic::AnyStore, Error};",
                "store::dynamic",
            ),
            (
                "fn f() { super::super::adapter::other::g(); }",
                "adapter::other",
            ),
            ("impl crate::base::Base { pub fn f() {} }", "base"),
        ] {
            let expected = format!(
                "`layers::two` uses `{used}`, which is neither public nor offered to layers"
            );
            assert_eq!(beyond(layer), [expected], "{layer}");
        }
    }

    #[test]
    fn what_is_offered_and_gone_is_noticed() {
        let offered = ["engine".to_owned()];
        assert_eq!(
            beyond_what_is_offered(&texts(&[("", "")]), &offered).unwrap(),
            ["there is no `engine` to offer to layers"]
        );
    }

    fn restricted(text: &str) -> Vec<String> {
        let faults = restricted_methods(&texts(&[
            ("call", "impl Call { pub(crate) fn below() {} }"),
            ("layers::one", text),
        ]));
        let name = |fault: String| fault.split('`').nth(3).unwrap().to_owned();
        faults.unwrap().into_iter().map(name).collect()
    }

    #[test]
    fn a_method_of_a_layer_that_a_part_of_the_package_sees_is_noticed() {
        for text in [
            "impl Runtime { pub(crate) fn found() {} }",
            "impl Runtime { fn f() {} pub(super) const fn found() {} }",
            "impl<T: for<'a> Fn(&'a T)> One<T> where T: Send { pub(in crate::call) async fn found() {} }",
            "mod inside { impl Two { #[must_use] pub(crate) unsafe extern \"C\" fn found() {} } }",
        ] {
            assert_eq!(restricted(text), ["found"], "{text}");
        }
    }

    #[test]
    fn a_type_of_the_layer_itself_may_show_its_methods_to_the_package() {
        for text in [
            "pub(crate) struct One; impl One { pub(crate) fn f() {} }",
            "enum One<F> { A(F) } impl<F: Fn(u8) -> Vec<u8>> One<F> where F: Send { pub(super) fn f() {} }",
        ] {
            assert_eq!(restricted(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_type_with_the_name_of_one_of_the_layer_is_another_one() {
        for text in [
            "struct One; impl crate::call::One { pub(crate) fn found() {} }",
            "#[cfg(test)] mod tests { struct One; } impl One { pub(crate) fn found() {} }",
            "struct One; impl<T: Into<One>> Two<T> { pub(crate) fn found() {} }",
            "struct One; impl dyn Two<One> { pub(crate) fn found() {} }",
        ] {
            assert_eq!(restricted(text), ["found"], "{text}");
        }
        let faults = restricted_methods(&texts(&[
            ("layers::one", "pub(crate) struct One;"),
            ("layers::two", "impl One { pub(crate) fn f() {} }"),
            ("layers::two::inside", "impl Two { pub(crate) fn g() {} }"),
            ("layers::two::types", "pub(super) struct Two;"),
        ]));
        let faults = faults.unwrap();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].contains("`f`"), "{faults:?}");
    }

    #[test]
    fn public_and_private_methods_functions_fields_and_tests_of_a_layer_are_none() {
        for text in [
            "impl Builder { pub fn f() {} fn g(&self) -> impl Iterator<Item = u8> { [].into_iter() } }",
            "pub(crate) fn f() {} pub(crate) struct S { pub(crate) field: u8 }",
            "impl S { pub(crate) const MOST: u8 = 1; }",
            "impl for_each::Trait for S { fn f() {} }",
            "#[cfg(test)] mod tests { impl S { pub(crate) fn f() {} } }",
        ] {
            assert_eq!(restricted(text), [""; 0], "{text}");
        }
    }
}
