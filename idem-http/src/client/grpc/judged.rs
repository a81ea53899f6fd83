//! The result of one try.

use std::error::Error;
use std::io;
use std::time::Duration;

use http::{HeaderMap, Response};

use super::super::verdict::{Effect, Verdict};
use super::error::cause;
use crate::body::Body;
use crate::media_type::is_grpc;
use crate::problem::{GRPC_CODE, GRPC_PUSHBACK};

/// Judges a response, whose body was read as far as possible.
pub(super) fn of_response(response: &Response<Body>) -> Verdict {
    let headers = response.headers();
    let whole = response.body().as_whole();
    if response.status() != 200 || !is_grpc(headers) {
        let body = whole.map(|whole| &*whole.data);
        return Verdict::of_response(response.status(), headers, body);
    }
    if headers
        .get("idempotent-replayed")
        .is_some_and(|value| value == "true")
    {
        return Verdict::new(false, Effect::Answer);
    }
    let Some(whole) = whole else {
        // A stream, which the caller reads.
        return Verdict::new(false, Effect::Answer);
    };
    // A response without a message has its status in the head.
    let trailers = whole.trailers.as_ref();
    let found = trailers.filter(|trailers| trailers.contains_key("grpc-status"));
    of_status(found.unwrap_or(headers))
}

/// Returns the status of gRPC of a response that was read.
pub(super) fn status(response: &Response<Body>) -> Option<u16> {
    let trailers = response.body().as_whole()?.trailers.as_ref();
    let found = trailers.and_then(|trailers| trailers.get("grpc-status"));
    let found = found.or_else(|| response.headers().get("grpc-status"))?;
    found.to_str().ok()?.parse().ok()
}

/// Judges the headers or trailers that have the status.
fn of_status(headers: &HeaderMap) -> Verdict {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let (retry, effect) = match text(GRPC_CODE) {
        Some("in_flight" | "store" | "lease_lost") => (true, Effect::Possible),
        Some("incomplete_body" | "throttled") => (true, Effect::None),
        Some("abandoned" | "attempts_exhausted") => (false, Effect::Possible),
        Some(_) => (false, Effect::Answer),
        None => match text("grpc-status").unwrap_or_default() {
            "0" | "3" | "5" | "6" | "9" | "11" | "12" => (false, Effect::Answer),
            "7" | "16" => (false, Effect::None),
            "10" => (true, Effect::None),
            "15" => (false, Effect::Possible),
            // Servers use RESOURCE_EXHAUSTED also for an answer that is too large to be sent.
            _ => (true, Effect::Possible),
        },
    };
    let mut verdict = Verdict::new(retry, effect);
    if headers.contains_key(GRPC_PUSHBACK) {
        verdict.after = text(GRPC_PUSHBACK)
            .and_then(|millis| millis.trim().parse().ok())
            .map(Duration::from_millis);
        // A negative or unreadable one asks the client not to try again.
        verdict.retry &= verdict.after.is_some();
    }
    verdict
}

/// Judges a try that got no response, or not all of it.
pub(super) fn of_error(error: &(dyn Error + 'static)) -> Verdict {
    let mut next = Some(error);
    while let Some(error) = next {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|io| io.kind() == io::ErrorKind::ConnectionRefused) {
            return Verdict::new(true, Effect::None);
        }
        next = cause(error);
    }
    Verdict::new(true, Effect::Possible)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::Whole;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    /// The verdict on a status in the head, and in the trailers.
    fn judge(pairs: &[(&'static str, &str)]) -> Verdict {
        let mut head = Response::new(Body::whole(Whole::default()));
        *head.headers_mut() = headers(pairs);
        head.headers_mut()
            .insert("content-type", "application/grpc".parse().unwrap());
        let mut trailing = Response::new(Body::whole(Whole {
            data: "message".into(),
            trailers: Some(headers(pairs)),
        }));
        trailing
            .headers_mut()
            .insert("content-type", "application/grpc+proto".parse().unwrap());
        let verdict = of_response(&head);
        assert_eq!(of_response(&trailing), verdict, "{pairs:?}");
        assert_eq!(status(&head), status(&trailing));
        verdict
    }

    #[test]
    fn each_row_of_the_table_is_as_documented() {
        use Effect::{Answer, None as Not, Possible};
        let rows: &[(&[u16], bool, Effect)] = &[
            (&[0, 3, 5, 6, 9, 11, 12], false, Answer),
            (&[7, 16], false, Not),
            (&[10], true, Not),
            (&[1, 2, 4, 8, 13, 14, 17, 99], true, Possible),
            (&[15], false, Possible),
        ];
        for (statuses, retry, effect) in rows {
            for status in *statuses {
                let found = judge(&[("grpc-status", &status.to_string())]);
                assert_eq!(found, Verdict::new(*retry, *effect), "{status}");
            }
        }
        assert_eq!(judge(&[]), Verdict::new(true, Possible));
        for (code, retry, effect) in [
            ("in_flight", true, Possible),
            ("store", true, Possible),
            ("lease_lost", true, Possible),
            ("throttled", true, Not),
            ("incomplete_body", true, Not),
            ("abandoned", false, Possible),
            ("attempts_exhausted", false, Possible),
            ("already_done", false, Answer),
            ("fingerprint_mismatch", false, Answer),
            ("body_too_large", false, Answer),
        ] {
            let found = judge(&[("grpc-status", "8"), (GRPC_CODE, code)]);
            assert_eq!(found, Verdict::new(retry, effect), "{code}");
        }
    }

    #[test]
    fn a_pushback_sets_the_pause_or_ends_the_tries() {
        let after = |status: &str, pushback: &str| {
            let verdict = judge(&[("grpc-status", status), (GRPC_PUSHBACK, pushback)]);
            (verdict.retry, verdict.after)
        };
        assert_eq!(after("14", "250"), (true, Some(Duration::from_millis(250))));
        assert_eq!(after("14", "0"), (true, Some(Duration::ZERO)));
        assert_eq!(after("14", "-1"), (false, None));
        assert_eq!(after("14", "soon"), (false, None));
        // It does not make an answer a failure.
        assert!(!after("3", "250").0);
    }

    #[test]
    fn a_replay_is_the_answer_and_what_is_not_grpc_is_judged_as_http() {
        let mut replay = Response::new(Body::whole(Whole::default()));
        *replay.headers_mut() = headers(&[
            ("content-type", "application/grpc"),
            ("grpc-status", "14"),
            ("idempotent-replayed", "true"),
        ]);
        assert_eq!(of_response(&replay), Verdict::new(false, Effect::Answer));
        let mut proxy = Response::new(Body::whole(Whole::default()));
        *proxy.status_mut() = http::StatusCode::BAD_GATEWAY;
        assert_eq!(of_response(&proxy), Verdict::new(true, Effect::Possible));
    }

    #[test]
    fn only_a_refused_connection_was_not_carried_out() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let inside = io::Error::other(refused);
        assert_eq!(of_error(&inside), Verdict::new(true, Effect::None));
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        assert_eq!(of_error(&reset), Verdict::new(true, Effect::Possible));
    }
}
