//! An order is a charge, some reservations, a parcel and a mail. Worker processes are killed
//! between these steps and inside of them, and others go on where they stopped.
//!
//! ```text
//! cargo run --example fulfil                               # records in a file of SQLite
//! cargo run --example fulfil -- --store postgres://user@host/db
//! ```
//!
//! The bank, the depot and the others are folders here: each request has a child key, and a service
//! that knows the key books nothing again. A worker that is killed between the booking and its
//! record sends the same request once more, as the table at the end shows.

#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead as _, BufReader, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use idem::idempotent;
use serde::{Deserialize, Serialize};

#[path = "rebuild/mod.rs"]
mod rebuild;

const ITEMS: [&str; 3] = ["pen", "ink", "paper"];
/// Short, so that the example is over soon.
const LEASE: Duration = Duration::from_millis(800);
/// The point at which a worker dies: the order, the step, and whether that is recorded by then.
const DEATHS: [(u32, &str, &str); 5] = [
    (1, "charge", "after"),
    (2, "reserve ink", "inside"),
    (3, "parcel", "inside"),
    (4, "parcel", "after"),
    (5, "mail", "inside"),
];
const ORDERS: u32 = 6;

#[derive(Debug, thiserror::Error)]
enum FulfilError {
    #[error("a service does not answer: {0}")]
    Service(#[from] io::Error),
    #[error(transparent)]
    Idempotency(#[from] idem::Error),
}

#[derive(Debug, Serialize, Deserialize)]
struct Receipt {
    charge: String,
    parcel: String,
}

#[idempotent(
    name = "orders.fulfil",
    key = "(&shop.run, order)",
    ttl = "1h",
    lease = LEASE,
    in_flight = wait("20s")
)]
async fn fulfil(shop: &Shop, order: u32) -> Result<Receipt, FulfilError> {
    let attempt = idem::current().map_or(0, |call| call.attempt());
    let work = Work {
        shop,
        order,
        attempt,
    };
    let charge = idem::step("charge", async || work.book("bank", "charge").await).await?;
    work.has_passed("charge").await;
    for item in ITEMS {
        let step = format!("reserve {item}");
        idem::step(("reserve", item), async || work.book("depot", &step).await).await?;
        work.has_passed(&step).await;
    }
    let parcel = idem::step("parcel", async || work.book("carrier", "parcel").await).await?;
    work.has_passed("parcel").await;
    idem::step("mail", async || work.book("mail", "mail").await).await?;
    Ok(Receipt { charge, parcel })
}

/// The connections of a worker.
struct Shop {
    /// Tells the runs of this example apart in a store that outlives them.
    run: String,
    services: PathBuf,
    /// The point at which this worker is killed.
    dies: Option<String>,
}

/// One attempt of one order.
struct Work<'a> {
    shop: &'a Shop,
    order: u32,
    attempt: u64,
}

impl Work<'_> {
    /// Asks a service for something. It books each key once.
    async fn book(&self, service: &str, step: &str) -> Result<String, FulfilError> {
        let Self {
            shop,
            order,
            attempt,
        } = self;
        println!("runs {order} {attempt} {step}");
        // In a step, this is the call of the step: each has child keys of its own.
        // Without one, all orders would have the same key, and the service would book one of them.
        let call = idem::current().ok_or_else(|| std::io::Error::other("no step runs"))?;
        let key = call.child_key(service);
        let folder = shop.services.join(service);
        fs::create_dir_all(&folder)?;
        let mut requests = OpenOptions::new()
            .create(true)
            .append(true)
            .open(shop.services.join("requests"))?;
        writeln!(requests, "{service}")?;
        let booking = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(folder.join(&key));
        match booking {
            Ok(mut booking) => write!(booking, "{order} {step}")?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(Duration::from_millis(15)).await;
        self.may_die(step, "inside").await;
        Ok(format!("{service}-{}", key.get(..4).unwrap_or_default()))
    }

    async fn has_passed(&self, step: &str) {
        self.may_die(step, "after").await;
    }

    /// Waits to be killed, if this is the place.
    async fn may_die(&self, step: &str, moment: &str) {
        let here = format!("{} {moment} {step}", self.order);
        if self.attempt == 1 && self.shop.dies.as_ref() == Some(&here) {
            println!("dies {here}");
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    }
}

/// One process. It carries out all orders; other processes may do each of them as well.
#[tokio::main]
async fn worker(url: &str, shop: &Shop) -> Result<(), Box<dyn Error>> {
    // An example may run on a slow disk.
    let store = idem::builder(url).time_limit(Duration::from_secs(15));
    let idempotency = store.connect().await?;
    idem::install(idempotency.clone())?;
    for order in 1..=ORDERS {
        let receipt = fulfil(shop, order).await?;
        println!("receipt {order} {} {}", receipt.charge, receipt.parcel);
    }
    // The steps of the last order are removed before the process ends.
    idempotency.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (url, rest) = match arguments.as_slice() {
        ["--store", url, rest @ ..] => (Some(*url), rest),
        rest => (None, rest),
    };
    if let Some(feature) = rebuild::missing_feature(url.unwrap_or("sqlite://")) {
        let has_ended_well = rebuild::run_with_features("fulfil", feature)?;
        return if has_ended_well {
            Ok(())
        } else {
            Err("the example failed, as it says above".into())
        };
    }
    match (url, rest) {
        (Some(url), ["--worker", run, services, dies @ ..]) => {
            let shop = Shop {
                run: (*run).to_owned(),
                services: services.into(),
                dies: dies.first().map(|place| (*place).to_owned()),
            };
            worker(url, &shop)
        }
        (url, []) => {
            let run = idem::KeyGenerator::new("run").generate();
            let folder = std::env::temp_dir().join(format!("idem-fulfil-{run}"));
            fs::create_dir_all(&folder)?;
            let told = conduct(url, &run, &folder);
            fs::remove_dir_all(&folder)?;
            told
        }
        _ => Err("usage: fulfil [--store URL]".into()),
    }
}

/// The end of one attempt of one order.
#[derive(Default)]
struct Attempt {
    /// The steps whose bodies ran, in their order.
    ran: Vec<String>,
    killed: Option<String>,
}

/// Starts workers, kills them, and tells what happened.
fn conduct(url: Option<&str>, run: &str, folder: &Path) -> Result<(), Box<dyn Error>> {
    let file = format!("sqlite://{}/records.db", folder.display());
    let url = url.unwrap_or(&file);
    let begun = Instant::now();
    let services = folder.join("services");
    fs::create_dir_all(&services)?;
    let mut attempts: BTreeMap<(u32, u64), Attempt> = BTreeMap::new();
    for (number, (order, step, moment)) in (1..).zip(DEATHS) {
        let place = format!("{order} {moment} {step}");
        let mut victim = start(url, run, &services, Some(&place))?;
        // It waits at this place, and dies without a word to anybody.
        if !read(&mut victim, &mut attempts)? {
            return Err(format!("worker {number} was to be killed at `{place}`, and ended").into());
        }
        victim.0.kill()?;
        victim.0.wait()?;
        let clock = begun.elapsed().as_secs_f64();
        println!(
            "{clock:5.1} s  worker {number} was killed in order {order}, {moment} the step `{step}`"
        );
    }
    let last = [
        start(url, run, &services, None)?,
        start(url, run, &services, None)?,
    ];
    for mut worker in last {
        read(&mut worker, &mut attempts)?;
        let status = worker.0.wait()?;
        if !status.success() {
            return Err(format!("a worker failed: {status}").into());
        }
    }
    let clock = begun.elapsed().as_secs_f64();
    println!("{clock:5.1} s  two workers have been through all orders\n");
    tell_attempts(&attempts);
    tell_bookings(&services)
}

fn tell_attempts(attempts: &BTreeMap<(u32, u64), Attempt>) {
    for ((order, attempt), Attempt { ran, killed }) in attempts {
        let label = if *attempt == 1 {
            format!("order {order}")
        } else {
            String::new()
        };
        let first = ran.first().map_or("the end", String::as_str);
        let from = if *attempt == 1 {
            format!("begins with `{first}`")
        } else {
            format!("goes on at `{first}`")
        };
        let end = match killed {
            Some(place) => format!("killed {place}"),
            None => "fulfilled".to_owned(),
        };
        println!("  {label:<8}  attempt {attempt}  {from:<26}  {end}");
    }
}

/// Counts what the services were asked for, and what they have booked.
fn tell_bookings(services: &Path) -> Result<(), Box<dyn Error>> {
    let requests = fs::read_to_string(services.join("requests"))?;
    println!("\n  service   requests   booked");
    let mut is_sound = true;
    for (service, steps) in [
        ("bank", 1),
        ("depot", ITEMS.len()),
        ("carrier", 1),
        ("mail", 1),
    ] {
        let mut booked = Vec::new();
        for booking in fs::read_dir(services.join(service))? {
            booked.push(fs::read_to_string(booking?.path())?);
        }
        let count = booked.len();
        booked.sort();
        booked.dedup();
        is_sound &= count == booked.len() && count == steps * ORDERS as usize;
        let asked = requests.lines().filter(|line| *line == service).count();
        println!("  {service:<8}  {asked:>8}   {count:>6}");
    }
    if !is_sound {
        return Err("\u{2717} something was booked twice, or not at all".into());
    }
    println!("\n  \u{2713} every effect of every order happened once");
    Ok(())
}

/// Reads what a worker says. `true`: it waits to be killed.
fn read(
    worker: &mut Worker,
    attempts: &mut BTreeMap<(u32, u64), Attempt>,
) -> Result<bool, Box<dyn Error>> {
    let mut line = String::new();
    loop {
        line.clear();
        if worker.1.read_line(&mut line)? == 0 {
            return Ok(false);
        }
        match line
            .trim_end()
            .splitn(4, ' ')
            .collect::<Vec<_>>()
            .as_slice()
        {
            ["runs", order, attempt, step] => {
                let at = (order.parse()?, attempt.parse()?);
                let attempt = attempts.entry(at).or_default();
                attempt.ran.push((*step).to_owned());
            }
            ["dies", order, moment, step] => {
                let attempt = attempts.entry((order.parse()?, 1)).or_default();
                attempt.killed = Some(format!("{moment} `{step}`"));
                return Ok(true);
            }
            _ => {}
        }
    }
}

type Worker = (Child, BufReader<ChildStdout>);

/// This program again, as another process.
fn start(
    url: &str,
    run: &str,
    services: &Path,
    dies: Option<&str>,
) -> Result<Worker, Box<dyn Error>> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--store", url, "--worker", run])
        .arg(services)
        .args(dies)
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take().ok_or("no standard output")?;
    Ok((child, BufReader::new(stdout)))
}
