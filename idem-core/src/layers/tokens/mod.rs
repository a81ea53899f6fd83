//! One-time tokens: a server issues one with a form (`issue.rs`), and the submission sends it back.
//!
//! A token is 27 bytes, in base64url 36 characters:
//!
//! | bytes | |
//! | --- | --- |
//! | 16 | random, from the operating system |
//! | 4 | its `ttl`, in seconds |
//! | 3 | a tag: part of a digest of the bytes before, the operation and the subject |
//! | 4 | a check: part of a digest of the 23 bytes before |
//!
//! The record's key is another part of the first digest. So:
//!
//! - Reaching the record takes all 128 random bits and the subject: with another bit or another
//!   subject, the digest is the key of no record. The record holds nothing of the token. A reader
//!   of the store, or of keys in logs, has nothing to submit.
//! - Timing reveals nothing about other tokens. See below.
//! - Check and tag protect nothing. They give the events a reason, and spare the store malformed
//!   tokens: a text that `idem` never made (forged, or cut short on its way), and another subject's
//!   token.
//! - The `ttl` keeps every record of the token at least as long as the token itself. So a late
//!   duplicate of a used token is recognised, and a released token can be used again. The `ttl` is
//!   part of the digest.
//!
//! # Timing
//!
//! Every place where bytes of a token, or bytes that follow from one, are compared:
//!
//! | comparison | constant time | what its timing tells |
//! | --- | --- | --- |
//! | text to bytes, length, `ttl` | no | how far the sender's own text is well-formed |
//! | check | no | part of a digest without a secret, of bytes that the sender knows |
//! | tag | no | part of a digest of the sender's own bytes, the operation, and the sender's own subject |
//! | record's id, in the store, in flights, in the local cache | no | see below |
//! | `Token == Token` | yes | nothing; `idem` itself never does it |
//!
//! - A wrong tag is answered without the store, so a right one takes a round trip longer. With some
//!   2^24 tries a sender can find the tag that fits their own subject, and then test guesses of how
//!   the server names them. So a subject must not be a secret from the one whom it names.
//!   `limit_token_failures` bounds the tries.
//! - An id is a digest of 128 bits. A sender who searches for tokens whose ids share a prefix with
//!   an existing one learns bits of that id. An id leads to no token: that is a preimage of BLAKE3,
//!   over 128 random bits that the sender does not know.
//! - Unknown, expired and used tokens take the same round trip. A sender gets to a used token's
//!   branch only with the token and its subject.

mod issue;
mod submission;
#[cfg(test)]
mod tests;
mod throttle;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::adapter::engine::{MAX_LENGTH, write_after};
use crate::record::RecordId;
use crate::{KeyDigest, KeyPart};

/// A one-time token: [`Operation::issue`](crate::Operation::issue) makes it for a form, and the
/// submission sends it back.
///
/// It holds 128 random bits from the operating system, and is valid only for one operation and one
/// subject. `Display` and serde write it whole, as 36 characters that need no escaping in HTML and
/// URLs (letters, digits, `-` and `_`). `Debug` shows the first four, so that it does not get into
/// logs by accident. The token and the subject's session together allow a submission.
///
/// Two are compared in constant time.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # use std::time::Duration;
/// # use idem::{Error, Idempotency, MemoryStore, Token};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// let idempotency = Idempotency::new(MemoryStore::new());
/// let token = idempotency
///     .operation("orders.submit")
///     .issue("session-1", Duration::from_secs(1800))
///     .await?;
/// let field = format!(r#"<input type="hidden" name="token" value="{token}">"#);
///
/// let sent: Token = token.to_string().parse().unwrap();
/// let place_order = || async { Ok::<_, Error>("order 1".to_owned()) };
/// for _ in ["the submission", "the second click"] {
///     let outcome = idempotency
///         .operation("orders.submit")
///         .token(&sent, "session-1")
///         .run(place_order)
///         .await?;
///     assert_eq!(outcome.into_inner(), "order 1");
/// }
///
/// let stolen = idempotency
///     .operation("orders.submit")
///     .token(&sent, "session-2")
///     .run(place_order)
///     .await;
/// assert!(matches!(stolen, Err(Error::UnknownToken { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Token([u8; LEN]);

const RANDOM: usize = 16;
/// The random bytes and the `ttl`.
const BOUND: usize = RANDOM + 4;
const TAG: usize = 3;
const CHECKED: usize = BOUND + TAG;
const LEN: usize = CHECKED + 4;
/// Of the printed form.
const TEXT_LEN: usize = LEN / 3 * 4;

impl Token {
    pub(crate) fn generate(
        ttl: Duration,
        operation: &str,
        subject: &Subject,
    ) -> Result<Self, getrandom::Error> {
        let mut random = [0; RANDOM];
        getrandom::fill(&mut random)?;
        Ok(Self::from_random(random, ttl, operation, subject))
    }

    fn from_random(
        random: [u8; RANDOM],
        ttl: Duration,
        operation: &str,
        subject: &Subject,
    ) -> Self {
        // Even the longest allowed time fits into 32 bits.
        let seconds = u32::try_from(ttl.as_millis().div_ceil(1_000)).unwrap_or(u32::MAX);
        let mut bytes = [0; LEN];
        bytes[..RANDOM].copy_from_slice(&random);
        bytes[RANDOM..BOUND].copy_from_slice(&seconds.to_be_bytes());
        let tag = Bound::new(&bytes[..BOUND], operation, subject).tag;
        bytes[BOUND..CHECKED].copy_from_slice(&tag);
        let check = check(&bytes);
        bytes[CHECKED..].copy_from_slice(&check);
        Self(bytes)
    }

    pub(crate) fn bound(&self, operation: &str, subject: &Subject) -> Bound {
        Bound::new(&self.0[..BOUND], operation, subject)
    }

    fn ttl_secs(&self) -> u32 {
        self.0[RANDOM..BOUND]
            .try_into()
            .map_or(0, u32::from_be_bytes)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&BASE64.encode(self.0))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = BASE64.encode(&self.0[..3]);
        write!(f, "Token({text}\u{2026})")
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        // blake3 compares its hashes in constant time.
        blake3::hash(&self.0) == blake3::hash(&other.0)
    }
}

impl Eq for Token {}

impl FromStr for Token {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let mut bytes = [0; LEN];
        if text.len() != TEXT_LEN || BASE64.decode_slice(text, &mut bytes) != Ok(LEN) {
            return Err(InvalidToken(()));
        }
        let token = Self(bytes);
        // No token is issued for another time.
        let is_time = (1..=MAX_LENGTH.as_secs()).contains(&token.ttl_secs().into());
        if is_time && check(&bytes) == bytes[CHECKED..] {
            Ok(token)
        } else {
            Err(InvalidToken(()))
        }
    }
}

impl TryFrom<&str> for Token {
    type Error = InvalidToken;

    fn try_from(text: &str) -> Result<Self, InvalidToken> {
        text.parse()
    }
}

impl TryFrom<String> for Token {
    type Error = InvalidToken;

    fn try_from(text: String) -> Result<Self, InvalidToken> {
        text.parse()
    }
}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// The error of a text that is not a token: `idem` did not make it, or it was changed.
///
/// It does not contain the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidToken(());

impl fmt::Display for InvalidToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this is not a token of idem: it was cut short, was changed, or never was one")
    }
}

impl std::error::Error for InvalidToken {}

/// The token of a submission: a [`Token`], or a text that should be one.
///
/// Implemented for `Token`, strings, references, `Box`, `Arc`, `Cow` and `Option`. `None`, or a
/// text that is not a token, fails the call with
/// [`Error::UnknownToken`](crate::Error::UnknownToken), like a token that was never issued. So a
/// form's field is best read as a `String`: a field of type `Token` is refused by whatever reads
/// the form, in its own words.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no one-time token",
    label = "neither a `Token` nor a text",
    note = "a token is an `idem::Token`, a `String`, a `&str`, or an `Option` of these"
)]
pub trait AsToken {
    /// Returns the token.
    ///
    /// # Errors
    ///
    /// If this is not a token.
    fn as_token(&self) -> Result<Token, InvalidToken>;
}

impl AsToken for Token {
    fn as_token(&self) -> Result<Token, InvalidToken> {
        Ok(self.clone())
    }
}

impl AsToken for str {
    fn as_token(&self) -> Result<Token, InvalidToken> {
        self.parse()
    }
}

impl AsToken for String {
    fn as_token(&self) -> Result<Token, InvalidToken> {
        self.parse()
    }
}

impl<T: AsToken> AsToken for Option<T> {
    fn as_token(&self) -> Result<Token, InvalidToken> {
        self.as_ref().ok_or(InvalidToken(()))?.as_token()
    }
}

impl<T: AsToken + ToOwned + ?Sized> AsToken for Cow<'_, T> {
    fn as_token(&self) -> Result<Token, InvalidToken> {
        (**self).as_token()
    }
}

macro_rules! by_reference {
    ($($pointer:ty),*) => {$(
        impl<T: AsToken + ?Sized> AsToken for $pointer {
            fn as_token(&self) -> Result<Token, InvalidToken> {
                (**self).as_token()
            }
        }
    )*};
}
by_reference!(&T, &mut T, Box<T>, Arc<T>);

/// The subject of a token, encoded like a key.
pub(crate) struct Subject(String);

impl Subject {
    pub(crate) fn encode<S: KeyPart + ?Sized>(value: &S) -> Option<Self> {
        let mut text = String::new();
        write_after(&mut text, value).then_some(Self(text))
    }

    fn digest(&self) -> KeyDigest {
        KeyDigest::hash(&self.0)
    }
}

impl KeyDigest {
    /// Returns the digest by which events name the subject of a token (`subject 1f0c..`); `None` if
    /// a part of it is missing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// let digest = idem::KeyDigest::of_subject("session-1").unwrap();
    /// println!("grep 'subject {digest}' in the logs");
    /// ```
    pub fn of_subject<S: KeyPart + ?Sized>(subject: &S) -> Option<Self> {
        Subject::encode(subject).map(|subject| subject.digest())
    }
}

/// The values derived from the first bytes of a token, the operation, and the subject.
pub(crate) struct Bound {
    key: [u8; 16],
    tag: [u8; TAG],
}

impl Bound {
    fn new(token: &[u8], operation: &str, subject: &Subject) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(
            "idem one-time token: bound to operation and subject, version 1",
        );
        // An operation's name contains no zero byte, so the parts cannot be confused.
        hasher
            .update(token)
            .update(operation.as_bytes())
            .update(&[0])
            .update(subject.0.as_bytes());
        let mut key = [0; 16];
        let mut tag = [0; TAG];
        let mut digest = hasher.finalize_xof();
        digest.fill(&mut key);
        digest.fill(&mut tag);
        Self { key, tag }
    }

    pub(crate) fn id(&self, operation: &str) -> RecordId {
        RecordId::of_encoded(operation, &["~t", &BASE64.encode(self.key)].concat())
    }
}

/// The check of a token's first bytes.
fn check(token: &[u8; LEN]) -> [u8; LEN - CHECKED] {
    let mut hasher = blake3::Hasher::new_derive_key("idem one-time token: check, version 1");
    let mut check = [0; LEN - CHECKED];
    hasher
        .update(&token[..CHECKED])
        .finalize_xof()
        .fill(&mut check);
    check
}
