//! The ids of records and of their owners.

use std::cell::Cell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use uuid::Uuid;

use crate::encoding::key::{self, Key, KeyDigest, KeyPart};
use crate::encoding::step_name::{StepName, is_step_key, write_step_after};

/// The id of a record: the operation's name and the key, as `operation:key`.
///
/// Its text has at most 385 bytes: 128 of the operation, and 256 ([`MAX_KEY_LEN`]) of the key. It
/// may be any text without spaces, braces or control characters, and upper and lower case differ.
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
    /// Joins an operation's name and a key; `None` unless [`is_valid_operation`].
    pub fn new(operation: &str, key: &Key) -> Option<Self> {
        is_valid_operation(operation).then(|| Self {
            text: [operation, ":", key.as_str()].concat().into(),
            operation_len: operation.len(),
        })
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

    /// Joins an operation's valid name and a digest that stands for the key. No value encodes to
    /// such a key.
    pub(crate) fn of_digest(operation: &str, digest: &[u8; 16]) -> Self {
        let mut text = String::with_capacity(operation.len() + 25);
        text.push_str(operation);
        text.push(':');
        key::write_digest_after(&mut text, digest);
        Self {
            text: text.into(),
            operation_len: operation.len(),
        }
    }

    /// Joins an operation's valid name and an encoded key.
    pub(crate) fn of_encoded(operation: &str, key: &str) -> Self {
        Self {
            text: [operation, ":", key].concat().into(),
            operation_len: operation.len(),
        }
    }

    /// Makes the id of a step of the call with this id. The error says what to write instead.
    pub(crate) fn of_step<N: StepName + ?Sized>(&self, name: &N) -> Result<Self, &'static str> {
        let mut text = String::with_capacity(self.text.len() + 32);
        text.push_str(self.operation());
        text.push('/');
        text.push_str(name.text());
        let operation_len = text.len();
        if name.text().is_empty() {
            return Err("the name of a step is empty; write a text such as `charge`");
        }
        // A step of a step has a `/`.
        if name.text().contains('/') || !is_valid_operation(&text) {
            return Err(
                "the name of a step is not valid: it has letters, digits and `_ - . # @ +`, and \
                 at most 128 of them together with the operation's name; put anything else into \
                 the further parts, as in `(\"reserve\", &item.sku)`",
            );
        }
        text.push(':');
        if !write_step_after(&mut text, self.key(), name) {
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

    /// Returns whether this can be the id of a step of the call with that id, or of a step inside
    /// of one. Another operation whose name begins with that of the call and a `/` looks the same.
    /// A step with further parts whose key is a digest is not recognised.
    pub fn is_step_of(&self, call: &Self) -> bool {
        let name = self.operation().strip_prefix(call.operation());
        let Some(name) = name.and_then(|name| name.strip_prefix('/')) else {
            return false;
        };
        !name.is_empty() && is_step_key(self.key(), call.key(), name.split('/').count())
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

/// The first part of the operation of a lock's record; the lock's own name follows.
pub(crate) const LOCK_PREFIX: &str = "idem.lock/";

/// Whether this is the operation of a lock's record, such as `idem.lock/disks.compact` for
/// [`lock("disks.compact")`](crate::Idempotency::lock).
///
/// Such names, and `idem.lock` itself, are reserved: no call has them. So a lock and an operation
/// of the same name have different records.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use idem::store::record::is_lock;
///
/// assert!(is_lock("idem.lock/disks.compact"));
/// assert!(!is_lock("disks.compact"));
/// ```
pub const fn is_lock(operation: &str) -> bool {
    matches!(operation.as_bytes(), b"idem.lock")
        || matches!(operation.as_bytes().first_chunk(), Some(b"idem.lock/"))
}

/// The identity of one claim: its holder may commit, renew and release.
///
/// 122 random bits from the operating system, so that forked processes and cloned machines get
/// different ones.
/// No `u128`, whose alignment of 16 bytes would pad every future that holds one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(Uuid);

impl Owner {
    /// A fresh identity.
    pub fn generate() -> Self {
        Self(Uuid::new_v4())
    }

    /// Returns an identity that is unique in this process, for records that no other process sees.
    /// Each thread counts for itself, and does not use the random generator that the application
    /// might seed.
    pub(crate) fn within_process() -> Self {
        static THREADS: AtomicU64 = AtomicU64::new(1);
        thread_local! {
            static NEXT: Cell<u128> = const { Cell::new(0) };
        }
        let first = || u128::from(THREADS.fetch_add(1, Ordering::Relaxed)) << 64;
        let count = |next: &Cell<u128>| {
            let owner = if next.get() == 0 { first() } else { next.get() };
            next.set(owner + 1);
            owner
        };
        // A thread that is ending gets a new range each time.
        Self(Uuid::from_u128(
            NEXT.try_with(count).unwrap_or_else(|_| first()),
        ))
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

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.0.simple())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p1_no_two_owners_within_a_process_are_the_same_whatever_the_application_seeds() {
        let owners = || {
            fastrand::seed(7);
            [Owner::within_process(), Owner::within_process()]
        };
        let one = owners();
        let two = std::thread::spawn(owners).join().unwrap();
        let all = [one, two, owners()].concat();
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "{all:?}");
    }
}
