//! Many calls of one key at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use idem::{Error, Idempotency};
use idem_bench::{plain, result};
use tokio::sync::{Barrier, OnceCell};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::cost::Counter;
use crate::floor::Floor;
use crate::report::{Figure, Group, Unit};
use crate::stats::median;
use crate::target::Target;

/// How long the body takes.
const BODY: Duration = Duration::from_millis(5);
/// How often the floor's waiters look.
const POLL: Duration = Duration::from_millis(2);
/// How many calls there are, over two runtimes and in one process.
const OVER_TWO: usize = 64;
const IN_ONE: usize = 1000;

/// What is measured here, by round.
#[derive(Default)]
pub(crate) struct Crowds {
    /// Milliseconds from the beginning of the body to the last answer, and of these how many after
    /// its end.
    floor: Vec<f64>,
    ours: Vec<f64>,
    after: Vec<f64>,
    floor_commands: Vec<f64>,
    our_commands: Vec<f64>,
    in_one: Vec<f64>,
}

/// How long a crowd took.
struct Took {
    all: f64,
    after_body: f64,
}

impl Crowds {
    /// One round of so many crowds.
    pub(crate) async fn round(&mut self, target: &Target, crowds: usize) -> Result<()> {
        let floors = [
            floor(target, target.url()).await?,
            floor(target, target.url()).await?,
        ];
        let runtimes = [
            target.idempotency(target.store().await?),
            target.idempotency(target.store().await?),
        ];
        let mut floor = Vec::new();
        let mut ours = Vec::new();
        let mut after = Vec::new();
        for _ in 0..crowds {
            let key = unused(target);
            floor.push(
                crowd(OVER_TWO, |caller, body| {
                    poll(floors[caller % 2].clone(), key.clone(), body)
                })
                .await?
                .all,
            );
            let key = unused(target);
            let took = crowd(OVER_TWO, |caller, body| {
                guard(runtimes[caller % 2].clone(), key.clone(), body)
            })
            .await?;
            ours.push(took.all);
            after.push(took.after_body);
        }
        self.floor.push(median(&floor));
        self.ours.push(median(&ours));
        self.after.push(median(&after));
        if target.own().is_some() {
            self.count(target).await?;
        }
        Ok(())
    }

    /// The same by way of a proxy that counts commands.
    async fn count(&mut self, target: &Target) -> Result<()> {
        let counter = Counter::start(target).await?;
        let floors = [
            floor(target, &counter.url).await?,
            floor(target, &counter.url).await?,
        ];
        let runtimes = [
            counter.idempotency(target).await?,
            counter.idempotency(target).await?,
        ];
        let before = counter.commands();
        let key = unused(target);
        crowd(OVER_TWO, |caller, body| {
            poll(floors[caller % 2].clone(), key.clone(), body)
        })
        .await?;
        self.floor_commands.push(since(&counter, before));

        let before = counter.commands();
        let key = unused(target);
        crowd(OVER_TWO, |caller, body| {
            guard(runtimes[caller % 2].clone(), key.clone(), body)
        })
        .await?;
        // After the last answer, subscriptions end.
        sleep(Duration::from_millis(200)).await;
        self.our_commands.push(since(&counter, before));

        let before = counter.commands();
        let key = unused(target);
        crowd(IN_ONE, |_, body| {
            guard(runtimes[0].clone(), key.clone(), body)
        })
        .await?;
        sleep(Duration::from_millis(200)).await;
        self.in_one.push(since(&counter, before));
        Ok(())
    }

    /// The tables' part.
    pub(crate) fn group(self) -> Group {
        let mut figures = vec![
            Figure::new(
                "64 over two runtimes, 5 ms body: last answer after the end of the body",
                Unit::Milliseconds,
                self.after,
            )
            .at_most(2.0),
            Figure::new(
                "the same, after its beginning",
                Unit::Milliseconds,
                self.ours,
            )
            .series(
                "floor, polling every 2 ms:",
                Unit::Milliseconds,
                &self.floor,
            ),
        ];
        if !self.our_commands.is_empty() {
            figures.push(
                Figure::new("the same, commands in all", Unit::Count, self.our_commands)
                    .at_most(12.0)
                    .series("floor", Unit::Count, &self.floor_commands),
            );
            figures.push(
                Figure::new(
                    "1,000 in one process: commands in all",
                    Unit::Count,
                    self.in_one,
                )
                .at_most(2.0),
            );
        }
        Group {
            title: "Duplicates at once".to_owned(),
            figures,
        }
    }
}

/// A key that was never used.
fn unused(target: &Target) -> String {
    format!(
        "{}crowd{:011}",
        target.run,
        fastrand::u64(..100_000_000_000)
    )
}

/// The body of a crowd, which must run once.
#[derive(Default)]
struct Body {
    runs: AtomicU64,
    ran: OnceCell<(Instant, Instant)>,
}

impl Body {
    async fn run(&self) -> Result<String, Error> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        let begun = Instant::now();
        sleep(BODY).await;
        // A second one is noticed by the count.
        let _ = self.ran.set((begun, Instant::now()));
        plain(&result()).await
    }
}

async fn crowd<Call>(callers: usize, call: impl Fn(usize, Arc<Body>) -> Call) -> Result<Took>
where
    Call: Future<Output = Result<()>> + Send + 'static,
{
    let body = Arc::<Body>::default();
    let start = Arc::new(Barrier::new(callers));
    let mut running = JoinSet::new();
    for caller in 0..callers {
        let call = call(caller, body.clone());
        let start = start.clone();
        running.spawn(async move {
            start.wait().await;
            call.await?;
            anyhow::Ok(Instant::now())
        });
    }
    let mut answers = Vec::new();
    while let Some(answered) = running.join_next().await {
        answers.push(answered??);
    }
    let runs = body.runs.load(Ordering::Relaxed);
    ensure!(runs == 1, "the body ran {runs} times");
    let Some(((begun, ended), last)) = body.ran.get().copied().zip(answers.into_iter().max())
    else {
        anyhow::bail!("no call was answered");
    };
    let ms = |since: Instant| last.saturating_duration_since(since).as_secs_f64() * 1e3;
    Ok(Took {
        all: ms(begun),
        after_body: ms(ended),
    })
}

async fn guard(idempotency: Idempotency, key: String, body: Arc<Body>) -> Result<()> {
    idempotency
        .operation("crowd")
        .key(&key)
        .run(|| body.run())
        .await?;
    Ok(())
}

async fn poll(floor: Floor, key: String, body: Arc<Body>) -> Result<()> {
    if floor.claim(&key).await?.is_none() {
        let result = body.run().await?;
        return floor.commit(&key, &result).await;
    }
    while floor.poll(&key).await?.is_none() {
        sleep(POLL).await;
    }
    Ok(())
}

async fn floor(target: &Target, url: &str) -> Result<Floor> {
    let floor = Floor::connect(url, target.ttl_ms()).await?;
    // So that the script is known.
    floor
        .first(&format!("{}warm{}", target.run, fastrand::u64(..)), "")
        .await?;
    Ok(floor)
}

#[allow(clippy::cast_precision_loss)]
fn since(counter: &Counter, before: u64) -> f64 {
    (counter.commands() - before) as f64
}
