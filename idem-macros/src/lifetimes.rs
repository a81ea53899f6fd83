//! Named lifetimes, as tokens.

use proc_macro2::{Ident, TokenStream, TokenTree};

use crate::async_trait::{is_punct, respanned};

/// Whether the tokens name this lifetime.
pub(crate) fn names(tokens: &TokenStream, lifetime: &Ident) -> bool {
    let mut after_quote = false;
    tokens.clone().into_iter().any(|tree| {
        let is_lifetime = std::mem::replace(&mut after_quote, is_punct(&tree, '\''));
        match tree {
            TokenTree::Ident(word) => is_lifetime && word == *lifetime,
            TokenTree::Group(group) => names(&group.stream(), lifetime),
            _ => false,
        }
    })
}

/// Replaces these lifetimes by `'_`.
pub(crate) fn elide(tokens: TokenStream, lifetimes: &[&Ident]) -> TokenStream {
    let mut after_quote = false;
    let elided = tokens.into_iter().map(|tree| {
        let is_lifetime = std::mem::replace(&mut after_quote, is_punct(&tree, '\''));
        match tree {
            TokenTree::Ident(word) if is_lifetime && lifetimes.contains(&&word) => {
                Ident::new("_", word.span()).into()
            }
            TokenTree::Group(group) => respanned(&group, elide(group.stream(), lifetimes)).into(),
            other => other,
        }
    });
    elided.collect()
}

#[cfg(test)]
mod tests {
    use proc_macro2::{Ident, Span};
    use quote::quote;

    use super::{elide, names};

    #[test]
    fn only_these_lifetimes_are_named_and_elided() {
        let lifetime = Ident::new("a", Span::call_site());
        let tokens = quote!(Tx<'a, 'b, [&'a dyn for<'c> Fn(&'c a, 'a')]>);
        assert!(names(&tokens, &lifetime));
        let elided = elide(tokens, &[&lifetime]);
        assert_eq!(
            elided.to_string(),
            quote!(Tx<'_, 'b, [&'_ dyn for<'c> Fn(&'c a, 'a')]>).to_string()
        );
        assert!(!names(&elided, &lifetime));
    }
}
