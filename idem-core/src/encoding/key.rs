//! The key of one logical call, its parts, and their unambiguous encoding.
//!
//! A key is text that a person can read in the store: its parts, joined by `:`. Whatever could be
//! taken for structure inside a part is percent-encoded, so `("a", "bc")` is `a:bc`, `("ab", "c")`
//! is `ab:c` and `("a:bc",)` is `a%3Abc`. A nested group is put in parentheses. A key longer than
//! [`MAX_KEY_LEN`] bytes becomes `~` and its BLAKE3 digest.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::num::{
    NonZeroI8, NonZeroI16, NonZeroI32, NonZeroI64, NonZeroI128, NonZeroIsize, NonZeroU8,
    NonZeroU16, NonZeroU32, NonZeroU64, NonZeroU128, NonZeroUsize,
};
use std::rc::Rc;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as URL_SAFE_NO_PAD;

/// The longest key, in bytes of its encoded form, that is stored as it is. A longer one is stored
/// as a digest.
pub const MAX_KEY_LEN: usize = 256;

/// The length of a digest that stands for a long key: `~` and 43 characters.
pub(crate) const DIGEST_LEN: usize = 44;

/// A value that can be a key, or a part of one.
///
/// Implemented for strings, characters, integers, `bool`, [`Uuid`](uuid::Uuid), references, `Box`,
/// `Rc`, `Arc`, `Cow`, `Option` (`None` makes the key missing) and tuples of up to eight parts.
/// `#[derive(KeyPart)]` implements it for newtypes, structs and enums. Floats are left out on
/// purpose: two sums that should be the same number often are not the same float.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use idem::{KeyPart, KeyWriter};
///
/// struct OrderId { shop: u32, number: u64 }
///
/// impl KeyPart for OrderId {
///     fn write_to(&self, key: &mut KeyWriter<'_>) {
///         key.group(|key| {
///             self.shop.write_to(key);
///             self.number.write_to(key);
///         });
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be part of an idempotency key",
    label = "not a key part",
    note = "key parts are strings, integers, `bool`, `char`, `Uuid`, references to them, `Option`s \
        and tuples of them",
    note = "for a type of your own, `#[derive(idem::KeyPart)]` on a newtype, struct or enum makes \
        it one; a float is never one: use a count of the smallest unit, such as cents, or a text"
)]
pub trait KeyPart {
    /// Writes this value as one part, or as several. A value that writes nothing, or only an empty
    /// text, makes the whole key missing.
    fn write_to(&self, key: &mut KeyWriter<'_>);
}

/// The target that a [`KeyPart`] writes itself to.
pub struct KeyWriter<'a> {
    text: &'a mut String,
    missing: &'a mut bool,
    /// Nothing written in this group yet.
    first: bool,
    /// Nothing is written, and no group is open: a tuple here needs no parentheses, as in
    /// `tenant:order`.
    outermost: bool,
}

impl<'a> KeyWriter<'a> {
    /// Writes behind parts that are there already.
    pub(crate) fn behind(text: &'a mut String, missing: &'a mut bool) -> Self {
        Self {
            text,
            missing,
            first: false,
            outermost: false,
        }
    }

    /// Writes one part. An empty text makes the key missing.
    pub fn text(&mut self, part: &str) {
        if part.is_empty() {
            return self.missing();
        }
        self.separate();
        escape_into(self.text, part);
    }

    /// Writes one part, formatted by its `Display`. An empty text makes the key missing.
    pub fn display(&mut self, part: impl fmt::Display) {
        self.separate();
        let before = self.text.len();
        // Writing to a `String` fails only if the value's own `Display` does.
        let written = write!(Escaping(self.text), "{part}");
        if written.is_err() || self.text.len() == before {
            *self.missing = true;
        }
    }

    /// Marks this part as having no value, so that the whole key is missing.
    pub fn missing(&mut self) {
        *self.missing = true;
    }

    /// Writes several parts as one, in parentheses, so that they stay distinct from their
    /// neighbours.
    pub fn group(&mut self, parts: impl FnOnce(&mut KeyWriter<'_>)) {
        self.separate();
        self.text.push('(');
        let before = self.text.len();
        parts(&mut KeyWriter {
            text: &mut *self.text,
            missing: &mut *self.missing,
            first: true,
            outermost: false,
        });
        if self.text.len() == before {
            *self.missing = true;
        }
        self.text.push(')');
    }

    /// Writes the parts of a tuple, as a group unless the tuple is the whole key.
    fn tuple(&mut self, parts: impl FnOnce(&mut KeyWriter<'_>)) {
        if self.outermost {
            self.outermost = false;
            parts(self);
        } else {
            self.group(parts);
        }
    }

    /// Writes a part of a tuple. The part is missing if it writes nothing.
    pub(crate) fn part(&mut self, part: &impl KeyPart) {
        let before = self.text.len();
        part.write_to(self);
        if self.text.len() == before {
            self.missing();
        }
    }

    fn separate(&mut self) {
        if !self.first {
            self.text.push(':');
        }
        self.first = false;
        self.outermost = false;
    }
}

impl fmt::Debug for KeyWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyWriter").finish_non_exhaustive()
    }
}

/// A key in its encoded form, never empty.
///
/// Its `Debug` shows a digest, because keys may be personal data; [`as_str`](Self::as_str) is the
/// text itself.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Box<str>);

impl Key {
    /// Encodes a value as a key; `None` if a part of it is missing.
    pub fn encode<K: KeyPart + ?Sized>(value: &K) -> Option<Self> {
        let mut text = String::new();
        write_after(&mut text, value).then(|| Self(text.into_boxed_str()))
    }

    /// Reads a key in its encoded form, as stores keep it and listings show it. `None` if it has
    /// characters that no encoded key has, or is too long. It does not check whether parentheses
    /// are closed.
    ///
    /// ```
    /// # use idem_core as idem;
    /// use idem::Key;
    ///
    /// assert_eq!(Key::from_encoded("shop:o-1"), Key::encode(&("shop", "o-1")));
    /// assert_eq!(Key::from_encoded("o 1"), None);
    /// ```
    pub fn from_encoded(text: &str) -> Option<Self> {
        let valid = (1..=MAX_KEY_LEN).contains(&text.len()) && is_encoded(text);
        valid.then(|| Self(text.into()))
    }

    /// Returns whether the text is or begins with a digest, because the key was too long or belongs
    /// to a token. The key is not computable from its digest.
    pub fn is_digest(&self) -> bool {
        self.0.starts_with('~')
    }

    /// Returns the first part as it was before it was encoded, or the whole key if it has one part.
    /// If the first part is a group, such as a tuple, that is the first part of the group. `None`
    /// if the text [is a digest](Self::is_digest).
    ///
    /// ```
    /// # use idem_core as idem;
    /// use idem::Key;
    ///
    /// let key = Key::encode(&("user 7", "o-1")).expect("no part is missing");
    /// assert_eq!(key.as_str(), "user%207:o-1");
    /// assert_eq!(key.first_part().as_deref(), Some("user 7"));
    /// ```
    pub fn first_part(&self) -> Option<Cow<'_, str>> {
        decoded_first_part(&self.0)
    }

    /// Returns the encoded text, without spaces, braces or control characters.
    ///
    /// Other characters are kept as they are, including format characters such as U+202E (which
    /// reverses the text after it) and U+200B (which is invisible). Escape them before you print a
    /// key that a client has chosen; the runtime's own events do.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns the first part of an encoded key without groups before it, as it is encoded.
pub(crate) fn first_part(encoded: &str) -> &str {
    encoded.split([':', ')']).next().unwrap_or_default()
}

/// Returns the first part of an encoded key, decoded: see [`Key::first_part`].
pub(crate) fn decoded_first_part(encoded: &str) -> Option<Cow<'_, str>> {
    let part = first_part(encoded.trim_start_matches('('));
    if part.is_empty() || part.starts_with('~') {
        return None;
    }
    if !part.contains('%') {
        return Some(Cow::Borrowed(part));
    }
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let hex = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(hex, 16).ok()?);
        rest = rest.get(2..)?;
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Encodes a text as a part of a key, or as the beginning of one.
pub(crate) fn escape(part: &str) -> String {
    let mut text = String::with_capacity(part.len());
    escape_into(&mut text, part);
    text
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

/// Whether a part of an encoded key is a digest: of a long key, of a token, or of the many parts of
/// a step's name.
fn is_digest(part: &str) -> bool {
    part.bytes().skip(1).all(is_base64)
        && match part.strip_prefix('~') {
            Some(token) if token.starts_with('t') && part.len() == 2 + 22 => true,
            Some(_) => part.len() == DIGEST_LEN,
            None => false,
        }
}

/// Whether every character may be in an encoded key.
fn is_encoded(text: &str) -> bool {
    text.split(':')
        .all(|part| is_digest(part) || is_encoded_part(part))
}

fn is_encoded_part(text: &str) -> bool {
    let is_hex =
        |byte: Option<&u8>| byte.is_some_and(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F'));
    let bytes = text.as_bytes();
    text.char_indices().all(|(at, c)| match c {
        '%' => is_hex(bytes.get(at + 1)) && is_hex(bytes.get(at + 2)),
        '{' | '}' | '~' | '"' | '\\' => false,
        c => !c.is_control() && !c.is_whitespace(),
    }) && !text.is_empty()
}

/// Appends a key to `text`. Returns whether it is complete: `false` if a part is missing.
pub(crate) fn write_after<K: KeyPart + ?Sized>(text: &mut String, value: &K) -> bool {
    let start = text.len();
    let mut missing = false;
    value.write_to(&mut KeyWriter {
        text,
        missing: &mut missing,
        first: true,
        outermost: true,
    });
    let key = text.get(start..).unwrap_or_default();
    if missing || key.is_empty() {
        return false;
    }
    if key.len() > MAX_KEY_LEN {
        digest_after(text, start);
    }
    true
}

/// Replaces the key from `start` on by its digest.
pub(crate) fn digest_after(text: &mut String, start: usize) {
    let digest = blake3::hash(text.get(start..).unwrap_or_default().as_bytes());
    text.truncate(start);
    text.push('~');
    URL_SAFE_NO_PAD.encode_string(digest.as_bytes(), text);
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", KeyDigest::hash(&self.0))
    }
}

/// A short digest of an operation and a key, for logs and errors: keys may be personal data.
///
/// 64 bits of BLAKE3, as 16 hexadecimal digits. It serves to recognise a key. It does not hide the
/// key from an attacker who can try all possible keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyDigest([u8; 8]);

impl KeyDigest {
    /// Reads a digest as logs show it: 16 hexadecimal digits.
    ///
    /// ```
    /// # use idem_core as idem;
    /// use idem::KeyDigest;
    ///
    /// assert_eq!(
    ///     KeyDigest::parse("5fd2c1a4b3e60789")
    ///         .map(|digest| digest.to_string())
    ///         .as_deref(),
    ///     Some("5fd2c1a4b3e60789")
    /// );
    /// assert_eq!(KeyDigest::parse("o-1"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        let valid = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = valid
            .then(|| u64::from_str_radix(text, 16).ok())
            .flatten()?;
        Some(Self(number.to_be_bytes()))
    }

    /// The digest of `operation:key`.
    pub(crate) fn hash(id: &str) -> Self {
        let mut digest = [0; 8];
        blake3::Hasher::new()
            .update(id.as_bytes())
            .finalize_xof()
            .fill(&mut digest);
        Self(digest)
    }
}

impl fmt::Display for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A `fmt::Write` that escapes what passes through it.
struct Escaping<'a>(&'a mut String);

impl fmt::Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escape_into(self.0, text);
        Ok(())
    }
}

fn escape_into(out: &mut String, part: &str) {
    // The characters of most keys. The test has no branch for each byte, so the processor checks
    // many bytes at a time.
    #[allow(clippy::needless_bitwise_bool)]
    let is_plain = |byte: u8| {
        let letter = (byte | 0x20).wrapping_sub(b'a') < 26;
        let digit = byte.wrapping_sub(b'0') < 10;
        letter
            | digit
            | (byte == b'-')
            | (byte == b'_')
            | (byte == b'.')
            | (byte == b'@')
            | (byte == b'/')
    };
    if part.bytes().fold(true, |all, byte| all & is_plain(byte)) {
        return out.push_str(part);
    }
    let structural = |c: char| {
        c.is_control()
            || c.is_whitespace()
            || matches!(c, '%' | ':' | '(' | ')' | '{' | '}' | '~' | '"' | '\\')
    };
    let mut rest = part;
    while let Some(at) = rest.find(structural) {
        out.push_str(&rest[..at]);
        let width = rest[at..].chars().next().map_or(1, char::len_utf8);
        for byte in rest[at..at + width].bytes() {
            // Writing to a `String` cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
        rest = &rest[at + width..];
    }
    out.push_str(rest);
}

/// A key part that always has a value.
pub trait NeverMissing {}

/// A key part whose value can be missing, so that it must be said what then.
#[diagnostic::on_unimplemented(
    message = "a key of type `{Self}` cannot be missing, so `missing_key` says nothing",
    label = "leave this out",
    note = "a key can be missing where a part of it is an `Option` or a text, which may be empty"
)]
pub trait CanBeMissing {}

/// A key, to be asked whether it can be missing.
#[derive(Debug)]
pub struct KeyOf<'a, K: ?Sized>(pub &'a K);

impl<'a, K: NeverMissing + ?Sized> KeyOf<'a, K> {
    /// The key, which cannot: nothing is `CanBeMissing`, so this is an error. It is found before
    /// [`PerhapsMissing`]'s method of the same name.
    pub fn can_be_missing(self) -> &'a K
    where
        K: CanBeMissing,
    {
        self.0
    }
}

/// Every other key.
pub trait PerhapsMissing<'a> {
    /// The type of the key.
    type Key: ?Sized;

    /// The key, which can.
    fn can_be_missing(self) -> &'a Self::Key;
}

impl<'a, K: ?Sized> PerhapsMissing<'a> for KeyOf<'a, K> {
    type Key = K;

    fn can_be_missing(self) -> &'a K {
        self.0
    }
}

#[diagnostic::do_not_recommend]
impl KeyPart for str {
    fn write_to(&self, key: &mut KeyWriter<'_>) {
        key.text(self);
    }
}

#[diagnostic::do_not_recommend]
impl KeyPart for String {
    fn write_to(&self, key: &mut KeyWriter<'_>) {
        key.text(self);
    }
}

#[diagnostic::do_not_recommend]
impl KeyPart for Cow<'_, str> {
    fn write_to(&self, key: &mut KeyWriter<'_>) {
        key.text(self);
    }
}

// Messages that suggest this implementation then name the `T` that cannot be a part of a key.
impl<T: KeyPart> KeyPart for Option<T> {
    fn write_to(&self, key: &mut KeyWriter<'_>) {
        match self {
            Some(part) => part.write_to(key),
            None => key.missing(),
        }
    }
}

macro_rules! by_display {
    ($($type:ty),* $(,)?) => {$(
        #[diagnostic::do_not_recommend]
        impl KeyPart for $type {
            fn write_to(&self, key: &mut KeyWriter<'_>) {
                key.display(self);
            }
        }

        impl NeverMissing for $type {}
    )*};
}

by_display! {
    bool, char, u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize,
    NonZeroU8, NonZeroU16, NonZeroU32, NonZeroU64, NonZeroU128, NonZeroUsize,
    NonZeroI8, NonZeroI16, NonZeroI32, NonZeroI64, NonZeroI128, NonZeroIsize,
    uuid::Uuid,
}

macro_rules! by_reference {
    ($($type:ty),* $(,)?) => {$(
        #[diagnostic::do_not_recommend]
        impl<T: KeyPart + ?Sized> KeyPart for $type {
            fn write_to(&self, key: &mut KeyWriter<'_>) {
                (**self).write_to(key);
            }
        }

        impl<T: NeverMissing + ?Sized> NeverMissing for $type {}
    )*};
}

by_reference!(&T, &mut T, Box<T>, Rc<T>, Arc<T>);

macro_rules! tuples {
    ($(($($part:ident)+))*) => {$(
        #[diagnostic::do_not_recommend]
        impl<$($part: KeyPart),+> KeyPart for ($($part,)+) {
            #[allow(non_snake_case)]
            fn write_to(&self, key: &mut KeyWriter<'_>) {
                let ($($part,)+) = self;
                key.tuple(|key| { $(key.part($part);)+ });
            }
        }

        impl<$($part: NeverMissing),+> NeverMissing for ($($part,)+) {}
    )*};
}

tuples! { (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H) }

#[cfg(test)]
mod tests;
