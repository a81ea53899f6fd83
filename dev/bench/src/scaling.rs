//! What a call costs its server and its caller, in processor time: the constants of
//! `docs/scaling.md`.
#![allow(
    clippy::cast_precision_loss,
    reason = "counts of calls are far below what a float holds"
)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use idem::Idempotency;
use idem_bench::{plain, result};
use redis::aio::MultiplexedConnection;
use rustix::time::{ClockId, clock_gettime};

use crate::at_once::at_once;
use crate::report::Kind;
use crate::target::Target;

const LOADS: [Load; 6] = [
    Load::new(1, 1),
    Load::new(1, 4),
    Load::new(1, 16),
    Load::new(1, 64),
    Load::new(1, 256),
    Load::new(8, 3),
];
const MOST_CONNECTIONS: u64 = 8;
const MOST_TASKS: u64 = 256;
/// How many outcomes each task replays in turn. No two tasks have one in common: calls of one key
/// would share a message.
const KEYS: u64 = 4;
const ROUNDS: usize = 8;
const SLICE: Duration = Duration::from_millis(150);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Measure at this server, which should have nothing else to do, with keys that begin with
    /// `idem-bench-` and expire. Otherwise a server is started
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
}

/// Connections, and the tasks that call on each.
#[derive(Debug, Clone, Copy)]
struct Load {
    connections: u64,
    tasks: u64,
}

/// A load, and what one call of it cost. Times are microseconds.
#[derive(Debug, Clone, Copy)]
struct Point {
    kind: Kind,
    load: Load,
    rate: f64,
    server: f64,
    caller: f64,
    /// As the server counts what it reads.
    messages: f64,
}

/// The formula's constants: `first + message·r` and `replay + message·r`, where `r` is the messages
/// of a call. Microseconds.
#[derive(Debug)]
struct Fit {
    first: f64,
    replay: f64,
    message: f64,
    /// The largest error of the formula, as a share of the measured time.
    error: f64,
}

pub(crate) fn run(args: Args) -> Result<()> {
    // One thread, so that callers have one processor and the server another.
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let points = tokio.block_on(measure(args.redis))?;
    // Not those of one call at a time. There each message wakes sleeping threads, which a busy
    // server avoids.
    let fitted: Vec<Point> = points
        .iter()
        .filter(|point| point.load.connections * point.load.tasks > 1)
        .copied()
        .collect();
    let server = Fit::of(&fitted, |point| point.server);
    let caller = Fit::of(&fitted, |point| point.caller);
    println!("\n| µs | server | caller |\n| --- | ---: | ---: |");
    for (name, server, caller) in [
        ("`F`, a first execution", server.first, caller.first),
        ("`R`, a replay", server.replay, caller.replay),
        ("`m`, each message", server.message, caller.message),
    ] {
        println!("| {name} | {server:.1} | {caller:.1} |");
    }
    let [of_server, of_caller] = [server.error, caller.error].map(|error| error * 100.0);
    println!("| largest error of the formula | {of_server:.0} % | {of_caller:.0} % |");
    println!(
        "\n| | connections × tasks | calls a second | messages a call | server µs a call | by \
         formula | caller µs a call | by formula |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for point in &points {
        println!(
            "| {} | {} × {} | {:.0} | {:.2} | {:.1} | {:.1} | {:.1} | {:.1} |",
            point.kind,
            point.load.connections,
            point.load.tasks,
            point.rate,
            point.messages,
            point.server,
            server.time(point),
            point.caller,
            caller.time(point),
        );
    }
    Ok(())
}

/// The points of all loads, each from the round with the most calls: other work on the machine
/// disturbed it least.
async fn measure(url: Option<String>) -> Result<Vec<Point>> {
    let target = Target::open(url).await?;
    println!("{}", target.version().await?);
    let mut connections = Vec::new();
    for _ in 0..MOST_CONNECTIONS {
        connections.push(target.idempotency(target.store().await?));
    }
    let mut bench = Bench {
        server: Server::connect(target.url()).await?,
        connections: connections.into(),
        run: target.run.clone(),
        next: 0,
        replayed: 0,
    };
    let mut best: Vec<Point> = Vec::new();
    for round in 0..=ROUNDS {
        eprintln!("round {round} of {ROUNDS}");
        bench.prepare().await?;
        let mut points = Vec::new();
        for kind in Kind::ALL {
            for load in LOADS {
                points.push(bench.slice(kind, load).await?);
            }
        }
        // The first round warms up.
        if round <= 1 {
            best = points;
        } else {
            for (best, point) in best.iter_mut().zip(points) {
                if point.rate > best.rate {
                    *best = point;
                }
            }
        }
        target.clear().await?;
    }
    Ok(best)
}

struct Bench {
    server: Server,
    connections: Arc<[Idempotency]>,
    run: String,
    /// The next number of a key that no call has used.
    next: u64,
    /// The first number of the keys that have outcomes.
    replayed: u64,
}

impl Bench {
    /// Makes the outcomes that are replayed.
    async fn prepare(&mut self) -> Result<()> {
        self.replayed = self.next;
        self.next += MOST_TASKS * KEYS;
        for number in self.replayed..self.next {
            call(&self.connections[0], &key(&self.run, number)).await?;
        }
        Ok(())
    }

    /// Calls for a slice of time.
    async fn slice(&mut self, kind: Kind, load: Load) -> Result<Point> {
        let connections = self.connections.clone();
        let run = self.run.clone();
        let tasks = load.connections * load.tasks;
        let from = match kind {
            Kind::First => self.next,
            Kind::Replay => self.replayed,
        };
        let calling = move |task: u64, calls: u64| {
            let number = match kind {
                Kind::First => calls * tasks + task,
                Kind::Replay => task * KEYS + calls % KEYS,
            };
            let key = key(&run, from + number);
            let connections = connections.clone();
            async move {
                let connection = usize::try_from(task % load.connections)?;
                call(&connections[connection], &key).await
            }
        };
        let before = self.server.usage().await?;
        let begun = Instant::now();
        let (numbers, rate) = at_once(tasks, SLICE, calling).await?;
        let calls = rate * begun.elapsed().as_secs_f64();
        let after = self.server.usage().await?;
        if kind == Kind::First {
            self.next += numbers;
        }
        Ok(Point {
            kind,
            load,
            rate,
            server: (after.server - before.server) / calls,
            caller: (after.caller - before.caller) / calls,
            messages: (after.messages - before.messages) / calls,
        })
    }
}

fn key(run: &str, number: u64) -> String {
    format!("{run}-{number:014}")
}

async fn call(idempotency: &Idempotency, key: &str) -> Result<()> {
    let result = result();
    let operation = idempotency.operation("bench").key(key);
    operation.run(|| plain(&result)).await?;
    Ok(())
}

/// A connection that asks the server for its own figures.
struct Server(MultiplexedConnection);

/// Up to one moment. Times are microseconds.
struct Usage {
    server: f64,
    caller: f64,
    messages: f64,
}

impl Server {
    async fn connect(url: &str) -> Result<Self> {
        let client = redis::Client::open(url)?;
        let connection = client.get_multiplexed_async_connection().await;
        Ok(Self(connection.context("cannot connect to Redis")?))
    }

    async fn usage(&mut self) -> Result<Usage> {
        let info: String = redis::cmd("INFO").query_async(&mut self.0).await?;
        let info: HashMap<_, _> = info
            .lines()
            .filter_map(|line| line.trim_end().split_once(':'))
            .collect();
        let number = |name: &str| {
            let value = info.get(name).and_then(|value| value.parse::<f64>().ok());
            value.with_context(|| format!("INFO has no {name}"))
        };
        let user = number("used_cpu_user_main_thread")?;
        let system = number("used_cpu_sys_main_thread")?;
        let caller = clock_gettime(ClockId::ProcessCPUTime);
        Ok(Usage {
            server: (user + system) * 1e6,
            caller: (caller.tv_sec as f64).mul_add(1e6, caller.tv_nsec as f64 / 1e3),
            messages: number("total_reads_processed")?,
        })
    }
}

impl Load {
    const fn new(connections: u64, tasks: u64) -> Self {
        Self { connections, tasks }
    }
}

impl Fit {
    /// By least squares of the relative errors. Both kinds share the cost of a message.
    fn of(points: &[Point], time: impl Fn(&Point) -> f64) -> Self {
        let weight = |point: &Point| time(point).powi(-2);
        let means = Kind::ALL.map(|kind| {
            let mut sum = 0.0;
            let mut messages = 0.0;
            let mut times = 0.0;
            for point in points.iter().filter(|point| point.kind == kind) {
                sum += weight(point);
                messages += weight(point) * point.messages;
                times += weight(point) * time(point);
            }
            [messages / sum, times / sum]
        });
        let mut covariance = 0.0;
        let mut variance = 0.0;
        for point in points {
            let [messages, mean_time] = means[point.kind as usize];
            let distance = point.messages - messages;
            covariance += weight(point) * distance * (time(point) - mean_time);
            variance += weight(point) * distance.powi(2);
        }
        let message = covariance / variance;
        let [first, replay] = means.map(|[messages, time]| message.mul_add(-messages, time));
        let mut fit = Self {
            first,
            replay,
            message,
            error: 0.0,
        };
        let errors = points
            .iter()
            .map(|point| (fit.time(point) / time(point) - 1.0).abs());
        fit.error = errors.fold(0.0, f64::max);
        fit
    }

    fn time(&self, point: &Point) -> f64 {
        let commands = match point.kind {
            Kind::First => self.first,
            Kind::Replay => self.replay,
        };
        self.message.mul_add(point.messages, commands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_finds_what_the_points_were_made_of() {
        let point = |kind, messages: f64| Point {
            kind,
            load: Load::new(1, 1),
            rate: 0.0,
            server: if kind == Kind::First { 10.0 } else { 3.0 } + 5.0 * messages,
            caller: 1.0,
            messages,
        };
        let points = [
            point(Kind::First, 2.0),
            point(Kind::First, 0.1),
            point(Kind::Replay, 1.0),
            point(Kind::Replay, 0.05),
        ];
        let fit = Fit::of(&points, |point| point.server);
        for (found, made_of) in [
            (fit.first, 10.0),
            (fit.replay, 3.0),
            (fit.message, 5.0),
            (fit.error, 0.0),
        ] {
            assert!((found - made_of).abs() < 1e-9, "{fit:?}");
        }
    }
}
