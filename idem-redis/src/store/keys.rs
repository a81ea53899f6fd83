//! Under which keys records are kept.

use std::sync::Arc;

use idem_core::StoreError;
use idem_core::record::RecordId;

use crate::client::error::refused;

/// Valid, as [`Keys::new`] would find.
pub(crate) const DEFAULT_PREFIX: &str = "idem";

/// The prefix of all keys.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    prefix: Arc<str>,
}

impl Keys {
    /// Refuses a prefix that would let two records share a key, or take the hash tag out of our
    /// hands.
    pub(crate) fn new(prefix: &str) -> Result<Self, StoreError> {
        if prefix.is_empty() {
            return Err(refused(
                "the prefix is empty; leave it out to have `idem`, or choose one that no other user of this Redis has",
            ));
        }
        if let Some(bad) = prefix.chars().find(|c| matches!(c, '{' | '}') || c.is_whitespace() || c.is_control()) {
            return Err(refused(format!(
                "the prefix {prefix:?} has {bad:?} in it; braces, white space and control characters cannot be part of it"
            )));
        }
        Ok(Self { prefix: prefix.into() })
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A key of which the rights are those of all. Nothing is kept there: no id begins so.
    pub(crate) fn sample(&self) -> String {
        [&*self.prefix, ":{}"].concat()
    }

    /// The key of a record, and the channel on which those who wait for it are woken: in a cluster,
    /// one slot serves both.
    pub(crate) fn record(&self, id: &RecordId) -> String {
        [&*self.prefix, ":", id.as_str()].concat()
    }

    /// The id in the key of a record; `None` for any other key.
    pub(crate) fn id<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&*self.prefix)?.strip_prefix(':')
    }

    /// The pattern that the keys of an operation's records match, or of all records; some others do
    /// too.
    pub(crate) fn pattern(&self, operation: Option<&str>) -> String {
        let mut pattern = String::new();
        let operation = operation.into_iter().flat_map(|name| name.chars().chain([':']));
        for c in self.prefix.chars().chain([':']).chain(operation) {
            if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        pattern.push('*');
        pattern
    }

    /// The key of an outcome that is kept aside. The braces put it into the slot of its record, and
    /// the prefix stands in front, so that a rule for the prefix covers it. No record has this key:
    /// ids have no braces.
    pub(crate) fn aside(&self, id: &RecordId) -> String {
        [&*self.prefix, ":{", &*self.prefix, ":", id.as_str(), "}"].concat()
    }
}

impl Default for Keys {
    fn default() -> Self {
        Self { prefix: DEFAULT_PREFIX.into() }
    }
}

#[cfg(test)]
mod tests {
    use idem_core::Key;

    use super::*;
    use crate::client::hash_slot::of;

    #[test]
    fn prefixes_that_would_blur_keys_are_refused() {
        for prefix in ["", "a b", "a{b", "a}b", "a\nb", "\u{7f}", "a\u{a0}b"] {
            let error = Keys::new(prefix).unwrap_err();
            assert!(error.to_string().contains("prefix"), "{error}");
        }
        for prefix in ["idem", "shop:idem", "prod/idem", "é"] {
            assert_eq!(Keys::new(prefix).unwrap().prefix(), prefix);
        }
    }

    #[test]
    fn an_outcome_that_is_kept_aside_is_in_the_slot_of_its_record() {
        for prefix in ["idem", "shop:idem", "é"] {
            let keys = Keys::new(prefix).unwrap();
            for key in ["1", "a{b}c", "{}", "}{", "a:b", "x%y z", &"long".repeat(500)] {
                let id = RecordId::new("orders.create", &Key::encode(key).unwrap()).unwrap();
                let (record, aside) = (keys.record(&id), keys.aside(&id));
                assert_eq!(of(&record), of(&aside), "{record} {aside}");
                assert_ne!(record, aside);
            }
        }
    }
}
