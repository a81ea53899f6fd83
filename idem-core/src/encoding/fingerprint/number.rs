//! Numbers of `serde_json` that come as text, because a crate of the program enables
//! `arbitrary_precision`.
//!
//! They get the form that they have without that feature, so that the feature changes no
//! fingerprint. A number that an `f64` would round keeps all its digits, because two such numbers
//! are different payloads.

/// `serde_json` writes such a number as a struct with this name, and one field with this name.
pub(super) const TOKEN: &str = "$serde_json::private::Number";

/// A number as `serde_json` reads it without the feature, if nothing is lost.
#[derive(Debug, PartialEq)]
pub(super) enum Number {
    Natural(u64),
    Negative(i64),
    Float(f64),
    Decimal(Option<Decimal>),
}

impl Number {
    pub(super) fn parse(text: &str) -> Self {
        if let Ok(number) = text.parse::<u64>() {
            return Self::Natural(number);
        }
        // `-0` is a float.
        if let Some(number) = text.parse::<i64>().ok().filter(|number| *number < 0) {
            return Self::Negative(number);
        }
        let exact = Decimal::parse(text);
        match text.parse::<f64>() {
            // Rust writes the fewest digits that distinguish the float from its neighbours.
            Ok(float)
                if float.is_finite()
                    && exact.is_some()
                    && Decimal::parse(&format!("{float:e}")) == exact =>
            {
                Self::Float(float)
            }
            _ => Self::Decimal(exact),
        }
    }
}

/// A decimal number in lowest terms, so that equal numbers are equal: `digits` neither begin nor
/// end with a zero.
#[derive(Debug, PartialEq)]
pub(super) struct Decimal {
    is_negative: bool,
    digits: String,
    exponent: i64,
}

impl Decimal {
    fn parse(text: &str) -> Option<Self> {
        let (is_negative, text) = text
            .strip_prefix('-')
            .map_or((false, text), |text| (true, text));
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = [whole, fraction].concat();
        if all.is_empty() || !all.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = all.trim_end_matches('0');
        let dropped = i64::try_from(all.len() - digits.len()).ok()?;
        let exponent = exponent.parse::<i64>().ok()?;
        let exponent = exponent
            .checked_sub(i64::try_from(fraction.len()).ok()?)?
            .checked_add(dropped)?;
        let digits = digits.trim_start_matches('0').to_owned();
        Some(Self {
            is_negative,
            exponent: if digits.is_empty() { 0 } else { exponent },
            digits,
        })
    }
}

impl std::fmt::Display for Decimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}{}e{}",
            if self.is_negative { "-" } else { "" },
            self.digits,
            self.exponent
        )
    }
}
