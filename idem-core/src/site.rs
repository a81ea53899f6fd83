//! Where an annotated function stands, and how its operation came by its name.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The place of one annotated function, made by the attribute.
#[derive(Debug)]
pub struct Site {
    name: &'static str,
    /// Where it stands, if the name is the default one. Names that were written are one operation wherever they stand.
    place: Option<Place>,
    clash: OnceLock<Option<Place>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    file: &'static str,
    line: u32,
    column: u32,
}

impl Site {
    /// An operation whose name was written.
    pub const fn named(name: &'static str) -> Self {
        Self { name, place: None, clash: OnceLock::new() }
    }

    /// An operation named after its function.
    pub const fn by_default(path: &'static str, file: &'static str, line: u32, column: u32) -> Self {
        Self { name: path, place: Some(Place { file, line, column }), clash: OnceLock::new() }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// What is wrong with the name: another function has the same by default. Looked up once.
    pub(crate) fn clash(&self) -> Option<String> {
        let here = self.place?;
        let other = (*self.clash.get_or_init(|| first_with(self.name, here)))?;
        Some(format!(
            "two functions have this name by default, at {}:{}:{} and at {}:{}:{}; give one of them a name of its own with `name = \"..\"`",
            other.file, other.line, other.column, here.file, here.line, here.column
        ))
    }
}

/// The place that took the name first, if it is another.
fn first_with(name: &'static str, here: Place) -> Option<Place> {
    static FIRST: Mutex<Option<HashMap<&'static str, Place>>> = Mutex::new(None);
    let mut first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = *first.get_or_insert_default().entry(name).or_insert(here);
    (taken != here).then_some(taken)
}
