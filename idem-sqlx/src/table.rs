//! The name of the table, as people give it and as statements say it.

/// The version of the table that this crate reads and writes, as `migrate` marks it.
pub(crate) const VERSION: &str = "idem schema 1";
/// How the mark of each version begins.
pub(crate) const MARK: &str = "idem schema ";

/// The longest identifier that all three databases take.
const LONGEST: usize = 63;

/// A table's name, with the schema that it is in if one was given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Table {
    schema: Option<String>,
    name: String,
}

impl Table {
    /// Reads `name` or `schema.name`; `None` unless each part is a plain identifier.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (schema, name) = match text.split_once('.') {
            Some((schema, name)) => (Some(schema), name),
            None => (None, text),
        };
        let valid = schema.into_iter().chain([name]).all(is_identifier);
        valid.then(|| Self {
            schema: schema.map(str::to_owned),
            name: name.to_owned(),
        })
    }

    /// Returns the same table with the schema in which a connection has found it, unless one was
    /// given, or this one is not of plain characters.
    pub(crate) fn found_in(&self, schema: Option<String>) -> Self {
        let is_plain = |text: &String| {
            text.chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-$".contains(c))
        };
        Self {
            schema: self.schema.clone().or(schema.filter(is_plain)),
            name: self.name.clone(),
        }
    }

    #[cfg(any(feature = "mysql", feature = "sqlite"))]
    pub(crate) fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// As a statement says it, each part between these quotation marks.
    pub(crate) fn quoted(&self, mark: char) -> String {
        match &self.schema {
            Some(schema) => format!("{mark}{schema}{mark}.{mark}{}{mark}", self.name),
            None => format!("{mark}{}{mark}", self.name),
        }
    }
}

/// A letter or `_`, then letters, digits and `_`: nothing that could end a quotation.
pub(crate) fn is_identifier(text: &str) -> bool {
    text.len() <= LONGEST
        && text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text
            .chars()
            .all(|other| other.is_ascii_alphanumeric() || other == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_or_two_plain_identifiers() {
        assert_eq!(
            Table::parse("idem_records").unwrap().quoted('"'),
            "\"idem_records\""
        );
        assert_eq!(
            Table::parse("shop.idem_records").unwrap().quoted('`'),
            "`shop`.`idem_records`"
        );
        for invalid in [
            "",
            ".",
            "a.",
            ".a",
            "a.b.c",
            "a b",
            "a;drop",
            "a\"b",
            "1a",
            "a-b",
            "é",
            &"a".repeat(64),
        ] {
            assert_eq!(Table::parse(invalid), None, "{invalid}");
        }
    }
}
