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
//! use actix_web::body::MessageBody;
//! use actix_web::dev::{ServiceRequest, ServiceResponse};
//! use actix_web::middleware::{Next, from_fn};
//! use actix_web::{App, Error, HttpMessage as _, HttpServer, web};
//! use idem::http::IdempotencyLayer;
//! use idem::{Idempotency, MemoryStore};
//! use idem_actix::Idempotent;
//!
//! /// The authenticated user.
//! #[derive(Clone)]
//! struct User(String);
//!
//! async fn authenticate(
//!     request: ServiceRequest,
//!     next: Next<impl MessageBody>,
//! ) -> Result<ServiceResponse<impl MessageBody>, Error> {
//!     request.extensions_mut().insert(User("alice".to_owned())); // yours: 401, or the user
//!     next.call(request).await
//! }
//!
//! async fn charge() -> &'static str {
//!     "charged"
//! }
//!
//! #[actix_web::main]
//! async fn main() -> std::io::Result<()> {
//!     let layer = IdempotencyLayer::new(Idempotency::new(MemoryStore::new()))
//!         .name("payments")
//!         .scope(|parts| parts.extensions.get::<User>().map(|user| user.0.clone()))
//!         .required(true);
//!     let app = move || {
//!         let charges = web::resource("/v1/charges")
//!             .wrap(Idempotent::new(layer.clone()).copy_extension::<User>())
//!             .wrap(from_fn(authenticate)) // outside: wrapped last
//!             .post(charge);
//!         App::new().service(charges)
//!     };
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
/// Call it in `error_response` of the handler's error. By default, actix-web sends the `Display`
/// text of an error, which is for operators.
///
/// # Examples
///
/// ```
/// use actix_web::{HttpResponse, ResponseError};
/// # use std::fmt;
///
/// #[derive(Debug)]
/// enum ApiError {
///     Idempotency(idem_core::Error),
///     Declined,
/// }
/// # impl fmt::Display for ApiError {
/// #     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
/// #         match self {
/// #             Self::Idempotency(error) => error.fmt(f),
/// #             Self::Declined => f.write_str("declined"),
/// #         }
/// #     }
/// # }
///
/// impl ResponseError for ApiError {
///     fn error_response(&self) -> HttpResponse {
///         match self {
///             Self::Idempotency(error) => idem_actix::problem(error),
///             Self::Declined => HttpResponse::PaymentRequired().finish(),
///         }
///     }
/// }
///
/// let response = ApiError::Idempotency(idem_core::Error::missing_key("orders.create"))
///     .error_response();
/// assert_eq!(response.status(), 400);
/// assert_eq!(ApiError::Declined.error_response().status(), 402);
/// ```
pub fn problem(error: &idem_core::Error) -> HttpResponse {
    let (parts, text) = idem_http::problem(error).into_parts();
    convert::response(&parts, BoxBody::new(text))
}
