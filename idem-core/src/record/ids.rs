//! The ids of records and of their owners.

use std::cell::Cell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use tokio::time::Instant;
use uuid::{NoContext, Timestamp, Uuid};

use crate::base::clock;
use crate::encoding::key::{self, Key, KeyDigest, KeyPart};
use crate::encoding::step_name::{MAX_KEY_IN_STEPS, StepName, write_parts_after, write_run_after};
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
    pub const MAX_KEY_IN_STEPS: usize = MAX_KEY_IN_STEPS;

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
        let id = key::write_after(&mut text, value).then(|| Self {
            text: text.as_str().into(),
            operation_len: operation.len(),
        });
        if text.capacity() <= 1024 {
            SCRATCH.set(text);
        }
        id
    }

    /// Joins an operation's valid name and an encoded key.
    pub(crate) fn of_encoded(operation: &str, key: &str) -> Self {
        Self {
            text: [operation, ":", key].concat().into(),
            operation_len: operation.len(),
        }
    }

    /// Makes the id of a step of the call with this id, in one run of its key. The error says what
    /// to write instead.
    pub(crate) fn of_step<N: StepName + ?Sized>(
        &self,
        run: Owner,
        name: &N,
    ) -> Result<Self, &'static str> {
        let mut text = String::with_capacity(self.text.len() + 64);
        text.push_str(STEP_PREFIX);
        text.push_str(self.name());
        text.push('/');
        text.push_str(name.text());
        let operation_len = text.len();
        if name.text().is_empty() {
            return Err("the name of a step is empty; write a text such as `charge`");
        }
        // A step of a step has a `/`.
        if name.text().contains('/') || !is_valid_operation(&text[STEP_PREFIX.len()..]) {
            return Err(
                "the name of a step is not valid: it has letters, digits and `_ - . # @ +`, and \
                 at most 128 of them together with the operation's name; put anything else into \
                 the further parts, as in `(\"reserve\", &item.sku)`",
            );
        }
        text.push(':');
        write_run_after(&mut text, self.key(), run);
        if !write_parts_after(&mut text, operation_len + 1, name) {
            return Err(
                "a part of the name of a step is missing or empty, so that two steps could not be \
                 told apart; each part after the text needs a value",
            );
        }
        Ok(Self {
            text: text.into(),
            operation_len,
        })
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
        KeyDigest::of(self.as_str())
    }
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
        // As most are.
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
    use crate::encoding::key::MAX_KEY_LEN;

    const RUN: Owner = Owner::NOBODY;

    fn call(operation: &str, key: &str) -> RecordId {
        RecordId::new(operation, &Key::from_encoded(key).unwrap()).unwrap()
    }

    fn step(call: &RecordId, run: Owner, name: &impl StepName) -> RecordId {
        let step = call.of_step(run, name).unwrap();
        let key = Key::from_encoded(step.key()).unwrap();
        assert_eq!(RecordId::new(step.operation(), &key), Some(step.clone()));
        assert!(step.key().len() <= MAX_KEY_LEN);
        step
    }

    #[test]
    fn the_key_of_a_step_is_that_of_its_call_the_run_and_the_parts() {
        for key in ["o-1", "shop:o-1"] {
            let expected = format!("{key}:AAAAAAAAAAAAAAAAAAAAAA");
            assert_eq!(step(&call("orders", key), RUN, &"charge").key(), expected);
        }
        let reserve = step(&call("orders", "o-1"), RUN, &("reserve", "sku 7", ("a", 1)));
        assert_eq!(reserve.operation(), "idem.step/orders/reserve");
        assert_eq!(reserve.name(), "orders/reserve");
        assert_eq!(reserve.key(), "o-1:AAAAAAAAAAAAAAAAAAAAAA:sku%207:(a:1)");
        let missing = call("orders", "o-1").of_step(RUN, &("reserve", None::<u8>));
        assert!(missing.is_err(), "{missing:?}");
    }

    #[test]
    fn no_two_steps_of_different_names_keys_runs_or_nesting_have_one_id() {
        let other = Owner::from_bytes([9; 16]);
        let long = "x".repeat(300);
        let longer = "y".repeat(250);
        let mut ids = HashSet::new();
        let mut count = 0;
        let mut take = |id: RecordId| {
            count += 1;
            assert!(ids.insert(id.clone()), "{} {}", id.operation(), id.key());
            id
        };
        let digest = Key::encode(long.as_str()).unwrap();
        for operation in ["orders", "orders/charge", "orders/parcel"] {
            for key in ["o-1", "o-1:pen", "(o-1:pen):1", digest.as_str(), &longer] {
                for run in [RUN, other] {
                    let call = call(operation, key);
                    for outer in [
                        take(step(&call, run, &"parcel")),
                        take(step(&call, run, &("parcel", 7))),
                        take(step(&call, run, &("parcel", long.as_str()))),
                    ] {
                        // The run of a step inside is that of the step's own record.
                        let inner =
                            Owner::from_bytes([u8::try_from(outer.key().len() % 251).unwrap(); 16]);
                        take(step(&outer, inner, &"label"));
                        take(step(&outer, inner, &("label", 7)));
                    }
                    take(step(&call, run, &("parcel", (7, 8))));
                    take(step(&call, run, &("parcel", 7, 8)));
                }
            }
        }
        assert_eq!(ids.len(), count);
    }

    #[test]
    fn one_prefix_lists_a_run_also_where_parts_or_the_key_are_digests() {
        let long = "x".repeat(300);
        let digest = Key::encode(long.as_str()).unwrap();
        for key in ["o-1", "shop:o-1", digest.as_str(), &"y".repeat(250)] {
            let call = call("orders", key);
            let others = [
                RecordId::new("orders", &Key::from_encoded("o-10").unwrap()).unwrap(),
                RecordId::new("order", &Key::from_encoded(key).unwrap()).unwrap(),
            ];
            for step in [
                step(&call, RUN, &"charge"),
                step(&call, RUN, &("reserve", 7)),
                step(&call, RUN, &("reserve", long.as_str())),
                step(
                    &step(&call, RUN, &"charge"),
                    Owner::from_bytes([9; 16]),
                    &"bank",
                ),
            ] {
                assert!(step.is_step_of(&call, RUN), "{step:?} of {key}");
                assert!(!step.is_step_of(&call, Owner::from_bytes([9; 16])));
                assert!(others.iter().all(|other| !step.is_step_of(other, RUN)));
            }
            assert!(!call.is_step_of(&call, RUN));
        }
    }

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
