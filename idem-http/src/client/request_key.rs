//! The key that the caller gives to a request.

use std::error::Error;
use std::fmt;

use http::HeaderValue;

use crate::key::{IdempotencyKey, InvalidKey};

/// The key of one request, as an extension: `.with_extension(RequestKey::new(&order.id))`.
///
/// If the caller stores its own key, tries after a restart are duplicates too.
#[derive(Clone)]
pub struct RequestKey(Source);

#[derive(Clone)]
enum Source {
    Given(String),
    Child(String),
}

impl RequestKey {
    /// Creates the key from a value that identifies the request, such as the order's number.
    ///
    /// It must be 1 to 255 visible ASCII characters, and must not begin with a quotation mark.
    /// Otherwise the request is not sent, and its error is an [`InvalidKey`](crate::InvalidKey).
    pub fn new(key: impl fmt::Display) -> Self {
        Self(Source::Given(key.to_string()))
    }

    /// Uses a child key of the guarded body that sends the request, with a name that is unique in
    /// that body.
    ///
    /// Outside a guarded body the request is not sent, and its error says so.
    pub fn child(name: impl Into<String>) -> Self {
        Self(Source::Child(name.into()))
    }
}

impl RequestKey {
    /// Returns the text of the key.
    pub(super) fn text(&self) -> Result<String, NoCall> {
        match &self.0 {
            Source::Given(key) => Ok(key.clone()),
            Source::Child(name) => Ok(idem_core::current().ok_or(NoCall)?.child_key(name)),
        }
    }
}

/// A key that was chosen for a request, and its header.
pub(super) struct Chosen {
    pub(super) key: IdempotencyKey,
    pub(super) value: HeaderValue,
}

impl Chosen {
    pub(super) fn new(text: &str) -> Result<Self, InvalidKey> {
        // A server would take a key that begins with a quotation mark for a quoted string.
        if text.starts_with('"') {
            return Err(InvalidKey::Quotes);
        }
        let key = IdempotencyKey::from_text(text.as_bytes())?;
        let value = HeaderValue::from_str(&key.to_value()).map_err(|_| InvalidKey::NotVisible)?;
        Ok(Self { key, value })
    }
}

impl fmt::Debug for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestKey(..)")
    }
}

/// A child key was asked for outside of a guarded body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoCall;

impl fmt::Display for NoCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "`RequestKey::child` outside of a guarded body; the request was not sent; send it in the body itself, not in a task that the body spawns, or use `RequestKey::new`",
        )
    }
}

impl Error for NoCall {}
