//! `#[derive(ErrorPolicy)]`.

mod content;
mod dispose;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::{
    Attribute, Data, DeriveInput, Field, Fields, GenericParam, Generics, Member, Type, TypePath,
    parse_quote,
};

use self::content::{Content, Policy, Redeliver, content};
use crate::action::Action;
use crate::diag::{self, Errors};
use crate::paths::Krate;

/// One variant, or the whole of a struct.
struct Case<'a> {
    /// `None`: the struct itself.
    variant: Option<&'a Ident>,
    fields: &'a Fields,
    policy: &'a Policy,
    is_dead_letter: bool,
    redeliver: Option<&'a Redeliver>,
    /// Whether the variant has an action of its own, and serde skips it.
    is_skipped: bool,
}

/// Expands the derive. With any mistake in it, the type still gets an implementation, so that its
/// uses are not errors as well.
pub(crate) fn derive(item: TokenStream) -> TokenStream {
    let input: DeriveInput = match syn::parse2(item) {
        Ok(input) => input,
        Err(error) => return error.into_compile_error(),
    };
    let mut errors = Errors::default();
    let mut krate = None;
    let whole = content(&input.attrs, Some(&mut krate), &mut errors);
    let own = contents_of_variants(&input.data, &mut errors);
    let disposes = [&whole]
        .into_iter()
        .chain(&own)
        .any(Content::derives_dispose);
    if let (Data::Enum(_), Some(redeliver)) = (&input.data, &whole.redeliver) {
        errors.at(
            redeliver.word,
            "`redeliver` is for one kind of error: write it above the variant",
        );
    }
    let cases = cases(&input.data, &whole, &own);
    for case in &cases {
        case.check(&input.ident, &mut errors);
    }
    let derived = Derived {
        input: &input,
        krate: krate.unwrap_or_default(),
    };
    match errors.into_compile_errors() {
        None => {
            let policy = derived.expand(&cases);
            let disposition = disposes.then(|| derived.disposition(&cases));
            quote!(#policy #disposition)
        }
        Some(errors) => {
            let releasing = derived.implementation(
                &TokenStream::new(),
                [derived.never(), derived.never()],
                &derived.unlisted(),
                &[],
            );
            let disposition = disposes.then(|| derived.disposition_of(&derived.again(), &[]));
            quote!(#releasing #disposition #errors)
        }
    }
}

/// Reads `#[idem(..)]` of each variant.
fn contents_of_variants(data: &Data, errors: &mut Errors) -> Vec<Content> {
    match data {
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| content(&variant.attrs, None, errors))
            .collect(),
        Data::Struct(_) => Vec::new(),
        Data::Union(data) => {
            let message = "a union cannot have a policy, since it does not say which field is set: \
                use an enum";
            errors.at(data.union_token.span, message);
            Vec::new()
        }
    }
}

/// The policy of errors that no attribute mentions.
const UNLISTED: &Policy = &Policy::Action(None);

/// Returns the cases of a type. `whole` is above the type, and `own` above each variant.
fn cases<'a>(data: &'a Data, whole: &'a Content, own: &'a [Content]) -> Vec<Case<'a>> {
    let default = whole.policy.as_ref().unwrap_or(UNLISTED);
    match data {
        Data::Enum(data) => {
            let variants = data.variants.iter().zip(own);
            let case = variants.map(|(variant, own)| Case {
                variant: Some(&variant.ident),
                fields: &variant.fields,
                policy: own.policy.as_ref().unwrap_or(default),
                is_dead_letter: own.dead_letter.is_some()
                    || own.policy.is_none()
                        && own.redeliver.is_none()
                        && whole.dead_letter.is_some(),
                redeliver: own.redeliver.as_ref(),
                is_skipped: own.policy.is_some() && is_skipped(&variant.attrs),
            });
            case.collect()
        }
        Data::Struct(data) => vec![Case {
            variant: None,
            fields: &data.fields,
            policy: default,
            is_dead_letter: whole.dead_letter.is_some(),
            redeliver: whole.redeliver.as_ref(),
            is_skipped: false,
        }],
        Data::Union(_) => Vec::new(),
    }
}

/// `#[serde(skip)]`, or `skip_serializing`.
fn is_skipped(attributes: &[Attribute]) -> bool {
    let words = attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("serde"))
        .filter_map(|attribute| {
            let list = attribute.meta.require_list().ok()?;
            Some(list.tokens.clone())
        });
    words.flatten().any(|tree| {
        matches!(&tree, TokenTree::Ident(word) if word == "skip" || word == "skip_serializing")
    })
}

impl Case<'_> {
    fn check(&self, name: &Ident, errors: &mut Errors) {
        let with_idem = |field: &&Field| {
            field
                .attrs
                .iter()
                .any(|attribute| attribute.path().is_ident("idem"))
        };
        for field in self.fields.iter().filter(with_idem) {
            let message = "`#[idem(..)]` is for a whole error: write it above the variant, or \
                above the struct";
            errors.on(
                field
                    .attrs
                    .iter()
                    .find(|attribute| attribute.path().is_ident("idem")),
                message,
            );
        }
        if let (Some(keep), true) = (self.action().and_then(Action::keeps), self.is_skipped) {
            let message = "serde skips this variant, so it cannot be kept: leave out the \
                `#[serde(skip)]`, or write `#[idem(release)]`";
            errors.at(keep, message);
        }
        if let Some(redeliver) = self.redeliver
            && let Some(why) = self.dead_letters()
        {
            let message = format!(
                "{why} is dead-lettered, so it is not delivered again: leave out one of them"
            );
            errors.at(redeliver.word, message);
        }
        if let Policy::Inner(word) = self.policy
            && self.inner().is_none()
        {
            let what = self.variant.unwrap_or(name);
            let count = self.fields.len();
            let message = format!(
                "`inner` asks the policy of the one field inside, and `{what}` has {count}: write \
                 `keep`, `release`, `abandon` or `retry(..)`"
            );
            errors.at(*word, message);
        }
    }

    /// Why a message is dead-lettered if its handler fails with this error, if it is. A redelivery
    /// of a message with a kept error would only get the same error again.
    fn dead_letters(&self) -> Option<&'static str> {
        if self.is_dead_letter {
            return Some("an error marked `dead_letter`");
        }
        self.action()
            .and_then(Action::keeps)
            .map(|_| "a kept error")
    }

    /// The error inside, if that is what says what to do.
    fn inner(&self) -> Option<(Member, &Type)> {
        let Policy::Inner(_) = self.policy else {
            return None;
        };
        self.only_field()
    }

    fn only_field(&self) -> Option<(Member, &Type)> {
        let mut fields = self.fields.members().zip(self.fields);
        match (fields.next(), fields.next()) {
            (Some((member, field)), None) => Some((member, &field.ty)),
            _ => None,
        }
    }

    fn action(&self) -> Option<&Action> {
        match self.policy {
            Policy::Action(action) => action.as_ref(),
            Policy::Inner(_) => None,
        }
    }
}

struct Derived<'a> {
    input: &'a DeriveInput,
    krate: Krate,
}

impl Derived<'_> {
    fn expand(&self, cases: &[Case<'_>]) -> TokenStream {
        let here = Span::mixed_site();
        let inner: Vec<&Type> = cases
            .iter()
            .filter_map(|case| case.inner().map(|(_, ty)| ty))
            .collect();
        let retries = cases.iter().find_map(|case| case.action()?.retries());
        let retries = if retries.is_some() {
            self.sometimes()
        } else {
            self.of_inner(&inner, "Retries")
        };
        let keeps = cases.iter().find_map(|case| case.action()?.keeps());
        let (marker, keeps) = match keeps {
            // Whether it can be stored depends on the parameters, so each function asks.
            Some(_) if self.is_generic() => (TokenStream::new(), self.sometimes()),
            Some(keep) => (self.marker(keep), quote_spanned!(here=> __IdemKeeps)),
            None => (TokenStream::new(), self.of_inner(&inner, "Keeps")),
        };
        let body = if cases.is_empty() {
            quote_spanned!(here=> match *self {})
        } else {
            let arms = cases.iter().map(|case| self.arm(case));
            quote_spanned!(here=> match self { #(#arms)* })
        };
        self.implementation(&marker, [keeps, retries], &body, &inner)
    }

    fn implementation(
        &self,
        marker: &TokenStream,
        [keeps, retries]: [TokenStream; 2],
        body: &TokenStream,
        inner: &[&Type],
    ) -> TokenStream {
        let here = Span::mixed_site();
        let krate = self.krate.at(here);
        let name = &self.input.ident;
        let generics = self.generics_where(inner, &quote!(#krate::ErrorPolicy));
        let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
        let conditional = self.conditional(&quote_spanned!(here=> #krate::bounds::HasErrorPolicy));
        quote_spanned! {here=>
            const _: () = {
                #marker
                #conditional
                #[automatically_derived]
                impl #impl_generics #krate::ErrorPolicy for #name #type_generics #where_clause {
                    type Keeps = #keeps;
                    type Retries = #retries;

                    fn action(&self) -> #krate::ErrorAction {
                        #body
                    }
                }
            };
        }
    }

    /// A marker of this type. It places the compiler's error about an unstorable error type at the
    /// word `keep` only.
    fn marker(&self, keep: Span) -> TokenStream {
        let here = Span::mixed_site();
        let krate = self.krate.at(here);
        let name = &self.input.ident;
        let (impl_generics, type_generics, where_clause) = self.input.generics.split_for_impl();
        let at = diag::located(keep);
        let krate_there = self.krate.at(at);
        let keeper = quote_spanned! {at=>
            #krate_there::__private::ErrorCodec::<#name #type_generics>::of_type()
        };
        quote_spanned! {here=>
            pub enum __IdemKeeps {}
            #[automatically_derived]
            impl #krate::bounds::Frequency for __IdemKeeps {
                type Or<Other: #krate::bounds::Frequency> = #krate::bounds::Sometimes;
            }
            #[automatically_derived]
            impl #impl_generics #krate::__private::KeepsErrors<#name #type_generics>
                for __IdemKeeps #where_clause
            {
                fn error_codec()
                -> ::core::option::Option<#krate::__private::ErrorCodec<#name #type_generics>> {
                    ::core::option::Option::Some(#keeper)
                }
            }
        }
    }

    fn arm(&self, case: &Case<'_>) -> TokenStream {
        let here = Span::mixed_site();
        let path = case.variant.map_or_else(
            || quote_spanned!(here=> Self),
            |variant| quote_spanned!(here=> Self::#variant),
        );
        if let Some((member, ty)) = case.inner() {
            let ty = self.inner_policy(ty);
            let action = quote_spanned!(here=> #ty::action);
            return quote_spanned!(here=> #path { #member: inner } => #action(inner),);
        }
        let action = case
            .action()
            .map_or_else(|| self.unlisted(), |action| action.expand(&self.krate));
        quote_spanned!(here=> #path { .. } => #action,)
    }

    /// How often any of the inner errors does it. The fold ends with one of our types, so that a
    /// marker of another crate is not exposed.
    fn of_inner(&self, inner: &[&Type], what: &str) -> TokenStream {
        inner.iter().rfold(self.never(), |rest, ty| {
            let (first, last) = diag::ends(ty);
            let krate = self.krate.at(first);
            let what = Ident::new(what, last);
            let ty = self.inner_policy(ty);
            quote_spanned!(first=> <#ty::#what as #krate::bounds::Frequency>::Or<#rest>)
        })
    }

    /// `<Inner as ErrorPolicy>`, from the first token of the type to its last, where the error
    /// about a type without a policy is shown.
    fn inner_policy(&self, ty: &Type) -> TokenStream {
        let (first, last) = diag::ends(ty);
        let krate = self.krate.at(first);
        let ty = diag::relocated(ty);
        let start = quote_spanned!(first=> <#ty as #krate::ErrorPolicy);
        let end = quote_spanned!(last=> >);
        quote!(#start #end)
    }

    /// The generics of the type. An inner error whose type uses one of its parameters must
    /// implement the trait too.
    fn generics_where(&self, inner: &[&Type], bound: &TokenStream) -> Generics {
        let mut generics = self.input.generics.clone();
        let open: Vec<_> = inner
            .iter()
            .filter(|ty| self.names_a_parameter(ty))
            .collect();
        if !open.is_empty() {
            let predicates = &mut generics.make_where_clause().predicates;
            predicates.extend(
                open.into_iter()
                    .map(|ty| -> syn::WherePredicate { parse_quote!(#ty: #bound) }),
            );
        }
        generics
    }

    /// If the implementation has conditions, implements a marker without them. So a function can
    /// tell an unmet condition, which is a mistake, from a type without an implementation.
    fn conditional(&self, marker: &TokenStream) -> Option<TokenStream> {
        let name = &self.input.ident;
        let (impl_generics, type_generics, where_clause) = self.input.generics.split_for_impl();
        self.is_generic().then(|| {
            quote_spanned! {Span::mixed_site()=>
                #[automatically_derived]
                impl #impl_generics #marker for #name #type_generics #where_clause {}
            }
        })
    }

    fn is_generic(&self) -> bool {
        !self
            .input
            .generics
            .params
            .iter()
            .all(|parameter| matches!(parameter, GenericParam::Lifetime(_)))
    }

    fn names_a_parameter(&self, ty: &Type) -> bool {
        self.input
            .generics
            .params
            .iter()
            .any(|parameter| match parameter {
                GenericParam::Type(parameter) => names(ty.to_token_stream(), &parameter.ident),
                GenericParam::Const(parameter) => names(ty.to_token_stream(), &parameter.ident),
                GenericParam::Lifetime(_) => false,
            })
    }

    /// Whether the type is a type parameter by itself.
    fn is_parameter(&self, ty: &Type) -> bool {
        let Type::Path(TypePath {
            qself: None, path, ..
        }) = ty
        else {
            return false;
        };
        self.input
            .generics
            .type_params()
            .any(|parameter| path.is_ident(&parameter.ident))
    }

    fn never(&self) -> TokenStream {
        let krate = self.krate.at(Span::mixed_site());
        quote_spanned!(Span::mixed_site()=> #krate::bounds::Never)
    }

    fn sometimes(&self) -> TokenStream {
        let krate = self.krate.at(Span::mixed_site());
        quote_spanned!(Span::mixed_site()=> #krate::bounds::Sometimes)
    }

    fn unlisted(&self) -> TokenStream {
        let krate = self.krate.at(Span::mixed_site());
        quote_spanned!(Span::mixed_site()=> #krate::ErrorAction::Unlisted)
    }
}

fn names(tokens: TokenStream, word: &Ident) -> bool {
    tokens.into_iter().any(|tree| match tree {
        TokenTree::Ident(found) => found == *word,
        TokenTree::Group(group) => names(group.stream(), word),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

#[cfg(test)]
mod tests {
    use super::derive;

    #[test]
    fn each_mistake_about_messages_is_said_and_the_type_has_a_disposition_all_the_same() {
        let given_twice = "is given twice: leave one of them out";
        for (item, expected) in [
            (
                "enum E { #[idem(dead_letter, dead_letter)] A }",
                given_twice,
            ),
            (
                "enum E { #[idem(dead_letter = \"why\")] A }",
                "`dead_letter` takes nothing: write `dead_letter`",
            ),
            (
                "enum E { #[idem(dead_letter(\"why\"))] A }",
                "`dead_letter` takes nothing: write `dead_letter`",
            ),
            (
                "enum E { #[idem(dispose)] A }",
                "`dispose` is for the whole type: write it above the `enum`",
            ),
            ("#[idem(dispose, dispose)] enum E { A }", given_twice),
            (
                "enum E { #[idem(redeliver)] A }",
                "`redeliver` needs a pause: write for example `redeliver =",
            ),
            (
                "enum E { #[idem(redeliver = 30)] A }",
                "a duration needs a unit",
            ),
            (
                "enum E { #[idem(redeliver = \"30s\", redeliver = \"30s\")] A }",
                given_twice,
            ),
            (
                "enum E { #[idem(keep, redeliver = \"30s\")] A }",
                "a kept error is dead-lettered, so it is not",
            ),
            (
                "enum E { #[idem(dead_letter, redeliver = \"30s\")] A }",
                "`dead_letter` is dead-lettered, so it is not",
            ),
            (
                "#[idem(redeliver = \"30s\")] enum E { A }",
                "`redeliver` is for one kind of error: write it above",
            ),
        ] {
            let item = item.parse().expect("tokens");
            let expansion = derive(item).to_string();
            assert!(expansion.contains(expected), "{expected}: {expansion}");
            assert!(expansion.contains("Dispose for E"), "{expansion}");
        }
    }
}
