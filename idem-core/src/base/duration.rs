//! Durations as builders take them: a `Duration`, or a text such as "30s".

use std::time::Duration;

use humantime::DurationError;

/// A longer time is refused, because its unit is probably wrong.
pub(crate) const MAX_LENGTH: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Rounds up to milliseconds, in which stores count. Nothing is kept for less time than was asked.
pub(crate) fn whole_millis(length: Duration) -> Duration {
    let rounded = length.as_nanos().div_ceil(1_000_000);
    u64::try_from(rounded).map_or(Duration::MAX, Duration::from_millis)
}

/// Returns how long a kept error is kept, within what a store can count, and at least 1 ms.
pub(crate) fn keep_for(ttl: Duration) -> Duration {
    whole_millis(ttl).clamp(Duration::from_millis(1), MAX_LENGTH)
}

/// A duration: a [`Duration`], or a text such as `"500ms"`, `"30s"`, `"1h 30m"` or `"7d"`.
///
/// Units are `ms`, `s`, `m`, `h` and `d`, their long names, and shorter ones down to `ns`. Months
/// and years have no fixed length, and are refused. An invalid text is
/// [`Error::Config`](crate::Error::Config) at the call, with a message that says what is wrong.
///
/// No other type can implement this trait.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # use idem::{Error, Idempotency, MemoryStore};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let idempotency = Idempotency::new(MemoryStore::new());
/// let lock = || idempotency.lock("disks.compact").key("sda");
///
/// assert!(lock().lease("1m 30s").acquire().await.is_ok());
/// assert!(lock().lease(Duration::from_secs(90)).acquire().await.is_ok());
/// assert!(matches!(lock().lease("90").acquire().await, Err(Error::Config { .. })));
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a duration",
    label = "write for example \"30s\", or a `Duration`"
)]
pub trait IntoDuration: sealed::Sealed {
    #[doc(hidden)]
    fn into_duration(self) -> Result<Duration, String>;
}

mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for Duration {}
impl IntoDuration for Duration {
    fn into_duration(self) -> Result<Duration, String> {
        Ok(self)
    }
}

impl sealed::Sealed for &str {}
impl IntoDuration for &str {
    fn into_duration(self) -> Result<Duration, String> {
        parse(self)
    }
}

impl sealed::Sealed for &String {}
impl IntoDuration for &String {
    fn into_duration(self) -> Result<Duration, String> {
        parse(self)
    }
}

impl sealed::Sealed for String {}
impl IntoDuration for String {
    fn into_duration(self) -> Result<Duration, String> {
        parse(&self)
    }
}

/// The most digits of a number. They suffice for three years in milliseconds, and a sum of such
/// numbers fits a `u64` in any unit.
const LONGEST_NUMBER: usize = 11;

/// Reads a duration as the attribute does (`idem-macros/src/duration.rs`), but takes a zero, which
/// some settings allow.
fn parse(text: &str) -> Result<Duration, String> {
    let longest = text
        .split(|c: char| !c.is_ascii_digit())
        .map(str::len)
        .max();
    let parsed = if longest > Some(LONGEST_NUMBER) {
        // humantime 2.4 panics at a sum of `u64::MAX` seconds and a thousand million nanoseconds.
        Err(DurationError::NumberOverflow)
    } else {
        humantime::parse_duration(text)
    };
    let duration = parsed.map_err(|error| explain(text.trim(), &error))?;
    // `M` is a month to the parser, and `m` a minute: a slip that is easy to miss.
    months_or_years(text).map_or(Ok(duration), Err)
}

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
    format!("{wrong}: write for example \"500ms\", \"30s\", \"5m\", \"1h 30m\" or \"7d\"")
}

fn months_or_years(text: &str) -> Option<String> {
    let mut units = text.split(|c: char| !c.is_alphabetic());
    let unit = units.find(|unit| {
        let lower = unit.to_lowercase();
        *unit == "M" || lower.starts_with("mo") || lower.starts_with('y')
    })?;
    Some(format!(
        "`{unit}` has no fixed length: write days, for example \"30d\", or \"1m\" for a minute"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_as_the_attribute_reads_them() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h 30m", 5_400_000),
            ("7d", 604_800_000),
            ("0s", 0),
        ] {
            let read = Ok(Duration::from_millis(millis));
            assert_eq!(text.into_duration(), read, "{text}");
            assert_eq!(text.to_owned().into_duration(), read, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_text_is_said_in_plain_words() {
        for (text, words) in [
            ("", "a duration is missing here: write for example"),
            ("300", "`300` needs a unit: write for example"),
            ("-5s", "`-5s` is negative"),
            ("5 minuts", "`minuts` is not a unit of time"),
            ("soon", "`soon` is not a duration: write for example"),
            ("99999999999999999999s", "too long"),
            ("18446744073709551615s 1000000000ns", "too long"),
            ("1M", "`M` has no fixed length"),
            ("2 years", "`years` has no fixed length"),
        ] {
            let error = text.into_duration().expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
