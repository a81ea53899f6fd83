//! Collects the mistakes in an attribute, so that one compilation shows all of them, each at its
//! place.

use std::fmt::Display;

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::Error;

/// The mistakes that were found so far.
#[derive(Default)]
pub(crate) struct Errors(Option<Error>);

impl Errors {
    pub(crate) fn push(&mut self, error: Error) {
        match &mut self.0 {
            Some(first) => first.combine(error),
            None => self.0 = Some(error),
        }
    }

    /// Adds a mistake that is shown at all of these tokens.
    pub(crate) fn on(&mut self, tokens: impl ToTokens, message: impl Display) {
        self.push(Error::new_spanned(tokens, message));
    }

    pub(crate) fn at(&mut self, span: Span, message: impl Display) {
        self.push(Error::new(span, message));
    }

    /// Returns the value, or adds the error and returns `None`.
    pub(crate) fn keep<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// Returns invocations of `compile_error!`; `None` if there are no mistakes.
    pub(crate) fn into_compile_errors(self) -> Option<TokenStream> {
        self.0.map(Error::into_compile_error)
    }
}

#[cfg(test)]
impl Errors {
    /// Each mistake: the tokens where it is shown, and its message.
    pub(crate) fn list(self) -> Vec<(String, String)> {
        let caret = |error: &Error| error.span().source_text().unwrap_or_default();
        self.0
            .into_iter()
            .flatten()
            .map(|error| (caret(&error), error.to_string()))
            .collect()
    }
}

/// The place of the author's token, for a generated token. An error about it is shown there, and a
/// generated name is not mixed up with the author's.
pub(crate) fn located(span: Span) -> Span {
    span.resolved_at(Span::mixed_site())
}

/// The places of the first and the last token. The compiler underlines all from the one to the
/// other.
pub(crate) fn ends(tokens: impl ToTokens) -> (Span, Span) {
    let mut spans = tokens
        .into_token_stream()
        .into_iter()
        .map(|tree| located(tree.span()));
    let first = spans.next().unwrap_or_else(Span::mixed_site);
    (first, spans.last().unwrap_or(first))
}

/// Awaits a call with the author's expression, at exactly the place of that expression. So rustc
/// reports an unmet bound once, and underlines the whole expression.
pub(crate) fn awaited_in_place_of(function: impl ToTokens, expr: TokenStream) -> TokenStream {
    let mut spans = expr.clone().into_iter().map(|tree| tree.span());
    let first = spans.next().unwrap_or_else(Span::mixed_site);
    let last = spans.last().unwrap_or(first);
    let mut argument = Group::new(Delimiter::Parenthesis, expr);
    argument.set_span(last);
    let at_first = |mut tree: TokenTree| {
        // `$crate` is resolved by its span: it means the crate of the macro that contains it.
        if !matches!(&tree, TokenTree::Ident(name) if name == "$crate") {
            tree.set_span(first);
        }
        tree
    };
    let function: TokenStream = function
        .into_token_stream()
        .into_iter()
        .map(at_first)
        .collect();
    let awaited = quote_spanned!(last=> .await);
    quote!(#function #argument #awaited)
}

/// The author's tokens as generated tokens, at their place. For types, whose names are still found.
pub(crate) fn relocated(tokens: impl ToTokens) -> TokenStream {
    let ours = |mut tree: TokenTree| {
        if let TokenTree::Group(group) = &tree {
            tree = Group::new(group.delimiter(), relocated(group.stream())).into();
        }
        tree.set_span(located(tree.span()));
        tree
    };
    tokens.into_token_stream().into_iter().map(ours).collect()
}

/// The name that was probably meant by `word`.
pub(crate) fn closest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    // As tolerant as rustc's own suggestions.
    let tolerance = word.chars().count().max(3) / 3;
    names
        .into_iter()
        .map(|name| (distance(&word, name), name))
        .filter(|(distance, _)| *distance <= tolerance)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// `a`, `b` or `c`, each as code.
pub(crate) fn alternatives<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names: Vec<_> = names.into_iter().map(|name| format!("`{name}`")).collect();
    match names.pop() {
        Some(last) if !names.is_empty() => format!("{} or {last}", names.join(", ")),
        last => last.unwrap_or_default(),
    }
}

/// The edit distance: how many letters must be changed, added, dropped or swapped with their
/// neighbour.
fn distance(from: &str, to: &str) -> usize {
    let from: Vec<char> = from.chars().collect();
    let to: Vec<char> = to.chars().collect();
    let mut rows: Vec<Vec<usize>> = vec![(0..=to.len()).collect()];
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let changed = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut least = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::{alternatives, closest};

    #[test]
    fn a_slip_of_the_finger_is_understood_and_another_word_is_not() {
        let names = ["key", "ttl", "lease", "fingerprint", "max_attempts"];
        for (written, meant) in [
            ("kye", Some("key")),
            ("TTL", Some("ttl")),
            ("leese", Some("lease")),
            ("fingreprints", Some("fingerprint")),
            ("max_attempt", Some("max_attempts")),
            ("colour", None),
        ] {
            assert_eq!(closest(written, names), meant, "{written}");
        }
    }

    #[test]
    fn alternatives_read_as_a_sentence() {
        assert_eq!(alternatives(["a", "b", "c"]), "`a`, `b` or `c`");
        assert_eq!(alternatives(["a"]), "`a`");
    }
}
