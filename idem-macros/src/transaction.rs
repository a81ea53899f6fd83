//! `transaction = tx`: the parameter that is the caller's transaction, and the options that have no
//! meaning in one.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens as _, quote};
use syn::{
    Expr, FnArg, Pat, PatIdent, PatType, Signature, Token, Type, TypeReference, WherePredicate,
};

use crate::action::Kind;
use crate::args::Args;
use crate::async_trait::Boxed;
use crate::bindings::Bindings;
use crate::diag::Errors;
use crate::handling::{Handling, Matching};
use crate::item::Function;
use crate::lifetimes;
use crate::value;

/// The parameter that is a transaction.
pub(crate) struct Parameter {
    pub(crate) mutable: Option<Token![mut]>,
    pub(crate) name: Ident,
    /// The type that the body takes.
    pub(crate) ty: TokenStream,
    /// The place of its type, for the error about a type that is not a transaction.
    pub(crate) place: Span,
}

/// Reads the option, and reports the options that have no meaning together with it.
pub(crate) fn parameter(
    args: &Args,
    function: Option<&Function>,
    errors: &mut Errors,
) -> Option<Parameter> {
    let setting = args.call.transaction.as_ref()?;
    check_options(args, errors);
    let value = setting.value.as_ref()?;
    let Some(name) = parameter_name(value) else {
        errors.on(
            value,
            "`transaction` names a parameter: write for example `transaction = tx`",
        );
        return None;
    };
    let function = function?;
    let Some((pattern, ty)) = function
        .signature
        .inputs
        .iter()
        .find_map(|input| declares(input, &name))
    else {
        report_missing(&name, value, function, errors);
        return None;
    };
    let Some(reference) = exclusive(ty) else {
        let message = format!(
            "`{name}` is not a transaction that the body can use and its caller commits: write \
             `{name}: &mut sqlx::Transaction<'_, DB>`"
        );
        errors.on(ty, message);
        return None;
    };
    let ty = lent(&name, reference, function);
    let place = reference
        .elem
        .to_token_stream()
        .into_iter()
        .next()
        .map_or_else(Span::call_site, |token| token.span());
    Some(Parameter {
        mutable: pattern.mutability,
        name: pattern.ident.clone(),
        ty,
        place,
    })
}

/// Reports errors whose actions need a lease.
pub(crate) fn check_errors(handling: &Handling, errors: &mut Errors) {
    match handling {
        Handling::Default => {}
        Handling::Policy(word) => errors.at(
            *word,
            "`errors(policy)` allows a type to retry, and a body in a transaction is not retried \
             in place: leave it out if the type retries nothing, else give each error an action \
             here: `errors(OrderError::Declined(_) => keep, _ => release)`",
        ),
        Handling::Arms(Matching { arms, .. }) => {
            for arm in arms {
                let message = match arm.action.kind {
                    Kind::Keep(_) | Kind::Release => continue,
                    Kind::Retry(_) => {
                        "a body in a transaction is not retried in place: write `release`, and let \
                         the caller run the whole transaction again"
                    }
                    Kind::Abandon => {
                        "the outcome of a body in a transaction is never unknown: its rows are \
                         rolled back. Write `release`"
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
        (&args.times.lease, leases),
        (&args.call.abandoned, settled),
        (&args.times.hold, settled),
        (
            &args.call.store_failure,
            "the store is the transaction's own database, without which the body cannot run either",
        ),
        (
            &args.call.detached,
            "a task of its own cannot borrow the caller's transaction",
        ),
        (
            &args.call.max_attempts,
            "an attempt that fails is rolled back with its record, so there is nothing to count",
        ),
    ];
    for (setting, why) in meaningless {
        if let Some(setting) = setting {
            let keyword = &setting.keyword;
            errors.at(
                keyword.span(),
                format!("`{keyword}` has no meaning in a transaction: {why}; leave it out"),
            );
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

/// The name and the type, if the parameter has this name.
fn declares<'f>(input: &'f FnArg, name: &Ident) -> Option<(&'f PatIdent, &'f Type)> {
    let FnArg::Typed(PatType { pat, ty, .. }) = input else {
        return None;
    };
    match &**pat {
        Pat::Ident(pattern) if pattern.ident == *name => Some((pattern, ty)),
        _ => None,
    }
}

fn report_missing(name: &Ident, value: &Expr, function: &Function, errors: &mut Errors) {
    if name == "self" {
        let message = "the transaction is a parameter, not `self`: take `tx: &mut \
            sqlx::Transaction<'_, DB>`, and write `transaction = tx`";
        return errors.on(value, message);
    }
    let bindings = Bindings::collect(&function.signature, Boxed::find(&function.body).as_ref());
    if let Some(binding) = bindings.all.iter().find(|binding| binding.name == *name) {
        let message = format!(
            "`{name}` is only a part of this parameter, and the transaction must be a parameter of \
             its own: write `{name}: &mut sqlx::Transaction<'_, DB>`"
        );
        return errors.at(binding.name.span(), message);
    }
    let message = format!(
        "there is no parameter `{name}`: the function takes it as `{name}: &mut \
         sqlx::Transaction<'_, DB>`"
    );
    errors.on(value, message);
}

/// The parameter's type as the body takes it. The compiler can prove `Send` only for a body that
/// takes the transaction with any lifetime, so named lifetimes become `'_`. `'static`, and
/// lifetimes that other code of the function names, stay, because the body may need them.
fn lent(name: &Ident, reference: &TypeReference, function: &Function) -> TokenStream {
    let TypeReference {
        and_token,
        mutability,
        elem,
        ..
    } = reference;
    let others = beside(name, function);
    let lifetimes = function
        .signature
        .generics
        .lifetimes()
        .map(|parameter| &parameter.lifetime.ident);
    let unneeded: Vec<_> = lifetimes
        .filter(|lifetime| !lifetimes::names(&others, lifetime))
        .collect();
    lifetimes::elide(quote!(#and_token #mutability #elem), &unneeded)
}

/// The function without this parameter, and without the bounds of lifetimes.
fn beside(name: &Ident, function: &Function) -> TokenStream {
    let Function {
        signature:
            Signature {
                inputs,
                generics,
                output,
                ..
            },
        body,
        ..
    } = function;
    let inputs = inputs
        .iter()
        .filter(|input| declares(input, name).is_none());
    let types = generics.type_params();
    let predicates = generics
        .where_clause
        .iter()
        .flat_map(|clause| &clause.predicates);
    let predicates = predicates.filter(|predicate| matches!(predicate, WherePredicate::Type(_)));
    quote!(#(#inputs,)* #(#types,)* #(#predicates,)* #output #body)
}
