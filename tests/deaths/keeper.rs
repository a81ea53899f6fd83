//! The keeper of many leases, over a real Redis. `quiet/keeper.rs` measures it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::load::{Res, World, counted};

/// Half of it passes while a body blocks, or while Redis stands still.
const LEASE: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_a_body_that_blocks_its_thread_for_less_than_its_lease_costs_no_other_lease() {
    let world = World::start().await;
    let calls = world.begin(100, LEASE).await;
    let blocking = tokio::spawn({
        let idempotency = world.idempotency.clone();
        async move {
            let call = idempotency.operation("blocks").key("k").lease(LEASE);
            let body = async || {
                for _ in 0..4 {
                    std::thread::sleep(LEASE / 2);
                    tokio::task::yield_now().await;
                }
                Res::Ok(1)
            };
            call.run(body).await.map(idem::Outcome::into_inner)
        }
    });
    assert_eq!(blocking.await.unwrap().unwrap(), 1);
    world.finish();
    assert_eq!(
        counted(calls.join_all().await),
        BTreeMap::from([("first attempt", 100)])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_a_redis_that_stops_for_less_than_a_lease_costs_none() {
    let world = World::start().await;
    let calls = world.begin(100, LEASE).await;
    world.server.pause().unwrap();
    tokio::time::sleep(LEASE / 2).await;
    world.server.resume().unwrap();
    // As long as the leases that were not renewed would last.
    tokio::time::sleep(LEASE).await;
    assert_eq!(world.running(), 100);
    world.finish();
    assert_eq!(
        counted(calls.join_all().await),
        BTreeMap::from([("first attempt", 100)])
    );
}
