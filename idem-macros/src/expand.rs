//! Writes the function anew, with the body guarded. Nothing here can fail: what can be wrong is found by the plan.

use std::time::Duration;

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt as _;

use crate::args::Args;
use crate::async_trait;
use crate::diag::{self, Errors};
use crate::item::{Form, Function};
use crate::plan::{Argument, Call, Plan};
use crate::value::Time;

/// Expands `#[idempotent(..)]`. With any mistake in it, the item stays as it is written, next to the errors.
pub(crate) fn idempotent(args: TokenStream, item: &TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let args = Args::parse(args, &mut errors);
    let function = errors.keep(Function::parse(item));
    // A parameter that only the attribute uses is no mistake of its own.
    let allow = function.is_some().then(|| quote!(#[allow(unused_variables)]));
    let plan = Plan::new(&args, function, &mut errors);
    match (plan, errors.into_compile_errors()) {
        (Some(plan), None) => plan.expand(),
        (_, Some(errors)) => quote!(#errors #allow #item),
        // Never silently without a guard.
        (None, None) => quote!(::core::compile_error!("`#[idempotent]` cannot guard this function"); #item),
    }
}

impl Plan {
    fn expand(&self) -> TokenStream {
        let Function { head, body, .. } = &self.function;
        let body = match &self.form {
            Form::Async => braced(self.guard(body), body.span()),
            Form::Boxed(boxed) => boxed.replace(body, self.guard(&boxed.block)),
        };
        quote!(#head #body)
    }

    /// The statements that take the place of the author's block.
    fn guard(&self, block: &Group) -> TokenStream {
        let here = Span::mixed_site();
        let krate = self.krate.at(here);
        let site = self.site();
        let operation = self.operation();
        let witness = self.witness();
        let body = self.body(block);
        let run = if let Some(detached) = self.detached {
            // What a detached body may not do is an error at that word.
            let detached = diag::located(detached);
            let krate = self.krate.at(detached);
            quote_spanned! {detached=>
                #krate::__private::run_detached(__idem_operation, __idem_witness, #body).await
            }
        } else {
            quote_spanned! {here=>
                let mut __idem_body = ::core::pin::pin!(::core::option::Option::Some(#body));
                #krate::__private::run(__idem_operation, __idem_witness, __idem_body.as_mut()).await
            }
        };
        quote_spanned! {here=>
            static __IDEM_SITE: #krate::__private::Site = #site;
            let __idem_operation = #operation;
            let __idem_witness = #witness;
            #run
        }
    }

    fn site(&self) -> TokenStream {
        let here = Span::mixed_site();
        let krate = self.krate.at(here);
        if let Some(name) = &self.name {
            return quote_spanned!(here=> #krate::__private::Site::named(#name));
        }
        let name = self.function.signature.ident.unraw().to_string();
        quote_spanned! {here=>
            #krate::__private::Site::by_default(
                ::core::concat!(::core::module_path!(), "::", #name),
                ::core::file!(),
                ::core::line!(),
                ::core::column!(),
                || ::core::any::type_name_of_val(&|| ()),
            )
        }
    }

    /// Key, fingerprint and everything else that is asked of the parameters, before the body may move or change them.
    fn operation(&self) -> TokenStream {
        let here = Span::mixed_site();
        let krate = self.krate.at(here);
        let runtime = if let Some(runtime) = &self.runtime {
            let (first, _) = diag::ends(runtime);
            quote_spanned!(first=> ::core::option::Option::Some(#runtime))
        } else {
            quote_spanned!(here=> ::core::option::Option::None)
        };
        let calls = self.calls.iter().map(|call| self.call(call));
        self.in_scope(quote_spanned!(here=> #krate::__private::operation(&__IDEM_SITE, #runtime) #(#calls)*))
    }

    fn call(&self, Call { method, argument }: &Call) -> TokenStream {
        let span = diag::located(method.span());
        let argument = match argument {
            Argument::Expression(expr) | Argument::Time(Time::Computed(expr)) => expr.to_token_stream(),
            Argument::Time(Time::Fixed(duration)) => fixed(*duration, span),
            Argument::Variant(of, variant) => {
                let krate = self.krate.at(span);
                let of = Ident::new(of, span);
                quote_spanned!(span=> #krate::#of::#variant)
            }
        };
        let method = Ident::new(&method.to_string(), span);
        quote_spanned!(span=> .#method(#argument))
    }

    /// The call that asks for what must hold of the returned type. It lies on that type, from its first token to its last, and
    /// so does the caret when something does not hold.
    fn witness(&self) -> TokenStream {
        let outcome = &self.outcome;
        let (first, last) = diag::ends(outcome);
        let krate = self.krate.at(first);
        let path = quote_spanned!(first=> #krate::__private::outcome_of::<#outcome);
        let end = quote_spanned!(last=> , _>());
        quote!(#path #end)
    }

    fn body(&self, block: &Group) -> TokenStream {
        let here = diag::located(block.span());
        let outcome = &self.outcome;
        let reconcile = self.reconcile();
        let (first, _) = diag::ends(outcome);
        // The first `return` says what the block gives, so that a wrong one in the author's code is an error at its value.
        let edge = quote_spanned! {first=>
            if let ::core::option::Option::Some(__idem_return) = ::core::option::Option::None::<#outcome> {
                return __idem_return;
            }
        };
        // The block itself, not its statements: an error about its value then lies in the author's code.
        quote_spanned! {here=>
            async move {
                #edge
                #reconcile
                #[allow(unused_braces)]
                #block
            }
        }
    }

    /// Asks what became of an abandoned call, before the body may use the parameters up.
    fn reconcile(&self) -> Option<TokenStream> {
        let expr = self.reconcile.as_ref()?;
        let (first, _) = diag::ends(expr);
        let krate = self.krate.at(first);
        let expr = self.in_scope(expr.to_token_stream());
        Some(quote_spanned! {first=>
            if #krate::__private::must_reconcile() {
                if let ::core::option::Option::Some(__idem_settled) = #krate::__private::reconciled((#expr).await) {
                    return __idem_settled;
                }
            }
        })
    }

    /// The author's expressions, as they must read where the body is.
    fn in_scope(&self, tokens: TokenStream) -> TokenStream {
        match self.form {
            Form::Boxed(_) if self.function.signature.receiver().is_some() => async_trait::rename_self(tokens),
            _ => tokens,
        }
    }
}

fn fixed(duration: Duration, span: Span) -> TokenStream {
    let (seconds, nanoseconds) = (duration.as_secs(), duration.subsec_nanos());
    quote_spanned!(span=> ::core::time::Duration::new(#seconds, #nanoseconds))
}

fn braced(tokens: TokenStream, span: Span) -> Group {
    let mut group = Group::new(Delimiter::Brace, tokens);
    group.set_span(span);
    group
}

#[cfg(test)]
mod tests {
    use proc_macro2::TokenStream;
    use quote::quote;

    use super::idempotent;

    /// The tokens as text. Where the spaces are says nothing.
    fn text(tokens: &TokenStream) -> String {
        tokens.to_string().replace(' ', "")
    }

    #[track_caller]
    fn assert_contains(expansion: &TokenStream, part: &TokenStream) {
        let (expansion, part) = (text(expansion), text(part));
        assert!(expansion.contains(&part), "{part}\n\nis not in\n\n{expansion}");
    }

    #[test]
    fn the_function_keeps_its_head_and_its_block() {
        let item = quote! {
            /// Charges.
            #[must_use]
            pub async fn charge(mut req: Req) -> Result<u64, E> { half typed . }
        };
        let expected = quote! {
            /// Charges.
            #[must_use]
            pub async fn charge(mut req: Req) -> Result<u64, E> {
                static __IDEM_SITE: ::idem::__private::Site = ::idem::__private::Site::by_default(
                    ::core::concat!(::core::module_path!(), "::", "charge"),
                    ::core::file!(),
                    ::core::line!(),
                    ::core::column!(),
                    || ::core::any::type_name_of_val(&|| ()),
                );
                let __idem_operation = ::idem::__private::operation(&__IDEM_SITE, ::core::option::Option::None)
                    .key(&req.id)
                    .ttl(::core::time::Duration::new(300u64, 0u32));
                let __idem_witness = ::idem::__private::outcome_of::<Result<u64, E>, _>();
                let mut __idem_body = ::core::pin::pin!(::core::option::Option::Some(async move {
                    if let ::core::option::Option::Some(__idem_return) = ::core::option::Option::None::<Result<u64, E>> {
                        return __idem_return;
                    }
                    #[allow(unused_braces)]
                    { half typed . }
                }));
                ::idem::__private::run(__idem_operation, __idem_witness, __idem_body.as_mut()).await
            }
        };
        let expansion = idempotent(quote!(ttl = "5m", key = "req.id"), &item);
        assert_eq!(text(&expansion), text(&expected));
    }

    #[test]
    fn options_become_calls_of_the_builder() {
        let item = quote!(
            async fn charge(&self, req: Req) -> R {}
        );
        let expansion = idempotent(
            quote! {
                key = ("req.a + 1", (TENANT, req.b)), fingerprint = (req,), in_flight = wait(req.time), duplicate = reject,
                abandoned = reconcile("find(&req)"), store_failure = run, max_attempts = 3,
                runtime = self.idempotency, name = "orders.charge", crate = "crate::idem", detached
            },
            &item,
        );
        for part in [
            quote!(crate::idem::__private::Site::named("orders.charge")),
            quote! {
                crate::idem::__private::operation(&__IDEM_SITE, ::core::option::Option::Some(&self.idempotency))
                    .key(&(&(req.a + 1), &(&TENANT, &req.b)))
                    .fingerprint(&req)
                    .wait(req.time)
                    .abandoned(crate::idem::Abandoned::Rerun)
                    .duplicate(crate::idem::Duplicate::Reject)
                    .store_failure(crate::idem::StoreFailure::Run)
                    .max_attempts(3);
            },
            quote!(crate::idem::__private::reconciled((find(&req)).await)),
            quote!(crate::idem::__private::run_detached),
        ] {
            assert_contains(&expansion, &part);
        }
    }

    #[test]
    fn a_method_under_async_trait_is_guarded_inside_of_its_future() {
        let head = quote! {
            fn charge<'life0, 'async_trait>(&'life0 self, req: Req) -> Pin<Box<dyn Future<Output = R> + Send + 'async_trait>>
        };
        let item = quote! {
            #head {
                Box::pin(async move {
                    let __self = self;
                    let req = req;
                    let __ret: R = { __self.charge(req) };
                    __ret
                })
            }
        };
        let expansion = idempotent(quote!(key = (self.id, self::id(&req)), name = "orders.charge"), &item);
        assert_contains(&expansion, &quote!(let req = req; let __ret: R =));
        assert_contains(&expansion, &quote!(::idem::__private::Site::named("orders.charge")));
        assert_contains(&expansion, &quote!(.key(&(&__self.id, &self::id(&req)));));
        assert_contains(&expansion, &quote!({ __self.charge(req) }));
    }

    #[test]
    fn with_a_mistake_the_function_stays_as_it_is() {
        let item = quote!(async fn charge(id: u64) -> R { half typed . });
        let expansion = idempotent(quote!(), &item);
        assert_contains(&expansion, &quote!(::core::compile_error!));
        assert!(text(&expansion).ends_with(&text(&item)), "{expansion}");
    }
}
