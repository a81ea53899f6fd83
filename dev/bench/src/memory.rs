//! The cost of records in the `MemoryStore`: memory, and the longest call while the store grows and
//! forgets.
//!
//! In a process of its own, whose memory is that of the store.

use std::env;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use idem::{Idempotency, MemoryStore};
use idem_bench::{KEY_BYTES, Keys, RESULT_BYTES, plain, result};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::machine;
use crate::report::{Figure, Group, Unit};

/// Key, and the result as JSON.
#[allow(clippy::cast_precision_loss)]
const PAYLOAD: f64 = (KEY_BYTES + RESULT_BYTES + 2) as f64;

/// The results of the other process.
#[derive(Serialize, Deserialize)]
pub(crate) struct Found {
    records: u32,
    /// Of each record, over key and payload; `None` where the system does not tell.
    bytes: Option<f64>,
    growing: Longest,
    expiring: Longest,
    /// Of a loop that does nothing but read the clock, for as long as the records took to expire:
    /// what the machine takes from any program.
    idle: Longest,
    /// How many records were left of those that had expired.
    left: usize,
}

/// The longest call, in milliseconds.
#[derive(Default, Serialize, Deserialize)]
struct Longest {
    /// By the processor's time that the thread was given: what others took is not in it.
    processor: f64,
    /// By the clock on the wall.
    wall: f64,
    /// The mean, in microseconds.
    mean: f64,
}

impl Longest {
    #[allow(clippy::cast_precision_loss)]
    fn of(processor: i64, wall: Duration, all: Duration, calls: u32) -> Self {
        let mean = all.as_secs_f64() * 1e6 / f64::from(calls);
        Self {
            processor: processor as f64 / 1e6,
            wall: wall.as_secs_f64() * 1e3,
            mean,
        }
    }
}

/// Starts the process, and gives its part of the tables.
pub(crate) fn group(records: u32) -> Result<Group> {
    let program = env::current_exe()?;
    let output = Command::new(program)
        .args(["memory", "--records", &records.to_string()])
        .output()?;
    ensure!(
        output.status.success(),
        "the memory of records: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let found: Found = serde_json::from_slice(&output.stdout).context("the memory of records")?;
    let mut figures = Vec::new();
    if let Some(bytes) = found.bytes {
        let what = format!(
            "{} records: bytes each, over key and payload",
            thousands(found.records)
        );
        figures.push(
            Figure::new(what, Unit::Bytes, vec![bytes])
                .at_most(310.0)
                .series("resident", Unit::Bytes, &[bytes + PAYLOAD])
                .series("key and payload", Unit::Bytes, &[PAYLOAD]),
        );
    }
    let of = |what: &str, longest: &Longest| {
        Figure::new(what, Unit::Milliseconds, vec![longest.processor])
            .at_most(1.0)
            .series("by the wall's clock", Unit::Milliseconds, &[longest.wall])
            .series("mean", Unit::Microseconds, &[longest.mean])
    };
    let growing = "longest call while the store grows, processor time";
    figures.push(of(growing, &found.growing));
    let expiring = "longest call while as many expire, processor time";
    let expiring = of(expiring, &found.expiring);
    #[allow(clippy::cast_precision_loss)]
    let expiring = expiring
        .series(
            "the longest turn of a loop that only reads the clock, for as long:",
            Unit::Milliseconds,
            &[found.idle.processor],
        )
        .series("expired records left:", Unit::Count, &[found.left as f64]);
    figures.push(expiring);
    Ok(Group {
        title: "Memory of the MemoryStore".to_owned(),
        figures,
    })
}

/// The other process.
pub(crate) fn run(records: u32) -> Result<Found> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(measure(records))
}

async fn measure(records: u32) -> Result<Found> {
    // Longer than it takes to insert them, and not much longer, since it is waited for.
    let ttl = Duration::from_secs(2) + Duration::from_micros(15) * records;
    // A tenth more than it is to hold.
    let store = MemoryStore::with_capacity(records as usize / 10 * 11 + 1000);
    let idempotency = Idempotency::builder(store.clone()).ttl(ttl).build();
    let mut keys = Keys::new(0);
    // The allocations of a first call do not belong to a record.
    insert(&idempotency, &mut keys, 1000).await?;
    let before = machine::resident();
    let growing = insert(&idempotency, &mut keys, records).await?;
    let after = machine::resident();
    let all = store.len();
    ensure!(
        all >= records as usize,
        "{all} records of {records} were there at once: the machine is too slow"
    );
    let bytes = before
        .zip(after)
        .map(|(before, after)| (after - before) / f64::from(records) - PAYLOAD);

    tokio::time::sleep(ttl).await;
    let expiring = insert(&idempotency, &mut keys, records).await?;
    let left = store.len().saturating_sub(records as usize);
    let idle = idle(records, expiring.mean);
    Ok(Found {
        records,
        bytes,
        growing,
        expiring,
        idle,
        left,
    })
}

async fn insert(idempotency: &Idempotency, keys: &mut Keys, records: u32) -> Result<Longest> {
    let result = result();
    let mut processor = 0;
    let mut wall = Duration::ZERO;
    let all = Instant::now();
    for _ in 0..records {
        let key = keys.advance();
        let given = processor_ns();
        let begun = Instant::now();
        idempotency
            .operation("bench")
            .key(key)
            .run(|| plain(&result))
            .await?;
        wall = wall.max(begun.elapsed());
        processor = processor.max(processor_ns() - given);
    }
    Ok(Longest::of(processor, wall, all.elapsed(), records))
}

/// Turns of a loop that takes no memory and waits for nothing, each of so many microseconds.
fn idle(turns: u32, each: f64) -> Longest {
    let mut processor = 0;
    let mut wall = Duration::ZERO;
    let all = Instant::now();
    let each = Duration::from_secs_f64(each / 1e6);
    for _ in 0..turns {
        let given = processor_ns();
        let begun = Instant::now();
        while begun.elapsed() < each {
            std::hint::spin_loop();
        }
        wall = wall.max(begun.elapsed());
        processor = processor.max(processor_ns() - given);
    }
    Longest::of(processor, wall, all.elapsed(), turns)
}

/// Returns the processor time of this thread so far.
fn processor_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn thousands(number: u32) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(String::from_utf8_lossy)
        .collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(thousands),
            ["0", "999", "1,000", "1,234,567"]
        );
    }
}
