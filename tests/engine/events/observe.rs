//! Observe mode: every body runs, everything else happens, and what a guarded call would have come
//! to is said.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem::{
    Abandoned, Begin, Error, ErrorAction, Idempotency, InFlight, Lookup, MemoryStore, RecordState,
    Retry, StoreFailure, idempotent,
};
use idem_testkit::{Fault, Step};
use tokio::sync::Notify;
use tracing::Level;

use super::{Log, logged};
use crate::support::{Bodies, Failure, LEASE, LONG, World, eventually};

type Res = Result<u32, Error>;

/// Says which try it is of.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Told(u32);

impl From<Error> for Told {
    fn from(error: Error) -> Self {
        panic!("{error}")
    }
}

#[tokio::test(start_paused = true)]
async fn an_observing_duplicate_runs_its_body_and_the_record_keeps_the_owners_outcome() {
    let world = World::memory();
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let idempotency = world.builder().await.observe().build();
    let guarding = world.process().await;
    drop(log.decisions());
    let call = |fingerprint: u8| {
        idempotency
            .operation("observe.duplicate")
            .key("k")
            .fingerprint(&fingerprint)
    };
    let value = async |call: idem::Operation<'_>, value: u32| {
        let outcome = call.run(async || Res::Ok(value)).await.unwrap();
        assert!(!outcome.is_replayed());
        outcome.into_inner()
    };
    assert_eq!(value(call(1), 1).await, 1);
    assert_eq!(value(call(1), 2).await, 2);
    assert_eq!(value(call(2), 3).await, 3);
    assert_eq!(
        value(call(1).duplicate(idem::Duplicate::Reject), 4).await,
        4
    );
    let failed = call(1).run(async || Err::<u32, _>(Failure::Declined)).await;
    assert!(matches!(failed, Err(Failure::Declined)));
    // An outcome that could not have been replayed.
    assert_eq!(
        call(1)
            .run(async || Ok::<_, Error>("text".to_owned()))
            .await
            .unwrap()
            .into_inner(),
        "text"
    );
    let said = [
        (Level::DEBUG, "executed"),
        (Level::INFO, "observed: replayed"),
        (Level::WARN, "observed: rejected_mismatch"),
        (Level::INFO, "observed: rejected_duplicate"),
        (Level::INFO, "observed: replayed"),
        (Level::INFO, "observed: replayed"),
        (Level::WARN, "observed: unreadable"),
    ];
    assert_eq!(log.decisions(), logged(&said));
    let replayed = guarding
        .operation("observe.duplicate")
        .key("k")
        .run(async || Res::Ok(9))
        .await
        .unwrap();
    assert!(replayed.is_replayed() && replayed.into_inner() == 1);
}

#[tokio::test(start_paused = true)]
async fn an_observing_call_waits_for_nobody_and_records_nothing_beside_the_owner() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let idempotency = World::memory().process().await;
    let call = || {
        idempotency
            .operation("observe.in_flight")
            .key("k")
            .observe()
    };
    let bodies = Bodies::default();
    let begun = Notify::new();
    let end = Notify::new();
    let owner = call().run(|| {
        bodies.run(async {
            begun.notify_one();
            end.notified().await;
            Res::Ok(1)
        })
    });
    let beside = async {
        begun.notified().await;
        let attempts = async || Res::Ok(u32::try_from(idem::current().unwrap().attempt()).unwrap());
        let earlier = log.text().len();
        let second = call().run(|| bodies.run(attempts())).await.unwrap();
        assert_eq!(
            (second.is_replayed(), second.into_inner()),
            (false, 0),
            "beside the record it has no attempt"
        );
        assert!(
            log.text()[earlier..].contains("attempt 1"),
            "it would wait for the owner's attempt"
        );
        let third = call()
            .in_flight(InFlight::Reject)
            .run(|| bodies.run(async { Res::Ok(3) }))
            .await
            .unwrap();
        assert_eq!(third.into_inner(), 3);
        end.notify_one();
    };
    let (owner, ()) = tokio::join!(owner, beside);
    assert_eq!((owner.unwrap().into_inner(), bodies.most_at_once()), (1, 2));
    let said = [
        (Level::INFO, "observed: waited"),
        (Level::INFO, "observed: rejected_in_flight"),
        (Level::DEBUG, "executed"),
    ];
    assert_eq!(log.decisions(), logged(&said));
    let kept = idempotency
        .operation("observe.in_flight")
        .key("k")
        .lookup::<u32>()
        .await
        .unwrap();
    assert!(matches!(kept, Lookup::Outcome(1)), "{kept:?}");
}

#[tokio::test(start_paused = true)]
async fn p3_an_observing_owner_that_lost_its_lease_runs_on_and_its_late_commit_changes_nothing() {
    let world = World::memory();
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let (builder, faults) = world.faulty().await;
    let observing = builder.lease(LEASE).observe().build();
    let guarding = world.process().await;
    let taking_over = || {
        guarding
            .operation("observe.late")
            .key("k")
            .lease(LEASE)
            .wait(LONG)
    };
    // A first warning on this thread: tracing asks the thread of an event's first time whether
    // anybody listens.
    for fingerprint in [1, 2] {
        let call = observing
            .operation("observe.late")
            .key("warns")
            .fingerprint(&fingerprint);
        call.run(async || Res::Ok(1)).await.unwrap();
    }
    assert_eq!(log.decisions().len(), 2);
    faults.always(Step::Renew, Fault::Refuse);
    let late = observing.operation("observe.late").key("k").run(async || {
        let next = taking_over().run(async || Res::Ok(2)).await.unwrap();
        Res::Ok(10 + next.into_inner())
    });
    assert_eq!(
        late.await.unwrap().into_inner(),
        12,
        "its caller gets what its body returned"
    );
    let said = log.decisions();
    for expected in ["observed: lease_lost", "commit_refused"] {
        assert!(
            said.contains(&(Level::WARN, expected.to_owned())),
            "{expected}: {said:?}"
        );
    }
    assert!(
        !said.iter().any(|(_, decision)| decision == "lease_lost"),
        "{said:?}"
    );
    let kept = taking_over().lookup::<u32>().await.unwrap();
    assert!(matches!(kept, Lookup::Outcome(2)), "{kept:?}");
}

#[tokio::test(start_paused = true)]
async fn an_observing_call_fails_with_nothing_of_ours() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.observe().build();
    let call = || idempotency.operation("observe.fails");
    faults.always(Step::Claim, Fault::Refuse);
    call().key("k").run(async || Res::Ok(1)).await.unwrap();
    call()
        .key("k")
        .run_detached(async || Res::Ok(1))
        .await
        .unwrap();
    call()
        .key("k")
        .store_failure(StoreFailure::Run)
        .run(async || Res::Ok(1))
        .await
        .unwrap();
    call()
        .token("no token", "jane")
        .run(async || Res::Ok(1))
        .await
        .unwrap();
    faults.clear();
    call().run(async || Res::Ok(1)).await.unwrap();
    call()
        .token("no token", "")
        .run(async || Res::Ok(1))
        .await
        .unwrap();
    call()
        .key("k")
        .lease(Duration::ZERO)
        .run(async || Res::Ok(1))
        .await
        .unwrap();
    idempotency
        .operation("not a name")
        .key("k")
        .run_detached(async || Res::Ok(1))
        .await
        .unwrap();
    let inside = async || {
        call()
            .key("nested")
            .run(async || Res::Ok(1))
            .await
            .map(idem::Outcome::into_inner)
    };
    call().key("nested").run(inside).await.unwrap();
    let store_failed = [
        (Level::WARN, "store_failed"),
        (Level::WARN, "observed: store_failed"),
    ];
    let expected = [
        &store_failed[..],
        &store_failed,
        &[
            (Level::WARN, "store_failed"),
            (Level::WARN, "ran_unguarded"),
            (Level::WARN, "observed: token_forged"),
            (Level::INFO, "observed: rejected_missing_key"),
            (Level::INFO, "observed: rejected_missing_key"),
            (Level::WARN, "observed: misconfigured"),
            (Level::WARN, "observed: misconfigured"),
            (Level::WARN, "observed: rejected_reentrant"),
            (Level::DEBUG, "executed"),
        ],
    ];
    assert_eq!(log.decisions(), logged(&expected.concat()));
}

#[tokio::test(start_paused = true)]
async fn an_observing_call_after_a_crash_runs_and_asks_nobody() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let idempotency = Idempotency::builder(MemoryStore::new())
        .lease(LEASE)
        .build();
    let call = |key: &str| idempotency.operation("observe.crash").key(key);
    for key in ["asks", "rejects"] {
        let dropped = call(key).run(std::future::pending::<Res>);
        tokio::time::timeout(Duration::from_millis(10), dropped)
            .await
            .unwrap_err();
        eventually("it is abandoned", || async {
            call(key)
                .inspect()
                .await
                .unwrap()
                .is_some_and(|info| info.state == RecordState::Abandoned)
        })
        .await;
    }
    log.decisions();
    let asked = AtomicU32::new(0);
    let question = || {
        asked.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Error>(Some(7)) }
    };
    let ran = call("asks")
        .observe()
        .reconcile(question)
        .run(async || Res::Ok(1))
        .await
        .unwrap();
    assert_eq!((ran.into_inner(), asked.load(Ordering::SeqCst)), (1, 0));
    let ran = call("rejects")
        .observe()
        .abandoned(Abandoned::Reject)
        .run(async || Res::Ok(2))
        .await
        .unwrap();
    assert_eq!(ran.into_inner(), 2);
    let said = [
        (Level::INFO, "taken_over"),
        (Level::DEBUG, "executed"),
        (Level::WARN, "observed: rejected_abandoned"),
    ];
    assert_eq!(log.decisions(), logged(&said));
    // It waits for its person as before.
    assert_eq!(
        call("rejects").inspect().await.unwrap().unwrap().state,
        RecordState::Abandoned
    );
}

#[tokio::test(start_paused = true)]
async fn errors_of_an_observing_owner_are_kept_and_tried_again_as_its_policy_says() {
    let idempotency = Idempotency::builder(MemoryStore::new()).observe().build();
    let tries = AtomicU32::new(0);
    let failing = |action: fn(&Told) -> ErrorAction| {
        let call = idempotency
            .operation("observe.errors")
            .key("k")
            .errors(action);
        call.run(|| {
            let count = tries.fetch_add(1, Ordering::SeqCst) + 1;
            async move { Err::<u32, _>(Told(count)) }
        })
    };
    let retry =
        |_: &Told| ErrorAction::Retry(Retry::new(2).backoff(Duration::from_millis(1)).then_keep());
    assert_eq!(failing(retry).await.unwrap_err(), Told(3));
    assert_eq!(
        failing(|_| ErrorAction::Keep).await.unwrap_err(),
        Told(4),
        "it gets what its own body returned"
    );
    let kept = idempotency
        .operation("observe.errors")
        .key("k")
        .lookup::<u32>()
        .await
        .unwrap();
    let Lookup::Error(kept) = kept else {
        panic!("{kept:?}")
    };
    assert_eq!(kept.decode_error::<Told>().unwrap(), Told(3));
}

/// The observing call runs its body, so there is no error of idem that the error around it may hold.
#[tokio::test(start_paused = true)]
async fn p6_an_outcome_that_an_observing_call_cannot_read_keeps_no_error_from_being_kept() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let inner = || idempotency.operation("observe.inner").key("k").observe();
    inner().run(async || Res::Ok(1)).await.unwrap();
    for told in [1, 2] {
        let outer = idempotency.operation("observe.outer").key("k");
        let failed = outer.errors(|_: &Told| ErrorAction::Keep).run(async || {
            let text = inner().run(async || Ok::<_, Error>("text".to_owned()));
            assert_eq!(text.await.unwrap().into_inner(), "text");
            Err::<u32, _>(Told(told))
        });
        assert_eq!(failed.await.unwrap_err(), Told(1));
    }
}

/// Of a guarded call, only the store can say whether its token was issued.
#[tokio::test(start_paused = true)]
async fn an_observing_call_with_a_token_runs_without_the_store_as_any_other() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let (builder, faults) = World::memory().faulty().await;
    let observing = builder.observe().store_failure(StoreFailure::Run).build();
    let operation = || observing.operation("observe.token");
    let token = operation().issue("jane", LONG).await.unwrap();
    log.decisions();
    faults.always(Step::Claim, Fault::Refuse);
    let call = operation().token(&token, "jane");
    call.run(async || Res::Ok(1)).await.unwrap();
    let said = [
        (Level::WARN, "store_failed"),
        (Level::WARN, "ran_unguarded"),
    ];
    assert_eq!(log.decisions(), logged(&said));
}

#[tokio::test(start_paused = true)]
async fn an_observing_owner_that_lost_its_lease_between_two_tries_is_tried_again() {
    let (builder, faults) = World::memory().faulty().await;
    let observing = builder.lease(LEASE).observe().build();
    faults.always(Step::Renew, Fault::LoseRequest);
    let tries = AtomicU32::new(0);
    let retry = Retry::new(1).backoff(LONG).max_backoff(LONG);
    let call = observing.operation("observe.pause").key("k");
    let call = call.errors(move |_: &Told| ErrorAction::Retry(retry));
    let ran = call.run(async || match tries.fetch_add(1, Ordering::SeqCst) {
        0 => Err(Told(1)),
        tries => Ok(tries),
    });
    assert_eq!(ran.await.unwrap().into_inner(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_observing_call_by_hand_always_has_a_lease() {
    let idempotency = Idempotency::builder(MemoryStore::new()).build();
    let call = || idempotency.operation("observe.by_hand").key("k").observe();
    let lease = |begin: Begin| match begin {
        Begin::Execute(lease) => lease,
        Begin::Replay(recorded) => panic!("{recorded:?}"),
    };
    let one = lease(call().begin().await.unwrap());
    let two = lease(call().begin().await.unwrap());
    assert_eq!([one.attempt(), two.attempt()], [1, 0]);
    two.commit(&2_u32).await.unwrap();
    one.commit(&1_u32).await.unwrap();
    let three = lease(call().begin().await.unwrap());
    assert_eq!(three.attempt(), 0);
    assert!(matches!(
        call().lookup::<u32>().await.unwrap(),
        Lookup::Outcome(1)
    ));
    // An operator's changes take effect.
    assert!(matches!(
        call().settle(&2_u32).await,
        Err(Error::Duplicate { .. })
    ));
    assert!(call().forget().await.unwrap());
    // Another caller has claimed it since.
    let late = lease(call().begin().await.unwrap());
    late.release().await.unwrap();
    let _next = lease(call().begin().await.unwrap());
    late.commit(&9_u32).await.unwrap();
    assert!(matches!(
        call().lookup::<u32>().await.unwrap(),
        Lookup::InFlight { .. }
    ));
}

#[idempotent(name = "observe.attribute", key = id, observe)]
async fn observed(id: u32, value: u32) -> Result<u32, Failure> {
    Ok(id + value)
}

#[tokio::test(start_paused = true)]
async fn the_attribute_observes() {
    assert_eq!(
        observed(1, 5).await.unwrap(),
        6,
        "no runtime is installed, and the body runs"
    );
    idem::scope(Idempotency::new(MemoryStore::new()), async {
        assert_eq!(
            [observed(1, 1).await.unwrap(), observed(1, 2).await.unwrap()],
            [2, 3]
        );
    })
    .await;
}
