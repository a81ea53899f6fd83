//! The layer's own responses.

use std::fmt;
use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use idem_core::adapter::{
    self, CHALLENGE, PROBLEM_JSON, problem_pause, problem_title, problem_type, whole_seconds,
};
use idem_core::{Error, ErrorKind};
use serde_json::json;

use crate::key::InvalidKey;

/// A complete response of this crate.
pub type Response = http::Response<String>;

/// The metadata of gRPC that names the problem, such as `in_flight`.
#[cfg(any(feature = "server", feature = "grpc-client"))]
pub(crate) const GRPC_CODE: &str = "idempotency-problem";
/// The metadata by which a server of gRPC says when to try again, in milliseconds.
#[cfg(any(feature = "server", feature = "grpc-client"))]
pub(crate) const GRPC_PUSHBACK: &str = "grpc-retry-pushback-ms";

/// The reason why a request got no response of the service, in words for its client.
///
/// It contains nothing of a key, a body or the store. [`problem_json`] and [`stripe`] turn it into
/// a response.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The status of the response.
    pub status: StatusCode,
    /// A stable name such as `in_flight`, for programs. For an [`Error`], it is [`Error::code`].
    pub code: &'static str,
    /// A message for the client: the event, and the next step. For an [`Error`], it is
    /// [`Error::client_message`].
    pub message: &'static str,
    /// The pause before the same request is worth sending again; `None` if waiting alone does not
    /// help.
    pub retry_after: Option<Duration>,
}

impl Problem {
    const fn new(status: StatusCode, code: &'static str, message: &'static str) -> Self {
        Self {
            status,
            code,
            message,
            retry_after: None,
        }
    }

    /// A key that is not well-formed.
    pub(crate) const INVALID_KEY: Self = Self::new(
        StatusCode::BAD_REQUEST,
        "invalid_key",
        "The idempotency key is invalid. Send one Idempotency-Key header of 1 to 255 visible ASCII \
         characters, in quotation marks if it has a comma or a semicolon.",
    );
    /// A key that the service's own rules refuse.
    const RULED_KEY: Self = Self::new(
        StatusCode::BAD_REQUEST,
        "invalid_key",
        "The idempotency key is invalid. It is empty, or longer than this service accepts.",
    );
    /// A body whose readers may disagree on the key.
    #[cfg(feature = "server")]
    pub(crate) const UNCLEAR_KEY: Self = Self::new(
        StatusCode::BAD_REQUEST,
        "invalid_key",
        "The idempotency key is invalid. Its field occurs twice in the body, or the body is not \
         valid JSON.",
    );
    /// A request without an owner.
    #[cfg(feature = "server")]
    pub(crate) const NO_SCOPE: Self = Self::new(
        StatusCode::UNAUTHORIZED,
        "no_scope",
        "The sender of the request is unknown. Authenticate, and send the request again.",
    );
    /// A body above the limit.
    #[cfg(feature = "server")]
    pub(crate) const TOO_LARGE: Self = Self::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "body_too_large",
        "The body of the request is too large. Nothing was carried out.",
    );
    /// A body that did not arrive.
    #[cfg(feature = "server")]
    pub(crate) const BROKEN_BODY: Self = Self::new(
        StatusCode::BAD_REQUEST,
        "incomplete_body",
        "The body of the request did not arrive. Nothing was carried out. Send the request again.",
    );
    /// A recorded response that cannot be read.
    #[cfg(feature = "server")]
    pub(crate) const INTERNAL: Self = Self::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "The request could not be processed because of an error of the service.",
    );
    /// A lookup by another method than GET.
    #[cfg(feature = "server")]
    pub(crate) const METHOD_NOT_ALLOWED: Self = Self::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        "A lookup is a GET request.",
    );
    /// No record has this key.
    #[cfg(feature = "server")]
    pub(crate) const NOT_FOUND: Self = Self::new(
        StatusCode::NOT_FOUND,
        "unknown",
        "No request with this idempotency key is known. It did not arrive, or it can be sent \
         again.",
    );

    /// A request without a key where one is required.
    #[cfg(feature = "server")]
    pub(crate) fn missing_key() -> Self {
        Self::of_kind(ErrorKind::MissingKey)
    }

    pub(crate) fn of_kind(kind: ErrorKind) -> Self {
        let status =
            StatusCode::from_u16(kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let is_soon = matches!(
            kind,
            ErrorKind::InFlight | ErrorKind::LeaseLost | ErrorKind::Store
        );
        Self {
            status,
            code: kind.code(),
            message: kind.client_message(),
            retry_after: is_soon.then_some(PAUSE),
        }
    }

    /// Returns the `type` of the problem: a URI for each code.
    pub fn type_uri(&self) -> String {
        problem_type(self.code)
    }

    /// Returns the first sentence of the message, the same for each code.
    pub fn title(&self) -> &'static str {
        problem_title(self.message)
    }
}

/// A client's pause before it asks again. It is short, because the layer does not know when a body
/// ends or a store comes back, and most bodies end long before their lease.
const PAUSE: Duration = Duration::from_secs(1);

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        Self {
            retry_after: problem_pause(error),
            ..Self::of_kind(error.kind())
        }
    }
}

impl From<InvalidKey> for Problem {
    fn from(invalid: InvalidKey) -> Self {
        match invalid {
            InvalidKey::AgainstRules => Self::RULED_KEY,
            _ => Self::INVALID_KEY,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message)
    }
}

/// Turns an error into a response for the client, as problem+json.
///
/// Use it with frameworks that have no integration. The guide on HTTP has the table of statuses. If
/// the same request can succeed later, the response has a `Retry-After`.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let idempotency = idem::Idempotency::new(idem::MemoryStore::new());
/// let missing = idempotency
///     .operation("orders.create")
///     .key("")
///     .run(|| async { Ok::<_, idem::Error>(1) })
///     .await;
/// let response = idem_http::problem(&missing.unwrap_err());
/// assert_eq!(response.status(), 400);
/// assert_eq!(response.headers()["content-type"], "application/problem+json");
/// # });
/// ```
pub fn problem(error: &Error) -> Response {
    problem_json(&Problem::from(error))
}

/// Creates a response in the shape of RFC 9457, with a member `error` like Stripe's.
///
/// Without that member, Stripe's client for Node treats any JSON body as a success, whatever the
/// status is.
pub fn problem_json(problem: &Problem) -> Response {
    let body = adapter::problem_json(problem.status.as_u16(), problem.code, problem.message);
    answer(problem, PROBLEM_JSON, body)
}

/// Creates a response in Stripe's shape: `{"error": {"type": .., "code": .., "message": ..}}`.
///
/// Stripe's clients recognise a mismatch by status 400, so set
/// [`mismatch`](crate::IdempotencyLayer::mismatch) too.
pub fn stripe(problem: &Problem) -> Response {
    let Problem {
        status,
        code,
        message,
        ..
    } = problem;
    let kind = match *code {
        "missing_key" | "invalid_key" | "body_too_large" | "incomplete_body" | "no_scope" => {
            "invalid_request_error"
        }
        _ if status.is_server_error() => "api_error",
        _ => "idempotency_error",
    };
    let body = json!({ "error": { "type": kind, "code": code, "message": message } });
    answer(problem, "application/json", body.to_string())
}

fn answer(problem: &Problem, content_type: &'static str, body: String) -> Response {
    let mut response = http::Response::new(body);
    *response.status_mut() = problem.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let Some(pause) = problem.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(pause)));
    }
    challenged(response)
}

/// Adds a challenge to a 401 that has none, which clients may rely on.
pub(crate) fn challenged(mut response: Response) -> Response {
    if response.status() == StatusCode::UNAUTHORIZED {
        response
            .headers_mut()
            .entry(WWW_AUTHENTICATE)
            .or_insert(HeaderValue::from_static(CHALLENGE));
    }
    response
}
