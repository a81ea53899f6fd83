//! The canonical form of a value, which is what a fingerprint digests.
//!
//! The form has a tag for each kind of value, lengths before texts, one width for integers and one
//! for floats. The fields of a struct and the entries of a map are sorted. A value's end can be
//! read off its bytes, so no two lists of values have one form.
//!
//! A struct's field that wrote a bare `None` is left out. A struct with `#[serde(flatten)]` calls
//! `serialize_map` with an unknown length and passes each field's name as a `str`. A map's keys
//! have a sized type (`String`, `&str`), and most maps know their length. So the two are
//! distinguished, and `None` in a map stays.
//!
//! `serde_json` writes the numbers of a `Value` as numbers, or, if any crate of the program enables
//! `arbitrary_precision`, as a struct with a reserved name. Both have one form here (`number.rs`).
//! `RawValue` and the date-times of `toml` are structs with reserved names as well. Their names do
//! not depend on features, so they stay as they are, a `RawValue` as its text.

use serde::Serialize;
use serde::ser;

use super::FingerprintError;
use super::number::{self, Number};

/// One byte before each value says what kind it is. The bytes are part of the stored format: never
/// change one.
pub(super) mod tag {
    pub(in crate::encoding::fingerprint) const NONE: u8 = 0;
    pub(in crate::encoding::fingerprint) const UNIT: u8 = 1;
    pub(in crate::encoding::fingerprint) const FALSE: u8 = 2;
    pub(in crate::encoding::fingerprint) const TRUE: u8 = 3;
    pub(in crate::encoding::fingerprint) const NEGATIVE: u8 = 4;
    pub(in crate::encoding::fingerprint) const NATURAL: u8 = 5;
    pub(in crate::encoding::fingerprint) const FLOAT: u8 = 6;
    pub(in crate::encoding::fingerprint) const TEXT: u8 = 7;
    pub(in crate::encoding::fingerprint) const BYTES: u8 = 8;
    pub(in crate::encoding::fingerprint) const SEQUENCE: u8 = 9;
    pub(in crate::encoding::fingerprint) const MAP: u8 = 10;
    pub(in crate::encoding::fingerprint) const VARIANT: u8 = 11;
    /// Comes before the content of an `Option` that is again `None`, or a newtype struct around
    /// `None`.
    pub(in crate::encoding::fingerprint) const SOME: u8 = 12;
    /// A number that no `f64` holds exactly, in decimal.
    pub(in crate::encoding::fingerprint) const DECIMAL: u8 = 13;
    pub(in crate::encoding::fingerprint) const END: u8 = 255;
}

/// The kind of the value that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrote {
    /// A bare `None`. A struct's field that wrote it is absent.
    Nothing,
    /// A `None` inside of `Some`s and newtype structs.
    NothingInside,
    /// Anything else.
    Value,
}

type Written = Result<Wrote, FingerprintError>;

/// Appends a value's canonical form to a buffer.
pub(super) struct Canonical<'a> {
    pub(super) out: &'a mut Vec<u8>,
}

impl Canonical<'_> {
    pub(super) fn sized(self, tag: u8, bytes: &[u8]) {
        self.out.push(tag);
        self.out
            .extend_from_slice(&(bytes.len() as u64).to_be_bytes());
        self.out.extend_from_slice(bytes);
    }

    pub(super) fn integer(self, tag: u8, magnitude: u128) {
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
        fn $method(self, value: $type) -> Written {
            self.$canonical(value.into())
        }
    )*};
}

impl<'a> ser::Serializer for Canonical<'a> {
    type Ok = Wrote;
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

    fn serialize_i128(self, value: i128) -> Written {
        // A natural number has one form, whether its type has a sign or not.
        self.integer(
            if value < 0 {
                tag::NEGATIVE
            } else {
                tag::NATURAL
            },
            value.unsigned_abs(),
        );
        Ok(Wrote::Value)
    }

    fn serialize_u128(self, value: u128) -> Written {
        self.integer(tag::NATURAL, value);
        Ok(Wrote::Value)
    }

    fn serialize_bool(self, value: bool) -> Written {
        self.out.push(if value { tag::TRUE } else { tag::FALSE });
        Ok(Wrote::Value)
    }

    fn serialize_f32(self, value: f32) -> Written {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Written {
        // Both zeros have one form, and so have all NaNs.
        let bits = if value == 0.0 {
            0
        } else if value.is_nan() {
            f64::NAN.to_bits()
        } else {
            value.to_bits()
        };
        self.out.push(tag::FLOAT);
        self.out.extend_from_slice(&bits.to_be_bytes());
        Ok(Wrote::Value)
    }

    fn serialize_char(self, value: char) -> Written {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Written {
        self.sized(tag::TEXT, value.as_bytes());
        Ok(Wrote::Value)
    }

    fn serialize_bytes(self, value: &[u8]) -> Written {
        self.sized(tag::BYTES, value);
        Ok(Wrote::Value)
    }

    fn serialize_none(self) -> Written {
        self.out.push(tag::NONE);
        Ok(Wrote::Nothing)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Written {
        let start = self.out.len();
        let wrote = value.serialize(Canonical {
            out: &mut *self.out,
        })?;
        if wrote == Wrote::Value {
            return Ok(wrote);
        }
        self.out.insert(start, tag::SOME);
        Ok(Wrote::NothingInside)
    }

    fn serialize_unit(self) -> Written {
        self.out.push(tag::UNIT);
        Ok(Wrote::Value)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Written {
        self.serialize_unit()
    }

    fn serialize_unit_variant(mut self, _: &'static str, _: u32, name: &'static str) -> Written {
        self.variant(name);
        self.serialize_unit()
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Written {
        Ok(match value.serialize(self)? {
            Wrote::Nothing => Wrote::NothingInside,
            wrote => wrote,
        })
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        mut self,
        _: &'static str,
        _: u32,
        name: &'static str,
        value: &T,
    ) -> Written {
        self.variant(name);
        value.serialize(self)?;
        Ok(Wrote::Value)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Sequence<'a>, FingerprintError> {
        Ok(Sequence::new(self.out))
    }

    fn serialize_tuple(self, _: usize) -> Result<Sequence<'a>, FingerprintError> {
        Ok(Sequence::new(self.out))
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<Sequence<'a>, FingerprintError> {
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

    fn serialize_map(self, len: Option<usize>) -> Result<Entries<'a>, FingerprintError> {
        Ok(Entries::new(
            self.out,
            if len.is_some() {
                Of::Map
            } else {
                Of::Flattened
            },
        ))
    }

    fn serialize_struct(
        self,
        name: &'static str,
        _: usize,
    ) -> Result<Entries<'a>, FingerprintError> {
        Ok(Entries::new(
            self.out,
            if name == number::TOKEN {
                Of::Number
            } else {
                Of::Struct
            },
        ))
    }

    fn serialize_struct_variant(
        mut self,
        _: &'static str,
        _: u32,
        name: &'static str,
        _: usize,
    ) -> Result<Entries<'a>, FingerprintError> {
        self.variant(name);
        Ok(Entries::new(self.out, Of::Struct))
    }

    /// The canonical form is not meant to be read, but types such as `Uuid` change their text form
    /// the least.
    fn is_human_readable(&self) -> bool {
        true
    }
}

/// Values in their own order, followed by a tag that begins no value.
pub(super) struct Sequence<'a> {
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
            type Ok = Wrote;
            type Error = FingerprintError;

            fn $method<T: Serialize + ?Sized>(
                &mut self,
                value: &T,
            ) -> Result<(), FingerprintError> {
                value.serialize(Canonical { out: self.out }).map(drop)
            }

            fn end(self) -> Written {
                self.out.push(tag::END);
                Ok(Wrote::Value)
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

/// The value that has the entries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Map,
    Struct,
    /// A struct with `#[serde(flatten)]`, or a map that does not know its length.
    Flattened,
    /// A number of `serde_json`, written as a struct: its only field is its text.
    Number,
}

/// Entries are appended, and sorted at the end. Most structs sort once for each call, and the sort
/// moves only short slices.
pub(super) struct Entries<'a> {
    out: &'a mut Vec<u8>,
    of: Of,
    /// The start of each entry in `out`, and of its value.
    starts: Vec<(usize, usize)>,
}

impl<'a> Entries<'a> {
    fn new(out: &'a mut Vec<u8>, of: Of) -> Self {
        out.push(tag::MAP);
        Self {
            out,
            of,
            starts: Vec::with_capacity(8),
        }
    }

    fn key<K: Serialize + ?Sized>(&mut self, key: &K) -> Result<(), FingerprintError> {
        let start = self.out.len();
        key.serialize(Canonical { out: self.out })?;
        self.starts.push((start, self.out.len()));
        Ok(())
    }

    /// Writes a field of a struct, unless it is `None`.
    fn field<K: Serialize + ?Sized, T: Serialize + ?Sized>(
        &mut self,
        name: &K,
        value: &T,
    ) -> Result<(), FingerprintError> {
        let start = self.out.len();
        self.key(name)?;
        if value.serialize(Canonical { out: self.out })? == Wrote::Nothing {
            self.out.truncate(start);
            self.starts.pop();
        }
        Ok(())
    }

    fn finish(self) {
        let Self { out, of, starts } = self;
        if let (Of::Number, [(start, text)]) = (of, starts.as_slice()) {
            return rewrite(out, start - 1, *text);
        }
        if let Some(&(first, _)) = starts.first() {
            let written = out.split_off(first);
            let ends = starts
                .iter()
                .skip(1)
                .map(|(start, _)| start - first)
                .chain([written.len()]);
            let mut entries: Vec<(&[u8], &[u8])> = starts
                .iter()
                .zip(ends)
                .filter_map(|((start, value), end)| {
                    written
                        .get(start - first..end)?
                        .split_at_checked(value - start)
                })
                .collect();
            match of {
                // A hash map has no order, so entries with equal keys are sorted by their values.
                Of::Map => entries.sort_unstable(),
                // Flattening allows a name to come twice. Such entries keep their order, because
                // the order changes the meaning.
                Of::Struct | Of::Flattened | Of::Number => entries.sort_by_key(|(key, _)| *key),
            }
            for (key, value) in entries {
                out.extend_from_slice(key);
                out.extend_from_slice(value);
            }
        }
        out.push(tag::END);
    }
}

impl ser::SerializeMap for Entries<'_> {
    type Ok = Wrote;
    type Error = FingerprintError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), FingerprintError> {
        self.key(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(
        &mut self,
        value: &T,
    ) -> Result<(), FingerprintError> {
        value.serialize(Canonical { out: self.out }).map(drop)
    }

    fn serialize_entry<K: Serialize + ?Sized, V: Serialize + ?Sized>(
        &mut self,
        key: &K,
        value: &V,
    ) -> Result<(), FingerprintError> {
        // A field's name is a `str`, so a reference to it is two words wide. The keys of maps are
        // sized types.
        let is_name = size_of::<&K>() > size_of::<usize>();
        if self.of == Of::Flattened && is_name {
            return self.field(key, value);
        }
        self.key(key)?;
        self.serialize_value(value)
    }

    fn end(self) -> Written {
        self.finish();
        Ok(Wrote::Value)
    }
}

impl ser::SerializeStruct for Entries<'_> {
    type Ok = Wrote;
    type Error = FingerprintError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), FingerprintError> {
        self.field(name, value)
    }

    fn end(self) -> Written {
        self.finish();
        Ok(Wrote::Value)
    }
}

impl ser::SerializeStructVariant for Entries<'_> {
    type Ok = Wrote;
    type Error = FingerprintError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), FingerprintError> {
        self.field(name, value)
    }

    fn end(self) -> Written {
        self.finish();
        Ok(Wrote::Value)
    }
}

/// Replaces what was written from `start` on by the number whose text begins at `text`.
fn rewrite(out: &mut Vec<u8>, start: usize, text: usize) {
    // The tag and the length come before the text.
    let digits = out
        .get(text + 9..)
        .and_then(|bytes| std::str::from_utf8(bytes).ok())
        .unwrap_or_default()
        .to_owned();
    out.truncate(start);
    let out = Canonical { out };
    match Number::parse(&digits) {
        Number::Natural(number) => out.integer(tag::NATURAL, number.into()),
        Number::Negative(number) => out.integer(tag::NEGATIVE, number.unsigned_abs().into()),
        // Only values' own implementations can fail, so this cannot.
        Number::Float(number) => drop(ser::Serializer::serialize_f64(out, number)),
        Number::Decimal(Some(decimal)) => out.sized(tag::DECIMAL, decimal.to_string().as_bytes()),
        Number::Decimal(None) => out.sized(tag::DECIMAL, digits.as_bytes()),
    }
}
