//! The result of one try.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use idem_core::adapter::without_byte_order_mark;

use super::pause::suggested;

/// The result of one try: whether to try again, and whether the request may have been carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) retry: bool,
    /// The pause that the server suggests.
    pub(super) after: Option<Duration>,
    pub(super) effect: Effect,
}

/// Whether a try carried the request out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// The response is the answer to the key, whichever try was carried out.
    Answer,
    /// This try was not carried out. An earlier one may have been.
    None,
    /// This try may have been carried out.
    Possible,
}

impl Verdict {
    pub(super) fn new(retry: bool, effect: Effect) -> Self {
        Self {
            retry,
            after: None,
            effect,
        }
    }

    /// Judges a response. `body` is its body, if it was read.
    pub(super) fn of_response(
        status: StatusCode,
        headers: &HeaderMap,
        body: Option<&[u8]>,
    ) -> Self {
        if is(headers, "idempotent-replayed", "true") {
            return Self::new(false, Effect::Answer);
        }
        let code = body.and_then(idempotency_error);
        let (retry, effect) = match status.as_u16() {
            425 | 429 => (true, Effect::None),
            409 => match code.as_deref() {
                Some("already_done" | "duplicate") => (false, Effect::Answer),
                Some("abandoned" | "attempts_exhausted") => (false, Effect::Possible),
                Some(_) => (true, Effect::Possible),
                // A body that was not read may have any code.
                None if body.is_none() || headers.contains_key(RETRY_AFTER) => {
                    (true, Effect::Possible)
                }
                None => (true, Effect::None),
            },
            401 | 403 => (false, Effect::None),
            // A 408 may come from a time limit around a service that continues. A 503 with the code
            // `store` may come from a handler whose COMMIT got no answer.
            408 | 500 | 502 | 503 | 504 => (true, Effect::Possible),
            506.. => (false, Effect::Possible),
            // Of the 5xx: 501 and 505.
            _ => (false, Effect::Answer),
        };
        let hint = |value| {
            ["x-should-retry", "stripe-should-retry"]
                .into_iter()
                .any(|name| is(headers, name, value))
        };
        let (retry, effect) = if hint("false") {
            (false, effect)
        } else if hint("true") && status.is_server_error() {
            // Also where the status alone would be the answer, such as 501.
            (true, Effect::Possible)
        } else {
            (retry, effect)
        };
        Self {
            retry,
            after: suggested(headers),
            effect,
        }
    }
}

fn is(headers: &HeaderMap, name: &str, value: &str) -> bool {
    headers
        .get(name)
        .is_some_and(|found| found.as_bytes().eq_ignore_ascii_case(value.as_bytes()))
}

/// Returns the code of the `idempotency_error` in a body, a problem+json of `idem` or an error of
/// Stripe's: empty if it has none, and `None` if the body is something else.
///
/// The content type is not asked: proxies change or drop it, and a missed code loses a payment.
fn idempotency_error(body: &[u8]) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(without_byte_order_mark(body)).ok()?;
    let error = value.get("error").filter(|error| {
        error
            .get("type")
            .is_some_and(|kind| kind == "idempotency_error")
    })?;
    let code = error.get("code").and_then(serde_json::Value::as_str);
    Some(code.unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(status: u16, headers: &[(&'static str, &str)], body: &str) -> (bool, Effect) {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        let verdict = Verdict::of_response(
            StatusCode::from_u16(status).unwrap(),
            &headers,
            Some(body.as_bytes()),
        );
        (verdict.retry, verdict.effect)
    }

    #[test]
    fn each_row_of_the_table_is_as_documented() {
        use Effect::{Answer, None as Not, Possible};
        let rows: &[(&[u16], bool, Effect)] = &[
            (&[200, 201, 202, 204, 301, 303], false, Answer),
            (&[425, 429, 409], true, Not),
            (&[401, 403], false, Not),
            (&[400, 402, 404, 410, 413, 422], false, Answer),
            (&[408, 500, 502, 503, 504], true, Possible),
            (&[501, 505], false, Answer),
            (&[507, 520, 524], false, Possible),
        ];
        for (statuses, retry, effect) in rows {
            for status in *statuses {
                assert_eq!(judge(*status, &[], ""), (*retry, *effect), "{status}");
                assert_eq!(
                    judge(*status, &[("idempotent-replayed", "true")], ""),
                    (false, Answer),
                    "{status}"
                );
                let no = judge(*status, &[("x-should-retry", "false")], "");
                assert_eq!(no, (false, *effect), "{status}");
                let yes = judge(*status, &[("stripe-should-retry", "true")], "");
                let asked = if *status >= 500 {
                    (true, Possible)
                } else {
                    (*retry, *effect)
                };
                assert_eq!(yes, asked, "{status}");
            }
        }
    }

    #[test]
    fn a_conflict_is_judged_by_what_it_says() {
        use Effect::{Answer, None as Not, Possible};
        let problem = |code: &str| {
            format!(r#"{{"error": {{"type": "idempotency_error", "code": "{code}"}}}}"#)
        };
        let json = [("content-type", "application/problem+json")];
        assert_eq!(judge(409, &json, &problem("in_flight")), (true, Possible));
        assert_eq!(
            judge(409, &json, &problem("idempotency_key_in_use")),
            (true, Possible)
        );
        assert_eq!(judge(409, &json, &problem("already_done")), (false, Answer));
        assert_eq!(judge(409, &json, &problem("abandoned")), (false, Possible));
        assert_eq!(judge(409, &[("retry-after", "1")], ""), (true, Possible));
        assert_eq!(
            judge(409, &json, r#"{"error": {"type": "card_error"}}"#),
            (true, Not)
        );
        assert_eq!(judge(409, &json, "{"), (true, Not));
        // Proxies spell the content type anew, or drop it, and some servers write a byte order mark.
        for (code, verdict) in [
            ("in_flight", (true, Possible)),
            ("already_done", (false, Answer)),
            ("duplicate", (false, Answer)),
            ("abandoned", (false, Possible)),
            ("attempts_exhausted", (false, Possible)),
        ] {
            let body = problem(code);
            for content_type in [
                "application/problem+json",
                "Application/Problem+JSON",
                "APPLICATION/JSON; CHARSET=UTF-8",
                "text/plain",
            ] {
                let headers = [("content-type", content_type)];
                assert_eq!(judge(409, &headers, &body), verdict, "{content_type}");
                let marked = format!("\u{feff}{body}");
                assert_eq!(judge(409, &headers, &marked), verdict, "{content_type}");
            }
            assert_eq!(judge(409, &[], &body), verdict, "{code}");
        }
        let unread = Verdict::of_response(StatusCode::CONFLICT, &HeaderMap::new(), None);
        assert_eq!((unread.retry, unread.effect), (true, Possible));
        assert_eq!(judge(503, &json, &problem("store")), (true, Possible));
        assert_eq!(judge(503, &json, &problem("lease_lost")), (true, Possible));
    }
}
