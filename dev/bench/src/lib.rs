//! The subjects of the benchmarks, for the programs that time them and the one that counts
//! allocations.
#![allow(
    clippy::unused_async,
    reason = "bodies that do nothing: what is measured is what comes on top of them"
)]

use idem::{Error, idempotent};

/// The length of each key.
pub const KEY_BYTES: usize = 32;
/// The length of each result.
pub const RESULT_BYTES: usize = 200;

/// A result.
pub fn result() -> String {
    "x".repeat(RESULT_BYTES)
}

/// The body: hands out the result.
///
/// # Errors
///
/// None; the attribute wants a type that has room for some.
pub async fn plain(result: &str) -> Result<String, Error> {
    Ok(result.to_owned())
}

/// The same body under the attribute.
///
/// # Errors
///
/// Those of the attribute.
#[idempotent(name = "bench", key = key)]
pub async fn annotated(key: &str, result: &str) -> Result<String, Error> {
    plain(result).await
}

/// A body that does nothing.
///
/// # Errors
///
/// None; the attribute wants a type that has room for some.
pub async fn plain_nothing(number: u64) -> Result<u64, Error> {
    Ok(number)
}

/// The same body under the attribute.
///
/// # Errors
///
/// Those of the attribute.
#[idempotent(name = "bench", key = key)]
pub async fn annotated_nothing(key: &str, number: u64) -> Result<u64, Error> {
    plain_nothing(number).await
}

/// Keys that differ, each as long as the other, without an allocation for each.
#[derive(Debug, Clone)]
pub struct Keys([u8; KEY_BYTES]);

impl Keys {
    /// Those of one subject: no others begin with this number.
    pub fn new(subject: u16) -> Self {
        let mut text = [b'0'; KEY_BYTES];
        for (place, digit) in text.iter_mut().zip(format!("{subject:05}-").bytes()) {
            *place = digit;
        }
        Self(text)
    }

    /// The next one.
    pub fn advance(&mut self) -> &str {
        for digit in self.0.iter_mut().rev() {
            if *digit == b'9' {
                *digit = b'0';
            } else {
                *digit += 1;
                break;
            }
        }
        self.current()
    }

    /// The one that came last.
    pub fn current(&self) -> &str {
        // They are digits.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_are_of_one_length() {
        let mut keys = Keys::new(7);
        let some: Vec<String> = (0..101).map(|_| keys.advance().to_owned()).collect();
        assert!(
            some.iter()
                .all(|key| key.len() == KEY_BYTES && key.starts_with("00007-"))
        );
        assert!(some.is_sorted_by(|one, next| one < next));
        assert_eq!(some.last().map(String::as_str), Some(keys.current()));
    }
}
