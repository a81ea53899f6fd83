//! Keys for those who call: made once, kept through all retries.

use std::borrow::Cow;

use uuid::Uuid;

/// Makes new keys: `prefix-<uuid v7>`.
///
/// For clients: make a key when the user starts something, keep it through every retry, and make
/// another for the next thing. Keys made later sort later.
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
    /// A generator of keys with a prefix; with an empty one, keys are a UUID alone.
    pub fn new(prefix: impl Into<Cow<'static, str>>) -> Self {
        Self { prefix: prefix.into() }
    }

    /// A new key, which no other call of this, in any process, gives again.
    pub fn generate(&self) -> String {
        let id = Uuid::now_v7();
        if self.prefix.is_empty() { id.to_string() } else { format!("{}-{id}", self.prefix) }
    }
}
