//! What is written in `#[idem(..)]`.

use proc_macro2::{Ident, Span, TokenStream};
use syn::parse::ParseStream;
use syn::{Attribute, Error, Expr, Meta, Token, token};

use crate::action::Action;
use crate::diag::Errors;
use crate::paths::Krate;
use crate::value::{Reader, Time};

/// The policy for one kind of error.
pub(super) enum Policy {
    /// As it is written; `None` is not written at all.
    Action(Option<Action>),
    /// The policy of the error inside.
    Inner(Span),
}

/// The words besides actions, and how they are written. The last two are for the whole type.
const OTHER_WORDS: [(&str, &str); 5] = [
    ("inner", "inner"),
    ("dead_letter", "dead_letter"),
    ("redeliver", "redeliver = \"30s\""),
    ("dispose", "dispose"),
    ("crate", "crate = \"::idem\""),
];

/// The content of `#[idem(..)]` for one kind of error.
#[derive(Default)]
pub(super) struct Content {
    pub(super) policy: Option<Policy>,
    /// The word `dead_letter`: a message whose handler fails with it is put aside.
    pub(super) dead_letter: Option<Span>,
    /// The word `dispose`: `Dispose` is derived although no variant is put aside.
    pub(super) dispose: Option<Span>,
    pub(super) redeliver: Option<Redeliver>,
}

/// `redeliver = "30s"`.
pub(super) struct Redeliver {
    pub(super) word: Span,
    /// `None` if there is a mistake in it.
    pub(super) pause: Option<Time>,
}

/// Reads `#[idem(..)]`: an action or `inner`, `dead_letter`, `redeliver` and, on the type, `crate`
/// and `dispose`.
pub(super) fn content(
    attributes: &[Attribute],
    mut krate: Option<&mut Option<Krate>>,
    errors: &mut Errors,
) -> Content {
    let mut content = Content::default();
    for attribute in attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("idem"))
    {
        let message = match &attribute.meta {
            Meta::NameValue(_) => "this goes in parentheses: write for example `#[idem(keep)]`",
            Meta::List(list) if !list.tokens.is_empty() => {
                let read = attribute.parse_args_with(|input: ParseStream<'_>| {
                    while !input.is_empty() {
                        content.word(input, krate.as_deref_mut(), errors)?;
                        if !input.is_empty() {
                            let at = input.span();
                            input
                                .parse::<Token![,]>()
                                .map_err(|_| Error::new(at, "expected a comma before this"))?;
                        }
                    }
                    Ok(())
                });
                errors.keep(read);
                continue;
            }
            Meta::Path(_) | Meta::List(_) => {
                "`#[idem]` says nothing: write for example `#[idem(keep)]`"
            }
        };
        errors.on(attribute, message);
    }
    content
}

/// The next word, if it is one of these.
fn next_word(input: ParseStream<'_>, words: &[&str]) -> Option<Ident> {
    let word: Ident = input.fork().parse().ok()?;
    words
        .iter()
        .any(|expected| word == expected)
        .then_some(word)
}

/// Reports a value after a word that has none.
fn takes_nothing(word: &Ident, input: ParseStream<'_>) -> syn::Result<()> {
    if !input.peek(Token![=]) && !input.peek(token::Paren) {
        return Ok(());
    }
    let error = input.error(format!("`{word}` takes nothing: write `{word}`"));
    // The rest of the input would be reported as another mistake.
    input.parse::<TokenStream>()?;
    Err(error)
}

impl Content {
    /// Reads one word, with what belongs to it. Only a type has a `krate`.
    fn word(
        &mut self,
        input: ParseStream<'_>,
        krate: Option<&mut Option<Krate>>,
        errors: &mut Errors,
    ) -> syn::Result<()> {
        if input.peek(Token![crate]) {
            let word: Token![crate] = input.parse()?;
            if input.parse::<Token![=]>().is_err() {
                return Err(Error::new(
                    word.span,
                    "`crate` needs a path: write for example `crate = \"::idem\"`",
                ));
            }
            let path = Krate::parse(&input.parse::<Expr>()?, errors).unwrap_or_default();
            match krate {
                Some(krate @ None) => *krate = Some(path),
                Some(Some(_)) => errors.on(word, "`crate` is given twice: leave one of them out"),
                None => errors.on(
                    word,
                    "`crate` is for the whole type: write it above the `enum`",
                ),
            }
        } else if let Some(word) = next_word(input, &["dead_letter", "dispose"]) {
            input.parse::<Ident>()?;
            self.message(&word, krate.is_some(), errors);
            takes_nothing(&word, input)?;
        } else if let Some(word) = next_word(input, &["redeliver"]) {
            input.parse::<Ident>()?;
            self.redeliver(&word, input, errors)?;
        } else {
            let at = input.span();
            let next = one_policy(input, krate.is_some(), errors)?;
            if self.policy.is_some() {
                errors.at(
                    at,
                    "two policies for the same errors: leave one of them out",
                );
            }
            self.policy = Some(next);
        }
        Ok(())
    }

    fn message(&mut self, word: &Ident, is_type: bool, errors: &mut Errors) {
        let slot = if word == "dispose" {
            &mut self.dispose
        } else {
            &mut self.dead_letter
        };
        if slot.is_some() {
            errors.on(
                word,
                format!("`{word}` is given twice: leave one of them out"),
            );
        }
        if word == "dispose" && !is_type {
            errors.on(
                word,
                "`dispose` is for the whole type: write it above the `enum`",
            );
        }
        *slot = Some(word.span());
    }

    /// The part after the word `redeliver`.
    fn redeliver(
        &mut self,
        word: &Ident,
        input: ParseStream<'_>,
        errors: &mut Errors,
    ) -> syn::Result<()> {
        let earlier = self.redeliver.replace(Redeliver {
            word: word.span(),
            pause: None,
        });
        if input.parse::<Token![=]>().is_err() {
            // The rest of the input would be reported as another mistake.
            input.parse::<TokenStream>()?;
            return Err(Error::new(
                word.span(),
                "`redeliver` needs a pause: write for example `redeliver = \"30s\"`",
            ));
        }
        let mut reader = Reader {
            keyword: word,
            errors,
        };
        self.redeliver = Some(Redeliver {
            word: word.span(),
            pause: reader.time(&input.parse()?),
        });
        if earlier.is_some() {
            errors.on(word, "`redeliver` is given twice: leave one of them out");
        }
        Ok(())
    }

    /// Whether anything is said of messages, so that `Dispose` is derived.
    pub(super) fn derives_dispose(&self) -> bool {
        self.dispose.or(self.dead_letter).is_some() || self.redeliver.is_some()
    }
}

fn one_policy(input: ParseStream<'_>, is_type: bool, errors: &mut Errors) -> syn::Result<Policy> {
    let word: Option<Ident> = input.fork().parse().ok();
    match word {
        Some(word) if word == "inner" => {
            input.parse::<Ident>()?;
            takes_nothing(&word, input)?;
            Ok(Policy::Inner(word.span()))
        }
        _ => {
            let others = if is_type {
                &OTHER_WORDS[..]
            } else {
                &OTHER_WORDS[..3]
            };
            Action::parse_among(input, errors, others).map(Policy::Action)
        }
    }
}
