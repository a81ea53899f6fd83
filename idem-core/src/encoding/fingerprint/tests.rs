#![allow(clippy::unwrap_used, clippy::panic)]

mod made_up;

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

const ORDER: Order = Order {
    id: "o-1",
    amount: 1999,
    note: None,
    lines: Vec::new(),
};

/// The digest is stored with live records, so a change of these strings breaks running deployments.
#[test]
fn digests_are_pinned_for_ever() {
    let all = [
        of(()),
        of(0u8),
        of(-1i64),
        of("text"),
        of(1.5f32),
        of(None::<u8>),
        of(vec![1u8, 2]),
        of(ORDER),
    ];
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
        of(Order {
            lines: vec![(1, 2.5)],
            ..ORDER
        }),
        of(Reordered {
            id: "o-1".into(),
            amount: 1999,
            lines: vec![(1, 2.5)]
        })
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

/// Values that older versions could not distinguish. Their digests are stored like the others.
#[test]
fn digests_of_nested_options_and_exact_numbers_are_pinned() {
    let all = [
        of(Patch { note: Some(None) }),
        of(Some(None::<u8>)),
        of(Named { note: Note(None) }),
        of(Number("0.1000000000000000000001")),
    ];
    assert_eq!(all, PINNED_LATER);
}

const PINNED_LATER: [&str; 4] = [
    "yB6sF9RA1eRD-QdyLutNZA",
    "dXMW5dxOiwywNpGOyGyVxA",
    "veUFx_XTcGXcOMUgJt7raQ",
    "qlaciZDtGYi7a-U9vTVZKA",
];

#[derive(Serialize)]
#[allow(clippy::option_option)]
struct Patch {
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<Option<&'static str>>,
}

#[derive(Serialize)]
struct Note(Option<&'static str>);

#[derive(Serialize)]
struct Named {
    note: Note,
}

#[derive(Serialize)]
struct Empty {}

#[test]
fn an_explicit_null_differs_from_an_absent_field() {
    let absent = Patch { note: None };
    let null = Patch { note: Some(None) };
    let text = Patch {
        note: Some(Some("")),
    };
    assert_eq!(of(&absent), of(Empty {}));
    assert_ne!(of(&null), of(&absent));
    assert_ne!(of(&null), of(&text));
    // On its own, in a sequence, and one level deeper.
    assert_ne!(of(Some(None::<u8>)), of(None::<Option<u8>>));
    assert_ne!(of([Some(None::<u8>)]), of([None::<Option<u8>>]));
    assert_ne!(of(Some(Some(None::<u8>))), of(Some(None::<Option<u8>>)));
    // A newtype is a value, even if it contains `None`.
    assert_ne!(of(Named { note: Note(None) }), of(Empty {}));
    assert_ne!(
        of(Named { note: Note(None) }),
        of(Named {
            note: Note(Some(""))
        })
    );
    assert_eq!(
        of(Named {
            note: Note(Some("x"))
        }),
        of(Patch {
            note: Some(Some("x"))
        })
    );
    // `serde_json` has no absent fields.
    assert_ne!(
        of(serde_json::json!({ "note": null })),
        of(serde_json::json!({}))
    );
}

#[derive(Serialize, Default)]
struct Page {
    number: u32,
    cursor: Option<u32>,
    #[serde(flatten)]
    filter: Filter,
    #[serde(flatten)]
    rest: HashMap<String, Option<u32>>,
    #[serde(flatten)]
    more: Option<Filter>,
}

#[derive(Serialize, Default)]
struct Filter {
    by: Option<u32>,
    #[serde(flatten)]
    deeper: Deeper,
}

#[derive(Serialize, Default)]
struct Deeper {
    name: Option<u32>,
}

#[test]
fn a_new_optional_field_changes_nothing_next_to_a_flattened_one_or_inside_it() {
    #[derive(Serialize)]
    struct Before {
        number: u32,
    }
    assert_eq!(
        of(Page {
            number: 1,
            ..Page::default()
        }),
        of(Before { number: 1 })
    );
    assert_eq!(
        of(Page {
            number: 1,
            more: Some(Filter::default()),
            ..Page::default()
        }),
        of(Before { number: 1 })
    );
    let set = [
        Page {
            cursor: Some(2),
            ..Page::default()
        },
        Page {
            filter: Filter {
                by: Some(2),
                ..Filter::default()
            },
            ..Page::default()
        },
        Page {
            filter: Filter {
                by: None,
                deeper: Deeper { name: Some(2) },
            },
            ..Page::default()
        },
        Page {
            rest: HashMap::from([("cursor".into(), Some(3))]),
            ..Page::default()
        },
        // A map has no optional fields: a key is there or not.
        Page {
            rest: HashMap::from([("cursor".into(), None)]),
            ..Page::default()
        },
        Page {
            rest: HashMap::from([("by".into(), None)]),
            ..Page::default()
        },
        Page::default(),
    ];
    let unique: std::collections::HashSet<_> = set.iter().map(of).collect();
    assert_eq!(unique.len(), set.len());
    // A map that does not know its length is still a map.
    assert_eq!(of(Lazy), of(HashMap::from([("a", None::<u8>)])));
}

struct Lazy;

impl Serialize for Lazy {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([("a", None::<u8>)].into_iter().filter(|_| true))
    }
}

/// A number as `serde_json` writes it with `arbitrary_precision`.
struct Number(&'static str);

impl Serialize for Number {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut number = serializer.serialize_struct("$serde_json::private::Number", 1)?;
        number.serialize_field("$serde_json::private::Number", self.0)?;
        number.end()
    }
}

#[test]
fn arbitrary_precision_of_serde_json_changes_no_fingerprint() {
    let same = [
        "0",
        "-0",
        "7",
        "-7",
        "18446744073709551615",
        "-9223372036854775808",
        "1.5",
        "1.50",
        "-1.5e-7",
        "1E3",
        "100e-2",
        "0.1",
        "1e16",
        "100000000000000000000",
        "1e308",
        "5e-324",
        "-0.0",
        "0e5",
        "0.30000000000000004",
    ];
    for text in same {
        let plain: serde_json::Value = serde_json::from_str(text).unwrap();
        assert!(
            !plain.is_string() && of(Number(text)) == of(&plain),
            "{text}"
        );
    }
    assert_eq!(of([Number("7")]), of([7]));
    assert_eq!(
        of(HashMap::from([("cents", Number("1999"))])),
        of(serde_json::json!({ "cents": 1999 }))
    );
}

#[test]
fn numbers_that_differ_beyond_what_a_float_holds_differ() {
    let distinct = [
        "0.1",
        "0.10000000000000000001",
        "18446744073709551616",
        "18446744073709551617",
        "1e400",
        "1e401",
        "-1e400",
        "1e-400",
        "0.0",
        "1e99999999999999999999",
        "not a number",
        "",
    ];
    let unique: std::collections::HashSet<_> = distinct.into_iter().map(Number).map(of).collect();
    assert_eq!(unique.len(), distinct.len());
    // Equal numbers are equal, however they are written.
    assert_eq!(
        of(Number("0.10000000000000000001")),
        of(Number("10000000000000000001E-20"))
    );
    assert_eq!(of(Number("10e399")), of(Number("1e+400")));
}

#[test]
fn of_two_equal_names_the_first_stays_first() {
    #[derive(Serialize)]
    struct Twice {
        amount: u32,
        #[serde(flatten)]
        rest: BTreeMap<&'static str, u32>,
    }
    let twice = |amount, other| {
        of(Twice {
            amount,
            rest: BTreeMap::from([("amount", other)]),
        })
    };
    assert_ne!(twice(1, 2), twice(2, 1));
}
