//! The Idempotency-Key header for actix-web.
//!
//! [`Idempotent`] is a middleware over an [`IdempotencyLayer`], with all of its rules: which
//! requests are guarded, what is recorded, what a duplicate gets. The guide on HTTP describes them.
//!
//! # Examples
//!
//! ```no_run
//! use actix_web::{App, HttpServer, web};
//! use idem_actix::Idempotent;
//! use idem_core::{Idempotency, MemoryStore};
//! use idem_http::{IdempotencyLayer, header};
//!
//! async fn charge() -> &'static str {
//!     "charged"
//! }
//!
//! # async fn serve() -> std::io::Result<()> {
//! let layer = IdempotencyLayer::new(Idempotency::new(MemoryStore::new()))
//!     .name("payments")
//!     .scope(|parts| header(parts, http::header::AUTHORIZATION))
//!     .required(true);
//! let app = move || App::new().wrap(Idempotent::new(layer.clone())).route("/v1/charges", web::post().to(charge));
//! HttpServer::new(app).bind(("127.0.0.1", 3000))?.run().await
//! # }
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

mod bridge;
mod convert;
mod middleware;

use actix_web::HttpResponse;
use actix_web::body::BoxBody;

pub use crate::middleware::{Guarded, Idempotent};
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
