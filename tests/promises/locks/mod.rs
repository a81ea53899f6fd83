//! Locks: one holder at a time, numbers that grow, and what becomes of a lock whose holder is late,
//! stalled, dropped or dead. Over every store; `paused` has what needs a clock.

mod paused;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Bodies, LEASE, LONG, World};
use idem::{Error, Idempotency, Lock, LockBuilder, RecordState};
use idem_testkit::{Fault, Gate, Step};

type Res<T = u64> = Result<T, Error>;

/// Longer than any test waits: a lock is free before that only if it was released.
const ENDLESS: Duration = Duration::from_secs(600);
const BRIEF: Duration = Duration::from_millis(50);

fn lock(idempotency: &Idempotency, name: &'static str) -> LockBuilder<'static> {
    idempotency.lock(name).key("k").lease(ENDLESS).wait(LONG)
}

fn one_thread() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

crate::over_all_stores! {
    async fn p1_of_many_waiters_each_holds_it_once_and_the_fencing_number_grows(world: World) {
        let processes = [world.process().await, world.process().await];
        let bodies = Arc::new(Bodies::default());
        let numbers = Arc::new(Mutex::new(Vec::new()));
        let waiters: Vec<_> = (0..16)
            .map(|waiter| {
                let idempotency = processes[waiter % 2].clone();
                let bodies = bodies.clone();
                let numbers = numbers.clone();
                tokio::spawn(async move {
                    let body = async |lock: &Lock| {
                        tokio::task::yield_now().await;
                        numbers.lock().unwrap().push(lock.fencing_number());
                        Res::Ok(())
                    };
                    let wanted = lock(&idempotency, "locks.many");
                    if waiter % 4 < 2 {
                        wanted
                            .run(async |lock| bodies.run(body(lock)).await)
                            .await
                            .unwrap();
                        return;
                    }
                    let lock = wanted.acquire().await.unwrap();
                    bodies.run(body(&lock)).await.unwrap();
                    lock.release().await.unwrap();
                })
            })
            .collect();
        for waiter in waiters {
            waiter.await.unwrap();
        }
        let numbers = numbers.lock().unwrap();
        assert_eq!((bodies.most_at_once(), numbers.len()), (1, 16));
        assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    }

    async fn a_second_acquisition_is_in_flight_after_its_wait_and_reentrant_in_the_locks_own_body(
        world: World,
    ) {
        let one = world.process().await;
        let two = world.process().await;
        let held = lock(&one, "locks.reentry").acquire().await.unwrap();
        let again = lock(&one, "locks.reentry").wait(BRIEF).acquire().await;
        assert!(matches!(again, Err(Error::InFlight { .. })), "{again:?}");
        let both = || one.lock("locks.reentry").keys(["j", "k"]).lease(ENDLESS);
        let all = both().wait(BRIEF).acquire_all().await;
        assert!(matches!(all, Err(Error::InFlight { .. })), "{all:?}");
        let body = lock(&one, "locks.reentry").wait(BRIEF);
        let body = body.run(async |_| Res::Ok(1)).await;
        assert!(matches!(body, Err(Error::InFlight { .. })), "{body:?}");
        let task = tokio::spawn({
            let one = one.clone();
            async move { lock(&one, "locks.reentry").wait(BRIEF).acquire().await }
        });
        let task = task.await.unwrap();
        assert!(matches!(task, Err(Error::InFlight { .. })), "{task:?}");
        let process = lock(&two, "locks.reentry").wait(BRIEF).acquire().await;
        assert!(
            matches!(process, Err(Error::InFlight { .. })),
            "{process:?}"
        );
        // None of these has disturbed it.
        held.release().await.unwrap();
        let next = lock(&one, "locks.reentry")
            .wait("0s")
            .acquire()
            .await
            .unwrap();
        assert_eq!(next.fencing_number(), 2);
        drop(next);
        let inside = lock(&one, "locks.reentry")
            .run(async |outer| {
                let inner = lock(&one, "locks.reentry").acquire().await;
                assert!(matches!(inner, Err(Error::Reentrant { .. })), "{inner:?}");
                let all = both().acquire_all().await;
                assert!(matches!(all, Err(Error::Reentrant { .. })), "{all:?}");
                // A task that the body spawned is anybody.
                let task = lock(&one, "locks.reentry").wait(BRIEF).acquire();
                let task = tokio::spawn(task).await.unwrap();
                assert!(matches!(task, Err(Error::InFlight { .. })), "{task:?}");
                // That of a detached call inside of it is not.
                let here = one.clone();
                let detached = one.operation("locks.reentry").key("k").run_detached(async move || {
                    let inner = lock(&here, "locks.reentry").acquire().await;
                    Res::Ok(matches!(inner, Err(Error::Reentrant { .. })))
                });
                assert!(detached.await.unwrap().into_inner());
                Res::Ok(outer.fencing_number())
            })
            .await;
        assert_eq!(inside.unwrap(), 3);
    }

    async fn fifty_futures_of_one_task_hold_the_lock_one_after_the_other(world: World) {
        let one = world.process().await;
        let bodies = Bodies::default();
        let holder = async |holder: usize| {
            let body = async |lock: &Lock| {
                tokio::task::yield_now().await;
                Res::Ok(lock.fencing_number())
            };
            if holder < 25 {
                let builder = lock(&one, "locks.joined");
                return builder
                    .run(async |lock| bodies.run(body(lock)).await)
                    .await
                    .unwrap();
            }
            let lock = lock(&one, "locks.joined").acquire().await.unwrap();
            let number = bodies.run(body(&lock)).await.unwrap();
            lock.release().await.unwrap();
            number
        };
        let mut numbers = futures_util::future::join_all((0..50).map(holder)).await;
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(1..=50));
        assert_eq!(bodies.most_at_once(), 1);
    }

    async fn p3_a_holder_that_cannot_renew_learns_of_it_and_releases_nothing(world: World) {
        let (builder, faults) = world.faulty().await;
        let one = builder.build();
        let two = world.process().await;
        faults.always(Step::Renew, Fault::LoseRequest);
        let late = lock(&one, "locks.late")
            .lease(LEASE * 3)
            .acquire()
            .await
            .unwrap();
        let current = lock(&two, "locks.late").acquire().await.unwrap();
        tokio::time::timeout(LONG, late.lost()).await.unwrap();
        assert!(late.fencing_number() < current.fencing_number());
        let released = late.release().await;
        assert!(
            matches!(released, Err(Error::LeaseLost { attempt: 1, .. })),
            "{released:?}"
        );
        drop(late);
        one.shutdown(LONG).await.unwrap();
        let third = lock(&one, "locks.late").wait(BRIEF).acquire().await;
        assert!(matches!(third, Err(Error::InFlight { .. })), "{third:?}");
        assert!(tokio::time::timeout(BRIEF, current.lost()).await.is_err());
        current.release().await.unwrap();
    }

    async fn p1_a_body_whose_holder_was_stalled_for_a_lease_is_not_polled_once_more(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        let (stall, stalls) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let stalled = tokio::task::spawn_blocking(move || {
            let runtime = one_thread();
            runtime.block_on(lock(&one, "locks.stalled").lease(LEASE * 3).run(async |_| {
                begun.send(()).unwrap();
                // The whole runtime, the renewals too.
                stalls.recv().unwrap();
                tokio::task::yield_now().await;
                panic!("polled after the lease");
                #[allow(unreachable_code)]
                Res::Ok(0)
            }))
        });
        begins.await.unwrap();
        let other = lock(&two, "locks.stalled").acquire().await.unwrap();
        stall.send(()).unwrap();
        let stalled = stalled.await.unwrap();
        assert!(
            matches!(stalled, Err(Error::LeaseLost { attempt: 1, .. })),
            "{stalled:?}"
        );
        assert_eq!(other.fencing_number(), 2);
    }

    async fn p5_a_lock_whose_tokio_runtime_ended_is_free_again(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        tokio::task::spawn_blocking(move || {
            let runtime = one_thread();
            let lock = runtime
                .block_on(lock(&one, "locks.ended").lease(LEASE * 3).acquire())
                .unwrap();
            runtime.spawn(async move {
                let _held = lock;
                std::future::pending::<()>().await;
            });
            runtime.block_on(tokio::task::yield_now());
        })
        .await
        .unwrap();
        let next = lock(&two, "locks.ended").acquire().await.unwrap();
        assert_eq!(next.fencing_number(), 2);
    }

    async fn p3_the_number_after_a_holder_that_died_grows_however_short_it_is_kept(world: World) {
        let (builder, faults) = world.faulty().await;
        let one = builder.build();
        let two = world.process().await;
        faults.always(Step::Renew, Fault::LoseRequest);
        let brief = |idempotency| lock(idempotency, "locks.kept").keep("1s").lease(LEASE * 3);
        let dead = brief(&one).acquire().await.unwrap();
        assert_eq!(dead.fencing_number(), 1);
        std::mem::forget(dead);
        // For longer than two leases, which every record is kept, and less than ten.
        tokio::time::sleep(LEASE * 7).await;
        let next = brief(&two).acquire().await.unwrap();
        assert_eq!(next.fencing_number(), 2);
    }

    async fn p8_a_lock_that_a_panic_or_an_error_drops_is_released(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        for number in [1, 3] {
            let panics = tokio::spawn({
                let one = one.clone();
                async move {
                    let lock = lock(&one, "locks.panic").acquire().await.unwrap();
                    assert_eq!(lock.fencing_number(), number);
                    assert!(number > 1, "a bug in what the lock protects");
                    Err::<(), _>("an error that `?` would return")
                }
            });
            assert!(!matches!(panics.await, Ok(Ok(()))));
            let next = lock(&two, "locks.panic").acquire().await.unwrap();
            assert_eq!(next.fencing_number(), number + 1);
            next.release().await.unwrap();
        }
        let body = tokio::spawn(async move {
            lock(&one, "locks.panic")
                .run(async |_| -> Res { panic!("a bug in the body") })
                .await
        });
        assert!(body.await.unwrap_err().is_panic());
        assert_eq!(
            lock(&two, "locks.panic")
                .acquire()
                .await
                .unwrap()
                .fencing_number(),
            6
        );
    }

    async fn p9_a_release_that_the_store_does_not_take_is_tried_again_and_waited_for(world: World) {
        let (builder, faults) = world.faulty().await;
        let one = builder.build();
        let two = world.process().await;
        for number in [1, 2] {
            let held = lock(&one, "locks.release")
                .wait(Duration::ZERO)
                .acquire()
                .await
                .unwrap();
            assert_eq!(held.fencing_number(), number);
            let gate = Gate::new();
            for fault in [Fault::Refuse, Fault::Refuse, Fault::Hang(gate.clone())] {
                faults.next(Step::Release, fault);
            }
            if number == 2 {
                let released = held.release().await;
                assert!(matches!(released, Err(Error::Store { .. })), "{released:?}");
            }
            drop(held);
            let unfinished = one.shutdown(Duration::ZERO).await.unwrap_err();
            assert_eq!(unfinished.steps, 1, "{unfinished}");
            gate.open();
            one.shutdown(LONG).await.unwrap();
        }
        let next = lock(&two, "locks.release")
            .wait(Duration::ZERO)
            .acquire()
            .await
            .unwrap();
        assert_eq!(next.fencing_number(), 3);
    }

    async fn p10_a_claim_whose_reply_was_lost_is_recognised(world: World) {
        let (builder, faults) = world.faulty().await;
        let one = builder.build();
        faults.next(Step::Claim, Fault::LoseReply);
        let held = lock(&one, "locks.reply")
            .wait(Duration::ZERO)
            .acquire()
            .await
            .unwrap();
        assert_eq!(held.fencing_number(), 1);
    }

    async fn p10_the_claim_of_a_dropped_acquire_is_undone(world: World) {
        let (builder, faults) = world.faulty().await;
        let one = builder.build();
        let two = world.process().await;
        let gate = Gate::new();
        faults.next(Step::Claim, Fault::HangReply(gate.clone()));
        tokio::select! {
            _ = lock(&one, "locks.dropped").acquire() => panic!("the reply is held"),
            () = gate.reached() => {}
        }
        lock(&two, "locks.dropped")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        // A waiter that gives up leaves nothing behind.
        let held = lock(&two, "locks.dropped").acquire().await.unwrap();
        let waiter = lock(&one, "locks.dropped").acquire();
        assert!(tokio::time::timeout(BRIEF, waiter).await.is_err());
        held.release().await.unwrap();
        one.shutdown(LONG).await.unwrap();
        lock(&two, "locks.dropped")
            .wait(BRIEF)
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }

    async fn one_caller_of_acquire_all_at_a_time_works_whatever_the_order_of_its_keys(
        world: World,
    ) {
        let processes = [world.process().await, world.process().await];
        let bodies = Arc::new(Bodies::default());
        let callers: Vec<_> = (0..8)
            .map(|caller| {
                let idempotency = processes[caller % 2].clone();
                let bodies = bodies.clone();
                tokio::spawn(async move {
                    let mut keys = ["m-1", "m-2", "m-3"];
                    if caller % 4 < 2 {
                        keys.reverse();
                    }
                    let builder = idempotency.lock("locks.orders").keys(keys);
                    let locks = builder
                        .lease(ENDLESS)
                        .wait(LONG)
                        .acquire_all()
                        .await
                        .unwrap();
                    bodies.run(tokio::task::yield_now()).await;
                    locks.release().await.unwrap();
                })
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        assert_eq!((bodies.begun(), bodies.most_at_once()), (8, 1));
    }

    async fn two_callers_of_acquire_all_in_opposite_orders_do_not_deadlock(world: World) {
        let mut callers = Vec::new();
        let mut gates = Vec::new();
        for keys in [["a", "b"], ["b", "a"]] {
            let (builder, faults) = world.faulty().await;
            let gate = Gate::new();
            faults.next(Step::Claim, Fault::HangReply(gate.clone()));
            let idempotency = builder.build();
            callers.push(tokio::spawn(async move {
                let builder = idempotency.lock("locks.opposite").keys(keys);
                let locks = builder.lease(ENDLESS).wait(LONG).acquire_all().await?;
                locks.release().await
            }));
            gates.push(gate);
        }
        // If each began with the first of its keys, each would hold one now.
        for gate in &gates {
            gate.reached().await;
        }
        for gate in &gates {
            gate.open();
        }
        for caller in callers {
            caller.await.unwrap().unwrap();
        }
    }

    async fn acquire_all_acquires_all_or_none(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        let merchant = |key: &'static str| {
            two.lock("locks.all")
                .key(key)
                .lease(ENDLESS)
                .wait(Duration::ZERO)
        };
        let all = || {
            one.lock("locks.all")
                .keys(["m-7", "m-1", "m-4"])
                .lease(ENDLESS)
        };
        let held = merchant("m-7").acquire().await.unwrap();
        let refused = all().wait(BRIEF).acquire_all().await;
        assert!(
            matches!(refused, Err(Error::InFlight { .. })),
            "{refused:?}"
        );
        // Released before it returned.
        for key in ["m-1", "m-4"] {
            merchant(key)
                .acquire()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
        }
        held.release().await.unwrap();
        let locks = all().wait(LONG).acquire_all().await.unwrap();
        // In the order of the keys: `m-7` had one holder, and the others two.
        let numbers: Vec<_> = locks.iter().map(Lock::fencing_number).collect();
        assert_eq!(numbers, [2, 3, 3]);
        for key in ["m-1", "m-4", "m-7"] {
            assert!(
                matches!(merchant(key).acquire().await, Err(Error::InFlight { .. })),
                "{key}"
            );
        }
        drop(locks);
        one.shutdown(LONG).await.unwrap();
        for key in ["m-1", "m-4", "m-7"] {
            drop(merchant(key).acquire().await.unwrap());
        }
    }

    async fn a_lock_and_an_operation_of_one_name_have_nothing_to_do_with_each_other(world: World) {
        let one = world.process().await;
        let operation = |name: &'static str| one.operation(name).key("k");
        let held = lock(&one, "locks.both").acquire().await.unwrap();
        let ran = operation("locks.both")
            .run(async || Res::Ok(7))
            .await
            .unwrap();
        assert!(!ran.is_replayed());
        assert!(
            operation("locks.both")
                .run(async || Res::Ok(8))
                .await
                .unwrap()
                .is_replayed()
        );
        held.release().await.unwrap();
        drop(lock(&one, "locks.both").acquire().await.unwrap());
        let info = operation("locks.both").inspect().await.unwrap().unwrap();
        assert_eq!((info.state, info.attempt), (RecordState::Committed, 1));
        // Nor can an operation take the name of the lock's record.
        for name in ["idem.lock/locks.both", "idem.lock"] {
            let refused = operation(name).run(async || Res::Ok(9)).await;
            assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
            let refused = one.lock(name).key("k").acquire().await;
            assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
        }
    }
}
