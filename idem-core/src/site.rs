//! Where an annotated function stands, and how its operation came by its name.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::record::is_valid_operation;

/// The place of one annotated function, made by the attribute.
#[derive(Debug)]
pub struct Site {
    name: &'static str,
    /// Where it stands, if the name is the default one. Names that were written are one operation wherever they stand.
    place: Option<Place>,
    default: OnceLock<Result<String, String>>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    file: &'static str,
    line: u32,
    column: u32,
    /// The name of some type inside the function, whose path begins with the function's own.
    inside: fn() -> &'static str,
}

impl Site {
    /// An operation whose name was written.
    pub const fn named(name: &'static str) -> Self {
        Self { name, place: None, default: OnceLock::new() }
    }

    /// An operation named after its function.
    pub const fn by_default(
        path: &'static str,
        file: &'static str,
        line: u32,
        column: u32,
        inside: fn() -> &'static str,
    ) -> Self {
        Self { name: path, place: Some(Place { file, line, column, inside }), default: OnceLock::new() }
    }

    /// The operation's name, or what is wrong with the default one. Found out once.
    pub(crate) fn name(&self) -> Result<&str, &str> {
        let Some(place) = self.place else { return Ok(self.name) };
        match self.default.get_or_init(|| default_name(self.name, place)) {
            Ok(name) => Ok(name),
            Err(wrong) => Err(wrong),
        }
    }

    /// The name as it was written, or as the attribute sees it, for errors about something else.
    pub(crate) fn label(&self) -> &'static str {
        self.name
    }
}

/// Module path and function name, with the type between them if the function belongs to one: the attribute cannot see an `impl` around a
/// function without `self`, and two types' functions must not share their records.
fn default_name(path: &str, place: Place) -> Result<String, String> {
    let function = path.rsplit("::").next().unwrap_or(path);
    let inside = (place.inside)();
    let end = inside.rfind(&format!("::{function}::")).map(|at| at + 2 + function.len());
    // Bodies of async functions, and closures, are no part of anybody's name.
    let name = end.and_then(|end| inside.get(..end)).map(|name| name.replace("::{{closure}}", ""));
    let name = name.filter(|name| is_valid_operation(name)).ok_or_else(|| {
        format!("the function at {place} has no default name that would be its own; give it one with `name = \"..\"`")
    })?;
    first_with(name, place)
}

/// Refuses the name if a function at another place has it.
fn first_with(name: String, here: Place) -> Result<String, String> {
    static FIRST: Mutex<Option<HashMap<String, Place>>> = Mutex::new(None);
    let mut first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = *first.get_or_insert_default().entry(name.clone()).or_insert(here);
    if (taken.file, taken.line, taken.column) == (here.file, here.line, here.column) {
        return Ok(name);
    }
    Err(format!(
        "two functions have the name `{name}` by default, at {taken} and at {here}; give one of them a name of its own with `name = \"..\"`"
    ))
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}
