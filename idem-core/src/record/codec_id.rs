//! The names of codecs.

use std::fmt;

/// The name of a codec, stored in each record: 1 to 8 lower-case letters and digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CodecId {
    text: [u8; 8],
    len: u8,
}

impl CodecId {
    /// JSON.
    pub const JSON: Self = Self::constant(*b"j\0\0\0\0\0\0\0", 1);

    /// A valid name, padded with zeros, and its length.
    pub(crate) const fn constant(text: [u8; 8], len: u8) -> Self {
        Self { text, len }
    }

    /// Parses a name; `None` unless it is 1 to 8 lower-case letters and digits.
    pub fn parse(name: &[u8]) -> Option<Self> {
        let valid = name
            .iter()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        let len = u8::try_from(name.len())
            .ok()
            .filter(|len| valid && (1..=8).contains(len))?;
        let mut text = [0; 8];
        text.get_mut(..name.len())?.copy_from_slice(name);
        Some(Self { text, len })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        self.text
            .get(..self.len.into())
            .and_then(|text| std::str::from_utf8(text).ok())
            .unwrap_or_default()
    }
}

impl fmt::Display for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
