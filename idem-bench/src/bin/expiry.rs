//! What a `MemoryStore` still holds ten seconds after all its records expired, and the longest call
//! meanwhile, as JSON: `expiry RECORDS [FILE]`. A program of its own, because what counts replaces
//! the allocator.
#![allow(clippy::disallowed_methods, reason = "it measures time, and is no part of the library")]

use std::alloc::System;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use idem::{Idempotency, MemoryStore};
use idem_bench::{Keys, plain, result};
use serde::Serialize;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::runtime::Runtime;
use tokio::time::{interval, sleep_until};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// After this time all memory but a twentieth should be back.
const LIMIT: Duration = Duration::from_secs(10);

/// The findings of one way of use.
#[derive(Serialize)]
struct Found {
    records: u32,
    /// What the allocator still had to keep after the limit, in parts of what it kept before.
    kept: f64,
    /// The same of the resident memory, where the system tells it.
    resident: Option<f64>,
    /// The longest call, in milliseconds.
    longest: f64,
    /// The longest turn of a loop that only waits for as long as a call takes, in milliseconds: what
    /// the machine takes from any program.
    idle: f64,
}

#[derive(Serialize)]
struct Report {
    /// With a call each millisecond.
    called: Found,
    /// Without any call.
    left_alone: Found,
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
    let mut args = std::env::args().skip(1);
    let records = args.next().context("usage: expiry RECORDS [FILE]")?.parse().context("not a number of records")?;
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = Report { called: measure(&tokio, records, true)?, left_alone: measure(&tokio, records, false)? };
    let json = serde_json::to_string_pretty(&report)?;
    match args.next() {
        None => println!("{json}"),
        Some(file) => std::fs::write(&file, json).with_context(|| format!("cannot write {file}"))?,
    }
    Ok(())
}

#[allow(clippy::cast_precision_loss)]
fn measure(tokio: &Runtime, records: u32, with_calls: bool) -> Result<Found> {
    // Room for the calls, too.
    let store = MemoryStore::with_capacity(records as usize + 20_000);
    let lease = Duration::from_millis(100);
    let idempotency = Idempotency::builder(store.clone()).lease(lease).build();
    tokio.block_on(async {
        let result = result();
        let call = async |keys: &mut Keys, ttl| {
            idempotency.operation("bench").key(keys.advance()).ttl(ttl).run(|| plain(&result)).await.map(drop)
        };
        let mut keys = Keys::new(0);
        // What the first call allocates does not belong to a record.
        call(&mut keys, lease).await?;
        let (before, resident_before) = (kept(), resident());
        // All at the same moment, which is the hardest case.
        let expiry = Instant::now() + Duration::from_secs(2) + Duration::from_micros(15) * records;
        for _ in 0..records {
            call(&mut keys, expiry.saturating_duration_since(Instant::now())).await?;
        }
        ensure!(Instant::now() < expiry, "the machine is too slow: records expired before the last one was made");
        let (full, resident_full) = (kept() - before, resident());
        sleep_until(expiry.into()).await;

        let mut ticks = interval(Duration::from_millis(1));
        let (mut longest, mut idle) = (Duration::ZERO, Duration::ZERO);
        while with_calls && expiry.elapsed() < LIMIT {
            ticks.tick().await;
            let begun = Instant::now();
            call(&mut keys, Duration::from_secs(1)).await?;
            let took = begun.elapsed();
            longest = longest.max(took);
            idle = idle.max(wait_for(took.min(Duration::from_micros(10))));
        }
        sleep_until((expiry + LIMIT).into()).await;
        let share = |now: f64, before: f64, full: f64| (now - before) / full;
        let resident = || Some(share(resident()?, resident_before?, resident_full? - resident_before?));
        Ok(Found {
            records,
            kept: share(kept(), before, full),
            resident: resident(),
            longest: longest.as_secs_f64() * 1e3,
            idle: idle.as_secs_f64() * 1e3,
        })
    })
}

fn wait_for(time: Duration) -> Duration {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
    begun.elapsed()
}

/// The bytes that were allocated and not freed.
#[allow(clippy::cast_precision_loss)]
fn kept() -> f64 {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated as f64 - stats.bytes_deallocated as f64
}

fn resident() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix(" kB")?.parse().ok()
}
