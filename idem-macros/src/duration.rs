//! Durations as people write them: `"5m"`, `"1h 30m"`.

use std::time::Duration;

use humantime::DurationError;
use syn::LitStr;

/// Reads the literal, or says what is wrong with it and how it is written.
pub(crate) fn parse(literal: &LitStr) -> syn::Result<Duration> {
    let text = literal.value();
    let longest = text
        .split(|c: char| !c.is_ascii_digit())
        .map(str::len)
        .max();
    let parsed = if longest > Some(LONGEST_NUMBER) {
        // humantime 2.4 panics at a sum of `u64::MAX` seconds and a thousand million nanoseconds.
        Err(DurationError::NumberOverflow)
    } else {
        humantime::parse_duration(&text)
    };
    match parsed
        .map_err(|error| explain(text.trim(), &error))
        .and_then(|duration| {
            // `M` is a month to the parser, and `m` a minute: a slip that is easy to miss.
            months_or_years(&text).map_or(Ok(duration), Err)
        }) {
        Ok(duration) if duration > LONGEST => Err(format!(
            "`{text}` is more than 100 years; is the unit right?"
        )),
        Ok(Duration::ZERO) => Err(format!(
            "a duration is longer than zero: write for example {EXAMPLES}"
        )),
        Ok(duration) => Ok(duration),
        Err(message) => Err(message),
    }
    .map_err(|message| syn::Error::new(literal.span(), message))
}

/// The longest duration. As in the runtime, a longer one counts as a mistake in the unit.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The most digits of a number. They suffice for three years in milliseconds, and a sum of such
/// numbers fits a `u64` in any unit.
const LONGEST_NUMBER: usize = 11;

/// How durations are written.
pub(crate) const EXAMPLES: &str = "\"500ms\", \"30s\", \"5m\", \"1h 30m\" or \"7d\"";

fn explain(text: &str, error: &DurationError) -> String {
    let wrong = match error {
        DurationError::Empty => "a duration is missing here".to_owned(),
        _ if text.starts_with('-') => format!("`{text}` is negative; a duration is not"),
        DurationError::UnknownUnit { unit, value, .. } if unit.is_empty() => {
            format!("`{value}` needs a unit")
        }
        DurationError::UnknownUnit { unit, .. } => format!("`{unit}` is not a unit of time"),
        DurationError::NumberOverflow => format!("`{text}` is too long or too exact"),
        DurationError::InvalidCharacter(_) | DurationError::NumberExpected(_) => {
            format!("`{text}` is not a duration")
        }
    };
    let hint = if is_expression(text) {
        "; for an expression, leave out the quotes"
    } else {
        ""
    };
    format!("{wrong}: write for example {EXAMPLES}{hint}")
}

fn months_or_years(text: &str) -> Option<String> {
    let units = text.split(|c: char| !c.is_alphabetic());
    let unit = units.into_iter().find(|unit| {
        let lower = unit.to_lowercase();
        *unit == "M" || lower.starts_with("mo") || lower.starts_with('y')
    })?;
    Some(format!(
        "`{unit}` has no fixed length: write days, for example \"30d\", or \"1m\" for a minute"
    ))
}

/// Whether the text looks like Rust rather than like a time.
fn is_expression(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

#[cfg(test)]
mod tests {
    use proc_macro2::Span;
    use syn::LitStr;

    use super::{Duration, parse};

    fn read(text: &str) -> Result<Duration, String> {
        parse(&LitStr::new(text, Span::call_site())).map_err(|error| error.to_string())
    }

    #[test]
    fn months_and_years_are_refused() {
        for text in ["1M", "1 month", "2y", "1year 3d"] {
            assert!(
                read(text).is_err_and(|message| message.contains("no fixed length")),
                "{text}"
            );
        }
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h 30m", 5_400_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(read(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_said_in_plain_words() {
        for (text, words) in [
            (
                "",
                "a duration is missing here: write for example \"500ms\"",
            ),
            ("0", "longer than zero"),
            ("0s", "longer than zero"),
            ("300", "`300` needs a unit: write for example"),
            ("-5s", "`-5s` is negative"),
            ("5 minuts", "`minuts` is not a unit of time"),
            (
                "req.ttl()",
                "`req.ttl()` is not a duration: write for example \"500ms\", \"30s\", \"5m\", \"1h \
                 30m\" or \"7d\"; for an expression, leave out the quotes",
            ),
            ("99999999999999999999s", "too long"),
            ("18446744073709551615s 1000000000ns", "too long"),
            ("-99999999999999999999s", "is negative"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
