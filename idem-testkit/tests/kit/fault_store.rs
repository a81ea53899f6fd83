//! `FaultStore`: as good as the store inside where no fault is set, and exactly as bad as the test
//! says where one is.

use std::time::Duration;

use idem_core::record::{Claim, Claimed, Owner, RecordId, RecordState, Renewal};
use idem_core::{Key, MemoryStore, Store, StoreErrorKind};
use idem_testkit::{Clones, Fault, FaultStore, Gate, ManualClock, Step, suite};

fn id() -> RecordId {
    RecordId::new("orders.create", &Key::encode("42").unwrap()).unwrap()
}

fn claim() -> Claim {
    Claim::new(
        id(),
        Owner::generate(),
        Duration::from_secs(30),
        Duration::from_secs(60),
    )
}

fn store() -> FaultStore<MemoryStore> {
    FaultStore::new(MemoryStore::new())
}

async fn kind(store: &FaultStore<MemoryStore>) -> StoreErrorKind {
    store.claim(&claim()).await.unwrap_err().kind()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_faults_it_passes_the_suite() {
    let report = suite::run_all(|| {
        let clock = ManualClock::new();
        Clones::of(FaultStore::new(MemoryStore::with_clock(clock.clone()))).with_time(clock)
    });
    report.await.assert_passed();
}

#[tokio::test]
async fn a_request_that_is_refused_or_lost_is_not_carried_out() {
    let store = store();
    store.faults().next(Step::Claim, Fault::Refuse);
    store.faults().next(Step::Claim, Fault::LoseRequest);
    store
        .faults()
        .next(Step::Claim, Fault::Fail(StoreErrorKind::Full));
    assert_eq!(kind(&store).await, StoreErrorKind::Refused);
    assert_eq!(kind(&store).await, StoreErrorKind::Unavailable);
    assert_eq!(kind(&store).await, StoreErrorKind::Full);
    assert_eq!(store.inspect(&id()).await.unwrap(), None);
}

#[tokio::test]
async fn a_reply_that_is_lost_was_carried_out() {
    let store = store();
    let claim = claim();
    store.faults().next(Step::Claim, Fault::LoseReply);
    assert_eq!(
        store.claim(&claim).await.unwrap_err().kind(),
        StoreErrorKind::Unavailable
    );
    assert_eq!(
        store.inspect(&id()).await.unwrap().unwrap().state,
        RecordState::InFlight
    );
    // The one fault is used up, and the claim sent again is recognised.
    assert!(matches!(
        store.claim(&claim).await.unwrap(),
        Claimed::Owned { attempt: 1, .. }
    ));
}

#[tokio::test]
async fn faults_come_in_their_order_then_the_one_for_always_until_cleared() {
    let of_another = store().faults();
    let store = store();
    let faults = store.faults();
    faults.always(Step::Claim, Fault::Fail(StoreErrorKind::Timeout));
    faults.next(Step::Claim, Fault::Pass);
    faults.next(Step::Claim, Fault::Refuse);
    assert!(store.claim(&claim()).await.is_ok());
    assert_eq!(kind(&store).await, StoreErrorKind::Refused);
    assert_eq!(kind(&store).await, StoreErrorKind::Timeout);
    assert_eq!(kind(&store).await, StoreErrorKind::Timeout);
    assert!(
        store.inspect(&id()).await.is_ok(),
        "other steps have no fault"
    );
    faults.clear();
    assert!(store.claim(&claim()).await.is_ok());
    assert_eq!(
        (faults.calls(Step::Claim), faults.calls(Step::Inspect)),
        (5, 1)
    );
    assert_eq!(of_another.calls(Step::Claim), 0);
}

#[tokio::test]
async fn a_batch_of_renewals_fails_as_one_step_with_an_answer_for_each() {
    let store = store();
    let claim = claim();
    store.claim(&claim).await.unwrap();
    let renewal = Renewal::new(id(), claim.owner, claim.hold);
    store.faults().next(Step::Renew, Fault::LoseRequest);
    let answers = store.renew(&[renewal.clone(), renewal]).await;
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().all(Result::is_err));
    assert_eq!(store.faults().calls(Step::Renew), 1);
}

#[tokio::test]
async fn a_call_hangs_before_it_is_carried_out_until_the_gate_opens() {
    let store = store();
    let gate = Gate::new();
    let faults = store.faults();
    faults.next(Step::Claim, Fault::Hang(gate.clone()));
    let hanging = tokio::spawn({
        let store = store.clone();
        async move { store.claim(&claim()).await }
    });
    faults.reached(Step::Claim, 1).await;
    gate.reached().await;
    assert_eq!(store.inspect(&id()).await.unwrap(), None);
    assert!(!hanging.is_finished());
    gate.open();
    assert!(matches!(
        hanging.await.unwrap().unwrap(),
        Claimed::Owned { .. }
    ));
}

#[tokio::test]
async fn a_reply_hangs_after_it_was_carried_out_until_the_gate_opens() {
    let store = store();
    let gate = Gate::new();
    store
        .faults()
        .next(Step::Claim, Fault::HangReply(gate.clone()));
    let hanging = tokio::spawn({
        let store = store.clone();
        async move { store.claim(&claim()).await }
    });
    gate.reached().await;
    assert_eq!(
        store.inspect(&id()).await.unwrap().unwrap().state,
        RecordState::InFlight
    );
    assert!(!hanging.is_finished());
    gate.open();
    assert!(hanging.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn delays_come_before_or_after_the_step() {
    for (fault, at_once) in [
        (Fault::Delay(Duration::from_secs(3)), false),
        (Fault::DelayReply(Duration::from_secs(3)), true),
    ] {
        let store = store();
        store.faults().next(Step::Claim, fault);
        let delayed = tokio::spawn({
            let store = store.clone();
            async move { store.claim(&claim()).await }
        });
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(store.inspect(&id()).await.unwrap().is_some(), at_once);
        assert!(!delayed.is_finished());
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(delayed.is_finished());
        assert!(delayed.await.unwrap().is_ok());
    }
}
