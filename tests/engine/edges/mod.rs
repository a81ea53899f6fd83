//! The edges of the promises: schedules that broke an earlier state of the engine, over
//! `MemoryStore`. Names begin with the promise.

mod claims;
mod combinations;
mod in_transaction;
mod reconcile;
mod runtimes;
mod settings;
mod settled;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use crate::support::{Failure, LONG, eventually};
use idem::record::{
    Claim, Claimed, Commit, Issue, Issued, Ownership, RecordId, Release, Removed, Renewal,
};
use idem::{
    Abandoned, Begin, Error, Idempotency, InFlight, MemoryStore, Outcome, RecordInfo, RecordState,
    Store, StoreError, StoreErrorKind, StoreFailure,
};
use idem_testkit::{Fault, FaultStore, Faults, Gate, Step};
use tokio::sync::Notify;

type Res<T = u32> = Result<T, Error>;

const SHORT: Duration = Duration::from_millis(100);

fn faulty(store: &MemoryStore) -> (Idempotency, Faults) {
    let store = FaultStore::new(store.clone());
    let faults = store.faults();
    (Idempotency::new(store), faults)
}

async fn crash(idempotency: &Idempotency) {
    let begun = Notify::new();
    let call = idempotency
        .operation("op")
        .key("k")
        .fingerprint(&1)
        .lease(SHORT)
        .run(|| async {
            begun.notify_one();
            pending::<Res>().await
        });
    tokio::select! { _ = call => panic!(), () = begun.notified() => {} }
    eventually("the lease runs out", async || {
        state(idempotency).await == Some(RecordState::Abandoned)
    })
    .await;
}

async fn state(idempotency: &Idempotency) -> Option<RecordState> {
    idempotency
        .operation("op")
        .key("k")
        .inspect()
        .await
        .unwrap()
        .map(|info| info.state)
}

/// Cuts a claim of an abandoned key off in some way. The next call must still ask for the result,
/// and be compared.
async fn still_asks(cut: impl AsyncFn(&Idempotency, &Faults)) {
    let store = MemoryStore::new();
    let (one, faults) = faulty(&store);
    crash(&one).await;
    cut(&one, &faults).await;
    let two = Idempotency::new(store);
    eventually("it is abandoned again", async || {
        state(&two).await == Some(RecordState::Abandoned)
    })
    .await;
    let mismatch = two
        .operation("op")
        .key("k")
        .fingerprint(&2)
        .run(async || Res::Ok(0))
        .await;
    assert!(matches!(mismatch, Err(Error::FingerprintMismatch { .. })));
    let asked = AtomicU32::new(0);
    let outcome = two
        .operation("op")
        .key("k")
        .reconcile(async || {
            asked.fetch_add(1, SeqCst);
            Res::Ok(Some(7))
        })
        .run(async || panic!("the body ran without asking"))
        .await;
    assert_eq!((outcome.unwrap().into_inner(), asked.into_inner()), (7, 1));
}

#[tokio::test(start_paused = true)]
async fn p5_a_take_over_whose_replies_were_lost_leaves_the_key_abandoned() {
    still_asks(async |one, faults| {
        faults.next(Step::Claim, Fault::LoseReply);
        faults.next(Step::Claim, Fault::LoseReply);
        let failed = one
            .operation("op")
            .key("k")
            .fingerprint(&1)
            .run(async || Res::Ok(1))
            .await;
        assert!(matches!(failed, Err(Error::Store { .. })));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn p5_a_take_over_whose_caller_was_dropped_meanwhile_leaves_the_key_abandoned() {
    still_asks(async |one, faults| {
        let gate = Gate::new();
        faults.next(Step::Claim, Fault::HangReply(gate.clone()));
        let call = one
            .operation("op")
            .key("k")
            .fingerprint(&1)
            .run(async || Res::Ok(1));
        tokio::select! { _ = call => panic!(), () = gate.reached() => {} }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn p5_a_take_over_that_was_answered_too_late_leaves_the_key_abandoned() {
    still_asks(async |one, faults| {
        faults.next(Step::Claim, Fault::DelayReply(SHORT * 2));
        let late = one
            .operation("op")
            .key("k")
            .fingerprint(&1)
            .lease(SHORT)
            .run(async || Res::Ok(1))
            .await;
        assert!(matches!(late, Err(Error::LeaseLost { .. })));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn p5_a_panic_while_asking_leaves_the_key_abandoned() {
    still_asks(async |one, _| {
        let one = one.clone();
        let asking = tokio::spawn(async move {
            let call = one
                .operation("op")
                .key("k")
                .fingerprint(&1)
                .reconcile(async || -> Res<Option<u32>> { panic!("asking") });
            call.run(async || Res::Ok(1)).await
        });
        assert!(asking.await.unwrap_err().is_panic());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn p2_and_p4_the_closure_is_part_of_the_body() {
    let (idempotency, faults) = faulty(&MemoryStore::new());
    let called = AtomicU32::new(0);
    let call = || {
        idempotency.operation("op").key("k").run(|| {
            called.fetch_add(1, SeqCst);
            async { Res::Ok(1) }
        })
    };
    faults.next(Step::Claim, Fault::Refuse);
    call().await.unwrap_err();
    assert_eq!(called.load(SeqCst), 0);
    call().await.unwrap();
    call().await.unwrap();
    assert_eq!(called.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn p10_claims_that_started_no_body_use_up_no_attempts() {
    let (idempotency, faults) = faulty(&MemoryStore::new());
    let call = || {
        idempotency
            .operation("op")
            .key("k")
            .max_attempts(2)
            .run(async || Err::<u32, _>(Failure::Declined))
    };
    assert!(matches!(call().await, Err(Failure::Declined)));
    faults.next(Step::Claim, Fault::LoseReply);
    faults.next(Step::Claim, Fault::LoseReply);
    assert!(matches!(
        call().await,
        Err(Failure::Idempotency(Error::Store { .. }))
    ));
    eventually("the claim is undone", async || {
        state(&idempotency).await == Some(RecordState::Released)
    })
    .await;
    assert!(matches!(call().await, Err(Failure::Declined)));
    assert!(matches!(
        call().await,
        Err(Failure::Idempotency(Error::AttemptsExhausted {
            attempts: 2,
            ..
        }))
    ));
}

#[tokio::test(start_paused = true)]
async fn p11_a_lease_that_was_lost_and_is_still_in_hand_hides_nothing_from_its_own_process() {
    // One that comes after it was lost, and one that followed it before. Both would ask the store
    // the same, so they meet it in one flight.
    for followed in [false, true] {
        let (idempotency, faults) = faulty(&MemoryStore::new());
        faults.always(Step::Renew, Fault::LoseRequest);
        let call = || idempotency.operation("op").key("k").fingerprint(&1);
        let Begin::Execute(lost) = call().lease(SHORT).begin().await.unwrap() else {
            panic!("nothing was there")
        };
        let next = if followed {
            call().wait(LONG)
        } else {
            tokio::time::sleep(SHORT).await;
            call().in_flight(InFlight::Reject)
        };
        let next = next.run(async || Res::Ok(2)).await.unwrap();
        assert_eq!((next.is_replayed(), next.into_inner()), (false, 2));
        let later = call().in_flight(InFlight::Reject);
        let later = later.run(async || Res::Ok(3)).await.unwrap();
        assert_eq!((later.is_replayed(), later.into_inner()), (true, 2));
        drop(lost);
    }
}

#[tokio::test(start_paused = true)]
async fn p4_all_duplicates_learn_at_once_that_the_store_is_down_and_each_acts_as_it_was_told() {
    let asked = Arc::new(AtomicU32::new(0));
    let idempotency = Idempotency::new(Down {
        asked: asked.clone(),
        takes: Duration::from_secs(1),
        kind: StoreErrorKind::Refused,
    });
    let calls: Vec<_> = (0..20)
        .map(|call| {
            let policy = if call % 2 == 0 {
                StoreFailure::Run
            } else {
                StoreFailure::Reject
            };
            let operation = idempotency.operation("op").key("k").store_failure(policy);
            tokio::spawn(async move { (call, operation.run(async || Res::Ok(1)).await) })
        })
        .collect();
    for call in calls {
        let (call, answer) = call.await.unwrap();
        assert!(
            if call % 2 == 0 {
                answer.is_ok()
            } else {
                matches!(answer, Err(Error::Store { .. }))
            },
            "{call}"
        );
    }
    // The first for itself, the second for all that came after its claim was sent, since that takes
    // long.
    assert!(asked.load(SeqCst) <= 3);
}

/// A store that takes its time to fail.
pub(crate) struct Down {
    /// How many claims it was sent.
    pub(crate) asked: Arc<AtomicU32>,
    pub(crate) takes: Duration,
    pub(crate) kind: StoreErrorKind,
}

impl Down {
    async fn fail<T>(&self) -> Result<T, StoreError> {
        tokio::time::sleep(self.takes).await;
        Err(StoreError::new(self.kind, "down"))
    }
}

impl Store for Down {
    async fn claim(&self, _: &Claim) -> Result<Claimed, StoreError> {
        self.asked.fetch_add(1, SeqCst);
        self.fail().await
    }
    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        let failed = self.fail().await;
        issues.iter().map(|_| failed.clone()).collect()
    }
    async fn commit(&self, _: &Commit) -> Result<Ownership, StoreError> {
        self.fail().await
    }
    async fn release(&self, _: &Release) -> Result<Ownership, StoreError> {
        self.fail().await
    }
    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        let error = self.fail::<Ownership>().await;
        vec![error; renewals.len()]
    }
    async fn wait(&self, _: &RecordId, _: u64, _: Duration) -> Result<(), StoreError> {
        self.fail().await
    }
    async fn inspect(&self, _: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        self.fail().await
    }
    async fn remove(&self, _: &RecordId) -> Result<Removed, StoreError> {
        self.fail().await
    }
}

#[tokio::test(start_paused = true)]
async fn p5_all_callers_of_an_abandoned_key_are_told_so() {
    let store = MemoryStore::new();
    let idempotency = Idempotency::new(store);
    crash(&idempotency).await;
    let calls: Vec<_> = (0..100)
        .map(|_| {
            let operation = idempotency
                .operation("op")
                .key("k")
                .abandoned(Abandoned::Reject);
            tokio::spawn(async move { operation.run(async || Res::Ok(1)).await })
        })
        .collect();
    for call in calls {
        assert!(matches!(
            call.await.unwrap(),
            Err(Error::Abandoned { attempt: 1, .. })
        ));
    }
}

#[tokio::test(start_paused = true)]
async fn p11_a_call_that_is_alive_and_not_polled_holds_up_nobody() {
    let store = MemoryStore::new();
    let (idempotency, faults) = faulty(&store);
    let gate = Gate::new();
    faults.next(Step::Claim, Fault::Hang(gate.clone()));
    let mut unpolled = Box::pin(
        idempotency
            .operation("op")
            .key("k")
            .run(async || Res::Ok(1)),
    );
    tokio::select! { _ = &mut unpolled => panic!(), () = gate.reached() => {} }
    let rejecting = idempotency
        .operation("op")
        .key("k")
        .in_flight(InFlight::Reject)
        .run(async || Res::Ok(2))
        .await;
    assert_eq!(rejecting.unwrap().into_inner(), 2);
    let waiting = idempotency
        .operation("op")
        .key("k")
        .wait(SHORT)
        .run(async || Res::Ok(3))
        .await;
    assert_eq!(waiting.unwrap().into_inner(), 2);
}

#[tokio::test(start_paused = true)]
async fn p9_a_panic_while_the_outcome_is_written_loses_neither_the_value_nor_the_fact() {
    #[derive(Debug, serde::Deserialize)]
    struct Touchy;
    impl serde::Serialize for Touchy {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            panic!("I will not be written")
        }
    }
    let idempotency = Idempotency::new(MemoryStore::new());
    let call = || {
        idempotency
            .operation("op")
            .key("k")
            .run(async || Res::Ok(Touchy))
    };
    call().await.unwrap();
    assert!(matches!(call().await, Err(Error::AlreadyDone { .. })));
}

/// A store without space refuses even a commit without an outcome.
#[tokio::test(start_paused = true)]
async fn p9_a_commit_without_its_outcome_that_is_too_large_is_sent_until_the_store_takes_it() {
    let (idempotency, faults) = faulty(&MemoryStore::new());
    for _ in 0..2 {
        faults.next(Step::Commit, Fault::Fail(StoreErrorKind::TooLarge));
    }
    let call = || idempotency.operation("op").key("k");
    call().run(async || Res::Ok(1)).await.unwrap();
    eventually("the commit is carried out", async || {
        state(&idempotency).await == Some(RecordState::Done)
    })
    .await;
    let again: Res<Outcome<u32>> = call().run(async || panic!("a second body ran")).await;
    assert!(matches!(again, Err(Error::AlreadyDone { .. })));
}

#[tokio::test(start_paused = true)]
async fn p9_an_outcome_that_the_store_does_not_take_for_its_size_is_recorded_as_done() {
    let (idempotency, faults) = faulty(&MemoryStore::new());
    let too_large = || faults.next(Step::Commit, Fault::Fail(StoreErrorKind::TooLarge));
    let call = |key: &'static str| idempotency.operation("op").key(key).lease(SHORT);
    too_large();
    call("run").run(async || Res::Ok(1)).await.unwrap();
    too_large();
    let Begin::Execute(lease) = call("by hand").begin().await.unwrap() else {
        panic!()
    };
    lease.commit(&1).await.unwrap();
    for key in ["run", "by hand"] {
        assert!(matches!(
            call(key).run(async || Res::Ok(2)).await,
            Err(Error::AlreadyDone { .. })
        ));
    }
    // An outcome that an operator settles is not left out: the key stays abandoned.
    drop(call("settled").begin().await.unwrap());
    tokio::time::sleep(SHORT).await;
    too_large();
    assert!(matches!(
        call("settled").settle(&3).await,
        Err(Error::Codec { .. })
    ));
    tokio::time::sleep(SHORT).await;
    assert_eq!(
        call("settled").inspect().await.unwrap().unwrap().state,
        RecordState::Abandoned
    );
}

#[tokio::test(start_paused = true)]
async fn p8_an_unguarded_body_inside_a_guarded_one_is_not_its_call() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let outer = idempotency.operation("op").key("k").run(async || {
        let unguarded = Idempotency::disabled()
            .operation("inner")
            .key("k")
            .run(async || {
                assert!(idem::current().is_none());
                // A call that would wait for itself is recognised all the same.
                let own = idempotency
                    .operation("op")
                    .key("k")
                    .run(async || Res::Ok(0))
                    .await;
                assert!(matches!(own, Err(Error::Reentrant { .. })));
                Res::Ok(1)
            });
        unguarded.await?;
        assert_eq!(idem::current().unwrap().operation(), "op");
        Res::Ok(2)
    });
    assert_eq!(outer.await.unwrap().into_inner(), 2);
}

#[tokio::test(start_paused = true)]
async fn p4_a_body_that_runs_although_the_store_failed_has_the_child_keys_that_it_would_have_had() {
    let store = MemoryStore::new();
    let (idempotency, faults) = faulty(&store);
    let call = || {
        idempotency
            .operation("op")
            .key("k")
            .store_failure(StoreFailure::Run)
            .run(async || {
                let call = idem::current().expect("inside a body");
                Ok::<_, Error>((call.attempt(), call.child_key("gateway")))
            })
    };
    faults.always(Step::Claim, Fault::Refuse);
    let (attempt, unguarded) = call().await.unwrap().into_inner();
    assert_eq!(attempt, 0);
    faults.clear();
    assert_eq!(call().await.unwrap().into_inner(), (1, unguarded));
}

#[tokio::test(start_paused = true)]
async fn a_detached_body_may_call_the_operation_that_began_it_once_that_is_over() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let begun = Arc::new(Notify::new());
    let go = Arc::new(Notify::new());
    let answer = tokio::sync::oneshot::channel();
    let inner = {
        let idempotency = idempotency.clone();
        let begun = begun.clone();
        let go = go.clone();
        let answered = answer.0;
        move || async move {
            begun.notify_one();
            go.notified().await;
            let outer = idempotency
                .operation("outer")
                .key("k")
                .wait(LONG)
                .run(async || Res::Ok(5))
                .await;
            drop(answered.send(outer.map(idem::Outcome::into_inner)));
            Res::Ok(1)
        }
    };
    let outer = idempotency
        .operation("outer")
        .key("k")
        .lease(SHORT)
        .run(|| async {
            Box::pin(idempotency.operation("inner").key("k").run_detached(inner))
                .await
                .map(idem::Outcome::into_inner)
        });
    tokio::select! { _ = outer => panic!(), () = begun.notified() => {} }
    go.notify_one();
    assert_eq!(answer.1.await.unwrap().unwrap(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_lease_by_hand_that_is_over_is_not_lost() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let Begin::Execute(lease) = idempotency
        .operation("op")
        .key("k")
        .lease(SHORT)
        .begin()
        .await
        .unwrap()
    else {
        panic!()
    };
    lease.commit(&1u32).await.unwrap();
    assert!(tokio::time::timeout(SHORT * 3, lease.lost()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn p10_a_claim_is_undone_soon_however_many_calls_have_failed_before() {
    let store = MemoryStore::new();
    let (idempotency, faults) = faulty(&store);
    let call = |key: u32| idempotency.operation("op").key(&key).lease(LONG * 100);
    faults.always(Step::Claim, Fault::LoseRequest);
    faults.always(Step::Release, Fault::LoseRequest);
    for key in 1..12_000 {
        call(key).run(async || Res::Ok(1)).await.unwrap_err();
    }
    faults.clear();
    for _ in 0..2 {
        faults.next(Step::Claim, Fault::LoseReply);
    }
    call(0).run(async || Res::Ok(1)).await.unwrap_err();
    let free = tokio::time::timeout(LONG, call(0).wait(LONG * 2).run(async || Res::Ok(2)))
        .await
        .unwrap();
    assert_eq!(free.unwrap().into_inner(), 2);
}
