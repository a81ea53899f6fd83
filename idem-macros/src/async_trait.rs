//! Methods under an outer `#[async_trait]`, which has already expanded: a function that returns a
//! boxed future, with the author's body in the middle.

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};
use syn::{GenericArgument, PathArguments, Type, TypeParamBound};

/// The author's body inside the rewritten one.
pub(crate) struct Boxed {
    pub(crate) block: Group,
    /// The patterns of the `let` statements before it, which bind the parameters.
    pub(crate) bindings: Vec<TokenStream>,
    /// The index of the token tree to enter at each level.
    way: Vec<usize>,
}

impl Boxed {
    /// Looks for `let __ret: Type = { .. };`, at any depth: an attribute such as
    /// `#[tracing::instrument]` may have wrapped it once more.
    pub(crate) fn find(body: &Group) -> Option<Self> {
        let trees: Vec<_> = body.stream().into_iter().collect();
        trees
            .iter()
            .enumerate()
            .find_map(|(index, tree)| match tree {
                TokenTree::Group(group) => {
                    let mut found = Self::find(group)?;
                    found.way.insert(0, index);
                    Some(found)
                }
                TokenTree::Ident(word) if word == "let" => {
                    let (offset, block) = initialiser(&trees[index..])?;
                    Some(Self {
                        block,
                        bindings: patterns(&trees[..index]),
                        way: vec![index + offset],
                    })
                }
                _ => None,
            })
    }

    /// The parameters whose patterns bind nothing, by their generated names: `let __arg1 =
    /// __arg1;`.
    pub(crate) fn unbound(&self) -> impl Iterator<Item = Ident> {
        let names = self
            .bindings
            .iter()
            .filter_map(|pattern| syn::parse2::<Ident>(pattern.clone()).ok());
        names.filter(|name| name.to_string().starts_with("__arg"))
    }

    /// The rewritten body, with other tokens in the author's block.
    pub(crate) fn replace(&self, body: &Group, with: TokenStream) -> Group {
        replace(body, &self.way, with)
    }
}

fn replace(group: &Group, way: &[usize], with: TokenStream) -> Group {
    let stream = match way {
        [] => with,
        [index, rest @ ..] => {
            let mut trees: Vec<_> = group.stream().into_iter().collect();
            if let Some(TokenTree::Group(inner)) = trees.get(*index) {
                trees[*index] = replace(inner, rest, with).into();
            }
            trees.into_iter().collect()
        }
    };
    respanned(group, stream)
}

/// The block in `let __ret: Type = { .. };`, and its position.
fn initialiser(trees: &[TokenTree]) -> Option<(usize, Group)> {
    match trees {
        [_, TokenTree::Ident(name), TokenTree::Punct(colon), ..]
            if name == "__ret" && colon.as_char() == ':' => {}
        _ => return None,
    }
    trees
        .windows(3)
        .enumerate()
        .find_map(|(index, window)| match window {
            [
                TokenTree::Punct(equals),
                TokenTree::Group(block),
                TokenTree::Punct(end),
            ] if equals.as_char() == '='
                && block.delimiter() == Delimiter::Brace
                && end.as_char() == ';' =>
            {
                Some((index + 1, block.clone()))
            }
            _ => None,
        })
}

/// The patterns in `let pattern = ..;`. A pattern in `if let` binds nothing after its block.
fn patterns(trees: &[TokenTree]) -> Vec<TokenStream> {
    let is_word = |tree: &TokenTree, what| matches!(tree, TokenTree::Ident(word) if word == what);
    let ends = |tree: &&TokenTree| matches!(tree, TokenTree::Punct(punct) if matches!(punct.as_char(), '=' | ':'));
    let pattern = |index: usize| {
        let is_statement =
            is_word(&trees[index], "let") && (index == 0 || !is_word(&trees[index - 1], "if"));
        let pattern = trees[index + 1..]
            .iter()
            .take_while(|tree| !ends(tree))
            .cloned();
        is_statement.then(|| pattern.collect())
    };
    (0..trees.len()).filter_map(pattern).collect()
}

/// Returns the output of the future, if the type is `impl Future<Output = T>` or a pinned box of
/// one.
pub(crate) fn future_output(ty: &Type) -> Option<&Type> {
    let bounds = match ty {
        Type::Group(group) => return future_output(&group.elem),
        Type::Paren(paren) => return future_output(&paren.elem),
        Type::ImplTrait(ty) => &ty.bounds,
        Type::TraitObject(ty) => &ty.bounds,
        Type::Path(path) => {
            let last = path.path.segments.last()?;
            let PathArguments::AngleBracketed(arguments) = &last.arguments else {
                return None;
            };
            return match arguments.args.first()? {
                GenericArgument::Type(inner) if last.ident == "Pin" || last.ident == "Box" => {
                    future_output(inner)
                }
                _ => None,
            };
        }
        _ => return None,
    };
    bounds.iter().find_map(|bound| {
        let TypeParamBound::Trait(bound) = bound else {
            return None;
        };
        let last = bound
            .path
            .segments
            .last()
            .filter(|segment| segment.ident == "Future")?;
        let PathArguments::AngleBracketed(arguments) = &last.arguments else {
            return None;
        };
        arguments.args.iter().find_map(|argument| match argument {
            GenericArgument::AssocType(output) if output.ident == "Output" => Some(&output.ty),
            _ => None,
        })
    })
}

/// Replaces `self` by `__self`, as `#[async_trait]` does in the body. Some words `self` are not the
/// receiver and stay: those in `self::path`, `use` and `pub(..)`, those of inner items, and
/// `$self`, a fragment of a macro.
pub(crate) fn rename_self(tokens: TokenStream) -> TokenStream {
    let mut tokens = tokens.into_iter().peekable();
    let mut renamed = TokenStream::new();
    let mut in_item = false;
    let mut in_use = false;
    let mut after_pub = false;
    let mut after_dollar = false;
    while let Some(tree) = tokens.next() {
        in_use &= !is_punct(&tree, ';');
        let is_visibility = std::mem::take(&mut after_pub);
        let is_fragment = std::mem::replace(&mut after_dollar, is_punct(&tree, '$'));
        let is_path = tokens.peek().is_some_and(|next| is_punct(next, ':'));
        renamed.extend([match tree {
            TokenTree::Ident(word) if word == "self" && !is_path && !is_fragment => {
                Ident::new("__self", word.span()).into()
            }
            TokenTree::Ident(word) => {
                in_item |= is_item(&word, tokens.peek());
                in_use |= word == "use";
                after_pub = word == "pub";
                word.into()
            }
            TokenTree::Group(group) if in_use || is_visibility => group.into(),
            TokenTree::Group(group) if in_item => {
                in_item = group.delimiter() != Delimiter::Brace;
                group.into()
            }
            TokenTree::Group(group) => respanned(&group, rename_self(group.stream())).into(),
            other => other,
        }]);
    }
    renamed
}

/// Whether an item begins with this word, up to its braces. `macro_rules!` is not one: a macro sees
/// the variables around it.
pub(crate) fn is_item(word: &Ident, next: Option<&TokenTree>) -> bool {
    // A macro may write `fn $name`. `fn(..)` is a type.
    let is_name = |next: &TokenTree| matches!(next, TokenTree::Ident(_)) || is_punct(next, '$');
    word == "impl" || word == "fn" && next.is_some_and(is_name)
}

pub(crate) fn is_punct(tree: &TokenTree, what: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == what)
}

pub(crate) fn respanned(like: &Group, stream: TokenStream) -> Group {
    let mut group = Group::new(like.delimiter(), stream);
    group.set_span(like.span());
    group
}
