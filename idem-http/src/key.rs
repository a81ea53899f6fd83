//! The key that a client sends.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use idem_core::{KeyPart, KeyWriter};

/// The longest key, in characters.
pub const MAX_KEY_LEN: usize = 255;

/// The value of an `Idempotency-Key` header: 1 to 255 visible ASCII characters.
///
/// The header has the key raw (`8e03978e-40d5`) or as the draft's quoted string
/// (`"8e03978e-40d5"`). Both forms are the same key. With the feature `axum` it is an extractor,
/// also as `Option<IdempotencyKey>`.
///
/// Clients choose their keys. Add the user to it, as in `key = (user.id, key)`: one user must never
/// get another user's answer.
///
/// # Examples
///
/// ```
/// use idem_http::IdempotencyKey;
///
/// let raw: IdempotencyKey = "8e03978e-40d5".parse()?;
/// let quoted: IdempotencyKey = "\"8e03978e-40d5\"".parse()?;
/// assert_eq!(raw, quoted);
/// assert!("".parse::<IdempotencyKey>().is_err());
/// # Ok::<_, idem_http::InvalidKey>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct IdempotencyKey(String);

/// The reason why a text is not an idempotency key. Its message does not quote the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidKey {
    /// The text is empty.
    Empty,
    /// The text has more than 255 characters.
    TooLong,
    /// The text has a space, a control character, or one outside of ASCII.
    NotVisible,
    /// A malformed quoted string, or a key to send that begins with a quotation mark.
    Quotes,
    /// The header occurs more than once.
    Repeated,
}

impl IdempotencyKey {
    /// Returns the key, without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value that parses to this key. A key that begins with a quotation mark is quoted: raw, it
    /// would be another key, or none.
    pub(crate) fn to_value(&self) -> Cow<'_, str> {
        if !self.0.starts_with('"') {
            return Cow::Borrowed(&self.0);
        }
        let escaped = self.0.replace('\\', "\\\\").replace('"', "\\\"");
        Cow::Owned(format!("\"{escaped}\""))
    }

    /// Parses a header's value, raw or as a quoted string.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`], if the value is not 1 to 255 visible ASCII characters.
    pub fn from_bytes(value: &[u8]) -> Result<Self, InvalidKey> {
        let text = match value {
            [b'"', quoted @ ..] => unquoted(quoted)?,
            raw => raw.to_vec(),
        };
        if text.is_empty() {
            return Err(InvalidKey::Empty);
        }
        if text.len() > MAX_KEY_LEN {
            return Err(InvalidKey::TooLong);
        }
        match String::from_utf8(text) {
            Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(Self(text)),
            _ => Err(InvalidKey::NotVisible),
        }
    }

    /// Parses the header of this name; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`], if the header occurs twice, or its value is not 1 to 255 visible ASCII
    /// characters.
    pub fn from_headers(headers: &http::HeaderMap, name: &http::HeaderName) -> Result<Option<Self>, InvalidKey> {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => Self::from_bytes(value.as_bytes()).map(Some),
            (Some(_), Some(_)) => Err(InvalidKey::Repeated),
        }
    }
}

/// Reads the rest of a string of RFC 8941, after its first quote.
fn unquoted(rest: &[u8]) -> Result<Vec<u8>, InvalidKey> {
    let mut text = Vec::with_capacity(rest.len());
    let mut bytes = rest.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' if bytes.as_slice().is_empty() => return Ok(text),
            b'"' => return Err(InvalidKey::Quotes),
            b'\\' => match bytes.next() {
                Some(escaped @ (b'"' | b'\\')) => text.push(*escaped),
                _ => return Err(InvalidKey::Quotes),
            },
            byte => text.push(*byte),
        }
    }
    Err(InvalidKey::Quotes)
}

impl fmt::Display for InvalidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the idempotency key is empty; send 1 to 255 visible ASCII characters",
            Self::TooLong => "the idempotency key is longer than 255 characters",
            Self::NotVisible => "the idempotency key has a space, a control character or one outside of ASCII",
            Self::Quotes => "the idempotency key is a quoted string that is not well-formed",
            Self::Repeated => "the header of the idempotency key occurs more than once",
        })
    }
}

impl std::error::Error for InvalidKey {}

impl FromStr for IdempotencyKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        Self::from_bytes(text.as_bytes())
    }
}

impl TryFrom<String> for IdempotencyKey {
    type Error = InvalidKey;

    fn try_from(text: String) -> Result<Self, InvalidKey> {
        text.parse()
    }
}

impl From<IdempotencyKey> for String {
    fn from(key: IdempotencyKey) -> Self {
        key.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for IdempotencyKey {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// As a header's value, so that it is read back as the same key.
impl serde::Serialize for IdempotencyKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_value())
    }
}

impl KeyPart for IdempotencyKey {
    fn write_to(&self, key: &mut KeyWriter<'_>) {
        key.text(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> Result<String, InvalidKey> {
        IdempotencyKey::from_bytes(value.as_bytes()).map(Into::into)
    }

    #[test]
    fn raw_and_quoted_forms_are_the_same_key() {
        assert_eq!(read("a-1").unwrap(), "a-1");
        assert_eq!(read(r#""a-1""#).unwrap(), "a-1");
        assert_eq!(read(r#""a\"b\\c""#).unwrap(), r#"a"b\c"#);
        assert_eq!(read(r#"a"b"#).unwrap(), r#"a"b"#);
    }

    #[test]
    fn a_key_is_read_back_as_it_was_written_even_if_it_has_quotation_marks() {
        for (value, written) in [
            ("a-1", r#""a-1""#),
            (r#"a"b"#, r#""a\"b""#),
            // The keys `"a"` and `"a\`, which are not the key `a`.
            (r#""\"a\"""#, r#""\"\\\"a\\\"\"""#),
            (r#""\"a\\""#, r#""\"\\\"a\\\\\"""#),
        ] {
            let key: IdempotencyKey = value.parse().unwrap();
            let json = serde_json::to_string(&key).unwrap();
            assert_eq!(json, written);
            assert_eq!(serde_json::from_str::<IdempotencyKey>(&json).unwrap(), key);
        }
    }

    #[test]
    fn what_is_not_1_to_255_visible_characters_is_refused() {
        assert_eq!(read(""), Err(InvalidKey::Empty));
        assert_eq!(read(r#""""#), Err(InvalidKey::Empty));
        assert_eq!(read(&"x".repeat(256)), Err(InvalidKey::TooLong));
        assert!(read(&"x".repeat(255)).is_ok());
        for value in ["a b", "a\tb", "a\u{7f}", "ä", "a\u{202e}b"] {
            assert_eq!(read(value), Err(InvalidKey::NotVisible), "{value:?}");
        }
        for value in [r#"""#, r#""a"#, r#""a"b"#, r#""a\"#, r#""a\n""#] {
            assert_eq!(read(value), Err(InvalidKey::Quotes), "{value:?}");
        }
    }

    #[test]
    fn a_repeated_header_is_refused() {
        let name = http::HeaderName::from_static("idempotency-key");
        let mut headers = http::HeaderMap::new();
        assert_eq!(IdempotencyKey::from_headers(&headers, &name), Ok(None));
        headers.append(&name, "a".parse().unwrap());
        assert_eq!(IdempotencyKey::from_headers(&headers, &name).unwrap().unwrap().as_str(), "a");
        headers.append(&name, "a".parse().unwrap());
        assert_eq!(IdempotencyKey::from_headers(&headers, &name), Err(InvalidKey::Repeated));
    }
}
