//! Under which keys records are kept.

use std::sync::Arc;

use idem_core::StoreError;
use idem_core::record::RecordId;
use idem_core::store::admin::Listing;

use crate::connection::error::refused;

/// [`Keys::new`] would accept it.
pub(crate) const DEFAULT_PREFIX: &str = "idem";

/// The prefix of all keys.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    prefix: Arc<str>,
}

impl Keys {
    /// Refuses a prefix with which two records could share a key, or that has a hash tag of its
    /// own.
    pub(crate) fn new(prefix: &str) -> Result<Self, StoreError> {
        if prefix.is_empty() {
            return Err(refused(
                "the prefix is empty; leave it out to have `idem`, or choose one that no other \
                 user of this Redis has",
            ));
        }
        if let Some(bad) = prefix
            .chars()
            .find(|c| matches!(c, '{' | '}') || c.is_whitespace() || c.is_control())
        {
            return Err(refused(format!(
                "the prefix {prefix:?} has {bad:?} in it; braces, white space and control \
                 characters cannot be part of it"
            )));
        }
        Ok(Self {
            prefix: prefix.into(),
        })
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns a key on which a user has the same rights as on all others. No record is kept there,
    /// because no id has braces.
    pub(crate) fn sample(&self) -> String {
        [&*self.prefix, ":{}"].concat()
    }

    /// Returns the key of a record, which is also the channel on which its waiters are woken: in a
    /// cluster, one node has both.
    pub(crate) fn record(&self, id: &RecordId) -> String {
        [&*self.prefix, ":", id.as_str()].concat()
    }

    /// Returns the id in the key of a record; `None` for any other key.
    pub(crate) fn id<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&*self.prefix)?.strip_prefix(':')
    }

    /// Returns a pattern that matches the keys of an operation's records, or of all records. It
    /// also matches some other keys.
    pub(crate) fn pattern(&self, listing: &Listing) -> String {
        if let (None, Some((call, _))) = (&listing.operation, &listing.steps_of) {
            return self.pattern_of(call.steps_prefix().chars());
        }
        let operation = listing.operation.as_deref().into_iter();
        self.pattern_of(operation.flat_map(|name| name.chars().chain([':'])))
    }

    fn pattern_of(&self, operation: impl Iterator<Item = char>) -> String {
        let mut pattern = String::new();
        for c in self.prefix.chars().chain([':']).chain(operation) {
            if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        pattern.push('*');
        pattern
    }

    /// Returns the key of an outcome that is kept aside. The braces put it into the slot of its
    /// record. It begins with the prefix, so that an access rule for the prefix covers it. No
    /// record has this key, because ids have no braces.
    pub(crate) fn aside(&self, id: &RecordId) -> String {
        [&*self.prefix, ":{", &*self.prefix, ":", id.as_str(), "}"].concat()
    }
}

impl Default for Keys {
    fn default() -> Self {
        Self {
            prefix: DEFAULT_PREFIX.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use idem_core::Key;

    use super::*;
    use crate::connection::hash_slot::slot;

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
            for key in [
                "1",
                "a{b}c",
                "{}",
                "}{",
                "a:b",
                "x%y z",
                &"long".repeat(500),
            ] {
                let id = RecordId::new("orders.create", &Key::encode(key).unwrap()).unwrap();
                let record = keys.record(&id);
                let aside = keys.aside(&id);
                assert_eq!(slot(&record), slot(&aside), "{record} {aside}");
                assert_ne!(record, aside);
            }
        }
    }
}
