//! `transaction = tx`: the parameter that is the caller's transaction, and what has no meaning in
//! one.

use proc_macro2::{Ident, Span};
use quote::ToTokens as _;
use syn::{Expr, FnArg, Pat, Token, Type, TypeReference};

use crate::action::Kind;
use crate::args::Args;
use crate::diag::Errors;
use crate::handling::{Handling, Matching};
use crate::item::Function;
use crate::value;

/// The parameter that is a transaction.
pub(crate) struct Parameter {
    pub(crate) mutable: Option<Token![mut]>,
    pub(crate) name: Ident,
    /// Without the lifetime of the reference: the body has it for a shorter time.
    pub(crate) ty: Type,
}

/// Reads the option, and reports whatever has no meaning beside it.
pub(crate) fn parameter(args: &Args, function: Option<&Function>, errors: &mut Errors) -> Option<Parameter> {
    let setting = args.transaction.as_ref()?;
    check_options(args, errors);
    let value = setting.value.as_ref()?;
    let name = parameter_name(value);
    let Some(name) = name else {
        errors.on(value, "`transaction` names a parameter: write for example `transaction = tx`");
        return None;
    };
    let inputs = function?.signature.inputs.iter().filter_map(|input| match input {
        FnArg::Typed(input) => Some(input),
        FnArg::Receiver(_) => None,
    });
    for input in inputs {
        let Pat::Ident(pattern) = &*input.pat else { continue };
        if pattern.ident != name {
            continue;
        }
        let Some(reference) = exclusive(&input.ty) else {
            let message = format!(
                "`{name}` is not a transaction that the body can use and its caller commits: write `{name}: &mut sqlx::Transaction<'_, DB>`"
            );
            errors.on(&input.ty, message);
            return None;
        };
        let ty = Type::Reference(TypeReference { lifetime: None, ..reference.clone() });
        return Some(Parameter { mutable: pattern.mutability, name: pattern.ident.clone(), ty });
    }
    let message =
        format!("there is no parameter `{name}`: the function takes it as `{name}: &mut sqlx::Transaction<'_, DB>`");
    errors.on(value, message);
    None
}

/// Reports errors whose actions need a lease.
pub(crate) fn check_errors(handling: &Handling, errors: &mut Errors) {
    match handling {
        Handling::Default => {}
        Handling::Policy(word) => errors.at(
            *word,
            "`errors(policy)` allows a type to retry, and a body in a transaction is not retried in place: leave it out if the type retries nothing, else give each error an action here: `errors(OrderError::Declined(_) => keep, _ => release)`",
        ),
        Handling::Arms(Matching { arms, .. }) => {
            for arm in arms {
                let message = match arm.action.kind {
                    Kind::Keep(_) | Kind::Release => continue,
                    Kind::Retry(_) => {
                        "a body in a transaction is not retried in place: write `release`, and let the caller run the whole transaction again"
                    }
                    Kind::Abandon => {
                        "the outcome of a body in a transaction is never unknown: its rows are rolled back. Write `release`"
                    }
                };
                errors.at(arm.action.word, message);
            }
        }
    }
}

fn check_options(args: &Args, errors: &mut Errors) {
    let leases = "the database's locks are the lease";
    let settled = "the database rolls back what was cut off, so no record is ever abandoned";
    let meaningless = [
        (&args.lease, leases),
        (&args.abandoned, settled),
        (&args.hold, settled),
        (&args.store_failure, "the store is the transaction's own database, without which the body cannot run either"),
        (&args.detached, "a task of its own cannot borrow the caller's transaction"),
        (&args.max_attempts, "an attempt that fails is rolled back with its record, so there is nothing to count"),
    ];
    for (setting, why) in meaningless {
        if let Some(setting) = setting {
            let keyword = &setting.keyword;
            errors.at(keyword.span(), format!("`{keyword}` has no meaning in a transaction: {why}; leave it out"));
        }
    }
}

fn parameter_name(value: &Expr) -> Option<Ident> {
    if let Some(literal) = value::string(value) {
        return literal.parse().ok();
    }
    match value::bare(value) {
        Expr::Path(path) => path.path.get_ident().cloned(),
        _ => None,
    }
}

fn exclusive(ty: &Type) -> Option<&TypeReference> {
    match ty {
        Type::Group(group) => exclusive(&group.elem),
        Type::Paren(paren) => exclusive(&paren.elem),
        Type::Reference(reference) if reference.mutability.is_some() => Some(reference),
        _ => None,
    }
}

impl Parameter {
    /// The place of its type, for the error if that is not a transaction.
    pub(crate) fn place(&self) -> Span {
        let tokens = match &self.ty {
            Type::Reference(reference) => reference.elem.to_token_stream(),
            other => other.to_token_stream(),
        };
        tokens.into_iter().next().map_or_else(Span::call_site, |token| token.span())
    }
}
