//! The implementation of `Dispose`: what becomes of a message whose handler failed.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::Type;
use syn::ext::IdentExt as _;

use super::content::Redeliver;
use super::{Case, Derived};
use crate::action::time;
use crate::diag;

impl Case<'_> {
    /// The reason of a dead letter.
    fn reason(&self, name: &Ident) -> String {
        snake_case(&self.variant.unwrap_or(name).unraw().to_string())
    }
}

impl Derived<'_> {
    pub(super) fn disposition(&self, cases: &[Case<'_>]) -> TokenStream {
        let here = Span::mixed_site();
        if cases.is_empty() {
            return self.disposition_of(&quote_spanned!(here=> match *self {}), &[]);
        }
        let arms = cases.iter().map(|case| self.disposition_arm(case));
        let mut inner: Vec<&Type> = cases
            .iter()
            .filter_map(|case| case.inner().map(|(_, ty)| ty))
            .collect();
        // Whether a type parameter has a disposition is not known here, so it must have one.
        let asked = |case: &&Case<'_>| {
            case.inner().is_none() && case.dead_letters().is_none() && case.redeliver.is_none()
        };
        let fields = cases
            .iter()
            .filter(asked)
            .filter_map(|case| Some(case.only_field()?.1));
        inner.extend(fields.filter(|ty| self.is_parameter(ty)));
        self.disposition_of(&quote_spanned!(here=> match self { #(#arms)* }), &inner)
    }

    pub(super) fn disposition_of(&self, body: &TokenStream, inner: &[&Type]) -> TokenStream {
        let here = Span::mixed_site();
        let krate = self.krate.at(here);
        let name = &self.input.ident;
        let generics = self.generics_where(inner, &quote!(#krate::Dispose));
        let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
        let conditional =
            self.conditional(&quote_spanned!(here=> #krate::__private::HasDisposition));
        quote_spanned! {here=>
            #conditional
            #[automatically_derived]
            impl #impl_generics #krate::Dispose for #name #type_generics #where_clause {
                fn disposition(&self) -> #krate::Disposition {
                    #body
                }
            }
        }
    }

    fn disposition_arm(&self, case: &Case<'_>) -> TokenStream {
        let here = Span::mixed_site();
        let krate = self.krate.at(here);
        let path = case.variant.map_or_else(
            || quote_spanned!(here=> Self),
            |variant| quote_spanned!(here=> Self::#variant),
        );
        if case.dead_letters().is_some() {
            let reason = case.reason(&self.input.ident);
            return quote_spanned!(here=> #path { .. } => #krate::Disposition::dead_letter(#reason),);
        }
        if let Some(Redeliver {
            word,
            pause: Some(after),
        }) = case.redeliver
        {
            let after = time(after, diag::located(*word));
            return quote_spanned!(here=> #path { .. } => #krate::Disposition::Retry { after: #after },);
        }
        if let Some((member, ty)) = case.inner() {
            let reason = case.reason(&self.input.ident);
            let asked = self.asked_for_disposition(ty, "disposition_by_policy");
            return quote_spanned! {here=>
                #path { #member: inner } => {
                    #[allow(unused_imports)]
                    use #krate::__private::{ConditionalDisposition as _, DispositionByPolicy as _};
                    #asked(#reason)
                }
            };
        }
        if let Some((member, ty)) = case.only_field() {
            let asked = self.asked_for_disposition(ty, "disposition");
            return quote_spanned! {here=>
                #path { #member: inner } => {
                    #[allow(unused_imports)]
                    use #krate::__private::{ConditionalDisposition as _, NoDisposition as _};
                    #asked()
                }
            };
        }
        let again = self.again();
        quote_spanned!(here=> #path { .. } => #again,)
    }

    /// The call that asks the inner error for its disposition. An unmet condition is an error at
    /// the type of the inner error.
    fn asked_for_disposition(&self, ty: &Type, method: &str) -> TokenStream {
        let (first, _) = diag::ends(ty);
        let krate = self.krate.at(first);
        let method = Ident::new(method, first);
        quote_spanned!(first=> (&#krate::__private::Inside(inner)).#method)
    }

    pub(super) fn again(&self) -> TokenStream {
        let krate = self.krate.at(Span::mixed_site());
        quote_spanned!(Span::mixed_site()=> #krate::__private::comes_again())
    }
}

/// The name of a variant as the codes of errors are written: `MailUnreadable` is `mail_unreadable`.
fn snake_case(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut text = String::with_capacity(name.len() + 4);
    for (at, letter) in letters.iter().enumerate() {
        let after_word = at > 0 && !letters[at - 1].is_uppercase() && letters[at - 1] != '_';
        let before_word = at > 0
            && letters[at - 1].is_uppercase()
            && letters.get(at + 1).is_some_and(|next| next.is_lowercase());
        if letter.is_uppercase() && (after_word || before_word) {
            text.push('_');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::snake_case;

    #[test]
    fn reasons_read_like_the_codes_of_errors() {
        for (name, code) in [
            ("Unreadable", "unreadable"),
            ("MailUnreadable", "mail_unreadable"),
            ("NotUTF8Text", "not_utf8_text"),
            ("IOError", "io_error"),
        ] {
            assert_eq!(snake_case(name), code);
        }
    }
}
