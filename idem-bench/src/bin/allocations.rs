//! Counts the allocations of a call, and prints them as JSON: `allocations FILE`. A program of its own, because what counts replaces
//! the allocator.

use std::collections::BTreeMap;
use std::process::ExitCode;

use allocation_counter::measure;
use anyhow::{Context as _, Result};
use idem::{Error, Idempotency, MemoryStore, scope};
use idem_bench::{Keys, annotated, plain, result};
use tokio::runtime::Runtime;

/// The counts are means of so many calls: what is allocated now and then, such as for a table that grows, is in them.
const CALLS: u32 = 10_000;

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
    counts.insert("encoding", mean(&mut || drop(serde_json::to_vec(&result))));
    counts.insert("decoding", mean(&mut || drop(serde_json::from_slice::<String>(&encoded))));
    counts.insert("body", mean(&mut || drop(tokio.block_on(plain(&result)))));
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

/// The mean of calls with keys that differ, the same ones each time; with one that is not counted before them.
fn scoped(
    tokio: &Runtime,
    idempotency: Idempotency,
    mut call: impl AsyncFnMut(&mut Keys) -> Result<String, Error>,
) -> Result<f64> {
    tokio.block_on(scope(idempotency, async {
        let (mut keys, mut first) = (Keys::new(0), Keys::new(1));
        call(&mut first).await?;
        let mut failed = Ok(());
        let counted = counted(async {
            for _ in 0..CALLS {
                if let Err(error) = call(&mut keys).await {
                    failed = Err(error);
                    return;
                }
            }
        });
        let count = counted.await;
        failed?;
        Ok(count / f64::from(CALLS))
    }))
}

/// The allocations of a future, in all of its polls.
async fn counted(future: impl Future<Output = ()>) -> f64 {
    let mut future = std::pin::pin!(future);
    let mut total = 0.0;
    std::future::poll_fn(|context| {
        let mut polled = std::task::Poll::Pending;
        let info = measure(|| polled = future.as_mut().poll(context));
        total += count_of(info.count_total);
        polled
    })
    .await;
    total
}

fn mean(call: &mut dyn FnMut()) -> f64 {
    call();
    let info = measure(|| (0..CALLS).for_each(|_| call()));
    count_of(info.count_total) / f64::from(CALLS)
}

#[allow(clippy::cast_precision_loss)]
fn count_of(count: u64) -> f64 {
    count as f64
}
