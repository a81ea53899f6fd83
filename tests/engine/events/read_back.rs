//! Outcomes that serde writes and does not read as they were: the first call says so.

use std::collections::{BTreeMap, HashMap, HashSet};

use idem::{Begin, Idempotency, MemoryStore};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::*;

#[derive(Debug, Serialize, Deserialize)]
struct Skipped {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lines: Vec<u32>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Renamed {
    #[serde(rename(serialize = "written"))]
    id: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct RenamedWithDefault {
    #[serde(default, rename(serialize = "written"))]
    id: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct SkippedForWriting {
    #[serde(skip_serializing)]
    _id: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct SkippedForReading {
    #[serde(skip_deserializing)]
    id: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct SkippedForWritingWithDefault {
    #[serde(default, skip_serializing)]
    _id: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all(serialize = "camelCase"))]
struct AllRenamed {
    order_id: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all(serialize = "UPPERCASE"))]
enum VariantsRenamed {
    Paid,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Tagged {
    Large { number: u128 },
    Negative { number: i128 },
    ByNumber(BTreeMap<u64, u32>),
    Small { number: u64 },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum LargeUntagged {
    Large { number: u128 },
}

#[derive(Debug, Serialize, Deserialize)]
struct Inner {
    number: i128,
}

#[derive(Debug, Serialize, Deserialize)]
struct FlatLarge {
    #[serde(flatten)]
    inner: Inner,
}

#[derive(Debug, Serialize, Deserialize)]
struct Flat<K: Ord + Serialize + DeserializeOwned> {
    #[serde(flatten, bound = "")]
    map: BTreeMap<K, u32>,
}

/// A newtype around what may be `null`.
#[derive(Debug, Serialize, Deserialize)]
struct New(Option<u32>);

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Any {
        #[serde(default)]
        a: u32,
    },
    Other {
        b: u32,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Plain {
    text: String,
    number: u128,
    float: f64,
    nothing: Option<u32>,
    pairs: HashMap<u32, String>,
    set: HashSet<u32>,
}

fn deep(levels: u32) -> Vec<Nest> {
    (1..levels).fold(vec![], |inner, _| vec![Nest(inner)])
}

#[derive(Debug, Serialize, Deserialize)]
struct Nest(Vec<Self>);

fn plain() -> Plain {
    Plain {
        text: "a".into(),
        number: u128::MAX,
        float: 0.1 + 0.2,
        nothing: None,
        pairs: (0..50).map(|n| (n, "b".into())).collect(),
        set: (0..50).collect(),
    }
}

/// Records the value in each way that there is, each time with a key of its own. Each is said once.
async fn recorded<T>(log: &Log, name: &str, make: impl Fn() -> T, is_said: bool)
where
    T: Serialize + DeserializeOwned,
{
    let idempotency = Idempotency::builder(MemoryStore::new())
        .check_outcomes()
        .build();
    let said = |how: &str| {
        let decisions = log.decisions();
        let count = decisions
            .iter()
            .filter(|said| **said == (Level::WARN, "not_read_back".to_owned()))
            .count();
        assert_eq!(count, usize::from(is_said), "{name}, {how}: {decisions:?}");
    };
    let operation = |key: &'static str| idempotency.operation("read.back").key(key);
    let body = async || Ok::<_, Error>(make());
    operation("run").run(body).await.unwrap();
    said("run");
    let Begin::Execute(lease) = operation("lease").begin().await.unwrap() else {
        panic!("it is recorded")
    };
    lease.commit(&make()).await.unwrap();
    said("a lease");
    let Begin::Execute(lease) = operation("error").begin().await.unwrap() else {
        panic!("it is recorded")
    };
    lease.commit_error(&make(), None).await.unwrap();
    said("a kept error");
    let stepped = operation("step").run(async || {
        idem::step("one", body).await?;
        said("a step");
        Ok::<_, Error>(())
    });
    stepped.await.unwrap();
    operation("settled").settle(&make()).await.unwrap();
    said("settled");
    let value = make();
    operation("settled error")
        .settle_error(&value)
        .await
        .unwrap();
    said("a settled error");
    // A replay says nothing more of it than before.
    drop(operation("run").run(body).await);
    let decisions = log.decisions();
    assert!(
        !decisions.iter().any(|(_, said)| said == "not_read_back"),
        "{name}: {decisions:?}"
    );
}

#[tokio::test]
async fn an_outcome_that_is_not_read_as_it_was_written_is_said_by_the_first_call() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    recorded(&log, "skipped", || Skipped { lines: vec![] }, true).await;
    recorded(&log, "not skipped", || Skipped { lines: vec![1] }, false).await;
    recorded(&log, "renamed", || Renamed { id: 1 }, true).await;
    recorded(
        &log,
        "renamed, default",
        || RenamedWithDefault { id: 1 },
        true,
    )
    .await;
    recorded(&log, "for writing", || SkippedForWriting { _id: 1 }, true).await;
    recorded(
        &log,
        "128 bits",
        || Tagged::Large { number: u128::MAX },
        true,
    )
    .await;
    let flat = || Flat {
        map: BTreeMap::from([(1_u64, 2)]),
    };
    recorded(&log, "by number", flat, true).await;
    let flat = || Flat {
        map: BTreeMap::from([("1".to_owned(), 2)]),
    };
    recorded(&log, "by text", flat, false).await;
    recorded(&log, "another variant", || Untagged::Other { b: 1 }, true).await;
    recorded(&log, "the first variant", || Untagged::Any { a: 1 }, false).await;
    recorded(&log, "deep", || deep(200), true).await;
    recorded(&log, "as deep as can be", || deep(127), false).await;
    recorded(&log, "plain", plain, false).await;
    recorded(&log, "unit", || (), false).await;
    recorded(&log, "nan", || f64::NAN, true).await;
    recorded(&log, "infinite", || f32::INFINITY, true).await;
    let text = log.text();
    assert!(text.contains("`Skipped`: "), "{text}");
}

#[tokio::test]
async fn names_and_numbers_that_serde_writes_in_one_way_and_reads_in_another_are_said() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    recorded(&log, "all renamed", || AllRenamed { order_id: 1 }, true).await;
    recorded(&log, "variants", || VariantsRenamed::Paid, true).await;
    recorded(&log, "for reading", || SkippedForReading { id: 1 }, true).await;
    recorded(
        &log,
        "zero for reading",
        || SkippedForReading { id: 0 },
        false,
    )
    .await;
    let negative = || Tagged::Negative { number: i128::MIN };
    recorded(&log, "128 bits with a sign", negative, true).await;
    let by_number = || Tagged::ByNumber(BTreeMap::from([(1, 2)]));
    recorded(&log, "by number in a tagged enum", by_number, true).await;
    recorded(
        &log,
        "64 bits",
        || Tagged::Small { number: u64::MAX },
        false,
    )
    .await;
    let untagged = || LargeUntagged::Large { number: u128::MAX };
    recorded(&log, "128 bits, untagged", untagged, true).await;
    let inner = || Inner { number: i128::MIN };
    recorded(
        &log,
        "128 bits, flattened",
        || FlatLarge { inner: inner() },
        true,
    )
    .await;
    recorded(&log, "128 bits", inner, false).await;
    // What is not written cannot be compared.
    let unwritten = || SkippedForWritingWithDefault { _id: 1 };
    recorded(&log, "for writing, default", unwritten, false).await;
}

#[tokio::test]
async fn values_that_are_all_written_as_null_are_told_apart() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    recorded(&log, "none inside", || Some(None::<u32>), true).await;
    recorded(&log, "none", || None::<Option<u32>>, false).await;
    recorded(&log, "some", || Some(Some(1)), false).await;
    recorded(&log, "unit inside", || Some(()), true).await;
    recorded(&log, "newtype", || New(None), false).await;
    recorded(&log, "newtype inside", || Some(New(None)), true).await;
    recorded(&log, "nan inside", || Some(f64::NAN), true).await;
    recorded(&log, "in a list", || vec![Some(None), Some(Some(1))], true).await;
    recorded(&log, "without it", || vec![None, Some(Some(1))], false).await;
}
