//! Calls of one process on several tokio runtimes, which end or stand still at any moment: P1, P5,
//! P9 and P11.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::{Bodies, LEASE, LONG, World};
use idem::{Begin, Error, Idempotency, Operation};
use tokio::runtime::{Builder, Runtime};

type Res = Result<u32, Error>;

/// Driven by its thread alone, and only in `block_on`.
fn parked() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Off the runtime of the test, which goes on.
async fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// Drives a future for some time, and leaves it where it is then.
fn driven<F: Future>(
    runtime: &Runtime,
    future: &mut std::pin::Pin<Box<F>>,
    time: Duration,
) -> Option<F::Output> {
    runtime.block_on(async { tokio::time::timeout(time, future.as_mut()).await.ok() })
}

/// The moments at which a runtime stops: most of them while a step is under way.
fn moment(round: u32) -> Duration {
    Duration::from_micros(u64::from(round) * 173 % 4_000)
}

/// A call whose runtime may end or stand still, so that its lease is short.
fn call(idempotency: &Idempotency, operation: &'static str, key: &str) -> Operation<'static> {
    idempotency
        .operation(operation)
        .key(key)
        .lease(LEASE)
        .wait(LONG)
}

crate::over_all_stores! {
    async fn p1_a_body_whose_runtime_stood_still_for_a_lease_is_not_polled_once_more(world: World) {
        const OPERATION: &str = "runtimes.still";
        let idempotency = world.process().await;
        let polls = Arc::new(AtomicU32::new(0));
        let (stands, still) = tokio::sync::oneshot::channel();
        let (goes, on) = std::sync::mpsc::channel::<()>();
        let other = tokio::task::spawn_blocking({
            let idempotency = idempotency.clone();
            let polls = polls.clone();
            move || {
                let runtime = parked();
                let begun = tokio::sync::Notify::new();
                let call = || {
                    Box::pin(call(&idempotency, OPERATION, "k").run(async || {
                        begun.notify_one();
                        loop {
                            polls.fetch_add(1, Ordering::SeqCst);
                            tokio::task::yield_now().await;
                        }
                    }))
                };
                // A busy machine may need a lease to claim. The body of such a call never begins.
                let claim_again = |_| {
                    let mut owner = call();
                    let has_begun = async {
                        tokio::select! {
                            biased;
                            () = begun.notified() => true,
                            ended = owner.as_mut() => {
                                let ended = ended.map(idem::Outcome::<u32>::into_inner);
                                let is_late = matches!(
                                    &ended,
                                    Err(Error::LeaseLost { .. } | Error::Store { .. })
                                );
                                assert!(is_late, "it never ends: {ended:?}");
                                false
                            }
                        }
                    };
                    runtime.block_on(has_begun).then_some(owner)
                };
                let owner = (0..20).find_map(claim_again).expect("no claim came in time");
                stands.send(()).unwrap();
                on.recv().unwrap();
                runtime.block_on(owner).map(idem::Outcome::<u32>::into_inner).unwrap_err()
            }
        });
        still.await.unwrap();
        let next = call(&idempotency, OPERATION, "k")
            .lease(LONG)
            .run(async || Res::Ok(2))
            .await
            .unwrap();
        assert_eq!((next.is_replayed(), next.into_inner()), (false, 2));
        let before = polls.load(Ordering::SeqCst);
        goes.send(()).unwrap();
        let lost = other.await.unwrap();
        assert!(matches!(lost, Error::LeaseLost { .. }), "{lost}");
        assert_eq!(polls.load(Ordering::SeqCst), before);
        idempotency.shutdown(LONG).await.unwrap();
    }

    async fn a_lease_by_hand_whose_runtime_has_ended_is_lost_and_its_holder_is_told(world: World) {
        const OPERATION: &str = "runtimes.lease";
        let idempotency = world.process().await;
        let begun = {
            let idempotency = idempotency.clone();
            elsewhere(move || {
                parked()
                    .block_on(call(&idempotency, OPERATION, "k").lease(LEASE * 5).begin())
                    .unwrap()
            })
            .await
        };
        let Begin::Execute(lease) = begun else {
            panic!("nobody else was there")
        };
        tokio::time::timeout(LONG, lease.lost())
            .await
            .expect("its keeper has ended with its runtime");
        let next = call(&idempotency, OPERATION, "k").lease(LEASE * 5);
        let next = next.begin().await.unwrap();
        assert!(matches!(next, Begin::Execute(next) if next.attempt() == 2));
    }
}

/// Other calls are not held up. A loaded machine would take their leases.
mod quiet {
    use super::*;

    crate::over_all_stores! {
        async fn p5_a_runtime_that_ends_at_any_moment_of_a_call_holds_up_no_call_of_others(
            world: World,
        ) {
            const OPERATION: &str = "runtimes.end";
            let idempotency = world.process().await;
            let bodies = Arc::new(Bodies::default());
            let mut calls = tokio::task::JoinSet::new();
            for round in 0..24_u32 {
                let idempotency = idempotency.clone();
                let bodies = bodies.clone();
                calls.spawn(async move {
                    let key = format!("k{round}");
                    let recorded = Arc::new(AtomicU32::new(0));
                    let ending = {
                        let idempotency = idempotency.clone();
                        let key = key.clone();
                        let recorded = recorded.clone();
                        move || {
                            let runtime = parked();
                            let mut ends = Box::pin(async move {
                                let body = async || Res::Ok(1);
                                let ran = call(&idempotency, OPERATION, &key).run(body).await;
                                recorded.store(u32::from(ran.is_ok()), Ordering::SeqCst);
                            });
                            let _ = driven(&runtime, &mut ends, moment(round));
                            if round % 2 == 0 {
                                // The call is dropped after its runtime has ended.
                                drop(runtime);
                                drop(ends);
                            } else {
                                let _inside = runtime.enter();
                                drop(ends);
                            }
                        }
                    };
                    elsewhere(ending).await;
                    let body = async || bodies.run(async { Res::Ok(2) }).await;
                    let next = call(&idempotency, OPERATION, &key).lease(LEASE * 5);
                    let next = next.run(body).await.unwrap();
                    if recorded.load(Ordering::SeqCst) == 1 {
                        assert_eq!(next.into_inner(), 1, "{key}: P2");
                    } else {
                        assert_eq!(next.is_replayed(), *next.get() == 1, "{key}: P9");
                    }
                });
            }
            while let Some(call) = calls.join_next().await {
                call.unwrap();
            }
            idempotency.shutdown(LONG).await.unwrap();
        }

        async fn p11_a_runtime_that_stands_still_at_any_moment_of_a_call_holds_up_no_other_key(
            world: World,
        ) {
            const OPERATION: &str = "runtimes.left";
            let idempotency = world.process().await;
            // Left alone at different moments, and alive until the end.
            let left: Vec<_> = {
                let idempotency = idempotency.clone();
                elsewhere(move || {
                    (0..24_u32)
                        .map(|round| {
                            let runtime = parked();
                            let idempotency = idempotency.clone();
                            let mut alone = Box::pin(async move {
                                call(&idempotency, OPERATION, &format!("alone {round}"))
                                    .run(async || Res::Ok(1))
                                    .await
                            });
                            let ended = driven(&runtime, &mut alone, moment(round));
                            (runtime, ended.is_none().then_some(alone))
                        })
                        .collect()
                })
                .await
            };
            let mut calls = tokio::task::JoinSet::new();
            for number in 0..50 {
                let idempotency = idempotency.clone();
                calls.spawn(async move {
                    call(&idempotency, OPERATION, &format!("other {number}"))
                        // Whoever is held up is so until the test ends. A busy disk takes a second
                        // for all their commits.
                        .lease(LEASE * 5)
                        .run(async || Res::Ok(2))
                        .await
                        .unwrap();
                });
            }
            while let Some(call) = calls.join_next().await {
                call.unwrap();
            }
            // They go on, one way or the other.
            elsewhere(move || {
                for (runtime, alone) in left {
                    let Some(alone) = alone else { continue };
                    match runtime.block_on(alone) {
                        Ok(_) | Err(Error::LeaseLost { .. } | Error::Store { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
            .await;
        }
    }
}
