//! Committed outcomes of an operation as a pattern for the one that a person writes.

use idem_core::record::{RecordId, RecordInfo};
use idem_core::store::admin::Listing;
use idem_core::{CodecId, RecordState};
use serde::Deserialize as _;
use serde_json::Value;

use crate::failure::Failure;
use crate::progress::Progress;
use crate::store::AnyStore;

/// How many outcomes are read. Those of one operation may differ in shape, as the variants of an
/// enum do.
const MOST: usize = 5;
/// How many records are searched for them at most.
const PAGE: usize = 100;
const MOST_PAGES: usize = 100;

/// Outcomes that the functions of an operation recorded. Outcomes that were settled by hand are
/// left out.
pub(crate) struct Patterns {
    /// Outcomes in JSON.
    pub(crate) found: Vec<Pattern>,
    /// Another codec than JSON in which there are outcomes, such as one that encrypts.
    pub(crate) codec: Option<CodecId>,
}

pub(crate) struct Pattern {
    pub(crate) id: RecordId,
    pub(crate) info: RecordInfo,
    pub(crate) value: Value,
}

/// Which outcomes are wanted.
pub(crate) struct Wanted<'a> {
    pub(crate) operation: &'a str,
    pub(crate) is_error: bool,
    /// `None`: any version.
    pub(crate) version: Option<u32>,
}

pub(crate) async fn find(store: &AnyStore, wanted: &Wanted<'_>) -> Result<Patterns, Failure> {
    let mut patterns = Patterns {
        found: Vec::new(),
        codec: None,
    };
    let mut listing = Listing::all()
        .operation(wanted.operation)
        .state(RecordState::Committed)
        .limit(PAGE);
    let mut progress = Progress::new();
    for _ in 0..MOST_PAGES {
        let page = store.list(&listing).await?;
        progress.add_page(&page);
        for listed in page
            .records
            .into_iter()
            .filter(|listed| listed.info.is_error == wanted.is_error)
        {
            if listed.info.audit_age.is_some() {
                continue;
            }
            // A record that is damaged, or was removed meanwhile, is skipped.
            let Ok(Some(info)) = store.inspect(&listed.id).await else {
                continue;
            };
            let Some(outcome) = &info.outcome else {
                continue;
            };
            if wanted
                .version
                .is_some_and(|version| version != outcome.version())
            {
                continue;
            }
            if outcome.codec != CodecId::JSON {
                patterns.codec = Some(outcome.codec);
                return Ok(patterns);
            }
            let Ok(value) = serde_json::from_slice(&outcome.payload) else {
                continue;
            };
            patterns.found.push(Pattern {
                id: listed.id,
                info,
                value,
            });
            if patterns.found.len() == MOST {
                return Ok(patterns);
            }
        }
        match page.next {
            Some(cursor) => listing = listing.after(cursor),
            None => break,
        }
    }
    Ok(patterns)
}

/// Returns how a value differs in shape from the patterns; `None` if it is like one of them, or if
/// there are none.
pub(crate) fn difference(patterns: &[Pattern], value: &Value) -> Option<String> {
    // A `serde_json::Value` may have any shape.
    if patterns
        .iter()
        .any(|pattern| pattern.info.outcome_type.as_deref() == Some("Value"))
    {
        return None;
    }
    let mut differences = patterns
        .iter()
        .map(|pattern| differs(&pattern.value, value, ""));
    let first = differences.next()?;
    if differences.any(|difference| difference.is_none()) {
        None
    } else {
        first
    }
}

/// Whether a value is read as a type of this name. `None`: the name does not say.
pub(crate) fn is_read_as(name: &str, value: &Value) -> Option<bool> {
    let inside = |wrapper| name.strip_prefix(wrapper)?.strip_suffix('>');
    if let Some(name) = inside("Option<") {
        return is_read_as(name, value).map(|is_read| is_read || value.is_null());
    }
    if let Some(name) = inside("Vec<") {
        let Value::Array(values) = value else {
            return Some(false);
        };
        return values
            .iter()
            .try_fold(true, |all, value| Some(all & is_read_as(name, value)?));
    }
    macro_rules! one_of {
        ($($of:ty),*) => {
            match name {
                "()" => Some(value.is_null()),
                $(stringify!($of) => Some(<$of>::deserialize(value).is_ok()),)*
                _ => None,
            }
        };
    }
    one_of!(
        bool, char, String, f32, f64, i8, i16, i32, i64, isize, u8, u16, u32, u64, usize
    )
}

/// How a value differs: in its kind, or in the fields of objects. `null` matches any value.
fn differs(pattern: &Value, value: &Value, at: &str) -> Option<String> {
    let place = if at.is_empty() {
        "the value".to_owned()
    } else {
        format!("`{at}`")
    };
    match (pattern, value) {
        (Value::Null, _) | (_, Value::Null) => None,
        (Value::Object(wanted), Value::Object(given)) => {
            let inner = |name: &str| {
                if at.is_empty() {
                    name.to_owned()
                } else {
                    format!("{at}.{name}")
                }
            };
            let missing = wanted.keys().find(|name| !given.contains_key(*name));
            let unknown = given.keys().find(|name| !wanted.contains_key(*name));
            match (missing, unknown) {
                (Some(name), _) => Some(format!("{place} has no field `{name}`")),
                (_, Some(name)) => Some(format!(
                    "{place} has a field `{name}`, which others do not have"
                )),
                _ => wanted
                    .iter()
                    .find_map(|(name, wanted)| differs(wanted, given.get(name)?, &inner(name))),
            }
        }
        (Value::Array(wanted), Value::Array(given)) => {
            let wanted = wanted.first()?;
            given
                .iter()
                .find_map(|value| differs(wanted, value, &format!("{at}[]")))
        }
        _ if kind(pattern) == kind(value) => None,
        _ => Some(format!(
            "{place} is {}, and others have {}",
            kind(value),
            kind(pattern)
        )),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_is_read_as_its_type() {
        for (name, value, is_read) in [
            ("String", "\"r-1\"", Some(true)),
            ("String", "7", Some(false)),
            ("u32", "7", Some(true)),
            ("u32", "-7", Some(false)),
            ("u8", "256", Some(false)),
            ("u32", "1.5", Some(false)),
            ("bool", "true", Some(true)),
            ("()", "null", Some(true)),
            ("()", "{}", Some(false)),
            ("Value", "[{}]", None),
            ("Option<u64>", "null", Some(true)),
            ("Option<u64>", "\"7\"", Some(false)),
            ("Option<Receipt>", "null", None),
            ("Vec<String>", "[\"a\"]", Some(true)),
            ("Vec<String>", "[\"a\",7]", Some(false)),
            ("Vec<Receipt>", "{}", Some(false)),
            ("Vec<Receipt>", "[{}]", None),
            ("Receipt", "{}", None),
            ("Vec<a very long name..", "[]", None),
            ("", "7", None),
        ] {
            let value = serde_json::from_str(value).unwrap();
            assert_eq!(is_read_as(name, &value), is_read, "{name} {value}");
        }
    }

    #[test]
    fn values_of_one_shape_are_alike_and_others_are_not() {
        for (pattern, value, says) in [
            ("\"r-1\"", "\"r-2\"", None),
            (
                "\"r-1\"",
                "{\"receipt\":7}",
                Some("the value is an object, and others have a string"),
            ),
            (
                "7",
                "\"7\"",
                Some("the value is a string, and others have a number"),
            ),
            ("null", "7", None),
            ("{\"receipt\":7}", "{\"receipt\":null}", None),
            (
                "{\"receipt\":7}",
                "{\"recipt\":7}",
                Some("the value has no field `receipt`"),
            ),
            (
                "{\"receipt\":7}",
                "{\"receipt\":7,\"x\":1}",
                Some("the value has a field `x`, which others do not have"),
            ),
            (
                "{\"a\":{\"b\":[1]}}",
                "{\"a\":{\"b\":[1,\"2\"]}}",
                Some("`a.b[]` is a string, and others have a number"),
            ),
            ("[]", "[1]", None),
        ] {
            let parse = |text| serde_json::from_str(text).unwrap();
            assert_eq!(
                differs(&parse(pattern), &parse(value), "").as_deref(),
                says,
                "{pattern} {value}"
            );
        }
    }
}
