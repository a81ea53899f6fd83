//! The layer that guards whole responses.

mod field;
mod fingerprints;
mod interruption;
mod layer;
mod marks;
#[cfg(any(feature = "utoipa", feature = "aide"))]
mod openapi;
mod route;
mod service;
mod settings;

pub use self::fingerprints::Fingerprints;
pub use self::layer::{HasScope, IdempotencyLayer, NeedsScope, Scoped, header};
pub use self::marks::{MarkReplays, Marked, MarkedFuture};
#[cfg(any(feature = "utoipa", feature = "aide"))]
pub use self::openapi::ApiDocument;
pub use self::route::Route;
#[cfg(feature = "axum")]
pub(crate) use self::route::matched_route;
pub(crate) use self::route::operation;
pub use self::service::{Idempotent, REPLAYED, Replayed, ResponseFuture};
pub(crate) use self::service::{complete, replay};
