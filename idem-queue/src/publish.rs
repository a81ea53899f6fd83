//! Messages that a guarded body publishes.

use crate::error::BoxError;

/// Why a message was not published, or perhaps not.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// There is no guarded body around, whose key the message id is made of.
    #[error(
        "`publish` takes the message id from the guarded call around it, and there is none: call it inside a guarded body, and not in a task that the body spawns"
    )]
    NotInside,
    /// The message cannot be written.
    #[error("the message cannot be written as JSON: {0}")]
    Unwritable(#[source] serde_json::Error),
    /// The broker has not confirmed it. Published again, it has the same id.
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
    /// Makes one. For adapters.
    pub fn new(id: String, duplicate: bool) -> Self {
        Self { id, duplicate }
    }

    /// Returns the message's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns whether the broker says that it had a message of this id. `false` where the broker
    /// does not know.
    pub fn is_duplicate(&self) -> bool {
        self.duplicate
    }
}

/// Returns the id of a message that the guarded body around publishes under this name: the same in
/// each attempt.
///
/// # Errors
///
/// [`PublishError::NotInside`] outside a guarded body.
pub fn child_id(child_key: &str) -> Result<String, PublishError> {
    idem_core::current().map(|call| call.child_key(child_key)).ok_or(PublishError::NotInside)
}
