//! The first test of each promise in docs/guarantees.md, over every store. The names begin with the
//! promise's id. A lost request or reply, and a call that is dropped, have their rows in `deaths`;
//! what a store answers has its own in the conformance suite.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, missing_docs)]

mod support;

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem::{
    Abandoned, Begin, Duplicate, Error, Idempotency, InFlight, RecordState, StoreErrorKind,
    StoreFailure,
};
use idem_testkit::{Fault, Step};
use support::{Bodies, Failure, LEASE, LONG, World, eventually};
use tokio::sync::Notify;

type Res<T = u32> = Result<T, Error>;

/// Runs a call whose body is cut by dropping its future: as good as a crash.
async fn crash(idempotency: &Idempotency, operation: &str, key: &str, fingerprint: u8) {
    let begun = Notify::new();
    let call = idempotency
        .operation(operation)
        .key(key)
        .fingerprint(&fingerprint)
        .lease(LEASE)
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
    async fn p1_of_64_calls_at_once_over_two_processes_one_body_runs_and_all_get_its_answer(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        let bodies = Arc::new(Bodies::default());
        let calls: Vec<_> = (0..64)
            .map(|call| {
                let idempotency = if call % 2 == 0 { one.clone() } else { two.clone() };
                let bodies = bodies.clone();
                tokio::spawn(async move {
                    let body = async { tokio::time::sleep(Duration::from_millis(20)).await; Res::Ok(call) };
                    idempotency.operation("p1.many").key("k").wait(LONG).run(|| bodies.run(body)).await
                })
            })
            .collect();
        let mut answers = Vec::new();
        for call in calls {
            answers.push(call.await.unwrap().unwrap());
        }
        assert_eq!((bodies.begun(), bodies.most_at_once()), (1, 1));
        assert_eq!(answers.iter().filter(|answer| !answer.is_replayed()).count(), 1);
        assert!(answers.iter().all(|answer| answer.get() == answers[0].get()));
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
                    let body = async move { gate.notified().await; Res::Ok(7) };
                    idempotency.operation("p1.thousand").key("k").wait(LONG).run(|| bodies.run(body)).await
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
        let first = tokio::spawn({
            let bodies = bodies.clone();
            let begun = begun.clone();
            async move {
                let body = async move { begun.notify_one(); pending::<Res>().await };
                one.operation("p1.renew").key("k").lease(LEASE).run(|| bodies.run(body)).await
            }
        });
        begun.notified().await;
        let second = two
            .operation("p1.renew").key("k").lease(LEASE).wait(LONG)
            .run(|| bodies.run(async { Res::Ok(2) })).await.unwrap();
        assert_eq!((second.into_inner(), bodies.begun(), bodies.most_at_once()), (2, 2, 1));
        assert!(matches!(first.await.unwrap(), Err(Error::LeaseLost { attempt: 1, .. })));
    }

    async fn p1_a_body_longer_than_its_lease_keeps_it_by_renewal(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        let bodies = Arc::new(Bodies::default());
        let call = |idempotency: Idempotency| {
            let bodies = bodies.clone();
            async move {
                let body = async { tokio::time::sleep(LEASE * 3).await; Res::Ok(1) };
                idempotency.operation("p1.long").key("k").lease(LEASE).wait(LONG).run(|| bodies.run(body)).await
            }
        };
        let (first, second) = tokio::join!(call(one), call(two));
        assert_eq!((first.unwrap().into_inner(), second.unwrap().into_inner(), bodies.begun()), (1, 1, 1));
    }

    async fn p1_a_claim_that_is_answered_later_than_its_lease_starts_no_body(world: World) {
        let (builder, faults) = world.faulty().await;
        let lease = Duration::from_millis(150);
        faults.next(Step::Claim, Fault::DelayReply(lease * 2));
        let answer = builder.build().operation("p1.late").key("k").lease(lease)
            .run(|| async { panic!("begun after its lease"); #[allow(unreachable_code)] Res::Ok(1) }).await;
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
            let empty = operation("empty").run(async || Res::Ok(String::new())).await.unwrap();
            let none = operation("none").run(async || Res::Ok(None::<u8>)).await.unwrap();
            assert_eq!([unit.is_replayed(), zero.is_replayed(), empty.is_replayed(), none.is_replayed()], [replayed; 4]);
            assert_eq!((zero.into_inner(), empty.into_inner(), none.into_inner()), (0, String::new(), None));
        }
    }

    async fn p2_after_the_retention_it_is_known_for_as_long_as_remember_says_and_then_runs_again(world: World) {
        let idempotency = world.process().await;
        let call = || idempotency.operation("p2.times").key("k")
            .ttl(Duration::from_millis(150)).remember(Duration::from_millis(700));
        assert!(!call().run(async || Res::Ok(1)).await.unwrap().is_replayed());
        let mut seen = Vec::new();
        loop {
            let answer = match call().run(async || Res::Ok(2)).await {
                Ok(outcome) if outcome.is_replayed() => { assert_eq!(outcome.into_inner(), 1); "replayed" }
                Ok(outcome) => { assert_eq!(outcome.into_inner(), 2); "executed" }
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
        assert!(["replayed", "already done", "executed"].ends_with(&seen) || seen == ["replayed", "executed"], "{seen:?}");
    }

    async fn p3_a_late_owners_commit_and_release_are_refused_and_change_nothing(world: World) {
        let (builder, faults) = world.faulty().await;
        let one = builder.build();
        let two = world.process().await;
        faults.always(Step::Renew, Fault::LoseRequest);
        let Begin::Execute(late) = one.operation("p3.hand").key("k").lease(LEASE).begin().await.unwrap() else { panic!() };
        let Begin::Execute(current) = two.operation("p3.hand").key("k").lease(LEASE).wait(LONG).begin().await.unwrap()
        else { panic!() };
        late.lost().await;
        assert_eq!((late.attempt(), current.attempt()), (1, 2));
        assert!(matches!(late.commit(&1u32).await, Err(Error::LeaseLost { attempt: 1, .. })));
        assert!(matches!(late.release().await, Err(Error::LeaseLost { attempt: 1, .. })));
        current.commit(&2u32).await.unwrap();
        let outcome = one.operation("p3.hand").key("k").run(async || Res::Ok(3)).await.unwrap();
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
                one.operation("p3.value").key("k").lease(LEASE).run(|| async {
                    begun.notify_one();
                    // A body that does not yield continues.
                    while !taken.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    Res::Ok(1)
                }).await
            }
        });
        begun.notified().await;
        let Begin::Execute(lease) = two.operation("p3.value").key("k").wait(LONG).begin().await.unwrap() else { panic!() };
        taken.store(true, Ordering::SeqCst);
        assert_eq!(late.await.unwrap().unwrap().into_inner(), 1);
        let info = two.operation("p3.value").key("k").inspect().await.unwrap().unwrap();
        assert_eq!((info.state, info.attempt), (RecordState::InFlight, 2));
        lease.release().await.unwrap();
    }

    async fn p4_without_an_answer_from_the_store_no_body_runs_unless_the_operation_says_so(world: World) {
        let (builder, faults) = world.faulty().await;
        let idempotency = builder.build();
        for fault in [Fault::LoseRequest, Fault::Refuse, Fault::Fail(StoreErrorKind::Full)] {
            faults.always(Step::Claim, fault.clone());
            let closed = idempotency.operation("p4.closed").key("k").run(async || Res::Ok(1)).await;
            let Err(error @ Error::Store { .. }) = closed else { panic!("{closed:?}") };
            assert_eq!(error.is_retryable(), !matches!(fault, Fault::Refuse));
            let open = idempotency.operation("p4.open").key("k").store_failure(StoreFailure::Run)
                .run(async || Res::Ok(2)).await.unwrap();
            assert_eq!(open.into_inner(), 2);
        }
        faults.always(Step::Claim, Fault::Fail(StoreErrorKind::Unreadable));
        let unreadable = idempotency.operation("p4.open").key("k").store_failure(StoreFailure::Run)
            .run(async || Res::Ok(3)).await;
        assert!(matches!(unreadable, Err(Error::Codec { .. })));
    }

    async fn p5_after_a_crash_the_next_call_runs_the_body_as_the_next_attempt(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        crash(&one, "p5.rerun", "k", 0).await;
        let attempt = two.operation("p5.rerun").key("k").wait(LONG)
            .run(async || Res::Ok(idem::current().unwrap().attempt())).await.unwrap();
        assert_eq!(attempt.into_inner(), 2);
    }

    async fn p5_reject_refuses_an_abandoned_key_until_it_is_settled_or_forgotten(world: World) {
        let idempotency = world.process().await;
        let call = |key: &'static str| {
            let operation = idempotency.operation("p5.reject").key(key).abandoned(Abandoned::Reject).wait(LONG);
            operation.run(async || Res::Ok(9))
        };
        for key in ["settled", "forgotten"] {
            crash(&idempotency, "p5.reject", key, 0).await;
            assert!(matches!(idempotency.operation("p5.reject").key(key).forget().await, Err(Error::InFlight { .. })));
            assert!(matches!(idempotency.operation("p5.reject").key(key).settle(&1u32).await, Err(Error::InFlight { .. })));
            assert!(matches!(call(key).await, Err(Error::Abandoned { attempt: 1, .. })));
        }
        idempotency.operation("p5.reject").key("settled").settle(&7u32).await.unwrap();
        assert_eq!(call("settled").await.unwrap().into_inner(), 7);
        assert!(matches!(idempotency.operation("p5.reject").key("settled").settle(&8u32).await, Err(Error::Duplicate { .. })));
        // Settling keeps what must be equal.
        let mismatch = idempotency.operation("p5.reject").key("settled").fingerprint(&1u8).run(async || Res::Ok(1)).await;
        assert!(matches!(mismatch, Err(Error::FingerprintMismatch { .. })));
        assert!(idempotency.operation("p5.reject").key("forgotten").forget().await.unwrap());
        assert!(!idempotency.operation("p5.reject").key("forgotten").forget().await.unwrap());
        assert_eq!(call("forgotten").await.unwrap().into_inner(), 9);
    }

    async fn p5_reconcile_asks_before_the_body_runs_again(world: World) {
        let idempotency = world.process().await;
        let asked = AtomicU32::new(0);
        let call = |key: &'static str, found: Result<Option<u32>, &'static str>| {
            let asked = &asked;
            let idempotency = &idempotency;
            async move {
                idempotency.operation("p5.reconcile").key(key).lease(LEASE).wait(LONG)
                    .reconcile(async || {
                        asked.fetch_add(1, Ordering::SeqCst);
                        found.map_err(Failure::Asked)
                    })
                    .run(async || Ok::<_, Failure>(100 + u32::try_from(idem::current().unwrap().attempt()).unwrap()))
                    .await
                    .map(idem::Outcome::into_inner)
            }
        };
        // The first call of its key does not ask.
        assert_eq!((call("fresh", Ok(Some(1))).await.unwrap(), asked.load(Ordering::SeqCst)), (101, 0));
        crash(&idempotency, "p5.reconcile", "found", 0).await;
        assert_eq!(call("found", Ok(Some(7))).await.unwrap(), 7);
        assert_eq!(call("found", Ok(Some(8))).await.unwrap(), 7);
        crash(&idempotency, "p5.reconcile", "lost", 0).await;
        assert_eq!(call("lost", Ok(None)).await.unwrap(), 102);
        // An error reaches the caller, and the next call asks again at once, as the next attempt:
        // its lease is not waited for.
        crash(&idempotency, "p5.reconcile", "unknown", 0).await;
        assert!(matches!(call("unknown", Err("bank is down")).await, Err(Failure::Asked("bank is down"))));
        let info = idempotency.operation("p5.reconcile").key("unknown").inspect().await.unwrap().unwrap();
        assert_eq!((info.state, info.attempt), (RecordState::Abandoned, 2));
        assert_eq!(call("unknown", Ok(None)).await.unwrap(), 103);
        assert_eq!(asked.load(Ordering::SeqCst), 4);
    }

    async fn p6_an_error_releases_the_key_and_attempts_are_counted_and_limited(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        for attempt in 1..=3 {
            let idempotency = if attempt % 2 == 0 { &one } else { &two };
            let failed = idempotency.operation("p6.release").key("k").max_attempts(3)
                .run(async || {
                    assert_eq!(idem::current().unwrap().attempt(), attempt);
                    Err::<u32, _>(Failure::Declined)
                }).await;
            assert!(matches!(failed, Err(Failure::Declined)));
        }
        let exhausted = one.operation("p6.release").key("k").max_attempts(3).run(async || Res::Ok(1)).await;
        assert!(matches!(exhausted, Err(Error::AttemptsExhausted { attempts: 3, .. })));
        assert_eq!(one.operation("p6.release").key("k").run(async || Res::Ok(4)).await.unwrap().into_inner(), 4);
    }

    async fn p7_another_payload_gets_neither_the_answer_nor_a_turn(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        let call = |idempotency: &Idempotency, fingerprint: u8| {
            let operation = idempotency.operation("p7").key("k").fingerprint(&fingerprint).lease(LEASE).wait(LONG);
            operation.run(async || Res::Ok(1))
        };
        let mismatch = |answer: Res<idem::Outcome<u32>>| matches!(answer, Err(Error::FingerprintMismatch { .. }));
        // In flight: before any conflict, in this process and in another. Neither waits.
        let lease = one.operation("p7").key("k").fingerprint(&1u8).lease(LEASE).begin().await.unwrap();
        assert!(mismatch(call(&one, 2).await) && mismatch(call(&two, 2).await));
        drop(lease);
        // Abandoned.
        eventually("the lease runs out", async || {
            two.operation("p7").key("k").inspect().await.unwrap().unwrap().state == RecordState::Abandoned
        }).await;
        assert!(mismatch(call(&one, 2).await) && mismatch(call(&two, 2).await));
        // Released: not compared.
        let Begin::Execute(lease) = one.operation("p7").key("k").fingerprint(&1u8).begin().await.unwrap() else { panic!() };
        lease.release().await.unwrap();
        drop(lease);
        assert!(!call(&two, 3).await.unwrap().is_replayed());
        // Committed.
        assert!(mismatch(call(&one, 1).await) && mismatch(call(&two, 1).await));
        assert!(call(&one, 3).await.unwrap().is_replayed());
        assert!(one.operation("p7").key("k").run(async || Res::Ok(9)).await.unwrap().is_replayed());
    }

    async fn p8_a_dropped_caller_leaves_the_record_in_flight(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        crash(&one, "p8.dropped", "k", 0).await;
        let info = two.operation("p8.dropped").key("k").inspect().await.unwrap().unwrap();
        assert_eq!((info.state, info.attempt), (RecordState::InFlight, 1));
        let answer = two.operation("p8.dropped").key("k").in_flight(InFlight::Reject).run(async || Res::Ok(1)).await;
        let Err(Error::InFlight { retry_after, .. }) = answer else { panic!("{answer:?}") };
        assert!(retry_after <= LEASE);
    }

    async fn p8_a_detached_body_runs_to_its_end_without_its_caller(world: World) {
        let idempotency = world.process().await;
        let begun = Arc::new(Notify::new());
        let go = Arc::new(Notify::new());
        let call = {
            let begun = begun.clone();
            let go = go.clone();
            idem::scope(idempotency.clone(), {
                let idempotency = idempotency.clone();
                async move {
                    idempotency.operation("p8.detached").key("k").run_detached(|| async move {
                        begun.notify_one();
                        go.notified().await;
                        // Task-local state came along.
                        assert_eq!(idem::current().unwrap().operation(), "p8.detached");
                        Res::Ok(5)
                    }).await
                }
            })
        };
        tokio::select! { _ = call => panic!(), () = begun.notified() => {} }
        go.notify_one();
        let outcome = idempotency.operation("p8.detached").key("k").wait(LONG).run(async || Res::Ok(6)).await.unwrap();
        assert_eq!((outcome.is_replayed(), outcome.into_inner()), (true, 5));
    }

    async fn p8_a_panic_releases_the_key_and_goes_on_to_the_caller(world: World) {
        let idempotency = world.process().await;
        for detached in [false, true] {
            let idempotency_in = idempotency.clone();
            let panicked = tokio::spawn(async move {
                let operation = idempotency_in.operation("p8.panic").key(&detached);
                if detached {
                    operation.run_detached(|| async { std::panic::panic_any(17u8); #[allow(unreachable_code)] Res::Ok(1) }).await
                } else {
                    operation.run(|| async { std::panic::panic_any(17u8); #[allow(unreachable_code)] Res::Ok(1) }).await
                }
            }).await.unwrap_err().into_panic();
            assert_eq!(panicked.downcast_ref::<u8>(), Some(&17));
            let again = idempotency.operation("p8.panic").key(&detached).in_flight(InFlight::Reject)
                .run(async || Res::Ok(idem::current().unwrap().attempt())).await.unwrap();
            assert_eq!(again.into_inner(), 2);
        }
    }

    async fn p9_a_commit_that_fails_is_tried_again_and_the_caller_has_its_value_meanwhile(world: World) {
        let (builder, faults) = world.faulty().await;
        let one = builder.build();
        let two = world.process().await;
        faults.always(Step::Commit, Fault::LoseRequest);
        let value = one.operation("p9.commit").key("k").lease(LEASE).run(async || Res::Ok(5)).await.unwrap();
        assert_eq!((value.is_replayed(), value.into_inner()), (false, 5));
        // It waits longer than the lease, which is renewed, so the key is not taken over.
        let early = two.operation("p9.commit").key("k").wait(LEASE * 2).run(async || Res::Ok(6)).await;
        assert!(matches!(early, Err(Error::InFlight { .. })), "{early:?}");
        faults.clear();
        for idempotency in [&one, &two] {
            let later = idempotency.operation("p9.commit").key("k").wait(LONG).run(async || Res::Ok(7)).await.unwrap();
            assert_eq!((later.is_replayed(), later.into_inner()), (true, 5));
        }
    }

    async fn p9_an_outcome_that_cannot_be_encoded_is_given_once_and_then_known_to_be_done(world: World) {
        use std::collections::BTreeMap;
        let idempotency = world.process().await;
        // JSON maps have only text keys.
        let body = async || Res::Ok(BTreeMap::from([(vec![1u8], 2u8)]));
        let value = idempotency.operation("p9.encode").key("k").run(body).await.unwrap();
        assert_eq!(value.into_inner()[&vec![1]], 2);
        assert!(matches!(idempotency.operation("p9.encode").key("k").run(body).await, Err(Error::AlreadyDone { .. })));
    }

    async fn p9_by_hand_a_commit_that_failed_may_be_called_again(world: World) {
        let (builder, faults) = world.faulty().await;
        let one = builder.build();
        for fault in [Fault::LoseRequest, Fault::LoseReply] {
            faults.next(Step::Commit, fault);
            let Begin::Execute(lease) = one.operation("p9.hand").key("k").begin().await.unwrap() else { panic!() };
            assert!(matches!(lease.commit(&5u32).await, Err(Error::Store { .. })));
            lease.commit(&5u32).await.unwrap();
            drop(lease);
            let Begin::Replay(recorded) = one.operation("p9.hand").key("k").begin().await.unwrap() else { panic!() };
            assert_eq!(recorded.decode::<u32>().unwrap(), 5);
            assert!(one.operation("p9.hand").key("k").forget().await.unwrap());
        }
    }

    async fn p10_a_claim_without_any_answer_is_given_back(world: World) {
        let (builder, faults) = world.faulty().await;
        let one = builder.build();
        let two = world.process().await;
        faults.next(Step::Claim, Fault::LoseReply);
        faults.next(Step::Claim, Fault::LoseReply);
        let failed = one.operation("p10.twice").key("k").run(async || Res::Ok(1)).await;
        assert!(matches!(failed, Err(Error::Store { .. })));
        // Its lease would last for 30 s.
        let next = two.operation("p10.twice").key("k").run(async || Res::Ok(2)).await.unwrap();
        assert_eq!(next.into_inner(), 2);
    }

    async fn p11_a_waiter_that_gives_up_leaves_the_record_as_it_is(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        let Begin::Execute(lease) = one.operation("p11.gives_up").key("k").begin().await.unwrap() else { panic!() };
        for idempotency in [&one, &two] {
            let short = Duration::from_millis(30);
            let waiter = idempotency.operation("p11.gives_up").key("k").wait(short).run(async || Res::Ok(2)).await;
            assert!(matches!(waiter, Err(Error::InFlight { .. })));
            let dropped = idempotency.operation("p11.gives_up").key("k").wait(LONG).run(async || Res::Ok(3));
            assert!(tokio::time::timeout(short, dropped).await.is_err());
        }
        let info = two.operation("p11.gives_up").key("k").inspect().await.unwrap().unwrap();
        assert_eq!((info.state, info.attempt), (RecordState::InFlight, 1));
        lease.commit(&1u32).await.unwrap();
        assert_eq!(two.operation("p11.gives_up").key("k").run(async || Res::Ok(4)).await.unwrap().into_inner(), 1);
    }

    async fn p11_of_many_waiters_on_a_released_key_one_claims_it_anew(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        let Begin::Execute(lease) = one.operation("p11.released").key("k").begin().await.unwrap() else { panic!() };
        let bodies = Arc::new(Bodies::default());
        let waiters: Vec<_> = (0..40).map(|waiter| {
            let idempotency = if waiter % 2 == 0 { one.clone() } else { two.clone() };
            let bodies = bodies.clone();
            tokio::spawn(async move {
                let body = async { Res::Ok(idem::current().unwrap().attempt()) };
                idempotency.operation("p11.released").key("k").wait(LONG).run(|| bodies.run(body)).await
            })
        }).collect();
        tokio::task::yield_now().await;
        lease.release().await.unwrap();
        drop(lease);
        for waiter in waiters {
            assert_eq!(waiter.await.unwrap().unwrap().into_inner(), 2);
        }
        assert_eq!((bodies.begun(), bodies.most_at_once()), (1, 1));
    }

    async fn p11_a_waiter_takes_over_when_the_owner_is_gone_and_nobody_wakes_it(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        crash(&one, "p11.gone", "k", 0).await;
        let bodies = Arc::new(Bodies::default());
        let waiters: Vec<_> = (0..8).map(|_| {
            let two = two.clone();
            let bodies = bodies.clone();
            tokio::spawn(async move {
                two.operation("p11.gone").key("k").wait(LONG).run(|| bodies.run(async { Res::Ok(2) })).await
            })
        }).collect();
        for waiter in waiters {
            assert_eq!(waiter.await.unwrap().unwrap().into_inner(), 2);
        }
        assert_eq!(bodies.begun(), 1);
    }

    async fn reentry_is_detected_and_children_of_a_body_have_keys_of_their_own(world: World) {
        let idempotency = world.process().await;
        let keys = Mutex::new(Vec::new());
        let outer = idempotency.operation("reentry").key("k").run(|| async {
            let call = idem::current().unwrap();
            keys.lock().unwrap().push((call.child_key("stripe.charge"), call.child_key("mail")));
            let other = idempotency.operation("reentry.other").key("k").run(async || {
                idempotency.operation("reentry").key("k").run(async || Res::Ok(0)).await.map(idem::Outcome::into_inner)
            }).await;
            assert!(matches!(other, Err(Error::Reentrant { .. })), "{other:?}");
            Err::<u32, _>(Failure::Declined)
        }).await;
        assert!(matches!(outer, Err(Failure::Declined)));
        idempotency.operation("reentry").key("k").run(async || {
            let call = idem::current().unwrap();
            keys.lock().unwrap().push((call.child_key("stripe.charge"), call.child_key("mail")));
            Res::Ok(1)
        }).await.unwrap();
        let keys = keys.into_inner().unwrap();
        assert_eq!(keys[0], keys[1], "the same at each attempt");
        assert_ne!(keys[0].0, keys[0].1);
    }

    async fn duplicates_are_rejected_where_the_operation_says_so(world: World) {
        let idempotency = world.process().await;
        let call = || idempotency.operation("rejects").key("k").duplicate(Duplicate::Reject).run(async || Res::Ok(1));
        call().await.unwrap();
        assert!(matches!(call().await, Err(Error::Duplicate { .. })));
    }

    async fn an_outcome_of_another_type_is_an_error_never_a_rerun(world: World) {
        let idempotency = world.process().await;
        idempotency.operation("types").key("k").run(async || Res::Ok("text".to_owned())).await.unwrap();
        let other = idempotency.operation("types").key("k").run(async || Res::Ok(1u32)).await;
        assert!(matches!(other, Err(Error::Codec { .. })), "{other:?}");
    }
}
