//! The keeper of many leases, over a real Redis: its round trips, and how soon it stops bodies.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use idem::Idempotency;
use idem_redis::RedisStore;
use idem_testkit::{RedisServer, Step};

use crate::support::{LONG, eventually};
use load::{Res, World, counted};

#[path = "../deaths/load.rs"]
mod load;

const SECOND: Duration = Duration::from_secs(1);
/// How many renewals go in one round trip at most.
const BATCH: u64 = 500;

/// The commands of scripts that clients sent.
async fn scripts(server: &RedisServer) -> u64 {
    let stats = server
        .cli(&["INFO", "commandstats"])
        .await
        .unwrap()
        .to_string();
    let evalsha = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    evalsha.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_two_thousand_bodies_keep_leases_of_a_second_and_are_renewed_in_at_most_forty_round_trips_a_second()
 {
    let world = World::start().await;
    let calls = world.begin(2_000, SECOND).await;
    let began = Instant::now();
    let steps = world.faults.calls(Step::Renew);
    let before = scripts(&world.server).await;
    // Each is renewed after a third of its lease, so that after three leases each was, several
    // times.
    tokio::time::sleep(SECOND * 3).await;
    let steps = world.faults.calls(Step::Renew) - steps;
    let renewals = scripts(&world.server).await - before;
    let seconds = began.elapsed().as_secs() + 1;
    world.finish();
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
