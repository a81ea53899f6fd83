//! `errors(..)` as it is written: arms of a `match` on the error, or the word `policy`.

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::parse::ParseStream;
use syn::{Error, Expr, LitStr, Pat, Token, parenthesized, token};

use crate::action::Action;
use crate::diag::{self, Errors};

/// What is in the parentheses.
pub(crate) enum Arms {
    /// `errors(policy)`: what the error type says. The word.
    Policy(Ident),
    /// An arm for each kind of error.
    Match(Vec<Arm>),
}

/// `PATTERN if GUARD => ACTION`.
pub(crate) struct Arm {
    pub(crate) pattern: Pat,
    pub(crate) guard: Option<(Token![if], Expr)>,
    pub(crate) arrow: Token![=>],
    pub(crate) action: Action,
}

const EXAMPLE: &str = "errors(OrderError::Declined(_) => keep, _ => release)";

impl Arms {
    /// Parses the part after the word `errors`. A mistake inside is reported, and the result has no
    /// arms.
    pub(crate) fn parse(
        keyword: &Ident,
        input: ParseStream<'_>,
        errors: &mut Errors,
    ) -> syn::Result<Option<Self>> {
        if !input.peek(token::Paren) {
            let message = format!(
                "`errors` needs an action for each error, in parentheses: write for example \
                 `{EXAMPLE}`"
            );
            return Err(Error::new(keyword.span(), message));
        }
        let inside;
        let parentheses = parenthesized!(inside in input);
        if inside.is_empty() {
            let message =
                format!("`errors` is empty: write for example `{EXAMPLE}`, or leave it out");
            errors.at(parentheses.span.join(), message);
            return Ok(None);
        }
        if let Some(word) = first_word(&inside) {
            return Self::of_word(word, &inside, errors);
        }
        if let Some(literal) = inside.fork().parse::<Option<LitStr>>()?
            && !contains_arrow(&inside)
        {
            let message = "this is not a string: write `errors(policy)`, which asks the error \
                type, or for all errors alike `errors(_ => keep)`";
            errors.at(literal.span(), message);
            inside.parse::<TokenStream>()?;
            return Ok(None);
        }
        Self::of_arms(&inside, errors)
    }

    /// Reads the parentheses if a single word is in them: `policy`, or a mistake.
    fn of_word(
        word: Ident,
        inside: ParseStream<'_>,
        errors: &mut Errors,
    ) -> syn::Result<Option<Self>> {
        let rest: TokenStream = inside.parse()?;
        let stands_alone = matches!(
            rest.to_string().replace(' ', "").as_str(),
            "policy" | "policy,"
        );
        let message = match word.to_string().as_str() {
            "policy" if stands_alone => return Ok(Some(Self::Policy(word))),
            "policy" => {
                "`policy` stands alone: leave out the arms, or give each error an action in them"
                    .to_owned()
            }
            "keep" | "release" | "abandon" | "retry" => {
                format!("for all errors alike, write `errors(_ => {rest})`")
            }
            other if diag::closest(other, ["policy"]).is_some() => {
                "did you mean `errors(policy)`?".to_owned()
            }
            _ => format!(
                "`errors` has arms, `{EXAMPLE}`, or is `errors(policy)`, which asks the error type"
            ),
        };
        errors.on(&word, message);
        Ok(None)
    }

    fn of_arms(inside: ParseStream<'_>, errors: &mut Errors) -> syn::Result<Option<Self>> {
        let mut arms = Vec::new();
        let mut right = true;
        while !inside.is_empty() {
            // One arm that cannot be read does not hide the mistakes in the others.
            match Arm::parse(inside, errors) {
                Ok(Some(arm)) => arms.push(arm),
                Ok(None) => right = false,
                Err(error) => {
                    errors.push(error);
                    right = false;
                    skip_to_comma(inside);
                }
            }
            if !inside.is_empty() && !inside.peek(Token![,]) {
                errors.push(inside.error("expected a comma before this arm"));
                right = false;
                skip_to_comma(inside);
            }
            inside.parse::<Option<Token![,]>>()?;
        }
        Ok(right.then_some(Self::Match(arms)))
    }
}

/// Returns the first word, unless a pattern begins with it: `policy`, or a text without an arm.
fn first_word(inside: ParseStream<'_>) -> Option<Ident> {
    let ahead = inside.fork();
    let word: Ident = ahead.parse().ok()?;
    let is_word = |tree: &Option<TokenTree>| matches!(tree, Some(TokenTree::Group(_)) | None);
    let next: Option<TokenTree> = if ahead.is_empty() || ahead.peek(Token![,]) {
        None
    } else {
        ahead.parse().ok()
    };
    let then = ahead.is_empty() || ahead.peek(Token![,]);
    ((word == "policy" && next.is_none()) || (is_word(&next) && then)).then_some(word)
}

/// Whether there is an arm: a pattern may be a string.
fn contains_arrow(inside: ParseStream<'_>) -> bool {
    let ahead = inside.fork();
    while !ahead.is_empty() {
        if ahead.peek(Token![=>]) {
            return true;
        }
        if ahead.parse::<TokenTree>().is_err() {
            return false;
        }
    }
    false
}

impl Arm {
    fn parse(input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<Option<Self>> {
        let start = input.span();
        let pattern = Pat::parse_multi_with_leading_vert(input).map_err(|error| {
            Error::new(
                error.span(),
                format!("this is not a pattern ({error}): write for example `{EXAMPLE}`"),
            )
        })?;
        if let Some(outer) = of_result(&pattern) {
            let message = format!(
                "the pattern is of the error itself, not of the `Result`: leave out the \
                 `{outer}(..)` around it"
            );
            errors.on(&pattern, message);
        }
        let guard = match input.parse::<Option<Token![if]>>()? {
            Some(word) => Some((word, input.parse()?)),
            None => None,
        };
        if !input.peek(Token![=>]) {
            let message = "expected `=>` and an action: `=> keep`, `=> release`, `=> abandon` or \
                `=> retry(max = 3)`";
            let span = if input.is_empty() {
                start
            } else {
                input.span()
            };
            return Err(Error::new(span, message));
        }
        let arrow = input.parse()?;
        let action = Action::parse(input, errors)?;
        Ok(action.map(|action| Self {
            pattern,
            guard,
            arrow,
            action,
        }))
    }
}

/// `Ok` or `Err`, if the pattern is one of a `Result`.
fn of_result(pattern: &Pat) -> Option<&Ident> {
    match pattern {
        Pat::TupleStruct(pattern) => pattern
            .path
            .get_ident()
            .filter(|name| *name == "Err" || *name == "Ok"),
        _ => None,
    }
}

fn skip_to_comma(input: ParseStream<'_>) {
    while !input.is_empty() && !input.peek(Token![,]) {
        if input.parse::<TokenTree>().is_err() {
            return;
        }
    }
}
