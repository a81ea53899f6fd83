//! Durations as the attribute reads them.

use std::time::Duration;

use proc_macro2::Span;
use syn::LitStr;

use crate::Input;

/// The attribute's own reading: private to a procedural macro, so it is taken from its source.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../idem-macros/src/duration.rs"]
mod parser;

const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// Eleven digits.
const LONGEST_NUMBER: u64 = 99_999_999_999;

/// The first byte says whether a text is read, or a duration is written in each unit.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    if input.byte() == 0 {
        written(&mut input);
    } else {
        foreign(&String::from_utf8_lossy(data));
    }
}

fn foreign(text: &str) {
    let read = parse(text);
    match &read {
        Ok(duration) => {
            assert!(
                !duration.is_zero() && *duration <= LONGEST,
                "{text:?} is {duration:?}"
            );
            assert_eq!(
                humantime::parse_duration(text).as_ref(),
                Ok(duration),
                "{text:?}"
            );
            assert_eq!(
                by_hand(text),
                Some(duration.as_nanos()),
                "{text:?} is {duration:?}"
            );
        }
        Err(message) => assert!(message.len() > 20, "{text:?}: {message}"),
    }
    // Whitespace around a text does not matter.
    assert_eq!(parse(&format!(" {text}\t")).ok(), read.ok(), "{text:?}");
}

fn written(input: &mut Input<'_>) {
    let mut text = String::new();
    let mut expected = Some(Duration::ZERO);
    for (unit, nanos) in UNITS {
        if !input.flag() {
            continue;
        }
        let number = input.number();
        text.extend([
            number.to_string().as_str(),
            unit,
            if input.flag() { " " } else { "" },
        ]);
        let part = u128::from(number) * nanos;
        let fits = number <= LONGEST_NUMBER && part <= LONGEST.as_nanos();
        expected = expected.filter(|_| fits).and_then(|sum| {
            sum.checked_add(Duration::new(
                u64::try_from(part / 1_000_000_000).ok()?,
                u32::try_from(part % 1_000_000_000).ok()?,
            ))
        });
    }
    let expected = expected.filter(|sum| !sum.is_zero() && *sum <= LONGEST);
    assert_eq!(parse(&text).ok(), expected, "{text:?}");
}

/// The sum of numbers with units in nanoseconds; `None` where a number has no unit, or one that has
/// no fixed length.
fn by_hand(text: &str) -> Option<u128> {
    let mut compact = text.chars().filter(|c| !c.is_whitespace()).peekable();
    let mut sum = 0;
    while compact.peek().is_some() {
        let number: String =
            std::iter::from_fn(|| compact.next_if(|c| c.is_ascii_digit() || *c == '.')).collect();
        let unit: String = std::iter::from_fn(|| compact.next_if(|c| c.is_alphabetic())).collect();
        let nanos = unit_nanos(&unit)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((&number, "0"));
        let digits = u32::try_from(fraction.len()).ok()?;
        sum += whole.parse::<u128>().ok()? * nanos;
        sum += fraction.parse::<u128>().ok()? * nanos / 10_u128.checked_pow(digits)?;
    }
    Some(sum)
}

fn unit_nanos(unit: &str) -> Option<u128> {
    let (_, name) = [
        (&["ns", "nsec", "nanos"][..], "ns"),
        (&["us", "usec", "µs"], "us"),
        (&["ms", "msec", "millis"], "ms"),
        (&["s", "sec", "secs", "second", "seconds"], "s"),
        (&["m", "min", "mins", "minute", "minutes"], "m"),
        (&["h", "hr", "hrs", "hour", "hours"], "h"),
        (&["d", "day", "days"], "d"),
        (&["w", "wk", "wks", "week", "weeks"], "w"),
    ]
    .into_iter()
    .find(|(names, _)| names.contains(&unit))?;
    UNITS
        .iter()
        .find(|(unit, _)| *unit == name)
        .map(|(_, nanos)| *nanos)
}

const SECOND: u128 = 1_000_000_000;

const UNITS: [(&str, u128); 8] = [
    ("w", 7 * 86_400 * SECOND),
    ("d", 86_400 * SECOND),
    ("h", 3_600 * SECOND),
    ("m", 60 * SECOND),
    ("s", SECOND),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

fn parse(text: &str) -> Result<Duration, String> {
    parser::parse(&LitStr::new(text, Span::call_site())).map_err(|error| error.to_string())
}
