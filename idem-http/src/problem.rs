//! What a client is told when its call gets no answer of the service.

use std::fmt;
use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use idem_core::Error;
use serde_json::json;

use crate::key::InvalidKey;

/// An answer of ours, complete.
pub type Response = http::Response<String>;

/// Where each code is described: the `type` of a problem is this and the code.
const TYPES: &str = "https://docs.rs/idem-rs/latest/idem/guide/http/#";

/// Why a request got no answer of the service, in words for its client.
///
/// Nothing in it comes from a key, a body or the store. [`problem_json`] and [`stripe`] are its two shapes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The status of the response.
    pub status: StatusCode,
    /// A stable name such as `in_flight`, for programs.
    pub code: &'static str,
    /// A short text that is the same for each code.
    pub title: &'static str,
    /// What the client can do.
    pub detail: &'static str,
    /// After which time the same request can be sent again; `None` if that is of no use.
    pub retry_after: Option<Duration>,
}

impl Problem {
    const fn new(status: StatusCode, code: &'static str, title: &'static str, detail: &'static str) -> Self {
        Self { status, code, title, detail, retry_after: None }
    }

    const fn retried_after(mut self, pause: Duration) -> Self {
        self.retry_after = Some(pause);
        self
    }

    /// No key where one is required.
    pub(crate) const MISSING_KEY: Self = Self::new(
        StatusCode::BAD_REQUEST,
        "missing_key",
        "The idempotency key is missing",
        "Send an Idempotency-Key header with a new unique value for each new operation.",
    );
    /// A key that is not well-formed.
    pub(crate) const INVALID_KEY: Self = Self::new(
        StatusCode::BAD_REQUEST,
        "invalid_key",
        "The idempotency key is invalid",
        "Send one Idempotency-Key header of 1 to 255 visible ASCII characters.",
    );
    /// A request without an owner.
    pub(crate) const NO_SCOPE: Self = Self::new(
        StatusCode::UNAUTHORIZED,
        "no_scope",
        "The sender of the request is unknown",
        "Authenticate, and send the request again.",
    );
    /// A body above the limit.
    pub(crate) const TOO_LARGE: Self = Self::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "body_too_large",
        "The request's body is too large",
        "Send a smaller body. Nothing was carried out.",
    );
    /// A body that did not arrive.
    pub(crate) const BROKEN_BODY: Self = Self::new(
        StatusCode::BAD_REQUEST,
        "incomplete_body",
        "The request's body did not arrive",
        "Send the request again. Nothing was carried out.",
    );
    const IN_FLIGHT: Self = Self::new(
        StatusCode::CONFLICT,
        "in_flight",
        "A request with this idempotency key is being processed",
        "Send the same request again later.",
    );
    const MISMATCH: Self = Self::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "fingerprint_mismatch",
        "The idempotency key was used for another request",
        "Send a new key with a new request. Nothing was carried out.",
    );
    const DONE: Self = Self::new(
        StatusCode::CONFLICT,
        "already_done",
        "The request was carried out, and its response is not recorded",
        "Do not send it again. Ask for the result in another way.",
    );
    pub(crate) const ABANDONED: Self = Self::new(
        StatusCode::CONFLICT,
        "abandoned",
        "An earlier request with this idempotency key was interrupted",
        "Its result is unknown until the service's operators settle it.",
    );
    const EXHAUSTED: Self = Self::new(
        StatusCode::CONFLICT,
        "attempts_exhausted",
        "The request failed too many times",
        "The service's operators must look at it.",
    );
    const INTERRUPTED: Self = Self::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "lease_lost",
        "The request was interrupted",
        "Send the same request again later.",
    );
    const UNAVAILABLE: Self = Self::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "store",
        "The service cannot process the request now",
        "Send the same request again later.",
    );
    const UNKNOWN_TOKEN: Self = Self::new(
        StatusCode::FORBIDDEN,
        "unknown_token",
        "The form's token is not valid",
        "Load the form again, and submit it.",
    );
    const THROTTLED: Self = Self::new(
        StatusCode::TOO_MANY_REQUESTS,
        "throttled",
        "Too many invalid tokens were sent",
        "Try again later.",
    );
    pub(crate) const INTERNAL: Self = Self::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "The service cannot process the request",
        "The service's operators must look at it.",
    );

    /// A lookup by another method than GET.
    pub(crate) const METHOD_NOT_ALLOWED: Self = Self::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "A lookup is a GET request",
        "Send a GET request. Nothing was looked up.",
    );
    /// A key that no record stands for.
    pub(crate) const NOT_FOUND: Self = Self::new(
        StatusCode::NOT_FOUND,
        "unknown",
        "No request with this idempotency key is known",
        "It was not received, or it can be sent again.",
    );
    /// A result that expired.
    pub(crate) const GONE: Self = Self { status: StatusCode::GONE, ..Self::DONE };
    /// A lookup of a request that is being processed.
    pub(crate) const ACCEPTED: Self =
        Self { status: StatusCode::ACCEPTED, ..Self::IN_FLIGHT }.retried_after(PAUSE);

    /// The `type` of the problem: a URI of its own for each code.
    pub fn type_uri(&self) -> String {
        format!("{TYPES}{}", self.code)
    }
}

/// A client's pause before it asks again. Nobody knows when a body ends or a store comes back, so it is short.
const PAUSE: Duration = Duration::from_secs(1);

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        match error {
            Error::InFlight { .. } => Self::IN_FLIGHT.retried_after(PAUSE),
            Error::FingerprintMismatch { .. } => Self::MISMATCH,
            Error::Duplicate { .. } | Error::AlreadyDone { .. } => Self::DONE,
            Error::Abandoned { .. } => Self::ABANDONED,
            Error::AttemptsExhausted { .. } => Self::EXHAUSTED,
            Error::LeaseLost { .. } => Self::INTERRUPTED.retried_after(PAUSE),
            Error::MissingKey { .. } => Self::MISSING_KEY,
            Error::MissingSubject { .. } => Self::NO_SCOPE,
            Error::UnknownToken { .. } => Self::UNKNOWN_TOKEN,
            Error::Throttled { retry_after, .. } => Self::THROTTLED.retried_after(*retry_after),
            // Also where the store refuses: to the client, the service is down until it is repaired.
            Error::Store { .. } => Self::UNAVAILABLE.retried_after(PAUSE),
            _ => Self::INTERNAL,
        }
    }
}

impl From<InvalidKey> for Problem {
    fn from(_: InvalidKey) -> Self {
        Self::INVALID_KEY
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.title, self.detail)
    }
}

/// Turns an error into the response that its client gets, as problem+json.
///
/// For frameworks without an integration of their own. The response has a status by the table in the guide on HTTP,
/// and a `Retry-After` where the same request can succeed later.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let idempotency = idem::Idempotency::new(idem::MemoryStore::new());
/// let missing = idempotency.operation("orders.create").key("").run(|| async { Ok::<_, idem::Error>(1) }).await;
/// let response = idem_http::problem(&missing.unwrap_err());
/// assert_eq!(response.status(), 400);
/// assert_eq!(response.headers()["content-type"], "application/problem+json");
/// # });
/// ```
pub fn problem(error: &Error) -> Response {
    problem_json(&Problem::from(error))
}

/// The shape of RFC 9457, with a member `error` like Stripe's.
///
/// Without that member, Stripe's client for Node takes any JSON body for a success, whatever the status.
pub fn problem_json(problem: &Problem) -> Response {
    let Problem { status, code, title, detail, .. } = problem;
    let body = json!({
        "type": problem.type_uri(),
        "title": title,
        "status": status.as_u16(),
        "detail": detail,
        "code": code,
        "error": { "type": "idempotency_error", "code": code, "message": format!("{title}. {detail}") },
    });
    answer(problem, "application/problem+json", body.to_string())
}

/// Stripe's shape: `{"error": {"type": .., "code": .., "message": ..}}`.
///
/// Stripe's clients know a mismatch by status 400: set [`mismatch`](crate::IdempotencyLayer::mismatch) too.
pub fn stripe(problem: &Problem) -> Response {
    let Problem { status, code, title, detail, .. } = problem;
    let kind = match *code {
        "missing_key" | "invalid_key" | "body_too_large" | "incomplete_body" | "no_scope" => "invalid_request_error",
        _ if status.is_server_error() => "api_error",
        _ => "idempotency_error",
    };
    let body = json!({ "error": { "type": kind, "code": code, "message": format!("{title}. {detail}") } });
    answer(problem, "application/json", body.to_string())
}

fn answer(problem: &Problem, content_type: &'static str, body: String) -> Response {
    let mut response = http::Response::new(body);
    *response.status_mut() = problem.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let Some(pause) = problem.retry_after {
        // Rounded up: a client that comes early comes twice.
        let seconds = pause.as_secs() + u64::from(pause.subsec_nanos() > 0);
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
    }
    response
}
