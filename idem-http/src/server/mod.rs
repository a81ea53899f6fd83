//! The layer that guards whole responses.

mod body;
mod field;
mod layer;
mod marks;
mod route;
mod service;
mod settings;

pub use self::body::Body;
pub use self::layer::{HasScope, IdempotencyLayer, NeedsScope, Scoped, header};
pub use self::marks::{MarkReplays, Marked, MarkedFuture};
pub(crate) use self::route::operation;
pub use self::service::{Idempotent, REPLAYED, Replayed, ResponseFuture, Route};
pub(crate) use self::service::{complete, replay};
