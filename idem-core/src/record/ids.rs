//! The ids of records and of their owners.

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use tokio::time::Instant;
use uuid::{NoContext, Timestamp, Uuid};

use crate::base::clock;
use crate::encoding::key::{self, DIGEST_LEN, Key, KeyDigest, KeyPart, MAX_KEY_LEN};
use crate::record::reserved::STEP_PREFIX;

/// The id of a record: the operation's name and the key, as `operation:key`.
///
/// Its text has at most 395 bytes: 138 of the operation, and 256 ([`MAX_KEY_LEN`]) of the key. (The
/// name of an operation has up to 128; the record of a step has `idem.step/` before it.) It may be
/// any text without spaces, braces or control characters, and upper and lower case differ.
///
/// Cheap to clone. `Debug` shows the operation and a digest of the key.
///
/// [`MAX_KEY_LEN`]: crate::MAX_KEY_LEN
#[derive(Clone, PartialEq, Eq)]
pub struct RecordId {
    text: Arc<str>,
    operation_len: usize,
}

impl Hash for RecordId {
    /// Hashes only the text, which also says where the operation's name ends.
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write(self.text.as_bytes());
    }
}

impl RecordId {
    /// The longest key that the keys of the [steps](crate::step) of a call begin with, in bytes. A
    /// longer one is a digest there.
    pub const MAX_KEY_IN_STEPS: usize = MAX_KEY_LEN - RUN_AND_DIGEST;

    /// Joins an operation's name and a key; `None` unless [`is_valid_operation`], without the prefix
    /// of [steps](super::is_step).
    pub fn new(operation: &str, key: &Key) -> Option<Self> {
        let name = operation.strip_prefix(STEP_PREFIX).unwrap_or(operation);
        is_valid_operation(name).then(|| Self::of_encoded(operation, key.as_str()))
    }

    /// Joins an operation's valid name and the key that a value encodes to; `None` if the key is
    /// missing.
    pub(crate) fn encode<K: KeyPart + ?Sized>(operation: &str, value: &K) -> Option<Self> {
        thread_local! {
            /// A buffer that ids are written to, before they are copied into memory of the right
            /// length.
            static SCRATCH: Cell<String> = const { Cell::new(String::new()) };
        }
        // The buffer is taken out, because a value may encode keys of its own.
        let mut text = SCRATCH.take();
        text.clear();
        text.push_str(operation);
        text.push(':');
        let id = key::write_after(&mut text, value).then(|| Self::of_text(&text, operation.len()));
        if text.capacity() <= 1024 {
            SCRATCH.set(text);
        }
        id
    }

    /// Joins an operation's valid name and an encoded key.
    pub(crate) fn of_encoded(operation: &str, key: &str) -> Self {
        Self::of_text(&[operation, ":", key].concat(), operation.len())
    }

    /// Makes the id of its text, of which the operation's name is the beginning.
    pub(crate) fn of_text(text: &str, operation_len: usize) -> Self {
        Self {
            text: text.into(),
            operation_len,
        }
    }

    /// Returns the id of the same step, in this run of that call.
    pub(crate) fn in_run(&self, call: &Self, run: Owner) -> Self {
        let mut key = String::new();
        write_run_after(&mut key, call.key(), run);
        // All runs have texts of one length.
        key.push_str(self.key().get(key.len()..).unwrap_or_default());
        Self::of_encoded(self.operation(), &key)
    }

    /// Returns whether this is the id of a step of the call with that id, in that
    /// [run](crate::store::record::InFlight::run), or of a step inside of one.
    ///
    /// A step inside of another is not recognised if the key of the outer step is longer than
    /// [`MAX_KEY_IN_STEPS`](Self::MAX_KEY_IN_STEPS).
    pub fn is_step_of(&self, call: &Self, run: Owner) -> bool {
        let name = self.operation().strip_prefix(STEP_PREFIX);
        let name = name.and_then(|name| name.strip_prefix(call.name()));
        if !name.is_some_and(|name| name.starts_with('/')) {
            return false;
        }
        let mut prefix = String::new();
        write_run_after(&mut prefix, call.key(), run);
        let rest = self.key().strip_prefix(prefix.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    }

    /// Returns the id of the record that holds the run of [steps](crate::step) beside a transaction:
    /// of a call whose own record is a row of that transaction, and may be rolled back.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self::of_encoded(&[STEP_PREFIX, self.name()].concat(), self.key())
    }

    /// Returns the id of the record that says that this run has ended, of a
    /// [record beside](Self::beside) a transaction.
    #[must_use]
    pub fn end_of(&self, run: Owner) -> Self {
        let mut key = String::new();
        write_run_after(&mut key, self.key(), run);
        Self::of_encoded(self.operation(), &key)
    }

    /// Returns how the operations of all steps of this call begin.
    pub fn steps_prefix(&self) -> String {
        [STEP_PREFIX, self.name(), "/"].concat()
    }

    /// Returns the operation as events and errors have it: of a step, without the prefix of its
    /// record, such as `orders.place/charge`.
    pub fn name(&self) -> &str {
        let operation = self.operation();
        operation.strip_prefix(STEP_PREFIX).unwrap_or(operation)
    }

    /// Returns the operation's name.
    pub fn operation(&self) -> &str {
        self.text.get(..self.operation_len).unwrap_or_default()
    }

    /// The encoded key.
    pub fn key(&self) -> &str {
        self.text.get(self.operation_len + 1..).unwrap_or_default()
    }

    /// The whole, `operation:key`: unambiguous, without spaces, braces or control characters.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// A short digest for logs.
    pub fn digest(&self) -> KeyDigest {
        KeyDigest::hash(self.as_str())
    }
}

/// How much of a step's key the run and a digest of the parts take, with what separates them.
const RUN_AND_DIGEST: usize = 1 + 22 + 1 + DIGEST_LEN;

/// Writes the beginning of the keys of all steps of one run: the encoded key of their call, or its
/// digest where it is long, and the run.
///
/// The run is unique, so nothing else has to tell the steps of two calls apart. The key is not put
/// in parentheses, so that the steps of `(shop, order)` are found by the first part of their keys
/// as well.
pub(crate) fn write_run_after(text: &mut String, call: &str, run: Owner) {
    let start = text.len();
    text.push_str(call);
    if call.len() > RecordId::MAX_KEY_IN_STEPS {
        key::digest_after(text, start);
    }
    // Writing to a `String` cannot fail.
    let _ = write!(text, ":{run}");
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordId({}, {})", self.operation(), self.digest())
    }
}

/// Whether a text can be an operation's name. It has 1 to 128 bytes: letters, digits, `_`, `-`,
/// `.`, `/`, `#`, `@` and `+`, in segments that may be joined by `::`.
///
/// So a name never runs into a key: in `operation:key`, the first single colon ends the name.
pub fn is_valid_operation(name: &str) -> bool {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/');
    if (1..=128).contains(&name.len()) && name.bytes().all(is_plain) {
        // Most are.
        return true;
    }
    let segment = |segment: &str| {
        !segment.is_empty()
            && segment.chars().all(|c| {
                c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '#' | '@' | '+')
            })
    };
    name.len() <= 128 && name.split("::").all(segment)
}

/// The identity of one claim: its holder may commit, renew and release.
///
/// A UUID of version 7 (RFC 9562): the time in milliseconds, which says how old a run of
/// [steps](crate::step) is, and 74 random bits from the operating system, so that forked processes
/// and cloned machines get different ones.
///
/// Its text has 22 characters of base64url.
// No `u128`, whose alignment of 16 bytes would pad every future that holds one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(Uuid);

impl Owner {
    /// A fresh identity.
    pub fn generate() -> Self {
        let made = clock::wall_time();
        let made = Timestamp::from_unix(NoContext, made.as_secs(), made.subsec_nanos());
        Self(Uuid::new_v7(made))
    }

    /// Returns an identity that is unique in this process, for records that no other process sees.
    /// In place of random bits, each thread counts for itself: up to 2⁴⁰ of 2³⁴ threads.
    pub(crate) fn within_process(now: Instant) -> Self {
        const VERSION_7: u128 = 7 << 76;
        const VARIANT: u128 = 2 << 62;
        static THREADS: AtomicU64 = AtomicU64::new(1);
        thread_local! {
            static NEXT: Cell<u128> = const { Cell::new(0) };
        }
        let first = || u128::from(THREADS.fetch_add(1, Ordering::Relaxed)) << 40;
        let count = |next: &Cell<u128>| {
            let number = if next.get() == 0 { first() } else { next.get() };
            next.set(number + 1);
            number
        };
        // A thread that is ending gets a new range each time.
        let number = NEXT.try_with(count).unwrap_or_else(|_| first());
        let (high, low) = (number >> 62 & 0xfff, number & ((1 << 62) - 1));
        let millis = clock::since_1970(now).as_millis();
        Self(Uuid::from_u128(
            millis << 80 | VERSION_7 | high << 64 | VARIANT | low,
        ))
    }

    /// Returns how long ago it was made, by the wall clocks of two hosts. `None` if it does not say
    /// when that was.
    pub(crate) fn age(self) -> Option<Duration> {
        if self.0.get_version_num() != 7 {
            return None;
        }
        let millis = (self.0.as_u128() >> 80) as u64;
        Some(clock::wall_time().saturating_sub(Duration::from_millis(millis)))
    }

    /// Reads its text; `None` if it is anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        // The decoder estimates the room that it needs in steps of three bytes.
        let mut room = [0; 18];
        let count = (text.len() == 22)
            .then(|| BASE64.decode_slice(text, &mut room).ok())
            .flatten()?;
        bytes.copy_from_slice(room.get(..count).filter(|bytes| bytes.len() == 16)?);
        Some(Self::from_bytes(bytes))
    }

    /// Nobody: the owner of an abandoned record that a claim took over and gave back.
    pub const NOBODY: Self = Self(Uuid::nil());

    /// From its bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.into_bytes()
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; 22];
        // The room is exactly that of 16 bytes.
        let _ = BASE64.encode_slice(self.0.as_bytes(), &mut text);
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.0.simple())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_owner_says_how_old_it_is_and_reads_back_from_its_text() {
        const DAY: Duration = Duration::from_secs(86_400);
        let owners = [Owner::generate(), Owner::within_process(clock::now())];
        tokio::time::advance(27 * DAY).await;
        for owner in owners {
            let age = owner.age().unwrap();
            // The paused clock and that of the system do not begin at the same instant.
            assert!(age.abs_diff(27 * DAY) < Duration::from_secs(60), "{age:?}");
            assert_eq!(owner.to_string().len(), 22);
            assert_eq!(Owner::parse(&owner.to_string()), Some(owner));
        }
        assert_eq!(Owner::NOBODY.age(), None);
        assert_eq!(Owner::from_bytes([4; 16]).age(), None);
        for text in ["", "AAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAA ", "o-1"] {
            assert_eq!(Owner::parse(text), None);
        }
    }

    #[test]
    fn p1_no_two_owners_within_a_process_are_the_same_whatever_the_application_seeds() {
        let owners = || {
            fastrand::seed(7);
            [(); 2].map(|()| Owner::within_process(clock::now()))
        };
        let one = owners();
        let two = std::thread::spawn(owners).join().unwrap();
        let all = [one, two, owners()].concat();
        let distinct: HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "{all:?}");
    }
}
