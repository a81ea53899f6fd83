//! The item under the attribute: a function. Only its signature is parsed. Its body stays as
//! tokens, so that a half-typed body is not an error here.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::ext::IdentExt as _;
use syn::parse::{ParseStream, Parser as _};
use syn::visit::{self, Visit};
use syn::{
    Attribute, Error, Expr, FnArg, GenericArgument, GenericParam, PathArguments, ReturnType,
    Signature, Token, Type, TypeImplTrait, TypeReference, Visibility,
};

use crate::async_trait::{self, Boxed};
use crate::diag::Errors;

/// A function with a body.
pub(crate) struct Function {
    /// Everything before the body, as written.
    pub(crate) head: TokenStream,
    pub(crate) signature: Signature,
    pub(crate) body: Group,
}

/// In which form the function is async.
pub(crate) enum Form {
    /// `async fn`.
    Async,
    /// `#[async_trait]` has rewritten it already.
    Boxed(Boxed),
}

impl Function {
    pub(crate) fn parse(item: &TokenStream) -> syn::Result<Self> {
        let mut head: Vec<TokenTree> = item.clone().into_iter().collect();
        let Some(TokenTree::Group(body)) = head.pop().filter(is_block) else {
            let end = declaration.parse2(item.clone())?;
            let message = "a method without a body has nothing to guard: put `#[idempotent]` on \
                its implementations";
            return Err(Error::new(end.span, message));
        };
        let head: TokenStream = head.into_iter().collect();
        let signature = signature.parse2(head.clone())?;
        Ok(Self {
            head,
            signature,
            body,
        })
    }

    /// Everything before the body, with other patterns for the parameters.
    pub(crate) fn head_with(&self, inputs: &[FnArg]) -> TokenStream {
        let before = |input: ParseStream<'_>| {
            let attributes = input.call(Attribute::parse_outer)?;
            let visibility = input.parse::<Visibility>()?;
            let default = input.parse::<Option<Token![default]>>()?;
            input.parse::<TokenStream>()?;
            Ok(quote!(#(#attributes)* #visibility #default))
        };
        let signature = Signature {
            inputs: inputs.iter().cloned().collect(),
            ..self.signature.clone()
        };
        // It was read before, so it can be read again.
        before
            .parse2(self.head.clone())
            .map_or_else(|_| self.head.clone(), |before| quote!(#before #signature))
    }

    /// Whether another attribute, which is expanded after this one, records the parameters by their
    /// names.
    pub(crate) fn is_instrumented(&self) -> bool {
        let attributes = |input: ParseStream<'_>| {
            let attributes = input.call(Attribute::parse_outer)?;
            input.parse::<TokenStream>()?;
            Ok(attributes)
        };
        let attributes = attributes.parse2(self.head.clone()).unwrap_or_default();
        attributes.iter().any(|attribute| {
            attribute
                .path()
                .segments
                .last()
                .is_some_and(|last| last.ident == "instrument")
        })
    }

    /// The form of the function and the output of its future, if its body can be guarded.
    pub(crate) fn outcome(&self, errors: &mut Errors) -> Option<(Form, Type)> {
        let Signature {
            constness,
            asyncness,
            abi,
            output,
            ..
        } = &self.signature;
        if let Some(constness) = constness {
            errors.on(
                constness,
                "a `const fn` runs while compiling and cannot be guarded: write `async fn`",
            );
            return None;
        }
        if let Some(abi) = abi {
            errors.on(
                abi,
                "a function that is called from other languages cannot be guarded: call a guarded \
                 `async fn` from it",
            );
            return None;
        }
        if asyncness.is_some() {
            return Some((Form::Async, self.returned(output, errors)?));
        }
        if self.is_async_trait() {
            return self.boxed(errors);
        }
        let name = &self.signature.ident;
        match output {
            ReturnType::Type(_, future) if async_trait::future_output(future).is_some() => {
                let message = format!(
                    "`{name}` returns a future but is not an `async fn`: write `async fn {name}`, \
                     and return the output of the future"
                );
                errors.on(future, message);
            }
            _ => {
                errors.on(
                    self.signature.fn_token,
                    format!("only an async function can be guarded: write `async fn {name}`"),
                );
                self.returned(output, errors);
            }
        }
        None
    }

    /// Returns the reason if the operation needs a name other than the function's, and its place.
    pub(crate) fn needs_name(&self) -> Option<Error> {
        let Signature {
            ident,
            inputs,
            generics,
            ..
        } = &self.signature;
        let write = format!("write for example `name = \"orders.{}\"`", ident.unraw());
        let method = format!(
            "a method needs a name for its operation, since other types may have a method \
             `{ident}` too: {write}"
        );
        if let Some(receiver) = self.signature.receiver() {
            return Some(Error::new_spanned(receiver, method));
        }
        if self.is_async_trait() {
            return Some(Error::new_spanned(ident, method));
        }
        if let Some(type_of_method) = self_type(self.head.clone()) {
            return Some(Error::new_spanned(type_of_method, method));
        }
        let named = generics
            .params
            .iter()
            .find_map(|parameter| match parameter {
                GenericParam::Type(parameter) => Some(parameter.ident.to_token_stream()),
                GenericParam::Const(parameter) => Some(parameter.ident.to_token_stream()),
                GenericParam::Lifetime(_) => None,
            });
        let unnamed = || {
            inputs.iter().find_map(|input| match input {
                FnArg::Typed(input) => First::inside(&input.ty)
                    .impl_trait
                    .map(ToTokens::to_token_stream),
                FnArg::Receiver(_) => None,
            })
        };
        let parameter = named.or_else(unnamed)?;
        let message = format!(
            "a generic function needs a name for its operation, the same for all its types: {write}"
        );
        Some(Error::new_spanned(parameter, message))
    }

    fn is_async_trait(&self) -> bool {
        self.signature.asyncness.is_none()
            && self
                .signature
                .generics
                .lifetimes()
                .any(|parameter| parameter.lifetime.ident == "async_trait")
    }

    fn boxed(&self, errors: &mut Errors) -> Option<(Form, Type)> {
        let name = &self.signature.ident;
        let outcome = match &self.signature.output {
            ReturnType::Type(_, boxed) => async_trait::future_output(boxed),
            ReturnType::Default => None,
        };
        match (outcome, Boxed::find(&self.body)) {
            // The author has not written this type, so the error has no better place.
            (Some(Type::Tuple(unit)), _) if unit.elems.is_empty() => self.returns_nothing(errors),
            (Some(outcome), Some(boxed)) => {
                return Some((Form::Boxed(boxed), self.storable(outcome, errors)?));
            }
            _ => {
                let message = "this method is not as `#[async_trait]` is known to write it: guard \
                    an async function outside of the trait and call it from here";
                errors.on(name, message);
            }
        }
        None
    }

    fn returned(&self, output: &ReturnType, errors: &mut Errors) -> Option<Type> {
        match output {
            ReturnType::Type(_, outcome) => self.storable(outcome, errors),
            ReturnType::Default => {
                self.returns_nothing(errors);
                None
            }
        }
    }

    fn returns_nothing(&self, errors: &mut Errors) {
        let name = &self.signature.ident;
        let message = format!(
            "`{name}` must return a `Result`, which carries the errors of `idem` as well: write \
             `-> Result<(), E>`"
        );
        errors.on(name, message);
    }

    /// Returns the type, unless no value of it can be stored. Whether it is a `Result` only the
    /// compiler knows, which resolves names.
    fn storable(&self, outcome: &Type, errors: &mut Errors) -> Option<Type> {
        let name = &self.signature.ident;
        if let Some(hidden) = First::inside(outcome).impl_trait {
            errors.on(
                hidden,
                "an outcome is stored, and stored values need a type with a name: \
                write the type itself",
            );
            return None;
        }
        if matches!(
            outcome,
            Type::Tuple(_)
                | Type::Never(_)
                | Type::Reference(_)
                | Type::Array(_)
                | Type::TraitObject(_)
        ) {
            let write = outcome.to_token_stream();
            let message = format!(
                "`{name}` must return a `Result`, which carries the errors of `idem` as well: \
                 write `-> Result<{write}, E>`"
            );
            errors.on(outcome, message);
            return None;
        }
        if let Some(borrowed) = borrowed_value(outcome) {
            errors.on(
                borrowed,
                "an outcome is stored, so it owns its data: return for example \
                `String` or `Vec<T>`",
            );
            return None;
        }
        Some(outcome.clone())
    }
}

/// The reference in `Result<&T, E>` or `Result<Vec<&T>, E>`.
fn borrowed_value(outcome: &Type) -> Option<&TypeReference> {
    let Type::Path(path) = outcome else {
        return None;
    };
    let last = path
        .path
        .segments
        .last()
        .filter(|last| last.ident == "Result")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    let GenericArgument::Type(value) = arguments.args.first()? else {
        return None;
    };
    First::inside(value).reference
}

/// `$body:block` of `macro_rules!` comes in an invisible group.
fn is_block(tree: &TokenTree) -> bool {
    match tree {
        TokenTree::Group(group) => match group.delimiter() {
            Delimiter::Brace => true,
            Delimiter::None => {
                let mut inside = group.stream().into_iter();
                inside.next().as_ref().is_some_and(is_block) && inside.next().is_none()
            }
            _ => false,
        },
        _ => false,
    }
}

fn signature(input: ParseStream<'_>) -> syn::Result<Signature> {
    let attributes = input.call(Attribute::parse_outer)?;
    let is_ours = |attribute: &&Attribute| {
        attribute
            .path()
            .segments
            .last()
            .is_some_and(|last| last.ident == "idempotent")
    };
    if let Some(again) = attributes.iter().find(is_ours) {
        return Err(Error::new_spanned(
            again.path(),
            "`#[idempotent]` is written twice: leave one of them out",
        ));
    }
    input.parse::<Visibility>()?;
    if let Some(error) = other_item(input) {
        return Err(error);
    }
    input.parse::<Option<Token![default]>>()?;
    input.parse()
}

/// A function without a body.
fn declaration(input: ParseStream<'_>) -> syn::Result<Token![;]> {
    signature(input)?;
    input.parse()
}

/// The error for an item that is not a function.
fn other_item(input: ParseStream<'_>) -> Option<Error> {
    let ahead = input.fork();
    let mut word = ahead.call(Ident::parse_any).ok()?;
    while word == "unsafe" || word == "auto" || word == "default" {
        word = ahead.call(Ident::parse_any).ok()?;
    }
    let (what, advice) = match word.to_string().as_str() {
        "impl" => ("an `impl` block", ": put it on the methods inside"),
        "trait" => ("a trait", ": put it on the methods of its implementations"),
        "mod" => ("a module", ": put it on the functions inside"),
        "struct" => ("a struct", ""),
        "enum" => ("an enum", ""),
        "union" => ("a union", ""),
        "static" => ("a static", ""),
        "type" => ("a type alias", ""),
        "use" => ("an import", ""),
        "macro_rules" => ("a macro", ""),
        "const" if ahead.peek(syn::Ident) || ahead.peek(Token![_]) => ("a constant", ""),
        _ => return None,
    };
    Some(Error::new(
        word.span(),
        format!("`#[idempotent]` goes on an `async fn`, not on {what}{advice}"),
    ))
}

/// The first `Self`, which only a method can name.
pub(crate) fn self_type(tokens: TokenStream) -> Option<Ident> {
    tokens.into_iter().find_map(|tree| match tree {
        TokenTree::Ident(word) if word == "Self" => Some(word),
        TokenTree::Group(group) => self_type(group.stream()),
        _ => None,
    })
}

/// Whether an expression depends on the implementing type.
pub(crate) fn is_of_type(name: &Expr) -> bool {
    self_type(name.to_token_stream()).is_some()
}

/// A block of these tokens.
pub(crate) fn braced(tokens: TokenStream, span: Span) -> Group {
    let mut group = Group::new(Delimiter::Brace, tokens);
    group.set_span(span);
    group
}

/// The first part of a type that has no stored form, or no name.
#[derive(Default)]
struct First<'ast> {
    impl_trait: Option<&'ast TypeImplTrait>,
    reference: Option<&'ast TypeReference>,
}

impl<'ast> First<'ast> {
    fn inside(ty: &'ast Type) -> Self {
        let mut first = Self::default();
        first.visit_type(ty);
        first
    }
}

impl<'ast> Visit<'ast> for First<'ast> {
    fn visit_type_impl_trait(&mut self, ty: &'ast TypeImplTrait) {
        self.impl_trait.get_or_insert(ty);
    }

    fn visit_type_reference(&mut self, ty: &'ast TypeReference) {
        self.reference.get_or_insert(ty);
        visit::visit_type_reference(self, ty);
    }
}
