//! Outcomes that are encrypted before they reach the store: XChaCha20-Poly1305, bound to the record
//! that they belong to.
//!
//! The stored bytes are `2`, the length and the id of the encryption key, the length and the id of
//! the codec inside, a nonce of 24 random bytes, and the ciphertext with its tag. The part before
//! the nonce is associated data, and so are operation, key, attempt, kind and version of the
//! outcome. So a ciphertext that was copied from another record is refused like a changed one.
//!
//! The form `1` does not bind the version, and is still read. The two have different domains, so
//! that neither is taken for the other where the first byte is changed.

use std::fmt;
use std::sync::Arc;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use zeroize::Zeroize;

use crate::error::ConfigError;
use crate::outcome::codec::{Codec, CodecContext, CodecFailure, Json, Unquoted};
use crate::record::CodecId;

/// The form above.
const FORM: u8 = 2;
/// The same without the version of the outcome's type.
const FORM_WITHOUT_VERSION: u8 = 1;
const NONCE: usize = 24;
const MAX_KEY_ID: usize = 64;

/// Encrypts outcomes with XChaCha20-Poly1305, so that a store holds only what the service can read:
/// for [`Builder::codec`](crate::Builder::codec).
///
/// A ciphertext is bound to its operation, key and attempt, to whether it is a value or an error,
/// and to the [version](crate::Operation::outcome_version) of its type. One that was changed, cut
/// short, copied to another record or given another version is refused with
/// [`Error::Codec`](crate::Error::Codec), and no body runs.
///
/// These stay visible to readers of the store: operation and key, state, attempt and times, audit,
/// trace, the name and the version of the outcome's type, and the fingerprint (a digest, which can be guessed if
/// the request can). Also whether the outcome is an error, its size, and the ids of the encryption
/// key and of the codec inside. Put no secret into a key.
///
/// # Rotation
///
/// Each outcome names the key that it was encrypted with, so several can be known while one of them
/// writes. Without downtime:
///
/// 1. Deploy the new key to all processes, as one that [reads](KeyRing::reads). The old one writes.
/// 2. When all have it, deploy it as the one that [writes](KeyRing::new), and the old one as one
///    that reads.
/// 3. When the longest `ttl` has passed since, leave the old one out.
///
/// To begin on a store that holds outcomes which are not encrypted, see
/// [`reads_unencrypted`](Self::reads_unencrypted).
///
/// # Outcomes that do not bind their version
///
/// Outcomes whose first byte is `1` are of an earlier form, which binds all but the version of the
/// type. They are read, and no longer written. Whoever can write to the store can give such an
/// outcome another version, so that an [upgrade](crate::Operation::upgrade) runs on a value that it
/// was not made for. To be rid of them, rotate to a new key once all processes write the form `2`,
/// and leave the old key out when the longest `ttl` has passed.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # use idem::{Error, Idempotency, MemoryStore};
/// use idem::{EncryptedCodec, EncryptionKey, KeyRing};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (new, old) = ([1; 32], [2; 32]);
/// // From your secret manager: 32 random bytes each.
/// let keys = KeyRing::new("2026-11", EncryptionKey::new(new))?.reads("2026-08", EncryptionKey::new(old))?;
/// let idempotency = Idempotency::builder(MemoryStore::new()).codec(EncryptedCodec::new(keys)).build();
///
/// let charge = || async { Ok::<_, Error>("receipt 1".to_owned()) };
/// idempotency.operation("orders.charge").key("o-1").run(charge).await?;
/// let duplicate = idempotency.operation("orders.charge").key("o-1").run(charge).await?;
/// assert_eq!((duplicate.is_replayed(), duplicate.into_inner()), (true, "receipt 1".to_owned()));
/// # Ok(())
/// # }
/// ```
pub struct EncryptedCodec {
    inner: Arc<dyn Codec>,
    keys: Arc<dyn EncryptionKeys>,
    reads_unencrypted: bool,
}

impl EncryptedCodec {
    /// The name of this codec in each record.
    pub const ID: CodecId = CodecId::XCHACHA;

    /// Encrypts outcomes that are written as JSON.
    pub fn new(keys: impl EncryptionKeys) -> Self {
        Self::over(Json, keys)
    }

    /// Encrypts outcomes that another codec writes. What that codec replaced
    /// ([`Codec::earlier`]) is still read.
    pub fn over(inner: impl Codec, keys: impl EncryptionKeys) -> Self {
        Self {
            inner: Arc::new(inner),
            keys: Arc::new(keys),
            reads_unencrypted: false,
        }
    }

    /// Also reads outcomes that the codec inside wrote before there was encryption. Default: off.
    ///
    /// For the time in which such records exist: meanwhile, an attacker with write access to the
    /// store can make up outcomes. Processes that do not encrypt yet fail on encrypted outcomes
    /// with [`Error::Codec`](crate::Error::Codec) until they are replaced, and run no body.
    #[must_use]
    pub fn reads_unencrypted(mut self) -> Self {
        self.reads_unencrypted = true;
        self
    }
}

impl Codec for EncryptedCodec {
    fn id(&self) -> CodecId {
        Self::ID
    }

    fn encode(
        &self,
        context: CodecContext<'_>,
        value: &dyn erased_serde::Serialize,
    ) -> Result<Vec<u8>, CodecFailure> {
        let mut plain = self.inner.encode(context, value)?;
        let sealed = self.seal(context, &plain);
        plain.zeroize();
        sealed
    }

    fn decode(
        &self,
        context: CodecContext<'_>,
        bytes: &[u8],
        read: &mut dyn FnMut(
            &mut dyn erased_serde::Deserializer<'_>,
        ) -> Result<(), erased_serde::Error>,
    ) -> Result<(), CodecFailure> {
        let (codec, mut plain) = self.open(context, bytes)?;
        let read = codec.decode(context, &plain, read);
        plain.zeroize();
        read
    }

    fn earlier(&self, id: CodecId) -> Option<&dyn Codec> {
        self.inside(id).filter(|_| self.reads_unencrypted)
    }
}

impl EncryptedCodec {
    /// The codec with this name inside: the one that writes, or one that it replaced.
    fn inside(&self, id: CodecId) -> Option<&dyn Codec> {
        if self.inner.id() == id {
            Some(&*self.inner)
        } else {
            self.inner.earlier(id)
        }
    }

    fn seal(&self, context: CodecContext<'_>, plain: &[u8]) -> Result<Vec<u8>, CodecFailure> {
        let (id, key) = self.keys.current()?;
        check_key_id(&id).map_err(|problem| Unquoted::boxed(problem.to_string()))?;
        let mut sealed = vec![FORM];
        for text in [id.as_bytes(), self.inner.id().as_str().as_bytes()] {
            // Both are short: the one was checked above, the other has 8 bytes at most.
            sealed.push(u8::try_from(text.len())?);
            sealed.extend_from_slice(text);
        }
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(|error| {
            Unquoted::boxed(format!(
                "the operating system has no random bytes to encrypt the outcome with: {error}"
            ))
        })?;
        let aad = associated(FORM, context, &sealed);
        let encrypted = key.cipher().encrypt(
            &XNonce::from(nonce),
            Payload {
                msg: plain,
                aad: &aad,
            },
        );
        let encrypted =
            encrypted.map_err(|_| Unquoted::boxed("the outcome is too large to be encrypted"))?;
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(&encrypted);
        Ok(sealed)
    }

    fn open(
        &self,
        context: CodecContext<'_>,
        sealed: &[u8],
    ) -> Result<(&dyn Codec, Vec<u8>), CodecFailure> {
        let Some(Sealed {
            form,
            header,
            key_id,
            inner,
            nonce,
            encrypted,
        }) = Sealed::read(sealed)
        else {
            return Err(Unquoted::boxed(
                "it is cut short, or of a form that this version of idem does not know",
            ));
        };
        let Some(codec) = self.inside(inner) else {
            let mine = self.inner.id();
            return Err(Unquoted::boxed(format!(
                "inside of the encryption it was written by the codec `{inner}`, and this runtime has `{mine}` there"
            )));
        };
        let Some(key) = self.keys.find(key_id)? else {
            return Err(Unquoted::boxed(format!(
                "it was encrypted with the key `{key_id}`, which this runtime does not have; give it to `KeyRing::reads`"
            )));
        };
        let payload = Payload {
            msg: encrypted,
            aad: &associated(form, context, header),
        };
        let plain = key.cipher().decrypt(&XNonce::from(nonce), payload).map_err(|_| {
            Unquoted::boxed(format!(
                "it was not encrypted for this record (operation, key, attempt, kind and version) with the key `{key_id}` as this runtime has it, or was changed since"
            ))
        })?;
        Ok((codec, plain))
    }
}

impl fmt::Debug for EncryptedCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            inner,
            reads_unencrypted,
            ..
        } = self;
        f.debug_struct("EncryptedCodec")
            .field("inner", &inner.id())
            .field("reads_unencrypted", reads_unencrypted)
            .finish_non_exhaustive()
    }
}

/// What is stored, in its parts.
struct Sealed<'a> {
    form: u8,
    header: &'a [u8],
    key_id: &'a str,
    inner: CodecId,
    nonce: [u8; NONCE],
    encrypted: &'a [u8],
}

impl<'a> Sealed<'a> {
    fn read(sealed: &'a [u8]) -> Option<Self> {
        let (form, rest) = sealed.split_first()?;
        let (key_id, rest) = counted(rest)?;
        let (inner, rest) = counted(rest)?;
        let header = sealed.get(..sealed.len() - rest.len())?;
        let (nonce, encrypted) = rest.split_first_chunk::<NONCE>()?;
        let key_id = std::str::from_utf8(key_id).ok()?;
        let inner = CodecId::parse(inner)?;
        // What is printed of it comes from the store.
        let is_whole = matches!(*form, FORM | FORM_WITHOUT_VERSION) && check_key_id(key_id).is_ok();
        is_whole.then_some(Self {
            form: *form,
            header,
            key_id,
            inner,
            nonce: *nonce,
            encrypted,
        })
    }
}

/// Splits a length-prefixed part from the rest.
fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*len))
}

/// Returns the associated data of a ciphertext. Its prefix separates it from that of the other form
/// and from all other uses.
fn associated(form: u8, context: CodecContext<'_>, header: &[u8]) -> Vec<u8> {
    let mut data = Vec::with_capacity(128);
    data.extend_from_slice(match form {
        FORM_WITHOUT_VERSION => b"idem outcome 1",
        _ => b"idem outcome 2",
    });
    for part in [
        header,
        context.operation().as_bytes(),
        context.key().as_bytes(),
    ] {
        data.extend_from_slice(&(part.len() as u64).to_be_bytes());
        data.extend_from_slice(part);
    }
    data.extend_from_slice(&context.attempt().to_be_bytes());
    data.push(u8::from(context.is_error()));
    if form != FORM_WITHOUT_VERSION {
        data.extend_from_slice(&context.version().to_be_bytes());
    }
    data
}

fn check_key_id(id: &str) -> Result<(), ConfigError> {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/' | b':');
    if (1..=MAX_KEY_ID).contains(&id.len()) && id.bytes().all(is_plain) {
        return Ok(());
    }
    Err(ConfigError::new(format!(
        "the id of an encryption key is 1 to {MAX_KEY_ID} letters, digits and `- _ . / :`, such as `2026-11`; it is stored with each outcome"
    )))
}

/// A secret of 32 random bytes. `Debug` shows none of them, and they are overwritten when it is
/// dropped.
#[derive(Clone)]
pub struct EncryptionKey([u8; 32]);

impl EncryptionKey {
    /// Takes 32 bytes from a source of secrets. A password is none: derive a key from it first.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Makes a key from the operating system's random bytes: for tests, and to store it in a secret
    /// manager.
    ///
    /// # Errors
    ///
    /// If the operating system has none.
    pub fn generate() -> Result<Self, ConfigError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|error| {
            ConfigError::new(format!(
                "the operating system has no random bytes for an encryption key: {error}"
            ))
        })?;
        Ok(Self(bytes))
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(&Key::from(self.0))
    }
}

impl Drop for EncryptionKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EncryptionKey(..)")
    }
}

/// The source of an [`EncryptedCodec`]'s keys. [`KeyRing`] is the one for keys that do not change
/// while the process runs.
///
/// It is asked for each outcome that is written or read, and does not block: keys are fetched
/// before, or in a task beside.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use std::sync::{Arc, PoisonError, RwLock};
///
/// use idem::{CodecFailure, EncryptionKey, EncryptionKeys, KeyRing};
///
/// /// Keys that a task reloads.
/// struct Reloaded(Arc<RwLock<KeyRing>>);
///
/// impl EncryptionKeys for Reloaded {
///     fn current(&self) -> Result<(String, EncryptionKey), CodecFailure> {
///         self.0.read().unwrap_or_else(PoisonError::into_inner).current()
///     }
///
///     fn find(&self, id: &str) -> Result<Option<EncryptionKey>, CodecFailure> {
///         self.0.read().unwrap_or_else(PoisonError::into_inner).find(id)
///     }
/// }
/// ```
pub trait EncryptionKeys: Send + Sync + 'static {
    /// Returns the key that new outcomes are encrypted with, and its id: 1 to 64 letters, digits
    /// and `- _ . / :`.
    ///
    /// # Errors
    ///
    /// If there is none. The call is then recorded as done, without the value (`not_encoded`), and
    /// a kept error releases the key (`error_not_kept`). A replay of an outcome that is
    /// [upgraded](crate::Operation::upgrade) needs the key too, and is
    /// [`Error::Codec`](crate::Error::Codec) without it.
    fn current(&self) -> Result<(String, EncryptionKey), CodecFailure>;

    /// Returns the key with this id; `None` if it is not known.
    ///
    /// # Errors
    ///
    /// If the source of keys fails. The duplicate gets [`Error::Codec`](crate::Error::Codec), and
    /// no body runs.
    fn find(&self, id: &str) -> Result<Option<EncryptionKey>, CodecFailure>;
}

/// Keys that are known from the start: one that writes, and any number that read. `Debug` shows
/// their ids.
#[derive(Clone)]
pub struct KeyRing {
    /// The first one writes.
    keys: Vec<(String, EncryptionKey)>,
}

impl KeyRing {
    /// Makes a ring of one key, which writes and reads. Its id is stored with each outcome.
    ///
    /// # Errors
    ///
    /// If the id is not 1 to 64 letters, digits and `- _ . / :`.
    pub fn new(id: impl Into<String>, key: EncryptionKey) -> Result<Self, ConfigError> {
        Self { keys: Vec::new() }.reads(id, key)
    }

    /// Adds a key that reads what was encrypted with it.
    ///
    /// # Errors
    ///
    /// If the id is invalid, or there is a key with this id already.
    pub fn reads(mut self, id: impl Into<String>, key: EncryptionKey) -> Result<Self, ConfigError> {
        let id = id.into();
        check_key_id(&id)?;
        if self.keys.iter().any(|(known, _)| *known == id) {
            return Err(ConfigError::new(format!(
                "two encryption keys have the id `{id}`; give each its own"
            )));
        }
        self.keys.push((id, key));
        Ok(self)
    }
}

impl EncryptionKeys for KeyRing {
    fn current(&self) -> Result<(String, EncryptionKey), CodecFailure> {
        self.keys
            .first()
            .cloned()
            .ok_or_else(|| Unquoted::boxed("there is no encryption key"))
    }

    fn find(&self, id: &str) -> Result<Option<EncryptionKey>, CodecFailure> {
        Ok(self
            .keys
            .iter()
            .find(|(known, _)| known == id)
            .map(|(_, key)| key.clone()))
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.keys.iter().map(|(id, _)| id))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::codec::{AnyCodec, TypeLabel};
    use crate::record::{Encoded, Metadata, RecordId};

    fn ring(writes: &str, reads: &[&str]) -> KeyRing {
        let key = |id: &str| EncryptionKey::new([id.as_bytes()[0]; 32]);
        let ring = KeyRing::new(writes, key(writes)).unwrap();
        reads
            .iter()
            .fold(ring, |ring, id| ring.reads(*id, key(id)).unwrap())
    }

    fn codec(writes: &str, reads: &[&str]) -> AnyCodec {
        AnyCodec::Other(Arc::new(EncryptedCodec::new(ring(writes, reads))))
    }

    fn id(operation: &str, key: &str) -> RecordId {
        RecordId::new(operation, &crate::Key::encode(key).unwrap()).unwrap()
    }

    fn encode(codec: &AnyCodec, text: &str) -> Encoded {
        encode_version(codec, text, 1)
    }

    fn encode_version(codec: &AnyCodec, text: &str, version: u32) -> Encoded {
        let label = TypeLabel {
            version,
            ..TypeLabel::default()
        };
        codec
            .encode(CodecContext::of_value(&id("orders", "o-1"), 3, label), text)
            .unwrap()
    }

    /// An outcome as one of another version, as somebody with access to the store can say.
    fn as_version(outcome: &Encoded, version: Option<u32>) -> Encoded {
        let metadata = version.map(|version| {
            Arc::new(Metadata {
                version: Some(version),
                ..Metadata::default()
            })
        });
        Encoded {
            metadata,
            ..outcome.clone()
        }
    }

    /// What the form without a version was: written out, so that it stays readable whatever becomes
    /// of the code above.
    fn without_version(text: &str) -> Encoded {
        let mut sealed = b"\x01\x01a\x01j".to_vec();
        let mut aad = b"idem outcome 1".to_vec();
        for part in [&sealed[..], b"orders", b"o-1"] {
            aad.extend_from_slice(&(part.len() as u64).to_be_bytes());
            aad.extend_from_slice(part);
        }
        aad.extend_from_slice(&3_u64.to_be_bytes());
        aad.push(0);
        let json = serde_json::to_vec(text).unwrap();
        let cipher = EncryptionKey::new([b'a'; 32]).cipher();
        let encrypted = cipher
            .encrypt(
                &XNonce::from([7; NONCE]),
                Payload {
                    msg: &json,
                    aad: &aad,
                },
            )
            .unwrap();
        sealed.extend_from_slice(&[7; NONCE]);
        sealed.extend_from_slice(&encrypted);
        Encoded {
            is_error: false,
            codec: EncryptedCodec::ID,
            payload: sealed.into(),
            metadata: None,
        }
    }

    fn decode(
        codec: &AnyCodec,
        (id, attempt): (&RecordId, u64),
        outcome: &Encoded,
    ) -> Result<String, String> {
        codec
            .decode((id, attempt), outcome)
            .map_err(|error| error.to_string())
    }

    fn mine(codec: &AnyCodec, outcome: &Encoded) -> Result<String, String> {
        decode(codec, (&id("orders", "o-1"), 3), outcome)
    }

    #[test]
    fn an_outcome_comes_back_and_does_not_stand_in_the_store() {
        let codec = codec("a", &[]);
        let [one, two] = [encode(&codec, "jane"), encode(&codec, "jane")];
        assert_eq!(mine(&codec, &one), Ok("jane".to_owned()));
        assert!(
            !one.payload.windows(4).any(|part| part == b"jane"),
            "{:?}",
            one.payload
        );
        assert_ne!(one.payload, two.payload, "each has a nonce of its own");
    }

    #[test]
    fn an_outcome_of_another_record_is_refused() {
        let codec = codec("a", &[]);
        let outcome = encode(&codec, "jane");
        let foreign = [
            id("orders", "o-2"),
            id("refunds", "o-1"),
            id("order", "so-1"),
        ];
        for (id, attempt) in foreign
            .iter()
            .map(|id| (id, 3))
            .chain([(&id("orders", "o-1"), 4)])
        {
            let refused = decode(&codec, (id, attempt), &outcome).unwrap_err();
            assert!(
                refused.contains("not encrypted for this record"),
                "{refused}"
            );
        }
        let as_error = Encoded {
            is_error: true,
            ..outcome
        };
        assert!(mine(&codec, &as_error).is_err(), "a value is no error");
    }

    #[test]
    fn an_outcome_of_another_version_is_refused() {
        let codec = codec("a", &[]);
        let [first, second] = [1, 2].map(|version| encode_version(&codec, "jane", version));
        assert_eq!(first.metadata, None);
        assert_eq!(second.version(), 2);
        for (outcome, said) in [(&first, None), (&second, Some(2))] {
            assert_eq!(
                mine(&codec, &as_version(outcome, said)),
                Ok("jane".to_owned())
            );
        }
        for (outcome, said) in [(&first, Some(2)), (&second, None), (&second, Some(3))] {
            let refused = mine(&codec, &as_version(outcome, said)).unwrap_err();
            assert!(
                refused.contains("not encrypted for this record"),
                "{refused}"
            );
        }
    }

    #[test]
    fn the_form_without_a_version_is_read_and_neither_form_is_taken_for_the_other() {
        let codec = codec("a", &[]);
        let [old, new] = [without_version("jane"), encode(&codec, "jane")];
        assert_eq!((old.payload[0], new.payload[0]), (1, 2));
        assert_eq!(mine(&codec, &old), Ok("jane".to_owned()));
        // The version of an old one is not bound.
        assert_eq!(
            mine(&codec, &as_version(&old, Some(2))),
            Ok("jane".to_owned())
        );
        for outcome in [old, new] {
            let mut bytes = outcome.payload.to_vec();
            bytes[0] ^= 3;
            let refused = mine(
                &codec,
                &Encoded {
                    payload: bytes.into(),
                    ..outcome
                },
            )
            .unwrap_err();
            assert!(
                refused.contains("not encrypted for this record"),
                "{refused}"
            );
        }
        let other = decode(&codec, (&id("orders", "o-2"), 3), &without_version("jane"));
        assert!(other.unwrap_err().contains("not encrypted for this record"));
    }

    #[test]
    fn what_was_changed_or_cut_short_is_refused_wherever_that_was() {
        let codec = codec("a", &[]);
        let whole = encode(&codec, "jane");
        for at in 0..whole.payload.len() {
            let mut bytes = whole.payload.to_vec();
            bytes[at] ^= 1;
            assert!(
                mine(
                    &codec,
                    &Encoded {
                        payload: bytes.into(),
                        ..whole.clone()
                    }
                )
                .is_err(),
                "byte {at} was changed"
            );
            let cut = whole.payload.slice(..at);
            assert!(
                mine(
                    &codec,
                    &Encoded {
                        payload: cut,
                        ..whole.clone()
                    }
                )
                .is_err(),
                "cut at {at}"
            );
        }
    }

    #[test]
    fn keys_rotate_while_processes_with_the_old_and_the_new_ones_run() {
        let [old, knows, writes, new] = [
            codec("a", &[]),
            codec("a", &["b"]),
            codec("b", &["a"]),
            codec("b", &[]),
        ];
        let by_a = encode(&knows, "jane");
        let by_b = encode(&writes, "jane");
        for codec in [&old, &knows, &writes] {
            assert_eq!(mine(codec, &by_a), Ok("jane".to_owned()));
        }
        for codec in [&knows, &writes, &new] {
            assert_eq!(mine(codec, &by_b), Ok("jane".to_owned()));
        }
        for (codec, outcome, key) in [(&old, &by_b, "`b`"), (&new, &by_a, "`a`")] {
            let refused = mine(codec, outcome).unwrap_err();
            assert!(
                refused.contains(key) && refused.contains("does not have"),
                "{refused}"
            );
        }
        // Another secret under the same id.
        let other = KeyRing::new("a", EncryptionKey::new([0; 32])).unwrap();
        let other = AnyCodec::Other(Arc::new(EncryptedCodec::new(other)));
        assert!(
            mine(&other, &by_a)
                .unwrap_err()
                .contains("as this runtime has it")
        );
    }

    #[test]
    fn outcomes_from_before_the_encryption_are_read_only_where_that_is_said() {
        let plain = encode(&AnyCodec::Json, "jane");
        assert!(mine(&codec("a", &[]), &plain).is_err());
        let codec = AnyCodec::Other(Arc::new(
            EncryptedCodec::new(ring("a", &[])).reads_unencrypted(),
        ));
        assert_eq!(mine(&codec, &plain), Ok("jane".to_owned()));
        assert!(mine(&AnyCodec::Json, &encode(&codec, "jane")).is_err());
    }

    #[test]
    fn ids_of_keys_are_checked_and_secrets_are_not_printed() {
        for wrong in ["", "a b", "ä", &"x".repeat(65)] {
            assert!(
                KeyRing::new(wrong, EncryptionKey::generate().unwrap()).is_err(),
                "{wrong}"
            );
        }
        assert!(
            ring("a", &[])
                .reads("a", EncryptionKey::new([7; 32]))
                .is_err()
        );
        let shown = format!("{:?} {:?}", ring("a", &["b"]), EncryptionKey::new([7; 32]));
        assert_eq!(shown, r#"["a", "b"] EncryptionKey(..)"#);
    }
}
