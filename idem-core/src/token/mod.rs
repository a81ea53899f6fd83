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

pub(crate) mod throttle;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::encoding::key::{self, KeyDigest, KeyPart};
use crate::observe::Decision;
use crate::policy::settings::MAX_LENGTH;
use crate::record::RecordId;

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
/// let token = idempotency.operation("orders.submit").issue("session-1", Duration::from_secs(1800)).await?;
/// let field = format!(r#"<input type="hidden" name="token" value="{token}">"#);
///
/// let sent: Token = token.to_string().parse().unwrap();
/// let place_order = || async { Ok::<_, Error>("order 1".to_owned()) };
/// for _ in ["the submission", "the second click"] {
///     let outcome = idempotency.operation("orders.submit").token(&sent, "session-1").run(place_order).await?;
///     assert_eq!(outcome.into_inner(), "order 1");
/// }
///
/// let stolen = idempotency.operation("orders.submit").token(&sent, "session-2").run(place_order).await;
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
        // The longest that may be is within 32 bits.
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
        // Digests of this kind are compared in constant time.
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
        key::write_after(&mut text, value).then_some(Self(text))
    }

    fn digest(&self) -> KeyDigest {
        KeyDigest::of(&self.0)
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
        // An operation's name has no zero byte in it.
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
        RecordId::of_digest(operation, &self.key)
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

/// The part of a call with a token that replaces the key.
#[derive(Debug, Clone)]
pub(crate) struct Submission {
    pub(crate) subject: KeyDigest,
    /// The token's own `ttl`, as it says; 0 where it is refused.
    pub(crate) ttl_secs: u32,
    /// Why it is refused, without asking the store.
    pub(crate) flaw: Option<Flaw>,
    /// By a person who settles it: no guess.
    pub(crate) settles: bool,
}

/// What is wrong with a token. The caller is not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// It has no record.
    Unknown,
    /// Its time is over.
    Expired,
    /// `idem` did not make the text.
    Forged,
    /// It was issued to another subject, or for another operation.
    OfAnother,
}

impl Flaw {
    pub(crate) fn decision(self) -> Decision {
        match self {
            Self::Unknown => Decision::TokenUnknown,
            Self::Expired => Decision::TokenExpired,
            Self::Forged => Decision::TokenForged,
            Self::OfAnother => Decision::TokenOfAnother,
        }
    }

    /// Whether it may be a guess. An expired one was issued to this very subject.
    pub(crate) fn may_be_guess(self) -> bool {
        self != Self::Expired
    }
}

impl Submission {
    /// Finds the record of a token, and what is wrong with it, as far as that can be told without
    /// the store; `None` if the subject is missing.
    pub(crate) fn of<T, S>(operation: &str, token: &T, subject: &S) -> Option<(RecordId, Self)>
    where
        T: AsToken + ?Sized,
        S: KeyPart + ?Sized,
    {
        let subject = Subject::encode(subject)?;
        let (bound, ttl_secs, flaw) = match token.as_token() {
            Ok(token) => {
                let bound = token.bound(operation, &subject);
                let flaw = (bound.tag != token.0[BOUND..CHECKED]).then_some(Flaw::OfAnother);
                (
                    bound,
                    if flaw.is_none() { token.ttl_secs() } else { 0 },
                    flaw,
                )
            }
            // The events of one subject's forgeries have one key.
            Err(InvalidToken(())) => (Bound::new(&[], operation, &subject), 0, Some(Flaw::Forged)),
        };
        Some((
            bound.id(operation),
            Self {
                subject: subject.digest(),
                ttl_secs,
                flaw,
                settles: false,
            },
        ))
    }
}

impl fmt::Display for Submission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "subject {}", self.subject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(text: &str) -> Subject {
        Subject::encode(text).unwrap()
    }

    fn token() -> Token {
        Token::from_random(
            [7; RANDOM],
            Duration::from_secs(1_800),
            "orders.submit",
            &subject("ada"),
        )
    }

    #[test]
    fn a_token_reads_back_as_it_was_printed_and_changed_in_any_bit_it_is_none() {
        let text = token().to_string();
        assert_eq!(text.len(), 36);
        assert!(
            text.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        );
        assert_eq!(text.parse(), Ok(token()));
        for bit in 0..LEN * 8 {
            let mut bytes = token().0;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                BASE64.encode(bytes).parse::<Token>(),
                Err(InvalidToken(())),
                "bit {bit}"
            );
        }
        for other in [
            "",
            "x",
            &text[1..],
            &format!("{text}A"),
            &text.replace('B', "+"),
            &"é".repeat(18),
        ] {
            assert!(other.parse::<Token>().is_err(), "{other}");
        }
    }

    #[test]
    fn a_token_is_written_whole_where_it_is_sent_and_not_where_it_is_logged() {
        let token = token();
        let text = token.to_string();
        assert_eq!(
            serde_json::to_string(&token).unwrap(),
            format!("\"{text}\"")
        );
        assert_eq!(
            serde_json::from_str::<Token>(&format!("\"{text}\"")).unwrap(),
            token
        );
        assert_eq!(
            format!("{token:?}"),
            format!("Token({}\u{2026})", &text[..4])
        );
        let refused = serde_json::from_str::<Token>("\"secret-that-is-no-token\"")
            .unwrap_err()
            .to_string();
        assert!(!refused.contains("secret"), "{refused}");
    }

    #[test]
    fn a_token_leads_to_its_record_for_its_operation_and_subject_alone() {
        let of =
            |operation: &str, subject: &str| Submission::of(operation, &token(), subject).unwrap();
        let (record, right) = of("orders.submit", "ada");
        assert_eq!(right.flaw, None);
        for (operation, subject) in [
            ("orders.submit", "grace"),
            ("orders.cancel", "ada"),
            ("orders.submit", "ad"),
        ] {
            let (other, wrong) = of(operation, subject);
            assert_eq!(wrong.flaw, Some(Flaw::OfAnother));
            assert_ne!(other.key(), record.key());
        }
        // Made up by an expert: well-formed, and the key of no record.
        let made_up = Token::from_random(
            [8; RANDOM],
            Duration::from_secs(1_800),
            "orders.submit",
            &subject("ada"),
        );
        let (other, unknown) = Submission::of("orders.submit", &made_up, "ada").unwrap();
        assert_eq!(unknown.flaw, None);
        assert_ne!(other.key(), record.key());
    }

    #[test]
    fn a_token_says_for_how_long_it_is_and_with_another_time_it_is_another() {
        let subject = subject("ada");
        let with = |ttl| Token::from_random([7; RANDOM], ttl, "orders.submit", &subject);
        for (ttl, said) in [
            (Duration::from_millis(1), 1),
            (Duration::from_secs(1_800), 1_800),
            (MAX_LENGTH, 3_153_600_000),
        ] {
            assert_eq!(with(ttl).ttl_secs(), said);
        }
        let key = |ttl| with(ttl).bound("orders.submit", &subject).key;
        assert_ne!(key(Duration::from_secs(1)), key(Duration::from_secs(2)));
    }

    #[test]
    fn a_token_of_a_time_that_none_is_issued_for_is_none() {
        for seconds in [0, 3_153_600_001, u32::MAX] {
            let mut bytes = token().0;
            bytes[RANDOM..BOUND].copy_from_slice(&seconds.to_be_bytes());
            let check = check(&bytes);
            bytes[CHECKED..].copy_from_slice(&check);
            assert!(BASE64.encode(bytes).parse::<Token>().is_err(), "{seconds}");
        }
    }

    #[test]
    fn the_key_of_a_token_is_no_key_that_a_value_can_have_and_says_nothing_of_the_token() {
        let (record, _) = Submission::of("orders.submit", &token(), "ada").unwrap();
        assert_eq!(record.key().len(), 24);
        let as_value = RecordId::encode("orders.submit", record.key()).unwrap();
        assert_ne!(as_value, record);
        assert!(!record.key().contains(&token().to_string()[..4]));
    }

    #[test]
    fn what_is_no_token_at_all_is_forged_and_without_a_subject_there_is_nothing_to_look_up() {
        let none: Option<String> = None;
        for text in [None, Some(String::new()), Some("x".repeat(36))] {
            assert_eq!(
                Submission::of("o", &text, "ada").unwrap().1.flaw,
                Some(Flaw::Forged),
                "{text:?}"
            );
        }
        assert!(Submission::of("o", &token(), &none).is_none());
        assert!(Submission::of("o", &token(), "").is_none());
    }

    /// Forms are open while a deployment goes on: a change needs a new version of the token.
    #[test]
    fn the_form_of_tokens_and_of_their_keys_is_pinned() {
        assert_eq!(token().to_string(), "BwcHBwcHBwcHBwcHBwcHBwAABwiH_7QXryVF");
        assert_eq!(
            Submission::of("orders.submit", &token(), "ada")
                .unwrap()
                .0
                .key(),
            "~t1mJ9jST2EP_cB3ohgLptUQ"
        );
    }
}
