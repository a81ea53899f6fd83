//! One annotated function: where its operation's name comes from, and whether another function has
//! that name.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::record::{is_valid_operation, reserved};

/// One annotated function. Its address is its identity: functions that one macro emits share file,
/// line and column.
#[derive(Debug)]
pub struct Site {
    file: &'static str,
    line: u32,
    column: u32,
    /// The function's path as its first caller saw it, including the type that a trait's method was
    /// called for.
    first: OnceLock<&'static str>,
    default: OnceLock<Result<(), String>>,
}

/// The name of a function's operation.
#[derive(Debug, Clone, Copy)]
pub struct Name {
    text: &'static str,
    source: Source,
    /// The name of a type inside the function, whose path begins with the function's own. It
    /// differs between compilers, so it only serves to find mistakes.
    inside: fn() -> &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The path of the function.
    Default,
    /// The name is written out, so it is the same for every type that the function is a method of.
    Written,
    /// Written as a constant of the type.
    OfType,
}

impl Name {
    /// The path of the function, which was given no name.
    pub const fn of_function(path: &'static str, inside: fn() -> &'static str) -> Self {
        Self {
            text: path,
            source: Source::Default,
            inside,
        }
    }

    /// A name that was written.
    pub const fn written(text: &'static str, inside: fn() -> &'static str) -> Self {
        Self {
            text,
            source: Source::Written,
            inside,
        }
    }

    /// A name that was written and depends on `Self`.
    pub const fn of_type(text: &'static str, inside: fn() -> &'static str) -> Self {
        Self {
            text,
            source: Source::OfType,
            inside,
        }
    }

    /// Returns the name, for errors about something else.
    pub(crate) fn label(self) -> &'static str {
        self.text
    }
}

/// The first function with each default name.
static FIRST: Mutex<Option<HashMap<&'static str, &'static Site>>> = Mutex::new(None);

/// Checks a constant name while compiling, as far as a constant function can: letters outside of
/// ASCII are left to the first call.
///
/// # Panics
///
/// If the name is invalid, which then is a compile error.
#[track_caller]
pub const fn checked_name(name: &'static str) -> &'static str {
    assert!(
        !name.is_empty(),
        "`name` is empty: write for example `name = \"orders.create\"`"
    );
    assert!(
        is_plausible(name.as_bytes()),
        "`name` is 1 to 128 letters, digits and `_ - . / # @ +`, in segments that may be joined by \
         `::`: write for example `name = \"orders.create\"`"
    );
    let refusal = match reserved(name) {
        Some(reserved) => reserved.refusal_in_code,
        None => "",
    };
    assert!(refusal.is_empty(), "{}", refusal);
    name
}

const fn is_plausible(name: &[u8]) -> bool {
    let mut index = 0;
    let mut segment = 0;
    while index < name.len() {
        let byte = name[index];
        if byte == b':' {
            if segment == 0 || index + 1 >= name.len() || name[index + 1] != b':' {
                return false;
            }
            (segment, index) = (0, index + 2);
            continue;
        }
        let allowed = byte.is_ascii_alphanumeric()
            || !byte.is_ascii()
            || matches!(byte, b'_' | b'-' | b'.' | b'/' | b'#' | b'@' | b'+');
        if !allowed {
            return false;
        }
        (segment, index) = (segment + 1, index + 1);
    }
    segment > 0 && name.len() <= 128
}

impl Site {
    /// A function at this place.
    pub const fn new(file: &'static str, line: u32, column: u32) -> Self {
        Self {
            file,
            line,
            column,
            first: OnceLock::new(),
            default: OnceLock::new(),
        }
    }

    /// Returns what is wrong with the name for this function, if anything.
    pub(crate) fn check(&'static self, name: Name) -> Result<(), String> {
        let inside = (name.inside)();
        let first = *self.first.get_or_init(|| inside);
        match name.source {
            Source::OfType => Ok(()),
            Source::Default => self
                .default
                .get_or_init(|| self.check_default(name.text, inside))
                .clone(),
            // In nearly all calls this is the same text in memory.
            Source::Written if std::ptr::eq(first, inside) || serves_one_type(first, inside) => {
                Ok(())
            }
            Source::Written => {
                let one = implementing(first).unwrap_or(first);
                let other = implementing(inside).unwrap_or(inside);
                Err(format!(
                    "the method at {self} has one name for `{one}` and for `{other}`, so a call of \
                     one would get the outcome of the other; declare a constant in the trait, give \
                     it a value in each implementation, and write `name = Self::NAME`"
                ))
            }
        }
    }

    fn check_default(&'static self, path: &'static str, inside: &str) -> Result<(), String> {
        if let Some(owner) = owner(path, inside) {
            return Err(format!(
                "the function at {self} belongs to `{owner}`, and other types may have one of its \
                 name; give it a name with `name = \"..\"`"
            ));
        }
        if !is_valid_operation(path) {
            return Err(format!(
                "the path of the function at {self} is no valid name; give it one with `name = \
                 \"..\"`"
            ));
        }
        let mut first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = *first.get_or_insert_default().entry(path).or_insert(self);
        if std::ptr::eq(taken, self) {
            return Ok(());
        }
        let said = |site: &Site| {
            site.first
                .get()
                .map(|inside| without_closures(inside))
                .unwrap_or_default()
        };
        Err(format!(
            "two functions have the name `{path}` by default, `{}` at {taken} and `{}` at {self}; \
             give one of them a name with `name = \"..\"`",
            said(taken),
            said(self),
        ))
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// Returns the type or trait that the function belongs to. The attribute cannot see an `impl`
/// around a function without `self`. A function inside of another function belongs to no type.
fn owner<'a>(path: &str, inside: &'a str) -> Option<&'a str> {
    let (module, function) = path.rsplit_once("::")?;
    if inside.starts_with(path) && inside[path.len()..].starts_with("::") {
        return None;
    }
    if let Some(owner) = implementing(inside) {
        return Some(owner);
    }
    let end = inside.rfind(&format!("::{function}::"))?;
    let owner = inside
        .get(..end)?
        .strip_prefix(module)?
        .strip_prefix("::")?;
    let last = owner.rsplit("::").next().unwrap_or(owner);
    let is_type = owner.ends_with('>') || last.starts_with(char::is_uppercase);
    is_type.then_some(owner)
}

/// The type in `<Type as Trait>::method`.
fn implementing(inside: &str) -> Option<&str> {
    let inside = inside.strip_prefix('<')?;
    let mut depth = 0_usize;
    for (index, c) in inside.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if !inside[..index].ends_with('-') => depth = depth.saturating_sub(1),
            ' ' if depth == 0 && inside[index..].starts_with(" as ") => return inside.get(..index),
            _ => {}
        }
    }
    None
}

/// Whether both paths are of one function for one type, with any parameters of that type.
fn serves_one_type(one: &str, other: &str) -> bool {
    match (implementing(one), implementing(other)) {
        (Some(one), Some(other)) => {
            one == other || without_parameters(one) == without_parameters(other)
        }
        _ => true,
    }
}

fn without_parameters(ty: &str) -> String {
    let mut depth = 0_usize;
    // The arrow of a function pointer is not a closing bracket.
    let ty = ty.replace("->", "");
    let outside = ty.chars().filter(|c| {
        depth += usize::from(*c == '<');
        let outside = depth == 0;
        depth = depth.saturating_sub(usize::from(*c == '>'));
        outside
    });
    outside.collect()
}

fn without_closures(inside: &str) -> String {
    inside.replace("::{{closure}}", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_a_type_is_told_from_one_inside_of_a_function() {
        for (inside, expected) in [
            ("app::orders::create::{{closure}}", None),
            ("app::orders::outer::create::{{closure}}", None),
            ("app::orders::outer::{{closure}}::create::{{closure}}", None),
            ("app::orders::Orders::create::{{closure}}", Some("Orders")),
            (
                "app::orders::Orders<u8>::create::{{closure}}",
                Some("Orders<u8>"),
            ),
            (
                "<app::orders::Orders as app::orders::Create>::create::{{closure}}",
                Some("app::orders::Orders"),
            ),
            ("app::orders::Orders::outer::create::{{closure}}", None),
            ("as a later compiler may write it", None),
        ] {
            assert_eq!(owner("app::orders::create", inside), expected, "{inside}");
        }
    }

    #[test]
    fn a_method_of_several_types_is_told_from_one_of_a_generic_type() {
        let of = |ty: &str| format!("<{ty} as app::Orders>::place::{{{{closure}}}}");
        for (one, other, expected) in [
            ("app::A", "app::A", true),
            ("app::A", "app::B", false),
            ("app::A<u8>", "app::A<u16>", true),
            ("app::A<fn(u8) -> u8>", "app::A<u16>", true),
            ("&app::A", "&app::B", false),
        ] {
            assert_eq!(
                serves_one_type(&of(one), &of(other)),
                expected,
                "{one}, {other}"
            );
        }
        assert!(serves_one_type(
            "app::generic<u8>::{{closure}}",
            "app::generic<u16>::{{closure}}"
        ));
    }

    #[test]
    fn constant_names_are_checked_by_the_runtime_s_rule() {
        let long = "x".repeat(129);
        for name in [
            "orders.create",
            "a::b",
            "",
            "a:b",
            "::a",
            "a::",
            "a b",
            "a:::b",
            "a\u{301}",
            "grün",
            &long,
            ":",
        ] {
            let is_right = !name.is_empty() && is_plausible(name.as_bytes());
            assert!(
                is_right == is_valid_operation(name) || !name.is_ascii(),
                "{name}"
            );
        }
    }
}
