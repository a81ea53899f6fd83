//! Both ends of the Idempotency-Key header for `idem`. Use it through the facade, the package
//! `idem-rs`, as `idem::http`.
//!
//! - [`IdempotencyLayer`] guards whole responses of any tower service: hyper, axum, tonic. Feature
//!   `server`.
//! - [`lookup`](fn@lookup) serves the result of a call whose client timed out. Feature `server`.
//! - [`IdempotencyKey`] is the header's value, and a part of a key. With the feature `axum` it is
//!   an extractor.
//! - [`IdempotencyClient`] gives requests of reqwest a key, and retries them. Feature `client`.
//! - [`MarkReplays`] marks the replays of annotated handlers. Feature `server`.
//! - [`problem`](fn@problem) turns an [`idem::Error`](idem_core::Error) into an answer for clients.
//!
//! The header is that of the IETF draft `draft-ietf-httpapi-idempotency-key-header`.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "client")]
mod client;
#[cfg(feature = "axum")]
mod extract;
mod key;
#[cfg(feature = "server")]
mod lookup;
mod problem;
#[cfg(feature = "server")]
mod scope;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "server")]
mod stored;

#[cfg(feature = "client")]
pub use crate::client::{IdempotencyClient, RequestKey, UnknownOutcome};
#[cfg(feature = "axum")]
pub use crate::extract::KeyRejection;
pub use crate::key::{IdempotencyKey, InvalidKey, MAX_KEY_LEN};
#[cfg(feature = "server")]
pub use crate::lookup::{LookupFuture, LookupService, lookup};
pub use crate::problem::{Problem, Response, problem, problem_json, stripe};
#[cfg(feature = "server")]
pub use crate::scope::ScopeSecret;
#[cfg(feature = "server")]
pub use crate::server::{
    Body, HasScope, IdempotencyLayer, Idempotent, MarkReplays, Marked, MarkedFuture, NeedsScope,
    REPLAYED, Replayed, ResponseFuture, Route, Scoped, header,
};
/// The versions that the client is written against. TLS and other features come from an
/// application's own dependency.
#[cfg(feature = "client")]
#[doc(no_inline)]
pub use {reqwest, reqwest_middleware};
