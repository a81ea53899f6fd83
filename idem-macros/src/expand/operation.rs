//! The description of the call: its name, its key and its options.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::Expr;
use syn::ext::IdentExt as _;

use crate::diag;
use crate::item;
use crate::plan::{Argument, Call, Plan};
use crate::value::{Name, Time, fixed};

impl Plan {
    pub(super) fn site(&self) -> TokenStream {
        let here = Span::mixed_site();
        let krate = self.krate.at(here);
        quote_spanned! {here=>
            #krate::__private::Site::new(::core::file!(), ::core::line!(), ::core::column!())
        }
    }

    fn name(&self) -> TokenStream {
        let here = Span::mixed_site();
        let krate = self.krate.at(here);
        let (of, text) = match &self.operation.name {
            None => {
                let name = self.function.signature.ident.unraw().to_string();
                (
                    "of_function",
                    quote_spanned!(here=> ::core::concat!(::core::module_path!(), "::", #name)),
                )
            }
            Some(Name::Literal(literal)) => ("written", literal.to_token_stream()),
            Some(Name::Constant(expr)) if item::is_of_type(expr) => {
                let (first, _) = diag::ends(expr);
                let checked = self.checked_name(expr);
                ("of_type", quote_spanned!(first=> const { #checked }))
            }
            Some(Name::Constant(_)) => ("written", quote_spanned!(here=> __IDEM_NAME)),
        };
        let of = Ident::new(of, here);
        quote_spanned! {here=>
            #krate::__private::Name::#of(#text, || ::core::any::type_name_of_val(&|| ()))
        }
    }

    /// The item for a constant name. An item is evaluated even if nothing uses it, but it cannot
    /// name `Self`.
    pub(super) fn constant_name(&self) -> Option<TokenStream> {
        let expr = match &self.operation.name {
            Some(Name::Constant(expr)) if !item::is_of_type(expr) => expr,
            _ => return None,
        };
        let checked = self.checked_name(expr);
        Some(
            quote_spanned!(Span::mixed_site()=> const __IDEM_NAME: &::core::primitive::str = #checked;),
        )
    }

    fn checked_name(&self, expr: &Expr) -> TokenStream {
        let (first, last) = diag::ends(expr);
        let krate = self.krate.at(first);
        let checked = quote_spanned!(first=> #krate::__private::checked_name);
        let argument = quote_spanned!(last=> (#expr));
        quote!(#checked #argument)
    }

    /// The description of the call. It takes key, fingerprint and other values from the parameters
    /// before the body may move or change them. If the body runs in place and once, the code first
    /// asks whether the runtime is disabled, and then takes none of them.
    pub(super) fn operation(&self) -> TokenStream {
        let here = Span::mixed_site();
        let in_place = self.runs_in_place();
        let name = self.name();
        let operation = if let Some(runtime) = &self.operation.runtime {
            // At the expression, where an error about its type belongs.
            let (first, _) = diag::ends(runtime);
            let krate = self.krate.at(first);
            let site = quote_spanned!(here=> &__IDEM_SITE);
            let begin = Ident::new(
                if in_place {
                    "operation_of_unless_disabled"
                } else {
                    "operation_of"
                },
                first,
            );
            quote_spanned!(first=> #krate::__private::#begin(#site, #name, #runtime))
        } else {
            let krate = self.krate.at(here);
            let begin = Ident::new(
                if in_place {
                    "operation_unless_disabled"
                } else {
                    "operation"
                },
                here,
            );
            quote_spanned!(here=> #krate::__private::#begin(&__IDEM_SITE, #name))
        };
        let calls = self.operation.calls.iter().map(|call| self.call(call));
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

    fn call(&self, Call { method, argument }: &Call) -> TokenStream {
        let span = diag::located(method.span());
        let argument = match argument {
            Argument::Expression(key) if method == "key" => self.key(key, span),
            Argument::Submission(both) => {
                let [token, subject] = &**both;
                let subject = self.key(subject, span);
                quote_spanned!(span=> #token, #subject)
            }
            Argument::Expression(expr) => expr.to_token_stream(),
            Argument::Time(Time::Computed(expr)) => {
                // Only a `Duration` fits here: the compiler's message about another type is plain.
                let here = Span::mixed_site();
                let method = Ident::new(&method.to_string(), span);
                let set = quote_spanned!(span=> .#method(#expr));
                return quote_spanned!(here=> .times() #set .into_operation());
            }
            Argument::Time(Time::Fixed(duration)) => fixed(*duration, span),
            Argument::Nothing => TokenStream::new(),
            Argument::Upgrade(upgrade) => {
                let from = &upgrade.from;
                let function = &upgrade.function;
                let outcome = &self.outcome;
                // At the function's place, where an error about its parameter or result belongs.
                let (first, last) = diag::ends(function);
                let krate = self.krate.at(first);
                let checked = quote_spanned!(first=> #krate::__private::upgrades::<#outcome, _, _>);
                let argument = quote_spanned!(last=> (#function));
                quote_spanned!(span=> #from, #checked #argument)
            }
            Argument::Variant(of, variant) => {
                let krate = self.krate.at(span);
                let of = Ident::new(of, span);
                quote_spanned!(span=> #krate::policy::#of::#variant)
            }
        };
        let method = Ident::new(&method.to_string(), span);
        quote_spanned!(span=> .#method(#argument))
    }

    /// The key. Each part of a tuple is passed to a function, so that an error about its type is at
    /// its place.
    fn key(&self, key: &Expr, keyword: Span) -> TokenStream {
        let Expr::Reference(reference) = key else {
            return key.to_token_stream();
        };
        let Expr::Tuple(tuple) = &*reference.expr else {
            return key.to_token_stream();
        };
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
    pub(super) fn can_be_missing(&self) -> Option<TokenStream> {
        let missing_key = self.operation.missing_key?;
        let key = self
            .operation
            .calls
            .iter()
            .find(|call| call.method == "key")?
            .argument
            .expressions()
            .first()?;
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
}
