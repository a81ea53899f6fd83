//! The meaning of the attribute on this function: each option parsed and checked, alone and against
//! the others.

mod choice;

use std::time::Duration;

use proc_macro2::{Ident, Span};
use quote::ToTokens;
use syn::{Error, Expr, Receiver, Type};

use self::choice::{ABANDONED, Choice, DUPLICATE, IN_FLIGHT, MISSING_KEY, STORE_FAILURE};
use crate::args::{Args, Setting};
use crate::bindings::{Bindings, Borrow, Reference, format_of, mentions, self_in_task};
use crate::diag::Errors;
use crate::handling::Handling;
use crate::item::{self, Form, Function};
use crate::paths::Krate;
use crate::transaction::{self, Parameter};
use crate::value::{self, Name, Reader, Time, Word};
use crate::versions::{Upgrade, UpgradeSetting};

/// Everything that the generated code depends on. The runtime decides about options that are not
/// given.
pub(crate) struct Plan {
    pub(crate) function: Function,
    pub(crate) form: Form,
    /// The `Result` that the function gives.
    pub(crate) outcome: Type,
    pub(crate) krate: Krate,
    pub(crate) operation: OperationPlan,
    pub(crate) errors: Handling,
    /// The place of `detached`.
    pub(crate) detached: Option<Span>,
    /// The parameter that is the caller's transaction.
    pub(crate) transaction: Option<Parameter>,
    pub(crate) bindings: Bindings,
    /// The compiler would report a mistake in the body again, in other words.
    pub(crate) hides_body: bool,
}

/// The parts of the description of a call.
pub(crate) struct OperationPlan {
    pub(crate) name: Option<Name>,
    /// A reference to the runtime.
    pub(crate) runtime: Option<Expr>,
    /// The calls that build the operation, in this order.
    pub(crate) calls: Vec<Call>,
    pub(crate) reconcile: Option<Expr>,
    /// The place of `missing_key`.
    pub(crate) missing_key: Option<Span>,
}

/// One call of the operation's builder.
pub(crate) struct Call {
    /// The method, with the span of its option.
    pub(crate) method: Ident,
    pub(crate) argument: Argument,
}

pub(crate) enum Argument {
    Expression(Box<Expr>),
    /// A token, and whom it must be issued to.
    Submission(Box<[Expr; 2]>),
    Time(Time),
    Nothing,
    /// A variant of one of the enums that the `idem` crate exports.
    Variant(&'static str, Ident),
    /// How an earlier version of the outcome is read.
    Upgrade(Box<Upgrade>),
}

/// The shortest lease that the runtime takes: the tenth of margin must be more than timers and
/// scheduling need.
const MIN_LEASE: Duration = Duration::from_millis(100);

impl Plan {
    /// Checks everything, so that all mistakes are reported at once.
    pub(crate) fn new(args: Args, function: Option<Function>, errors: &mut Errors) -> Option<Self> {
        check_identity(&args, errors);
        let transaction = transaction::parameter(&args, function.as_ref(), errors);
        check_name_is_given(&args, function.as_ref(), errors);
        let target = function
            .as_ref()
            .and_then(|function| function.outcome(errors));
        let (krate, mut operation) = Options::read_all(&args, errors);
        let function = function?;
        let boxed = match &target {
            Some((Form::Boxed(boxed), _)) => Some(boxed),
            _ => None,
        };
        let bindings = Bindings::collect(&function.signature, boxed);
        if let Some(upgrade) = &args.outcome.upgrade {
            let current = args.outcome.outcome_version.as_ref();
            upgrade.check(
                current.is_some(),
                current.and_then(|setting| setting.value.as_ref()),
                &bindings,
                errors,
            );
        }
        let handling = Handling::new(args.outcome.errors);
        if args.call.transaction.is_some() {
            transaction::check_errors(&handling, errors);
        }
        operation.check(&handling, &bindings, errors);
        operation.runtime = operation.runtime.as_ref().map(value::reference);
        let (form, outcome) = target?;
        let mut plan = Self {
            function,
            form,
            outcome,
            krate: krate.unwrap_or_default(),
            operation,
            errors: handling,
            detached: args.call.detached.map(|setting| setting.keyword.span()),
            transaction,
            bindings,
            hides_body: false,
        };
        plan.check_borrows(errors);
        Some(plan)
    }

    /// Reports arguments that the body uses and that it cannot have.
    fn check_borrows(&mut self, errors: &mut Errors) {
        let exclusive = self.bindings.receiver.as_ref().map(Reference::of_receiver)
            == Some(Reference::Exclusive);
        if exclusive
            && self.errors.retries().is_some()
            && let Some(place) = self_in_task(&self.function.body.stream())
        {
            let message = "a task may outlive this call, so it cannot borrow `self`: give it what \
                it needs by value, such as a clone of a field";
            errors.at(place, message);
            self.hides_body = true;
        }
        if let Some(literal) = self
            .renamed_receiver()
            .and_then(|_| format_of(&self.function.body.stream(), "self"))
        {
            let message = "each try has a `self` of its own, which a format string does not see: \
                write `{}`, and `self` after the text";
            errors.on(literal, message);
        }
        if self.detached.is_none() {
            return;
        }
        for Borrow {
            names,
            caret,
            is_static,
        } in Borrow::collect(&self.function.signature)
        {
            for name in names.iter().filter(|name| !is_static && self.uses(name)) {
                let advice = if name == "self" {
                    "take `self: Arc<Self>`, or call a function that owns what it needs"
                } else {
                    "take it by value, or in an `Arc`"
                };
                let message = format!(
                    "a `detached` body outlives its caller, so it cannot borrow `{name}`: {advice}"
                );
                errors.on(&caret, message);
            }
        }
    }

    /// A `self` with another name in a retried body, because `self` has no second binding.
    pub(crate) fn renamed_receiver(&self) -> Option<&Receiver> {
        let receiver = self.bindings.receiver.as_ref()?;
        let is_shared = Reference::of_receiver(receiver) == Reference::Shared;
        let renamed =
            matches!(self.form, Form::Async) && self.errors.retries().is_some() && !is_shared;
        (renamed && self.uses("self")).then_some(receiver)
    }

    /// Whether the body uses this parameter.
    pub(crate) fn uses(&self, name: &str) -> bool {
        let block = match &self.form {
            Form::Async => self.function.body.stream(),
            Form::Boxed(boxed) => boxed.block.stream(),
        };
        let reconcile = self
            .operation
            .reconcile
            .as_ref()
            .map(ToTokens::to_token_stream)
            .unwrap_or_default();
        // So it is called by `#[async_trait]`.
        let or_as = if name == "self" { "__self" } else { name };
        mentions(&block, name)
            || mentions(&block, or_as)
            || mentions(&reconcile, name)
            || name == "__self" && mentions(&reconcile, "self")
    }
}

impl OperationPlan {
    /// Checks the expressions that are evaluated before the body.
    fn check(&self, handling: &Handling, bindings: &Bindings, errors: &mut Errors) {
        if let Some(Name::Constant(expr)) = &self.name {
            check_name(expr, bindings, errors);
        }
        let expressions = self
            .calls
            .iter()
            .flat_map(|call| call.argument.expressions());
        for expr in expressions
            .chain(handling.computed().map(|value| &value.expr))
            .chain(&self.runtime)
            .chain(&self.reconcile)
        {
            bindings.check(expr, errors);
        }
    }
}

/// Reports a function that must say the operation's name and does not.
fn check_name_is_given(args: &Args, function: Option<&Function>, errors: &mut Errors) {
    if args.identity.name.is_some() {
        return;
    }
    if let Some(error) = function.and_then(Function::needs_name) {
        errors.push(error);
    } else if let Some(token) = &args.identity.token {
        let message = "tokens are issued under the operation's name, so it needs a `name`: write \
            for example `name = \"orders.submit\"`, and issue with \
            `operation(\"orders.submit\").issue(..)`";
        errors.at(token.keyword.span(), message);
    }
}

/// Reports a call without a key or token, with both, or with a token or subject alone; and options
/// that make no sense with a token.
fn check_identity(args: &Args, errors: &mut Errors) {
    match (
        &args.identity.key,
        &args.identity.token,
        &args.identity.subject,
    ) {
        (None, None, None) if !args.identity.misspelt_key => {
            errors.at(
                Span::call_site(),
                "`#[idempotent]` needs a key: write for example `key = \"req.order_id\"`",
            );
        }
        (Some(_), Some(token), _) => {
            let message = "`token` takes the place of `key`: a submission is identified by its \
                token alone, so leave one of them out";
            errors.at(token.keyword.span(), message);
        }
        (_, None, Some(subject)) => {
            let message = "`subject` is the visitor that a `token` was issued to, and there is no \
                `token`: write for example `token = \"form.token\"`, or leave `subject` out";
            errors.at(subject.keyword.span(), message);
        }
        (None, Some(token), None) => {
            let message = "`token` needs a `subject`, the visitor that it was issued to, as the \
                server knows it: write for example `subject = \"user.id\"`";
            errors.at(token.keyword.span(), message);
        }
        _ => {}
    }
    if args.identity.token.is_some() {
        if let Some(missing_key) = &args.identity.missing_key {
            let message = "a call without its token never runs: leave `missing_key` out";
            errors.at(missing_key.keyword.span(), message);
        }
        if let Some(Setting {
            keyword,
            value: Some(value),
        }) = &args.call.store_failure
            && value::is_path(value, "run")
        {
            let message = format!(
                "a call with a token never runs without the store, because only the store knows \
                 whether the token is valid: leave `{keyword}` out"
            );
            errors.on(value, message);
        }
    }
}

/// Reports a constant name that uses what no constant can.
fn check_name(expr: &Expr, bindings: &Bindings, errors: &mut Errors) {
    if let Some(parameter) = bindings.first_in(expr) {
        let message = format!(
            "`name` is one constant for all calls, so it cannot use the parameter `{parameter}`: \
             what differs from call to call goes into `key`"
        );
        errors.on(expr, message);
    } else if let Some(ty) = bindings
        .first_type_in(expr)
        .filter(|_| !item::is_of_type(expr))
    {
        let message = format!(
            "`name` is a constant, which cannot use the function's own type parameter `{ty}`: in \
             an `impl` with that parameter, write `const NAME: &'static str = {ty}::NAME;`, and \
             here `name = Self::NAME`"
        );
        errors.on(expr, message);
    }
}

impl Argument {
    /// What is written by the author.
    pub(crate) fn expressions(&self) -> &[Expr] {
        match self {
            Self::Expression(expr) | Self::Time(Time::Computed(expr)) => std::slice::from_ref(expr),
            Self::Submission(both) => &both[..],
            // An upgrade is not an expression over the parameters.
            Self::Time(Time::Fixed(_)) | Self::Nothing | Self::Variant(..) | Self::Upgrade(_) => {
                &[]
            }
        }
    }
}

/// Turns options into calls.
struct Options<'a> {
    errors: &'a mut Errors,
    calls: Vec<Call>,
}

impl Options<'_> {
    /// Reads all options but `errors(..)`, `detached` and `transaction`.
    fn read_all(args: &Args, errors: &mut Errors) -> (Option<Krate>, OperationPlan) {
        let Args {
            identity,
            call,
            outcome,
            ..
        } = args;
        let mut options = Options {
            errors,
            calls: Vec::new(),
        };
        let krate = options.read(args.krate.as_ref(), |reader, expr| {
            Krate::parse(expr, reader.errors)
        });
        let name = options.read(identity.name.as_ref(), Reader::name);
        let runtime = options.read(call.runtime.as_ref(), Reader::expression);
        options.parts(identity.key.as_ref());
        options.submission(identity.token.as_ref(), identity.subject.as_ref());
        options.fingerprint(identity.fingerprint.as_ref());
        options.times(args);
        options.in_flight(call.in_flight.as_ref());
        let reconcile = options.abandoned(call.abandoned.as_ref());
        options.choice(call.duplicate.as_ref(), &DUPLICATE);
        options.choice(call.store_failure.as_ref(), &STORE_FAILURE);
        options.choice(identity.missing_key.as_ref(), &MISSING_KEY);
        options.count(call.max_attempts.as_ref());
        options.call(
            None,
            call.observe.as_ref(),
            call.observe.as_ref().map(|_| Argument::Nothing),
        );
        options.count(outcome.outcome_version.as_ref());
        options.upgrades(outcome.upgrade.as_ref());
        let missing_key = identity.missing_key.as_ref();
        let operation = OperationPlan {
            name,
            runtime,
            calls: options.calls,
            reconcile,
            missing_key: missing_key.map(|setting| setting.keyword.span()),
        };
        (krate, operation)
    }

    /// The value of an option that is given and right.
    fn read<'a, T>(
        &'a mut self,
        setting: Option<&'a Setting>,
        read: impl FnOnce(&mut Reader<'a>, &Expr) -> Option<T>,
    ) -> Option<T> {
        let Setting { keyword, value } = setting?;
        read(
            &mut Reader {
                keyword,
                errors: self.errors,
            },
            value.as_ref()?,
        )
    }

    /// The call of the method that is named like the option, or of another one.
    fn call(
        &mut self,
        method: Option<&str>,
        setting: Option<&Setting>,
        argument: Option<Argument>,
    ) {
        if let (Some(Setting { keyword, .. }), Some(argument)) = (setting, argument) {
            let method = method.map_or_else(|| keyword.to_string(), str::to_owned);
            self.calls.push(Call {
                method: Ident::new(&method, keyword.span()),
                argument,
            });
        }
    }

    fn parts(&mut self, setting: Option<&Setting>) {
        let parts = self.read(setting, Reader::parts);
        self.call(None, setting, parts.map(Box::new).map(Argument::Expression));
    }

    /// The bare word `none` says that there is none.
    fn fingerprint(&mut self, setting: Option<&Setting>) {
        let value = setting.and_then(|setting| setting.value.as_ref());
        let in_string = value
            .and_then(value::string)
            .map(|literal| literal.value().trim().to_lowercase());
        if value.is_some_and(|value| value::is_path(value, "none")) {
            self.call(Some("no_fingerprint"), setting, Some(Argument::Nothing));
        } else if value.is_some_and(|value| value::is_path(value, "None"))
            || in_string.as_deref() == Some("none")
        {
            self.errors.on(
                value,
                "no fingerprint is the bare word `none`: write `fingerprint = none`",
            );
        } else {
            self.parts(setting);
        }
    }

    fn submission(&mut self, token: Option<&Setting>, subject: Option<&Setting>) {
        let both = [
            self.read(token, Reader::expression)
                .map(|token| value::reference(&token)),
            self.read(subject, Reader::parts),
        ];
        if let [Some(token_expr), Some(subject)] = both {
            self.call(
                None,
                token,
                Some(Argument::Submission(Box::new([token_expr, subject]))),
            );
        }
    }

    fn count(&mut self, setting: Option<&Setting>) {
        let count = self.read(setting, Reader::count);
        self.call(None, setting, count.map(Box::new).map(Argument::Expression));
    }

    fn upgrades(&mut self, setting: Option<&UpgradeSetting>) {
        for upgrade in setting.iter().flat_map(|setting| &setting.upgrades) {
            let method = Ident::new(
                "upgrade",
                setting.map_or_else(Span::call_site, |setting| setting.keyword.span()),
            );
            self.calls.push(Call {
                method,
                argument: Argument::Upgrade(Box::new(upgrade.clone())),
            });
        }
    }

    fn choice(&mut self, setting: Option<&Setting>, choice: &Choice) {
        let word = self.read(setting, |reader, expr| {
            reader.plain_word(expr, &choice.words())
        });
        self.call(None, setting, word.and_then(|word| choice.variant(&word)));
    }

    fn times(&mut self, args: &Args) {
        let [ttl, remember, lease, hold] = [
            &args.times.ttl,
            &args.times.remember,
            &args.times.lease,
            &args.times.hold,
        ]
        .map(|setting| {
            let setting = setting.as_ref();
            (setting, self.read(setting, Reader::time))
        });
        let abandoned = args
            .call
            .abandoned
            .as_ref()
            .and_then(|setting| setting.value.as_ref());
        if let (Some(setting), _) = &hold
            && abandoned.is_some_and(|value| value::is_path(value, "rerun"))
        {
            let message = "`hold` is for records that wait to be settled, and with `abandoned = \
                rerun` none does: leave it out, or write `abandoned = reject`";
            self.errors.at(setting.keyword.span(), message);
        }
        if let ((_, Some(Time::Fixed(ttl))), (Some(setting), Some(Time::Fixed(remember)))) =
            (&ttl, &remember)
            && remember < ttl
        {
            let message = "`remember` is shorter than `ttl`, but counts from the same moment: make \
                it longer, or leave it out";
            self.errors
                .push(Error::new_spanned(&setting.value, message));
        }
        if let (Some(setting), Some(Time::Fixed(length))) = &lease
            && *length < MIN_LEASE
        {
            let message = format!(
                "`lease` is at least {MIN_LEASE:?}, and should be several times the store's round \
                 trip: write for example `lease = \"30s\"`"
            );
            self.errors
                .push(Error::new_spanned(&setting.value, message));
        }
        for (setting, time) in [ttl, remember, lease, hold] {
            self.call(None, setting, time.map(Argument::Time));
        }
    }

    fn in_flight(&mut self, setting: Option<&Setting>) {
        let read = self.read(setting, |reader, expr| {
            let word = reader.word(expr, &IN_FLIGHT.words())?;
            if word.name == "wait" && word.arguments.is_some() {
                let argument = only_argument(reader, &word, "wait(\"5s\")")?;
                return Some(("wait", Argument::Time(reader.time(&argument)?)));
            }
            let word = reader.plain_word(expr, &IN_FLIGHT.words())?;
            Some(("in_flight", IN_FLIGHT.variant(&word)?))
        });
        if let Some((method, argument)) = read {
            self.call(Some(method), setting, Some(argument));
        }
    }

    /// Gives the expression in `reconcile(..)`.
    fn abandoned(&mut self, setting: Option<&Setting>) -> Option<Expr> {
        let (variant, reconcile) = self.read(setting, |reader, expr| {
            let word = reader.word(expr, &ABANDONED.words())?;
            if word.name == "reconcile" {
                let argument = only_argument(reader, &word, "reconcile(\"lookup(&req)\")")?;
                return Some((
                    ABANDONED.variant(&word.name)?,
                    Some(reader.expression(&argument)?),
                ));
            }
            let word = reader.plain_word(expr, &ABANDONED.words())?;
            Some((ABANDONED.variant(&word)?, None))
        })?;
        self.call(None, setting, Some(variant));
        if reconcile.is_some() {
            self.call(Some("asks_first"), setting, Some(Argument::Nothing));
        }
        reconcile
    }
}

fn only_argument(reader: &mut Reader<'_>, word: &Word, example: &str) -> Option<Expr> {
    let name = &word.name;
    let (place, wrong) = match word.arguments.as_deref() {
        Some([argument]) => return Some(argument.clone()),
        Some([_, second, ..]) => (second.to_token_stream(), "takes only one value"),
        _ => (name.to_token_stream(), "needs a value in parentheses"),
    };
    reader.errors.on(
        place,
        format!("`{name}` {wrong}: write for example `{example}`"),
    );
    None
}

#[cfg(test)]
mod tests;
