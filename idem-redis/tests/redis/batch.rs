//! Many calls at once, as of a consumer with a batch of messages, beside one pipelined batch by
//! hand.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use idem_core::{Error, Idempotency, MemoryStore};
use idem_redis::redis;
use idem_redis::redis::aio::MultiplexedConnection;
use idem_testkit::RedisServer;

use crate::{patience, patient};

const CALLS: u64 = 500;
/// A record of such a call, in flight and done, has about this size.
const RECORD: &str = "0123456789012345678901234567890123456789012345678901234567890123";
/// A commit by hand: replace the record only if it is still that of its claim.
const COMMIT: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end";

async fn by_idem(idempotency: &Idempotency, round: u64) {
    let call = |number: u64| {
        let operation = idempotency.operation("batch").key(&(round, number));
        operation.run(async move || Ok::<_, Error>(number))
    };
    for outcome in join_all((0..CALLS).map(call)).await {
        outcome.unwrap();
    }
}

async fn by_hand(connection: &mut MultiplexedConnection, commit: &str, round: u64) {
    let mut claims = redis::pipe();
    let mut commits = redis::pipe();
    for number in 0..CALLS {
        let key = format!("hand:{round}:{number}");
        claims.cmd("SET").arg(&key).arg(RECORD);
        claims.arg("NX").arg("GET").arg("PX").arg(86_400_000);
        commits.cmd("EVALSHA").arg(commit).arg(1).arg(&key);
        commits.arg(RECORD).arg(RECORD).arg(86_400_000);
    }
    let _: Vec<Option<String>> = claims.query_async(connection).await.unwrap();
    let _: Vec<String> = commits.query_async(connection).await.unwrap();
}

/// The commands that the server carried out for clients since the last look.
async fn commands(server: &RedisServer) -> u64 {
    let text = server.cli(&["INFO", "commandstats"]).await.unwrap();
    server.cli(&["CONFIG", "RESETSTAT"]).await.unwrap();
    let text = text.to_string();
    let counts = text.lines().filter_map(|line| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let is_counted = ["set", "evalsha"].contains(&command);
        is_counted.then(|| rest.split(',').next()?.parse::<u64>().ok())?
    });
    counts.sum()
}

async fn connected(server: &RedisServer) -> (Idempotency, MultiplexedConnection, String) {
    let store = patient(server.url()).await;
    let mut connection = patience::connection(server.url()).await;
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(COMMIT);
    let commit = load.query_async(&mut connection).await.unwrap();
    (Idempotency::new(store), connection, commit)
}

#[tokio::test]
async fn calls_made_at_once_cost_two_commands_each() {
    let server = RedisServer::start().await.unwrap();
    let (idempotency, _, _) = connected(&server).await;
    commands(&server).await;
    by_idem(&idempotency, 0).await;
    // `SET` within the script of a commit counts as well, where commits are scripts.
    let used = commands(&server).await;
    assert!((2 * CALLS..=3 * CALLS).contains(&used), "{used}");
    by_idem(&idempotency, 0).await;
    assert_eq!(commands(&server).await, CALLS, "replays");
}

#[tokio::test]
async fn what_failed_of_a_batch_is_known_and_alone_runs_when_the_batch_comes_again() {
    let server = RedisServer::start().await.unwrap();
    let (idempotency, _, _) = connected(&server).await;
    let bodies = AtomicU64::new(0);
    for (delivery, failed, run) in [(0, 72, CALLS), (1, 0, 72)] {
        bodies.store(0, SeqCst);
        let call = |number: u64| {
            let bodies = &bodies;
            let operation = idempotency.operation("batch").key(&number);
            operation.run(async move || {
                bodies.fetch_add(1, SeqCst);
                if number.is_multiple_of(7) && delivery == 0 {
                    return Err(Error::missing_key("a failure that may pass"));
                }
                Ok(number)
            })
        };
        let outcomes = join_all((0..CALLS).map(call)).await;
        let errors = outcomes.iter().filter(|outcome| outcome.is_err());
        assert_eq!((errors.count(), bodies.load(SeqCst)), (failed, run));
        for (number, outcome) in (0_u64..).zip(outcomes) {
            assert_eq!(outcome.is_err(), number.is_multiple_of(7) && delivery == 0);
            if let Ok(outcome) = outcome {
                assert_eq!(outcome.into_inner(), number);
            }
        }
    }
}

/// The sum of some numbers that the server keeps.
async fn info(server: &RedisServer, names: &[&str]) -> f64 {
    let text = server.cli(&["INFO", "everything"]).await.unwrap();
    let text = text.to_string();
    let values = text.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        names.contains(&name).then(|| value.trim().parse::<f64>())
    });
    values.map(Result::unwrap).sum()
}

/// How often the server has read from its connections.
async fn reads(server: &RedisServer) -> f64 {
    info(server, &["total_reads_processed"]).await
}

/// The time that the server has worked, in milliseconds.
async fn work(server: &RedisServer) -> f64 {
    1000.0 * info(server, &["used_cpu_user", "used_cpu_sys"]).await
}

/// The cost of rounds of one way.
#[derive(Default)]
struct Rounds {
    times: Vec<Duration>,
    reads: f64,
    work: f64,
}

impl Rounds {
    async fn add(&mut self, server: &RedisServer, round: impl Future<Output = ()>) {
        let reads_before = reads(server).await;
        let work_before = work(server).await;
        let begun = Instant::now();
        round.await;
        self.times.push(begun.elapsed());
        self.work += work(server).await - work_before;
        self.reads += reads(server).await - reads_before;
    }

    fn say(&mut self, name: &str) -> f64 {
        self.times.sort();
        let median = self.times[self.times.len() / 2].as_secs_f64() * 1000.0;
        let rounds = f64::from(u32::try_from(self.times.len()).unwrap());
        let reads = self.reads / rounds;
        let work = self.work / rounds;
        println!("{name}: {median:.2} ms, server {work:.2} ms, {reads:.0} reads");
        median
    }
}

/// `cargo test --release -p idem-redis --test redis -- --ignored --nocapture at_once_beside`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, and takes some seconds"]
async fn measure_calls_at_once_beside_a_pipelined_batch_by_hand() {
    let server = RedisServer::start().await.unwrap();
    let (idempotency, mut connection, commit) = connected(&server).await;
    let in_process = Idempotency::new(MemoryStore::new());
    for part in 0..5 {
        let mut ours = Rounds::default();
        let mut hand = Rounds::default();
        let mut memory = Rounds::default();
        for round in part * 1000..part * 1000 + 60 {
            hand.add(&server, by_hand(&mut connection, &commit, round))
                .await;
            ours.add(&server, by_idem(&idempotency, round)).await;
            memory.add(&server, by_idem(&in_process, round)).await;
        }
        let hand = hand.say("by hand");
        let ours = ours.say("calls at once");
        memory.say("in process");
        println!("ratio {:.2}", ours / hand);
    }
}
