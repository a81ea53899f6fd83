//! Commits that are given up: nothing is said of them that the store has not answered.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use idem::{Begin, Error, Lease, Operation, StoreErrorKind};
use idem_testkit::{Fault, Step};
use tracing::Level;

use super::{Log, logged};
use crate::support::{LEASE, LONG, World};

type Res<T = u32> = Result<T, Error>;

/// What `not_recorded` adds if a try was sent whose answer never came.
const MAY_BE_RECORDED: &str = "the store may have the outcome";

async fn owning(operation: Operation<'_>) -> Lease {
    let Begin::Execute(lease) = operation.begin().await.unwrap() else {
        panic!("there is an outcome")
    };
    lease
}

#[tokio::test(start_paused = true)]
async fn p9_of_a_commit_that_the_store_has_and_then_refuses_nobody_says_that_it_is_not_recorded() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    for by_hand in [false, true] {
        let (builder, faults) = World::memory().faulty().await;
        let idempotency = builder.build();
        let call = || idempotency.operation("events.has_it").key("k");
        faults.next(Step::Commit, Fault::LoseReply);
        faults.always(Step::Commit, Fault::Fail(StoreErrorKind::Unreadable));
        if by_hand {
            let lease = owning(call()).await;
            lease.commit(&1_u32).await.unwrap_err();
            lease.commit(&1_u32).await.unwrap();
        } else {
            call().run(async || Res::Ok(1)).await.unwrap();
            idempotency.shutdown(LONG).await.unwrap();
        }
        assert_eq!(
            log.decisions(),
            logged(&[(Level::WARN, "commit_delayed"), (Level::DEBUG, "executed")]),
            "by hand: {by_hand}"
        );
        let replayed = call().run(async || Res::Ok(2)).await.unwrap();
        assert_eq!(replayed.into_inner(), 1);
        log.decisions();
    }
}

#[tokio::test(start_paused = true)]
async fn p12_a_commit_that_the_store_refuses_for_good_says_whether_it_may_have_it() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    for (first, is_looked_for, may_be_recorded) in [
        (Fault::LoseRequest, true, false),
        (Fault::LoseRequest, false, true),
        (Fault::Refuse, false, false),
    ] {
        let (builder, faults) = World::memory().faulty().await;
        let idempotency = builder.build();
        let name = format!("{first:?}, it is looked for: {is_looked_for}");
        faults.next(Step::Commit, first);
        faults.always(Step::Commit, Fault::Fail(StoreErrorKind::Unreadable));
        if !is_looked_for {
            faults.always(Step::Inspect, Fault::Refuse);
        }
        let earlier = log.text().len();
        let call = idempotency.operation("events.given_up").key("k");
        call.run(async || Res::Ok(1)).await.unwrap();
        idempotency.shutdown(LONG).await.unwrap();
        assert_eq!(
            log.decisions(),
            logged(&[
                (Level::WARN, "commit_delayed"),
                (Level::WARN, "not_recorded")
            ]),
            "{name}"
        );
        let said = log.text()[earlier..].contains(MAY_BE_RECORDED);
        assert_eq!(said, may_be_recorded, "{name}");
    }
}

#[test]
fn p12_a_commit_whose_only_tokio_runtime_ends_says_whether_the_store_may_have_it() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    for (fault, may_be_recorded) in [(Fault::LoseReply, true), (Fault::Refuse, false)] {
        let name = format!("{fault:?}");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let earlier = log.text().len();
        let (builder, faults) = runtime.block_on(World::memory().faulty());
        let idempotency = builder.build();
        faults.always(Step::Commit, fault);
        let call = idempotency.operation("events.ended").key("k");
        runtime.block_on(call.run(async || Res::Ok(1))).unwrap();
        drop(runtime);
        assert!(
            log.decisions()
                .contains(&(Level::WARN, "not_recorded".to_owned())),
            "{name}"
        );
        let said = log.text()[earlier..].contains(MAY_BE_RECORDED);
        assert_eq!(said, may_be_recorded, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn p2_after_a_commit_that_is_given_up_the_next_attempt_replays_the_steps() {
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.lease(LEASE).build();
    let charges = AtomicU32::new(0);
    let charge = || async { Res::Ok(charges.fetch_add(1, SeqCst)) };
    let call = idempotency.operation("events.steps_stay").key("k");
    // The commit of the step.
    faults.next(Step::Commit, Fault::Pass);
    faults.always(Step::Commit, Fault::Fail(StoreErrorKind::Unreadable));
    let first = call.run(async || idem::step("charge", charge).await);
    assert_eq!(first.await.unwrap().into_inner(), 0);
    idempotency.shutdown(LONG).await.unwrap();
    assert_eq!(faults.calls(Step::Remove), 0);
    faults.clear();
    let call = idempotency.operation("events.steps_stay").key("k");
    let second = call.wait(LONG).run(async || {
        let attempt = idem::current().expect("inside a body").attempt();
        Res::Ok((attempt, idem::step("charge", charge).await?))
    });
    assert_eq!(second.await.unwrap().into_inner(), (2, 0), "it is replayed");
}
