//! Rewrites the function, with the body guarded. This step cannot fail, as the plan finds all
//! mistakes.

use proc_macro2::{Group, Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::{Expr, GenericArgument, PathArguments, Type};

use crate::action::Computed;
use crate::args::Args;
use crate::arguments::Arguments;
use crate::arms::Arm;
use crate::async_trait;
use crate::diag::{self, Errors};
use crate::handling::{Handling, Matching};
use crate::item::{self, Form, Function, braced};
use crate::plan::{Argument, Call, Plan};
use crate::transaction::Parameter;
use crate::value::{Name, Time, fixed};

/// Expands `#[idempotent(..)]`. With any mistake in it, the item stays as it is written, next to
/// the errors.
pub(crate) fn idempotent(args: TokenStream, item: &TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let args = Args::parse(args, &mut errors);
    let function = errors.keep(Function::parse(item));
    // A parameter that only the attribute uses is not a mistake.
    let allow = function.is_some().then(|| quote!(#[allow(unused_variables)]));
    let plan = Plan::new(args, function, &mut errors);
    match (plan, errors.into_compile_errors()) {
        (Some(plan), None) => plan.expand(),
        (Some(Plan { function, hides_body: true, .. }), Some(errors)) => {
            let head = &function.head;
            quote!(#errors #allow #head { ::core::unimplemented!() })
        }
        (_, Some(errors)) => quote!(#errors #allow #item),
        // Never silently without a guard.
        (None, None) => quote!(::core::compile_error!("`#[idempotent]` cannot guard this function"); #item),
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
        let head = arguments.inputs.as_ref().map_or_else(|| head.clone(), |inputs| self.function.head_with(inputs));
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
        // No tail expression: what lints say of one is not the author's concern.
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

    /// What is done with errors.
    fn policy(&self) -> TokenStream {
        let here = Span::mixed_site();
        match &self.errors {
            Handling::Default => {
                let krate = self.krate.at(here);
                let at = self.at_error_type();
                // A type parameter can be a type with a policy, which is not seen here: so it must
                // be one.
                if self.error_type().is_some_and(|ty| self.bindings.is_type_parameter(ty)) {
                    let policy = quote_spanned!(at=> __idem_witness.errors_by_policy_without_retries());
                    return quote_spanned!(here=> let __idem_policy = #policy;);
                }
                let policy = quote_spanned!(at=> (&__idem_witness).errors_by_default());
                quote_spanned! {here=>
                    let __idem_policy = {
                        #[allow(unused_imports)]
                        use #krate::__private::{ConditionalPolicy as _, NoPolicy as _};
                        #policy
                    };
                }
            }
            Handling::Policy(word) => {
                let policy = quote_spanned!(diag::located(*word)=> __idem_witness.errors_by_policy());
                quote_spanned!(here=> let __idem_policy = #policy;)
            }
            Handling::Arms(Matching { keyword, arms, computed, .. }) => {
                // A `match` that does not cover every error is an error at the word `errors`.
                let scrutinee = Ident::new("__idem_error", diag::located(*keyword));
                let arms = arms.iter().map(|Arm { pattern, guard, arrow, action }| {
                    let guard = guard.as_ref().map(|(word, expr)| {
                        let expr = self.in_scope(expr.to_token_stream());
                        quote!(#word #expr)
                    });
                    let action = self.in_scope(action.expand(&self.krate));
                    quote!(#pattern #guard #arrow #action,)
                });
                let computed = computed.iter().map(|(variable, what, expr)| {
                    let (first, _) = diag::ends(expr);
                    let expr = self.in_scope(expr.to_token_stream());
                    let ty = match what {
                        Computed::Time => quote_spanned!(first=> ::core::time::Duration),
                        Computed::Count => quote_spanned!(first=> u32),
                    };
                    quote_spanned!(first=> let #variable: #ty = #expr;)
                });
                let keeping = self.errors.keeps().map(|word| {
                    let keeping = quote_spanned!(diag::located(word)=> __idem_policy.keeping());
                    quote_spanned!(here=> let __idem_policy = #keeping;)
                });
                let deny = quote_spanned!(diag::located(*keyword)=> #[deny(unreachable_patterns)]);
                // In its own task, the body takes the policy along.
                let by_value = self.detached.map(|_| quote_spanned!(here=> move));
                let whole = self.kept_by_policy();
                let action = quote_spanned!(here=> match #scrutinee { #(#arms)* });
                let action = if whole.is_empty() { action } else { quote_spanned!(here=> { #whole #action }) };
                let policy = quote_spanned! {here=>
                    __idem_witness.errors(#by_value |__idem_error| #action)
                };
                let arguments = self.for_policy();
                let policy = if arguments.is_empty() { policy } else { quote_spanned!(here=> { #arguments #policy }) };
                quote_spanned! {here=>
                    #(#computed)*
                    #deny
                    let __idem_policy = #policy;
                    #keeping
                }
            }
        }
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
            let retry = diag::located(retry);
            let body = self.body(block, arguments);
            let Arguments { before, each, .. } = arguments;
            // An expression that reads a parameter after an error needs it to stay in place; other
            // parameters may be unshareable.
            let shares = self.detached.is_none()
                && self.errors.late().iter().any(|late| self.bindings.named_in(late).next().is_some());
            let by_value = (!shares).then(|| quote_spanned!(retry=> move));
            let run = Ident::new(if self.detached.is_some() { "run_detached_again" } else { "run_again" }, at);
            return (
                quote_spanned! {retry=>
                    #before
                    let __idem_body = #by_value || {
                        #each
                        #body
                    };
                },
                quote_spanned! {at=>
                    #krate::__private::#run(__idem_operation, __idem_witness, __idem_policy, __idem_body).await
                },
            );
        }
        let body = self.body(block, arguments);
        if self.detached.is_some() {
            return (
                quote_spanned!(here=> let __idem_body = #body;),
                quote_spanned! {at=>
                    #krate::__private::run_detached(__idem_operation, __idem_witness, __idem_policy, __idem_body).await
                },
            );
        }
        (
            quote_spanned! {here=>
                let __idem_body = #body;
                let mut __idem_body = ::core::pin::pin!(::core::option::Option::Some(__idem_body));
                let ::core::option::Option::Some(__idem_operation) = ::core::convert::identity(__idem_operation) else {
                    return #krate::__private::run_unguarded(__idem_body.as_mut()).await;
                };
            },
            quote_spanned! {here=>
                #krate::__private::run(__idem_operation, __idem_witness, __idem_policy, __idem_body.as_mut()).await
            },
        )
    }

    /// The body as a closure that has the transaction lent, and the call that carries it all out.
    fn run_in(&self, transaction: &Parameter, block: &Group, arguments: &Arguments) -> (TokenStream, TokenStream) {
        let here = Span::mixed_site();
        let Parameter { mutable, name, ty, place: at } = transaction;
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

    /// The place of the error type, or of the whole returned type where that has another name.
    fn at_error_type(&self) -> Span {
        self.error_type().map_or_else(|| diag::ends(&self.outcome).0, |error| diag::ends(error).0)
    }

    fn error_type(&self) -> Option<&Type> {
        let Type::Path(path) = &self.outcome else { return None };
        let PathArguments::AngleBracketed(arguments) = &path.path.segments.last()?.arguments else { return None };
        match arguments.args.iter().nth(1)? {
            GenericArgument::Type(error) => Some(error),
            _ => None,
        }
    }

    fn site(&self) -> TokenStream {
        let here = Span::mixed_site();
        let krate = self.krate.at(here);
        quote_spanned!(here=> #krate::__private::Site::new(::core::file!(), ::core::line!(), ::core::column!()))
    }

    fn name(&self) -> TokenStream {
        let here = Span::mixed_site();
        let krate = self.krate.at(here);
        let (of, text) = match &self.name {
            None => {
                let name = self.function.signature.ident.unraw().to_string();
                ("of_function", quote_spanned!(here=> ::core::concat!(::core::module_path!(), "::", #name)))
            }
            Some(Name::Literal(literal)) => ("written", literal.to_token_stream()),
            Some(Name::Constant(expr)) if item::is_of_type(expr) => {
                let (first, checked) = (diag::ends(expr).0, self.checked_name(expr));
                ("of_type", quote_spanned!(first=> const { #checked }))
            }
            Some(Name::Constant(_)) => ("written", quote_spanned!(here=> __IDEM_NAME)),
        };
        let of = Ident::new(of, here);
        quote_spanned! {here=>
            #krate::__private::Name::#of(#text, || ::core::any::type_name_of_val(&|| ()))
        }
    }

    /// The constant that the name is: an item, so that it is evaluated in any case. Items know no
    /// `Self`.
    fn constant_name(&self) -> Option<TokenStream> {
        let expr = match &self.name {
            Some(Name::Constant(expr)) if !item::is_of_type(expr) => expr,
            _ => return None,
        };
        let checked = self.checked_name(expr);
        Some(quote_spanned!(Span::mixed_site()=> const __IDEM_NAME: &::core::primitive::str = #checked;))
    }

    fn checked_name(&self, expr: &Expr) -> TokenStream {
        let (first, last) = diag::ends(expr);
        let krate = self.krate.at(first);
        let checked = quote_spanned!(first=> #krate::__private::checked_name);
        let argument = quote_spanned!(last=> (#expr));
        quote!(#checked #argument)
    }

    /// Key, fingerprint and everything else that is asked of the parameters, before the body may
    /// move or change them. If the body runs in place and once, the code first asks for a disabled
    /// runtime, which needs none of this.
    fn operation(&self) -> TokenStream {
        let here = Span::mixed_site();
        let in_place = self.runs_in_place();
        let name = self.name();
        let operation = if let Some(runtime) = &self.runtime {
            // At the expression: an error about its type is one of its own.
            let (first, _) = diag::ends(runtime);
            let (krate, site) = (self.krate.at(first), quote_spanned!(here=> &__IDEM_SITE));
            let begin = Ident::new(if in_place { "operation_of_unless_disabled" } else { "operation_of" }, first);
            quote_spanned!(first=> #krate::__private::#begin(#site, #name, #runtime))
        } else {
            let krate = self.krate.at(here);
            let begin = Ident::new(if in_place { "operation_unless_disabled" } else { "operation" }, here);
            quote_spanned!(here=> #krate::__private::#begin(&__IDEM_SITE, #name))
        };
        let calls = self.calls.iter().map(|call| self.call(call));
        self.in_scope(if in_place {
            quote_spanned! {here=>
                match #operation {
                    ::core::option::Option::Some(__idem_operation) => {
                        ::core::option::Option::Some(__idem_operation #(#calls)*)
                    }
                    ::core::option::Option::None => ::core::option::Option::None,
                }
            }
        } else {
            quote_spanned!(here=> #operation #(#calls)*)
        })
    }

    /// Whether the body is pinned where it is, and run once: it has no task of its own, and is not
    /// tried again.
    fn runs_in_place(&self) -> bool {
        self.detached.is_none() && self.errors.retries().is_none() && self.transaction.is_none()
    }

    fn call(&self, Call { method, argument }: &Call) -> TokenStream {
        let span = diag::located(method.span());
        let argument = match argument {
            Argument::Expression(key) if method == "key" => self.key(key, span),
            Argument::Submission(both) => {
                let [token, subject] = &**both;
                let subject = self.key(subject, span);
                quote_spanned!(span=> #token, #subject)
            }
            Argument::Expression(expr) | Argument::Time(Time::Computed(expr)) => expr.to_token_stream(),
            Argument::Time(Time::Fixed(duration)) => fixed(*duration, span),
            Argument::Nothing => TokenStream::new(),
            Argument::Upgrade(upgrade) => {
                let (from, function, outcome) = (&upgrade.from, &upgrade.function, &self.outcome);
                // At the function's place: so is an error about what it takes or gives.
                let (first, last) = diag::ends(function);
                let krate = self.krate.at(first);
                let checked = quote_spanned!(first=> #krate::__private::upgrades::<#outcome, _, _>);
                let argument = quote_spanned!(last=> (#function));
                quote_spanned!(span=> #from, #checked #argument)
            }
            Argument::Variant(of, variant) => {
                let krate = self.krate.at(span);
                let of = Ident::new(of, span);
                quote_spanned!(span=> #krate::#of::#variant)
            }
        };
        let method = Ident::new(&method.to_string(), span);
        quote_spanned!(span=> .#method(#argument))
    }

    /// The key. Each part of a tuple goes through a call of its own, so that one that is none is an
    /// error at its place.
    fn key(&self, key: &Expr, keyword: Span) -> TokenStream {
        let Expr::Reference(reference) = key else { return key.to_token_stream() };
        let Expr::Tuple(tuple) = &*reference.expr else { return key.to_token_stream() };
        let krate = self.krate.at(keyword);
        let parts = tuple.elems.iter().map(|part| {
            let part = self.key(part, keyword);
            quote_spanned!(keyword=> #krate::__private::part(#part))
        });
        let and = &reference.and_token;
        quote_spanned!(diag::ends(tuple).0=> #and (#(#parts),*))
    }

    /// Code that checks the key's type: if a key of that type is never missing, `missing_key` is an
    /// error. It is never executed. It is not a closure, in which `?` would have no function to
    /// return from.
    fn can_be_missing(&self) -> Option<TokenStream> {
        let missing_key = self.missing_key?;
        let key = self.calls.iter().find(|call| call.method == "key")?.argument.expressions().first()?;
        let here = Span::mixed_site();
        let krate = self.krate.at(here);
        let key = self.in_scope(key.to_token_stream());
        let look = quote_spanned!(diag::located(missing_key)=> __idem_key.can_be_missing());
        Some(quote_spanned! {here=>
            if false {
                use #krate::__private::PerhapsMissing as _;
                let __idem_key = #krate::__private::KeyOf(#key);
                let _ = #look;
            }
        })
    }

    /// The call that asks for what must hold of the returned type. It lies on that type, from its
    /// first token to its last, and so does the caret when something does not hold.
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
        // One token, not the whole block: else an editor takes each token of the body for ours as
        // well.
        let here = block.span_open();
        let outcome = &self.outcome;
        let reconcile = self.reconcile();
        let inside = &arguments.inside;
        let (first, _) = diag::ends(outcome);
        // The first `return` says what the block gives, so that a wrong one in the author's code is
        // an error at its value.
        let returned = quote_spanned!(first=> __idem_return);
        let edge = quote_spanned! {Span::mixed_site()=>
            if let ::core::option::Option::Some(#returned) = ::core::option::Option::None::<#outcome> {
                return #returned;
            }
        };
        // The block itself, not its statements: an error about its value then lies in the author's
        // code.
        quote_spanned! {here=>
            #edge
            #inside
            #reconcile
            #[allow(unused_braces)]
            #block
        }
    }

    /// Asks what became of an abandoned call, before the body may use the parameters up.
    fn reconcile(&self) -> Option<TokenStream> {
        let expr = self.reconcile.as_ref()?;
        let (first, _) = diag::ends(expr);
        let krate = self.krate.at(first);
        let mut expr = self.in_scope(expr.to_token_stream());
        if self.renamed_receiver().is_some() {
            expr = async_trait::rename_self(expr);
        }
        let question = diag::awaited_in_place_of(quote!(#krate::__private::question), expr);
        Some(quote_spanned! {first=>
            if #krate::__private::must_reconcile() {
                if let ::core::option::Option::Some(__idem_settled) = #krate::__private::reconciled(#question) {
                    return __idem_settled;
                }
            }
        })
    }

    /// The author's expressions, as they must read where the body is.
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
        assert!(expansion.contains("{halftyped.}") && expansion.contains("__private::run("), "{expansion}");
    }

    #[test]
    fn with_a_mistake_the_function_stays_as_it_is() {
        let item = quote!(async fn charge(id: u64) -> R { half typed . });
        let expansion = idempotent(quote!(), &item);
        assert!(text(&expansion).contains("::core::compile_error!"), "{expansion}");
        assert!(text(&expansion).ends_with(&text(&item)), "{expansion}");
    }
}
