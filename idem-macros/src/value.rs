//! The values of options: expressions, parts, durations, words and numbers. Most can be written in
//! several ways.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens as _, quote_spanned};
use syn::{Expr, ExprLit, ExprReference, ExprTuple, ExprUnary, Lit, LitStr, Stmt, Token, UnOp};

use crate::diag::{self, Errors};
use crate::duration;

/// A duration, known now or computed by each call.
pub(crate) enum Time {
    Fixed(Duration),
    Computed(Box<Expr>),
}

/// The name of an operation.
pub(crate) enum Name {
    Literal(LitStr),
    Constant(Box<Expr>),
}

/// One of an option's words, with the arguments in parentheses after it.
pub(crate) struct Word {
    pub(crate) name: Ident,
    pub(crate) arguments: Option<Vec<Expr>>,
}

/// Reads the value of one option. It returns `None` after a mistake, which is reported.
pub(crate) struct Reader<'a> {
    pub(crate) keyword: &'a Ident,
    pub(crate) errors: &'a mut Errors,
}

impl Reader<'_> {
    /// An expression, written bare or in a string.
    pub(crate) fn expression(&mut self, expr: &Expr) -> Option<Expr> {
        let Some(literal) = string(expr) else {
            return Some(expr.clone());
        };
        let keyword = self.keyword;
        if literal.value().trim().is_empty() {
            let (what, example) = match keyword.to_string().as_str() {
                "abandoned" => ("reconcile", "lookup(&req)"),
                "fingerprint" => ("fingerprint", "req"),
                "runtime" => ("runtime", "self.idempotency"),
                _ => ("key", "req.order_id"),
            };
            self.errors.on(
                literal,
                format!(
                    "`{what}` is empty: write an expression over the parameters, such as \
                    \"{example}\""
                ),
            );
            return None;
        }
        let parsed = literal.parse::<Expr>().map_err(|error| {
            let text = literal.value();
            let message = if let Some(parameter) = text.trim().strip_prefix('#') {
                format!("parameters are named without `#`: write `{keyword} = {parameter}`")
            } else if syn::parse_str::<Expr>(&format!("({text})", text = literal.value())).is_ok() {
                let parts = literal
                    .value()
                    .split(',')
                    .map(|part| format!("{:?}", part.trim()))
                    .collect::<Vec<_>>()
                    .join(", ");
                format!("several parts go in parentheses: write `{keyword} = ({parts})`")
            } else {
                format!("the string in `{keyword}` is not a Rust expression: {error}")
            };
            syn::Error::new(literal.span(), message)
        });
        self.errors.keep(parsed)
    }

    /// An expression or a tuple of expressions, as references, so that nothing is moved.
    pub(crate) fn parts(&mut self, expr: &Expr) -> Option<Expr> {
        if let Expr::Tuple(tuple) = bare(expr) {
            return self.tuple(tuple, Self::parts);
        }
        if let Some((literal, text)) = hidden_string(expr) {
            let keyword = self.keyword;
            let message = format!(
                "this would be the text itself, the same for each call: an expression in a string \
                 stands alone or as a part in parentheses; write `{keyword} = {text}`"
            );
            self.errors.on(literal, message);
            return None;
        }
        // The string may hold a tuple; a string inside that string is a string.
        let whole = self.expression(expr)?;
        self.references(&whole)
    }

    fn references(&mut self, expr: &Expr) -> Option<Expr> {
        match bare(expr) {
            Expr::Tuple(tuple) => self.tuple(tuple, Self::references),
            _ => Some(reference(expr)),
        }
    }

    fn tuple(
        &mut self,
        tuple: &ExprTuple,
        mut each: impl FnMut(&mut Self, &Expr) -> Option<Expr>,
    ) -> Option<Expr> {
        // Collected first, so that a mistake in one part does not hide those in the others.
        let parts: Vec<_> = tuple.elems.iter().map(|part| each(self, part)).collect();
        let mut parts: Vec<Expr> = parts.into_iter().collect::<Option<_>>()?;
        // The longest tuple that is `KeyPart`, and the longest that is `Serialize`.
        let most = if self.keyword == "fingerprint" { 16 } else { 8 };
        match parts.len() {
            count if count > most => {
                let keyword = self.keyword;
                let message = format!(
                    "these are {count} parts, and a pair of parentheses in `{keyword}` holds at \
                     most {most}: put some into their own, for example `{keyword} = (a, b, (c, d))`"
                );
                self.errors.on(tuple, message);
                None
            }
            0 => {
                self.errors.on(
                    tuple,
                    format!("`{}` has no parts: write at least one", self.keyword),
                );
                None
            }
            1 => parts.pop(),
            _ => Some(reference(&Expr::Tuple(ExprTuple {
                elems: parts.into_iter().collect(),
                ..tuple.clone()
            }))),
        }
    }

    /// A duration: a string such as "5m", or an expression.
    pub(crate) fn time(&mut self, expr: &Expr) -> Option<Time> {
        if let Some(literal) = string(expr) {
            return self.errors.keep(duration::parse(literal)).map(Time::Fixed);
        }
        if is_path(expr, "none") || is_path(expr, "None") {
            let keyword = self.keyword;
            let message = format!(
                "`{keyword}` is a duration: write for example \"5m\", or leave `{keyword}` out"
            );
            self.errors.on(expr, message);
            return None;
        }
        if is_number(expr) {
            let message = match bare(expr) {
                Expr::Unary(_) => "a duration is not negative",
                Expr::Lit(ExprLit {
                    lit: Lit::Int(number),
                    ..
                }) if !number.suffix().is_empty() => "a duration is written in quotes",
                _ => "a duration needs a unit",
            };
            self.errors.on(
                expr,
                format!("{message}: write for example {}", duration::EXAMPLES),
            );
            return None;
        }
        Some(Time::Computed(Box::new(expr.clone())))
    }

    /// One of the words.
    pub(crate) fn word(&mut self, expr: &Expr, words: &[&str]) -> Option<Word> {
        let keyword = self.keyword;
        let expected = diag::alternatives(words.iter().copied());
        if let Some(literal) = string(expr) {
            let text = literal.value();
            let message = if words.contains(&text.as_str()) {
                format!("`{keyword}` is a word, not a string: write `{keyword} = {text}`")
            } else if keyword == "in_flight" {
                format!(
                    "`{keyword}` is {expected}, without quotes: write for example `in_flight = \
                     wait(\"5s\")`"
                )
            } else {
                format!("`{keyword}` is one of the words {expected}, without quotes")
            };
            self.errors.on(literal, message);
            return None;
        }
        let Some(word) = as_word(bare(expr)) else {
            self.errors.on(expr, format!("`{keyword}` is {expected}"));
            return None;
        };
        let name = word.name.to_string();
        if words.contains(&name.as_str()) {
            return Some(word);
        }
        let hint = diag::closest(&name, words.iter().copied())
            .map(|meant| format!("; did you mean `{meant}`?"))
            .unwrap_or_default();
        self.errors.on(
            &word.name,
            format!("`{keyword}` is {expected}, not `{name}`{hint}"),
        );
        None
    }

    /// One of the words, without arguments in parentheses.
    pub(crate) fn plain_word(&mut self, expr: &Expr, words: &[&str]) -> Option<Ident> {
        let word = self.word(expr, words)?;
        if word.arguments.is_some() {
            self.errors.on(
                expr,
                format!("`{0}` takes nothing in parentheses: write `{0}`", word.name),
            );
            return None;
        }
        Some(word.name)
    }

    /// A count, which is at least one.
    pub(crate) fn count(&mut self, expr: &Expr) -> Option<Expr> {
        let keyword = self.keyword;
        let wrong = match bare(expr) {
            Expr::Lit(ExprLit {
                lit: Lit::Int(number),
                ..
            }) => number.base10_digits() == "0",
            Expr::Lit(ExprLit {
                lit: Lit::Str(_), ..
            }) => true,
            negative => is_number(negative),
        };
        if wrong {
            self.errors.on(
                expr,
                format!("`{keyword}` is a number, 1 or more: write for example `{keyword} = 5`"),
            );
            return None;
        }
        Some(expr.clone())
    }

    /// An operation's name: a string, or a constant.
    pub(crate) fn name(&mut self, expr: &Expr) -> Option<Name> {
        let Some(literal) = string(expr) else {
            if matches!(bare(expr), Expr::Lit(_)) || is_number(expr) {
                let message = "`name` is a string or a constant: write for example `name = \
                    \"orders.create\"`";
                self.errors.on(expr, message);
                return None;
            }
            return Some(Name::Constant(Box::new(expr.clone())));
        };
        let name = literal.value();
        let wrong = if name.is_empty() {
            "`name` is empty"
        } else if name == "idem.audit" {
            "`idem.audit` is reserved for the trail of operators' decisions"
        } else if !is_operation(&name) {
            "`name` is 1 to 128 letters, digits and `_ - . / # @ +`, in segments that may be \
             joined by `::`"
        } else {
            return Some(Name::Literal(literal.clone()));
        };
        self.errors.on(
            literal,
            format!("{wrong}: write for example `name = \"orders.create\"`"),
        );
        None
    }
}

/// Checks a name by the runtime's rule, which would otherwise be applied at the first call.
fn is_operation(name: &str) -> bool {
    let segment = |segment: &str| {
        let allowed = |c: char| c.is_alphanumeric() || "_-./#@+".contains(c);
        !segment.is_empty() && segment.chars().all(allowed)
    };
    name.len() <= 128 && name.split("::").all(segment)
}

/// The expression itself, without the parentheses and the invisible groups (of `macro_rules!`)
/// around it.
pub(crate) fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Group(group) => bare(&group.expr),
        Expr::Paren(paren) => bare(&paren.expr),
        _ => expr,
    }
}

pub(crate) fn string(expr: &Expr) -> Option<&LitStr> {
    match bare(expr) {
        Expr::Lit(ExprLit {
            lit: Lit::Str(literal),
            ..
        }) => Some(literal),
        _ => None,
    }
}

/// Finds a string that is most likely meant as an expression but is not read as one (in brackets,
/// behind `&`, in a block), and returns the text to write instead.
fn hidden_string(expr: &Expr) -> Option<(&LitStr, String)> {
    match bare(expr) {
        Expr::Array(array) => {
            let literal = array
                .elems
                .iter()
                .find_map(|part| string(part).or_else(|| Some(hidden_string(part)?.0)))?;
            let parts: Vec<_> = array
                .elems
                .iter()
                .map(|part| part.to_token_stream().to_string())
                .collect();
            Some((
                literal,
                if parts.len() == 1 {
                    parts.concat()
                } else {
                    format!("({})", parts.join(", "))
                },
            ))
        }
        Expr::Reference(reference) => {
            let literal = string(&reference.expr);
            let literal =
                literal.or_else(|| hidden_string(&reference.expr).map(|(literal, _)| literal))?;
            Some((literal, literal.to_token_stream().to_string()))
        }
        Expr::Block(block) => match block.block.stmts.as_slice() {
            [Stmt::Expr(expr, None)] => {
                let literal = string(expr)?;
                Some((literal, literal.to_token_stream().to_string()))
            }
            _ => None,
        },
        _ => None,
    }
}

/// `&expr`, with errors shown at the expression. Parentheses are added where they are needed,
/// because the compiler ignores the invisible group around an `$e:expr`.
pub(crate) fn reference(expr: &Expr) -> Expr {
    let expr = bare(expr).clone();
    let (first, _) = diag::ends(&expr);
    Expr::Reference(ExprReference {
        attrs: Vec::new(),
        and_token: Token![&](first),
        mutability: None,
        expr: Box::new(expr),
    })
}

/// Whether the expression is only this word.
pub(crate) fn is_path(expr: &Expr, word: &str) -> bool {
    matches!(bare(expr), Expr::Path(path) if path.path.is_ident(word))
}

fn as_word(expr: &Expr) -> Option<Word> {
    match expr {
        Expr::Path(path) => Some(Word {
            name: path.path.get_ident()?.clone(),
            arguments: None,
        }),
        Expr::Call(call) => match bare(&call.func) {
            Expr::Path(path) => Some(Word {
                name: path.path.get_ident()?.clone(),
                arguments: Some(call.args.iter().cloned().collect()),
            }),
            _ => None,
        },
        _ => None,
    }
}

/// Whether the expression is a literal number, such as `30`, `1.5` or `-5`.
pub(crate) fn is_number(expr: &Expr) -> bool {
    match bare(expr) {
        Expr::Lit(ExprLit { lit, .. }) => matches!(lit, Lit::Int(_) | Lit::Float(_)),
        Expr::Unary(ExprUnary {
            op: UnOp::Neg(_),
            expr,
            ..
        }) => is_number(expr),
        _ => false,
    }
}

/// A `Duration`, as the generated code writes it.
pub(crate) fn fixed(duration: Duration, span: Span) -> TokenStream {
    let seconds = duration.as_secs();
    let nanoseconds = duration.subsec_nanos();
    quote_spanned!(span=> ::core::time::Duration::new(#seconds, #nanoseconds))
}
