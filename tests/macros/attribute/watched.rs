//! Whether a result was replayed, as the caller of an annotated function sees it.
#![allow(clippy::large_futures, reason = "tests")]

use idem_testkit::{Fault, FaultStore, Step};

use super::*;

#[idempotent(key = id, name = "watched.pay", errors(Failure::Declined => keep, _ => release))]
async fn pay(runs: &Runs, id: u64) -> Result<u32, Failure> {
    runs.count();
    if id == 0 {
        Err(Failure::Declined)
    } else {
        Ok(1)
    }
}

#[idempotent(key = id, name = "watched.detached", detached)]
async fn detached(id: u64) -> Result<u64, Failure> {
    Ok(id)
}

#[idempotent(key = id, name = "watched.order")]
async fn order(runs: &Runs, id: u64, payment: u64) -> Result<u32, Failure> {
    pay(runs, payment).await
}

#[idempotent(key = id, name = "watched.unguarded", missing_key = run)]
async fn unguarded(runs: &Runs, id: Option<u64>, payment: u64) -> Result<u32, Failure> {
    pay(runs, payment).await
}

fn counts(report: idem::Report) -> (u32, u32, u32) {
    (report.executed(), report.replayed(), report.failed())
}

#[tokio::test]
async fn p2_the_caller_of_an_annotated_function_can_know_whether_the_outcome_was_replayed() {
    fresh(async {
        let runs = Runs::default();
        // Values and kept errors alike.
        for id in [1, 0] {
            let (first, report) = idem::watch(pay(&runs, id)).await;
            assert_eq!((report.is_replayed(), counts(report)), (false, (1, 0, 0)));
            let (second, report) = idem::watch(pay(&runs, id)).await;
            assert_eq!((report.is_replayed(), counts(report)), (true, (0, 1, 0)));
            assert_eq!(first, second);
        }
        assert!(!idem::watch(detached(1)).await.1.is_replayed());
        assert!(idem::watch(detached(1)).await.1.is_replayed());
        assert_eq!(runs.total(), 2);
    })
    .await;
}

#[tokio::test]
async fn p2_what_a_body_calls_does_not_make_its_own_outcome_a_replay() {
    fresh(async {
        let runs = Runs::default();
        pay(&runs, 1).await.unwrap();
        let (_, report) = idem::watch(order(&runs, 1, 1)).await;
        assert_eq!((report.is_replayed(), counts(report)), (false, (1, 0, 0)));
        let (_, report) = idem::watch(unguarded(&runs, None, 1)).await;
        assert_eq!((report.is_replayed(), counts(report)), (false, (1, 0, 0)));
        // A watch in the body of another call sees what is in it.
        let inner = idem::watch(async {
            let ((_, inner), outer) = idem::watch(idem::watch(pay(&runs, 1))).await;
            assert_eq!(inner, outer);
            (pay(&runs, 1).await, pay(&runs, 2).await)
        });
        assert_eq!(counts(inner.await.1), (1, 2, 0));
    })
    .await;
}

#[tokio::test]
async fn a_call_that_fails_is_no_replay_and_a_disabled_runtime_reports_nothing() {
    let runs = Runs::default();
    let (answer, report) = idem::watch(pay(&runs, 1)).await;
    assert!(
        answer.is_err() && counts(report) == (0, 0, 1),
        "{answer:?}, {report:?}"
    );
    let (answer, report) = idem::scope(Idempotency::disabled(), idem::watch(pay(&runs, 1))).await;
    assert!(
        answer.is_ok() && report == idem::Report::default(),
        "{answer:?}, {report:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn p9_the_caller_of_an_annotated_function_can_know_that_its_outcome_is_not_recorded_yet() {
    let store = FaultStore::new(MemoryStore::new());
    let faults = store.faults();
    let idempotency = Idempotency::new(store);
    let runs = Runs::default();
    for (id, fault, unrecorded) in [(1, Fault::Pass, 0), (2, Fault::LoseRequest, 1)] {
        faults.next(Step::Commit, fault);
        let watched = idem::watch(pay(&runs, id));
        let (paid, report) = idem::scope(idempotency.clone(), watched).await;
        assert_eq!(paid, Ok(1));
        assert_eq!((report.executed(), report.unrecorded()), (1, unrecorded));
    }
}
