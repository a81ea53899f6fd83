//! The key that a client sends.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use idem_core::adapter::NeverMissing;
use idem_core::{KeyPart, KeyWriter};

/// The longest key, in characters.
pub const MAX_KEY_LEN: usize = 255;

/// The value of an `Idempotency-Key` header: 1 to 255 visible ASCII characters.
///
/// The header has the key raw (`8e03978e-40d5`) or as the draft's quoted string
/// (`"8e03978e-40d5"`). Both forms are the same key. Parameters of a quoted string
/// (`"8e03978e-40d5";v=1`) are ignored. A key with a comma or a semicolon must be quoted: raw, they
/// could come from a proxy that joined two headers, or begin a parameter. With the feature `axum`
/// it is an extractor, also as `Option<IdempotencyKey>`.
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
    /// A comma or a semicolon outside of a quoted string.
    Separator,
    /// The header occurs more than once.
    Repeated,
    /// The text is empty, too long or no text, by the rules of the service: `KeyRules`.
    AgainstRules,
}

impl IdempotencyKey {
    /// Returns the key, without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the header's value that parses to this key. It is quoted if the raw form would be
    /// another key, or invalid.
    pub(crate) fn to_value(&self) -> Cow<'_, str> {
        if !self.0.starts_with('"') && !self.0.bytes().any(is_separator) {
            return Cow::Borrowed(&self.0);
        }
        let escaped = self.0.replace('\\', "\\\\").replace('"', "\\\"");
        Cow::Owned(format!("\"{escaped}\""))
    }

    /// Parses a header's value, raw or as a quoted string.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`], if the value is not 1 to 255 visible ASCII characters, or has a comma or a
    /// semicolon without being quoted.
    pub fn from_bytes(value: &[u8]) -> Result<Self, InvalidKey> {
        let key = Self::from_text(value)?;
        let is_separated = !value.starts_with(b"\"") && value.iter().copied().any(is_separator);
        if is_separated {
            Err(InvalidKey::Separator)
        } else {
            Ok(key)
        }
    }

    /// Parses a key that comes from a place where a comma or a semicolon separates nothing.
    pub(crate) fn from_text(value: &[u8]) -> Result<Self, InvalidKey> {
        let text = match value {
            [b'"', quoted @ ..] => item(quoted)?,
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
    /// [`InvalidKey`], if the header occurs twice, or as for [`from_bytes`](Self::from_bytes).
    pub fn from_headers(
        headers: &http::HeaderMap,
        name: &http::HeaderName,
    ) -> Result<Option<Self>, InvalidKey> {
        only_value(headers, name)?.map(Self::from_bytes).transpose()
    }
}

/// The value of a header that may occur once.
pub(crate) fn only_value<'a>(
    headers: &'a http::HeaderMap,
    name: &http::HeaderName,
) -> Result<Option<&'a [u8]>, InvalidKey> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        Err(InvalidKey::Repeated)
    } else {
        Ok(first.map(http::HeaderValue::as_bytes))
    }
}

/// A proxy joins two lines of one header by a comma; a semicolon begins a parameter.
fn is_separator(byte: u8) -> bool {
    matches!(byte, b',' | b';')
}

/// Reads the rest of an item of RFC 9651, after the first quote of its string.
fn item(rest: &[u8]) -> Result<Vec<u8>, InvalidKey> {
    let (text, mut rest) = string(rest)?;
    while let [b';', parameter @ ..] = rest {
        rest = after_parameter(parameter).ok_or(InvalidKey::Quotes)?;
    }
    if rest.is_empty() {
        Ok(text)
    } else {
        Err(InvalidKey::Quotes)
    }
}

/// Returns what follows a parameter. No standard defines such parameters.
fn after_parameter(parameter: &[u8]) -> Option<&[u8]> {
    let begin = parameter.iter().position(|byte| *byte != b' ')?;
    let (_, name) = parameter.split_at(begin);
    let in_name =
        |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(byte);
    if !matches!(name.first(), Some(b'a'..=b'z' | b'*')) {
        return None;
    }
    let (_, rest) = name.split_at(
        name.iter()
            .position(|byte| !in_name(byte))
            .unwrap_or(name.len()),
    );
    let [b'=', value @ ..] = rest else {
        return Some(rest);
    };
    if let [b'"', text @ ..] | [b'%', b'"', text @ ..] = value {
        return string(text).ok().map(|(_, rest)| rest);
    }
    // Numbers, tokens, dates, Booleans and bytes, whose syntax is not checked further.
    let in_value = |byte: &u8| byte.is_ascii_graphic() && !is_separator(*byte) && *byte != b'"';
    match value
        .iter()
        .position(|byte| !in_value(byte))
        .unwrap_or(value.len())
    {
        0 => None,
        end => Some(value.split_at(end).1),
    }
}

/// Reads the rest of a string, after its first quote; returns it and what follows its last one.
fn string(rest: &[u8]) -> Result<(Vec<u8>, &[u8]), InvalidKey> {
    let mut text = Vec::with_capacity(rest.len());
    let mut bytes = rest.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return Ok((text, bytes.as_slice())),
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
            Self::NotVisible => {
                "the idempotency key has a space, a control character or one outside of ASCII"
            }
            Self::Quotes => "the idempotency key is a quoted string that is not well-formed",
            Self::Separator => {
                "the idempotency key has a comma or a semicolon; send it in quotation marks"
            }
            Self::Repeated => "the header of the idempotency key occurs more than once",
            Self::AgainstRules => "the idempotency key is empty, too long, or no text",
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

#[diagnostic::do_not_recommend]
impl KeyPart for IdempotencyKey {
    fn write_to(&self, key: &mut KeyWriter<'_>) {
        key.text(&self.0);
    }
}

/// A key has at least one character.
impl NeverMissing for IdempotencyKey {}

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
    fn parameters_of_a_quoted_key_are_ignored_and_must_be_well_formed() {
        for parameters in [
            ";v=1",
            ";v",
            ";v;w",
            "; v=-1.5;  w=\"a\\\"b;,\";*x_-.*9=tok:en/1",
            ";a=?0;b=:aGk=:",
            ";d=@1659578233",
            ";s=%\"f%c3%bc\"",
        ] {
            assert_eq!(
                read(&format!("\"k\"{parameters}")).as_deref(),
                Ok("k"),
                "{parameters}"
            );
        }
        for parameters in [
            ";",
            ";V",
            ";1=1",
            ";v=",
            ";v= 1",
            ";v =1",
            ";v=1,",
            ";v=1,\"l\"",
            ";v=\"",
            ";v=a b",
            "v",
            ",\"l\"",
        ] {
            assert_eq!(
                read(&format!("\"k\"{parameters}")),
                Err(InvalidKey::Quotes),
                "{parameters}"
            );
        }
    }

    #[test]
    fn a_raw_key_with_a_comma_or_a_semicolon_is_refused_in_a_header_and_sent_in_quotes() {
        for key in ["a,b", "k;v=1", ",", ";"] {
            assert_eq!(read(key), Err(InvalidKey::Separator), "{key}");
            let quoted = read(&format!("\"{key}\"")).unwrap();
            assert_eq!(quoted, key);
            let key = IdempotencyKey::from_text(key.as_bytes()).unwrap();
            assert_eq!(
                (key.to_value().into_owned(), key.as_str()),
                (format!("\"{quoted}\""), &*quoted)
            );
        }
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
        assert_eq!(
            IdempotencyKey::from_headers(&headers, &name)
                .unwrap()
                .unwrap()
                .as_str(),
            "a"
        );
        headers.append(&name, "a".parse().unwrap());
        assert_eq!(
            IdempotencyKey::from_headers(&headers, &name),
            Err(InvalidKey::Repeated)
        );
    }
}
