//! Commits, releases and waits: what their events say, and how often they come.

use std::time::Duration;

use idem::{
    Begin, Codec, CodecContext, CodecFailure, CodecId, Error, InFlight, Lease, RecordState, Retry,
    UnkeptAction, erased_serde,
};
use idem::{Operation, StoreErrorKind};
use idem_testkit::{Fault, Gate, Step};
use tracing::Level;

use super::{Log, logged};
use crate::support::{Failure, LEASE, LONG, World, eventually};

type Res = Result<u32, Error>;

async fn owning(operation: Operation<'_>) -> Lease {
    let Begin::Execute(lease) = operation.begin().await.unwrap() else {
        panic!("there is an outcome")
    };
    lease
}

#[tokio::test(start_paused = true)]
async fn p12_a_refused_commit_and_a_refused_release_say_why_although_the_next_owner_gave_the_key_up()
 {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let world = World::memory();
    let (builder, faults) = world.faulty().await;
    let other = world.process().await;
    let late = builder.lease(LEASE).build();
    faults.always(Step::Renew, Fault::LoseRequest);
    for (key, decision) in [("commit", "commit_refused"), ("release", "release_refused")] {
        let lost = owning(late.operation("events.refused").key(key)).await;
        let next = owning(
            other
                .operation("events.refused")
                .key(key)
                .lease(LEASE)
                .wait(LONG),
        )
        .await;
        next.release().await.unwrap();
        log.decisions();
        let earlier = log.text().len();
        let answer = if key == "commit" {
            lost.commit(&1_u32).await
        } else {
            lost.release().await
        };
        assert!(matches!(answer, Err(Error::LeaseLost { .. })), "{answer:?}");
        assert_eq!(log.decisions(), logged(&[(Level::WARN, decision)]));
        assert!(
            log.text()[earlier..].contains("another caller has claimed the key since"),
            "{decision}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn p12_a_commit_that_is_repeated_by_hand_is_said_once() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let lease = owning(
        World::memory()
            .process()
            .await
            .operation("events.again")
            .key("k"),
    )
    .await;
    for _ in 0..2 {
        lease.commit(&1_u32).await.unwrap();
    }
    assert_eq!(log.decisions(), logged(&[(Level::DEBUG, "executed")]));
}

#[tokio::test(start_paused = true)]
async fn p12_an_outcome_that_is_settled_where_there_was_no_record_says_so() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let idempotency = World::memory().builder().await.lease(LEASE).build();
    let call = |key: &'static str| idempotency.operation("events.settled").key(key);
    drop(owning(call("abandoned")).await);
    let state = async || call("abandoned").inspect().await.unwrap().unwrap().state;
    eventually("it is abandoned", async || {
        state().await == RecordState::Abandoned
    })
    .await;
    for (key, has_record) in [("none", false), ("abandoned", true)] {
        let earlier = log.text().len();
        call(key).settle(&1_u32).await.unwrap();
        call(key).forget().await.unwrap();
        let said = log.text()[earlier..].contains("there was no record of this key");
        assert_ne!(said, has_record, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn p12_a_commit_and_a_release_that_are_tried_again_are_said_to_be_delayed() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.build();
    let call = |key: &'static str| idempotency.operation("events.delayed").key(key);
    for step in [Step::Commit, Step::Release] {
        faults.next(step, Fault::LoseRequest);
    }
    call("commit").run(async || Res::Ok(1)).await.unwrap();
    idempotency.shutdown(LONG).await.unwrap();
    assert_eq!(
        log.decisions(),
        logged(&[(Level::WARN, "commit_delayed"), (Level::DEBUG, "executed")])
    );
    call("release")
        .run(async || Err::<u32, _>(Failure::Declined))
        .await
        .unwrap_err();
    idempotency.shutdown(LONG).await.unwrap();
    assert_eq!(
        log.decisions(),
        logged(&[(Level::WARN, "release_delayed"), (Level::DEBUG, "released")])
    );
}

#[tokio::test(start_paused = true)]
async fn p9_a_commit_to_somebody_elses_data_is_not_tried_again() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.build();
    faults.always(Step::Commit, Fault::Fail(StoreErrorKind::Unreadable));
    idempotency
        .operation("events.foreign")
        .key("k")
        .run(async || Res::Ok(1))
        .await
        .unwrap();
    idempotency.shutdown(LONG).await.unwrap();
    assert_eq!(
        (log.decisions(), faults.calls(Step::Commit)),
        (logged(&[(Level::WARN, "not_recorded")]), 1)
    );
}

#[tokio::test(start_paused = true)]
#[allow(
    clippy::disallowed_methods,
    reason = "it looks how long the tries went on"
)]
async fn p9_a_commit_that_keeps_failing_is_tried_ever_more_seldom_and_given_up_after_ten_leases() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    // The pauses are random. With short ones in each place, there would be one try more.
    fastrand::seed(7);
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.lease(LEASE).build();
    faults.always(Step::Commit, Fault::LoseRequest);
    let began = tokio::time::Instant::now();
    idempotency
        .operation("events.failing")
        .key("k")
        .run(async || Res::Ok(1))
        .await
        .unwrap();
    idempotency.shutdown(LONG).await.unwrap();
    assert!(began.elapsed() >= LEASE * 10, "{:?}", began.elapsed());
    assert!(
        log.decisions()
            .contains(&(Level::WARN, "not_recorded".to_owned()))
    );
    // Pauses of up to 50 ms, 100 ms, .. 2 s.
    let tries = faults.calls(Step::Commit);
    assert!((8..=15).contains(&tries), "{tries} tries");
}

/// After its lease, the key is free without it.
#[tokio::test(start_paused = true)]
#[allow(
    clippy::disallowed_methods,
    reason = "it looks how long the tries went on"
)]
async fn p9_a_release_that_keeps_failing_is_tried_for_one_lease_which_is_not_renewed() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.lease(LEASE).build();
    faults.always(Step::Release, Fault::LoseRequest);
    let began = tokio::time::Instant::now();
    idempotency
        .operation("events.failing")
        .key("k")
        .run(async || Err::<u32, _>(Failure::Declined))
        .await
        .unwrap_err();
    idempotency.shutdown(LONG).await.unwrap();
    let took = began.elapsed();
    // The last pause may go beyond it, and is a second at most.
    assert!((LEASE..LEASE * 3).contains(&took), "{took:?}");
    assert_eq!(
        log.decisions(),
        logged(&[
            (Level::WARN, "release_delayed"),
            (Level::WARN, "not_released")
        ])
    );
    assert_eq!(faults.calls(Step::Renew), 0);
}

/// No body was cut, so the key is given up.
#[tokio::test(start_paused = true)]
async fn p12_a_lease_that_is_lost_between_two_tries_is_said() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.lease(LEASE).build();
    faults.always(Step::Renew, Fault::LoseRequest);
    let retry = Retry::new(1).backoff(LONG).max_backoff(LONG);
    idempotency
        .operation("events.pause")
        .key("k")
        .errors(move |_: &Failure| UnkeptAction::Retry(retry))
        .run(async || Err::<u32, _>(Failure::Declined))
        .await
        .unwrap_err();
    let mut said = log.decisions();
    said.retain(|(_, decision)| decision != "renewal_failed");
    assert_eq!(
        said,
        logged(&[
            (Level::INFO, "retried"),
            (Level::WARN, "lease_lost"),
            (Level::INFO, "released")
        ])
    );
}

#[tokio::test(start_paused = true)]
async fn p9_of_a_commit_that_the_store_has_nobody_says_that_it_is_not_recorded() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.lease(LEASE).build();
    faults.always(Step::Commit, Fault::LoseReply);
    let call = idempotency.operation("events.unanswered").key("k");
    call.run(async || Res::Ok(1)).await.unwrap();
    idempotency.shutdown(LONG).await.unwrap();
    assert_eq!(
        log.decisions(),
        logged(&[(Level::WARN, "commit_delayed"), (Level::DEBUG, "executed")])
    );
}

#[test]
fn p9_a_commit_moves_from_one_ended_tokio_runtime_to_another_eight_times_and_is_given_up_then() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let mut here = runtime();
    let world = World::memory();
    let (builder, faults) = here.block_on(world.faulty());
    let idempotency = builder.lease(LONG).build();
    faults.always(Step::Commit, Fault::LoseRequest);
    let call = |key: u32| idempotency.operation("events.moves").key(&key);
    here.block_on(call(0).run(async || Res::Ok(1))).unwrap();
    let is_given_up = || {
        log.decisions()
            .contains(&(Level::WARN, "not_recorded".to_owned()))
    };
    let mut moves = 0;
    loop {
        // A call makes it known.
        let next = runtime();
        next.block_on(async { owning(call(moves + 1)).await.release().await })
            .unwrap();
        drop(std::mem::replace(&mut here, next));
        if is_given_up() {
            break;
        }
        moves += 1;
        assert!(moves < 20, "it moves for ever");
    }
    assert_eq!(moves, 8);
}

/// To move it, the thread would spawn a task while it unwinds.
#[test]
fn p9_a_commit_whose_tokio_runtime_ends_in_a_panic_is_given_up_although_there_is_another_one() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let stays = runtime();
    let (builder, faults) = stays.block_on(World::memory().faulty());
    let idempotency = builder.lease(LONG).build();
    let call = |key: u32| idempotency.operation("events.unwinds").key(&key);
    stays.block_on(call(0).run(async || Res::Ok(1))).unwrap();
    faults.always(Step::Commit, Fault::LoseRequest);
    log.decisions();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let ends = runtime();
        ends.block_on(call(1).run(async || Res::Ok(1))).unwrap();
        panic!("the runtime is dropped while this unwinds");
    }));
    assert!(ended.is_err());
    assert_eq!(
        log.decisions(),
        logged(&[
            (Level::WARN, "commit_delayed"),
            (Level::WARN, "not_recorded")
        ])
    );
}

/// Outcomes of 33 MiB.
struct Large;

impl Codec for Large {
    fn id(&self) -> CodecId {
        CodecId::parse(b"large").unwrap()
    }

    fn encode(
        &self,
        _: CodecContext<'_>,
        _: &dyn erased_serde::Serialize,
    ) -> Result<Vec<u8>, CodecFailure> {
        Ok(vec![0; 33 << 20])
    }

    fn decode(
        &self,
        _: CodecContext<'_>,
        _: &[u8],
        _: &mut dyn FnMut(
            &mut dyn erased_serde::Deserializer<'_>,
        ) -> Result<(), erased_serde::Error>,
    ) -> Result<(), CodecFailure> {
        Err("nobody reads them".into())
    }
}

#[tokio::test(start_paused = true)]
async fn p9_outcomes_that_are_tried_again_take_no_more_than_64_mib() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.codec(Large).build();
    faults.always(Step::Commit, Fault::LoseRequest);
    let given_up = async |key: u32| {
        log.decisions();
        idempotency
            .operation("events.large")
            .key(&key)
            .run(async || Res::Ok(1))
            .await
            .unwrap();
        log.decisions()
            .contains(&(Level::WARN, "not_recorded".to_owned()))
    };
    assert!(!given_up(1).await);
    assert!(given_up(2).await);
}

#[tokio::test(start_paused = true)]
async fn p12_a_duplicate_says_that_it_waited_if_it_did_and_once() {
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let world = World::memory();
    let (builder, faults) = world.faulty().await;
    let other = world.process().await;
    let idempotency = builder.build();
    let call = |key: &'static str| idempotency.operation("events.waited").key(key).wait(LONG);
    let value = async |operation: Operation<'_>| {
        operation
            .run(async || Res::Ok(2))
            .await
            .unwrap()
            .into_inner()
    };

    // At the store, for another process.
    let lease = owning(other.operation("events.waited").key("there")).await;
    let owner = async {
        faults.reached(Step::Wait, 1).await;
        lease.commit(&1_u32).await.unwrap();
    };
    let (replayed, ()) = tokio::join!(value(call("there")), owner);
    assert_eq!(replayed, 1);
    let waited = [
        (Level::DEBUG, "waited"),
        (Level::DEBUG, "executed"),
        (Level::DEBUG, "replayed"),
    ];
    let mut said = log.decisions();
    said.sort_by_key(|(_, decision)| waited.iter().position(|(_, known)| known == decision));
    assert_eq!(said, logged(&waited));

    // In the process, for its own owner.
    let lease = owning(call("here")).await;
    let owner = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        lease.commit(&1_u32).await.unwrap();
    };
    let (replayed, ()) = tokio::join!(value(call("here")), owner);
    assert_eq!(replayed, 1);
    let said = log.decisions();
    assert_eq!(
        said,
        logged(&[
            (Level::DEBUG, "executed"),
            (Level::DEBUG, "waited"),
            (Level::DEBUG, "replayed")
        ])
    );

    // A call that does not wait shares the answer to a claim that is under way.
    let gate = Gate::new();
    faults.next(Step::Claim, Fault::HangReply(gate.clone()));
    let rejecting = |key: &'static str| call(key).in_flight(InFlight::Reject);
    let both = async { tokio::join!(value(rejecting("here")), value(rejecting("here"))) };
    let opened = async {
        gate.reached().await;
        gate.open();
    };
    let (both, ()) = tokio::join!(both, opened);
    assert_eq!(both, (1, 1));
    assert_eq!(
        log.decisions(),
        logged(&[(Level::DEBUG, "replayed"), (Level::DEBUG, "replayed")])
    );
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn p5_p12_a_transaction_that_runs_after_the_hold_has_ended_says_so() {
    use idem::sqlx;

    let pool = sqlx::sqlite::SqlitePoolOptions::new()
        .max_connections(1)
        .connect("sqlite::memory:")
        .await
        .unwrap();
    let store = idem::SqliteStore::builder(pool.clone())
        .time_limit(LONG)
        .build();
    store.migrate().await.unwrap();
    let idempotency = idem::Idempotency::new(store);
    let call = || {
        let call = idempotency
            .operation("events.hold")
            .key("k")
            .lease(LEASE)
            .wait(LONG);
        call.abandoned(idem::Abandoned::Reject)
            .hold(std::time::Duration::from_millis(1))
    };
    drop(call().begin().await.unwrap());
    let log = Log::default();
    let _logging = crate::support::events::logging(log.clone());
    let ran = call()
        .transaction(&pool, async |_| Ok::<_, Error>(7))
        .await
        .unwrap();
    assert!(!ran.is_replayed());
    let said = log.decisions();
    assert!(
        said.contains(&(Level::WARN, "hold_ended".to_owned())),
        "{said:?}"
    );
}
