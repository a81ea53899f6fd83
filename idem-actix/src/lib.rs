//! The Idempotency-Key header for actix-web.
//!
//! [`Idempotent`] is a middleware over an [`IdempotencyLayer`], with all of its rules: which
//! requests are guarded, what is recorded, what a duplicate gets. The guide on HTTP describes them.
//!
//! # Examples
//!
//! With the packages `actix-web`, `idem-actix`, and `idem-rs` with its feature `http`:
//!
//! ```no_run
//! # mod idem {
//! #     pub use idem_core::*;
//! #     pub mod http {
//! #         pub use idem_http::*;
//! #     }
//! # }
//! use actix_web::{App, HttpServer, web};
//! use idem::http::{IdempotencyLayer, header};
//! use idem::{Idempotency, MemoryStore};
//! use idem_actix::{Idempotent, http::header::AUTHORIZATION};
//!
//! async fn charge() -> &'static str {
//!     "charged"
//! }
//!
//! #[actix_web::main]
//! async fn main() -> std::io::Result<()> {
//!     let layer = IdempotencyLayer::new(Idempotency::new(MemoryStore::new()))
//!         .name("payments")
//!         .scope(|parts| header(parts, AUTHORIZATION))
//!         .required(true);
//!     let app = move || App::new().wrap(Idempotent::new(layer.clone())).route("/v1/charges", web::post().to(charge));
//!     HttpServer::new(app).bind(("127.0.0.1", 3000))?.run().await
//! }
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

mod bridge;
mod convert;
mod middleware;

use actix_web::HttpResponse;
use actix_web::body::BoxBody;

pub use crate::middleware::{Guarded, Idempotent};
/// The version 1 of `http`, which the layer's closures see. actix-web has version 0.2.
#[doc(no_inline)]
pub use http;
pub use idem_http::IdempotencyLayer;

/// Turns an error of an annotated handler into its response, as problem+json.
///
/// # Examples
///
/// ```
/// use idem_core::Error;
///
/// let response = idem_actix::problem(&Error::missing_key("orders.create"));
/// assert_eq!(response.status(), 400);
/// ```
pub fn problem(error: &idem_core::Error) -> HttpResponse {
    let (parts, text) = idem_http::problem(error).into_parts();
    convert::response(&parts, BoxBody::new(text))
}
