//! The client half: one key for all tries of a request.

#[cfg(feature = "client")]
mod error;
#[cfg(feature = "client")]
mod failed_try;
#[cfg(feature = "grpc-client")]
pub(crate) mod grpc;
#[cfg(feature = "client")]
mod lookup;
#[cfg(feature = "client")]
mod middleware;
mod pause;
#[cfg(feature = "client")]
mod received;
mod request_key;
#[cfg(feature = "client")]
mod reqwest_client;
mod try_log;
mod verdict;

#[cfg(feature = "client")]
pub use self::error::UnknownOutcome;
pub use self::request_key::RequestKey;
#[cfg(feature = "client")]
pub use self::reqwest_client::IdempotencyClient;
