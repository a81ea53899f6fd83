//! Which texts a service accepts as keys.

use crate::key::{IdempotencyKey, InvalidKey, MAX_KEY_LEN};

/// Which texts are keys, for services whose keys are not those of the draft.
///
/// Without rules, a key is 1 to 255 visible ASCII characters, in quotation marks or not. With rules,
/// a key is taken as it is, and quotation marks are a part of it.
///
/// # Examples
///
/// ```
/// use idem_core::{Idempotency, MemoryStore};
/// use idem_http::{IdempotencyLayer, KeyRules};
///
/// // The key is the number of the order, which is the last segment of the path.
/// let layer = IdempotencyLayer::new(Idempotency::new(MemoryStore::new()))
///     .key_from(|parts| parts.uri.path().rsplit('/').next().map(str::to_owned))
///     .key_rules(KeyRules::any().max_length(1000))
///     .unscoped();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "rules do nothing until a layer or a lookup has them"]
pub struct KeyRules {
    max_length: usize,
}

impl KeyRules {
    /// Accepts each text of 1 to 255 characters, spaces and characters outside of ASCII included.
    pub const fn any() -> Self {
        Self {
            max_length: MAX_KEY_LEN,
        }
    }

    /// Sets the longest key, in characters. Default: 255. 0 counts as 1.
    ///
    /// A store keeps a digest in place of a key that is too long for it.
    pub const fn max_length(mut self, characters: usize) -> Self {
        self.max_length = if characters == 0 { 1 } else { characters };
        self
    }

    /// Reads a key by these rules, or by those of the draft if there are none.
    pub(crate) fn read(
        rules: Option<Self>,
        text: &[u8],
        or_else: impl FnOnce(&[u8]) -> Result<IdempotencyKey, InvalidKey>,
    ) -> Result<String, InvalidKey> {
        let Some(rules) = rules else {
            return or_else(text).map(Into::into);
        };
        // In a path, the bytes of a key may be of no text.
        let text = str::from_utf8(text).map_err(|_| InvalidKey::AgainstRules)?;
        if text.is_empty() || text.chars().count() > rules.max_length {
            return Err(InvalidKey::AgainstRules);
        }
        Ok(text.to_owned())
    }
}
