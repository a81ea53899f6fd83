//! An error as problem+json (RFC 9457): for axum's handlers here, and for everything that
//! `idem-http` answers.

use std::time::Duration;

use serde_json::json;

use crate::error::Error;

/// The `type` of a problem: this address, which is a page of the repository, and the code.
const TYPES: &str = "https://github.com/idem-rs/idem/blob/main/docs/guide/http.md#";

/// The media type of [`problem_json`].
pub const PROBLEM_JSON: &str = "application/problem+json";

/// The challenge of a 401, which has to name a scheme (RFC 9110, 15.5.2). It is the one that no
/// browser asks its user about.
pub const CHALLENGE: &str = "Bearer";

/// Returns the body of a problem. Its member `error` is what Stripe's clients look for.
pub fn problem_json(status: u16, code: &str, message: &str) -> String {
    let body = json!({
        "type": problem_type(code),
        "title": problem_title(message),
        "status": status,
        "detail": message,
        "code": code,
        "error": { "type": "idempotency_error", "code": code, "message": message },
    });
    body.to_string()
}

/// Returns the `type` of a problem: a URI for each code.
pub fn problem_type(code: &str) -> String {
    format!("{TYPES}{code}")
}

/// Returns the first sentence of a message.
pub fn problem_title(message: &str) -> &str {
    message
        .split_once(". ")
        .map_or(message, |(title, _)| title)
        .trim_end_matches('.')
}

/// Returns the `Retry-After` of an error, if the same call can succeed later.
pub fn problem_pause(error: &Error) -> Option<Duration> {
    // Also if the store refuses the step: to the client, the service is unavailable until it is
    // repaired.
    let store = matches!(error, Error::Store { .. }).then_some(Duration::from_secs(1));
    error.retry_after().or(store)
}

/// Returns the whole seconds of a `Retry-After`, rounded up: a client that comes early comes twice.
pub fn whole_seconds(pause: Duration) -> u64 {
    (pause.as_secs() + u64::from(pause.subsec_nanos() > 0)).max(1)
}
