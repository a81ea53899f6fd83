//! The key of an annotated axum handler.

use axum_core::extract::{FromRequestParts, OptionalFromRequestParts};
use axum_core::response::IntoResponse;
use http::HeaderName;
use http::request::Parts;

use crate::key::{IdempotencyKey, InvalidKey};
use crate::problem::{Problem, problem_json};

const HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// The reason why a request does not reach its handler: it has no valid key. The response is 400,
/// as problem+json.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyRejection {
    /// The `Idempotency-Key` header is missing.
    Missing,
    /// The header is not a valid key.
    Invalid(InvalidKey),
}

impl IntoResponse for KeyRejection {
    fn into_response(self) -> axum_core::response::Response {
        let problem = match self {
            Self::Missing => Problem::missing_key(),
            Self::Invalid(_) => Problem::INVALID_KEY,
        };
        problem_json(&problem).into_response()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> axum_core::response::Response {
        problem_json(&self).into_response()
    }
}

impl<S: Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = KeyRejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, KeyRejection> {
        let found = Self::from_headers(&parts.headers, &HEADER).map_err(KeyRejection::Invalid)?;
        found.ok_or(KeyRejection::Missing)
    }
}

/// A request without a key is `None`. A request with an invalid key is refused.
impl<S: Sync> OptionalFromRequestParts<S> for IdempotencyKey {
    type Rejection = KeyRejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, KeyRejection> {
        Self::from_headers(&parts.headers, &HEADER).map_err(KeyRejection::Invalid)
    }
}
