//! Keys for clients: generated once, sent with every retry.

use std::borrow::Cow;

use uuid::Uuid;

/// Makes new keys: `prefix-<uuid v7>`.
///
/// For clients: generate a key when the user starts something, send it with every retry, and
/// generate another one for the next thing. Later keys sort after earlier ones.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use idem::KeyGenerator;
///
/// let keys = KeyGenerator::new("checkout");
/// let key = keys.generate(); // "checkout-01890a5d-ac96-774b-bcce-b302099a8057"
/// assert!(key.starts_with("checkout-"));
/// assert_ne!(key, keys.generate());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyGenerator {
    prefix: Cow<'static, str>,
}

impl KeyGenerator {
    /// Creates a generator of keys with this prefix. With an empty prefix, keys are plain UUIDs.
    pub fn new(prefix: impl Into<Cow<'static, str>>) -> Self {
        Self {
            prefix: prefix.into(),
        }
    }

    /// Generates a key that is unique among all processes.
    pub fn generate(&self) -> String {
        let id = Uuid::now_v7();
        if self.prefix.is_empty() {
            id.to_string()
        } else {
            format!("{}-{id}", self.prefix)
        }
    }
}
