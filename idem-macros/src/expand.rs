//! Rewrites the function, with the body guarded. This step cannot fail, as the plan finds all
//! mistakes.

mod operation;

use proc_macro2::{Group, Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::{GenericArgument, PathArguments, Type};

use crate::action::Computed;
use crate::args::Args;
use crate::arguments::Arguments;
use crate::arms::Arm;
use crate::async_trait;
use crate::diag::{self, Errors};
use crate::handling::{ComputedValue, Handling, Matching};
use crate::item::{Form, Function, braced};
use crate::plan::Plan;
use crate::transaction::Parameter;

/// Expands `#[idempotent(..)]`. After a mistake, the item stays as it is, next to the errors.
pub(crate) fn idempotent(args: TokenStream, item: &TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let args = Args::parse(args, &mut errors);
    let function = errors.keep(Function::parse(item));
    // A parameter that only the attribute uses is not a mistake.
    let allow = function
        .is_some()
        .then(|| quote!(#[allow(unused_variables)]));
    let plan = Plan::new(args, function, &mut errors);
    match (plan, errors.into_compile_errors()) {
        (Some(plan), None) => plan.expand(),
        (
            Some(Plan {
                function,
                hides_body: true,
                ..
            }),
            Some(errors),
        ) => {
            let head = &function.head;
            quote!(#errors #allow #head { ::core::unimplemented!() })
        }
        (_, Some(errors)) => quote!(#errors #allow #item),
        // Never silently without a guard.
        (None, None) => {
            quote!(::core::compile_error!("`#[idempotent]` cannot guard this function"); #item)
        }
    }
}

impl Plan {
    fn expand(&self) -> TokenStream {
        let Function { head, body, .. } = &self.function;
        let block = match &self.form {
            Form::Async => body,
            Form::Boxed(boxed) => &boxed.block,
        };
        let arguments = self.arguments(block);
        let guarded = self.guard(arguments.block.as_ref().unwrap_or(block), &arguments);
        let body = match &self.form {
            Form::Async => braced(guarded, body.span()),
            Form::Boxed(boxed) => boxed.replace(body, guarded),
        };
        let head = arguments
            .inputs
            .as_ref()
            .map_or_else(|| head.clone(), |inputs| self.function.head_with(inputs));
        quote!(#head #body)
    }

    /// The statements that take the place of the author's block.
    fn guard(&self, block: &Group, arguments: &Arguments) -> TokenStream {
        let here = Span::mixed_site();
        let krate = self.krate.at(here);
        let site = self.site();
        let operation = self.operation();
        let witness = self.witness();
        let policy = self.policy();
        let (body, answer) = self.run(block, arguments);
        let first = &arguments.first;
        // Not a tail expression, about which lints would warn the author.
        let answer = match self.form {
            Form::Async => quote_spanned!(here=> return #answer;),
            Form::Boxed(_) => quote_spanned!(here=> let __idem_answer = #answer; __idem_answer),
        };
        let can_be_missing = self.can_be_missing();
        let constant_name = self.constant_name();
        quote_spanned! {here=>
            static __IDEM_SITE: #krate::__private::Site = #site;
            #constant_name
            #can_be_missing
            let __idem_operation = #operation;
            let __idem_witness = #witness;
            #first
            #policy
            let __idem_policy = {
                #[allow(unused_imports)]
                use #krate::__private::Opaque as _;
                __idem_policy.looking_inside()
            };
            #body
            #answer
        }
    }

    /// The statements that decide what is done with errors.
    fn policy(&self) -> TokenStream {
        let here = Span::mixed_site();
        match &self.errors {
            Handling::Default => self.policy_by_default(),
            Handling::Policy(word) => {
                let policy =
                    quote_spanned!(diag::located(*word)=> __idem_witness.errors_by_policy());
                quote_spanned!(here=> let __idem_policy = #policy;)
            }
            Handling::Arms(matching) => self.policy_of_arms(matching),
        }
    }

    /// The policy of the error type, if it has one.
    fn policy_by_default(&self) -> TokenStream {
        let here = Span::mixed_site();
        let krate = self.krate.at(here);
        let at = self.at_error_type();
        // Whether a type parameter has a policy is not known here, so it must have one if it is the
        // error type. Which one that is, only the compiler knows: the returned type may be an alias.
        let parameters = self
            .bindings
            .types_in(self.outcome.to_token_stream())
            .into_iter()
            .map(|ty| {
                let at = diag::located(ty.span());
                quote_spanned!(at=> (&__idem_witness.parameter::<#ty>()).has_policy_if_error();)
            });
        let policy = quote_spanned!(at=> (&__idem_witness).errors_by_default());
        quote_spanned! {here=>
            let __idem_policy = {
                #[allow(unused_imports)]
                use #krate::__private::{ConditionalPolicy as _, NoPolicy as _, OtherParameter as _};
                #(#parameters)*
                #policy
            };
        }
    }

    /// The policy of `errors(..)`: a `match` on the error.
    fn policy_of_arms(&self, matching: &Matching) -> TokenStream {
        let here = Span::mixed_site();
        let keyword = diag::located(matching.keyword);
        // A `match` that does not cover every error is an error at the word `errors`.
        let scrutinee = Ident::new("__idem_error", keyword);
        let arms = matching.arms.iter().map(|arm| self.arm(arm));
        let computed = matching.computed.iter().map(|value| self.computed(value));
        let keeping = self.errors.keeps().map(|word| {
            let keeping = quote_spanned!(diag::located(word)=> __idem_policy.keeping());
            quote_spanned!(here=> let __idem_policy = #keeping;)
        });
        let deny = quote_spanned!(keyword=> #[deny(unreachable_patterns)]);
        // A detached body is a task, which owns the policy.
        let by_value = self.detached.map(|_| quote_spanned!(here=> move));
        let whole = self.kept_by_policy();
        let action = quote_spanned!(here=> match #scrutinee { #(#arms)* });
        let action = if whole.is_empty() {
            action
        } else {
            quote_spanned!(here=> { #whole #action })
        };
        let policy = quote_spanned! {here=>
            __idem_witness.errors(#by_value |__idem_error| #action)
        };
        let arguments = self.for_policy();
        let policy = if arguments.is_empty() {
            policy
        } else {
            quote_spanned!(here=> { #arguments #policy })
        };
        quote_spanned! {here=>
            #(#computed)*
            #deny
            let __idem_policy = #policy;
            #keeping
        }
    }

    fn arm(&self, arm: &Arm) -> TokenStream {
        let Arm {
            pattern,
            guard,
            arrow,
            action,
        } = arm;
        let guard = guard.as_ref().map(|(word, expr)| {
            let expr = self.in_scope(expr.to_token_stream());
            quote!(#word #expr)
        });
        let action = self.in_scope(action.expand(&self.krate));
        quote!(#pattern #guard #arrow #action,)
    }

    /// The statement that computes a value of an arm.
    fn computed(&self, value: &ComputedValue) -> TokenStream {
        let ComputedValue {
            variable,
            kind,
            expr,
        } = value;
        let (first, _) = diag::ends(expr);
        let expr = self.in_scope(expr.to_token_stream());
        let ty = match kind {
            Computed::Time => quote_spanned!(first=> ::core::time::Duration),
            Computed::Count => quote_spanned!(first=> u32),
        };
        quote_spanned!(first=> let #variable: #ty = #expr;)
    }

    /// The body, and the call that carries it all out.
    fn run(&self, block: &Group, arguments: &Arguments) -> (TokenStream, TokenStream) {
        let here = Span::mixed_site();
        // A violation by a detached body is an error at that word.
        let at = self.detached.map_or(here, diag::located);
        let krate = self.krate.at(at);
        if let Some(transaction) = &self.transaction {
            return self.run_in(transaction, block, arguments);
        }
        if let Some(retry) = self.errors.retries() {
            return self.run_again(diag::located(retry), block, arguments);
        }
        let body = self.body(block, arguments);
        if self.detached.is_some() {
            return (
                quote_spanned!(here=> let __idem_body = #body;),
                quote_spanned! {at=>
                    #krate::__private::run_detached(
                        __idem_operation,
                        __idem_witness,
                        __idem_policy,
                        __idem_body,
                    )
                    .await
                },
            );
        }
        // At the body, where a mistake with what moves into it is shown.
        let making = quote_spanned!(block.span_open()=> move || #body);
        (
            quote_spanned! {here=>
                let __idem_call = #krate::__private::prepare(__idem_operation);
                let mut __idem_types = ::core::marker::PhantomData;
                let __idem_body = #making;
            },
            quote_spanned! {here=>
                #krate::__private::run(
                    ::core::option::Option::as_ref(&__idem_call),
                    __idem_witness,
                    __idem_policy,
                    __idem_body,
                    &mut __idem_types,
                )
                .await
            },
        )
    }

    /// The body as a closure that makes a future for each try, and the call that carries it all
    /// out.
    fn run_again(
        &self,
        retry: Span,
        block: &Group,
        arguments: &Arguments,
    ) -> (TokenStream, TokenStream) {
        let at = self.detached.map_or_else(Span::mixed_site, diag::located);
        let krate = self.krate.at(at);
        let body = self.body(block, arguments);
        let Arguments { before, each, .. } = arguments;
        // An expression that reads a parameter after an error needs it to stay in place. Otherwise
        // the closure owns its parameters, because not all of them can be shared.
        let shares = self.detached.is_none()
            && self
                .errors
                .late()
                .iter()
                .any(|late| self.bindings.named_in(late).next().is_some());
        let by_value = (!shares).then(|| quote_spanned!(retry=> move));
        let run = Ident::new(
            if self.detached.is_some() {
                "run_detached_again"
            } else {
                "run_again"
            },
            at,
        );
        (
            quote_spanned! {retry=>
                #before
                let __idem_body = #by_value || {
                    #each
                    #body
                };
            },
            quote_spanned! {at=>
                #krate::__private::#run(
                    __idem_operation,
                    __idem_witness,
                    __idem_policy,
                    __idem_body,
                )
                .await
            },
        )
    }

    /// The body as a closure that borrows the transaction, and the call that carries it all out.
    fn run_in(
        &self,
        transaction: &Parameter,
        block: &Group,
        arguments: &Arguments,
    ) -> (TokenStream, TokenStream) {
        let here = Span::mixed_site();
        let Parameter {
            mutable,
            name,
            ty,
            place: at,
        } = transaction;
        let body = self.statements(block, arguments);
        let krate = self.krate.at(*at);
        let answer = quote_spanned!(*at=> #krate::__private::run_in);
        (
            quote_spanned! {here=>
                let __idem_body = async move |#mutable #name: #ty| { #body };
            },
            quote_spanned! {here=>
                #answer(__idem_operation, __idem_witness, __idem_policy, #name, __idem_body).await
            },
        )
    }

    /// The place of the error type, or of the whole returned type if its error type cannot be seen.
    fn at_error_type(&self) -> Span {
        self.error_type()
            .map_or_else(|| diag::ends(&self.outcome).0, |error| diag::ends(error).0)
    }

    fn error_type(&self) -> Option<&Type> {
        let Type::Path(path) = &self.outcome else {
            return None;
        };
        // An alias may have its parameters in another order.
        let last = path
            .path
            .segments
            .last()
            .filter(|last| last.ident == "Result")?;
        let PathArguments::AngleBracketed(arguments) = &last.arguments else {
            return None;
        };
        match arguments.args.iter().nth(1)? {
            GenericArgument::Type(error) => Some(error),
            _ => None,
        }
    }

    /// Whether the body is pinned where it is, and run once: it has no task of its own, and is not
    /// tried again.
    fn runs_in_place(&self) -> bool {
        self.detached.is_none() && self.errors.retries().is_none() && self.transaction.is_none()
    }

    /// The call with the bounds of the returned type. It has the place of that type, so that an
    /// error about an unmet bound is shown there.
    fn witness(&self) -> TokenStream {
        let outcome = &self.outcome;
        let (first, last) = diag::ends(outcome);
        let krate = self.krate.at(first);
        let path = quote_spanned!(first=> #krate::__private::outcome_of::<#outcome);
        let end = quote_spanned!(last=> , _>());
        quote!(#path #end)
    }

    fn body(&self, block: &Group, arguments: &Arguments) -> TokenStream {
        let here = block.span_open();
        let statements = self.statements(block, arguments);
        quote_spanned!(here=> async move { #statements })
    }

    /// The statements of the body.
    fn statements(&self, block: &Group, arguments: &Arguments) -> TokenStream {
        // The place of one token. With that of the whole block, an editor would take each token of
        // the body for a generated one.
        let here = block.span_open();
        let outcome = &self.outcome;
        let reconcile = self.reconcile();
        let inside = &arguments.inside;
        let (first, _) = diag::ends(outcome);
        // The first `return` fixes the type of the block, so that a wrong type in the author's code
        // is an error at its value.
        let returned = quote_spanned!(first=> __idem_return);
        let edge = quote_spanned! {Span::mixed_site()=>
            if let ::core::option::Option::Some(#returned) =
                ::core::option::Option::None::<#outcome>
            {
                return #returned;
            }
        };
        // The block itself and not its statements, so that an error about its value is in the
        // author's code.
        quote_spanned! {here=>
            #edge
            #inside
            #reconcile
            #[allow(unused_braces)]
            #block
        }
    }

    /// Asks what became of an abandoned call, before the body may consume the parameters.
    fn reconcile(&self) -> Option<TokenStream> {
        let expr = self.operation.reconcile.as_ref()?;
        let (first, _) = diag::ends(expr);
        let krate = self.krate.at(first);
        let mut expr = self.in_scope(expr.to_token_stream());
        if self.renamed_receiver().is_some() {
            expr = async_trait::rename_self(expr);
        }
        let question = diag::awaited_in_place_of(quote!(#krate::__private::question), expr);
        Some(quote_spanned! {first=>
            if #krate::__private::must_reconcile() {
                if let ::core::option::Option::Some(__idem_settled) =
                    #krate::__private::reconciled(#question)
                {
                    return __idem_settled;
                }
            }
        })
    }

    /// Renames `self` in the author's expressions if `#[async_trait]` has renamed it in the body.
    fn in_scope(&self, tokens: TokenStream) -> TokenStream {
        match self.form {
            Form::Boxed(_) if self.bindings.receiver.is_some() => async_trait::rename_self(tokens),
            _ => tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use proc_macro2::TokenStream;
    use quote::quote;

    use super::idempotent;

    /// The tokens as text. The positions of spaces mean nothing.
    fn text(tokens: &TokenStream) -> String {
        tokens.to_string().replace(' ', "")
    }

    #[test]
    fn a_half_typed_body_stays_as_it_is_and_is_guarded() {
        let item = quote!(async fn charge(id: u64) -> R { half typed . });
        let expansion = text(&idempotent(quote!(key = id), &item));
        assert!(
            expansion.contains("{halftyped.}") && expansion.contains("__private::run("),
            "{expansion}"
        );
    }

    #[test]
    fn with_a_mistake_the_function_stays_as_it_is() {
        let item = quote!(async fn charge(id: u64) -> R { half typed . });
        let expansion = idempotent(quote!(), &item);
        assert!(
            text(&expansion).contains("::core::compile_error!"),
            "{expansion}"
        );
        assert!(text(&expansion).ends_with(&text(&item)), "{expansion}");
    }
}
