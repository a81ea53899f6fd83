//! Calls of one process with one key share claims, waits and answers. An answer is never older than
//! the call that gets it, and no call depends on one that is not polled.
#![allow(
    clippy::similar_names,
    clippy::unchecked_time_subtraction,
    reason = "tests"
)]

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::edges::Down;
use idem::{Begin, Error, Idempotency, InFlight, MemoryStore, Operation, Outcome, StoreErrorKind};
use idem_testkit::{Fault, FaultStore, Faults, Gate, Step};
use tokio::time::Instant;

type Res = Result<u32, Error>;

const WAIT: Duration = Duration::from_secs(5);
/// Within which another call takes over from one that is not polled.
const MOMENT: Duration = Duration::from_secs(1);
/// Less than that: nobody had to take over.
const SOON: Duration = Duration::from_millis(100);

struct World {
    /// The process under test, and its store.
    here: Idempotency,
    faults: Faults,
    /// Another process.
    there: Idempotency,
}

impl World {
    fn new() -> Self {
        let store = MemoryStore::new();
        let faulty = FaultStore::new(store.clone());
        let faults = faulty.faults();
        Self {
            here: Idempotency::new(faulty),
            faults,
            there: Idempotency::new(store),
        }
    }

    fn call(&self) -> Operation<'static> {
        self.here.operation("flights").key("k").wait(WAIT)
    }

    fn elsewhere(&self) -> Operation<'static> {
        self.there.operation("flights").key("k")
    }

    fn claims(&self) -> u64 {
        self.faults.calls(Step::Claim)
    }

    fn hangs(&self, step: Step, fault: fn(Gate) -> Fault) -> Gate {
        let gate = Gate::new();
        self.faults.next(step, fault(gate.clone()));
        gate
    }
}

async fn gives(operation: Operation<'_>, value: u32) -> Result<(bool, u32), Error> {
    let outcome: Outcome<u32> = operation.run(async || Res::Ok(value)).await?;
    Ok((outcome.is_replayed(), outcome.into_inner()))
}

/// Polls a future once, which does not end it.
async fn polled<F: Future>(mut future: Pin<&mut F>) {
    poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending(), "it has ended");
        Poll::Ready(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn p2_a_call_that_begins_after_a_forget_gets_no_answer_from_before_it() {
    let world = World::new();
    gives(world.elsewhere(), 1).await.unwrap();
    let gate = world.hangs(Step::Claim, Fault::HangReply);
    let mut earlier = pin!(gives(world.call(), 2));
    polled(earlier.as_mut()).await;
    gate.reached().await;
    assert!(world.elsewhere().forget().await.unwrap());
    let mut later = pin!(gives(world.call(), 3));
    polled(later.as_mut()).await;
    gate.open();
    let (earlier, later) = tokio::join!(earlier, later);
    assert_eq!((earlier.unwrap(), later.unwrap()), ((true, 1), (false, 3)));
}

#[tokio::test(start_paused = true)]
async fn p2_a_call_that_begins_after_a_forget_gets_no_outcome_whose_commit_was_answered_late() {
    let world = World::new();
    let gate = world.hangs(Step::Commit, Fault::HangReply);
    let mut owner = pin!(gives(world.call(), 1));
    polled(owner.as_mut()).await;
    gate.reached().await;
    assert!(world.elsewhere().forget().await.unwrap());
    assert_eq!(gives(world.call(), 2).await.unwrap(), (false, 2));
    gate.open();
    assert_eq!(owner.await.unwrap(), (false, 1));
}

#[tokio::test(start_paused = true)]
async fn p2_a_call_that_begins_after_a_commit_returned_is_not_told_that_it_is_in_flight() {
    let world = World::new();
    let Begin::Execute(lease) = world.elsewhere().begin().await.unwrap() else {
        panic!("nobody else was there")
    };
    let gate = world.hangs(Step::Wait, Fault::Hang);
    let mut waiting = pin!(gives(world.call(), 2));
    polled(waiting.as_mut()).await;
    gate.reached().await;
    lease.commit(&1u32).await.unwrap();
    let rejecting = world.call().in_flight(InFlight::Reject);
    assert_eq!(gives(rejecting, 3).await.unwrap(), (true, 1));
    // The waiter gets it too.
    assert_eq!(waiting.await.unwrap(), (true, 1));
}

#[tokio::test(start_paused = true)]
async fn p2_a_call_that_begins_after_a_release_was_carried_out_does_not_hear_of_the_owner_before() {
    let world = World::new();
    let gate = world.hangs(Step::Release, Fault::HangReply);
    let mut owner = pin!(
        world
            .call()
            .run(async || Err::<u32, _>(idem::Error::clone(&missing_key().await)))
    );
    polled(owner.as_mut()).await;
    gate.reached().await;
    assert_eq!(gives(world.elsewhere(), 1).await.unwrap(), (false, 1));
    let rejecting = world.call().in_flight(InFlight::Reject);
    assert_eq!(gives(rejecting, 2).await.unwrap(), (true, 1));
    gate.open();
    owner.await.unwrap_err();
}

/// Any error.
async fn missing_key() -> Error {
    Idempotency::new(MemoryStore::new())
        .operation("none")
        .key("")
        .run(async || Res::Ok(1))
        .await
        .unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn a_thousand_duplicates_cost_two_claims_and_one_wait_whatever_they_do_about_an_owner() {
    for in_flight in [InFlight::Wait, InFlight::Reject] {
        let world = World::new();
        let Begin::Execute(lease) = world.elsewhere().begin().await.unwrap() else {
            panic!("nobody else was there")
        };
        let gate = world.hangs(Step::Claim, Fault::HangReply);
        let calls: Vec<_> = (0..1_000)
            .map(|_| tokio::spawn(gives(world.call().in_flight(in_flight), 2)))
            .collect();
        tokio::time::sleep(Duration::from_millis(1)).await;
        gate.open();
        // The first asks for itself, the second for all that came after its claim was sent.
        let wait = || world.faults.calls(Step::Wait);
        if in_flight == InFlight::Wait {
            world.faults.reached(Step::Wait, 1).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(
                world.claims() <= 2 && wait() == 1,
                "{} claims, {} waits",
                world.claims(),
                wait()
            );
            lease.commit(&1u32).await.unwrap();
        }
        let began = Instant::now();
        for call in calls {
            match call.await.unwrap() {
                Ok(answer) => assert_eq!(answer, (true, 1)),
                Err(error) => {
                    assert!(
                        in_flight == InFlight::Reject && matches!(error, Error::InFlight { .. }),
                        "{error}"
                    );
                }
            }
        }
        // The waiter asks at once, for all: it waits for no attempt that is over.
        assert!(
            began.elapsed() < SOON,
            "{in_flight:?}: {:?}",
            began.elapsed()
        );
        assert!(
            world.claims() <= 2 && wait() <= 1,
            "{in_flight:?}: {} claims, {} waits",
            world.claims(),
            wait()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_duplicates_of_a_body_of_their_own_process_cost_no_claim() {
    let world = World::new();
    let Begin::Execute(lease) = world.call().begin().await.unwrap() else {
        panic!("nobody else was there")
    };
    let calls: Vec<_> = (0..1_000)
        .map(|_| tokio::spawn(gives(world.call(), 2)))
        .collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let rejected = gives(world.call().in_flight(InFlight::Reject), 3).await;
    assert!(
        matches!(rejected, Err(Error::InFlight { .. })),
        "{rejected:?}"
    );
    lease.commit(&1u32).await.unwrap();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), (true, 1));
    }
    assert_eq!(world.claims(), 1);
}

#[tokio::test(start_paused = true)]
async fn p11_a_claim_whose_caller_is_not_polled_costs_the_others_a_moment() {
    for in_flight in [InFlight::Wait, InFlight::Reject] {
        let world = World::new();
        gives(world.elsewhere(), 1).await.unwrap();
        let _gate = world.hangs(Step::Claim, Fault::HangReply);
        let mut unpolled = pin!(gives(world.call(), 2));
        polled(unpolled.as_mut()).await;
        let began = Instant::now();
        assert_eq!(
            gives(world.call().in_flight(in_flight), 3).await.unwrap(),
            (true, 1)
        );
        assert!(
            began.elapsed() < MOMENT,
            "{in_flight:?}: {:?}",
            began.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn p11_a_claim_whose_caller_is_not_polled_costs_a_moment_also_after_others_that_were_slow() {
    let world = World::new();
    gives(world.elsewhere(), 1).await.unwrap();
    let gate = Gate::new();
    world
        .faults
        .always(Step::Claim, Fault::HangReply(gate.clone()));
    let call = || gives(world.call().wait(WAIT * 100), 2);
    // Each asks after the one before has got no answer.
    let mut slow = Vec::new();
    for number in 1..=5 {
        slow.push(tokio::spawn(call()));
        world.faults.reached(Step::Claim, number).await;
    }
    let mut unpolled = pin!(call());
    tokio::select! {
        _ = &mut unpolled => panic!("the store does not answer"),
        () = world.faults.reached(Step::Claim, 6) => {}
    }
    for call in slow {
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
    }
    world.faults.clear();
    let began = Instant::now();
    assert_eq!(gives(world.call(), 3).await.unwrap(), (true, 1));
    assert!(began.elapsed() < MOMENT, "{:?}", began.elapsed());
}

/// The time limit of a step, as stores have it.
const LIMIT: Duration = Duration::from_millis(900);

#[tokio::test(start_paused = true)]
async fn p4_each_duplicate_of_a_store_that_gives_no_answer_fails_within_two_seconds() {
    // Every other call goes away by itself, so long after it has begun.
    for leaves in [None, Some(1), Some(100), Some(300), Some(1700)] {
        for pause in [0, 13, 60, 240, 260, 700] {
            let idempotency = Idempotency::new(Down {
                asked: Arc::default(),
                takes: LIMIT,
                kind: StoreErrorKind::Timeout,
            });
            let calls = (0..20_u64).map(|number| {
                let operation = idempotency.operation("flights").key("k").wait(WAIT);
                let leaves = leaves.filter(|_| number % 2 == 0);
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(pause * number)).await;
                    let began = Instant::now();
                    let leaves = leaves.map_or(WAIT, Duration::from_millis);
                    let answer = tokio::time::timeout(leaves, gives(operation, 1)).await;
                    assert!(!matches!(answer, Ok(Ok(_))));
                    began.elapsed()
                })
            });
            for call in calls.collect::<Vec<_>>() {
                let took = call.await.unwrap();
                assert!(took < 2 * MOMENT, "{leaves:?}, {pause}: {took:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn p11_a_waiter_that_is_not_polled_costs_the_others_a_moment() {
    let world = World::new();
    let Begin::Execute(lease) = world.elsewhere().begin().await.unwrap() else {
        panic!("nobody else was there")
    };
    let mut unpolled = pin!(gives(world.call(), 2));
    polled(unpolled.as_mut()).await;
    let mut waiting = pin!(gives(world.call(), 3));
    polled(waiting.as_mut()).await;
    lease.commit(&1u32).await.unwrap();
    let began = Instant::now();
    assert_eq!(gives(world.call(), 4).await.unwrap(), (true, 1));
    assert_eq!(waiting.await.unwrap(), (true, 1));
    assert!(began.elapsed() < MOMENT, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn p11_an_owner_that_is_not_polled_while_it_commits_costs_the_others_a_moment() {
    let world = World::new();
    let _gate = world.hangs(Step::Commit, Fault::HangReply);
    let begun = tokio::sync::Notify::new();
    let mut owner = pin!(world.call().run(async || {
        begun.notified().await;
        Res::Ok(1)
    }));
    polled(owner.as_mut()).await;
    let mut earlier = pin!(gives(world.call(), 2));
    polled(earlier.as_mut()).await;
    begun.notify_one();
    polled(owner.as_mut()).await;
    let began = Instant::now();
    assert_eq!(gives(world.call(), 3).await.unwrap(), (true, 1));
    assert_eq!(earlier.await.unwrap(), (true, 1));
    assert!(began.elapsed() < MOMENT, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn p11_a_waiter_that_is_polled_is_left_to_wait() {
    let world = World::new();
    let Begin::Execute(lease) = world.elsewhere().begin().await.unwrap() else {
        panic!("nobody else was there")
    };
    let calls: Vec<_> = (0..3)
        .map(|_| tokio::spawn(gives(world.call(), 2)))
        .collect();
    tokio::time::sleep(WAIT - MOMENT).await;
    assert_eq!(world.faults.calls(Step::Wait), 1);
    lease.commit(&1u32).await.unwrap();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), (true, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn p7_a_call_with_another_fingerprint_waits_for_nobody() {
    let world = World::new();
    let owner = world.elsewhere().fingerprint(&1).begin().await.unwrap();
    let mut waiting = pin!(gives(world.call().fingerprint(&1), 2));
    polled(waiting.as_mut()).await;
    let began = Instant::now();
    let other = gives(world.call().fingerprint(&2), 3).await;
    assert!(
        matches!(other, Err(Error::FingerprintMismatch { .. })),
        "{other:?}"
    );
    assert!(
        began.elapsed() < Duration::from_millis(10),
        "{:?}",
        began.elapsed()
    );
    let Begin::Execute(lease) = owner else {
        panic!("nobody else was there")
    };
    lease.commit(&1u32).await.unwrap();
    assert_eq!(waiting.await.unwrap(), (true, 1));
}
