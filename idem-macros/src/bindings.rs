//! The parameters, as the body and the attribute's expressions name them.

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::parse::Parser as _;
use syn::visit::{self, Visit};
use syn::{Expr, ExprPath, FnArg, GenericParam, Pat, PatIdent, Receiver, Signature};

use crate::async_trait::Boxed;
use crate::diag::{self, Errors};

/// A name that the body can use.
pub(crate) struct Binding {
    pub(crate) name: Ident,
    pub(crate) mutable: bool,
}

/// All parameters of a function.
pub(crate) struct Bindings {
    function: Ident,
    pub(crate) receiver: Option<Receiver>,
    pub(crate) all: Vec<Binding>,
    /// Names of constant parameters, which no body borrows.
    constants: Vec<Ident>,
    /// A pattern holds a macro, so that there may be more.
    incomplete: bool,
}

impl Bindings {
    pub(crate) fn of(signature: &Signature, boxed: Option<&Boxed>) -> Self {
        let constants = signature.generics.params.iter().filter_map(|parameter| match parameter {
            GenericParam::Const(parameter) => Some(parameter.ident.clone()),
            GenericParam::Type(_) | GenericParam::Lifetime(_) => None,
        });
        let mut bindings = Self {
            function: signature.ident.clone(),
            receiver: signature.receiver().cloned(),
            all: Vec::new(),
            constants: constants.collect(),
            incomplete: false,
        };
        if let Some(boxed) = boxed {
            // `#[async_trait]` has moved the patterns to the head of the body.
            for pattern in boxed.bindings.iter().map(|tokens| Pat::parse_single.parse2(tokens.clone())) {
                match pattern {
                    Ok(pattern) => bindings.add(&pattern),
                    Err(_) => bindings.incomplete = true,
                }
            }
            return bindings;
        }
        for input in &signature.inputs {
            if let FnArg::Typed(input) = input {
                bindings.add(&input.pat);
            }
        }
        bindings
    }

    fn add(&mut self, pattern: &Pat) {
        let mut names = Names::default();
        names.visit_pat(pattern);
        self.incomplete |= names.macros;
        self.all.extend(names.found.into_iter().map(|(name, mutable)| Binding { name, mutable }));
    }

    /// Reports names in the expression that are no parameters, where nothing else can be meant.
    pub(crate) fn check(&self, expr: &Expr, errors: &mut Errors) {
        if self.incomplete {
            return;
        }
        let mut heads = Heads { found: Vec::new() };
        heads.visit_expr(expr);
        let mut own = Names::default();
        own.visit_expr(expr);
        for name in heads.found {
            let known = self.all.iter().map(|binding| &binding.name).chain(&self.constants);
            if name == "self" {
                if self.receiver.is_none() {
                    errors.on(name, format!("`{}` takes no `self`: its parameters are {}", self.function, self.list()));
                }
            } else if !known.chain(own.found.iter().map(|(name, _)| name)).any(|known| known == name) {
                errors.on(name, self.unknown(name));
            }
        }
    }

    fn unknown(&self, name: &Ident) -> String {
        let Self { function, .. } = self;
        let word = name.to_string();
        let names: Vec<_> = self.all.iter().map(|binding| binding.name.to_string()).collect();
        let said = match names.len() {
            0 => format!("`{name}` is no parameter of `{function}`, which has none"),
            1 => format!("`{name}` is no parameter of `{function}`, whose only one is {}", self.list()),
            _ => format!("`{name}` is no parameter of `{function}`, which has {}", self.list()),
        };
        match diag::closest(&word, names.iter().map(String::as_str)) {
            Some(meant) => format!("{said}: did you mean `{meant}`?"),
            None => format!("{said}; a static is named with its path, `self::{name}`"),
        }
    }

    fn list(&self) -> String {
        let names: Vec<_> = self.all.iter().map(|binding| format!("`{}`", binding.name)).collect();
        match names.as_slice() {
            [] => "none".to_owned(),
            [only] => only.clone(),
            [first @ .., last] => format!("{} and {last}", first.join(", ")),
        }
    }
}

/// Whether the tokens name this variable. A literal may be a format string, which names variables too.
pub(crate) fn mentions(tokens: &TokenStream, name: &str) -> bool {
    tokens.clone().into_iter().any(|tree| match tree {
        TokenTree::Ident(word) => word == name,
        TokenTree::Group(group) => mentions(&group.stream(), name),
        TokenTree::Literal(literal) => {
            let text = literal.to_string();
            text.contains('{') && text.contains(name)
        }
        TokenTree::Punct(_) => false,
    })
}

/// The names that a pattern, or any pattern in an expression, binds.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) found: Vec<(Ident, bool)>,
    macros: bool,
}

impl<'ast> Visit<'ast> for Names {
    fn visit_pat_ident(&mut self, pattern: &'ast PatIdent) {
        self.found.push((pattern.ident.clone(), pattern.mutability.is_some()));
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_pat(&mut self, pattern: &'ast Pat) {
        self.macros |= matches!(pattern, Pat::Macro(_) | Pat::Verbatim(_));
        visit::visit_pat(self, pattern);
    }
}

/// Names that stand where only a variable or a static can: at the head of fields, methods and operators. What is called or handed to a
/// call may be a function.
struct Heads<'ast> {
    found: Vec<&'ast Ident>,
}

impl<'ast> Visit<'ast> for Heads<'ast> {
    fn visit_expr(&mut self, expr: &'ast Expr) {
        match expr {
            Expr::Path(path) => self.found.extend(variable(path)),
            Expr::Field(field) => self.visit_expr(&field.base),
            Expr::MethodCall(call) => self.visit_expr(&call.receiver),
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

/// The name, if the path can be that of a variable: in lower case, as constants and variants are not.
fn variable(path: &ExprPath) -> Option<&Ident> {
    let name = path.path.get_ident().filter(|_| path.qself.is_none())?;
    let lower = name.to_string().trim_start_matches('_').starts_with(char::is_lowercase);
    lower.then_some(name)
}
