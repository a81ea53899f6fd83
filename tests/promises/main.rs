//! The first test of each promise in docs/guarantees.md, over every store. The names begin with the
//! promise's id. A lost request or reply, and a call that is dropped, have their rows in `deaths`;
//! what a store answers has its own in the conformance suite.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    missing_docs
)]

mod by_url;
mod callers;
mod calls;
mod locks;
mod runtimes;
mod steps;
#[path = "../support/mod.rs"]
mod support;
#[cfg(feature = "encryption")]
mod swapped;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use idem::{
    Abandoned, Begin, Builder, Error, Idempotency, RecordState, StoreErrorKind, StoreFailure,
};
use idem_testkit::{Fault, Faults, Step};
use support::{Bodies, Failure, LEASE, LONG, World, eventually};
use tokio::sync::Notify;

type Res<T = u32> = Result<T, Error>;

/// Runs a call whose body is cut by dropping its future: as good as a crash.
async fn crash(idempotency: &Idempotency, operation: &str, key: &str, lease: Duration) {
    let begun = Notify::new();
    let call = idempotency
        .operation(operation)
        .key(key)
        .fingerprint(&0u8)
        .lease(lease)
        .run(|| async {
            begun.notify_one();
            pending::<Res>().await
        });
    tokio::select! {
        _ = call => panic!("a body that never ends has ended"),
        () = begun.notified() => {}
    }
}

over_all_stores! {
    async fn p1_of_64_calls_at_once_over_two_processes_one_body_runs_and_all_get_its_answer(
        world: World,
    ) {
        let one = world.process().await;
        let two = world.process().await;
        let bodies = Arc::new(Bodies::default());
        let calls: Vec<_> = (0..64)
            .map(|call| {
                let idempotency = if call % 2 == 0 {
                    one.clone()
                } else {
                    two.clone()
                };
                let bodies = bodies.clone();
                tokio::spawn(async move {
                    let body = async {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        Res::Ok(call)
                    };
                    idempotency
                        .operation("p1.many")
                        .key("k")
                        .wait(LONG)
                        .run(|| bodies.run(body))
                        .await
                })
            })
            .collect();
        let mut answers = Vec::new();
        for call in calls {
            answers.push(call.await.unwrap().unwrap());
        }
        assert_eq!((bodies.begun(), bodies.most_at_once()), (1, 1));
        assert_eq!(
            answers
                .iter()
                .filter(|answer| !answer.is_replayed())
                .count(),
            1
        );
        assert!(
            answers
                .iter()
                .all(|answer| answer.get() == answers[0].get())
        );
    }

    async fn p1_a_thousand_duplicates_in_one_process_ask_the_store_once(world: World) {
        let (builder, faults) = world.faulty().await;
        let idempotency = builder.build();
        let bodies = Arc::new(Bodies::default());
        let gate = Arc::new(Notify::new());
        let calls: Vec<_> = (0..1000)
            .map(|_| {
                let idempotency = idempotency.clone();
                let bodies = bodies.clone();
                let gate = gate.clone();
                tokio::spawn(async move {
                    let body = async move {
                        gate.notified().await;
                        Res::Ok(7)
                    };
                    idempotency
                        .operation("p1.thousand")
                        .key("k")
                        .wait(LONG)
                        .run(|| bodies.run(body))
                        .await
                })
            })
            .collect();
        eventually("the body runs", async || bodies.begun() == 1).await;
        gate.notify_one();
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap().into_inner(), 7);
        }
        // Calls that came after the end ask for themselves; those that came before did not.
        assert_eq!((bodies.begun(), faults.calls(Step::Commit)), (1, 1));
    }

    async fn p1_an_owner_that_cannot_renew_is_stopped_before_anybody_else_begins(world: World) {
        let (builder, faults) = world.faulty().await;
        let one = builder.build();
        let two = world.process().await;
        faults.always(Step::Renew, Fault::LoseRequest);
        let bodies = Arc::new(Bodies::default());
        let begun = Arc::new(Notify::new());
        let mut first = tokio::spawn({
            let bodies = bodies.clone();
            let begun = begun.clone();
            async move {
                let body = async move {
                    begun.notify_one();
                    pending::<Res>().await
                };
                one.operation("p1.renew")
                    .key("k")
                    // The body is stopped a tenth of it before its end: a second.
                    .lease(LONG / 2)
                    .run(|| bodies.run(body))
                    .await
            }
        });
        tokio::select! {
            first = &mut first => panic!("it has not begun: {first:?}"),
            () = begun.notified() => {}
        }
        let second = two
            .operation("p1.renew")
            .key("k")
            .wait(LONG)
            .run(|| bodies.run(async { Res::Ok(2) }))
            .await
            .unwrap();
        assert_eq!(
            (second.into_inner(), bodies.begun(), bodies.most_at_once()),
            (2, 2, 1)
        );
        assert!(matches!(
            first.await.unwrap(),
            Err(Error::LeaseLost { attempt: 1, .. })
        ));
    }

    async fn p1_a_body_longer_than_its_lease_keeps_it_by_renewal(world: World) {
        let one = world.faulty().await;
        let two = world.faulty().await;
        let bodies = Arc::new(Bodies::default());
        let call = |(builder, faults): (Builder, Faults)| {
            let bodies = bodies.clone();
            let idempotency = builder.build();
            async move {
                let body = async {
                    // One comes after each third of the lease.
                    faults.reached(Step::Renew, 4).await;
                    Res::Ok(1)
                };
                idempotency
                    .operation("p1.long")
                    .key("k")
                    .lease(LEASE * 6)
                    .wait(LONG)
                    .run(|| bodies.run(body))
                    .await
            }
        };
        let (first, second) = tokio::join!(call(one), call(two));
        assert_eq!(
            (
                first.unwrap().into_inner(),
                second.unwrap().into_inner(),
                bodies.begun()
            ),
            (1, 1, 1)
        );
    }

    async fn p1_a_claim_that_is_answered_later_than_its_lease_starts_no_body(world: World) {
        let (builder, faults) = world.faulty().await;
        let lease = Duration::from_millis(150);
        faults.next(Step::Claim, Fault::DelayReply(lease * 2));
        let answer = builder
            .build()
            .operation("p1.late")
            .key("k")
            .lease(lease)
            .run(|| async {
                panic!("begun after its lease");
                #[allow(unreachable_code)]
                Res::Ok(1)
            })
            .await;
        assert!(matches!(answer, Err(Error::LeaseLost { .. })), "{answer:?}");
    }

    async fn p2_unit_zero_empty_and_none_are_outcomes_for_another_process_too(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        for idempotency in [&one, &two] {
            let replayed = std::ptr::eq(idempotency, &raw const two);
            let operation = |key| idempotency.operation("p2.empty").key(key);
            let unit = operation("unit").run(async || Res::Ok(())).await.unwrap();
            let zero = operation("zero").run(async || Res::Ok(0u64)).await.unwrap();
            let empty = operation("empty")
                .run(async || Res::Ok(String::new()))
                .await
                .unwrap();
            let none = operation("none")
                .run(async || Res::Ok(None::<u8>))
                .await
                .unwrap();
            assert_eq!(
                [
                    unit.is_replayed(),
                    zero.is_replayed(),
                    empty.is_replayed(),
                    none.is_replayed()
                ],
                [replayed; 4]
            );
            assert_eq!(
                (zero.into_inner(), empty.into_inner(), none.into_inner()),
                (0, String::new(), None)
            );
        }
    }

    async fn p2_after_the_retention_it_is_known_for_as_long_as_remember_says_and_then_runs_again(
        world: World,
    ) {
        let idempotency = world.process().await;
        let call = || {
            idempotency
                .operation("p2.times")
                .key("k")
                .ttl(Duration::from_millis(150))
                .remember(Duration::from_millis(700))
        };
        assert!(!call().run(async || Res::Ok(1)).await.unwrap().is_replayed());
        let mut seen = Vec::new();
        loop {
            let answer = match call().run(async || Res::Ok(2)).await {
                Ok(outcome) if outcome.is_replayed() => {
                    assert_eq!(outcome.into_inner(), 1);
                    "replayed"
                }
                Ok(outcome) => {
                    assert_eq!(outcome.into_inner(), 2);
                    "executed"
                }
                Err(Error::AlreadyDone { .. }) => "already done",
                Err(error) => panic!("{error}"),
            };
            if seen.last() != Some(&answer) {
                seen.push(answer);
            }
            if answer == "executed" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // A machine that stands still for a while may miss a window, but never sees them in another
        // order.
        assert!(
            ["replayed", "already done", "executed"].ends_with(&seen)
                || seen == ["replayed", "executed"],
            "{seen:?}"
        );
    }

    async fn p3_a_late_owners_commit_and_release_are_refused_and_change_nothing(world: World) {
        let (builder, faults) = world.faulty().await;
        let one = builder.build();
        let two = world.process().await;
        faults.always(Step::Renew, Fault::LoseRequest);
        let Begin::Execute(late) = one
            .operation("p3.hand")
            .key("k")
            .lease(LEASE * 3)
            .begin()
            .await
            .unwrap()
        else {
            panic!()
        };
        let Begin::Execute(current) = two
            .operation("p3.hand")
            .key("k")
            .wait(LONG)
            .begin()
            .await
            .unwrap()
        else {
            panic!()
        };
        late.lost().await;
        assert_eq!((late.attempt(), current.attempt()), (1, 2));
        assert!(matches!(
            late.commit(&1u32).await,
            Err(Error::LeaseLost { attempt: 1, .. })
        ));
        assert!(matches!(
            late.release().await,
            Err(Error::LeaseLost { attempt: 1, .. })
        ));
        current.commit(&2u32).await.unwrap();
        let outcome = one
            .operation("p3.hand")
            .key("k")
            .run(async || Res::Ok(3))
            .await
            .unwrap();
        assert_eq!(outcome.into_inner(), 2);
    }

    async fn p3_a_late_owners_caller_still_gets_the_value_that_its_body_returned(world: World) {
        let (builder, faults) = world.faulty().await;
        let one = builder.build();
        let two = world.process().await;
        faults.always(Step::Renew, Fault::LoseRequest);
        let begun = Arc::new(Notify::new());
        let taken = Arc::new(AtomicBool::new(false));
        let late = tokio::spawn({
            let begun = begun.clone();
            let taken = taken.clone();
            async move {
                one.operation("p3.value")
                    .key("k")
                    .lease(LEASE * 3)
                    .run(|| async {
                        begun.notify_one();
                        // A body that does not yield continues.
                        while !taken.load(Ordering::SeqCst) {
                            std::thread::sleep(Duration::from_millis(5));
                        }
                        Res::Ok(1)
                    })
                    .await
            }
        });
        begun.notified().await;
        let Begin::Execute(lease) = two
            .operation("p3.value")
            .key("k")
            .wait(LONG)
            .begin()
            .await
            .unwrap()
        else {
            panic!()
        };
        taken.store(true, Ordering::SeqCst);
        assert_eq!(late.await.unwrap().unwrap().into_inner(), 1);
        let info = two
            .operation("p3.value")
            .key("k")
            .inspect()
            .await
            .unwrap()
            .unwrap();
        assert_eq!((info.state, info.attempt), (RecordState::InFlight, 2));
        lease.release().await.unwrap();
    }

    async fn p4_without_an_answer_from_the_store_no_body_runs_unless_the_operation_says_so(
        world: World,
    ) {
        let (builder, faults) = world.faulty().await;
        let idempotency = builder.build();
        for fault in [
            Fault::LoseRequest,
            Fault::Refuse,
            Fault::Fail(StoreErrorKind::Full),
        ] {
            faults.always(Step::Claim, fault.clone());
            let closed = idempotency
                .operation("p4.closed")
                .key("k")
                .run(async || Res::Ok(1))
                .await;
            let Err(error @ Error::Store { .. }) = closed else {
                panic!("{closed:?}")
            };
            assert_eq!(error.is_retryable(), !matches!(fault, Fault::Refuse));
            let open = idempotency
                .operation("p4.open")
                .key("k")
                .store_failure(StoreFailure::Run)
                .run(async || Res::Ok(2))
                .await
                .unwrap();
            assert_eq!(open.into_inner(), 2);
        }
        faults.always(Step::Claim, Fault::Fail(StoreErrorKind::Unreadable));
        let unreadable = idempotency
            .operation("p4.open")
            .key("k")
            .store_failure(StoreFailure::Run)
            .run(async || Res::Ok(3))
            .await;
        assert!(matches!(unreadable, Err(Error::Codec { .. })));
    }

    async fn p5_after_a_crash_the_next_call_runs_the_body_as_the_next_attempt(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        crash(&one, "p5.rerun", "k", LEASE * 3).await;
        let attempt = two
            .operation("p5.rerun")
            .key("k")
            .wait(LONG)
            .run(async || Res::Ok(idem::current().unwrap().attempt()))
            .await
            .unwrap();
        assert_eq!(attempt.into_inner(), 2);
    }

    async fn p5_reject_refuses_an_abandoned_key_until_it_is_settled_or_forgotten(world: World) {
        let idempotency = world.process().await;
        let call = |key: &'static str| {
            let operation = idempotency
                .operation("p5.reject")
                .key(key)
                .abandoned(Abandoned::Reject)
                .wait(LONG);
            operation.run(async || Res::Ok(9))
        };
        // While its lease lasts, nobody knows that the owner is gone.
        crash(&idempotency, "p5.reject", "leased", LONG).await;
        let leased = || idempotency.operation("p5.reject").key("leased");
        assert!(matches!(
            leased().forget().await,
            Err(Error::InFlight { .. })
        ));
        assert!(matches!(
            leased().settle(&1u32).await,
            Err(Error::InFlight { .. })
        ));
        for key in ["settled", "forgotten"] {
            crash(&idempotency, "p5.reject", key, LEASE * 3).await;
            assert!(matches!(
                call(key).await,
                Err(Error::Abandoned { attempt: 1, .. })
            ));
        }
        idempotency
            .operation("p5.reject")
            .key("settled")
            .settle(&7u32)
            .await
            .unwrap();
        assert_eq!(call("settled").await.unwrap().into_inner(), 7);
        assert!(matches!(
            idempotency
                .operation("p5.reject")
                .key("settled")
                .settle(&8u32)
                .await,
            Err(Error::Duplicate { .. })
        ));
        // Settling keeps what must be equal.
        let mismatch = idempotency
            .operation("p5.reject")
            .key("settled")
            .fingerprint(&1u8)
            .run(async || Res::Ok(1))
            .await;
        assert!(matches!(mismatch, Err(Error::FingerprintMismatch { .. })));
        assert!(
            idempotency
                .operation("p5.reject")
                .key("forgotten")
                .forget()
                .await
                .unwrap()
        );
        assert!(
            !idempotency
                .operation("p5.reject")
                .key("forgotten")
                .forget()
                .await
                .unwrap()
        );
        assert_eq!(call("forgotten").await.unwrap().into_inner(), 9);
    }

    async fn p5_reconcile_asks_before_the_body_runs_again(world: World) {
        let idempotency = world.process().await;
        let asked = AtomicU32::new(0);
        let call = |key: &'static str, found: Result<Option<u32>, &'static str>| {
            let asked = &asked;
            let idempotency = &idempotency;
            async move {
                idempotency
                    .operation("p5.reconcile")
                    .key(key)
                    .lease(LONG)
                    .wait(LONG)
                    .reconcile(async || {
                        asked.fetch_add(1, Ordering::SeqCst);
                        found.map_err(Failure::Asked)
                    })
                    .run(async || {
                        Ok::<_, Failure>(
                            100 + u32::try_from(idem::current().unwrap().attempt()).unwrap(),
                        )
                    })
                    .await
                    .map(idem::Outcome::into_inner)
            }
        };
        // The first call of its key does not ask.
        assert_eq!(
            (
                call("fresh", Ok(Some(1))).await.unwrap(),
                asked.load(Ordering::SeqCst)
            ),
            (101, 0)
        );
        crash(&idempotency, "p5.reconcile", "found", LEASE * 3).await;
        assert_eq!(call("found", Ok(Some(7))).await.unwrap(), 7);
        assert_eq!(call("found", Ok(Some(8))).await.unwrap(), 7);
        crash(&idempotency, "p5.reconcile", "lost", LEASE * 3).await;
        assert_eq!(call("lost", Ok(None)).await.unwrap(), 102);
        // An error reaches the caller, and the next call asks again at once, as the next attempt:
        // its lease is not waited for.
        crash(&idempotency, "p5.reconcile", "unknown", LEASE * 3).await;
        assert!(matches!(
            call("unknown", Err("bank is down")).await,
            Err(Failure::Asked("bank is down"))
        ));
        let info = idempotency
            .operation("p5.reconcile")
            .key("unknown")
            .inspect()
            .await
            .unwrap()
            .unwrap();
        assert_eq!((info.state, info.attempt), (RecordState::Abandoned, 2));
        assert_eq!(call("unknown", Ok(None)).await.unwrap(), 103);
        assert_eq!(asked.load(Ordering::SeqCst), 4);
    }
}
