//! Types and values of all shapes that serde knows: whatever differs has another fingerprint,
//! fields that are `None` excepted.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fastrand::Rng;
use serde::ser::{SerializeMap as _, SerializeStruct as _, SerializeTuple as _};
use serde::{Serialize, Serializer};

use super::of;

const FIELDS: [&str; 2] = ["a", "b"];
const KEYS: [&str; 3] = ["a", "b", "k"];

#[derive(Debug, Clone)]
enum Shape {
    Int,
    Text,
    Unit,
    Optional(Box<Shape>),
    Newtype(Box<Shape>),
    List(Box<Shape>),
    Pair(Box<Shape>, Box<Shape>),
    Struct(Box<Shape>, Box<Shape>),
    Map(Box<Shape>),
    Flat(Box<[Shape; 3]>),
    Either(Box<Shape>, Box<Shape>),
}

#[derive(Debug, Clone)]
enum Value {
    Int(i64),
    Text(&'static str),
    Unit,
    /// In place of a field that is left out.
    Absent,
    Nothing,
    Some(Box<Value>),
    Newtype(Box<Value>),
    List(Vec<Value>),
    Pair(Box<Value>, Box<Value>),
    Struct(Fields),
    Map(Entries),
    Flat(Box<Flat>),
    Variant(&'static str, Box<Value>),
}

/// A derived struct, so that serde's own way of flattening is tried.
#[derive(Debug, Clone, Serialize)]
struct Flat {
    #[serde(skip_serializing_if = "Value::is_absent")]
    own: Value,
    #[serde(flatten)]
    fields: Fields,
    #[serde(flatten)]
    rest: Entries,
}

/// `None` for a field that is left out.
#[derive(Debug, Clone)]
struct Fields([Option<Box<Value>>; 2]);

#[derive(Debug, Clone)]
struct Entries(BTreeMap<&'static str, Value>);

impl Shape {
    fn make(random: &mut Rng, depth: u32) -> Self {
        if depth == 4 {
            return [Self::Int, Self::Text, Self::Unit][random.usize(0..3)].clone();
        }
        let kind = random.u8(0..14);
        let mut inner = || Box::new(Self::make(random, depth + 1));
        let one = inner();
        let two = inner();
        let three = inner();
        match kind {
            0 => Self::Int,
            1 => Self::Text,
            2 => Self::Unit,
            3..6 => Self::Optional(one),
            6 => Self::Newtype(one),
            7 => Self::List(one),
            8 => Self::Pair(one, two),
            9 | 10 => Self::Struct(one, two),
            11 => Self::Map(one),
            12 => Self::Flat(Box::new([*one, *two, *three])),
            _ => Self::Either(one, two),
        }
    }

    fn value(&self, random: &mut Rng) -> Value {
        match self {
            Self::Int => Value::Int(random.i64(-1..2)),
            Self::Text => Value::Text(["", "a", "1"][random.usize(0..3)]),
            Self::Unit => Value::Unit,
            Self::Optional(of) if random.bool() => Value::Some(of.boxed(random)),
            Self::Optional(_) => Value::Nothing,
            Self::Newtype(of) => Value::Newtype(of.boxed(random)),
            Self::List(of) => Value::List((0..random.u8(0..3)).map(|_| of.value(random)).collect()),
            Self::Pair(one, two) => Value::Pair(one.boxed(random), two.boxed(random)),
            Self::Struct(one, two) => Value::Struct(Self::fields(one, two, random)),
            Self::Map(of) => Value::Map(of.entries(random)),
            Self::Flat(of) => {
                let [own, one, two] = &**of;
                let fields = Self::fields(one, two, random);
                Value::Flat(Box::new(Flat {
                    own: own.value(random),
                    fields,
                    rest: one.entries(random),
                }))
            }
            Self::Either(one, two) => {
                let (name, of) = if random.bool() {
                    ("One", one)
                } else {
                    ("Two", two)
                };
                Value::Variant(name, of.boxed(random))
            }
        }
    }

    fn fields(one: &Self, two: &Self, random: &mut Rng) -> Fields {
        Fields([one, two].map(|of| Some(of.boxed(random))))
    }

    fn entries(&self, random: &mut Rng) -> Entries {
        let mut entries = BTreeMap::new();
        for key in KEYS {
            if random.bool() {
                entries.insert(key, self.value(random));
            }
        }
        Entries(entries)
    }

    fn boxed(&self, random: &mut Rng) -> Box<Value> {
        Box::new(self.value(random))
    }
}

impl Value {
    /// Without the fields that are `None`, which are all that a fingerprint may leave out.
    fn stripped(&self) -> Self {
        let boxed = |value: &Self| Box::new(value.stripped());
        match self {
            Self::Some(value) => Self::Some(boxed(value)),
            Self::Newtype(value) => Self::Newtype(boxed(value)),
            Self::List(values) => Self::List(values.iter().map(Self::stripped).collect()),
            Self::Pair(one, two) => Self::Pair(boxed(one), boxed(two)),
            Self::Struct(fields) => Self::Struct(fields.stripped()),
            Self::Map(entries) => Self::Map(entries.stripped()),
            Self::Flat(flat) => Self::Flat(Box::new(Flat {
                own: flat.own.stripped_field().unwrap_or(Self::Absent),
                fields: flat.fields.stripped(),
                rest: flat.rest.stripped(),
            })),
            Self::Variant(name, value) => Self::Variant(name, boxed(value)),
            Self::Int(_) | Self::Text(_) | Self::Unit | Self::Nothing | Self::Absent => {
                self.clone()
            }
        }
    }

    fn stripped_field(&self) -> Option<Self> {
        if matches!(self, Self::Nothing | Self::Absent) {
            None
        } else {
            Some(self.stripped())
        }
    }

    /// The text of a stripped value: the specification. Newtypes have the text of their
    /// content, and structs that of a map.
    fn says(&self) -> String {
        match self {
            Self::Int(number) => number.to_string(),
            Self::Text(text) => format!("{text:?}"),
            Self::Unit => "()".to_owned(),
            Self::Nothing | Self::Absent => "none".to_owned(),
            Self::Some(value) if value.is_hollow() => format!("some {}", value.says()),
            Self::Some(value) | Self::Newtype(value) => value.says(),
            Self::List(values) => {
                let all: Vec<String> = values.iter().map(Self::says).collect();
                format!("[{}]", all.join(","))
            }
            Self::Pair(one, two) => format!("[{},{}]", one.says(), two.says()),
            Self::Struct(_) | Self::Map(_) | Self::Flat(_) => {
                let mut entries = self.entries();
                entries.sort_by_key(|(name, _)| *name);
                entries
                    .iter()
                    .fold(String::new(), |mut all, (name, value)| {
                        write!(all, "{name}={};", value.says()).unwrap();
                        all
                    })
                    + "end"
            }
            Self::Variant(name, value) => format!("{name}!{}", value.says()),
        }
    }

    fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    fn is_hollow(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Some(value) | Self::Newtype(value) => value.is_hollow(),
            _ => false,
        }
    }

    fn entries(&self) -> Vec<(&'static str, &Self)> {
        match self {
            Self::Struct(fields) => fields.list(),
            Self::Map(entries) => entries.list(),
            Self::Flat(flat) => {
                let own = Some(("own", &flat.own)).filter(|(_, own)| !own.is_absent());
                own.into_iter()
                    .chain(flat.fields.list())
                    .chain(flat.rest.list())
                    .collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Fields {
    fn stripped(&self) -> Self {
        Self(self.0.each_ref().map(|value| {
            value
                .as_deref()
                .and_then(Value::stripped_field)
                .map(Box::new)
        }))
    }

    fn list(&self) -> Vec<(&'static str, &Value)> {
        let named = FIELDS.into_iter().zip(&self.0);
        named
            .filter_map(|(name, value)| Some((name, value.as_deref()?)))
            .collect()
    }
}

impl Entries {
    fn stripped(&self) -> Self {
        Self(
            self.0
                .iter()
                .map(|(key, value)| (*key, value.stripped()))
                .collect(),
        )
    }

    fn list(&self) -> Vec<(&'static str, &Value)> {
        self.0.iter().map(|(key, value)| (*key, value)).collect()
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut written = serializer.serialize_struct("Struct", self.list().len())?;
        for (name, value) in FIELDS.into_iter().zip(&self.0) {
            match value {
                Some(value) => written.serialize_field(name, value)?,
                None => written.skip_field(name)?,
            }
        }
        written.end()
    }
}

impl Serialize for Entries {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut written = serializer.serialize_map(Some(self.0.len()))?;
        // Not in their order.
        for (key, value) in self.0.iter().rev() {
            written.serialize_entry(key, value)?;
        }
        written.end()
    }
}

/// As serde's derive does it.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Int(number) => serializer.serialize_i64(*number),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Unit => serializer.serialize_unit(),
            Self::Nothing | Self::Absent => serializer.serialize_none(),
            Self::Some(value) => serializer.serialize_some(value),
            Self::Newtype(value) => serializer.serialize_newtype_struct("Newtype", value),
            Self::List(values) => values.serialize(serializer),
            Self::Pair(one, two) => {
                let mut pair = serializer.serialize_tuple(2)?;
                pair.serialize_element(one)?;
                pair.serialize_element(two)?;
                pair.end()
            }
            Self::Struct(fields) => fields.serialize(serializer),
            Self::Map(entries) => entries.serialize(serializer),
            Self::Flat(flat) => flat.serialize(serializer),
            Self::Variant(name, value) => {
                serializer.serialize_newtype_variant("Either", 0, name, value)
            }
        }
    }
}

#[test]
fn values_that_differ_have_other_fingerprints_and_values_that_say_the_same_have_one() {
    let mut pairs = 0;
    let mut same = 0;
    for seed in 0..10_000 {
        let mut random = Rng::with_seed(seed);
        let shape = Shape::make(&mut random, 0);
        let one = shape.value(&mut random);
        let two = shape.value(&mut random);
        let one_stripped = one.stripped();
        let two_stripped = two.stripped();
        let digests = [&one, &two].map(of);
        assert_eq!(
            digests[0],
            of(&one_stripped),
            "a field that is `None` is absent: {one:?}"
        );
        let is_same = one_stripped.says() == two_stripped.says();
        assert_eq!(
            digests[0] == digests[1],
            is_same,
            "seed {seed}: {one:?} and {two:?}"
        );
        // An independent check: different JSON is another payload.
        let json =
            [&one_stripped, &two_stripped].map(|value| serde_json::to_string(value).unwrap());
        assert!(
            json[0] == json[1] || digests[0] != digests[1],
            "seed {seed}: {json:?}"
        );
        pairs += 1;
        same += usize::from(is_same);
    }
    assert!(
        (pairs / 10..pairs / 2).contains(&same),
        "{same} of {pairs} pairs say the same"
    );
}
