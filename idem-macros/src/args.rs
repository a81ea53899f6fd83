//! The options of `#[idempotent(..)]` as they are written: which are there, and with what value.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::parse::discouraged::Speculative as _;
use syn::parse::{ParseStream, Parser};
use syn::{Error, Expr, LitStr, Token, token};

use crate::arms::Arms;
use crate::diag::{self, Errors};
use crate::versions::UpgradeSetting;

/// One option. The value is `None` for a flag, and for a value that could not be read, which is
/// reported already.
pub(crate) struct Setting {
    pub(crate) keyword: Ident,
    pub(crate) value: Option<Expr>,
}

/// `errors(..)`. The arms are `None` after a mistake in them, which is reported already.
pub(crate) struct ErrorsSetting {
    pub(crate) keyword: Ident,
    pub(crate) arms: Option<Arms>,
}

/// Every option there is, set at most once.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) identity: IdentityArgs,
    pub(crate) times: TimeArgs,
    pub(crate) call: CallArgs,
    pub(crate) outcome: OutcomeArgs,
    pub(crate) krate: Option<Setting>,
}

/// The arguments that identify a call.
#[derive(Default)]
pub(crate) struct IdentityArgs {
    pub(crate) key: Option<Setting>,
    pub(crate) token: Option<Setting>,
    pub(crate) subject: Option<Setting>,
    pub(crate) name: Option<Setting>,
    pub(crate) fingerprint: Option<Setting>,
    pub(crate) missing_key: Option<Setting>,
    /// Whether an unknown option was probably meant to be the key.
    pub(crate) misspelt_key: bool,
}

/// The options that are durations.
#[derive(Default)]
pub(crate) struct TimeArgs {
    pub(crate) ttl: Option<Setting>,
    pub(crate) remember: Option<Setting>,
    pub(crate) lease: Option<Setting>,
    pub(crate) hold: Option<Setting>,
}

/// How a call is carried out.
#[derive(Default)]
pub(crate) struct CallArgs {
    pub(crate) in_flight: Option<Setting>,
    pub(crate) duplicate: Option<Setting>,
    pub(crate) abandoned: Option<Setting>,
    pub(crate) store_failure: Option<Setting>,
    pub(crate) max_attempts: Option<Setting>,
    pub(crate) observe: Option<Setting>,
    pub(crate) detached: Option<Setting>,
    pub(crate) transaction: Option<Setting>,
    pub(crate) runtime: Option<Setting>,
}

/// What is recorded.
#[derive(Default)]
pub(crate) struct OutcomeArgs {
    pub(crate) outcome_version: Option<Setting>,
    pub(crate) upgrade: Option<UpgradeSetting>,
    pub(crate) errors: Option<ErrorsSetting>,
}

/// Each option's name, and how it is written.
const OPTIONS: [(&str, &str); 23] = [
    ("key", "key = \"req.order_id\""),
    ("token", "token = \"form.token\""),
    ("subject", "subject = \"user.id\""),
    ("ttl", "ttl = \"5m\""),
    ("remember", "remember = \"30d\""),
    ("name", "name = \"orders.create\""),
    ("fingerprint", "fingerprint = \"req\""),
    ("lease", "lease = \"30s\""),
    ("in_flight", "in_flight = wait(\"5s\")"),
    ("duplicate", "duplicate = reject"),
    ("abandoned", "abandoned = reconcile(\"lookup(&req)\")"),
    ("hold", "hold = \"30d\""),
    ("store_failure", "store_failure = run"),
    ("missing_key", "missing_key = run"),
    ("max_attempts", "max_attempts = 5"),
    ("detached", "detached"),
    ("observe", "observe"),
    ("outcome_version", "outcome_version = 2"),
    ("upgrade", "upgrade(1 => from_v1)"),
    ("transaction", "transaction = tx"),
    ("runtime", "runtime = \"self.idempotency\""),
    (
        "errors",
        "errors(OrderError::Declined(_) => keep, _ => release)",
    ),
    ("crate", "crate = \"::idem\""),
];

/// Words of other libraries, and the word here for each; two words where it may mean either.
const ALIASES: [(&str, &str); 27] = [
    ("id", "key"),
    ("nonce", "token"),
    ("user", "subject"),
    ("session", "subject"),
    ("operation", "name"),
    ("retention", "ttl"),
    ("expire", "ttl"),
    ("expiration", "ttl"),
    ("expiry", "ttl"),
    ("expires_in", "ttl"),
    ("payload", "fingerprint"),
    ("body", "fingerprint"),
    ("timeout", "lease"),
    ("timeout", "in_flight"),
    ("wait", "in_flight"),
    ("reconcile", "abandoned"),
    ("retries", "max_attempts"),
    ("store", "runtime"),
    ("on_error", "errors"),
    ("keep", "errors"),
    ("release", "errors"),
    ("retry", "errors"),
    ("policy", "errors"),
    ("dry_run", "observe"),
    ("shadow", "observe"),
    ("version", "outcome_version"),
    ("migrate", "upgrade"),
];

impl Args {
    /// Reads all options; one that cannot be read does not hide the mistakes in the others.
    pub(crate) fn parse(tokens: TokenStream, errors: &mut Errors) -> Self {
        let mut args = Self::default();
        let parser = |input: ParseStream<'_>| {
            while !input.is_empty() {
                if let Err(error) = args.option(input, errors) {
                    errors.push(error);
                    skip_to_next(input);
                }
                separator(input, errors);
            }
            Ok(())
        };
        let read = parser.parse2(tokens);
        errors.keep(read);
        args
    }

    /// Reads one option, up to the comma after it.
    fn option(&mut self, input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<()> {
        let keyword = self.keyword(input)?;
        let name = keyword.to_string();
        if name == "errors" {
            return self.errors(keyword, input, errors);
        }
        if name == "upgrade" {
            return self.upgrade(keyword, input, errors);
        }
        let Some((slot, example)) = self.slot(&name) else {
            let stands_alone = input.is_empty() || input.peek(Token![,]);
            let message = self.unknown_option(&name, stands_alone);
            return Err(Error::new(keyword.span(), message));
        };
        if slot.is_some() {
            return Err(twice(&keyword));
        }
        // The slot is taken even by a value that cannot be read, so that the option does not count
        // as missing.
        let setting = slot.insert(Setting {
            keyword,
            value: None,
        });
        if matches!(name.as_str(), "detached" | "observe") {
            return flag(&name, input);
        }
        setting.value = Some(value(&setting.keyword, example, input)?);
        if !input.is_empty() && !input.peek(Token![,]) && !at_known_option(input) {
            let message = if matches!(name.as_str(), "ttl" | "remember" | "lease" | "hold") {
                // The parsed part is only the beginning of the value.
                setting.value = None;
                format!("a duration is written in quotes: write for example `{example}`")
            } else {
                format!(
                    "the value of `{name}` ends before this: is a comma or a parenthesis missing?"
                )
            };
            errors.push(input.error(message));
            skip_to_next(input);
        }
        Ok(())
    }

    /// Reads the word with which an option begins.
    fn keyword(&mut self, input: ParseStream<'_>) -> syn::Result<Ident> {
        let bare = !at_option(input);
        if bare && self.identity.key.is_none() && !input.peek(Token![,]) {
            // Most likely the key without the word `key`.
            self.identity.misspelt_key = true;
            return Err(
                input.error("expected an option: write the key as `key = \"req.order_id\"`")
            );
        }
        if let Some(literal) = input.fork().parse::<Option<LitStr>>()?
            && let Some((option, example)) = OPTIONS
                .iter()
                .find(|(option, _)| literal.value().trim() == *option)
        {
            let message =
                format!("`{option}` is a word, not a string: write for example `{example}`");
            return Err(Error::new(literal.span(), message));
        }
        let keyword = Ident::parse_any(input).map_err(|error| {
            Error::new(error.span(), "expected an option, such as `ttl = \"5m\"`")
        })?;
        Ok(keyword.unraw())
    }

    /// Returns the message about an unknown option, and notes whether it was meant to be the key.
    fn unknown_option(&mut self, name: &str, stands_alone: bool) -> String {
        let (message, meant) = unknown(name);
        if meant.is_none() && stands_alone && self.identity.key.is_none() {
            self.identity.misspelt_key = true;
            return format!("unknown option `{name}`: to make it the key, write `key = {name}`");
        }
        self.identity.misspelt_key |= meant == Some("key");
        message
    }

    fn errors(
        &mut self,
        keyword: Ident,
        input: ParseStream<'_>,
        errors: &mut Errors,
    ) -> syn::Result<()> {
        if self.outcome.errors.is_some() {
            return Err(twice(&keyword));
        }
        let setting = self.outcome.errors.insert(ErrorsSetting {
            keyword,
            arms: None,
        });
        setting.arms = Arms::parse(&setting.keyword, input, errors)?;
        Ok(())
    }

    fn upgrade(
        &mut self,
        keyword: Ident,
        input: ParseStream<'_>,
        errors: &mut Errors,
    ) -> syn::Result<()> {
        if self.outcome.upgrade.is_some() {
            return Err(twice(&keyword));
        }
        let setting = self.outcome.upgrade.insert(UpgradeSetting {
            keyword,
            upgrades: Vec::new(),
        });
        setting.parse(input, errors)
    }

    fn slot(&mut self, name: &str) -> Option<(&mut Option<Setting>, &'static str)> {
        let (_, example) = OPTIONS.iter().find(|(option, _)| *option == name)?;
        let slot = match name {
            "key" => &mut self.identity.key,
            "token" => &mut self.identity.token,
            "subject" => &mut self.identity.subject,
            "ttl" => &mut self.times.ttl,
            "remember" => &mut self.times.remember,
            "name" => &mut self.identity.name,
            "fingerprint" => &mut self.identity.fingerprint,
            "lease" => &mut self.times.lease,
            "in_flight" => &mut self.call.in_flight,
            "duplicate" => &mut self.call.duplicate,
            "abandoned" => &mut self.call.abandoned,
            "hold" => &mut self.times.hold,
            "store_failure" => &mut self.call.store_failure,
            "missing_key" => &mut self.identity.missing_key,
            "max_attempts" => &mut self.call.max_attempts,
            "detached" => &mut self.call.detached,
            "observe" => &mut self.call.observe,
            "outcome_version" => &mut self.outcome.outcome_version,
            "transaction" => &mut self.call.transaction,
            "runtime" => &mut self.call.runtime,
            "crate" => &mut self.krate,
            _ => return None,
        };
        Some((slot, example))
    }
}

fn twice(keyword: &Ident) -> Error {
    Error::new(
        keyword.span(),
        format!("`{keyword}` is given twice: leave one of them out"),
    )
}

/// Returns the message about an unknown option, and the option that was probably meant.
fn unknown(name: &str) -> (String, Option<&'static str>) {
    let names = OPTIONS.map(|(option, _)| option);
    let aliases = ALIASES.iter().filter(|(alias, _)| *alias == name);
    let mut meant: Vec<&'static str> = aliases.map(|(_, option)| *option).collect();
    if meant.is_empty() {
        meant.extend(diag::closest(name, names));
    }
    let known = OPTIONS.iter().filter(|(option, _)| meant.contains(option));
    let examples: Vec<String> = known
        .map(|(option, example)| format!("`{option}`, as in `{example}`"))
        .collect();
    let message = if examples.is_empty() {
        let expected = diag::alternatives(names);
        format!("unknown option `{name}`: expected {expected}")
    } else {
        let examples = examples.join(", or ");
        format!("unknown option `{name}`: did you mean {examples}?")
    };
    (message, meant.first().copied())
}

fn flag(name: &str, input: ParseStream<'_>) -> syn::Result<()> {
    if input.is_empty() || input.peek(Token![,]) {
        return Ok(());
    }
    Err(input.error(format!(
        "`{name}` takes no value: write `{name}` alone, or leave it out"
    )))
}

fn value(keyword: &Ident, example: &str, input: ParseStream<'_>) -> syn::Result<Expr> {
    if input.is_empty() || input.peek(Token![,]) {
        let message = format!("`{keyword}` needs a value: write for example `{example}`");
        return Err(Error::new(keyword.span(), message));
    }
    if !input.peek(Token![=]) {
        return Err(input.error(format!(
            "expected `=` after `{keyword}`: write for example `{example}`"
        )));
    }
    let equals: Token![=] = input.parse()?;
    if input.is_empty() || input.peek(Token![,]) {
        let message =
            format!("`{keyword}` needs a value after the `=`: write for example `{example}`");
        return Err(Error::new(equals.span, message));
    }
    // On a copy, because the input that a failed attempt leaves would be reported a second time.
    let ahead = input.fork();
    let expr = ahead.parse().map_err(|error| {
        let message =
            format!("this is not a value for `{keyword}` ({error}): write for example `{example}`");
        // At the end, the caret points at the token before.
        let span = if ahead.is_empty() {
            last(input).unwrap_or(equals.span)
        } else {
            error.span()
        };
        Error::new(span, message)
    })?;
    input.advance_to(&ahead);
    Ok(expr)
}

/// The place of the last token.
fn last(input: ParseStream<'_>) -> Option<Span> {
    let rest: TokenStream = input.fork().parse().ok()?;
    rest.into_iter().last().map(|tree| tree.span())
}

/// Reads the comma between two options.
fn separator(input: ParseStream<'_>, errors: &mut Errors) {
    if input.is_empty() {
        return;
    }
    match input.parse::<Token![,]>() {
        Ok(_) => {}
        Err(error) => errors.at(error.span(), "expected a comma before this option"),
    }
}

/// Skips the rest of an option that could not be read. Its value may contain commas, so only a
/// comma before something like an option ends it.
fn skip_to_next(input: ParseStream<'_>) {
    while !input.is_empty() {
        if input.peek(Token![,]) {
            let ahead = input.fork();
            if ahead.parse::<Token![,]>().is_ok() && (ahead.is_empty() || at_option(&ahead)) {
                return;
            }
        }
        if input.parse::<TokenTree>().is_err() {
            return;
        }
    }
}

fn at_known_option(input: ParseStream<'_>) -> bool {
    let word = input
        .fork()
        .call(Ident::parse_any)
        .map(|word| word.to_string());
    at_option(input) && word.is_ok_and(|word| OPTIONS.iter().any(|(option, _)| *option == word))
}

fn at_option(input: ParseStream<'_>) -> bool {
    let ahead = input.fork();
    ahead.call(Ident::parse_any).is_ok()
        && (ahead.is_empty()
            || ahead.peek(Token![=])
            || ahead.peek(Token![,])
            || ahead.peek(token::Paren))
}
