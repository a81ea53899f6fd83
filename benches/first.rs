//! What a call costs over Redis, beside the floor: the same commands by redis-rs alone, in the same run, in turns.
//!
//! `cargo xtask bench` runs it on a redis-server of its own. The figures that count are the ratios.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use idem::{Begin, Error, Idempotency};
use idem_redis::RedisStore;
use idem_testkit::RedisServer;
use redis::aio::MultiplexedConnection;

const ROUNDS: usize = 9;
const CALLS: usize = 2_000;
const COMMIT: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) return 1 end return 0";

type Res<T = String> = Result<T, Error>;

#[tokio::main]
async fn main() {
    let server = RedisServer::start().await.expect("a redis-server");
    let floor = Floor::connect(&server.url()).await;
    let idempotency = Idempotency::new(RedisStore::connect(server.url()).await.expect("a store"));
    let outcome = "x".repeat(200);

    let mut first = Vec::new();
    let mut replay = Vec::new();
    for round in 0..=ROUNDS {
        let (mut floor_first, mut idem_first, mut floor_replay, mut idem_replay) = Default::default();
        for call in 0..CALLS {
            let key = format!("{round:08}-{call:023}");
            timed(&mut floor_first, floor.first(&key, &outcome)).await;
            timed(&mut idem_first, guarded(&idempotency, &key, &outcome)).await;
            timed(&mut floor_replay, floor.replay(&key)).await;
            timed(&mut idem_replay, guarded(&idempotency, &key, &outcome)).await;
        }
        // The first round warms up.
        if round > 0 {
            first.push((median(floor_first), median(idem_first)));
            replay.push((median(floor_replay), median(idem_replay)));
        }
    }
    println!("sequential, {CALLS} calls a round, {ROUNDS} rounds in turns; median of a round, median of rounds\n");
    report("first execution", &first);
    report("replay", &replay);

    let two = Idempotency::new(RedisStore::connect(server.url()).await.expect("a store"));
    let mut last = Vec::new();
    for round in 0..ROUNDS * 3 {
        last.push(duplicates([&idempotency, &two], &format!("many-{round}")).await);
    }
    last.sort();
    println!(
        "\n64 duplicates over two runtimes, the last of them answered after the commit: median {:?}, worst {:?}",
        last[last.len() / 2],
        last[last.len() - 1]
    );
}

/// The commands of a claim, a commit and a replay, and nothing else.
struct Floor {
    connection: MultiplexedConnection,
    commit: redis::Script,
}

impl Floor {
    async fn connect(url: &str) -> Self {
        let client = redis::Client::open(url).expect("a URL");
        let connection = client.get_multiplexed_async_connection().await.expect("a connection");
        Self { connection, commit: redis::Script::new(COMMIT) }
    }

    async fn first(&self, key: &str, outcome: &str) {
        let mut connection = self.connection.clone();
        let claimed: Option<String> = Self::claim(key).query_async(&mut connection).await.expect("a reply");
        assert!(claimed.is_none());
        let mut commit = self.commit.key(key);
        commit.arg("in flight, by an owner").arg(outcome).arg(86_400_000);
        let committed: u8 = commit.invoke_async(&mut connection).await.expect("a reply");
        assert_eq!(committed, 1);
    }

    async fn replay(&self, key: &str) {
        let found: Option<String> = Self::claim(key).query_async(&mut self.connection.clone()).await.expect("a reply");
        assert!(found.is_some());
    }

    fn claim(key: &str) -> redis::Cmd {
        let mut claim = redis::cmd("SET");
        claim.arg(key).arg("in flight, by an owner").arg("NX").arg("GET").arg("PX").arg(86_400_000);
        claim
    }
}

async fn guarded(idempotency: &Idempotency, key: &str, outcome: &str) {
    let call = idempotency.operation("bench").key(key).run(async || Res::Ok(outcome.to_owned()));
    assert_eq!(call.await.expect("an outcome").into_inner().len(), outcome.len());
}

/// How long after the commit the last of 64 waiters is answered.
async fn duplicates(runtimes: [&Idempotency; 2], key: &str) -> Duration {
    let Begin::Execute(lease) = runtimes[0].operation("bench").key(key).begin().await.expect("a lease") else {
        panic!("not the first");
    };
    let waiting = Arc::new(tokio::sync::Barrier::new(65));
    let waiters: Vec<_> = (0..64)
        .map(|waiter| {
            let (idempotency, key, waiting) = (runtimes[waiter % 2].clone(), key.to_owned(), waiting.clone());
            tokio::spawn(async move {
                waiting.wait().await;
                let call = idempotency.operation("bench").key(&key).run(async || Res::Ok(String::new()));
                assert!(call.await.expect("an outcome").is_replayed());
                Instant::now()
            })
        })
        .collect();
    waiting.wait().await;
    // A body of 5 ms; by then all of them wait.
    tokio::time::sleep(Duration::from_millis(5)).await;
    lease.commit(&"done".to_owned()).await.expect("a commit");
    let committed = Instant::now();
    let mut last = Duration::ZERO;
    for waiter in waiters {
        last = last.max(waiter.await.expect("a waiter").saturating_duration_since(committed));
    }
    last
}

async fn timed<T>(times: &mut Vec<Duration>, call: impl Future<Output = T>) {
    let begun = Instant::now();
    call.await;
    times.push(begun.elapsed());
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn report(what: &str, rounds: &[(Duration, Duration)]) {
    let mut ratios: Vec<f64> = rounds.iter().map(|(floor, ours)| ours.as_secs_f64() / floor.as_secs_f64()).collect();
    ratios.sort_by(f64::total_cmp);
    let floor = median(rounds.iter().map(|round| round.0).collect());
    let ours = median(rounds.iter().map(|round| round.1).collect());
    println!(
        "{what:<16} floor {floor:>9.1?}   idem {ours:>9.1?}   ratio {:.2} ({:.2} to {:.2})",
        ratios[ratios.len() / 2],
        ratios[0],
        ratios[ratios.len() - 1]
    );
}
