//! The path of the `idem` crate in generated code.

use proc_macro2::{Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::{Expr, Path};

use crate::diag::Errors;
use crate::value;

/// The path of the `idem` crate: `::idem`, or what the option `crate` says.
#[derive(Default)]
pub(crate) struct Krate(Option<Path>);

impl Krate {
    /// Reads the value of `crate = "::idem"`.
    pub(crate) fn parse(expr: &Expr, errors: &mut Errors) -> Option<Self> {
        let path = match value::bare(expr) {
            Expr::Path(path) if path.qself.is_none() => Ok(path.path.clone()),
            other => match value::string(other) {
                Some(literal) => literal.parse_with(Path::parse_mod_style),
                None => Err(syn::Error::new_spanned(other, "not a path")),
            },
        };
        let path = path.map_err(|_| {
            let message =
                "`crate` is the path of the `idem` crate: write `crate = \"::idem\"`, or where you \
                 re-export it";
            syn::Error::new_spanned(expr, message)
        });
        errors.keep(path).map(|path| Self(Some(path)))
    }

    /// The path, with the caret of an error in what follows it at `span`.
    pub(crate) fn at(&self, span: Span) -> TokenStream {
        let Some(path) = &self.0 else {
            let name = Ident::new("idem", span);
            return quote_spanned!(span=> ::#name);
        };
        // Names keep their own resolution: `$crate` must mean the crate of the macro that wrote it.
        relocate(path.to_token_stream(), span)
    }
}

fn relocate(tokens: TokenStream, span: Span) -> TokenStream {
    tokens
        .into_iter()
        .map(|mut tree| {
            if let TokenTree::Group(group) = &tree {
                tree = Group::new(group.delimiter(), relocate(group.stream(), span)).into();
            }
            tree.set_span(tree.span().located_at(span));
            tree
        })
        .collect()
}
