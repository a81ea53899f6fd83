//! Checks that the table belongs to this version of idem.

use std::sync::atomic::{AtomicBool, Ordering};

use idem_core::StoreError;

use super::super::dialect::{Dialect, Schema};
use super::errors::refused;
use crate::table::{MARK, Table, VERSION};

/// The table's name as the application gave it, and what is known of the table.
pub(crate) struct TableCheck {
    name: String,
    /// Why the name is invalid.
    invalid: Option<String>,
    /// Whether the table was found to belong to `idem`.
    has_passed: AtomicBool,
}

impl TableCheck {
    pub(crate) fn new(name: &str, parsed: Option<&Table>) -> Self {
        let invalid = parsed.is_none().then(|| invalid_name(name));
        Self {
            name: name.to_owned(),
            invalid,
            has_passed: AtomicBool::new(false),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Refuses an invalid name.
    pub(crate) fn validate_name(&self) -> Result<(), StoreError> {
        self.invalid
            .as_ref()
            .map_or(Ok(()), |why| Err(refused(why.as_str())))
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.has_passed.load(Ordering::Relaxed)
    }

    pub(crate) fn pass(&self) {
        self.has_passed.store(true, Ordering::Relaxed);
    }

    /// Has the next step check the table again.
    pub(crate) fn reset(&self) {
        self.has_passed.store(false, Ordering::Relaxed);
    }

    /// Refuses a table that is missing, another program's, or of another version. Returns the schema
    /// in which it was found.
    pub(crate) fn check<D: Dialect>(
        &self,
        place: &str,
        schema: Schema,
    ) -> Result<Option<String>, StoreError> {
        let database = D::NAME;
        let table = &self.name;
        let why = match schema {
            Schema::Marked { mark, schema } if mark == VERSION => return Ok(schema),
            Schema::Missing => {
                let schema = table.split_once('.').map(|(schema, _)| schema);
                let first = schema.map_or_else(String::new, |schema| {
                    format!("create the schema `{schema}` if there is none, and ")
                });
                format!(
                    "there is no table `{table}`; {first}call `migrate()` once at start-up, or \
                     run the statements of `SCHEMA`"
                )
            }
            Schema::Marked { mark, .. } if mark.starts_with(MARK) => format!(
                "the table `{table}` is marked `{mark}`, and this version of idem needs \
                 `{VERSION}`; use the version of idem that made the table, or another table"
            ),
            Schema::Marked { .. } => format!(
                "the table `{table}` is not marked as one of idem (`{VERSION}`, in its comment): \
                 it is another program's, or has lost its comment; name another table, or restore \
                 the comment"
            ),
            Schema::Unusable(why) => why.to_owned(),
        };
        Err(refused(format!("{database} ({place}): {why}")))
    }
}

/// Returns the statements that create a table of this name.
pub(crate) fn create_statements<D: Dialect>(name: &str) -> Result<String, StoreError> {
    match Table::parse(name) {
        Some(table) => Ok(D::create_statements(&table)),
        None => Err(refused(invalid_name(name))),
    }
}

fn invalid_name(name: &str) -> String {
    format!(
        "`{name}` is not a valid table name; write `name` or `schema.name` with letters, digits \
         and `_`, each at most 63 bytes"
    )
}
