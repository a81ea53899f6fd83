//! The options of an operation while its Redis is killed, stopped, cut off or full.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use idem::{Error, Idempotency, Outcome, StoreErrorKind, StoreFailure, idempotent};
use idem_redis::RedisStore;
use idem_testkit::{Mishap, Proxy, RedisServer};
use tokio::sync::Notify;

use crate::owner::Failure;
use crate::server::Kind;
use crate::support::{LONG, connected, eventually, patient_store};
use crate::wire::Step;

type Res<T = u64> = Result<T, Failure>;

/// A Redis, and a process that reaches it through a proxy.
struct World {
    server: RedisServer,
    proxy: Proxy,
    near: Idempotency,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Killed,
    Stopped,
    Cut,
    Full,
}

impl Fault {
    const ALL: [Self; 4] = [Self::Stopped, Self::Cut, Self::Full, Self::Killed];
}

impl World {
    async fn start() -> Self {
        let server = RedisServer::start().await.unwrap();
        let proxy = Proxy::start(&server.url()).await.unwrap();
        let near = connected(async || RedisStore::connect(proxy.url()).await).await;
        let near = Idempotency::new(near);
        Self {
            server,
            proxy,
            near,
        }
    }

    async fn begins(&self, fault: Fault) {
        match fault {
            Fault::Killed => self.server.kill().unwrap(),
            Fault::Stopped => self.server.pause().unwrap(),
            Fault::Cut => self.proxy.cut(),
            Fault::Full => self.configure("maxmemory", "1").await,
        }
    }

    async fn ends(&self, fault: Fault) {
        match fault {
            Fault::Killed => self.server.restart().await.unwrap(),
            Fault::Stopped => self.server.resume().unwrap(),
            Fault::Cut => self.proxy.restore(),
            Fault::Full => self.configure("maxmemory", "0").await,
        }
    }

    async fn configure(&self, name: &str, value: &str) {
        self.server
            .cli(&["CONFIG", "SET", name, value])
            .await
            .unwrap();
    }

    /// Another process, whose network is sound.
    async fn far(&self) -> Idempotency {
        Idempotency::new(patient_store(&self.server.url()).await)
    }
}

#[idempotent(key = key, name = "closed", runtime = idempotency)]
async fn closed(idempotency: &Idempotency, key: &str, bodies: &AtomicU32) -> Res {
    bodies.fetch_add(1, SeqCst);
    Ok(1)
}

#[idempotent(key = key, name = "open", runtime = idempotency, store_failure = run)]
async fn open(idempotency: &Idempotency, key: &str, bodies: &AtomicU32) -> Res {
    bodies.fetch_add(1, SeqCst);
    Ok(idem::current().unwrap().attempt())
}

#[tokio::test]
async fn p4_a_full_redis_still_gives_outcomes_takes_those_of_bodies_that_run_and_frees_keys() {
    let world = World::start().await;
    let near = &world.near;
    let far = world.far().await;
    near.operation("full")
        .key("before")
        .run(async || Res::Ok(1))
        .await
        .unwrap();
    let meanwhile = near.operation("full").key("meanwhile").run(async || {
        world.begins(Fault::Full).await;
        let early = far
            .operation("full")
            .key("before")
            .run(async || Res::Ok(2))
            .await
            .unwrap();
        assert_eq!((early.is_replayed(), early.into_inner()), (true, 1));
        Res::Ok(3)
    });
    assert_eq!(meanwhile.await.unwrap().into_inner(), 3);
    let later = far
        .operation("full")
        .key("meanwhile")
        .run(async || Res::Ok(4))
        .await
        .unwrap();
    assert_eq!((later.is_replayed(), later.into_inner()), (true, 3));
    world.ends(Fault::Full).await;

    let failed = near.operation("full").key("fails").run(async || {
        world.begins(Fault::Full).await;
        Res::<u64>::Err(Failure::Declined)
    });
    assert!(matches!(failed.await, Err(Failure::Declined)));
    // Released, and impossible to claim again while the store is full.
    let refused = far
        .operation("full")
        .key("fails")
        .run(async || Res::Ok(5))
        .await;
    let Err(Failure::Idempotency(Error::Store { source, .. })) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(source.kind(), StoreErrorKind::Full);
    world.ends(Fault::Full).await;
    let attempt = far
        .operation("full")
        .key("fails")
        .run(async || Res::Ok(idem::current().unwrap().attempt()))
        .await;
    assert_eq!(attempt.unwrap().into_inner(), 2);
}

#[tokio::test]
async fn p8_a_panic_while_redis_is_away_goes_on_to_the_caller_and_the_key_is_free_when_it_is_back()
{
    for fault in [Fault::Cut, Fault::Stopped] {
        let world = Arc::new(World::start().await);
        let far = world.far().await;
        // A lease longer than the next caller waits: it is not what frees the key.
        let panicked = tokio::spawn({
            let world = world.clone();
            async move {
                let call = world.near.operation("panic").key("k").lease(LONG * 3);
                call.run(async || -> Res {
                    world.begins(fault).await;
                    std::panic::panic_any(17u8)
                })
                .await
            }
        });
        let panicked = panicked.await.unwrap_err().into_panic();
        assert_eq!(panicked.downcast_ref::<u8>(), Some(&17));
        world.ends(fault).await;
        let attempt = far
            .operation("panic")
            .key("k")
            .wait(LONG)
            .run(async || Res::Ok(idem::current().unwrap().attempt()));
        assert_eq!(attempt.await.unwrap().into_inner(), 2, "{fault:?}");
    }
}

#[tokio::test]
async fn p8_a_detached_body_survives_its_caller_and_the_loss_of_both_its_replies() {
    let world = World::start().await;
    for step in [Step::Claim, Step::Commit] {
        step.passing(Kind::Redis, &world.proxy)
            .next(Mishap::LoseReply);
    }
    let begun = Arc::new(Notify::new());
    let go = Arc::new(Notify::new());
    let near = Idempotency::new(patient_store(&world.proxy.url()).await);
    let call = {
        let begun = begun.clone();
        let go = go.clone();
        near.operation("detached")
            .key("k")
            .lease(LONG)
            .run_detached(move || async move {
                begun.notify_one();
                go.notified().await;
                Res::Ok(idem::current().unwrap().attempt())
            })
    };
    tokio::select! { _ = call => panic!("it has ended"), () = begun.notified() => {} }
    go.notify_one();
    let later = world
        .far()
        .await
        .operation("detached")
        .key("k")
        .wait(LONG)
        .run(async || Res::Ok(9))
        .await
        .unwrap();
    assert_eq!((later.is_replayed(), later.into_inner()), (true, 1));
}

/// The times that P4 promises.
mod quiet {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn p4_no_body_runs_without_redis_unless_the_operation_says_so_and_calls_go_on_within_a_second_of_its_return()
     {
        let world = World::start().await;
        let bodies = AtomicU32::new(0);
        for fault in Fault::ALL {
            let key = &format!("{fault:?}");
            world.begins(fault).await;
            let begun = Instant::now();
            let by_hand = world.near.operation("closed.hand").key(key);
            let (attribute, by_hand) = tokio::join!(
                closed(&world.near, key, &bodies),
                by_hand.run(async || -> Res { panic!("a body ran") })
            );
            // Promised are 2 s; the rest is for a busy machine.
            assert!(
                begun.elapsed() < Duration::from_secs(4),
                "{fault:?}: {:?}",
                begun.elapsed()
            );
            for failed in [attribute, by_hand.map(Outcome::into_inner)] {
                let Err(Failure::Idempotency(error @ Error::Store { .. })) = failed else {
                    panic!("{fault:?}: {failed:?}")
                };
                assert!(error.is_retryable(), "{error}");
                let Error::Store { source, .. } = &error else {
                    unreachable!()
                };
                if fault == Fault::Full {
                    assert!(
                        source.kind() == StoreErrorKind::Full && error.to_string().contains("OOM"),
                        "{error}"
                    );
                }
            }
            assert_eq!(bodies.load(SeqCst), 0, "{fault:?}");

            let by_hand = world
                .near
                .operation("open.hand")
                .key(key)
                .store_failure(StoreFailure::Run);
            let by_hand = by_hand.run(async || Res::Ok(idem::current().unwrap().attempt()));
            let (attribute, by_hand) = tokio::join!(open(&world.near, key, &bodies), by_hand);
            assert_eq!(
                (attribute.unwrap(), by_hand.unwrap().into_inner()),
                (0, 0),
                "{fault:?}: unguarded"
            );
            assert_eq!(bodies.swap(0, SeqCst), 1);

            world.ends(fault).await;
            let back = Instant::now();
            eventually("calls go on", async || {
                closed(&world.near, key, &bodies).await.is_ok()
            })
            .await;
            assert!(
                back.elapsed() < Duration::from_secs(1 + 2),
                "{fault:?}: {:?} after its return",
                back.elapsed()
            );
            assert_eq!(bodies.swap(0, SeqCst), 1, "{fault:?}");
        }
    }
}
