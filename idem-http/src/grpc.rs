//! gRPC: the client half, and the layer's own responses.
//!
//! The server half is [`IdempotencyLayer`](crate::IdempotencyLayer), which knows the statuses of
//! gRPC. Its own responses are [`problem`]. The client half is [`ClientLayer`].

#[cfg(feature = "server")]
use http::HeaderValue;
#[cfg(feature = "server")]
use http::header::CONTENT_TYPE;

#[cfg(feature = "grpc-client")]
pub use crate::client::grpc::{Client, ClientFuture, ClientLayer, UnknownOutcome};
#[cfg(feature = "server")]
use crate::problem::{GRPC_CODE, GRPC_PUSHBACK, Problem, Response};

/// Creates a response of gRPC: for [`IdempotencyLayer::problem`](crate::IdempotencyLayer::problem).
///
/// | code | status |
/// | --- | --- |
/// | `missing_key`, `invalid_key` | `INVALID_ARGUMENT` |
/// | `in_flight`, `incomplete_body` | `ABORTED` |
/// | `fingerprint_mismatch`, `abandoned`, `attempts_exhausted` | `FAILED_PRECONDITION` |
/// | `already_done`, `duplicate` | `ALREADY_EXISTS` |
/// | `no_scope`, `missing_subject` | `UNAUTHENTICATED` |
/// | `unknown_token` | `PERMISSION_DENIED` |
/// | `body_too_large`, `throttled` | `RESOURCE_EXHAUSTED` |
/// | `store`, `lease_lost` | `UNAVAILABLE` |
/// | any other | `INTERNAL` |
///
/// The metadata `idempotency-problem` has the code. If waiting helps, `grpc-retry-pushback-ms` has
/// the pause.
///
/// # Examples
///
/// ```
/// use idem_core::{Idempotency, MemoryStore};
/// use idem_http::{IdempotencyLayer, grpc};
///
/// let layer = IdempotencyLayer::new(Idempotency::new(MemoryStore::new()))
///     .name("payments")
///     .unscoped()
///     .problem(grpc::problem);
/// ```
#[cfg(feature = "server")]
pub fn problem(problem: &Problem) -> Response {
    let status: u16 = match problem.code {
        "missing_key" | "invalid_key" => 3,
        "already_done" | "duplicate" => 6,
        "unknown_token" => 7,
        "body_too_large" | "throttled" => 8,
        "fingerprint_mismatch" | "abandoned" | "attempts_exhausted" => 9,
        "in_flight" | "incomplete_body" => 10,
        "store" | "lease_lost" => 14,
        "no_scope" | "missing_subject" => 16,
        _ => 13,
    };
    let mut response = http::Response::new(String::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", status.into());
    headers.insert("grpc-message", HeaderValue::from_static(problem.message));
    headers.insert(GRPC_CODE, HeaderValue::from_static(problem.code));
    if let Some(pause) = problem.retry_after {
        let millis = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        headers.insert(GRPC_PUSHBACK, millis.into());
    }
    response
}

#[cfg(all(test, feature = "server"))]
mod tests {
    use std::time::Duration;

    use idem_core::{Error, ErrorKind};

    use super::*;

    #[test]
    fn a_problem_has_its_status_its_code_and_the_pause() {
        let response = problem(&Problem::of_kind(ErrorKind::InFlight));
        let headers = response.headers();
        assert_eq!(response.status(), 200);
        assert_eq!(headers["grpc-status"], "10");
        assert_eq!(headers[GRPC_CODE], "in_flight");
        assert_eq!(headers[GRPC_PUSHBACK], "1000");
        let missing = problem(&Problem::from(&Error::missing_key("orders")));
        assert_eq!(missing.headers()["grpc-status"], "3");
        assert!(!missing.headers().contains_key(GRPC_PUSHBACK));
        let long = Problem {
            retry_after: Some(Duration::MAX),
            ..Problem::missing_key()
        };
        assert_eq!(
            problem(&long).headers()[GRPC_PUSHBACK],
            u64::MAX.to_string()
        );
    }

    #[test]
    fn each_message_can_be_sent_as_it_is() {
        for problem in [
            Problem::INVALID_KEY,
            Problem::UNCLEAR_KEY,
            Problem::NO_SCOPE,
            Problem::TOO_LARGE,
            Problem::BROKEN_BODY,
            Problem::INTERNAL,
        ] {
            let is_plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'%';
            assert!(problem.message.bytes().all(is_plain), "{problem}");
        }
    }
}
