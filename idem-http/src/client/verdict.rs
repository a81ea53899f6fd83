//! The result of one try.

use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};

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
        let problem = Problem::of(headers, body);
        let (retry, effect) = match status.as_u16() {
            425 | 429 => (true, Effect::None),
            409 => match problem.code() {
                Some("already_done" | "duplicate") => (false, Effect::Answer),
                Some("abandoned" | "attempts_exhausted") => (false, Effect::Possible),
                Some(_) => (true, Effect::Possible),
                None if headers.contains_key(RETRY_AFTER) => (true, Effect::Possible),
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

/// The error in a response's body: a problem+json of `idem`, or one of Stripe's.
struct Problem {
    code: Option<String>,
}

impl Problem {
    fn of(headers: &HeaderMap, body: Option<&[u8]>) -> Self {
        let is_json = headers
            .get(CONTENT_TYPE)
            .is_some_and(|value| value.to_str().is_ok_and(|text| text.contains("json")));
        let value = body
            .filter(|_| is_json)
            .and_then(|body| serde_json::from_slice::<serde_json::Value>(body).ok());
        let error = value.as_ref().and_then(|value| value.get("error"));
        let error = error.filter(|error| {
            error
                .get("type")
                .is_some_and(|kind| kind == "idempotency_error")
        });
        let code = error.map(|error| {
            error
                .get("code")
                .and_then(|code| code.as_str())
                .unwrap_or_default()
                .to_owned()
        });
        Self { code }
    }

    /// The code of an `idempotency_error`, empty if it has none; `None` if the response is
    /// something else.
    fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }
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
        assert_eq!(judge(503, &json, &problem("store")), (true, Possible));
        assert_eq!(judge(503, &json, &problem("lease_lost")), (true, Possible));
    }
}
