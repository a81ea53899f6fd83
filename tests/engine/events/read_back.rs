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
#[serde(tag = "kind")]
enum Tagged {
    Large { number: u128 },
}

#[derive(Debug, Serialize, Deserialize)]
struct Flat {
    #[serde(flatten)]
    by_number: BTreeMap<u64, u32>,
}

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
        by_number: BTreeMap::from([(1, 2)]),
    };
    recorded(&log, "by number", flat, true).await;
    recorded(&log, "another variant", || Untagged::Other { b: 1 }, true).await;
    recorded(&log, "the first variant", || Untagged::Any { a: 1 }, false).await;
    recorded(&log, "deep", || deep(200), true).await;
    recorded(&log, "flat", || deep(5), false).await;
    recorded(&log, "plain", plain, false).await;
    recorded(&log, "unit", || (), false).await;
    recorded(&log, "nan", || f64::NAN, true).await;
    let text = log.text();
    assert!(text.contains("`Skipped`: "), "{text}");
}
