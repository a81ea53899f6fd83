//! Measures the constants: by processor time, which other work on the machine disturbs less than
//! the time of a clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use idem::{Error, Idempotency, RedisStore};
use idem_testkit::RedisServer;
use redis::aio::MultiplexedConnection;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::constants::{Constants, Own, Point, Renewal, Waiting, Work, record};
use crate::machine::Machine;
use crate::report::Kind;
use crate::stats::{median, of_sorted};
use crate::target::Target;
use crate::target::store;

/// Connections, and tasks on each.
const LOADS: [(usize, usize); 6] = [(1, 1), (1, 4), (1, 16), (1, 64), (1, 256), (8, 3)];
const ROUNDS: usize = 8;
const SLICE: Duration = Duration::from_millis(150);
const PAYLOAD: usize = 200;
const LARGE: usize = 4200;
const KEY: usize = 32;
/// Keys that are replayed.
const REPLAYED: u64 = 2000;
/// Records whose memory is looked at: as many as fill both tables of the server to the last place.
const RECORDS: usize = 32_768;
const LENGTHS: [usize; 4] = [52, 202, 402, 1002];
const LEASES: usize = 2000;
const LEASE: Duration = Duration::from_secs(1);
const WAITERS: usize = 500;

/// Measures at a server that is there, or at one of our own.
pub(super) async fn constants(url: Option<String>) -> Result<Constants> {
    let machine = Machine::look();
    let target = Target::open(url).await?;
    let mut bench = Bench::connect(target).await?;
    let mut all: HashMap<(usize, usize, usize, usize), Vec<Point>> = HashMap::new();
    for round in 0..=ROUNDS {
        eprintln!("processor time of calls, round {round} of {ROUNDS}");
        for (at, (connections, tasks)) in LOADS.into_iter().chain([(1, 64)]).enumerate() {
            let payload = if at == LOADS.len() { LARGE } else { PAYLOAD };
            for kind in Kind::ALL {
                let load = Load { kind, connections, tasks, payload };
                let point = bench.load(load).await?;
                // The first round warms up.
                if round > 0 {
                    all.entry((kind as usize, connections, tasks, payload)).or_default().push(point);
                }
            }
        }
        bench.target.clear().await?;
        bench.replayable = HashMap::new();
    }
    let mut points: Vec<Point> = all.into_values().map(Point::best).collect::<Result<_>>()?;
    points.sort_by_key(|point| (point.payload, point.kind as usize, point.connections, point.tasks));
    // Not those of one call at a time: there each message wakes sleeping threads, which a busy
    // server avoids.
    let is_usual = |point: &&Point| point.payload == PAYLOAD && point.connections * point.tasks > 1;
    let of_usual: Vec<Point> = points.iter().filter(is_usual).cloned().collect();
    let server = Work::fit(&of_usual, |point| point.server);
    let client = Work::fit(&of_usual, |point| point.client);
    let kilobyte = |work: Work, time: fn(&Point) -> f64| {
        Kind::ALL.map(|kind| {
            let large = points.iter().find(|point| point.payload == LARGE && point.kind == kind);
            let more = (LARGE - PAYLOAD) as f64 / 1000.0;
            large.map_or(f64::NAN, |point| (time(point) - work.of(kind, point.messages)) / more)
        })
    };
    let (server_kilobyte, client_kilobyte) =
        (kilobyte(server, |point| point.server), kilobyte(client, |point| point.client));
    let delay = bench.delay().await?;
    let [first_bytes, replay_bytes] = [bench.bytes(Kind::First).await?, bench.bytes(Kind::Replay).await?];
    let own = if bench.target.own().is_some() { Some(bench.own().await?) } else { None };
    Ok(Constants {
        machine,
        version: bench.target.version().await?,
        key_bytes: KEY,
        payload_bytes: PAYLOAD + 2,
        server,
        client,
        server_kilobyte,
        client_kilobyte,
        delay,
        first_bytes,
        replay_bytes,
        points,
        own,
    })
}

struct Bench {
    target: Target,
    info: Server,
    connections: Vec<Idempotency>,
    next: u64,
    /// The keys that have outcomes, by length of the outcome.
    replayable: HashMap<usize, u64>,
}

#[derive(Clone, Copy)]
struct Load {
    kind: Kind,
    connections: usize,
    tasks: usize,
    payload: usize,
}

/// The server's own figures.
#[derive(Clone)]
struct Server(MultiplexedConnection);

/// Of one moment. Times are microseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    server: f64,
    client: f64,
    /// `usec` and calls of `SET`, those by scripts among them, and of scripts.
    sets: [f64; 2],
    scripts: [f64; 2],
    reads: f64,
    bytes: [f64; 2],
}

impl Server {
    async fn connect(url: &str) -> Result<Self> {
        let client = redis::Client::open(url)?;
        Ok(Self(client.get_multiplexed_async_connection().await.context("cannot connect to Redis")?))
    }

    async fn info(&mut self, section: &str) -> Result<HashMap<String, String>> {
        let info: String = redis::cmd("INFO").arg(section).query_async(&mut self.0).await?;
        let lines = info.lines().filter_map(|line| line.split_once(':'));
        Ok(lines.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect())
    }

    async fn memory(&mut self) -> Result<f64> {
        let info = self.info("memory").await?;
        info.get("used_memory")
            .and_then(|used| used.parse().ok())
            .context("the server does not say what memory it uses")
    }

    async fn counts(&mut self) -> Result<Counts> {
        let (cpu, stats, commands) =
            (self.info("cpu").await?, self.info("stats").await?, self.info("commandstats").await?);
        let number = |info: &HashMap<String, String>, name: &str| {
            info.get(name).and_then(|value| value.parse::<f64>().ok()).with_context(|| format!("INFO has no {name}"))
        };
        let of = |name: &str, field: &str| {
            let fields = commands.get(&format!("cmdstat_{name}")).map(String::as_str).unwrap_or_default();
            let value = fields.split(',').find_map(|part| part.strip_prefix(field)?.strip_prefix('='));
            value.and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0)
        };
        // The main thread, where the server tells it apart.
        let time = |kind: &str| {
            number(&cpu, &format!("used_cpu_{kind}_main_thread")).or_else(|_| number(&cpu, &format!("used_cpu_{kind}")))
        };
        Ok(Counts {
            server: (time("user")? + time("sys")?) * 1e6,
            client: processor_time(),
            sets: ["usec", "calls"].map(|field| of("set", field)),
            scripts: ["usec", "calls"].map(|field| of("evalsha", field)),
            reads: number(&stats, "total_reads_processed")?,
            bytes: [number(&stats, "total_net_input_bytes")?, number(&stats, "total_net_output_bytes")?],
        })
    }
}

/// Of this process, in microseconds.
fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    (time.tv_sec as f64).mul_add(1e6, time.tv_nsec as f64 / 1e3)
}

impl Counts {
    fn since(self, before: Self) -> Self {
        let pair = |now: [f64; 2], then: [f64; 2]| [now[0] - then[0], now[1] - then[1]];
        Self {
            server: self.server - before.server,
            client: self.client - before.client,
            sets: pair(self.sets, before.sets),
            scripts: pair(self.scripts, before.scripts),
            reads: self.reads - before.reads,
            bytes: pair(self.bytes, before.bytes),
        }
    }

    /// The time of the commands that were sent: what scripts call is counted within them, and once
    /// more as what it is.
    fn commands(&self) -> f64 {
        let ([usec, calls], [of_scripts, scripts]) = (self.sets, self.scripts);
        of_scripts + if calls > 0.0 { usec / calls * (calls - scripts) } else { 0.0 }
    }
}

impl Point {
    /// The round in which the machine was least busy. Other work only adds to the time of a call,
    /// also to its processor time, because it takes the caches.
    fn best(rounds: Vec<Self>) -> Result<Self> {
        rounds.into_iter().max_by(|one, other| one.rate.total_cmp(&other.rate)).context("nothing was measured")
    }
}

impl Bench {
    async fn connect(target: Target) -> Result<Self> {
        let mut connections = Vec::new();
        for _ in 0..LOADS.iter().map(|(connections, _)| *connections).max().unwrap_or(1) {
            connections.push(target.idempotency(target.store().await?));
        }
        let info = Server::connect(target.url()).await?;
        Ok(Self { target, info, connections, next: 0, replayable: HashMap::new() })
    }

    /// Calls for a slice of time.
    async fn load(&mut self, load: Load) -> Result<Point> {
        if load.kind == Kind::Replay && !self.replayable.contains_key(&load.payload) {
            let from = self.next;
            self.next += REPLAYED;
            make(&self.connections[0], &self.target.run, from..from + REPLAYED, load.payload).await?;
            self.replayable.insert(load.payload, from);
        }
        let from = match load.kind {
            Kind::First => self.next,
            Kind::Replay => self.replayable[&load.payload],
        };
        // The cost of asking does not belong to the calls.
        let asking = self.info.counts().await?;
        let before = self.info.counts().await?;
        let asking = before.since(asking);
        let begun = Instant::now();
        let (mut times, used) = calls(&self.connections, &self.target.run, load, from, SLICE).await?;
        let seconds = begun.elapsed().as_secs_f64();
        let counts = self.info.counts().await?.since(before).since(asking);
        if load.kind == Kind::First {
            self.next += used;
        }
        let calls = times.len() as f64;
        times.sort_by(f64::total_cmp);
        Ok(Point {
            kind: load.kind,
            connections: load.connections,
            tasks: load.tasks,
            payload: load.payload,
            rate: calls / seconds,
            p50: of_sorted(&times, 0.5),
            p99: of_sorted(&times, 0.99),
            server: counts.server / calls,
            client: counts.client / calls,
            messages: counts.reads / calls,
            commands: counts.commands() / calls,
        })
    }

    /// One way, from what a `PING` takes without the processor time of both sides.
    async fn delay(&mut self) -> Result<f64> {
        const PINGS: usize = 3000;
        let mut info = self.info.clone();
        // In a task, as calls are.
        let pings = async move {
            let before = info.counts().await?;
            let mut times = Vec::with_capacity(PINGS);
            for _ in 0..PINGS {
                let begun = Instant::now();
                let _: String = redis::cmd("PING").query_async(&mut info.0).await?;
                times.push(begun.elapsed().as_secs_f64() * 1e6);
            }
            let counts = info.counts().await?.since(before);
            let busy = (counts.server + counts.client) / PINGS as f64;
            anyhow::Ok(((median(&times) - busy) / 2.0).max(0.0))
        };
        tokio::spawn(pings).await?
    }

    /// Bytes that a call has the server receive and send.
    async fn bytes(&mut self, kind: Kind) -> Result<[f64; 2]> {
        let calls = REPLAYED;
        let from = match kind {
            Kind::First => self.next,
            // Those that were made just now.
            Kind::Replay => self.next - calls,
        };
        // The cost of asking.
        let before = self.info.counts().await?;
        let between = self.info.counts().await?;
        make(&self.connections[0], &self.target.run, from..from + calls, PAYLOAD).await?;
        let after = self.info.counts().await?;
        self.next = from + calls;
        let (asking, all) = (between.since(before).bytes, after.since(between).bytes);
        Ok([0, 1].map(|way| (all[way] - asking[way]) / calls as f64))
    }

    async fn own(&mut self) -> Result<Own> {
        eprintln!("memory");
        let mut records = Vec::new();
        for length in LENGTHS {
            records.push((length, self.memory(length, None).await?));
        }
        let aside = self.memory(402, Some(Duration::from_secs(900_000))).await?;
        let error = |quantum: usize| {
            let errors = records
                .iter()
                .map(|(payload, bytes)| (record(KEY + PREFIX, *payload, false, quantum) as f64 - bytes).abs());
            errors.sum::<f64>()
        };
        let quantum = if error(8) < error(16) { 8 } else { 16 };
        let before = self.info.memory().await?;
        let mut stores = Vec::new();
        for _ in 0..50 {
            stores.push(self.target.store().await?);
        }
        let connection = (self.info.memory().await? - before) / stores.len() as f64;
        drop(stores);
        eprintln!("renewals");
        let renewal = self.renewals().await?;
        eprintln!("waiters");
        let waiting = self.waiters().await?;
        eprintln!("fsync and replicas");
        let durable = durable().await?;
        Ok(Own { records, aside, quantum, connection, renewal, waiting, durable })
    }

    /// Bytes of a record.
    async fn memory(&mut self, payload: usize, remember: Option<Duration>) -> Result<f64> {
        self.target.clear().await?;
        sleep(Duration::from_millis(100)).await;
        let before = self.info.memory().await?;
        let from = self.next;
        self.next += RECORDS as u64;
        let connection = if let Some(remember) = remember {
            Idempotency::builder(self.target.store().await?).ttl(self.target.ttl()).remember(remember).build()
        } else {
            self.connections[0].clone()
        };
        make(&connection, &self.target.run, from..self.next, payload - 2).await?;
        let used = self.info.memory().await? - before;
        self.target.clear().await?;
        Ok(used / RECORDS as f64)
    }

    async fn renewals(&mut self) -> Result<Renewal> {
        let idempotency = Idempotency::builder(self.target.store().await?).lease(LEASE).build();
        let held = Held::begin(&idempotency, &self.target.run, LEASES).await?;
        sleep(LEASE).await;
        let before = self.info.counts().await?;
        let begun = Instant::now();
        sleep(LEASE * 3).await;
        let (counts, seconds) = (self.info.counts().await?.since(before), begun.elapsed().as_secs_f64());
        held.end().await?;
        ensure!(counts.scripts[1] > 0.0, "nothing was renewed");
        Ok(Renewal {
            server: counts.server / counts.scripts[1],
            client: counts.client / counts.scripts[1],
            per_lease: counts.scripts[1] / LEASES as f64 / (seconds / LEASE.as_secs_f64()),
            bytes: counts.bytes.map(|bytes| bytes / counts.scripts[1]),
        })
    }

    async fn waiters(&mut self) -> Result<Waiting> {
        let (owner, other) = (&self.connections[0], &self.connections[1]);
        let run = format!("{}-waited", self.target.run);
        let held = Held::begin(owner, &run, WAITERS).await?;
        let (before, memory) = (self.info.counts().await?, self.info.memory().await?);
        let mut waiting = JoinSet::new();
        for number in 0..WAITERS {
            let (other, key) = (other.clone(), key(&run, number as u64));
            waiting.spawn(async move {
                other.operation(NAME).key(&key).run(|| async { Ok::<_, Error>(String::new()) }).await.map(drop)
            });
        }
        // All have a seat by then.
        sleep(Duration::from_millis(300)).await;
        let bytes = self.info.memory().await? - memory;
        // The cost of the owners' commits is measured elsewhere.
        held.end().await?;
        while let Some(ended) = waiting.join_next().await {
            ended??;
        }
        let counts = self.info.counts().await?.since(before);
        let per = |all: f64| all / WAITERS as f64;
        Ok(Waiting { server: per(counts.server), client: per(counts.client), bytes: per(bytes) })
    }
}

/// Bodies that run until a signal ends them.
struct Held {
    end: watch::Sender<bool>,
    running: JoinSet<Result<(), Error>>,
}

impl Held {
    async fn begin(idempotency: &Idempotency, run: &str, count: usize) -> Result<Self> {
        let (end, ends) = watch::channel(false);
        let (begun, mut have_begun) = watch::channel(0);
        let begun = Arc::new(begun);
        let mut running = JoinSet::new();
        for number in 0..count {
            let (idempotency, key, begun, mut ends) =
                (idempotency.clone(), key(run, number as u64), begun.clone(), ends.clone());
            running.spawn(async move {
                let body = || async move {
                    begun.send_modify(|begun| *begun += 1);
                    // The sender lives as long as the bodies.
                    let _ = ends.wait_for(|end| *end).await;
                    Ok::<_, Error>("x".repeat(PAYLOAD))
                };
                idempotency.operation(NAME).key(&key).run(body).await.map(drop)
            });
        }
        let all = have_begun.wait_for(|begun| *begun == count);
        timeout(Duration::from_secs(30), all).await.context("not all bodies have begun")??;
        Ok(Self { end, running })
    }

    async fn end(mut self) -> Result<()> {
        self.end.send_replace(true);
        while let Some(ended) = self.running.join_next().await {
            ended??;
        }
        Ok(())
    }
}

const NAME: &str = "bench";
/// Of the library's keys: `idem:bench:`.
pub(super) const PREFIX: usize = 11;

fn key(run: &str, number: u64) -> String {
    let width = KEY.saturating_sub(run.len() + 1);
    format!("{run}-{number:0width$}")
}

/// Makes outcomes, or replays them.
async fn make(idempotency: &Idempotency, run: &str, numbers: std::ops::Range<u64>, payload: usize) -> Result<()> {
    const AT_ONCE: usize = 64;
    let mut running = JoinSet::new();
    for task in 0..AT_ONCE {
        let (idempotency, run, numbers) = (idempotency.clone(), run.to_owned(), numbers.clone());
        running.spawn(async move {
            for number in numbers.skip(task).step_by(AT_ONCE) {
                call(&idempotency, &key(&run, number), payload).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(())
}

async fn call(idempotency: &Idempotency, key: &str, payload: usize) -> Result<()> {
    let body = || async { Ok::<_, Error>("x".repeat(payload)) };
    idempotency.operation(NAME).key(key).run(body).await?;
    Ok(())
}

/// The microseconds of each call, and how many numbers of keys were used.
async fn calls(on: &[Idempotency], run: &str, load: Load, from: u64, slice: Duration) -> Result<(Vec<f64>, u64)> {
    let tasks = (load.connections * load.tasks) as u64;
    let mut running = JoinSet::new();
    let begun = Instant::now();
    for task in 0..tasks {
        let idempotency = on[task as usize % load.connections].clone();
        let run = run.to_owned();
        running.spawn(async move {
            let mut times = Vec::new();
            while begun.elapsed() < slice {
                let made = times.len() as u64;
                let number = match load.kind {
                    Kind::First => made * tasks + task,
                    Kind::Replay => (made * tasks + task) % REPLAYED,
                };
                let key = key(&run, from + number);
                let begun = Instant::now();
                call(&idempotency, &key, load.payload).await?;
                times.push(begun.elapsed().as_secs_f64() * 1e6);
            }
            anyhow::Ok(times)
        });
    }
    let (mut all, mut most) = (Vec::new(), 0);
    while let Some(times) = running.join_next().await {
        let times = times??;
        most = most.max(times.len() as u64);
        all.extend(times);
    }
    Ok((all, most * tasks))
}

/// First executions on servers that keep them better.
async fn durable() -> Result<Vec<(String, Vec<Point>)>> {
    let mut all = Vec::new();
    let off = RedisServer::start().await?;
    all.push(("no file".to_owned(), at_server(&off.url(), false).await?));
    drop(off);
    for fsync in ["everysec", "always"] {
        let settings = RedisServer::builder().arg("--appendonly").arg("yes").arg("--appendfsync").arg(fsync);
        let server = settings.start().await?;
        all.push((format!("appendfsync {fsync}"), at_server(&server.url(), false).await?));
    }
    let primary = RedisServer::builder().arg("--repl-diskless-sync-delay").arg("0").start().await?;
    let port = primary.port().to_string();
    let _replica = RedisServer::builder().arg("--replicaof").arg("127.0.0.1").arg(&port).start().await?;
    let mut info = Server::connect(&primary.url()).await?;
    let follows = async {
        while !info.info("replication").await?.get("slave0").is_some_and(|replica| replica.contains("state=online")) {
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    timeout(Duration::from_secs(20), follows).await.context("the replica does not follow")??;
    all.push(("one replica".to_owned(), at_server(&primary.url(), false).await?));
    all.push(("one replica, replicas(1, ..)".to_owned(), at_server(&primary.url(), true).await?));
    Ok(all)
}

async fn at_server(url: &str, wait: bool) -> Result<Vec<Point>> {
    let connect = || async {
        if wait {
            let builder = RedisStore::builder().url(url).replicas(1, Duration::from_millis(300));
            anyhow::Ok(builder.connect().await?)
        } else {
            store(url, "idem").await
        }
    };
    let target = Target::open(Some(url.to_owned())).await?;
    let idempotency = Idempotency::builder(connect().await?).build();
    let mut bench = Bench {
        info: Server::connect(url).await?,
        target,
        connections: vec![idempotency],
        next: 0,
        replayable: HashMap::new(),
    };
    let mut points = Vec::new();
    for tasks in [1, 64] {
        let load = Load { kind: Kind::First, connections: 1, tasks, payload: PAYLOAD };
        bench.load(load).await?;
        let mut rounds = Vec::new();
        for _ in 0..3 {
            rounds.push(bench.load(load).await?);
        }
        points.push(Point::best(rounds)?);
    }
    Ok(points)
}
