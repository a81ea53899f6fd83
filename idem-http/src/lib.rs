//! Both ends of the Idempotency-Key header for `idem`. Use it through the facade, the package
//! `idem-rs`, as `idem::http`.
//!
//! - [`IdempotencyLayer`] guards whole responses of any tower service: hyper, axum, tonic. Feature
//!   `server`.
//! - [`lookup`](fn@lookup) serves the result of a call whose client timed out. Feature `server`.
//! - [`IdempotencyKey`] is the header's value, and a part of a key. With the feature `axum` it is
//!   an extractor.
//! - [`grpc`] has what gRPC needs beside the layer: the client half (feature `grpc-client`), and the
//!   layer's own responses (feature `server`).
//! - [`IdempotencyClient`] gives requests of reqwest a key, and retries them. Feature `client`.
//! - [`MarkReplays`] marks the replays of annotated handlers. Feature `server`.
//! - [`IdempotencyLayer::document`] describes the layer in an OpenAPI document. Features `utoipa`,
//!   `aide`.
//! - [`problem`](fn@problem) turns an [`idem::Error`](idem_core::Error) into an answer for clients.
//!
//! The header is that of the IETF draft `draft-ietf-httpapi-idempotency-key-header`.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(any(feature = "server", feature = "grpc-client"))]
mod body;
#[cfg(any(feature = "client", feature = "grpc-client"))]
mod client;
#[cfg(feature = "axum")]
mod extract;
#[cfg(any(feature = "server", feature = "grpc-client"))]
pub mod grpc;
mod key;
#[cfg(feature = "server")]
mod key_rules;
#[cfg(feature = "server")]
mod lookup;
#[cfg(any(feature = "server", feature = "grpc-client"))]
#[cfg_attr(
    not(feature = "server"),
    allow(dead_code, reason = "it compares requests")
)]
mod media_type;
mod problem;
#[cfg(feature = "server")]
mod scope;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "server")]
mod stored;

#[cfg(any(feature = "server", feature = "grpc-client"))]
pub use crate::body::Body;
#[cfg(any(feature = "client", feature = "grpc-client"))]
pub use crate::client::RequestKey;
#[cfg(feature = "client")]
pub use crate::client::{IdempotencyClient, UnknownOutcome};
#[cfg(feature = "axum")]
pub use crate::extract::KeyRejection;
pub use crate::key::{IdempotencyKey, InvalidKey, MAX_KEY_LEN};
#[cfg(feature = "server")]
pub use crate::key_rules::KeyRules;
#[cfg(feature = "server")]
pub use crate::lookup::{LookupFuture, LookupService, lookup};
pub use crate::problem::{Problem, Response, problem, problem_json, stripe};
#[cfg(feature = "server")]
pub use crate::scope::ScopeSecret;
#[cfg(any(feature = "utoipa", feature = "aide"))]
pub use crate::server::ApiDocument;
#[cfg(feature = "server")]
pub use crate::server::{
    Fingerprints, HasScope, IdempotencyLayer, Idempotent, MarkReplays, Marked, MarkedFuture,
    NeedsScope, REPLAYED, Replayed, ResponseFuture, Route, Scoped, header,
};
/// The versions that the client is written against. TLS and other features come from an
/// application's own dependency.
#[cfg(feature = "client")]
#[doc(no_inline)]
pub use {reqwest, reqwest_middleware};
