//! Messages that a guarded body publishes.

use crate::error::BoxError;

/// The reason why a message was not published, or may not have been.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The caller is not inside a guarded body, whose key would give the message id.
    #[error(
        "`publish` takes the message id from the guarded call around it, and there is none: call \
         it inside a guarded body, and not in a task that the body spawns"
    )]
    NotInside,
    /// The message failed to encode.
    #[error("the message failed to encode as JSON: {0}")]
    Unwritable(#[source] serde_json::Error),
    /// The broker has not confirmed the message. If it is published again, it has the same id.
    #[error("the broker has not confirmed the message: {0}")]
    Unconfirmed(#[source] BoxError),
}

/// A message that was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    id: String,
    duplicate: bool,
}

impl Published {
    /// Creates the result: for adapters.
    pub fn new(id: String, duplicate: bool) -> Self {
        Self { id, duplicate }
    }

    /// Returns the message's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns whether the broker says that it already had a message with this id. `false` if the
    /// broker does not know.
    pub fn is_duplicate(&self) -> bool {
        self.duplicate
    }
}

/// Returns the id of a message that the current guarded body publishes under this name. It is the
/// same in each attempt.
///
/// # Errors
///
/// [`PublishError::NotInside`] outside a guarded body.
pub fn child_id(child_key: &str) -> Result<String, PublishError> {
    idem_core::current()
        .map(|call| call.child_key(child_key))
        .ok_or(PublishError::NotInside)
}
