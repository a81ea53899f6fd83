//! Several processes take jobs from a queue that delivers each job to every process. One of the
//! processes is killed while it works.
//!
//! ```text
//! cargo run --example workers --features redis                                 # starts a redis-server of its own
//! cargo run --example workers --features redis -- --store redis://127.0.0.1/
//! ```
//!
//! `--store sqlite://workers.db` and `--store postgres://user@host/db` build the example again,
//! with that store.
//!
//! The first process that gets a job does it; the others get its result. When the killed one's
//! lease runs out, another finishes its job, as the second attempt.
//!
//! # Where a person decides
//!
//! ```text
//! cargo run --example workers --features redis -- --reject --store redis://127.0.0.1/
//! ```
//!
//! This worker pays, under `abandoned = reject`, and is killed meanwhile. It is unknown whether the
//! money was sent, so each later call is refused until an operator has found out. That is the work
//! of the program `idem`, in another terminal:
//!
//! ```text
//! cargo install --path idem-cli
//! export IDEM_STORE=redis://127.0.0.1/
//! idem list --state abandoned
//! idem show workers.payment o-1
//! echo '"paid, receipt 7"' | idem settle workers.payment o-1 --value - --yes --reason 'the bank has it'
//! ```
//!
//! The next call replays `paid, receipt 7`, and the example ends.
//! With `idem release workers.payment o-1` instead, the payment is made again, as the second
//! attempt.
//!
//! # From an alert to the record
//!
//! ```text
//! cargo run --example workers --features redis -- --reject --metrics 127.0.0.1:9464 --store redis://127.0.0.1/
//! ```
//!
//! With `--metrics`, the example serves its metrics for Prometheus, at `/metrics` of this address,
//! and ships orders meanwhile. The log on stderr has each event with the digest of its key. The
//! guide on operating follows the alert `IdemWaitsForAPerson` from here to the record.

#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::error::Error;
use std::process::Stdio;
use std::time::{Duration, Instant};

use idem::{Idempotency, idempotent};
use idem_testkit::RedisServer;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tracing_subscriber::filter::LevelFilter;

#[allow(dead_code)]
#[path = "rebuild/mod.rs"]
mod rebuild;

const WORKERS: u32 = 3;
const JOBS: u32 = 12;
/// What is paid for with `--reject`.
const ORDER: &str = "o-1";
/// Short, so that the example is over soon.
const LEASE: Duration = Duration::from_secs(2);

#[idempotent(
    key = "(run, job)",
    name = "workers.job",
    ttl = "10m",
    lease = LEASE,
    in_flight = wait("30s"),
)]
async fn work(run: &str, worker: u32, job: u32) -> Result<String, idem::Error> {
    let attempt = idem::current().map_or(0, |call| call.attempt());
    println!("begun {job} {attempt}");
    // The job in which a worker will be killed is a long one.
    tokio::time::sleep(if job == 1 && attempt == 1 {
        Duration::from_secs(60)
    } else {
        Duration::from_millis(150)
    })
    .await;
    println!("done {job} {attempt}");
    Ok(format!("worker {worker}, attempt {attempt}"))
}

/// A payment: after a crash a person finds out whether it was made.
#[idempotent(key = order, name = "workers.payment", lease = LEASE, abandoned = reject)]
async fn pay(order: &str) -> Result<String, idem::Error> {
    let attempt = idem::current().map_or(0, |call| call.attempt());
    println!("paying {order} {attempt}");
    // In the first attempt the bank takes its time, and the process is killed meanwhile.
    tokio::time::sleep(Duration::from_secs(if attempt == 1 { 60 } else { 0 })).await;
    Ok(format!("paid by attempt {attempt}"))
}

/// Kills a worker that pays, then calls again until an operator has decided about the payment.
async fn reject(url: &str, is_observed: bool) -> Result<(), Box<dyn Error>> {
    // A store in SQL has its table before the workers come.
    idem::install(open(url).await?)?;
    let (mut victim, mut lines) = spawn(&["--pay", ORDER, "--store", url])?;
    if lines.next_line().await?.as_deref() != Some("paying o-1 1") {
        return Err(
            "the payment was made or begun before; `idem forget workers.payment o-1` begins again"
                .into(),
        );
    }
    victim.kill().await?;
    println!("the worker was killed while it paid for {ORDER}. Now, in another terminal:\n");
    println!("  export IDEM_STORE={url}");
    println!("  idem list --state abandoned");
    println!("  idem show workers.payment {ORDER}");
    println!(
        "  echo '\"paid, receipt 7\"' | idem settle workers.payment {ORDER} --value - --yes --reason 'the bank has it'\n"
    );
    tokio::select! {
        decided = until_decided() => println!("  \u{2713} the next call: {}", decided?),
        () = ship_all(), if is_observed => {}
    }
    Ok(())
}

/// Calls again until a person has decided.
async fn until_decided() -> Result<String, Box<dyn Error>> {
    let mut told = String::new();
    loop {
        match pay(ORDER).await {
            Ok(receipt) => return Ok(receipt),
            Err(error) => {
                let says = format!("{:?}", error.kind());
                if says != told {
                    println!("  the next call: {error}");
                    told = says;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// The events meanwhile. Two processes of a real service would get each order.
#[idempotent(key = order, name = "workers.shipment", ttl = "10m", in_flight = wait("5s"))]
async fn ship(order: u64) -> Result<u64, idem::Error> {
    tokio::time::sleep(Duration::from_millis(20 * (order % 8 + 1))).await;
    Ok(order)
}

/// Ships orders without end, each twice. Failures while the store is away are in the log.
async fn ship_all() {
    let first = u64::from(std::process::id()) << 32;
    for order in first.. {
        let _ = tokio::join!(ship(order), ship(order));
    }
}

/// Serves the metrics of this process for Prometheus.
#[cfg(feature = "metrics")]
fn serve_metrics(address: &str) -> Result<(), Box<dyn Error>> {
    let address: std::net::SocketAddr = address.parse()?;
    // Without buckets the histograms are summaries, which cannot be added up over processes.
    metrics_exporter_prometheus::PrometheusBuilder::new()
        .set_buckets(&[0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0])?
        .with_http_listener(address)
        .install()?;
    println!("metrics at http://{address}/metrics");
    Ok(())
}

#[cfg(not(feature = "metrics"))]
fn serve_metrics(_: &str) -> Result<(), Box<dyn Error>> {
    Err("`--metrics` needs the feature `metrics`".into())
}

/// The features of the build, with those that the arguments need besides; `None` if nothing is
/// missing.
fn missing_features(url: Option<&String>, metrics: Option<&String>) -> Option<String> {
    let missing = url.and_then(|url| rebuild::missing_feature(url));
    let missing_metrics = (metrics.is_some() && !cfg!(feature = "metrics")).then_some("metrics");
    let missing: Vec<_> = missing.into_iter().chain(missing_metrics).collect();
    let present = [
        ("sqlite", cfg!(feature = "sqlite")),
        ("postgres", cfg!(feature = "postgres")),
        ("mysql", cfg!(feature = "mysql")),
        ("metrics", cfg!(feature = "metrics")),
    ];
    let present = present
        .into_iter()
        .filter(|(_, is_there)| *is_there)
        .map(|(feature, _)| feature);
    (!missing.is_empty()).then(|| {
        ["redis"]
            .into_iter()
            .chain(present)
            .chain(missing)
            .collect::<Vec<_>>()
            .join(",")
    })
}

/// A runtime over the store of a URL. An example may run on a slow disk.
async fn open(url: &str) -> Result<Idempotency, idem::StoreError> {
    let store = idem::builder(url).time_limit(Duration::from_secs(15));
    store.connect().await
}

/// One process. It does all jobs; other processes may do each of them as well.
async fn worker(url: &str, run: &str, number: u32) -> Result<(), Box<dyn Error>> {
    let idempotency = open(url).await?;
    idem::install(idempotency.clone())?;
    for step in 0..JOBS {
        // Everybody begins somewhere else in the queue.
        let job = (step + (number - 1) * JOBS / WORKERS) % JOBS + 1;
        println!("result {job} {}", work(run, number, job).await?);
    }
    // Outcomes that the store did not accept at once are recorded before the process ends.
    idempotency.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    // The older name of the option.
    arguments
        .iter_mut()
        .filter(|word| *word == "--redis")
        .for_each(|word| "--store".clone_into(word));
    let value = |name: &str| arguments.iter().skip_while(|word| *word != name).nth(1);
    let metrics = value("--metrics").cloned();
    if let Some(features) = missing_features(value("--store"), metrics.as_ref()) {
        let has_ended_well = rebuild::run_with_features("workers", &features)?;
        return if has_ended_well {
            Ok(())
        } else {
            Err("the example failed, as it says above".into())
        };
    }
    // Events with the target `idem`, among others. A service configures this once for all crates.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(LevelFilter::INFO)
        .init();
    if let Some(address) = &metrics {
        serve_metrics(address)?;
        arguments.retain(|word| word != "--metrics" && word != address);
    }
    let is_observed = metrics.is_some();
    match arguments
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["--worker", number, "--run", run, "--store", url] => {
            worker(url, run, number.parse()?).await
        }
        ["--pay", order, "--store", url] => {
            idem::install(open(url).await?)?;
            pay(order).await.map(drop).map_err(Into::into)
        }
        ["--store", url] => conduct(url).await,
        ["--reject", "--store", url] => reject(url, is_observed).await,
        ["--reject"] => {
            let server = RedisServer::start().await?;
            reject(&server.url(), is_observed).await
        }
        [] => {
            let server = RedisServer::start().await?;
            println!("a redis-server of our own, on port {}", server.port());
            conduct(&server.url()).await
        }
        _ => Err("usage: workers [--reject [--metrics ADDRESS]] [--store URL]".into()),
    }
}

/// Starts the workers, kills one, and tells what happened.
async fn conduct(url: &str) -> Result<(), Box<dyn Error>> {
    let run = idem::KeyGenerator::new("run").generate();
    let begun = Instant::now();
    let clock = move || format!("{:5.1} s", begun.elapsed().as_secs_f64());

    // A store in SQL has its table before the workers come.
    drop(open(url).await?);
    let (mut victim, mut lines) = start(url, &run, 1)?;
    // It has begun its first job, the long one; now it dies, without a word to anybody.
    while lines
        .next_line()
        .await?
        .ok_or("the first worker ended early")?
        != "begun 1 1"
    {}
    println!("{}  worker 1 is in the middle of job 1", clock());
    let others = [start(url, &run, 2)?, start(url, &run, 3)?];
    victim.kill().await?;
    println!("{}  worker 1 was killed", clock());

    let mut done: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
    let mut results: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for (number, (mut child, mut lines)) in (2..).zip(others) {
        while let Some(line) = lines.next_line().await? {
            match line.splitn(3, ' ').collect::<Vec<_>>().as_slice() {
                ["done", job, attempt] => done
                    .entry(job.parse()?)
                    .or_default()
                    .push((number, attempt.parse()?)),
                ["result", job, result] => results
                    .entry(job.parse()?)
                    .or_default()
                    .push((*result).to_owned()),
                _ => {}
            }
        }
        let status = child.wait().await?;
        if !status.success() {
            return Err(format!("worker {number} failed: {status}").into());
        }
    }

    println!("{}  workers 2 and 3 have been through the queue\n", clock());
    let mut sound = done.len() == JOBS as usize;
    for (job, times) in &done {
        let agreed = results
            .get(job)
            .is_some_and(|all| all.len() == 2 && all.windows(2).all(|two| two[0] == two[1]));
        sound &= times.len() == 1 && agreed;
        for (worker, attempt) in times {
            let note = if *attempt > 1 {
                "   ← taken over from the killed one"
            } else {
                ""
            };
            println!("  job {job:>2}  done by worker {worker}, attempt {attempt}{note}");
        }
    }
    sound &= done
        .get(&1)
        .is_some_and(|times| times.iter().all(|(_, attempt)| *attempt == 2));
    if !sound {
        return Err("✗ a job was not done, done twice, or answered differently".into());
    }
    println!("\n  ✓ every job was done once, and both workers got the same result for each");
    Ok(())
}

type Worker = (Child, Lines<BufReader<ChildStdout>>);

fn start(url: &str, run: &str, number: u32) -> Result<Worker, Box<dyn Error>> {
    spawn(&[
        "--worker",
        &number.to_string(),
        "--run",
        run,
        "--store",
        url,
    ])
}

/// This program again, as another process.
fn spawn(arguments: &[&str]) -> Result<Worker, Box<dyn Error>> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(arguments)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let stdout = child.stdout.take().ok_or("no standard output")?;
    Ok((child, BufReader::new(stdout).lines()))
}
