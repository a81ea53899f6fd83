//! How the body gets its arguments. A body in a task of its own gets all of them. In a body that is
//! tried again, each try gets clones, and exclusive references are lent to the tries in turn.

use proc_macro2::{Group, Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::visit::{self, Visit};
use syn::{FieldPat, FnArg, Pat, Receiver};

use crate::async_trait;
use crate::bindings::{Binding, Reference, conditions, mentions};
use crate::diag;
use crate::item::{Form, braced};
use crate::plan::Plan;

/// The code before the body, around each try of it, and in it.
#[derive(Default)]
pub(crate) struct Arguments {
    /// The patterns of the parameters, if they had to change.
    pub(crate) inputs: Option<Vec<FnArg>>,
    /// The code before the policy of errors.
    pub(crate) first: TokenStream,
    /// The code before the body is created.
    pub(crate) before: TokenStream,
    /// The code in the closure that creates the body, for each try.
    pub(crate) each: TokenStream,
    /// The code at the beginning of the body.
    pub(crate) inside: TokenStream,
    /// The block, if it had to change.
    pub(crate) block: Option<Group>,
}

impl Plan {
    /// Whether the policy of errors uses it.
    fn is_late(&self, name: &str) -> bool {
        let name = if name == "__self" { "self" } else { name };
        self.errors
            .late()
            .iter()
            .any(|expr| mentions(&expr.to_token_stream(), name))
    }

    /// Whether the policy of errors owns the parameter, and not the body. If the body runs in
    /// place, the policy may borrow one field while the body takes another.
    fn is_left_to_policy(&self, name: &str) -> bool {
        self.is_late(name) && !(self.detached.is_some() && self.uses(name))
    }

    /// Whether an expression in the attribute names it.
    fn asks_for(&self, name: &str) -> bool {
        let calls = self
            .operation
            .calls
            .iter()
            .flat_map(|call| call.argument.expressions());
        let mut expressions = calls
            .chain(&self.operation.runtime)
            .chain(self.errors.computed().map(|value| &value.expr));
        expressions.any(|expr| mentions(&expr.to_token_stream(), name)) || self.is_late(name)
    }

    pub(crate) fn arguments(&self, block: &Group) -> Arguments {
        let mut arguments = Arguments::default();
        let retries = self.errors.retries().map(diag::located);
        if let Some(retry) = retries {
            self.lend(retry, block, &mut arguments);
        }
        let mut kept = self.kept(retries.is_some());
        if self.detached.is_some() && matches!(self.form, Form::Async) {
            self.keep_unnamed(retries.is_some(), &mut kept, &mut arguments);
        }
        if retries.is_some() && self.detached.is_none() {
            // Parameters that the body does not use are dropped at the end of the function.
            return arguments;
        }
        // As in any function, the last parameter is dropped first.
        let kept: TokenStream = kept.into_iter().rev().map(|(_, keep)| keep).collect();
        let place = if retries.is_some() {
            &mut arguments.each
        } else {
            &mut arguments.inside
        };
        *place = quote!(#kept #place);
        arguments
    }

    /// The statements that move the named parameters into the body, whether it uses them or not.
    /// Each has the place of its parameter.
    fn kept(&self, is_retried: bool) -> Vec<(usize, TokenStream)> {
        let mut kept = Vec::new();
        if let Some(receiver) = self.owned_receiver()
            && !self.is_left_to_policy("self")
            && !(is_retried && self.uses("self"))
        {
            kept.push((0, keep(&Ident::new("self", receiver.self_token.span), &[])));
        }
        let inputs: Vec<_> = self.function.signature.inputs.iter().collect();
        for Binding {
            name,
            cfgs,
            reference,
            ..
        } in &self.bindings.all
        {
            let text = name.to_string();
            let is_used = self.uses(&text);
            let is_unknown = !is_used && !self.asks_for(&text) && !text.starts_with('_');
            let skip = self.is_left_to_policy(&text)
                || !is_used && *reference != Reference::No
                || is_used && is_retried
                // The compiler reports this.
                || is_unknown && self.detached.is_none();
            if skip {
                continue;
            }
            let binds =
                |input: &&FnArg| matches!(input, FnArg::Typed(input) if binds(&input.pat, name));
            let place = inputs.iter().position(binds).unwrap_or(0);
            let mut keep = keep(name, cfgs);
            if is_unknown {
                // Taking it counts as a use, so the compiler does not report it as unused.
                keep = quote_spanned!(Span::mixed_site()=> #keep #(#cfgs)* if false { let #name = (); });
            }
            kept.push((place, keep));
        }
        if let Form::Boxed(boxed) = &self.form {
            for hidden in boxed
                .unbound()
                .filter(|_| !is_retried || self.detached.is_some())
            {
                kept.push((inputs.len(), keep(&hidden, &[])));
            }
        }
        kept
    }

    /// Moves into a body with a task of its own the parameters whose patterns do not bind all of
    /// their parts.
    fn keep_unnamed(
        &self,
        is_retried: bool,
        kept: &mut Vec<(usize, TokenStream)>,
        arguments: &mut Arguments,
    ) {
        let mut inputs: Vec<_> = self.function.signature.inputs.iter().cloned().collect();
        let mut is_changed = false;
        for (index, input) in inputs.iter_mut().enumerate() {
            let FnArg::Typed(input) = input else { continue };
            let left = LeftOut::find(&input.pat);
            if Reference::of_type(&input.ty) != Reference::No || !left.any || left.is_unclear {
                continue;
            }
            let cfgs = conditions(&input.attrs);
            let whole = format_ident!("__idem_argument_{index}", span = Span::mixed_site());
            let names = left.names.iter().map(ToString::to_string);
            let is_asked_for = names.clone().any(|name| self.asks_for(&name));
            let before = kept
                .iter()
                .position(|(place, _)| *place > index)
                .unwrap_or(kept.len());
            if matches!(*input.pat, Pat::Wild(_)) || !is_retried && !is_asked_for {
                if !matches!(*input.pat, Pat::Wild(_)) {
                    let pattern = &input.pat;
                    let bind =
                        quote_spanned!(Span::mixed_site()=> #(#cfgs)* let #pattern = #whole;);
                    arguments.inside.extend(bind);
                    kept.retain(|(place, _)| *place != index);
                }
                let before = before.min(kept.len());
                kept.insert(before, (index, keep(&whole, &cfgs)));
                *input.pat = if self.function.is_instrumented() {
                    // A form that `#[tracing::instrument]` does not record, because the value need
                    // not be `Debug`.
                    syn::parse_quote!((#whole))
                } else {
                    syn::parse_quote!(#whole)
                };
                is_changed = true;
            } else if !is_retried {
                let mut rest = Vec::new();
                name_wilds(&mut input.pat, index, &mut rest);
                is_changed |= !rest.is_empty();
                kept.splice(
                    before..before,
                    rest.iter().map(|rest| (index, keep(rest, &cfgs))),
                );
            }
        }
        arguments.inputs = is_changed.then_some(inputs);
    }

    /// Gives each try its own arguments, or exclusive references in turn, and the block that uses
    /// them. An argument that allows neither is an error at the word that asks for retries.
    fn lend(&self, retry: Span, block: &Group, arguments: &mut Arguments) {
        let used = self
            .bindings
            .all
            .iter()
            .filter(|binding| self.uses(&binding.name.to_string()));
        for binding in used {
            self.lend_one(retry, &binding.name, binding, arguments);
        }
        if let Some(receiver) = self.renamed_receiver() {
            let name = Ident::new("__self", receiver.self_token.span);
            let this = Binding {
                name,
                mutable: receiver.mutability,
                cfgs: Vec::new(),
                reference: Reference::of_receiver(receiver),
            };
            let from = Ident::new("self", receiver.self_token.span);
            self.lend_one(retry, &from, &this, arguments);
            arguments.block = Some(braced(
                async_trait::rename_self(block.stream()),
                block.span(),
            ));
        }
    }

    fn lend_one(&self, retry: Span, from: &Ident, binding: &Binding, arguments: &mut Arguments) {
        let krate = self.krate.at(retry);
        let Binding {
            name,
            mutable,
            cfgs,
            reference,
        } = binding;
        let mut from = from.clone();
        from.set_span(retry.resolved_at(from.span()));
        // The parameter's own `mut` is repeated here, so that the compiler warns if it is not
        // needed.
        arguments
            .first
            .extend(mutable.map(|_| quote_spanned!(retry=> #(#cfgs)* let _ = &mut #from;)));
        if *reference == Reference::Exclusive {
            let lent = format_ident!(
                "__idem_lent_{}",
                name.to_string().trim_start_matches("r#"),
                span = retry
            );
            arguments.before.extend(quote_spanned! {retry=>
                #(#cfgs)* let #lent = &#krate::__private::Lent::new(&mut *#from);
            });
            arguments
                .each
                .extend(quote_spanned!(retry=> #(#cfgs)* let mut #lent = #lent.take();));
            arguments.inside.extend(quote_spanned! {retry=>
                #(#cfgs)* let ::core::option::Option::Some(#mutable #name) = #lent.get() else {
                    return ::core::future::pending().await;
                };
            });
            return;
        }
        arguments.each.extend(quote_spanned! {retry=>
            #(#cfgs)*
            #[allow(clippy::shadow_reuse)]
            let #mutable #name = #krate::__private::again(&#from);
        });
    }

    /// The statements that move into the policy of a detached body the parameters that it names and
    /// the body does not use. By itself, a closure captures only the fields that it uses.
    pub(crate) fn kept_by_policy(&self) -> TokenStream {
        if self.detached.is_none() {
            return TokenStream::new();
        }
        let receiver = self
            .owned_receiver()
            .filter(|_| self.is_left_to_policy("self"));
        let receiver =
            receiver.map(|receiver| keep(&Ident::new("self", receiver.self_token.span), &[]));
        let owned = self
            .bindings
            .all
            .iter()
            .filter(|binding| binding.reference == Reference::No);
        let late = owned.filter(|binding| self.is_left_to_policy(&binding.name.to_string()));
        receiver
            .into_iter()
            .chain(late.map(|Binding { name, cfgs, .. }| keep(name, cfgs)))
            .collect()
    }

    /// The owned `self` of an async function.
    fn owned_receiver(&self) -> Option<&Receiver> {
        let receiver = self
            .bindings
            .receiver
            .as_ref()
            .filter(|_| matches!(self.form, Form::Async))?;
        (Reference::of_receiver(receiver) == Reference::No).then_some(receiver)
    }

    /// The arguments that the policy of errors uses, if the body owns them in a task of its own.
    pub(crate) fn for_policy(&self) -> TokenStream {
        let Some(retry) = self
            .errors
            .retries()
            .filter(|_| self.detached.is_some())
            .map(diag::located)
        else {
            return TokenStream::new();
        };
        let both = self.bindings.all.iter().filter(|Binding { name, .. }| {
            let name = name.to_string();
            self.uses(&name) && self.is_late(&name)
        });
        let krate = self.krate.at(retry);
        let again = both.map(|Binding { name, cfgs, .. }| {
            quote_spanned! {retry=>
                #(#cfgs)*
                #[allow(clippy::shadow_reuse)]
                let #name = #krate::__private::again(&#name);
            }
        });
        again.collect()
    }
}

/// Moves a variable into the body, whether it is used or not.
fn keep(name: &Ident, cfgs: &[syn::Attribute]) -> TokenStream {
    // The generated use must not trigger a lint at the author's code.
    let allow = name
        .to_string()
        .starts_with('_')
        .then(|| quote!(#[allow(clippy::used_underscore_binding)]));
    quote_spanned!(Span::mixed_site()=> #(#cfgs)* #allow let _ = &#name;)
}

fn binds(pattern: &Pat, name: &Ident) -> bool {
    LeftOut::find(pattern).names.contains(name)
}

/// The parts that a pattern does not bind.
#[derive(Default)]
struct LeftOut {
    any: bool,
    names: Vec<Ident>,
    /// Whether a macro may hide more.
    is_unclear: bool,
}

impl LeftOut {
    fn find(pattern: &Pat) -> Self {
        let mut left = Self::default();
        left.visit_pat(pattern);
        left
    }
}

impl<'ast> Visit<'ast> for LeftOut {
    fn visit_pat(&mut self, pattern: &'ast Pat) {
        match pattern {
            Pat::Wild(_) | Pat::Rest(_) => self.any = true,
            Pat::Struct(pattern) => self.any |= pattern.rest.is_some(),
            Pat::Ident(pattern) => self.names.push(pattern.ident.clone()),
            Pat::Macro(_) | Pat::Verbatim(_) => self.is_unclear = true,
            _ => {}
        }
        visit::visit_pat(self, pattern);
    }
}

/// Gives names to the parts that a pattern leaves out by `_`, so that they can be moved. Parts
/// behind a reference cannot be moved.
fn name_wilds(pattern: &mut Pat, index: usize, names: &mut Vec<Ident>) {
    match pattern {
        Pat::Wild(_) => {
            let name = format_ident!(
                "__idem_rest_{index}_{}",
                names.len(),
                span = Span::mixed_site()
            );
            *pattern = syn::parse_quote!(#name);
            names.push(name);
        }
        Pat::Paren(inner) => name_wilds(&mut inner.pat, index, names),
        Pat::Tuple(inner) => inner
            .elems
            .iter_mut()
            .for_each(|part| name_wilds(part, index, names)),
        Pat::TupleStruct(inner) => inner
            .elems
            .iter_mut()
            .for_each(|part| name_wilds(part, index, names)),
        Pat::Struct(inner) => {
            for FieldPat { pat, .. } in &mut inner.fields {
                name_wilds(pat, index, names);
            }
        }
        _ => {}
    }
}
