//! `#[derive(ErrorPolicy)]`.

mod dispose;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::parse::ParseStream;
use syn::{
    Attribute, Data, DeriveInput, Error, Expr, Field, Fields, GenericParam, Generics, Member, Meta, Token, Type,
    TypePath, parse_quote, token,
};

use crate::action::Action;
use crate::diag::{self, Errors};
use crate::paths::Krate;
use crate::value::{Reader, Time};

/// The policy for one kind of error.
enum Policy {
    /// As it is written; `None` is not written at all.
    Action(Option<Action>),
    /// The policy of the error inside.
    Inner(Span),
}

/// The words besides actions, and how they are written. The last two are for the whole type.
const OTHER_WORDS: [(&str, &str); 5] = [
    ("inner", "inner"),
    ("dead_letter", "dead_letter"),
    ("redeliver", "redeliver = \"30s\""),
    ("dispose", "dispose"),
    ("crate", "crate = \"::idem\""),
];

/// The content of `#[idem(..)]` for one kind of error.
#[derive(Default)]
struct Content {
    policy: Option<Policy>,
    /// The word `dead_letter`: a message whose handler fails with it is put aside.
    dead_letter: Option<Span>,
    /// The word `dispose`: `Dispose` is derived although no variant is put aside.
    dispose: Option<Span>,
    /// `redeliver = "30s"`: the word, and the pause if nothing is wrong with it.
    redeliver: Option<(Span, Option<Time>)>,
}

/// One variant, or the whole of a struct.
struct Case<'a> {
    /// `None`: the struct itself.
    variant: Option<&'a Ident>,
    fields: &'a Fields,
    policy: &'a Policy,
    is_dead_letter: bool,
    redeliver: Option<&'a (Span, Option<Time>)>,
    /// It says itself that it is kept, and to serde that it is not written.
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
    let own: Vec<Content> = match &input.data {
        Data::Enum(data) => data.variants.iter().map(|variant| content(&variant.attrs, None, &mut errors)).collect(),
        Data::Struct(_) => Vec::new(),
        Data::Union(data) => {
            let message = "a union cannot have a policy, since it does not say which field is set: use an enum";
            errors.at(data.union_token.span, message);
            Vec::new()
        }
    };
    let disposes = [&whole].into_iter().chain(&own).any(Content::derives_dispose);
    let Content { policy, dead_letter, redeliver, .. } = whole;
    if let (Data::Enum(_), Some((word, _))) = (&input.data, &redeliver) {
        errors.at(*word, "`redeliver` is for one kind of error: write it above the variant");
    }
    let whole = policy.unwrap_or(Policy::Action(None));
    let cases: Vec<Case<'_>> = match &input.data {
        Data::Enum(data) => {
            let variants = data.variants.iter().zip(&own);
            let case = variants.map(|(variant, own)| Case {
                variant: Some(&variant.ident),
                fields: &variant.fields,
                policy: own.policy.as_ref().unwrap_or(&whole),
                is_dead_letter: own.dead_letter.is_some()
                    || own.policy.is_none() && own.redeliver.is_none() && dead_letter.is_some(),
                redeliver: own.redeliver.as_ref(),
                is_skipped: own.policy.is_some() && is_skipped(&variant.attrs),
            });
            case.collect()
        }
        Data::Struct(data) => {
            let (is_dead_letter, redeliver) = (dead_letter.is_some(), redeliver.as_ref());
            let (fields, policy) = (&data.fields, &whole);
            vec![Case { variant: None, fields, policy, is_dead_letter, redeliver, is_skipped: false }]
        }
        Data::Union(_) => Vec::new(),
    };
    for case in &cases {
        case.check(&input.ident, &mut errors);
    }
    let derived = Derived { input: &input, krate: krate.unwrap_or_default() };
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

/// Reads `#[idem(..)]`: an action or `inner`, `dead_letter`, `redeliver` and, on the type, `crate`
/// and `dispose`.
fn content(attributes: &[Attribute], mut krate: Option<&mut Option<Krate>>, errors: &mut Errors) -> Content {
    let mut content = Content::default();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("idem")) {
        let message = match &attribute.meta {
            Meta::NameValue(_) => "this goes in parentheses: write for example `#[idem(keep)]`",
            Meta::List(list) if !list.tokens.is_empty() => {
                let read = attribute.parse_args_with(|input: ParseStream<'_>| {
                    while !input.is_empty() {
                        content.word(input, krate.as_deref_mut(), errors)?;
                        if !input.is_empty() {
                            let at = input.span();
                            input.parse::<Token![,]>().map_err(|_| Error::new(at, "expected a comma before this"))?;
                        }
                    }
                    Ok(())
                });
                errors.keep(read);
                continue;
            }
            Meta::Path(_) | Meta::List(_) => "`#[idem]` says nothing: write for example `#[idem(keep)]`",
        };
        errors.on(attribute, message);
    }
    content
}

/// The next word, if it is one of these.
fn next_word(input: ParseStream<'_>, words: &[&str]) -> Option<Ident> {
    let word: Ident = input.fork().parse().ok()?;
    words.iter().any(|expected| word == expected).then_some(word)
}

/// Reports a value after a word that has none.
fn takes_nothing(word: &Ident, input: ParseStream<'_>) -> syn::Result<()> {
    if !input.peek(Token![=]) && !input.peek(token::Paren) {
        return Ok(());
    }
    let error = input.error(format!("`{word}` takes nothing: write `{word}`"));
    // What is left would be a mistake of its own.
    input.parse::<TokenStream>()?;
    Err(error)
}

impl Content {
    /// Reads one word, with what belongs to it. Only a type has a `krate`.
    fn word(
        &mut self,
        input: ParseStream<'_>,
        krate: Option<&mut Option<Krate>>,
        errors: &mut Errors,
    ) -> syn::Result<()> {
        if input.peek(Token![crate]) {
            let word: Token![crate] = input.parse()?;
            if input.parse::<Token![=]>().is_err() {
                return Err(Error::new(word.span, "`crate` needs a path: write for example `crate = \"::idem\"`"));
            }
            let path = Krate::parse(&input.parse::<Expr>()?, errors).unwrap_or_default();
            match krate {
                Some(krate @ None) => *krate = Some(path),
                Some(Some(_)) => errors.on(word, "`crate` is given twice: leave one of them out"),
                None => errors.on(word, "`crate` is for the whole type: write it above the `enum`"),
            }
        } else if let Some(word) = next_word(input, &["dead_letter", "dispose"]) {
            input.parse::<Ident>()?;
            self.message(&word, krate.is_some(), errors);
            takes_nothing(&word, input)?;
        } else if let Some(word) = next_word(input, &["redeliver"]) {
            input.parse::<Ident>()?;
            self.redeliver(&word, input, errors)?;
        } else {
            let at = input.span();
            let next = one_policy(input, krate.is_some(), errors)?;
            if self.policy.is_some() {
                errors.at(at, "two policies for the same errors: leave one of them out");
            }
            self.policy = Some(next);
        }
        Ok(())
    }

    fn message(&mut self, word: &Ident, is_type: bool, errors: &mut Errors) {
        let slot = if word == "dispose" { &mut self.dispose } else { &mut self.dead_letter };
        if slot.is_some() {
            errors.on(word, format!("`{word}` is given twice: leave one of them out"));
        }
        if word == "dispose" && !is_type {
            errors.on(word, "`dispose` is for the whole type: write it above the `enum`");
        }
        *slot = Some(word.span());
    }

    /// What comes after the word `redeliver`.
    fn redeliver(&mut self, word: &Ident, input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<()> {
        let is_given = self.redeliver.replace((word.span(), None)).is_some();
        if input.parse::<Token![=]>().is_err() {
            // What is left would be a mistake of its own.
            input.parse::<TokenStream>()?;
            return Err(Error::new(word.span(), "`redeliver` needs a pause: write for example `redeliver = \"30s\"`"));
        }
        self.redeliver = Some((word.span(), Reader { keyword: word, errors }.time(&input.parse()?)));
        if is_given {
            errors.on(word, "`redeliver` is given twice: leave one of them out");
        }
        Ok(())
    }

    /// Whether anything is said of messages, so that `Dispose` is derived.
    fn derives_dispose(&self) -> bool {
        self.dispose.or(self.dead_letter).is_some() || self.redeliver.is_some()
    }
}

/// `#[serde(skip)]`, or `skip_serializing`.
fn is_skipped(attributes: &[Attribute]) -> bool {
    let words = attributes.iter().filter(|attribute| attribute.path().is_ident("serde")).filter_map(|attribute| {
        let list = attribute.meta.require_list().ok()?;
        Some(list.tokens.clone())
    });
    words.flatten().any(|tree| matches!(&tree, TokenTree::Ident(word) if word == "skip" || word == "skip_serializing"))
}

fn one_policy(input: ParseStream<'_>, is_type: bool, errors: &mut Errors) -> syn::Result<Policy> {
    let word: Option<Ident> = input.fork().parse().ok();
    match word {
        Some(word) if word == "inner" => {
            input.parse::<Ident>()?;
            takes_nothing(&word, input)?;
            Ok(Policy::Inner(word.span()))
        }
        _ => {
            let others = if is_type { &OTHER_WORDS[..] } else { &OTHER_WORDS[..3] };
            Action::parse_among(input, errors, others).map(Policy::Action)
        }
    }
}

impl Case<'_> {
    fn check(&self, name: &Ident, errors: &mut Errors) {
        let with_idem = |field: &&Field| field.attrs.iter().any(|attribute| attribute.path().is_ident("idem"));
        for field in self.fields.iter().filter(with_idem) {
            let message = "`#[idem(..)]` is for a whole error: write it above the variant, or above the struct";
            errors.on(field.attrs.iter().find(|attribute| attribute.path().is_ident("idem")), message);
        }
        if let (Some(keep), true) = (self.action().and_then(Action::keeps), self.is_skipped) {
            let message = "serde skips this variant, so it cannot be kept: leave out the `#[serde(skip)]`, or write `#[idem(release)]`";
            errors.at(keep, message);
        }
        if let Some((word, _)) = self.redeliver
            && let Some(why) = self.dead_letters()
        {
            let message = format!("{why} is dead-lettered, so it is not delivered again: leave out one of them");
            errors.at(*word, message);
        }
        if let Policy::Inner(word) = self.policy
            && self.inner().is_none()
        {
            let (what, count) = (self.variant.unwrap_or(name), self.fields.len());
            let message = format!(
                "`inner` asks the policy of the one field inside, and `{what}` has {count}: write `keep`, `release`, `abandon` or `retry(..)`"
            );
            errors.at(*word, message);
        }
    }

    /// What says that a message whose handler fails with it is put aside. Coming again, it would get
    /// a kept error again, and nothing else.
    fn dead_letters(&self) -> Option<&'static str> {
        if self.is_dead_letter {
            return Some("an error marked `dead_letter`");
        }
        self.action().and_then(Action::keeps).map(|_| "a kept error")
    }

    /// The error inside, if that is what says what to do.
    fn inner(&self) -> Option<(Member, &Type)> {
        let Policy::Inner(_) = self.policy else { return None };
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
        let inner: Vec<&Type> = cases.iter().filter_map(|case| case.inner().map(|(_, ty)| ty)).collect();
        let retries = cases.iter().find_map(|case| case.action()?.retries());
        let retries = if retries.is_some() { self.sometimes() } else { self.of_inner(&inner, "Retries") };
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
        let hidden = self.hidden_from_messages();
        let conditional = self.conditional(&quote_spanned!(here=> #krate::HasErrorPolicy));
        quote_spanned! {here=>
            const _: () = {
                #marker
                #conditional
                #[automatically_derived]
                #hidden
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

    /// A marker of this type. It places the compile error about an unstorable error type at the
    /// word `keep`, and nowhere else.
    fn marker(&self, keep: Span) -> TokenStream {
        let here = Span::mixed_site();
        let krate = self.krate.at(here);
        let name = &self.input.ident;
        let (impl_generics, type_generics, where_clause) = self.input.generics.split_for_impl();
        let at = diag::located(keep);
        let krate_there = self.krate.at(at);
        let keeper = quote_spanned!(at=> #krate_there::__private::Keeper::<#name #type_generics>::of_type());
        quote_spanned! {here=>
            pub enum __IdemKeeps {}
            #[automatically_derived]
            impl #krate::Frequency for __IdemKeeps {
                type Or<Other: #krate::Frequency> = #krate::Sometimes;
            }
            #[automatically_derived]
            #[diagnostic::do_not_recommend]
            impl #impl_generics #krate::__private::KeepsErrors<#name #type_generics> for __IdemKeeps #where_clause {
                fn keeper() -> ::core::option::Option<#krate::__private::Keeper<#name #type_generics>> {
                    ::core::option::Option::Some(#keeper)
                }
            }
        }
    }

    fn arm(&self, case: &Case<'_>) -> TokenStream {
        let here = Span::mixed_site();
        let path =
            case.variant.map_or_else(|| quote_spanned!(here=> Self), |variant| quote_spanned!(here=> Self::#variant));
        if let Some((member, ty)) = case.inner() {
            let ty = self.inner_policy(ty);
            let action = quote_spanned!(here=> #ty::action);
            return quote_spanned!(here=> #path { #member: inner } => #action(inner),);
        }
        let action = case.action().map_or_else(|| self.unlisted(), |action| action.expand(&self.krate));
        quote_spanned!(here=> #path { .. } => #action,)
    }

    /// How often any of the errors inside does it. The last word is one of ours, so that no mark of
    /// another type comes through.
    fn of_inner(&self, inner: &[&Type], what: &str) -> TokenStream {
        inner.iter().rfold(self.never(), |rest, ty| {
            let (first, last) = diag::ends(ty);
            let krate = self.krate.at(first);
            let what = Ident::new(what, last);
            let ty = self.inner_policy(ty);
            quote_spanned!(first=> <#ty::#what as #krate::Frequency>::Or<#rest>)
        })
    }

    /// `<Inner as ErrorPolicy>`, from the first token of the type to its last: there lies the error
    /// where it has none.
    fn inner_policy(&self, ty: &Type) -> TokenStream {
        let (first, last) = diag::ends(ty);
        let krate = self.krate.at(first);
        let ty = diag::relocated(ty);
        let start = quote_spanned!(first=> <#ty as #krate::ErrorPolicy);
        let end = quote_spanned!(last=> >);
        quote!(#start #end)
    }

    /// The generics of the type. An error inside whose type has one of its parameters must have the
    /// trait too.
    fn generics_where(&self, inner: &[&Type], bound: &TokenStream) -> Generics {
        let mut generics = self.input.generics.clone();
        let open: Vec<_> = inner.iter().filter(|ty| self.names_a_parameter(ty)).collect();
        if !open.is_empty() {
            let predicates = &mut generics.make_where_clause().predicates;
            predicates.extend(open.into_iter().map(|ty| -> syn::WherePredicate { parse_quote!(#ty: #bound) }));
        }
        generics
    }

    /// Where an implementation has conditions, says without them that there is one. A function then
    /// takes an unmet condition for a mistake, and not for a type without an implementation.
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

    /// Only an implementation with conditions can tell which of them is not met.
    fn hidden_from_messages(&self) -> Option<TokenStream> {
        (!self.is_generic()).then(|| quote!(#[diagnostic::do_not_recommend]))
    }

    fn is_generic(&self) -> bool {
        !self.input.generics.params.iter().all(|parameter| matches!(parameter, GenericParam::Lifetime(_)))
    }

    fn names_a_parameter(&self, ty: &Type) -> bool {
        self.input.generics.params.iter().any(|parameter| match parameter {
            GenericParam::Type(parameter) => names(ty.to_token_stream(), &parameter.ident),
            GenericParam::Const(parameter) => names(ty.to_token_stream(), &parameter.ident),
            GenericParam::Lifetime(_) => false,
        })
    }

    /// Whether the type is a type parameter by itself.
    fn is_parameter(&self, ty: &Type) -> bool {
        let Type::Path(TypePath { qself: None, path, .. }) = ty else { return false };
        self.input.generics.type_params().any(|parameter| path.is_ident(&parameter.ident))
    }

    fn never(&self) -> TokenStream {
        let krate = self.krate.at(Span::mixed_site());
        quote_spanned!(Span::mixed_site()=> #krate::Never)
    }

    fn sometimes(&self) -> TokenStream {
        let krate = self.krate.at(Span::mixed_site());
        quote_spanned!(Span::mixed_site()=> #krate::Sometimes)
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
            ("enum E { #[idem(dead_letter, dead_letter)] A }", given_twice),
            ("enum E { #[idem(dead_letter = \"why\")] A }", "`dead_letter` takes nothing: write `dead_letter`"),
            ("enum E { #[idem(dead_letter(\"why\"))] A }", "`dead_letter` takes nothing: write `dead_letter`"),
            ("enum E { #[idem(dispose)] A }", "`dispose` is for the whole type: write it above the `enum`"),
            ("#[idem(dispose, dispose)] enum E { A }", given_twice),
            ("enum E { #[idem(redeliver)] A }", "`redeliver` needs a pause: write for example `redeliver ="),
            ("enum E { #[idem(redeliver = 30)] A }", "a duration needs a unit"),
            ("enum E { #[idem(redeliver = \"30s\", redeliver = \"30s\")] A }", given_twice),
            ("enum E { #[idem(keep, redeliver = \"30s\")] A }", "a kept error is dead-lettered, so it is not"),
            ("enum E { #[idem(dead_letter, redeliver = \"30s\")] A }", "`dead_letter` is dead-lettered, so it is not"),
            ("#[idem(redeliver = \"30s\")] enum E { A }", "`redeliver` is for one kind of error: write it above"),
        ] {
            let item = item.parse().expect("tokens");
            let expansion = derive(item).to_string();
            assert!(expansion.contains(expected), "{expected}: {expansion}");
            assert!(expansion.contains("Dispose for E"), "{expansion}");
        }
    }
}
