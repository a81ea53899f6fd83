//! `#[derive(KeyPart)]`.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens as _, format_ident, quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::meta::ParseNestedMeta;
use syn::{
    Attribute, Data, DataEnum, DeriveInput, Error, Expr, Fields, Token, Type, Variant,
    WherePredicate, parse_quote,
};

use crate::diag::{self, Errors};
use crate::paths::Krate;

/// Expands the derive. With any mistake in it, the type still gets an implementation, so that its
/// uses are not errors as well.
pub(crate) fn derive(item: TokenStream) -> TokenStream {
    let input: DeriveInput = match syn::parse2(item) {
        Ok(input) => input,
        Err(error) => return error.into_compile_error(),
    };
    let mut errors = Errors::default();
    let part = Part {
        krate: krate(&input, &mut errors),
    };
    let (variants, fields): (Vec<&Variant>, Vec<&Fields>) = match &input.data {
        Data::Struct(data) => (Vec::new(), vec![&data.fields]),
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| (variant, &variant.fields))
            .unzip(),
        Data::Union(_) => (Vec::new(), Vec::new()),
    };
    let of_variants = variants.into_iter().map(|variant| &variant.attrs);
    for attributes in of_variants.chain(fields.into_iter().flatten().map(|field| &field.attrs)) {
        no_options(attributes, &mut errors);
    }
    let body = errors.keep(part.body(&input));
    let errors = errors.into_compile_errors();
    let body = body.filter(|_| errors.is_none());
    let implementation = part.implementation(&input, body);
    quote!(#implementation #errors)
}

/// Reads `#[idem(crate = "..")]` on the type.
fn krate(input: &DeriveInput, errors: &mut Errors) -> Krate {
    let mut krate = None;
    for attribute in input
        .attrs
        .iter()
        .filter(|attribute| attribute.path().is_ident("idem"))
    {
        let first = attribute
            .meta
            .require_list()
            .ok()
            .and_then(|list| list.tokens.clone().into_iter().next());
        if !matches!(first, Some(TokenTree::Ident(_))) {
            errors.on(
                attribute,
                "`#[derive(KeyPart)]` has only `#[idem(crate = \"::idem\")]`",
            );
            continue;
        }
        let read = attribute.parse_nested_meta(|meta| {
            if skip_policy(&meta)? {
                return Ok(());
            }
            if !meta.path.is_ident("crate") {
                return Err(meta.error(
                    "unknown option: `#[derive(KeyPart)]` has only `#[idem(crate = \"::idem\")]`",
                ));
            }
            if krate.is_some() {
                return Err(meta.error("`crate` is given twice: leave one of them out"));
            }
            let no_path =
                |_| meta.error("`crate` needs a path: write for example `crate = \"::idem\"`");
            let path = meta.value().map_err(no_path)?.parse::<Expr>()?;
            krate = Some(Krate::parse(&path, errors).unwrap_or_default());
            Ok(())
        });
        errors.keep(read);
    }
    krate.unwrap_or_default()
}

/// Skips a word of `#[derive(ErrorPolicy)]`, with what belongs to it. Returns whether it is one.
fn skip_policy(meta: &ParseNestedMeta<'_>) -> syn::Result<bool> {
    const WORDS: [&str; 8] = [
        "keep",
        "release",
        "abandon",
        "retry",
        "inner",
        "dead_letter",
        "redeliver",
        "dispose",
    ];
    let is_policy = WORDS.iter().any(|word| meta.path.is_ident(word));
    while is_policy && !meta.input.is_empty() && !meta.input.peek(Token![,]) {
        meta.input.parse::<TokenTree>()?;
    }
    Ok(is_policy)
}

/// Reports `#[idem(..)]` at a place where it has no meaning.
fn no_options(attributes: &[Attribute], errors: &mut Errors) {
    for attribute in attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("idem"))
    {
        let mut is_policy = false;
        let read = attribute.parse_nested_meta(|meta| {
            is_policy = skip_policy(&meta)?;
            if is_policy {
                Ok(())
            } else {
                Err(meta.error("no option"))
            }
        });
        if read.is_err() || !is_policy {
            let message = "`#[derive(KeyPart)]` has no options for a field or a variant: every \
                field is part of the key; to leave one out, implement `KeyPart` by hand";
            errors.on(attribute, message);
        }
    }
}

struct Part {
    krate: Krate,
}

impl Part {
    fn implementation(&self, input: &DeriveInput, body: Option<TokenStream>) -> TokenStream {
        let here = Span::mixed_site();
        let krate = self.krate.at(here);
        let name = &input.ident;
        let mut generics = input.generics.clone();
        for parameter in &mut generics.params {
            if let syn::GenericParam::Type(parameter) = parameter {
                parameter.bounds.push(parse_quote!(#krate::KeyPart));
            }
        }
        let never_missing = self.never_missing(input);
        let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
        let body = body.unwrap_or_else(|| quote_spanned!(here=> let _ = key;));
        quote_spanned! {here=>
            #[automatically_derived]
            impl #impl_generics #krate::KeyPart for #name #type_generics #where_clause {
                fn write_to(&self, key: &mut #krate::KeyWriter<'_>) {
                    #body
                }
            }
            #never_missing
        }
    }

    /// A value is never missing if no field of it can be. A field whose type has arguments counts
    /// as one that can: through a `Box`, the condition could refer to itself.
    fn never_missing(&self, input: &DeriveInput) -> Option<TokenStream> {
        let fields: Vec<&Type> = match &input.data {
            Data::Struct(data) => data.fields.iter().map(|field| &field.ty).collect(),
            Data::Enum(data) => data
                .variants
                .iter()
                .flat_map(|variant| &variant.fields)
                .map(|field| &field.ty)
                .collect(),
            Data::Union(_) => return None,
        };
        if !fields.iter().all(|ty| has_no_arguments(ty)) {
            return None;
        }
        let here = Span::mixed_site();
        let krate = self.krate.at(here);
        let name = &input.ident;
        let mut generics = input.generics.clone();
        // With the lifetime, an unmet condition is not an error.
        let condition = |ty: &&Type| -> WherePredicate {
            parse_quote!(for<'__idem> #ty: #krate::__private::NeverMissing)
        };
        generics
            .make_where_clause()
            .predicates
            .extend(fields.iter().map(condition));
        let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
        Some(quote_spanned! {here=>
            #[automatically_derived]
            impl #impl_generics #krate::__private::NeverMissing for #name #type_generics #where_clause {}
        })
    }

    fn body(&self, input: &DeriveInput) -> syn::Result<TokenStream> {
        match &input.data {
            Data::Struct(data) => self.structure(&input.ident, &data.fields),
            Data::Enum(data) => self.enumeration(&input.ident, data),
            Data::Union(data) => {
                let message = "a union cannot be part of a key, since it does not say which field \
                    is set: use an enum";
                Err(Error::new(data.union_token.span, message))
            }
        }
    }

    fn structure(&self, name: &Ident, fields: &Fields) -> syn::Result<TokenStream> {
        let here = Span::mixed_site();
        let members = fields.members().zip(fields);
        let writes: Vec<_> = members
            .map(|(member, field)| self.write(&field.ty, &quote_spanned!(here=> &self.#member)))
            .collect();
        match writes.as_slice() {
            [] => {
                let message = format!(
                    "`{name}` has no fields, so that all calls would have one key: give it a \
                     field, or leave it out of the key"
                );
                Err(Error::new(name.span(), message))
            }
            [only] => Ok(only.clone()),
            _ => Ok(group(&writes)),
        }
    }

    fn enumeration(&self, name: &Ident, data: &DataEnum) -> syn::Result<TokenStream> {
        if data.variants.is_empty() {
            let message =
                format!("`{name}` has no variants, so that no call would have a key: give it one");
            return Err(Error::new(name.span(), message));
        }
        let arms = data.variants.iter().map(|variant| self.arm(variant));
        Ok(quote_spanned!(Span::mixed_site()=> match self { #(#arms)* }))
    }

    fn arm(&self, variant: &Variant) -> TokenStream {
        let here = Span::mixed_site();
        let name = &variant.ident;
        let text = name.unraw().to_string();
        let text = quote_spanned!(here=> key.text(#text););
        let mut bindings = Vec::new();
        let mut writes = vec![text.clone()];
        for (index, (member, field)) in variant.fields.members().zip(&variant.fields).enumerate() {
            let binding = format_ident!("field_{index}", span = here);
            writes.push(self.write(&field.ty, &binding.to_token_stream()));
            bindings.push(quote_spanned!(here=> #member: #binding));
        }
        let body = if bindings.is_empty() {
            text
        } else {
            group(&writes)
        };
        quote_spanned!(here=> Self::#name { #(#bindings),* } => { #body })
    }

    /// Writes one field. An error is shown at the field's type.
    fn write(&self, ty: &Type, field: &TokenStream) -> TokenStream {
        let (first, _) = diag::ends(ty);
        let krate = self.krate.at(first);
        let path = quote_spanned!(first=> <#ty as #krate::KeyPart>::write_to);
        quote_spanned!(Span::mixed_site()=> #path(#field, key);)
    }
}

/// Whether the type is a path such as `u64`, `Self::Id` or `orders::OrderId`.
fn has_no_arguments(ty: &Type) -> bool {
    match ty {
        Type::Group(group) => has_no_arguments(&group.elem),
        Type::Path(path) => {
            path.qself.is_none()
                && path
                    .path
                    .segments
                    .iter()
                    .all(|part| part.arguments.is_none())
        }
        _ => false,
    }
}

fn group(writes: &[TokenStream]) -> TokenStream {
    quote_spanned!(Span::mixed_site()=> key.group(|key| { #(#writes)* });)
}

#[cfg(test)]
mod tests {
    use proc_macro2::TokenStream;
    use quote::quote;

    use super::derive;

    #[track_caller]
    fn assert_body(item: TokenStream, body: &TokenStream) {
        let derived = derive(item).to_string();
        let body = quote!({ #body }).to_string();
        assert!(derived.contains(&body), "{body}\n\nis not in\n\n{derived}");
    }

    #[test]
    fn one_field_is_the_key_and_several_are_a_group() {
        assert_body(
            quote!(
                struct Id(u64);
            ),
            &quote!(<u64 as ::idem::KeyPart>::write_to(&self.0, key);),
        );
        assert_body(
            quote!(
                #[idem(crate = "crate::idem")]
                struct Id {
                    a: u64,
                    b: String,
                }
            ),
            &quote!(key.group(|key| {
                <u64 as crate::idem::KeyPart>::write_to(&self.a, key);
                <String as crate::idem::KeyPart>::write_to(&self.b, key);
            });),
        );
    }

    #[test]
    fn a_variant_is_its_name_and_then_its_fields() {
        assert_body(
            quote!(
                enum Payee {
                    House,
                    Customer { id: u64 },
                }
            ),
            &quote!(match self {
                Self::House {} => {
                    key.text("House");
                }
                Self::Customer { id: field_0 } => {
                    key.group(|key| {
                        key.text("Customer");
                        <u64 as ::idem::KeyPart>::write_to(field_0, key);
                    });
                }
            }),
        );
    }

    #[test]
    fn type_parameters_are_key_parts() {
        let derived = derive(quote!(
            struct Id<'a, T: Clone, const N: usize>(&'a T);
        ))
        .to_string();
        let head = quote! {
            impl<'a, T: Clone + ::idem::KeyPart, const N: usize> ::idem::KeyPart for Id<'a, T, N>
        };
        assert!(derived.contains(&head.to_string()), "{derived}");
    }

    #[test]
    fn the_words_of_an_error_policy_are_left_to_it() {
        let derived = derive(quote! {
            #[idem(dispose, keep(ttl = "1h"), crate = "crate::idem")]
            enum Refusal {
                #[idem(dead_letter)]
                Unreadable(u64),
                #[idem(release, redeliver = "1m")]
                Down(u64),
                #[idem(retry(max = 3, then = keep))]
                #[idem(inner)]
                Busy(u64),
            }
        });
        let derived = derived.to_string();
        assert!(
            derived.contains("impl crate :: idem :: KeyPart for Refusal"),
            "{derived}"
        );
        assert!(!derived.contains("compile_error"), "{derived}");
        for wrong in [
            "#[idem(keep, skip)]",
            "#[idem(skip)]",
            "#[idem()]",
            "#[idem]",
            "#[idem(crate = \"::idem\")]",
        ] {
            let item = format!("struct Id {{ {wrong} id: u64 }}")
                .parse()
                .expect("tokens");
            assert!(
                derive(item)
                    .to_string()
                    .contains("has no options for a field"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn what_has_no_key_is_an_error_and_an_implementation_all_the_same() {
        for (item, words) in [
            (
                quote!(
                    struct Unit;
                ),
                "`Unit` has no fields",
            ),
            (
                quote!(
                    enum Void {}
                ),
                "`Void` has no variants",
            ),
            (
                quote!(union Bits { a: u8, b: i8 }),
                "a union cannot be part of a key",
            ),
            (
                quote!(
                    #[idem(crat = "x")]
                    struct Id(u64);
                ),
                "unknown option",
            ),
        ] {
            let derived = derive(item).to_string();
            assert!(
                derived.contains(words) && derived.contains(":: idem :: KeyPart for"),
                "{derived}"
            );
        }
    }
}
