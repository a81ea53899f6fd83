//! What is done with errors: the policy of their type, or the arms of `errors(..)`.

use proc_macro2::{Ident, Span};
use quote::{ToTokens as _, format_ident};
use syn::Expr;
use syn::visit::Visit as _;

use crate::action::Computed;
use crate::args::ErrorsSetting;
use crate::arms::{Arm, Arms};
use crate::bindings::{Names, mentions};

/// What is done with errors.
pub(crate) enum Handling {
    /// The policy of their type, if it has one.
    Default,
    /// The policy of their type, retries included. The word `policy`.
    Policy(Span),
    Arms(Matching),
}

/// The arms of `errors(..)`.
pub(crate) struct Matching {
    pub(crate) keyword: Span,
    pub(crate) arms: Vec<Arm>,
    /// The values in the arms that are computed before the body.
    pub(crate) computed: Vec<ComputedValue>,
    /// What is computed after an error: guards, and values that use a binding of the pattern.
    pub(crate) late: Vec<Expr>,
}

/// A value in an arm that is computed before the body.
pub(crate) struct ComputedValue {
    /// The variable that holds it.
    pub(crate) variable: Ident,
    pub(crate) kind: Computed,
    pub(crate) expr: Expr,
}

impl Matching {
    /// Takes out of the arms the values that are computed before the body.
    fn new(keyword: Span, mut arms: Vec<Arm>) -> Self {
        let mut computed = Vec::new();
        let mut late = Vec::new();
        for arm in &mut arms {
            let mut bound = Names::default();
            bound.visit_pat(&arm.pattern);
            if let Some((_, guard)) = &arm.guard {
                bound.visit_expr(guard);
                late.push(guard.clone());
            }
            for (kind, value) in arm.action.computed() {
                let tokens = value.to_token_stream();
                // A value that uses the error is computed when there is one. All others are
                // computed before the body consumes the parameters.
                let uses_error = bound
                    .found
                    .iter()
                    .any(|(name, _)| mentions(&tokens, &name.to_string()));
                if uses_error {
                    late.push(value.clone());
                    continue;
                }
                let variable =
                    format_ident!("__idem_value_{}", computed.len(), span = Span::mixed_site());
                let expr = std::mem::replace(value, syn::parse_quote!(#variable));
                computed.push(ComputedValue {
                    variable,
                    kind,
                    expr,
                });
            }
        }
        Self {
            keyword,
            arms,
            computed,
            late,
        }
    }
}

impl Handling {
    /// Returns the handling of errors; after a mistake in it, none.
    pub(crate) fn new(setting: Option<ErrorsSetting>) -> Self {
        match setting {
            Some(ErrorsSetting {
                arms: Some(Arms::Policy(word)),
                ..
            }) => Self::Policy(word.span()),
            Some(ErrorsSetting {
                keyword,
                arms: Some(Arms::Match(arms)),
            }) => Self::Arms(Matching::new(keyword.span(), arms)),
            _ => Self::Default,
        }
    }

    /// Returns the place that says that errors are kept.
    pub(crate) fn keeps(&self) -> Option<Span> {
        match self {
            Self::Arms(Matching { arms, .. }) => arms.iter().find_map(|arm| arm.action.keeps()),
            Self::Default | Self::Policy(_) => None,
        }
    }

    /// What is computed before the body.
    pub(crate) fn computed(&self) -> impl Iterator<Item = &ComputedValue> {
        let computed = match self {
            Self::Arms(Matching { computed, .. }) => computed.as_slice(),
            Self::Default | Self::Policy(_) => &[],
        };
        computed.iter()
    }

    /// What is computed after an error.
    pub(crate) fn late(&self) -> &[Expr] {
        match self {
            Self::Arms(Matching { late, .. }) => late,
            Self::Default | Self::Policy(_) => &[],
        }
    }

    /// Returns the place that says that the body is retried.
    pub(crate) fn retries(&self) -> Option<Span> {
        match self {
            Self::Default => None,
            Self::Policy(policy) => Some(*policy),
            Self::Arms(Matching { arms, .. }) => arms.iter().find_map(|arm| arm.action.retries()),
        }
    }
}
