//! How long the client waits between two tries.

use std::time::Duration;

use http::HeaderMap;
use http::header::{DATE, RETRY_AFTER};
use tokio::time::Instant;

/// The longest pause, where the server suggests none.
const LONGEST: Duration = Duration::from_secs(10);

/// The clock of the client: tokio's, which tests can pause.
#[allow(
    clippy::disallowed_methods,
    reason = "deadlines of a client, compared with nothing of a store or another host"
)]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// The pause after a number of tries. It is doubled each time, and then a random part of up to a
/// half is taken off.
pub(super) fn backoff(first: Duration, tries: u32) -> Duration {
    let doubled = first.saturating_mul(
        1u32.checked_shl(tries.saturating_sub(1))
            .unwrap_or(u32::MAX),
    );
    doubled
        .min(LONGEST.max(first))
        .mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// A pause that a server suggested, a little longer for each client, so that not all come back at
/// once.
pub(super) fn with_jitter(suggested: Duration) -> Duration {
    suggested
        + suggested
            .min(Duration::from_secs(4))
            .mul_f64(fastrand::f64() / 4.0)
}

/// The pause that a response suggests: `retry-after-ms`, or `Retry-After` in seconds or as a date.
///
/// A date counts from that of the response, since the server's clock is not ours.
pub(super) fn suggested(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    if let Some(millis) = text("retry-after-ms").and_then(seconds_or_millis) {
        return Some(Duration::from_secs_f64(millis / 1000.0));
    }
    let value = text(RETRY_AFTER.as_str())?;
    if let Some(seconds) = seconds_or_millis(value) {
        return Some(Duration::from_secs_f64(seconds));
    }
    let date = |text: &str| httpdate::parse_http_date(text).ok();
    let then = date(value)?;
    let sent = text(DATE.as_str()).and_then(date)?;
    Some(then.duration_since(sent).unwrap_or_default())
}

/// Reads a number of seconds or milliseconds. It is at most a year in seconds, so that it fits a
/// `Duration`. The deadline of a request comes first.
fn seconds_or_millis(text: &str) -> Option<f64> {
    let number: f64 = text.parse().ok()?;
    (number.is_finite() && number >= 0.0).then(|| number.min(31_536_000_000.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&'static str, &str)]) -> Option<Duration> {
        suggested(
            &pairs
                .iter()
                .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()))
                .collect(),
        )
    }

    #[test]
    fn a_hint_is_read_in_seconds_in_milliseconds_and_as_a_date_of_the_servers_clock() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(of(&[("retry-after", "3")]), Some(Duration::from_secs(3)));
        assert_eq!(
            of(&[("retry-after", "3"), ("retry-after-ms", "20")]),
            Some(Duration::from_millis(20))
        );
        assert_eq!(
            of(&[
                ("retry-after", "Sun, 06 Nov 1994 08:49:47 GMT"),
                ("date", date)
            ]),
            Some(Duration::from_secs(10))
        );
        assert_eq!(
            of(&[
                ("retry-after", date),
                ("date", "Sun, 06 Nov 1994 08:49:47 GMT")
            ]),
            Some(Duration::ZERO)
        );
        for value in ["", "soon", "-1", "NaN", "inf", date] {
            assert_eq!(of(&[("retry-after", value)]), None, "{value}");
        }
        assert!(of(&[("retry-after", "1e300")]).is_some());
    }

    #[test]
    fn a_pause_doubles_up_to_its_limit() {
        for (tries, most) in [
            (1, 200),
            (2, 400),
            (3, 800),
            (40, 10_000),
            (u32::MAX, 10_000),
        ] {
            let pause = backoff(Duration::from_millis(200), tries);
            let most = Duration::from_millis(most);
            assert!(pause <= most && pause >= most / 2, "{tries}: {pause:?}");
        }
        let longer = with_jitter(Duration::from_secs(8));
        assert!(longer >= Duration::from_secs(8) && longer <= Duration::from_secs(9));
    }
}
