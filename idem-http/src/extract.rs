//! The key of an annotated axum handler.

use axum_core::extract::{FromRequestParts, OptionalFromRequestParts};
use axum_core::response::IntoResponse;
use http::HeaderName;
use http::request::Parts;
use idem_core::adapter::report_without_call;

use crate::key::{IdempotencyKey, InvalidKey};
use crate::problem::{Problem, problem_json};
use crate::server::{matched_route, operation};

const HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// The reason why a request does not reach its handler: it has no valid key. The response is 400,
/// as problem+json.
///
/// It is reported as the layer reports the requests that it refuses, with the operation
/// `extractor.` and the method and the route of the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyRejection {
    /// The `Idempotency-Key` header is missing.
    Missing,
    /// The header is not a valid key.
    Invalid(InvalidKey),
}

impl KeyRejection {
    fn problem(self) -> Problem {
        match self {
            Self::Missing => Problem::missing_key(),
            Self::Invalid(_) => Problem::INVALID_KEY,
        }
    }

    /// Reports the refusal. The operation of the handler is not known, because its function is not
    /// called.
    fn reported(self, parts: &Parts) -> Self {
        let route = matched_route(None, parts).unwrap_or_default();
        let operation = operation("extractor", parts.method.as_str(), &route);
        report_without_call(&operation, Some(self.problem().code));
        self
    }
}

impl IntoResponse for KeyRejection {
    fn into_response(self) -> axum_core::response::Response {
        problem_json(&self.problem()).into_response()
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
        let found = Self::from_headers(&parts.headers, &HEADER).map_err(KeyRejection::Invalid);
        found
            .and_then(|key| key.ok_or(KeyRejection::Missing))
            .map_err(|rejection| rejection.reported(parts))
    }
}

/// A request without a key is `None`. A request with an invalid key is refused.
impl<S: Sync> OptionalFromRequestParts<S> for IdempotencyKey {
    type Rejection = KeyRejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, KeyRejection> {
        Self::from_headers(&parts.headers, &HEADER)
            .map_err(|invalid| KeyRejection::Invalid(invalid).reported(parts))
    }
}
