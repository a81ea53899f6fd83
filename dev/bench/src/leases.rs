//! A call while very many leases are alive in its process, and are renewed.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use idem::{Begin, Idempotency, Lease, MemoryStore};
use idem_bench::{Keys, plain, result};

use crate::report::{Figure, Group, Unit, tables};
use crate::stats::of_sorted;

const LEASES: u32 = 100_000;
const LEASE: Duration = Duration::from_secs(10);
/// For how long calls are measured: each lease is renewed two times meanwhile.
const WINDOW: Duration = Duration::from_secs(8);
/// Between two calls, so that the keeper has a processor.
const PAUSE: Duration = Duration::from_micros(200);

/// Measures, and shows the table.
pub(crate) fn run() -> Result<()> {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    print!("{}", tables(&[tokio.block_on(measure())?]));
    Ok(())
}

async fn measure() -> Result<Group> {
    let idempotency = Idempotency::builder(MemoryStore::new())
        .lease(LEASE)
        .build();
    let mut keys = Keys::new(0);
    let mut held = Keys::new(1);
    // The first calls warm up.
    calls(&idempotency, &mut keys).await?;
    let mut figures = figures("no other lease", &calls(&idempotency, &mut keys).await?);
    let mut leases: Vec<Lease> = Vec::new();
    for _ in 0..LEASES {
        let Begin::Execute(lease) = idempotency
            .operation("held")
            .key(held.advance())
            .begin()
            .await?
        else {
            bail!("a key came twice");
        };
        leases.push(lease);
    }
    figures.extend(self::figures(
        "100,000 leases alive",
        &calls(&idempotency, &mut keys).await?,
    ));
    for lease in leases {
        // A lease that was lost is an error.
        lease.release().await?;
    }
    Ok(Group {
        title: "First executions in a process with many leases".to_owned(),
        figures,
    })
}

/// The microseconds of each call of a window, in order.
async fn calls(idempotency: &Idempotency, keys: &mut Keys) -> Result<Vec<f64>> {
    let result = result();
    let begun = Instant::now();
    let mut micros = Vec::new();
    while begun.elapsed() < WINDOW {
        let called = Instant::now();
        idempotency
            .operation("bench")
            .key(keys.advance())
            .run(|| plain(&result))
            .await?;
        micros.push(called.elapsed().as_secs_f64() * 1e6);
        std::thread::sleep(PAUSE);
    }
    ensure!(!micros.is_empty(), "no call in the window");
    micros.sort_by(f64::total_cmp);
    Ok(micros)
}

fn figures(when: &str, micros: &[f64]) -> Vec<Figure> {
    let of = |(what, share): (&str, f64)| {
        let calls = format!("of {} calls", micros.len());
        Figure::new(
            format!("{when}: {what}"),
            Unit::Microseconds,
            vec![of_sorted(micros, share)],
        )
        .remark(calls)
    };
    [
        ("p50", 0.5),
        ("p99", 0.99),
        ("p99.9", 0.999),
        ("the longest", 1.0),
    ]
    .map(of)
    .into()
}
