//! The layer that guards whole responses.

mod body;
mod layer;
mod route;
mod service;

pub use self::body::Body;
pub(crate) use self::layer::Owner;
pub use self::layer::{IdempotencyLayer, NeedsScope, Scoped, header};
pub(crate) use self::route::operation;
pub use self::service::{Idempotent, REPLAYED, Replayed, ResponseFuture};
pub(crate) use self::service::{rebuilt, whole};
