//! Numbers of `serde_json` that come as text, because some crate of the program enables `arbitrary_precision`.
//!
//! They get the form that they have without that feature, so that the feature changes no fingerprint. A number that an `f64` would round keeps
//! all its digits instead: two such numbers are different payloads.

use serde::Serializer as _;

use super::canonical::{Canonical, tag};

/// The name of the struct as which `serde_json` writes such a number, and of its only field.
pub(super) const TOKEN: &str = "$serde_json::private::Number";

/// Replaces what was written from `start` on by the number whose text was written at `text`.
pub(super) fn rewrite(out: &mut Vec<u8>, start: usize, text: usize) {
    // A tag and a length are before the text itself.
    let digits = out.get(text + 9..).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default().to_owned();
    out.truncate(start);
    write(&digits, out);
}

fn write(text: &str, out: &mut Vec<u8>) {
    let out = Canonical { out };
    match Number::of(text) {
        Number::Natural(number) => out.integer(tag::NATURAL, number.into()),
        Number::Negative(number) => out.integer(tag::NEGATIVE, number.unsigned_abs().into()),
        // It cannot fail: only values' own implementations can.
        Number::Float(number) => drop(out.serialize_f64(number)),
        Number::Decimal(Some(decimal)) => out.sized(tag::DECIMAL, decimal.to_string().as_bytes()),
        Number::Decimal(None) => out.sized(tag::DECIMAL, text.as_bytes()),
    }
}

/// A number as `serde_json` reads it without the feature, if nothing of it gets lost.
#[derive(Debug, PartialEq)]
enum Number {
    Natural(u64),
    Negative(i64),
    Float(f64),
    Decimal(Option<Decimal>),
}

impl Number {
    fn of(text: &str) -> Self {
        if let Ok(number) = text.parse::<u64>() {
            return Self::Natural(number);
        }
        // `-0` is a float.
        if let Some(number) = text.parse::<i64>().ok().filter(|number| *number < 0) {
            return Self::Negative(number);
        }
        let exact = Decimal::of(text);
        match text.parse::<f64>() {
            // Rust writes the fewest digits by which the float can be told from its neighbours.
            Ok(float) if float.is_finite() && exact.is_some() && Decimal::of(&format!("{float:e}")) == exact => {
                Self::Float(float)
            }
            _ => Self::Decimal(exact),
        }
    }
}

/// A decimal number in lowest terms, so that equal numbers are equal: `digits` end with no zero and begin with none.
#[derive(Debug, PartialEq)]
struct Decimal {
    is_negative: bool,
    digits: String,
    exponent: i64,
}

impl Decimal {
    fn of(text: &str) -> Option<Self> {
        let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = [whole, fraction].concat();
        if all.is_empty() || !all.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = all.trim_end_matches('0');
        let dropped = i64::try_from(all.len() - digits.len()).ok()?;
        let exponent = exponent.parse::<i64>().ok()?;
        let exponent = exponent.checked_sub(i64::try_from(fraction.len()).ok()?)?.checked_add(dropped)?;
        let digits = digits.trim_start_matches('0').to_owned();
        Some(Self { is_negative, exponent: if digits.is_empty() { 0 } else { exponent }, digits })
    }
}

impl std::fmt::Display for Decimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}e{}", if self.is_negative { "-" } else { "" }, self.digits, self.exponent)
    }
}
