//! A digest of what must be equal when a key comes again.
//!
//! The value is written in a canonical form (`canonical.rs`) and digested with BLAKE3, cut to 128
//! bits.

mod canonical;
mod number;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde::Serialize;
use serde::ser;

use self::canonical::Canonical;

/// A part of a fingerprint: everything that is `Serialize`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be part of a fingerprint",
    label = "is not `Serialize`",
    note = "derive `serde::Serialize`, or name the fields that matter: `fingerprint = \
        (\"req.amount\", \"req.currency\")`"
)]
pub trait FingerprintPart: Serialize {}

#[diagnostic::do_not_recommend]
impl<T: Serialize + ?Sized> FingerprintPart for T {}

/// A 128-bit digest of the arguments that must be equal when a key comes again.
///
/// The digest is the same on every platform, for every order of a hash map, after fields were
/// reordered, and after an integer was widened. Sequences keep their order, so a `HashSet` is not
/// usable as a fingerprint.
///
/// # `None` and absent fields
///
/// A struct's field that is `None` counts as absent, so a new optional field changes nothing for
/// the calls that do not use it. The same holds for structs with `#[serde(flatten)]` and for the
/// structs that they flatten. `Some(None)`, a newtype struct around `None`, and `None` in a map, a
/// sequence or a tuple are values: they differ from an absent one.
///
/// Two forms look like a `None` field to any serialiser, so the fingerprint cannot tell them from
/// an absent field:
///
/// - `Some(None)` under a `serialize_with` that writes it with `serialize_none`, such as
///   `serde_with`'s `double_option`. A plain `Option<Option<T>>` with `skip_serializing_if` is
///   distinguished.
/// - A newtype variant around `None` in an enum that is flattened.
///
/// If explicit nulls matter, as in a PATCH request, use the body's bytes or its `serde_json::Value`
/// as the fingerprint.
///
/// # Cost
///
/// Each call digests its value once more. Text costs about one instruction for each byte. Bytes in
/// a slice, an array or a `Vec<u8>` are a sequence of numbers to serde, and cost about 200
/// instructions for each, so 200 million for a body of 1 MiB. For bodies, use `str`, or a type that
/// serializes as bytes, such as `serde_bytes::Bytes`. These are other fingerprints than those of
/// the sequence. So after such a change, a key that comes again gets a mismatch until its record
/// has expired.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use idem::Fingerprint;
///
/// #[derive(serde::Serialize)]
/// struct Order { amount: u32, currency: &'static str }
///
/// let one = Fingerprint::of(&Order { amount: 1999, currency: "EUR" })?;
/// assert_eq!(one, Fingerprint::of(&Order { amount: 1999, currency: "EUR" })?);
/// assert_ne!(one, Fingerprint::of(&Order { amount: 9919, currency: "EUR" })?);
/// # Ok::<(), idem::FingerprintError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 16]);

impl Fingerprint {
    /// The length of the printed form.
    pub const TEXT_LEN: usize = 22;

    /// Digests a value.
    ///
    /// # Errors
    ///
    /// Fails only if the value's own `Serialize` fails.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, FingerprintError> {
        thread_local! {
            /// The buffer for canonical forms.
            static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
        }
        const MOST: usize = 4096;
        // The buffer is taken out, because a value may digest values of its own.
        let mut canonical = SCRATCH.take();
        canonical.clear();
        value.serialize(Canonical {
            out: &mut canonical,
        })?;
        let mut digest = [0; 16];
        blake3::Hasher::new()
            .update(&canonical)
            .finalize_xof()
            .fill(&mut digest);
        if canonical.capacity() <= MOST {
            SCRATCH.set(canonical);
        }
        Ok(Self(digest))
    }

    /// The digest's bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Reads the printed form back: 22 characters of base64url.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut digest = [0; 16];
        (text.len() == Self::TEXT_LEN && BASE64.decode_slice_unchecked(text, &mut digest) == Ok(16))
            .then_some(Self(digest))
    }
}

/// Returns the bytes of a value's canonical form, sorted. They are those of an equal value, also if
/// it has a set in another order.
pub(crate) fn sorted_form<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, FingerprintError> {
    let mut form = Vec::new();
    value.serialize(Canonical { out: &mut form })?;
    form.sort_unstable();
    Ok(form)
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        base64::display::Base64Display::new(&self.0, &BASE64).fmt(f)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// The value's own `Serialize` failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FingerprintError(String);

impl fmt::Display for FingerprintError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the fingerprint's value failed to serialize: {}", self.0)
    }
}

impl std::error::Error for FingerprintError {}

impl ser::Error for FingerprintError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}
