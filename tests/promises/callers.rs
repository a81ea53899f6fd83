//! P6 to P11: what callers get, and what is left behind if they or their bodies fail or go away.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem::{Begin, Duplicate, Error, Idempotency, InFlight, RecordState};
use idem_testkit::{Fault, Step};
use tokio::sync::Notify;

use crate::support::{Bodies, Failure, LEASE, LONG, World, eventually};
use crate::{Res, crash};

crate::over_all_stores! {
    async fn p6_an_error_releases_the_key_and_attempts_are_counted_and_limited(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        for attempt in 1..=3 {
            let idempotency = if attempt % 2 == 0 { &one } else { &two };
            let failed = idempotency
                .operation("p6.release")
                .key("k")
                .max_attempts(3)
                .run(async || {
                    assert_eq!(idem::current().unwrap().attempt(), attempt);
                    Err::<u32, _>(Failure::Declined)
                })
                .await;
            assert!(matches!(failed, Err(Failure::Declined)));
        }
        let exhausted = one
            .operation("p6.release")
            .key("k")
            .max_attempts(3)
            .run(async || Res::Ok(1))
            .await;
        assert!(matches!(
            exhausted,
            Err(Error::AttemptsExhausted { attempts: 3, .. })
        ));
        assert_eq!(
            one.operation("p6.release")
                .key("k")
                .run(async || Res::Ok(4))
                .await
                .unwrap()
                .into_inner(),
            4
        );
    }

    async fn p7_another_payload_gets_neither_the_answer_nor_a_turn(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        let call = |idempotency: &Idempotency, fingerprint: u8| {
            let operation = idempotency
                .operation("p7")
                .key("k")
                .fingerprint(&fingerprint)
                .lease(LEASE * 3)
                .wait(LONG);
            operation.run(async || Res::Ok(1))
        };
        let mismatch = |answer: Res<idem::Outcome<u32>>| {
            matches!(answer, Err(Error::FingerprintMismatch { .. }))
        };
        // In flight: before any conflict, in this process and in another. Neither waits.
        let lease = one
            .operation("p7")
            .key("k")
            .fingerprint(&1u8)
            .lease(LEASE * 3)
            .begin()
            .await
            .unwrap();
        assert!(mismatch(call(&one, 2).await) && mismatch(call(&two, 2).await));
        drop(lease);
        // Abandoned.
        eventually("the lease runs out", async || {
            two.operation("p7")
                .key("k")
                .inspect()
                .await
                .unwrap()
                .unwrap()
                .state
                == RecordState::Abandoned
        })
        .await;
        assert!(mismatch(call(&one, 2).await) && mismatch(call(&two, 2).await));
        // Released: not compared.
        let Begin::Execute(lease) = one
            .operation("p7")
            .key("k")
            .fingerprint(&1u8)
            .begin()
            .await
            .unwrap()
        else {
            panic!()
        };
        lease.release().await.unwrap();
        drop(lease);
        assert!(!call(&two, 3).await.unwrap().is_replayed());
        // Committed.
        assert!(mismatch(call(&one, 1).await) && mismatch(call(&two, 1).await));
        assert!(call(&one, 3).await.unwrap().is_replayed());
        assert!(
            one.operation("p7")
                .key("k")
                .run(async || Res::Ok(9))
                .await
                .unwrap()
                .is_replayed()
        );
    }

    async fn p8_a_dropped_caller_leaves_the_record_in_flight(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        crash(&one, "p8.dropped", "k", LONG).await;
        let info = two
            .operation("p8.dropped")
            .key("k")
            .inspect()
            .await
            .unwrap()
            .unwrap();
        assert_eq!((info.state, info.attempt), (RecordState::InFlight, 1));
        let answer = two
            .operation("p8.dropped")
            .key("k")
            .in_flight(InFlight::Reject)
            .run(async || Res::Ok(1))
            .await;
        let Err(Error::InFlight { retry_after, .. }) = answer else {
            panic!("{answer:?}")
        };
        assert!(retry_after <= LONG);
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
                    idempotency
                        .operation("p8.detached")
                        .key("k")
                        .run_detached(|| async move {
                            begun.notify_one();
                            go.notified().await;
                            // Task-local state came along.
                            assert_eq!(idem::current().unwrap().operation(), "p8.detached");
                            Res::Ok(5)
                        })
                        .await
                }
            })
        };
        tokio::select! { _ = call => panic!(), () = begun.notified() => {} }
        go.notify_one();
        let outcome = idempotency
            .operation("p8.detached")
            .key("k")
            .wait(LONG)
            .run(async || Res::Ok(6))
            .await
            .unwrap();
        assert_eq!((outcome.is_replayed(), outcome.into_inner()), (true, 5));
    }

    async fn p8_a_panic_releases_the_key_and_goes_on_to_the_caller(world: World) {
        let idempotency = world.process().await;
        for detached in [false, true] {
            let idempotency_in = idempotency.clone();
            let panicked = tokio::spawn(async move {
                let operation = idempotency_in.operation("p8.panic").key(&detached);
                if detached {
                    operation
                        .run_detached(|| async {
                            std::panic::panic_any(17u8);
                            #[allow(unreachable_code)]
                            Res::Ok(1)
                        })
                        .await
                } else {
                    operation
                        .run(|| async {
                            std::panic::panic_any(17u8);
                            #[allow(unreachable_code)]
                            Res::Ok(1)
                        })
                        .await
                }
            })
            .await
            .unwrap_err()
            .into_panic();
            assert_eq!(panicked.downcast_ref::<u8>(), Some(&17));
            let again = idempotency
                .operation("p8.panic")
                .key(&detached)
                .in_flight(InFlight::Reject)
                .run(async || Res::Ok(idem::current().unwrap().attempt()))
                .await
                .unwrap();
            assert_eq!(again.into_inner(), 2);
        }
    }

    async fn p9_a_commit_that_fails_is_tried_again_and_the_caller_has_its_value_meanwhile(
        world: World,
    ) {
        let (builder, faults) = world.faulty().await;
        let one = builder.build();
        let two = world.process().await;
        faults.always(Step::Commit, Fault::LoseRequest);
        let value = one
            .operation("p9.commit")
            .key("k")
            .lease(LEASE * 6)
            .run(async || Res::Ok(5))
            .await
            .unwrap();
        assert_eq!((value.is_replayed(), value.into_inner()), (false, 5));
        // It waits longer than the lease, which is renewed, so the key is not taken over.
        let early = two
            .operation("p9.commit")
            .key("k")
            .wait(LEASE * 7)
            .run(async || Res::Ok(6))
            .await;
        assert!(matches!(early, Err(Error::InFlight { .. })), "{early:?}");
        faults.clear();
        for idempotency in [&one, &two] {
            let later = idempotency
                .operation("p9.commit")
                .key("k")
                .wait(LONG)
                .run(async || Res::Ok(7))
                .await
                .unwrap();
            assert_eq!((later.is_replayed(), later.into_inner()), (true, 5));
        }
    }

    async fn p9_an_outcome_that_cannot_be_encoded_is_given_once_and_then_known_to_be_done(
        world: World,
    ) {
        use std::collections::BTreeMap;
        let idempotency = world.process().await;
        // JSON maps have only text keys.
        let body = async || Res::Ok(BTreeMap::from([(vec![1u8], 2u8)]));
        let value = idempotency
            .operation("p9.encode")
            .key("k")
            .run(body)
            .await
            .unwrap();
        assert_eq!(value.into_inner()[&vec![1]], 2);
        assert!(matches!(
            idempotency.operation("p9.encode").key("k").run(body).await,
            Err(Error::AlreadyDone { .. })
        ));
    }

    async fn p9_by_hand_a_commit_that_failed_may_be_called_again(world: World) {
        let (builder, faults) = world.faulty().await;
        let one = builder.build();
        for fault in [Fault::LoseRequest, Fault::LoseReply] {
            faults.next(Step::Commit, fault);
            let Begin::Execute(lease) = one.operation("p9.hand").key("k").begin().await.unwrap()
            else {
                panic!()
            };
            assert!(matches!(
                lease.commit(&5u32).await,
                Err(Error::Store { .. })
            ));
            lease.commit(&5u32).await.unwrap();
            drop(lease);
            let Begin::Replay(recorded) = one.operation("p9.hand").key("k").begin().await.unwrap()
            else {
                panic!()
            };
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
        let failed = one
            .operation("p10.twice")
            .key("k")
            .run(async || Res::Ok(1))
            .await;
        assert!(matches!(failed, Err(Error::Store { .. })));
        // Its lease would last for 30 s.
        let next = two
            .operation("p10.twice")
            .key("k")
            .run(async || Res::Ok(2))
            .await
            .unwrap();
        assert_eq!(next.into_inner(), 2);
    }

    async fn p11_a_waiter_that_gives_up_leaves_the_record_as_it_is(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        let Begin::Execute(lease) = one
            .operation("p11.gives_up")
            .key("k")
            .begin()
            .await
            .unwrap()
        else {
            panic!()
        };
        for idempotency in [&one, &two] {
            let short = Duration::from_millis(30);
            let waiter = idempotency
                .operation("p11.gives_up")
                .key("k")
                .wait(short)
                .run(async || Res::Ok(2))
                .await;
            assert!(matches!(waiter, Err(Error::InFlight { .. })));
            let dropped = idempotency
                .operation("p11.gives_up")
                .key("k")
                .wait(LONG)
                .run(async || Res::Ok(3));
            assert!(tokio::time::timeout(short, dropped).await.is_err());
        }
        let info = two
            .operation("p11.gives_up")
            .key("k")
            .inspect()
            .await
            .unwrap()
            .unwrap();
        assert_eq!((info.state, info.attempt), (RecordState::InFlight, 1));
        lease.commit(&1u32).await.unwrap();
        assert_eq!(
            two.operation("p11.gives_up")
                .key("k")
                .run(async || Res::Ok(4))
                .await
                .unwrap()
                .into_inner(),
            1
        );
    }

    async fn p11_of_many_waiters_on_a_released_key_one_claims_it_anew(world: World) {
        let one = world.process().await;
        let two = world.process().await;
        let Begin::Execute(lease) = one
            .operation("p11.released")
            .key("k")
            .begin()
            .await
            .unwrap()
        else {
            panic!()
        };
        let bodies = Arc::new(Bodies::default());
        let waiters: Vec<_> = (0..40)
            .map(|waiter| {
                let idempotency = if waiter % 2 == 0 {
                    one.clone()
                } else {
                    two.clone()
                };
                let bodies = bodies.clone();
                tokio::spawn(async move {
                    let body = async { Res::Ok(idem::current().unwrap().attempt()) };
                    idempotency
                        .operation("p11.released")
                        .key("k")
                        .wait(LONG)
                        .run(|| bodies.run(body))
                        .await
                })
            })
            .collect();
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
        crash(&one, "p11.gone", "k", LEASE * 3).await;
        let bodies = Arc::new(Bodies::default());
        let waiters: Vec<_> = (0..8)
            .map(|_| {
                let two = two.clone();
                let bodies = bodies.clone();
                tokio::spawn(async move {
                    two.operation("p11.gone")
                        .key("k")
                        .wait(LONG)
                        .run(|| bodies.run(async { Res::Ok(2) }))
                        .await
                })
            })
            .collect();
        for waiter in waiters {
            assert_eq!(waiter.await.unwrap().unwrap().into_inner(), 2);
        }
        assert_eq!(bodies.begun(), 1);
    }

    async fn reentry_is_detected_and_children_of_a_body_have_keys_of_their_own(world: World) {
        let idempotency = world.process().await;
        let keys = Mutex::new(Vec::new());
        let outer = idempotency
            .operation("reentry")
            .key("k")
            .run(|| async {
                let call = idem::current().unwrap();
                keys.lock()
                    .unwrap()
                    .push((call.child_key("stripe.charge"), call.child_key("mail")));
                let other = idempotency
                    .operation("reentry.other")
                    .key("k")
                    .run(async || {
                        idempotency
                            .operation("reentry")
                            .key("k")
                            .run(async || Res::Ok(0))
                            .await
                            .map(idem::Outcome::into_inner)
                    })
                    .await;
                assert!(matches!(other, Err(Error::Reentrant { .. })), "{other:?}");
                Err::<u32, _>(Failure::Declined)
            })
            .await;
        assert!(matches!(outer, Err(Failure::Declined)));
        idempotency
            .operation("reentry")
            .key("k")
            .run(async || {
                let call = idem::current().unwrap();
                keys.lock()
                    .unwrap()
                    .push((call.child_key("stripe.charge"), call.child_key("mail")));
                Res::Ok(1)
            })
            .await
            .unwrap();
        let keys = keys.into_inner().unwrap();
        assert_eq!(keys[0], keys[1], "the same at each attempt");
        assert_ne!(keys[0].0, keys[0].1);
    }

    async fn duplicates_are_rejected_where_the_operation_says_so(world: World) {
        let idempotency = world.process().await;
        let call = || {
            idempotency
                .operation("rejects")
                .key("k")
                .duplicate(Duplicate::Reject)
                .run(async || Res::Ok(1))
        };
        call().await.unwrap();
        assert!(matches!(call().await, Err(Error::Duplicate { .. })));
    }

    async fn an_outcome_of_another_type_is_an_error_never_a_rerun(world: World) {
        let idempotency = world.process().await;
        idempotency
            .operation("types")
            .key("k")
            .run(async || Res::Ok("text".to_owned()))
            .await
            .unwrap();
        let other = idempotency
            .operation("types")
            .key("k")
            .run(async || Res::Ok(1u32))
            .await;
        assert!(matches!(other, Err(Error::Codec { .. })), "{other:?}");
    }
}
