//! In process: how throughput grows with the threads.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use idem::{Idempotency, MemoryStore};
use idem_bench::{Keys, plain, result};
use tokio::task::JoinSet;

use crate::report::{Figure, Group, Kind, Unit};

const THREADS: [usize; 2] = [1, 2];
/// So many tasks, each with an operation of its own.
const TASKS: u16 = 8;

/// How many runtimes there are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runtimes {
    /// One that all tasks share, as a service has it.
    One,
    /// One for each task.
    Many,
}

/// The calls a second of each round, by runtimes, kind and threads.
#[derive(Default)]
pub(crate) struct Threads([[[Vec<f64>; THREADS.len()]; 2]; 2]);

impl Threads {
    /// One round; so many calls of each task. Outside of tokio, since it makes runtimes of its own.
    pub(crate) fn round(&mut self, calls: u32) -> Result<()> {
        for runtimes in [Runtimes::One, Runtimes::Many] {
            for (place, threads) in THREADS.into_iter().enumerate() {
                let tokio = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(threads)
                    .enable_all()
                    .build()?;
                let rates = tokio.block_on(measure(runtimes, calls))?;
                for (all, rate) in self.0[runtimes as usize].iter_mut().zip(rates) {
                    all[place].push(rate);
                }
            }
        }
        Ok(())
    }

    /// The tables' part.
    pub(crate) fn group(&self) -> Group {
        let mut figures = Vec::new();
        for (runtimes, name) in [
            (Runtimes::One, "one runtime"),
            (Runtimes::Many, "a runtime for each task"),
        ] {
            for kind in Kind::ALL {
                let [one, two] = &self.0[runtimes as usize][kind as usize];
                let what = format!("{kind}, {name}, 8 operations: two threads over one");
                let one = ("one thread", &**one);
                figures.push(Figure::ratio(what, Unit::PerSecond, two, one));
            }
        }
        Group {
            title: "In process, by threads".to_owned(),
            figures,
        }
    }
}

/// The calls a second, first executions and replays.
async fn measure(runtimes: Runtimes, calls: u32) -> Result<[f64; 2]> {
    let shared = runtime();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let own = if runtimes == Runtimes::One {
                shared.clone()
            } else {
                runtime()
            };
            (
                Arc::<str>::from(format!("bench.{task}")),
                own,
                Keys::new(task),
            )
        })
        .collect();
    let mut rates = [0.0; 2];
    for rate in &mut rates {
        let mut running = JoinSet::new();
        let begun = Instant::now();
        for (operation, idempotency, mut keys) in tasks.iter().cloned() {
            running.spawn(async move {
                let result = result();
                for call in 0..calls {
                    let key = keys.advance();
                    idempotency
                        .operation(&*operation)
                        .key(key)
                        .run(|| plain(&result))
                        .await?;
                    // Nothing here waits, and other tasks are to have their turns.
                    if call % 64 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
                anyhow::Ok(())
            });
        }
        while let Some(done) = running.join_next().await {
            done??;
        }
        *rate = f64::from(calls) * f64::from(TASKS) / begun.elapsed().as_secs_f64();
    }
    Ok(rates)
}

fn runtime() -> Idempotency {
    Idempotency::new(MemoryStore::new())
}
