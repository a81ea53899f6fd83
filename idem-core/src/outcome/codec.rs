//! Outcomes as bytes.
//!
//! The default is JSON: a rolling deployment that adds a field still replays, and people can read a
//! record. The codec's id is stored with the outcome, so that no codec reads another codec's bytes.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoding::fingerprint::sorted_form;
use crate::encoding::key::decoded_first_part;
use crate::outcome::Storable;
use crate::record::{CodecId, Encoded, Metadata, RecordId, short_type_name};

/// Any error that a codec can have.
pub type CodecFailure = Box<dyn std::error::Error + Send + Sync>;

/// The context of the outcome that a [`Codec`] encodes or decodes.
///
/// Operation, key, attempt, kind and version are the same when an outcome is written and when it is
/// read. A codec that encrypts binds them to the ciphertext as associated data, so that an outcome
/// that was copied to another key, from a value to an error, or to another version is refused.
#[derive(Clone, Copy)]
pub struct CodecContext<'a> {
    id: &'a RecordId,
    attempt: u64,
    is_error: bool,
    label: TypeLabel,
}

/// The type of an outcome, as its record has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TypeLabel {
    /// The version of the type.
    pub(crate) version: u32,
    /// Whether the record names the type.
    pub(crate) records_type_name: bool,
}

impl Default for TypeLabel {
    fn default() -> Self {
        Self {
            version: 1,
            records_type_name: false,
        }
    }
}

impl<'a> CodecContext<'a> {
    pub(crate) fn of_value(id: &'a RecordId, attempt: u64, label: TypeLabel) -> Self {
        Self::new(false, id, attempt, label)
    }

    /// Errors have no versions.
    pub(crate) fn new(is_error: bool, id: &'a RecordId, attempt: u64, label: TypeLabel) -> Self {
        let version = if is_error { 1 } else { label.version };
        Self {
            id,
            attempt,
            is_error,
            label: TypeLabel { version, ..label },
        }
    }

    /// Returns the context in which a recorded outcome was written, as its record says.
    fn of_recorded(id: &'a RecordId, attempt: u64, outcome: &Encoded) -> Self {
        let label = TypeLabel {
            version: outcome.version(),
            ..TypeLabel::default()
        };
        Self::new(outcome.is_error, id, attempt, label)
    }

    /// Returns what the record says of an outcome of this type, which is nothing for most types.
    fn metadata<T: ?Sized>(self) -> Option<Arc<Metadata>> {
        let TypeLabel {
            version,
            records_type_name,
        } = self.label;
        if version <= 1 && !records_type_name {
            return None;
        }
        let version = Some(version).filter(|version| *version > 1);
        let type_name = records_type_name.then(|| short_type_name(std::any::type_name::<T>()));
        Some(Arc::new(Metadata {
            version,
            type_name,
            ..Metadata::default()
        }))
    }

    /// Returns the operation's name.
    pub fn operation(&self) -> &'a str {
        self.id.operation()
    }

    /// Returns the key as it is encoded in the store. Two different keys of one operation never
    /// have one encoding.
    pub fn key(&self) -> &'a str {
        self.id.key()
    }

    /// Returns the [first part](crate::Key::first_part) of the key as it was before it was encoded:
    /// the customer in `("customer-7", "o-1")`. `None` if the key is stored as a digest, because it
    /// was too long or belongs to a token.
    ///
    /// The example of `EncryptionKeys` chooses a key by it.
    pub fn first_key_part(&self) -> Option<Cow<'a, str>> {
        decoded_first_part(self.key())
    }

    /// Returns the attempt whose outcome it is, 1 or more.
    pub fn attempt(&self) -> u64 {
        self.attempt
    }

    /// Returns whether the outcome is an error that is kept, and not a value.
    pub fn is_error(&self) -> bool {
        self.is_error
    }

    /// Returns the [version](crate::Operation::outcome_version) of the value's type, 1 or more. An
    /// error that is kept has version 1.
    pub fn version(&self) -> u32 {
        self.label.version
    }
}

impl fmt::Debug for CodecContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys may be personal data.
        f.debug_struct("CodecContext")
            .field("id", self.id)
            .field("attempt", &self.attempt)
            .field("is_error", &self.is_error)
            .field("version", &self.version())
            .finish()
    }
}

/// Encodes and decodes outcomes, instead of JSON: for [`Builder::codec`](crate::Builder::codec).
///
/// It encodes values and kept errors. [`CodecContext`] says which.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use idem::{Codec, CodecContext, CodecFailure, CodecId};
///
/// /// JSON with line breaks.
/// struct Pretty;
///
/// impl Codec for Pretty {
///     fn id(&self) -> CodecId {
///         CodecId::parse(b"pretty").expect("a valid name")
///     }
///
///     fn encode(
///         &self,
///         _: CodecContext<'_>,
///         value: &dyn erased_serde::Serialize,
///     ) -> Result<Vec<u8>, CodecFailure> {
///         Ok(serde_json::to_vec_pretty(value)?)
///     }
///
///     fn decode(
///         &self,
///         _: CodecContext<'_>,
///         bytes: &[u8],
///         read: &mut dyn FnMut(
///             &mut dyn erased_serde::Deserializer<'_>,
///         ) -> Result<(), erased_serde::Error>,
///     ) -> Result<(), CodecFailure> {
///         let mut json = serde_json::Deserializer::from_slice(bytes);
///         read(&mut <dyn erased_serde::Deserializer<'_>>::erase(&mut json))?;
///         Ok(json.end()?)
///     }
/// }
///
/// let idempotency = idem::Idempotency::builder(idem::MemoryStore::new())
///     .codec(Pretty)
///     .build();
/// ```
pub trait Codec: Send + Sync + 'static {
    /// Returns the name that is stored with each outcome. Two codecs that do not read each other's
    /// bytes must have different names.
    fn id(&self) -> CodecId;

    /// Encodes a value.
    ///
    /// # Errors
    ///
    /// If it fails to encode. A value's call is then recorded as done, without the value, and a
    /// kept error releases the key.
    fn encode(
        &self,
        context: CodecContext<'_>,
        value: &dyn erased_serde::Serialize,
    ) -> Result<Vec<u8>, CodecFailure>;

    /// Decodes a value: calls `read` once, with a deserializer over `bytes`, and refuses bytes that
    /// are left over.
    ///
    /// # Errors
    ///
    /// If the bytes fail to decode. The duplicate gets `Error::Codec`, and no body runs.
    fn decode(
        &self,
        context: CodecContext<'_>,
        bytes: &[u8],
        read: &mut dyn FnMut(
            &mut dyn erased_serde::Deserializer<'_>,
        ) -> Result<(), erased_serde::Error>,
    ) -> Result<(), CodecFailure>;

    /// Returns the codec with this name, if this codec replaced it and still reads its outcomes.
    /// Default: `None`. New outcomes are always encoded by this codec itself.
    fn earlier(&self, id: CodecId) -> Option<&dyn Codec> {
        let _ = id;
        None
    }
}

/// A failure without any part of the outcome in its text, so that it may be logged.
#[derive(Debug)]
pub(crate) struct Loggable(pub(crate) String);

impl fmt::Display for Loggable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Loggable {}

/// The codec of a runtime. JSON is called directly, and any other codec through a trait object.
#[derive(Clone, Default)]
pub(crate) enum AnyCodec {
    #[default]
    Json,
    Other(Arc<dyn Codec>),
}

impl AnyCodec {
    pub(crate) fn encode<T: Serialize + ?Sized>(
        &self,
        context: CodecContext<'_>,
        value: &T,
    ) -> Result<Encoded, CodecFailure> {
        caught(|| {
            let (codec, payload) = match self {
                Self::Json => (CodecId::JSON, json(value)?),
                Self::Other(codec) => (codec.id(), codec.encode(context, &value)?.into()),
            };
            Ok(Encoded {
                is_error: context.is_error,
                codec,
                payload,
                metadata: context.metadata::<T>(),
            })
        })
    }

    /// Reads the outcome of an attempt at the record with this id.
    pub(crate) fn decode<T: DeserializeOwned>(
        &self,
        id: &RecordId,
        attempt: u64,
        outcome: &Encoded,
    ) -> Result<T, CodecFailure> {
        match self {
            Self::Json if outcome.codec == CodecId::JSON => {
                serde_json::from_slice(&outcome.payload)
                    .map_err(|error| without_contents(&error, outcome.codec))
            }
            Self::Other(codec) => {
                let codec = if outcome.codec == codec.id() {
                    Some(&**codec)
                } else {
                    codec.earlier(outcome.codec)
                };
                let codec = codec.ok_or_else(|| foreign(outcome.codec))?;
                let mut value = None;
                let context = CodecContext::of_recorded(id, attempt, outcome);
                let read = codec.decode(context, &outcome.payload, &mut |deserializer| {
                    value = Some(erased_serde::deserialize(deserializer)?);
                    Ok(())
                });
                read.map_err(|error| without_contents(&*error, outcome.codec))?;
                value.ok_or_else(|| "the codec read no value".into())
            }
            Self::Json => Err(foreign(outcome.codec)),
        }
    }
}

impl AnyCodec {
    /// Checks that an outcome of this attempt is read back as the value that was written, as far as
    /// what is written of both shows.
    pub(crate) fn read_back<T: Storable<Via>, Via>(
        &self,
        id: &RecordId,
        attempt: u64,
        outcome: &Encoded,
        value: &T,
    ) -> Result<(), CodecFailure> {
        caught(|| {
            let stored = self.decode::<T::Stored>(id, attempt, outcome)?;
            let read = T::from_stored(stored).ok_or("it is read as another type")?;
            if forms(&value.to_stored()) != forms(&read.to_stored()) {
                return Err("it is read back as another value".into());
            }
            Ok(())
        })
    }
}

/// Returns the forms by which two values are compared, without the order of sequences: as JSON, and
/// one that tells apart what is `null` there. `None`: a value has no such form.
fn forms<T: Serialize + ?Sized>(value: &T) -> (Option<serde_json::Value>, Option<Vec<u8>>) {
    let mut json = serde_json::to_value(value).ok();
    json.iter_mut().for_each(sort_sequences);
    (json, sorted_form(value).ok())
}

/// Sorts sequences, because a set is read back in another order.
fn sort_sequences(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Array(items) => {
            items.iter_mut().for_each(sort_sequences);
            items.sort_by_cached_key(ToString::to_string);
        }
        serde_json::Value::Object(fields) => fields.values_mut().for_each(sort_sequences),
        _ => {}
    }
}

/// Turns a panic in the author's code that writes or reads a value into a failure.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T, CodecFailure>) -> Result<T, CodecFailure> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err("the code that writes and reads it panicked".into()))
}

fn foreign(codec: CodecId) -> CodecFailure {
    format!("the outcome was written by the codec `{codec}`, which this runtime does not have")
        .into()
}

/// Returns what is logged about a failure to read an outcome. A decoder's error may quote what it
/// read, so only its kind is kept.
fn without_contents(error: &(dyn std::error::Error + 'static), codec: CodecId) -> CodecFailure {
    if let Some(Loggable(text)) = error.downcast_ref() {
        return format!("the codec `{codec}` cannot read it: {text}").into();
    }
    match error.downcast_ref::<serde_json::Error>() {
        Some(error) => describe_json_error(error).into(),
        None => format!(
            "the codec `{codec}` cannot read it (what it says is left out, since it may \
                quote the outcome)"
        )
        .into(),
    }
}

/// Returns what is wrong with JSON, and where, without any of its contents.
pub fn describe_json_error(error: &serde_json::Error) -> String {
    use serde_json::error::Category;

    let what = match error.classify() {
        Category::Data => "a value is missing, or of another type than expected,",
        Category::Syntax => "not valid JSON",
        Category::Eof => "it is cut off",
        Category::Io => "it cannot be read",
    };
    format!("{what} at line {}, column {}", error.line(), error.column())
}

/// Returns a JSON text without the byte order mark that .NET and PowerShell may write before it. A
/// reader may ignore the mark (RFC 8259, section 8.1).
pub fn without_byte_order_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text)
}

/// Writes a value as JSON into the thread's buffer, and copies it from there with one allocation of
/// the right length.
fn json<T: Serialize + ?Sized>(value: &T) -> Result<Bytes, serde_json::Error> {
    thread_local! {
        static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    }
    const MOST: usize = 4096;
    // The buffer is taken out, because a value may write values of its own.
    let mut text = SCRATCH.take();
    text.clear();
    let written = serde_json::to_writer(&mut text, value);
    if text.capacity() > MOST {
        return written.map(|()| Bytes::from(text));
    }
    let payload = written.map(|()| Bytes::copy_from_slice(&text));
    SCRATCH.set(text);
    payload
}

impl fmt::Debug for AnyCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json => CodecId::JSON.fmt(f),
            Self::Other(codec) => codec.id().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::key::Key;

    fn id() -> RecordId {
        RecordId::new("orders", &Key::encode("o-1").unwrap()).unwrap()
    }

    fn encode<T: Serialize + ?Sized>(value: &T) -> Encoded {
        AnyCodec::Json
            .encode(
                CodecContext::of_value(&id(), 1, TypeLabel::default()),
                value,
            )
            .unwrap()
    }

    fn decode<T: DeserializeOwned>(outcome: &Encoded) -> Result<T, CodecFailure> {
        AnyCodec::Json.decode(&id(), 1, outcome)
    }

    #[test]
    fn unit_zero_empty_and_none_are_outcomes() {
        decode::<()>(&encode(&())).unwrap();
        assert_eq!(decode::<u8>(&encode(&0u8)).unwrap(), 0);
        assert_eq!(decode::<String>(&encode("")).unwrap(), "");
        assert_eq!(decode::<Option<u8>>(&encode(&None::<u8>)).unwrap(), None);
        assert!(
            decode::<Vec<u8>>(&encode(&Vec::<u8>::new()))
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn floats_are_read_as_they_were_written() {
        for float in [
            31.245_270_191_439_438,
            f64::MIN_POSITIVE,
            f64::MAX,
            -0.1 - 0.2,
        ] {
            let read: f64 = decode(&encode(&float)).unwrap();
            assert_eq!(read.to_bits(), float.to_bits(), "{float}");
        }
    }

    #[test]
    fn an_outcome_that_cannot_be_read_is_not_quoted() {
        struct Other;
        impl Codec for Other {
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
                Ok(read(&mut <dyn erased_serde::Deserializer<'_>>::erase(
                    &mut json,
                ))?)
            }
        }
        let outcome = encode(&["jane@example.org"]);
        for codec in [AnyCodec::Json, AnyCodec::Other(Arc::new(Other))] {
            let said = codec
                .decode::<[u64; 1]>(&id(), 1, &outcome)
                .unwrap_err()
                .to_string();
            assert!(!said.contains("jane"), "{said}");
        }
        let said = decode::<[u64; 1]>(&outcome).unwrap_err().to_string();
        assert!(said.ends_with("line 1, column 19"), "{said}");
    }

    #[test]
    fn another_codecs_bytes_are_refused() {
        let foreign = Encoded {
            is_error: false,
            codec: CodecId::parse(b"cbor").unwrap(),
            payload: Bytes::from_static(b"1"),
            metadata: None,
        };
        assert!(decode::<u8>(&foreign).is_err());
        for name in ["", "Ab", "toolongname", "a b"] {
            assert_eq!(CodecId::parse(name.as_bytes()), None);
        }
    }
}
