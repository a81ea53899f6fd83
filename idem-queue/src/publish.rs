//! Messages that a guarded body publishes.

use crate::broker::BoxError;

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

/// Returns the id of a message that the guarded body around publishes under this name: the same in each attempt.
///
/// # Errors
///
/// [`PublishError::NotInside`] outside a guarded body.
pub fn child_id(child_key: &str) -> Result<String, PublishError> {
    idem_core::current().map(|call| call.child_key(child_key)).ok_or(PublishError::NotInside)
}
