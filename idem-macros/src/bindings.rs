//! The parameters, as the body and the attribute's expressions name them.

use proc_macro2::{Delimiter, Ident, Literal, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::Parser as _;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Expr, ExprPath, FnArg, GenericParam, Lifetime, Pat, PatIdent, Path, Receiver,
    ReceiverKind, Signature, Token, Type,
};

use crate::async_trait::{Boxed, is_item};
use crate::diag::{self, Errors};

/// A name that the body can use.
pub(crate) struct Binding {
    pub(crate) name: Ident,
    pub(crate) mutable: Option<Token![mut]>,
    /// The `cfg` attributes of the parameter, which may leave it out.
    pub(crate) cfgs: Vec<Attribute>,
    pub(crate) reference: Reference,
}

/// Whether a parameter is a reference, as far as its type shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reference {
    No,
    Shared,
    Exclusive,
}

impl Reference {
    pub(crate) fn of_type(ty: &Type) -> Self {
        match ty {
            Type::Group(group) => Self::of_type(&group.elem),
            Type::Paren(paren) => Self::of_type(&paren.elem),
            Type::Reference(reference) if reference.mutability.is_some() => Self::Exclusive,
            Type::Reference(_) => Self::Shared,
            _ => Self::No,
        }
    }

    pub(crate) fn of_receiver(receiver: &Receiver) -> Self {
        match &receiver.kind {
            ReceiverKind::Reference(_, _, mutability) if mutability.is_some() => Self::Exclusive,
            ReceiverKind::Reference(..) => Self::Shared,
            ReceiverKind::Typed(_, ty) => Self::of_type(ty),
            _ => Self::No,
        }
    }
}

/// The `cfg` attributes of a parameter.
pub(crate) fn conditions(attributes: &[Attribute]) -> Vec<Attribute> {
    let is_condition = |attribute: &&Attribute| {
        attribute.path().is_ident("cfg") || attribute.path().is_ident("cfg_attr")
    };
    attributes.iter().filter(is_condition).cloned().collect()
}

/// All parameters of a function.
pub(crate) struct Bindings {
    function: Ident,
    pub(crate) receiver: Option<Receiver>,
    pub(crate) all: Vec<Binding>,
    /// Names of constant parameters, which no body borrows.
    constants: Vec<Ident>,
    /// Names of type parameters.
    types: Vec<Ident>,
    /// Whether a pattern contains a macro, which may bind more names.
    incomplete: bool,
}

impl Bindings {
    pub(crate) fn collect(signature: &Signature, boxed: Option<&Boxed>) -> Self {
        let constants = signature
            .generics
            .params
            .iter()
            .filter_map(|parameter| match parameter {
                GenericParam::Const(parameter) => Some(parameter.ident.clone()),
                GenericParam::Type(_) | GenericParam::Lifetime(_) => None,
            });
        let mut bindings = Self {
            function: signature.ident.clone(),
            receiver: signature.receiver().cloned(),
            all: Vec::new(),
            constants: constants.collect(),
            types: signature
                .generics
                .type_params()
                .map(|parameter| parameter.ident.clone())
                .collect(),
            incomplete: false,
        };
        // `#[async_trait]` has moved patterns, and parameters that are not references, to the
        // beginning of the body.
        for pattern in boxed.iter().flat_map(|boxed| &boxed.bindings) {
            match Pat::parse_single.parse2(pattern.clone()) {
                Ok(pattern) => bindings.add(&pattern, None, &[]),
                Err(_) => bindings.incomplete = true,
            }
        }
        for input in &signature.inputs {
            if let FnArg::Typed(input) = input {
                bindings.add(&input.pat, Some(&input.ty), &input.attrs);
            }
        }
        if let Some(receiver) = &bindings.receiver {
            let reference = Reference::of_receiver(receiver);
            if let Some(this) = bindings
                .all
                .iter_mut()
                .find(|binding| binding.name == "__self")
            {
                this.reference = reference;
            }
        }
        if boxed.is_some() {
            bindings
                .all
                .retain(|Binding { name, .. }| !name.to_string().starts_with("__arg"));
        }
        bindings
    }

    fn add(&mut self, pattern: &Pat, ty: Option<&Type>, attributes: &[Attribute]) {
        let mut names = Names::default();
        names.visit_pat(pattern);
        self.incomplete |= names.macros;
        // `&pattern` binds values that were taken out of the reference.
        let reference = match pattern {
            Pat::Reference(_) => Reference::No,
            _ => ty.map_or(Reference::No, Reference::of_type),
        };
        for (name, mutable) in names.found {
            if let Some(known) = self.all.iter_mut().find(|binding| binding.name == name) {
                known.reference = reference;
                continue;
            }
            self.all.push(Binding {
                name,
                mutable,
                cfgs: conditions(attributes),
                reference,
            });
        }
    }

    /// Reports names in the expression that can only be variables and are not parameters.
    pub(crate) fn check(&self, expr: &Expr, errors: &mut Errors) {
        if self.incomplete {
            return;
        }
        let mut heads = Heads { found: Vec::new() };
        heads.visit_expr(expr);
        let mut own = Names::default();
        own.visit_expr(expr);
        for name in heads.found {
            let known = self
                .all
                .iter()
                .map(|binding| &binding.name)
                .chain(&self.constants);
            if name == "self" {
                if self.receiver.is_none() {
                    errors.on(
                        name,
                        format!("`{}` takes no `self`; {}", self.function, self.said()),
                    );
                }
            } else if !known
                .chain(own.found.iter().map(|(name, _)| name))
                .any(|known| known == name)
            {
                errors.on(name, self.unknown(name));
            }
        }
    }

    /// The parameters that the expression names.
    pub(crate) fn named_in(&self, expr: &Expr) -> impl Iterator<Item = String> {
        let tokens = expr.to_token_stream();
        let receiver = self.receiver.as_ref().map(|_| "self".to_owned());
        let names = self
            .all
            .iter()
            .map(|binding| binding.name.to_string())
            .chain(receiver);
        names.filter(move |name| mentions(&tokens, name))
    }

    /// The parameter that the expression names, if it names one. A name that a closure or another
    /// pattern in it binds is its own.
    pub(crate) fn first_in(&self, expr: &Expr) -> Option<String> {
        let mut own = Names::default();
        own.visit_expr(expr);
        self.named_in(expr)
            .find(|name| !own.found.iter().any(|(own, _)| own == name))
    }

    /// The function's own type parameter that the expression names, if it names one.
    pub(crate) fn first_type_in(&self, expr: &Expr) -> Option<Ident> {
        let mut paths = Paths {
            types: &self.types,
            found: None,
        };
        paths.visit_expr(expr);
        paths.found
    }

    /// The function's own type parameters among these tokens, where they are.
    pub(crate) fn types_in(&self, tokens: TokenStream) -> Vec<Ident> {
        let named = |token| match token {
            TokenTree::Ident(name) if self.types.contains(&name) => vec![name],
            TokenTree::Group(group) => self.types_in(group.stream()),
            _ => Vec::new(),
        };
        tokens.into_iter().flat_map(named).collect()
    }

    fn unknown(&self, name: &Ident) -> String {
        let Self { function, .. } = self;
        let names = self.names();
        let no_parameter = format!("`{name}` is not a parameter of `{function}`");
        match diag::closest(&name.to_string(), names.iter().map(String::as_str)) {
            Some(meant) if names.len() == 1 => format!("{no_parameter}: did you mean `{meant}`?"),
            Some(meant) => format!("{no_parameter}: did you mean `{meant}`? {}", self.said()),
            None => format!(
                "{no_parameter}; {}; a static is written with its path, `self::{name}`, and a \
                 constant text as a `const`",
                self.said()
            ),
        }
    }

    /// Which parameters there are.
    fn said(&self) -> String {
        let names: Vec<_> = self
            .names()
            .into_iter()
            .map(|name| format!("`{name}`"))
            .collect();
        match names.as_slice() {
            [] => "it has no parameters".to_owned(),
            [only] => format!("its only parameter is {only}"),
            [first @ .., last] => format!("its parameters are {} and {last}", first.join(", ")),
        }
    }

    /// The names of the parameters, without those that `#[async_trait]` has made up.
    fn names(&self) -> Vec<String> {
        let names = self.all.iter().map(|binding| binding.name.to_string());
        names.filter(|name| !name.starts_with("__")).collect()
    }
}

/// A parameter that is a reference.
pub(crate) struct Borrow {
    /// The names that its pattern binds.
    pub(crate) names: Vec<String>,
    /// The place of an error about it.
    pub(crate) caret: TokenStream,
    pub(crate) is_static: bool,
}

impl Borrow {
    /// All reference parameters of a function.
    pub(crate) fn collect(signature: &Signature) -> Vec<Self> {
        let inputs = signature.inputs.iter();
        let borrows = inputs.filter_map(|input| match input {
            FnArg::Receiver(receiver) => match &receiver.kind {
                ReceiverKind::Reference(_, lifetime, _) => Some(Self::new(
                    vec!["self".to_owned()],
                    receiver,
                    lifetime.as_ref(),
                )),
                ReceiverKind::Typed(_, ty) => Self::of_type(vec!["self".to_owned()], ty),
                _ => None,
            },
            // The compiler reports a missing one.
            FnArg::Typed(input) if !conditions(&input.attrs).is_empty() => None,
            FnArg::Typed(input) => {
                let mut names = Names::default();
                names.visit_pat(&input.pat);
                Self::of_type(
                    names
                        .found
                        .iter()
                        .map(|(name, _)| name.to_string())
                        .collect(),
                    &input.ty,
                )
            }
        });
        borrows.collect()
    }

    fn of_type(names: Vec<String>, ty: &Type) -> Option<Self> {
        let Type::Reference(reference) = ty else {
            return None;
        };
        Some(Self::new(names, ty, reference.lifetime.as_ref()))
    }

    fn new(names: Vec<String>, caret: &impl ToTokens, lifetime: Option<&Lifetime>) -> Self {
        let is_static = lifetime.is_some_and(|lifetime| lifetime.ident == "static");
        Self {
            names,
            caret: caret.to_token_stream(),
            is_static,
        }
    }
}

/// Whether the tokens name this variable. A field or a method of the same name does not count, nor
/// does a name in an inner item, which cannot see variables. A name in the format string of a macro
/// counts.
pub(crate) fn mentions(tokens: &TokenStream, name: &str) -> bool {
    mentions_in(tokens, name, false)
}

fn mentions_in(tokens: &TokenStream, name: &str, in_macro: bool) -> bool {
    let trees: Vec<_> = tokens.clone().into_iter().collect();
    let mut in_item = false;
    let mut in_use = false;
    trees.iter().enumerate().any(|(index, tree)| {
        let before = |distance| {
            index
                .checked_sub(distance)
                .and_then(|index| trees.get(index))
        };
        let next = trees.get(index + 1);
        match tree {
            TokenTree::Ident(word) if word == name && !in_use => {
                let is_member = is_punct(before(1), '.') && !is_punct(before(2), '.');
                // Not a variable: `name: value`, `name: Type`, `name::path`, `path::name`, the
                // label `'name`, and `$name` in a macro.
                let is_in_path = is_punct(before(1), ':') && is_punct(before(2), ':');
                let is_other =
                    is_punct(before(1), '$') || is_punct(before(1), '\'') || is_punct(next, ':');
                !is_member && !is_in_path && !is_other
            }
            TokenTree::Ident(word) => {
                in_item |= is_item(word, next);
                // `use<'a>` imports nothing.
                in_use |= word == "use" && !is_punct(next, '<');
                false
            }
            TokenTree::Punct(punct) => {
                in_use &= punct.as_char() != ';';
                false
            }
            TokenTree::Group(_) if in_use => false,
            TokenTree::Group(group) if in_item => {
                in_item = group.delimiter() != Delimiter::Brace;
                false
            }
            TokenTree::Group(group) => mentions_in(
                &group.stream(),
                name,
                in_macro || is_macro_input(&trees, index),
            ),
            TokenTree::Literal(literal) => in_macro && formats(literal, name),
        }
    })
}

/// The place where `self` is used in a task of its own: in an async block or a closure that is an
/// argument of a function such as `tokio::spawn`. A method such as `scope.spawn` is allowed.
pub(crate) fn self_in_task(tokens: &TokenStream) -> Option<Span> {
    let trees: Vec<_> = tokens.clone().into_iter().collect();
    trees.iter().enumerate().find_map(|(index, tree)| {
        let TokenTree::Group(group) = tree else {
            return None;
        };
        let before = |distance| {
            index
                .checked_sub(distance)
                .and_then(|index| trees.get(index))
        };
        let spawns = matches!(before(1), Some(TokenTree::Ident(word))
            if ["spawn", "spawn_local", "spawn_blocking"].iter().any(|name| word == name));
        if spawns && group.delimiter() == Delimiter::Parenthesis && !is_punct(before(2), '.') {
            let arguments: Vec<_> = group.stream().into_iter().collect();
            let is_deferred = |tree: &TokenTree| {
                matches!(tree, TokenTree::Ident(word) if word == "async")
                    || is_punct(Some(tree), '|')
            };
            let begins = arguments.iter().position(is_deferred)?;
            return arguments[begins..].iter().find_map(self_at);
        }
        self_in_task(&group.stream())
    })
}

/// The first `self` that does not belong to an inner item.
fn self_at(tree: &TokenTree) -> Option<Span> {
    match tree {
        TokenTree::Ident(word) if word == "self" || word == "__self" => Some(word.span()),
        TokenTree::Group(group)
            if mentions(&group.stream(), "self") || mentions(&group.stream(), "__self") =>
        {
            group.stream().into_iter().find_map(|tree| self_at(&tree))
        }
        _ => None,
    }
}

/// A format string that names the variable.
pub(crate) fn format_of(tokens: &TokenStream, name: &str) -> Option<Literal> {
    format_in(tokens, name, false)
}

fn format_in(tokens: &TokenStream, name: &str, in_macro: bool) -> Option<Literal> {
    let trees: Vec<_> = tokens.clone().into_iter().collect();
    trees
        .iter()
        .enumerate()
        .find_map(|(index, tree)| match tree {
            TokenTree::Literal(literal) if in_macro && formats(literal, name) => {
                Some(literal.clone())
            }
            TokenTree::Group(group) => format_in(
                &group.stream(),
                name,
                in_macro || is_macro_input(&trees, index),
            ),
            _ => None,
        })
}

/// Whether the group at this place is the argument of a macro, or the rules of one.
fn is_macro_input(trees: &[TokenTree], index: usize) -> bool {
    let before = |distance| {
        index
            .checked_sub(distance)
            .and_then(|index| trees.get(index))
    };
    is_punct(before(1), '!')
        || matches!(before(3), Some(TokenTree::Ident(word)) if word == "macro_rules")
}

fn is_punct(tree: Option<&TokenTree>, what: char) -> bool {
    matches!(tree, Some(TokenTree::Punct(punct)) if punct.as_char() == what)
}

/// Whether this format string names the variable: `{name}`, `{name :?}` or `{:name$}`.
fn formats(literal: &Literal, name: &str) -> bool {
    let text = literal.to_string();
    let name = name.trim_start_matches("r#");
    let is_argument = |inside: &str| {
        let rest = inside.strip_prefix(name).map(str::trim_start);
        rest.is_some_and(|rest| rest.starts_with(['}', ':']))
    };
    text.split('{').skip(1).any(is_argument) || text.contains(&format!("{name}$"))
}

/// The names that a pattern, or any pattern in an expression, binds.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) found: Vec<(Ident, Option<Token![mut]>)>,
    macros: bool,
}

impl<'ast> Visit<'ast> for Names {
    fn visit_pat_ident(&mut self, pattern: &'ast PatIdent) {
        self.found.push((pattern.ident.clone(), pattern.mutability));
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_pat(&mut self, pattern: &'ast Pat) {
        self.macros |= matches!(pattern, Pat::Macro(_) | Pat::Verbatim(_));
        visit::visit_pat(self, pattern);
    }
}

/// The first of these types at the head of a path.
struct Paths<'a> {
    types: &'a [Ident],
    found: Option<Ident>,
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_path(&mut self, path: &'ast Path) {
        let head = path
            .segments
            .first()
            .map(|segment| &segment.ident)
            .filter(|_| path.leading_colon.is_none());
        let found = head.filter(|head| self.types.contains(head));
        self.found = self.found.take().or_else(|| found.cloned());
        visit::visit_path(self, path);
    }
}

/// Names at places where only a variable or a static can be: before a field or a method, and beside
/// an operator. A name that is called, or passed to a call, may be a function.
struct Heads<'ast> {
    found: Vec<&'ast Ident>,
}

impl<'ast> Visit<'ast> for Heads<'ast> {
    fn visit_expr(&mut self, expr: &'ast Expr) {
        match expr {
            Expr::Path(path) => self.found.extend(variable(path)),
            Expr::Field(field) => self.visit_expr(&field.base),
            Expr::MethodCall(call) => {
                self.visit_expr(&call.receiver);
                self.visit_arguments(&call.args);
            }
            Expr::Call(call) => self.visit_arguments(&call.args),
            Expr::Index(index) => self.visit_expr(&index.expr),
            Expr::Reference(reference) => self.visit_expr(&reference.expr),
            Expr::Unary(unary) => self.visit_expr(&unary.expr),
            Expr::Paren(paren) => self.visit_expr(&paren.expr),
            Expr::Group(group) => self.visit_expr(&group.expr),
            Expr::Tuple(tuple) => tuple.elems.iter().for_each(|part| self.visit_expr(part)),
            Expr::Binary(binary) => {
                self.visit_expr(&binary.left);
                self.visit_expr(&binary.right);
            }
            _ => {}
        }
    }
}

impl<'ast> Heads<'ast> {
    /// A bare argument may be a function.
    fn visit_arguments(&mut self, arguments: impl IntoIterator<Item = &'ast Expr>) {
        arguments
            .into_iter()
            .filter(|argument| !matches!(argument, Expr::Path(_)))
            .for_each(|argument| self.visit_expr(argument));
    }
}

/// The name, if the path can be a variable: constants and variants are not in lower case.
fn variable(path: &ExprPath) -> Option<&Ident> {
    let name = path.path.get_ident().filter(|_| path.qself.is_none())?;
    let lower = name
        .to_string()
        .trim_start_matches('_')
        .starts_with(char::is_lowercase);
    lower.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::mentions;

    #[test]
    fn format_strings_and_local_macros_mention_variables() {
        for (tokens, is_mentioned) in [
            (r#"format!("{text}")"#, true),
            (r#"format!("{text }")"#, true),
            (r#"format!("{text  :?}")"#, true),
            ("format!(\"{text\n}\")", true),
            (r#"format!("{:text$}", 1)"#, true),
            (r#"format!("{texts} {a_text :?} text }")"#, false),
            ("macro_rules! length { () => { text.len() } }", true),
            (
                "macro_rules! length { ($text:expr) => { $text.len() } }",
                false,
            ),
            (
                "macro_rules! length \
                 { ($name:ident) => { fn $name(text: &str) -> usize { text.len() } } }",
                false,
            ),
            ("fn length(text: &str) -> usize { text.len() }", false),
            ("let length: fn(&str) -> usize = { text.len() };", true),
            ("audit::text(id)", false),
            ("audit::<u8>::text(id)", false),
            ("Line { body: text }", true),
            ("'text: loop { break 'text; }", false),
            ("'line: loop { break 'line text; }", true),
            (r#"let plain = "{text}";"#, false),
            (r#"show("{text}", !done && ["{text:?}"].len() > 1)"#, false),
            (r#"log::info!(target: "orders", [("{text}")])"#, true),
            (r#"macro_rules! line { () => { show!("{text}") } }"#, true),
            (
                "fn ids<'a>() -> impl Iterator + use<'a> { none() } text.len()",
                true,
            ),
            (
                "let ids: Box<dyn Fn() -> impl Iterator + use<'a>> = text.ids();",
                true,
            ),
            ("use audit::{text}; text::of(id)", false),
        ] {
            assert_eq!(
                mentions(&tokens.parse().unwrap(), "text"),
                is_mentioned,
                "{tokens}"
            );
        }
    }
}
