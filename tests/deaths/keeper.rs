//! The keeper under load, over a real Redis.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use idem::{Error, Idempotency};
use idem_redis::RedisStore;
use idem_testkit::{FaultStore, Faults, RedisServer, Step};
use tokio::task::JoinSet;

use crate::owner::Failure;
use crate::support::{Bodies, LONG, eventually};

type Res<T = u64> = Result<T, Failure>;

const SECOND: Duration = Duration::from_secs(1);
/// How many renewals go in one round trip at most.
const BATCH: u64 = 500;

struct World {
    server: RedisServer,
    idempotency: Idempotency,
    faults: Faults,
    bodies: Arc<Bodies>,
    running: Arc<AtomicU32>,
    over: tokio::sync::watch::Sender<bool>,
}

impl World {
    async fn start() -> Self {
        let server = RedisServer::start().await.unwrap();
        let store = FaultStore::new(RedisStore::connect(server.url()).await.unwrap());
        let faults = store.faults();
        let idempotency = Idempotency::new(store);
        Self {
            server,
            idempotency,
            faults,
            bodies: Arc::default(),
            running: Arc::default(),
            over: tokio::sync::watch::Sender::new(false),
        }
    }

    /// Begins so many bodies, which end when it is over, and waits until all run.
    async fn begin(&self, bodies: u32, lease: Duration) -> JoinSet<Res> {
        let mut calls = JoinSet::new();
        for key in 0..bodies {
            let idempotency = self.idempotency.clone();
            let bodies = self.bodies.clone();
            let mut over = self.over.subscribe();
            let running = self.running.clone();
            calls.spawn(async move {
                let call = idempotency.operation("load").key(&key).lease(lease);
                let body = bodies.run(async move {
                    let _running = Running::new(running);
                    over.wait_for(|over| *over).await.unwrap();
                    Res::Ok(idem::current().unwrap().attempt())
                });
                call.run(|| body).await.map(idem::Outcome::into_inner)
            });
            if key % 50 == 49 {
                eventually("they run", async || self.bodies.begun() == key + 1).await;
            }
        }
        eventually("all run", async || self.bodies.begun() == bodies).await;
        calls
    }

    /// How many bodies run now.
    fn running(&self) -> u32 {
        self.running.load(SeqCst)
    }

    /// The commands of scripts that clients sent.
    async fn scripts(&self) -> u64 {
        let stats = self
            .server
            .cli(&["INFO", "commandstats"])
            .await
            .unwrap()
            .to_string();
        let evalsha = stats
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        evalsha.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
    }
}

/// A body that runs, until it ends or is stopped.
struct Running(Arc<AtomicU32>);

impl Running {
    fn new(count: Arc<AtomicU32>) -> Self {
        count.fetch_add(1, SeqCst);
        Self(count)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

fn counted(answers: Vec<Res>) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for answer in answers {
        let kind = match answer {
            Ok(1) => "first attempt",
            Ok(_) => "later attempt",
            Err(Failure::Idempotency(Error::LeaseLost { .. })) => "lost",
            Err(_) => "failed",
        };
        *counts.entry(kind).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_two_thousand_bodies_keep_leases_of_a_second_and_are_renewed_in_at_most_forty_round_trips_a_second()
 {
    let world = World::start().await;
    let calls = world.begin(2_000, SECOND).await;
    let began = Instant::now();
    let steps = world.faults.calls(Step::Renew);
    let scripts = world.scripts().await;
    // Each is renewed after a third of its lease, so that after three leases each was, several
    // times.
    tokio::time::sleep(SECOND * 3).await;
    let steps = world.faults.calls(Step::Renew) - steps;
    let renewals = world.scripts().await - scripts;
    let seconds = began.elapsed().as_secs() + 1;
    world.over.send_replace(true);
    assert_eq!(
        counted(calls.join_all().await),
        BTreeMap::from([("first attempt", 2_000)])
    );
    // One script renews many leases, each of which needs three renewals or more.
    assert!(renewals >= 2_000 * 3 / BATCH, "{renewals}");
    let round_trips = steps.max(renewals);
    assert!(
        round_trips <= 40 * seconds,
        "{round_trips} round trips: {steps} steps, {renewals} scripts in {seconds} s"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_a_body_that_blocks_its_thread_for_less_than_its_lease_costs_no_other_lease() {
    let world = World::start().await;
    let calls = world.begin(100, SECOND).await;
    let blocking = tokio::spawn({
        let idempotency = world.idempotency.clone();
        async move {
            let call = idempotency.operation("blocks").key("k").lease(SECOND);
            let body = async || {
                for _ in 0..4 {
                    std::thread::sleep(SECOND / 2);
                    tokio::task::yield_now().await;
                }
                Res::Ok(1)
            };
            call.run(body).await.map(idem::Outcome::into_inner)
        }
    });
    assert_eq!(blocking.await.unwrap().unwrap(), 1);
    world.over.send_replace(true);
    assert_eq!(
        counted(calls.join_all().await),
        BTreeMap::from([("first attempt", 100)])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_a_redis_that_stops_for_less_than_a_lease_costs_none() {
    let world = World::start().await;
    let calls = world.begin(100, SECOND * 4).await;
    world.server.pause().unwrap();
    tokio::time::sleep(SECOND * 2).await;
    world.server.resume().unwrap();
    tokio::time::sleep(SECOND * 4).await;
    assert_eq!(world.running(), 100);
    world.over.send_replace(true);
    assert_eq!(
        counted(calls.join_all().await),
        BTreeMap::from([("first attempt", 100)])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_a_redis_that_stops_for_longer_than_a_lease_has_every_body_stopped_before_another_may_claim()
 {
    let world = World::start().await;
    let lease = SECOND * 2;
    let calls = world.begin(100, lease).await;
    let other = Idempotency::new(RedisStore::connect(world.server.url()).await.unwrap());
    let stopped = Instant::now();
    world.server.pause().unwrap();
    eventually("all bodies are stopped", async || world.running() == 0).await;
    assert!(
        stopped.elapsed() < lease + SECOND,
        "{:?}",
        stopped.elapsed()
    );
    assert_eq!(
        counted(calls.join_all().await),
        BTreeMap::from([("lost", 100)])
    );
    world.server.resume().unwrap();
    let sum = AtomicU64::new(0);
    for key in 0..100u32 {
        let body = async || Res::Ok(sum.fetch_add(idem::current().unwrap().attempt(), SeqCst));
        eventually("it may be claimed", async || {
            other
                .operation("load")
                .key(&key)
                .wait(LONG)
                .run(body)
                .await
                .is_ok()
        })
        .await;
    }
    assert_eq!((sum.into_inner(), world.bodies.most_at_once()), (200, 100));
}
