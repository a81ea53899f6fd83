//! `outcome_version` and `upgrade(..)`: how the outcomes of earlier versions of a type are read.

use proc_macro2::{Ident, TokenTree};
use syn::parse::ParseStream;
use syn::{Error, Expr, ExprLit, Lit, LitInt, Token, parenthesized, token};

use crate::bindings::Bindings;
use crate::diag::Errors;
use crate::value;

const EXAMPLE: &str = "upgrade(1 => from_v1)";

/// `upgrade(..)`. Mistakes in it are reported already.
pub(crate) struct UpgradeSetting {
    pub(crate) keyword: Ident,
    pub(crate) upgrades: Vec<Upgrade>,
}

/// `VERSION => FUNCTION`.
#[derive(Clone)]
pub(crate) struct Upgrade {
    pub(crate) from: LitInt,
    pub(crate) function: Expr,
}

impl UpgradeSetting {
    /// Reads the part after the word `upgrade`.
    pub(crate) fn parse(&mut self, input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<()> {
        if !input.peek(token::Paren) {
            let message = format!(
                "`upgrade` needs a function for each earlier version, in parentheses: write for \
                 example `{EXAMPLE}`"
            );
            return Err(Error::new(self.keyword.span(), message));
        }
        let inside;
        let parentheses = parenthesized!(inside in input);
        if inside.is_empty() {
            let message =
                format!("`upgrade` is empty: write for example `{EXAMPLE}`, or leave it out");
            errors.at(parentheses.span.join(), message);
        }
        while !inside.is_empty() {
            // One that cannot be read does not hide the mistakes in the others.
            match Upgrade::parse(&inside) {
                Ok(upgrade) => self.upgrades.push(upgrade),
                Err(error) => {
                    errors.push(error);
                    skip_to_comma(&inside);
                }
            }
            if !inside.is_empty() && !inside.peek(Token![,]) {
                errors.push(inside.error(format!(
                    "expected a comma before the next version: write for example `{EXAMPLE}`"
                )));
                skip_to_comma(&inside);
            }
            inside.parse::<Option<Token![,]>>()?;
        }
        Ok(())
    }

    /// Checks the versions against each other and against the current one. If `outcome_version`
    /// could not be read, the current one is unknown.
    pub(crate) fn check(
        &self,
        is_stated: bool,
        current: Option<&Expr>,
        bindings: &Bindings,
        errors: &mut Errors,
    ) {
        if !is_stated {
            let message = "`upgrade` reads outcomes of earlier versions, and this function states \
                no version: add for example `outcome_version = 2`";
            return errors.at(self.keyword.span(), message);
        }
        let current = current.and_then(|value| match value::bare(value) {
            Expr::Lit(ExprLit {
                lit: Lit::Int(number),
                ..
            }) => number.base10_parse::<u32>().ok(),
            _ => None,
        });
        let mut seen = Vec::new();
        for Upgrade { from, function } in &self.upgrades {
            let version = match from.base10_parse::<u32>() {
                Ok(version) if version > 0 => version,
                _ => {
                    errors.on(
                        from,
                        "a version is a number, 1 or more: an outcome that was written \
                        without `outcome_version` has version 1",
                    );
                    continue;
                }
            };
            if let Some(current) = current.filter(|current| version >= *current) {
                let message = format!(
                    "only an earlier version can be upgraded, and the current one is {current}: \
                     raise `outcome_version`, or leave this out"
                );
                errors.on(from, message);
            } else if seen.contains(&version) {
                errors.on(
                    from,
                    format!("version {version} is upgraded twice: leave one of them out"),
                );
            }
            seen.push(version);
            if let Some(parameter) = bindings.first_in(function) {
                let message = format!(
                    "an upgrade is the same for all calls, so it cannot use the parameter \
                     `{parameter}`: write a function from the earlier type to the current one"
                );
                errors.on(function, message);
            }
        }
    }
}

impl Upgrade {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let from = input.parse::<LitInt>().map_err(|error| {
            Error::new(
                error.span(),
                format!("expected the number of an earlier version: write for example `{EXAMPLE}`"),
            )
        })?;
        if !input.peek(Token![=>]) {
            let message = format!(
                "expected `=>` and the function that reads it: write for example `{EXAMPLE}`"
            );
            let span = if input.is_empty() {
                from.span()
            } else {
                input.span()
            };
            return Err(Error::new(span, message));
        }
        let arrow: Token![=>] = input.parse()?;
        if input.is_empty() || input.peek(Token![,]) {
            let message = format!(
                "expected the function that reads version {from}: write for example `{EXAMPLE}`"
            );
            return Err(Error::new_spanned(arrow, message));
        }
        let function: Expr = input.parse()?;
        if let Some(literal) = value::string(&function) {
            let message = format!(
                "a function is written without quotes: write `{from} => {}`",
                literal.value()
            );
            return Err(Error::new(literal.span(), message));
        }
        Ok(Self { from, function })
    }
}

fn skip_to_comma(input: ParseStream<'_>) {
    while !input.is_empty() && !input.peek(Token![,]) {
        if input.parse::<TokenTree>().is_err() {
            return;
        }
    }
}
