//! Outcomes: what a duplicate gets when something stands in the record that no body of this version
//! wrote.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use bytes::Bytes;
use idem_core::record::{
    Claim, Claimed, Commit, Encoded, Issue, Issued, Ownership, RecordId, RecordInfo, Release,
    Removed, Renewal,
};
use idem_core::{Begin, CodecId, Error, Idempotency, MemoryStore, Recorded, Store, StoreError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

use crate::Input;

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime of one thread");
}

/// An outcome that was found: its kind, its codec, its bytes.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.byte();
    let codec = if kind & 2 == 0 {
        CodecId::JSON
    } else {
        CodecId::parse(b"cbor").unwrap_or(CodecId::JSON)
    };
    let outcome =
        Encoded::new(codec, Bytes::copy_from_slice(input.rest())).with_is_error(kind & 1 == 1);
    RUNTIME.with(|runtime| runtime.block_on(found(&outcome)));
}

async fn found(outcome: &Encoded) {
    let idempotency = Idempotency::new(Found(outcome.clone()));
    let recorded = match idempotency.operation("fuzz").key("k").begin().await {
        Ok(Begin::Replay(recorded)) => recorded,
        other => panic!("an outcome is replayed: {other:?}"),
    };
    assert_eq!(recorded.is_error(), outcome.is_error);
    read::<()>(&recorded, outcome);
    read::<u64>(&recorded, outcome);
    read::<Vec<u8>>(&recorded, outcome);
    read::<serde_json::Value>(&recorded, outcome);
    read::<BTreeMap<i8, Option<char>>>(&recorded, outcome);
    read::<String>(&recorded, outcome);
    read::<Result<Receipt, Refusal>>(&recorded, outcome);

    replayed::<String>(&idempotency, outcome).await;
    replayed::<Receipt>(&idempotency, outcome).await;

    if let Ok(value) = serde_json::from_slice::<Receipt>(&outcome.payload) {
        kept(value).await;
    }
    if let Ok(value) = serde_json::from_slice::<serde_json::Value>(&outcome.payload) {
        kept(value).await;
    }
    if let Ok(value) = serde_json::from_slice::<Result<Vec<Receipt>, Refusal>>(&outcome.payload) {
        kept(value).await;
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Receipt {
    id: String,
    amount: i128,
    rate: f64,
    note: Option<String>,
    lines: Vec<(u8, char)>,
    #[serde(default)]
    tags: BTreeMap<u64, bool>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Refusal {
    Declined,
    Limit { cents: u64 },
    Other(String),
}

/// A value that can be read is what JSON says; anything else is an error that says so, and no
/// panic.
fn read<T: DeserializeOwned + PartialEq + Debug>(recorded: &Recorded, outcome: &Encoded) {
    let json = serde_json::from_slice::<T>(&outcome.payload)
        .ok()
        .filter(|_| outcome.codec == CodecId::JSON);
    same(
        recorded.decode::<T>(),
        json.as_ref().filter(|_| !outcome.is_error),
    );
    same(
        recorded.decode_error::<T>(),
        json.as_ref().filter(|_| outcome.is_error),
    );
}

fn same<T: PartialEq + Debug>(read: Result<T, Error>, expected: Option<&T>) {
    match read {
        Ok(value) => assert_eq!(Some(&value), expected),
        Err(error @ Error::Codec { .. }) => assert_eq!(None, expected, "{error}"),
        Err(error) => panic!("{error}"),
    }
}

/// No body runs where there is an outcome, be it readable or not.
async fn replayed<T: Serialize + DeserializeOwned + PartialEq + Debug>(
    idempotency: &Idempotency,
    outcome: &Encoded,
) {
    let body = || async { panic!("a body ran beside an outcome") };
    let answer: Result<_, Error> = idempotency.operation("fuzz").key("k").run(body).await;
    let json = serde_json::from_slice::<T>(&outcome.payload).ok();
    let expected = json
        .as_ref()
        .filter(|_| outcome.codec == CodecId::JSON && !outcome.is_error);
    same(answer.map(idem_core::Outcome::<T>::into_inner), expected);
}

/// Checks that the next call gets the value of the first one.
async fn kept<T: Serialize + DeserializeOwned + Clone + PartialEq + Debug>(value: T) {
    let idempotency = Idempotency::new(MemoryStore::new());
    for is_replayed in [false, true] {
        let body = || async { Ok(value.clone()) };
        let answer: Result<_, Error> = idempotency.operation("fuzz").key("k").run(body).await;
        let answer = answer.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            (answer.is_replayed(), answer.get()),
            (is_replayed, &value),
            "a duplicate gets an equal outcome"
        );
    }
}

/// A store in which this outcome stands at every key.
struct Found(Encoded);

impl Store for Found {
    async fn claim(&self, _: &Claim) -> Result<Claimed, StoreError> {
        Ok(Claimed::Committed {
            attempt: 1,
            outcome: self.0.clone(),
        })
    }

    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        issues.iter().map(|_| Ok(Issued::Taken)).collect()
    }

    async fn commit(&self, _: &Commit) -> Result<Ownership, StoreError> {
        Ok(Ownership::Lost)
    }

    async fn release(&self, _: &Release) -> Result<Ownership, StoreError> {
        Ok(Ownership::Lost)
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        renewals.iter().map(|_| Ok(Ownership::Lost)).collect()
    }

    async fn wait(&self, _: &RecordId, _: u64, _: Duration) -> Result<(), StoreError> {
        Ok(())
    }

    async fn inspect(&self, _: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        Ok(None)
    }

    async fn remove(&self, _: &RecordId) -> Result<Removed, StoreError> {
        Ok(Removed::Nothing)
    }
}
