//! The keys that outcomes are encrypted with.

use std::fmt;

use chacha20poly1305::aead::KeyInit;
use chacha20poly1305::{Key, XChaCha20Poly1305};
use zeroize::Zeroize;

use super::failure;
use crate::ConfigError;
use crate::store::{CodecContext, CodecFailure};

const MAX_KEY_ID: usize = 64;

/// A secret of 32 random bytes. `Debug` shows none of them, and they are overwritten when it is
/// dropped.
#[derive(Clone)]
pub struct EncryptionKey([u8; 32]);

impl EncryptionKey {
    /// Takes 32 bytes from a source of secrets. A password is none: derive a key from it first.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Makes a key from the operating system's random bytes: for tests, and to store it in a secret
    /// manager.
    ///
    /// # Errors
    ///
    /// If the operating system has none.
    pub fn generate() -> Result<Self, ConfigError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| {
            ConfigError::new(format!(
                "the operating system has no random bytes for an encryption key: {error}"
            ))
        })?;
        Ok(Self(bytes))
    }
}

impl Drop for EncryptionKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EncryptionKey(..)")
    }
}

pub(super) fn cipher(key: &EncryptionKey) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(&Key::from(key.0))
}

/// The source of an [`EncryptedCodec`](crate::EncryptedCodec)'s keys. [`KeyRing`] is the one for
/// keys that do not change while the process runs.
///
/// It is asked for each outcome that is written or read, and does not block: keys are fetched
/// before, or in a task beside. It never sees the outcome. The context says for which operation and
/// key the outcome is, so that a source can have a key for each customer. Destroying such a key
/// erases the customer's outcomes: see the guide on erasure.
///
/// # Examples
///
/// A key for each customer. The customer is the first part of the operations' keys:
///
/// ```
/// # use idem_core as idem;
/// use std::collections::HashMap;
/// use std::sync::{Arc, PoisonError, RwLock};
///
/// use idem::store::CodecContext;
/// use idem::{CodecFailure, EncryptionKey, EncryptionKeys};
///
/// /// The keys by customer, which a task reloads.
/// struct PerCustomer(Arc<RwLock<HashMap<String, EncryptionKey>>>);
///
/// impl EncryptionKeys for PerCustomer {
///     fn current(
///         &self,
///         context: &CodecContext<'_>,
///     ) -> Result<(String, EncryptionKey), CodecFailure> {
///         let customer = context.first_key_part().ok_or("the key names no customer")?;
///         let key = self
///             .find(&customer, context)?
///             .ok_or("the customer's key was destroyed")?;
///         Ok((customer.into_owned(), key))
///     }
///
///     fn find(
///         &self,
///         id: &str,
///         _: &CodecContext<'_>,
///     ) -> Result<Option<EncryptionKey>, CodecFailure> {
///         Ok(self.0.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned())
///     }
/// }
/// ```
///
/// One ring for all, which changes while the process runs:
///
/// ```
/// # use idem_core as idem;
/// use std::sync::{Arc, PoisonError, RwLock};
///
/// use idem::store::CodecContext;
/// use idem::{CodecFailure, EncryptionKey, EncryptionKeys, KeyRing};
///
/// /// Keys that a task reloads.
/// struct Reloaded(Arc<RwLock<KeyRing>>);
///
/// impl EncryptionKeys for Reloaded {
///     fn current(
///         &self,
///         context: &CodecContext<'_>,
///     ) -> Result<(String, EncryptionKey), CodecFailure> {
///         self.0.read().unwrap_or_else(PoisonError::into_inner).current(context)
///     }
///
///     fn find(
///         &self,
///         id: &str,
///         context: &CodecContext<'_>,
///     ) -> Result<Option<EncryptionKey>, CodecFailure> {
///         self.0.read().unwrap_or_else(PoisonError::into_inner).find(id, context)
///     }
/// }
/// ```
pub trait EncryptionKeys: Send + Sync + 'static {
    /// Returns the key that an outcome is encrypted with, and its id: 1 to 64 letters, digits and
    /// `- _ . / :`. The id is readable in the store.
    ///
    /// # Errors
    ///
    /// If there is none. Its text is logged, so it must have no secret. The call is then recorded
    /// as done, without the value (`not_encoded`), and a kept error releases the key
    /// (`error_not_kept`). A replay of an outcome that is [upgraded](crate::Operation::upgrade)
    /// needs the key too, and is [`Error::Codec`](crate::Error::Codec) without it.
    fn current(&self, context: &CodecContext<'_>) -> Result<(String, EncryptionKey), CodecFailure>;

    /// Returns the key with this id; `None` if it is not known, or was destroyed. The duplicate
    /// then gets [`Error::Codec`](crate::Error::Codec) until the record expires, and no body runs.
    ///
    /// The id and the context come from the store. The outcome is refused if it was not encrypted
    /// with the key for this context.
    ///
    /// # Errors
    ///
    /// If the source of keys fails. Its text is in the error of the duplicate and is logged, so it
    /// must have no secret. The duplicate gets [`Error::Codec`](crate::Error::Codec), and no body
    /// runs.
    fn find(
        &self,
        id: &str,
        context: &CodecContext<'_>,
    ) -> Result<Option<EncryptionKey>, CodecFailure>;
}

/// Keys that are known from the start: one that writes, and any number that read. `Debug` shows
/// their ids.
#[derive(Clone)]
pub struct KeyRing {
    /// The first one writes.
    keys: Vec<(String, EncryptionKey)>,
}

impl KeyRing {
    /// Makes a ring of one key, which writes and reads. Its id is stored with each outcome.
    ///
    /// # Errors
    ///
    /// If the id is not 1 to 64 letters, digits and `- _ . / :`.
    pub fn new(id: impl Into<String>, key: EncryptionKey) -> Result<Self, ConfigError> {
        Self { keys: Vec::new() }.reads(id, key)
    }

    /// Adds a key that reads what was encrypted with it.
    ///
    /// # Errors
    ///
    /// If the id is invalid, or there is a key with this id already.
    pub fn reads(mut self, id: impl Into<String>, key: EncryptionKey) -> Result<Self, ConfigError> {
        let id = id.into();
        check_key_id(&id)?;
        if self.keys.iter().any(|(known, _)| *known == id) {
            return Err(ConfigError::new(format!(
                "two encryption keys have the id `{id}`; give each its own"
            )));
        }
        self.keys.push((id, key));
        Ok(self)
    }
}

impl EncryptionKeys for KeyRing {
    fn current(&self, _: &CodecContext<'_>) -> Result<(String, EncryptionKey), CodecFailure> {
        self.keys
            .first()
            .cloned()
            .ok_or_else(|| failure("there is no encryption key"))
    }

    fn find(&self, id: &str, _: &CodecContext<'_>) -> Result<Option<EncryptionKey>, CodecFailure> {
        Ok(self
            .keys
            .iter()
            .find(|(known, _)| known == id)
            .map(|(_, key)| key.clone()))
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.keys.iter().map(|(id, _)| id))
            .finish()
    }
}

pub(super) fn check_key_id(id: &str) -> Result<(), ConfigError> {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/' | b':');
    if (1..=MAX_KEY_ID).contains(&id.len()) && id.bytes().all(is_plain) {
        return Ok(());
    }
    Err(ConfigError::new(format!(
        "the id of an encryption key is 1 to {MAX_KEY_ID} letters, digits and `- _ . / :`, such as \
         `2026-11`; it is stored with each outcome"
    )))
}
