//! Counts the allocations of a call, and prints them as JSON: `allocations FILE`. A program of its
//! own, because what counts replaces the allocator.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::process::ExitCode;
use std::task::Poll;

use allocation_counter::measure;
use anyhow::{Context as _, Result};
use idem::{Error, Idempotency, MemoryStore, scope};
use idem_bench::{Keys, annotated, plain, result};
use serde::Serialize;
use tokio::runtime::Runtime;

/// Of so many calls.
const CALLS: u32 = 10_000;
/// In a store that has so many records of others.
const OTHERS: u32 = 100_000;

/// The allocations of a call.
#[derive(Serialize)]
struct Count {
    median: u64,
    /// With what is allocated now and then, such as for a table that grows.
    mean: f64,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = result();
    let encoded = serde_json::to_vec(&result)?;
    let mut counts = BTreeMap::new();
    counts.insert("encoding", plainly(&mut || drop(serde_json::to_vec(&result))));
    counts.insert("decoding", plainly(&mut || drop(serde_json::from_slice::<String>(&encoded))));
    counts.insert("body", plainly(&mut || drop(tokio.block_on(plain(&result)))));
    counts.insert(
        "disabled",
        scoped(&tokio, Idempotency::disabled(), async |keys: &mut Keys| annotated(keys.advance(), &result).await)?,
    );

    // A store that has the records already.
    let idempotency = Idempotency::new(MemoryStore::new());
    let by_hand = async |idempotency: &Idempotency, key: &str| {
        idempotency.operation("bench").key(key).run(|| plain(&result)).await.map(idem::Outcome::into_inner)
    };
    for name in ["first", "replay"] {
        let own = idempotency.clone();
        let count = scoped(&tokio, idempotency.clone(), async |keys: &mut Keys| by_hand(&own, keys.advance()).await)?;
        counts.insert(name, count);
    }
    let idempotency = Idempotency::new(MemoryStore::new());
    for name in ["annotated_first", "annotated_replay"] {
        let count =
            scoped(&tokio, idempotency.clone(), async |keys: &mut Keys| annotated(keys.advance(), &result).await)?;
        counts.insert(name, count);
    }

    let json = serde_json::to_string_pretty(&counts)?;
    let Some(file) = std::env::args_os().nth(1) else {
        println!("{json}");
        return Ok(());
    };
    std::fs::write(&file, json).with_context(|| format!("cannot write {}", file.display()))
}

/// Calls with keys that differ, the same ones each time, after those of others, which are not
/// counted.
fn scoped(
    tokio: &Runtime,
    idempotency: Idempotency,
    mut call: impl AsyncFnMut(&mut Keys) -> Result<String, Error>,
) -> Result<Count> {
    tokio.block_on(scope(idempotency, async {
        let (mut keys, mut others) = (Keys::new(0), Keys::new(1));
        for _ in 0..OTHERS {
            call(&mut others).await?;
        }
        let mut counts = Vec::new();
        for _ in 0..CALLS {
            let (result, count) = counted(call(&mut keys)).await;
            result?;
            counts.push(count);
        }
        Ok(Count::of(counts))
    }))
}

/// The allocations of a future, in all of its polls.
async fn counted<T>(future: impl Future<Output = T>) -> (T, u64) {
    let mut future = pin!(future);
    let mut total = 0;
    let output = poll_fn(|context| {
        let mut polled = Poll::Pending;
        total += measure(|| polled = future.as_mut().poll(context)).count_total;
        polled
    });
    (output.await, total)
}

fn plainly(call: &mut dyn FnMut()) -> Count {
    call();
    Count::of((0..CALLS).map(|_| measure(&mut *call).count_total).collect())
}

impl Count {
    #[allow(clippy::cast_precision_loss)]
    fn of(mut counts: Vec<u64>) -> Self {
        counts.sort_unstable();
        let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        Self { median: counts.get(counts.len() / 2).copied().unwrap_or_default(), mean }
    }
}
