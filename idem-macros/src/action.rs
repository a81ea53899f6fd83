//! The actions on an error, as written in `errors(..)` and in `#[idem(..)]`: `keep`, `release`,
//! `abandon` or `retry(..)`.

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote_spanned;
use syn::ext::IdentExt as _;
use syn::parse::ParseStream;
use syn::{Error, Expr, ExprLit, Lit, LitStr, Token, parenthesized, token};

use crate::diag::{self, Errors};
use crate::paths::Krate;
use crate::value::{self, Reader, Time, fixed};

/// One action, with the span of its word.
pub(crate) struct Action {
    pub(crate) word: Span,
    pub(crate) kind: Kind,
}

/// The kind of a computed value.
#[derive(Clone, Copy)]
pub(crate) enum Computed {
    Time,
    Count,
}

pub(crate) enum Kind {
    Keep(Option<Time>),
    Release,
    Abandon,
    Retry(Box<Retry>),
}

pub(crate) struct Retry {
    max: Expr,
    backoff: Option<Time>,
    max_backoff: Option<Time>,
    /// Any but `retry`.
    then: Option<Action>,
}

const ACTIONS: [(&str, &str); 4] = [
    ("keep", "keep"),
    ("release", "release"),
    ("abandon", "abandon"),
    ("retry", "retry(max = 3, backoff = \"100ms\")"),
];
const KEEP: [(&str, &str); 1] = [("ttl", "ttl = \"1h\"")];
const RETRY: [(&str, &str); 4] = [
    ("max", "max = 3"),
    ("backoff", "backoff = \"100ms\""),
    ("max_backoff", "max_backoff = \"10s\""),
    ("then", "then = keep"),
];

/// Words of other libraries, and the word here for each.
const ALIASES: [(&str, &str); 14] = [
    ("store", "keep"),
    ("record", "keep"),
    ("cache", "keep"),
    ("replay", "keep"),
    ("drop", "release"),
    ("forget", "release"),
    ("delete", "release"),
    ("rollback", "release"),
    ("unknown", "abandon"),
    ("rerun", "retry"),
    ("attempts", "max"),
    ("times", "max"),
    ("delay", "backoff"),
    ("retention", "ttl"),
];

impl Action {
    /// Parses one action. A mistake inside it is reported, and the result is `None`; other input is
    /// an error.
    pub(crate) fn parse(input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<Option<Self>> {
        Self::parse_one_of(input, errors, &ACTIONS)
    }

    /// Parses one action where `others` are words too, which the caller has looked for before.
    pub(crate) fn parse_among(
        input: ParseStream<'_>,
        errors: &mut Errors,
        others: &[(&str, &str)],
    ) -> syn::Result<Option<Self>> {
        Self::parse_one_of(input, errors, &[&ACTIONS, others].concat())
    }

    fn parse_one_of(
        input: ParseStream<'_>,
        errors: &mut Errors,
        actions: &[(&str, &str)],
    ) -> syn::Result<Option<Self>> {
        let word = action_word(input, actions)?;
        let name = word.to_string();
        let mut arguments = ActionArguments::new(name.clone());
        if input.peek(token::Paren) {
            let inside;
            let parentheses = parenthesized!(inside in input);
            if name == "release" || name == "abandon" {
                let message = format!("`{name}` takes nothing in parentheses: write `{name}`");
                errors.at(parentheses.span.open(), message);
                arguments.right = false;
                inside.parse::<TokenStream>()?;
            }
            if let Err(error) = arguments.parse(&inside, errors) {
                // The rest of the input would be reported as another mistake.
                inside.parse::<TokenStream>()?;
                return Err(error);
            }
        }
        let kind = match name.as_str() {
            "keep" => arguments.right.then_some(Kind::Keep(arguments.ttl)),
            "release" => arguments.right.then_some(Kind::Release),
            "abandon" => arguments.right.then_some(Kind::Abandon),
            _ => arguments
                .retry(&word, errors)
                .map(|retry| Kind::Retry(Box::new(retry))),
        };
        Ok(kind.map(|kind| Self {
            word: word.span(),
            kind,
        }))
    }

    /// Returns the place that says that errors are kept.
    pub(crate) fn keeps(&self) -> Option<Span> {
        match &self.kind {
            Kind::Keep(_) => Some(self.word),
            Kind::Release | Kind::Abandon => None,
            Kind::Retry(retry) => retry.then.as_ref().and_then(Self::keeps),
        }
    }

    /// Returns the place that says that the body is retried.
    pub(crate) fn retries(&self) -> Option<Span> {
        matches!(self.kind, Kind::Retry(_)).then_some(self.word)
    }

    /// The values that each call computes: durations, and how often the body is tried again.
    pub(crate) fn computed(&mut self) -> Vec<(Computed, &mut Expr)> {
        let (mut max, times): (Option<&mut Expr>, [Option<&mut Time>; 3]) = match &mut self.kind {
            Kind::Keep(ttl) => (None, [ttl.as_mut(), None, None]),
            Kind::Release | Kind::Abandon => (None, [None, None, None]),
            Kind::Retry(retry) => {
                let Retry {
                    max,
                    backoff,
                    max_backoff,
                    then,
                } = &mut **retry;
                let ttl = match then.as_mut().map(|then| &mut then.kind) {
                    Some(Kind::Keep(ttl)) => ttl.as_mut(),
                    _ => None,
                };
                (Some(max), [backoff.as_mut(), max_backoff.as_mut(), ttl])
            }
        };
        max = max.filter(|max| !matches!(value::bare(max), Expr::Lit(_)));
        let times = times.into_iter().flatten().filter_map(|time| match time {
            Time::Computed(expr) => Some((Computed::Time, &mut **expr)),
            Time::Fixed(_) => None,
        });
        max.map(|max| (Computed::Count, max))
            .into_iter()
            .chain(times)
            .collect()
    }

    /// The `ErrorAction`.
    pub(crate) fn expand(&self, krate: &Krate) -> TokenStream {
        let span = diag::located(self.word);
        let krate_here = krate.at(span);
        match &self.kind {
            Kind::Keep(None) => quote_spanned!(span=> #krate_here::ErrorAction::Keep),
            Kind::Keep(Some(ttl)) => {
                let ttl = time(ttl, span);
                quote_spanned!(span=> #krate_here::ErrorAction::KeepFor(#ttl))
            }
            Kind::Release => quote_spanned!(span=> #krate_here::ErrorAction::Release),
            Kind::Abandon => quote_spanned!(span=> #krate_here::ErrorAction::Abandon),
            Kind::Retry(retry) => {
                let Retry {
                    max,
                    backoff,
                    max_backoff,
                    then,
                } = &**retry;
                let backoff = backoff.iter().map(|backoff| time(backoff, span));
                let max_backoff = max_backoff
                    .iter()
                    .map(|max_backoff| time(max_backoff, span));
                let then = then.as_ref().and_then(|then| match &then.kind {
                    Kind::Keep(None) => Some(quote_spanned!(span=> .then_keep())),
                    Kind::Keep(Some(ttl)) => {
                        let ttl = time(ttl, span);
                        Some(quote_spanned!(span=> .then_keep_for(#ttl)))
                    }
                    Kind::Abandon => Some(quote_spanned!(span=> .then_abandon())),
                    Kind::Release | Kind::Retry(_) => None,
                });
                quote_spanned! {span=>
                    #krate_here::ErrorAction::Retry(
                        #krate_here::Retry::new(#max) #(.backoff(#backoff))* #(.max_backoff(#max_backoff))* #then
                    )
                }
            }
        }
    }
}

/// Reads the word of an action.
fn action_word(input: ParseStream<'_>, actions: &[(&str, &str)]) -> syn::Result<Ident> {
    let expected = || diag::alternatives(actions.iter().map(|(_, example)| *example));
    if let Some(literal) = input.fork().parse::<Option<LitStr>>()?
        && let Some((word, _)) = actions
            .iter()
            .find(|(word, _)| leading_word(&literal) == *word)
    {
        let message = format!("`{word}` is a word, not a string: leave out the quotes");
        return Err(Error::new(literal.span(), message));
    }
    let word = Ident::parse_any(input).map_err(|error| {
        let what = if input.is_empty() {
            "an action is missing here"
        } else {
            "this is not an action"
        };
        Error::new(error.span(), format!("{what}: write {}", expected()))
    })?;
    let name = word.to_string();
    if !actions.iter().any(|(action, _)| *action == name) {
        let message = format!(
            "unknown action `{name}`: write {}{}",
            expected(),
            meant(&name, actions)
        );
        return Err(Error::new(word.span(), message));
    }
    if input.peek(Token![=]) && !input.peek(Token![=>]) {
        let message = match name.as_str() {
            "keep" => {
                "`keep` takes its time in parentheses: write for example `keep(ttl = \"1h\")`"
            }
            "retry" => {
                "`retry` takes its numbers in parentheses: write for example `retry(max = 3)`"
            }
            _ => "`release` and `abandon` take nothing: leave this out",
        };
        return Err(input.error(message));
    }
    Ok(word)
}

/// A duration, as tokens.
pub(crate) fn time(time: &Time, span: Span) -> TokenStream {
    match time {
        Time::Fixed(duration) => fixed(*duration, span),
        Time::Computed(expr) => quote_spanned!(span=> #expr),
    }
}

/// What is in the parentheses of an action.
struct ActionArguments {
    /// The action.
    of: String,
    given: Vec<String>,
    ttl: Option<Time>,
    max: Option<Expr>,
    backoff: Option<Time>,
    max_backoff: Option<Time>,
    /// What is written for `max_backoff`.
    longest: Option<Expr>,
    then: Option<Action>,
    /// Whether nothing was wrong so far.
    right: bool,
}

impl ActionArguments {
    fn new(action: String) -> Self {
        Self {
            of: action,
            given: Vec::new(),
            ttl: None,
            max: None,
            backoff: None,
            max_backoff: None,
            longest: None,
            then: None,
            right: true,
        }
    }

    fn parse(&mut self, input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<()> {
        while !input.is_empty() {
            self.argument(input, errors)?;
            if !input.is_empty() {
                let found = input.span();
                input
                    .parse::<Token![,]>()
                    .map_err(|_| Error::new(found, "expected a comma before this"))?;
            }
        }
        Ok(())
    }

    fn argument(&mut self, input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<()> {
        let keyword = self.keyword(input)?;
        let option = keyword.to_string();
        if self.given.contains(&option) {
            errors.on(
                &keyword,
                format!("`{option}` is given twice: leave one of them out"),
            );
            self.right = false;
        }
        let is_right = match option.as_str() {
            "then" => {
                self.then = Action::parse_one_of(input, errors, &ACTIONS[..3])?;
                self.then.is_some()
            }
            "max" => {
                self.max = max(&input.parse()?, errors);
                self.max.is_some()
            }
            _ => {
                let expr: Expr = input.parse()?;
                let time = Reader {
                    keyword: &keyword,
                    errors,
                }
                .time(&expr);
                if option == "max_backoff" {
                    self.longest = Some(expr);
                }
                let slot = match option.as_str() {
                    "ttl" => &mut self.ttl,
                    "backoff" => &mut self.backoff,
                    _ => &mut self.max_backoff,
                };
                *slot = time;
                slot.is_some()
            }
        };
        self.right &= is_right;
        self.given.push(option);
        Ok(())
    }

    /// Reads the word of an option and the `=` after it.
    fn keyword(&self, input: ParseStream<'_>) -> syn::Result<Ident> {
        let options = if self.of == "keep" {
            &KEEP[..]
        } else {
            &RETRY[..]
        };
        let examples = || diag::alternatives(options.iter().map(|(_, example)| *example));
        let keyword = Ident::parse_any(input).map_err(|error| {
            Error::new(
                error.span(),
                format!("expected an option of `{}`: {}", self.of, examples()),
            )
        })?;
        let option = keyword.to_string();
        let Some((_, example)) = options.iter().find(|(name, _)| *name == option) else {
            let message = format!(
                "`{}` has no option `{option}`: it has {}{}",
                self.of,
                examples(),
                meant(&option, options)
            );
            return Err(Error::new(keyword.span(), message));
        };
        if !input.peek(Token![=]) {
            return Err(Error::new(
                keyword.span(),
                format!("`{option}` needs a value: write for example `{example}`"),
            ));
        }
        let equals: Token![=] = input.parse()?;
        if input.is_empty() || input.peek(Token![,]) {
            let message =
                format!("`{option}` needs a value after the `=`: write for example `{example}`");
            return Err(Error::new(equals.span, message));
        }
        Ok(keyword)
    }

    /// Returns the retry, if nothing is missing or wrong.
    fn retry(self, word: &Ident, errors: &mut Errors) -> Option<Retry> {
        if !self.given.iter().any(|option| option == "max") {
            let message = "`retry` needs `max`, how often it tries again: write for example \
                `retry(max = 3, backoff = \"100ms\")`";
            errors.on(word, message);
        }
        if let (Some(Time::Fixed(first)), Some(Time::Fixed(longest))) =
            (&self.backoff, &self.max_backoff)
            && longest < first
        {
            let message = "`max_backoff` is shorter than `backoff`, the first pause: make it \
                longer, or leave it out";
            errors.on(&self.longest, message);
        }
        let Self {
            max,
            backoff,
            max_backoff,
            then,
            right,
            ..
        } = self;
        max.filter(|_| right).map(|max| Retry {
            max,
            backoff,
            max_backoff,
            then,
        })
    }
}

/// How often a body is tried again: at least once.
fn max(expr: &Expr, errors: &mut Errors) -> Option<Expr> {
    let wrong = match value::bare(expr) {
        Expr::Lit(ExprLit {
            lit: Lit::Int(number),
            ..
        }) => number
            .base10_parse::<u32>()
            .map_or(true, |number| number == 0),
        Expr::Lit(_) => true,
        other => value::is_number(other),
    };
    if wrong {
        let message = "`max` is how often the body is tried again, 1 or more: write for example \
            `max = 3`, or `release` for never";
        errors.on(expr, message);
        return None;
    }
    Some(expr.clone())
}

/// The word that a string begins with: `retry`, of `"retry(max = 3)"`.
fn leading_word(literal: &LitStr) -> String {
    literal
        .value()
        .trim_start()
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

fn meant(name: &str, words: &[(&str, &str)]) -> String {
    let alias = ALIASES
        .iter()
        .find(|(alias, _)| *alias == name)
        .map(|(_, word)| *word);
    let closest = alias.or_else(|| diag::closest(name, words.iter().map(|(word, _)| *word)));
    closest
        .filter(|meant| words.iter().any(|(word, _)| word == meant))
        .map(|meant| format!("; did you mean `{meant}`?"))
        .unwrap_or_default()
}
