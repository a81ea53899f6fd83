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

mod keys;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use chacha20poly1305::XNonce;
use chacha20poly1305::aead::{Aead, Payload};
use zeroize::Zeroize as _;

pub use self::keys::{EncryptionKey, EncryptionKeys, KeyRing};
use self::keys::{check_key_id, cipher};
use crate::adapter::engine::Loggable;
use crate::store::{Codec, CodecContext, CodecFailure, CodecId};

/// The form above.
const FORM: u8 = 2;
/// The form without the version of the outcome's type.
const FORM_WITHOUT_VERSION: u8 = 1;
const NONCE: usize = 24;

/// Encrypts outcomes with XChaCha20-Poly1305, so that a store holds only what the service can read:
/// for [`Builder::codec`](crate::Builder::codec).
///
/// A ciphertext is bound to its operation, key and attempt, to whether it is a value or an error,
/// and to the [version](crate::Operation::outcome_version) of its type. One that was changed, cut
/// short, copied to another record or given another version is refused with
/// [`Error::Codec`](crate::Error::Codec), and no body runs.
///
/// These stay visible to readers of the store: operation and key, state, attempt and times, audit,
/// trace, the name and the version of the outcome's type, and the fingerprint (a digest, which can
/// be guessed if the request can). Also whether the outcome is an error, its size, and the ids of
/// the encryption key and of the codec inside. Put no secret into a key.
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
/// let keys = KeyRing::new("2026-11", EncryptionKey::new(new))?
///     .reads("2026-08", EncryptionKey::new(old))?;
/// let idempotency = Idempotency::builder(MemoryStore::new())
///     .codec(EncryptedCodec::new(keys))
///     .build();
///
/// let charge = || async { Ok::<_, Error>("receipt 1".to_owned()) };
/// idempotency.operation("orders.charge").key("o-1").run(charge).await?;
/// let duplicate = idempotency.operation("orders.charge").key("o-1").run(charge).await?;
/// assert_eq!(
///     (duplicate.is_replayed(), duplicate.into_inner()),
///     (true, "receipt 1".to_owned())
/// );
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
    pub const ID: CodecId = CodecId::constant(*b"xchacha\0", 7);

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
    /// Returns the inner codec with this name: the one that writes, or one that it replaced.
    fn inside(&self, id: CodecId) -> Option<&dyn Codec> {
        if self.inner.id() == id {
            Some(&*self.inner)
        } else {
            self.inner.earlier(id)
        }
    }

    fn seal(&self, context: CodecContext<'_>, plain: &[u8]) -> Result<Vec<u8>, CodecFailure> {
        let (id, key) = self.keys.current(&context).map_err(|error| {
            failure(format!(
                "the source of encryption keys has none for it: {error}"
            ))
        })?;
        check_key_id(&id).map_err(|problem| failure(problem.to_string()))?;
        let mut sealed = vec![FORM];
        for text in [id.as_bytes(), self.inner.id().as_str().as_bytes()] {
            // Both are short: the key's id was checked above, and the codec's id has at most 8
            // bytes.
            sealed.push(u8::try_from(text.len())?);
            sealed.extend_from_slice(text);
        }
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(|error| {
            failure(format!(
                "the operating system has no random bytes to encrypt the outcome with: {error}"
            ))
        })?;
        let aad = associated(FORM, context, &sealed);
        let encrypted = cipher(&key).encrypt(
            &XNonce::from(nonce),
            Payload {
                msg: plain,
                aad: &aad,
            },
        );
        let encrypted =
            encrypted.map_err(|_| failure("the outcome is too large to be encrypted"))?;
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
            return Err(failure(
                "it is cut short, or of a form that this version of idem does not know",
            ));
        };
        let Some(codec) = self.inside(inner) else {
            let mine = self.inner.id();
            return Err(failure(format!(
                "inside of the encryption it was written by the codec `{inner}`, and this runtime \
                 has `{mine}` there"
            )));
        };
        let found = self.keys.find(key_id, &context).map_err(|error| {
            failure(format!(
                "it was encrypted with the key `{key_id}`, and the source of encryption keys \
                 failed: {error}"
            ))
        })?;
        let Some(key) = found else {
            return Err(failure(format!(
                "it was encrypted with the key `{key_id}`, which this runtime does not have; give \
                 it to `KeyRing::reads`, or, if the key was destroyed, leave the record: nobody \
                 can read its outcome, and it protects its key until it expires"
            )));
        };
        let payload = Payload {
            msg: encrypted,
            aad: &associated(form, context, header),
        };
        let plain = cipher(&key).decrypt(&XNonce::from(nonce), payload).map_err(|_| {
            failure(format!(
                "it was not encrypted for this record (operation, key, attempt, kind and version) \
                 with the key `{key_id}` as this runtime has it, or was changed since"
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

/// JSON, inside of the encryption.
struct Json;

impl Codec for Json {
    fn id(&self) -> CodecId {
        CodecId::JSON
    }

    fn encode(
        &self,
        _: CodecContext<'_>,
        value: &dyn erased_serde::Serialize,
    ) -> Result<Vec<u8>, CodecFailure> {
        Ok(serde_json::to_vec(value)?)
    }

    fn decode(
        &self,
        _: CodecContext<'_>,
        bytes: &[u8],
        read: &mut dyn FnMut(
            &mut dyn erased_serde::Deserializer<'_>,
        ) -> Result<(), erased_serde::Error>,
    ) -> Result<(), CodecFailure> {
        let mut json = serde_json::Deserializer::from_slice(bytes);
        read(&mut <dyn erased_serde::Deserializer<'_>>::erase(&mut json))?;
        Ok(json.end()?)
    }
}

/// Makes a failure whose text may be logged.
fn failure(text: impl Into<String>) -> CodecFailure {
    Box::new(Loggable(text.into()))
}

/// The stored bytes, in their parts.
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
        // The store's text may be printed in errors, so it must be valid.
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
