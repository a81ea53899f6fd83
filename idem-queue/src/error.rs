//! The errors of a consumer.

/// An error of a broker's client.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The reason why a consumer did not start, or ended before its shutdown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting of the consumer or of the broker is invalid, or could lose messages. `reason` says
    /// what to change.
    #[error("{reason}")]
    #[non_exhaustive]
    Config {
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The broker did not answer, or refused, at the start.
    #[error("the consumer cannot start: {source}")]
    #[non_exhaustive]
    Broker {
        /// The error of the broker's client.
        source: BoxError,
    },
    /// The connection ended and does not recover. Unacknowledged messages are delivered again, to
    /// another consumer or after the next start.
    #[error("{reason}")]
    #[non_exhaustive]
    Disconnected {
        /// What is wrong, and what to do.
        reason: String,
    },
}

impl Error {
    /// Makes a [`Disconnected`](Self::Disconnected). For adapters.
    pub fn disconnected(reason: impl Into<String>) -> Self {
        Self::Disconnected {
            reason: reason.into(),
        }
    }
}
