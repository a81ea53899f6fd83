//! A digest of what must be equal when a key comes again.
//!
//! The value is written in a canonical form of its own and digested with BLAKE3, cut to 128 bits. The form has a tag for each
//! kind of value, lengths before texts, one width for integers and one for floats; the fields of a struct and the entries of a
//! map are sorted. So the digest is the same on every platform, in every version, for every hash map's order, and after fields were
//! reordered or an integer was widened. A struct's field that is `None` counts as absent: a new optional field changes nothing for the
//! calls that do not use it. Sequences keep their order, so a `HashSet` is no good fingerprint.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde::Serialize;
use serde::ser;

/// What can be part of a fingerprint: everything that is `Serialize`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be part of a fingerprint",
    label = "is not `Serialize`",
    note = "derive `serde::Serialize`, or name the fields that matter: `fingerprint = (\"req.amount\", \"req.currency\")`"
)]
pub trait FingerprintPart: Serialize {}

#[diagnostic::do_not_recommend]
impl<T: Serialize + ?Sized> FingerprintPart for T {}

/// A 128-bit digest of the arguments that must be equal when a key comes again.
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
    /// Fails only where the value's own `Serialize` fails.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, FingerprintError> {
        let mut canonical = Vec::with_capacity(128);
        value.serialize(Canonical { out: &mut canonical })?;
        let mut digest = [0; 16];
        blake3::Hasher::new().update(&canonical).finalize_xof().fill(&mut digest);
        Ok(Self(digest))
    }

    /// The digest's bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// From its bytes.
    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Reads the printed form back: 22 characters of base64url.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut digest = [0; 16];
        (text.len() == Self::TEXT_LEN && BASE64.decode_slice_unchecked(text, &mut digest) == Ok(16))
            .then_some(Self(digest))
    }
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
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the fingerprint's value cannot be serialised: {0}")]
pub struct FingerprintError(String);

impl ser::Error for FingerprintError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

/// One byte before each value says what kind it is. The bytes are part of the stored format: never change one.
mod tag {
    pub(super) const NONE: u8 = 0;
    pub(super) const UNIT: u8 = 1;
    pub(super) const FALSE: u8 = 2;
    pub(super) const TRUE: u8 = 3;
    pub(super) const NEGATIVE: u8 = 4;
    pub(super) const NATURAL: u8 = 5;
    pub(super) const FLOAT: u8 = 6;
    pub(super) const TEXT: u8 = 7;
    pub(super) const BYTES: u8 = 8;
    pub(super) const SEQUENCE: u8 = 9;
    pub(super) const MAP: u8 = 10;
    pub(super) const VARIANT: u8 = 11;
    pub(super) const END: u8 = 255;
}

struct Canonical<'a> {
    out: &'a mut Vec<u8>,
}

impl Canonical<'_> {
    fn sized(self, tag: u8, bytes: &[u8]) {
        self.out.push(tag);
        self.out.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
        self.out.extend_from_slice(bytes);
    }

    fn integer(self, tag: u8, magnitude: u128) {
        self.out.push(tag);
        self.out.extend_from_slice(&magnitude.to_be_bytes());
    }

    fn variant(&mut self, name: &str) {
        self.out.push(tag::VARIANT);
        Canonical { out: self.out }.sized(tag::TEXT, name.as_bytes());
    }
}

macro_rules! integers {
    ($($method:ident($type:ty) => $canonical:ident),* $(,)?) => {$(
        fn $method(self, value: $type) -> Result<(), FingerprintError> {
            self.$canonical(value.into())
        }
    )*};
}

impl<'a> ser::Serializer for Canonical<'a> {
    type Ok = ();
    type Error = FingerprintError;
    type SerializeSeq = Sequence<'a>;
    type SerializeTuple = Sequence<'a>;
    type SerializeTupleStruct = Sequence<'a>;
    type SerializeTupleVariant = Sequence<'a>;
    type SerializeMap = Entries<'a>;
    type SerializeStruct = Entries<'a>;
    type SerializeStructVariant = Entries<'a>;

    integers! {
        serialize_i8(i8) => serialize_i128, serialize_i16(i16) => serialize_i128, serialize_i32(i32) => serialize_i128,
        serialize_i64(i64) => serialize_i128,
        serialize_u8(u8) => serialize_u128, serialize_u16(u16) => serialize_u128, serialize_u32(u32) => serialize_u128,
        serialize_u64(u64) => serialize_u128,
    }

    fn serialize_i128(self, value: i128) -> Result<(), FingerprintError> {
        // A natural number is the same whether its type has a sign or not.
        self.integer(if value < 0 { tag::NEGATIVE } else { tag::NATURAL }, value.unsigned_abs());
        Ok(())
    }

    fn serialize_u128(self, value: u128) -> Result<(), FingerprintError> {
        self.integer(tag::NATURAL, value);
        Ok(())
    }

    fn serialize_bool(self, value: bool) -> Result<(), FingerprintError> {
        self.out.push(if value { tag::TRUE } else { tag::FALSE });
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result<(), FingerprintError> {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<(), FingerprintError> {
        // One form for both zeros and for every NaN.
        let bits = if value == 0.0 {
            0
        } else if value.is_nan() {
            f64::NAN.to_bits()
        } else {
            value.to_bits()
        };
        self.out.push(tag::FLOAT);
        self.out.extend_from_slice(&bits.to_be_bytes());
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), FingerprintError> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), FingerprintError> {
        self.sized(tag::TEXT, value.as_bytes());
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), FingerprintError> {
        self.sized(tag::BYTES, value);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), FingerprintError> {
        self.out.push(tag::NONE);
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), FingerprintError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), FingerprintError> {
        self.out.push(tag::UNIT);
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), FingerprintError> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(mut self, _: &'static str, _: u32, name: &'static str) -> Result<(), FingerprintError> {
        self.variant(name);
        self.serialize_unit()
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), FingerprintError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        mut self,
        _: &'static str,
        _: u32,
        name: &'static str,
        value: &T,
    ) -> Result<(), FingerprintError> {
        self.variant(name);
        value.serialize(self)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Sequence<'a>, FingerprintError> {
        Ok(Sequence::new(self.out))
    }

    fn serialize_tuple(self, _: usize) -> Result<Sequence<'a>, FingerprintError> {
        Ok(Sequence::new(self.out))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Sequence<'a>, FingerprintError> {
        Ok(Sequence::new(self.out))
    }

    fn serialize_tuple_variant(
        mut self,
        _: &'static str,
        _: u32,
        name: &'static str,
        _: usize,
    ) -> Result<Sequence<'a>, FingerprintError> {
        self.variant(name);
        Ok(Sequence::new(self.out))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Entries<'a>, FingerprintError> {
        Ok(Entries::new(self.out))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Entries<'a>, FingerprintError> {
        Ok(Entries::new(self.out))
    }

    fn serialize_struct_variant(
        mut self,
        _: &'static str,
        _: u32,
        name: &'static str,
        _: usize,
    ) -> Result<Entries<'a>, FingerprintError> {
        self.variant(name);
        Ok(Entries::new(self.out))
    }

    /// As for a format that is not meant to be read: the form that types such as `Uuid` keep most stable is their text, though.
    fn is_human_readable(&self) -> bool {
        true
    }
}

/// Values in their own order, ended by a tag that begins no value.
struct Sequence<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Sequence<'a> {
    fn new(out: &'a mut Vec<u8>) -> Self {
        out.push(tag::SEQUENCE);
        Self { out }
    }
}

macro_rules! sequences {
    ($($trait:ident::$method:ident),*) => {$(
        impl ser::$trait for Sequence<'_> {
            type Ok = ();
            type Error = FingerprintError;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), FingerprintError> {
                value.serialize(Canonical { out: self.out })
            }

            fn end(self) -> Result<(), FingerprintError> {
                self.out.push(tag::END);
                Ok(())
            }
        }
    )*};
}

sequences!(
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field
);

/// Entries are written one behind the other and put in order at the end; most structs need the sort only once a call,
/// and it moves short slices.
struct Entries<'a> {
    out: &'a mut Vec<u8>,
    /// Where each entry begins in `out`.
    starts: Vec<usize>,
}

impl<'a> Entries<'a> {
    fn new(out: &'a mut Vec<u8>) -> Self {
        out.push(tag::MAP);
        Self { out, starts: Vec::with_capacity(8) }
    }

    fn field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), FingerprintError> {
        let start = self.out.len();
        Canonical { out: self.out }.sized(tag::TEXT, name.as_bytes());
        let value_start = self.out.len();
        value.serialize(Canonical { out: self.out })?;
        if self.out[value_start..] == [tag::NONE] {
            self.out.truncate(start);
        } else {
            self.starts.push(start);
        }
        Ok(())
    }

    fn finish(self) {
        let Self { out, starts } = self;
        if let Some(&first) = starts.first() {
            let written = out.split_off(first);
            let ends = starts.iter().skip(1).map(|start| start - first).chain([written.len()]);
            let mut entries: Vec<&[u8]> =
                starts.iter().zip(ends).filter_map(|(start, end)| written.get(start - first..end)).collect();
            entries.sort_unstable();
            for entry in entries {
                out.extend_from_slice(entry);
            }
        }
        out.push(tag::END);
    }
}

impl ser::SerializeMap for Entries<'_> {
    type Ok = ();
    type Error = FingerprintError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), FingerprintError> {
        self.starts.push(self.out.len());
        key.serialize(Canonical { out: self.out })
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), FingerprintError> {
        value.serialize(Canonical { out: self.out })
    }

    fn end(self) -> Result<(), FingerprintError> {
        self.finish();
        Ok(())
    }
}

impl ser::SerializeStruct for Entries<'_> {
    type Ok = ();
    type Error = FingerprintError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), FingerprintError> {
        self.field(name, value)
    }

    fn end(self) -> Result<(), FingerprintError> {
        self.finish();
        Ok(())
    }
}

impl ser::SerializeStructVariant for Entries<'_> {
    type Ok = ();
    type Error = FingerprintError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), FingerprintError> {
        self.field(name, value)
    }

    fn end(self) -> Result<(), FingerprintError> {
        self.finish();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use super::*;

    fn of<T: Serialize>(value: T) -> String {
        Fingerprint::of(&value).unwrap().to_string()
    }

    #[derive(Serialize)]
    struct Order {
        id: &'static str,
        amount: u32,
        note: Option<&'static str>,
        lines: Vec<(u8, f32)>,
    }

    #[derive(Serialize)]
    struct Reordered {
        lines: Vec<(u64, f64)>,
        amount: i128,
        id: String,
    }

    const ORDER: Order = Order { id: "o-1", amount: 1999, note: None, lines: Vec::new() };

    /// The digest is stored next to live records: a change of these strings breaks every deployment in mid-flight.
    #[test]
    fn digests_are_pinned_for_ever() {
        let all = [of(()), of(0u8), of(-1i64), of("text"), of(1.5f32), of(None::<u8>), of(vec![1u8, 2]), of(ORDER)];
        assert_eq!(all, PINNED);
    }

    const PINNED: [&str; 8] = [
        "SPxyH7vBcuCSX6J68Wcd4g",
        "KepjWbsP8NlzpnppPOhheQ",
        "oCn5jVUfqn6bC5UNTM2z5Q",
        "WITeFe1vKY8wAnLPaA5JYw",
        "wyPo6ljBVLWWQ2J2-QUSFg",
        "LTre3_EbYfFMiG41r6A2cw",
        "mv6aqsozx4MDZ8wbBZwnfg",
        "6w5lczvL6DcfPX3rlPL4VQ",
    ];

    #[test]
    fn order_of_fields_width_of_numbers_and_new_optional_fields_do_not_matter() {
        assert_eq!(
            of(Order { lines: vec![(1, 2.5)], ..ORDER }),
            of(Reordered { id: "o-1".into(), amount: 1999, lines: vec![(1, 2.5)] })
        );
    }

    #[test]
    fn the_order_of_a_hash_map_does_not_matter() {
        let pairs: Vec<(String, u32)> = (0..100).map(|n| (format!("k{n}"), n)).collect();
        let hashed: HashMap<_, _> = pairs.iter().cloned().collect();
        let sorted: BTreeMap<_, _> = pairs.into_iter().collect();
        assert_eq!(of(hashed), of(sorted));
    }

    #[test]
    fn different_values_differ() {
        let distinct = [
            of(("a", "bc")),
            of(("ab", "c")),
            of("abc"),
            of(["abc"]),
            of([["abc"]]),
            of(0u8),
            of(-0.0f64),
            of(false),
            of(()),
            of(None::<u8>),
            of(""),
            of(u64::MAX),
            of(u64::MAX - 1),
            of(u128::MAX),
            of(i128::MIN),
            of((Vec::<u8>::new(), Vec::<u8>::new())),
            of(Vec::<u8>::new()),
            of(Ok::<u8, u8>(1)),
            of(Err::<u8, u8>(1)),
        ];
        let unique: std::collections::HashSet<_> = distinct.iter().collect();
        assert_eq!(unique.len(), distinct.len());
    }

    #[test]
    fn the_printed_form_reads_back() {
        let one = Fingerprint::of("x").unwrap();
        assert_eq!(Fingerprint::parse(one.to_string().as_bytes()), Some(one));
        assert_eq!(Fingerprint::parse(b"short"), None);
        assert_eq!(Fingerprint::parse(&[b'!'; 22]), None);
    }
}
