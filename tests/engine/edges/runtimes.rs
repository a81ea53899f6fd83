//! Several tokio runtimes in a process: ones that end, that are not driven, and that are busy.

use std::fmt::Debug;
use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem::record::{
    Claim, Claimed, Commit, Issue, Issued, Ownership, RecordId, Release, Removed, Renewal,
};
use idem::{
    Error, Idempotency, InFlight, MemoryStore, MissingKey, RecordInfo, RecordState, Store,
    StoreError, StoreErrorKind,
};
use idem_testkit::{Fault, FaultStore, Step};
use tokio::sync::Notify;
use tracing::field::{Field, Visit};

use super::{Res, faulty};
use crate::support::events::{AtEachEvent, logging};
use crate::support::{LEASE, LONG};

#[test]
fn p1_leases_are_renewed_on_each_tokio_runtime_whatever_becomes_of_the_others() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
    };
    let (idempotency, faults) = faulty(&MemoryStore::new());
    let ended = runtime();
    let parked = runtime();
    let live = runtime();
    for (tokio, key) in [(&ended, "ended"), (&parked, "parked")] {
        tokio
            .block_on(
                idempotency
                    .operation("op")
                    .key(key)
                    .run(async || Res::Ok(0)),
            )
            .unwrap();
    }
    drop(ended);
    live.block_on(async {
        let long = idempotency
            .operation("op")
            .key("k")
            .lease(LEASE * 6)
            .run(async || {
                // One comes after each third of the lease.
                faults.reached(Step::Renew, 4).await;
                Res::Ok(1)
            });
        assert_eq!(long.await.unwrap().into_inner(), 1);
    });
    drop(parked);
}

#[test]
fn p1_leases_are_renewed_where_all_threads_for_blocking_work_are_busy() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder
        .worker_threads(2)
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (busy, wait) = std::sync::mpsc::channel::<()>();
    runtime.spawn_blocking(move || wait.recv());
    let outcome = runtime.block_on(async {
        let (idempotency, faults) = faulty(&MemoryStore::new());
        let body = async || {
            faults.reached(Step::Renew, 4).await;
            Ok::<_, Error>(7)
        };
        idempotency
            .operation("edges")
            .key("busy")
            .lease(LEASE * 6)
            .run(body)
            .await
    });
    drop(busy);
    assert_eq!(outcome.unwrap().into_inner(), 7);
}

#[test]
fn p9_and_p10_what_goes_on_in_the_background_moves_to_another_tokio_runtime_when_its_own_ends() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let ends = runtime();
    let stays = runtime();
    let (idempotency, faults) = faulty(&MemoryStore::new());
    let call = |key: &'static str| idempotency.operation("op").key(key).lease(LONG);
    stays
        .block_on(call("stays").run(async || Res::Ok(0)))
        .unwrap();
    faults.always(Step::Commit, Fault::LoseRequest);
    faults.always(Step::Release, Fault::LoseRequest);
    for _ in 0..2 {
        faults.next(Step::Claim, Fault::LoseReply);
    }
    ends.block_on(call("claim").run(async || Res::Ok(1)))
        .unwrap_err();
    ends.block_on(call("commit").run(async || Res::Ok(2)))
        .unwrap();
    drop(ends);
    faults.clear();
    stays.block_on(async {
        idempotency.shutdown(LONG).await.unwrap();
        let committed = call("commit").run(async || Res::Ok(3)).await.unwrap();
        assert_eq!((committed.is_replayed(), committed.into_inner()), (true, 2));
        let free = call("claim")
            .in_flight(InFlight::Reject)
            .run(async || Res::Ok(4))
            .await
            .unwrap();
        assert_eq!(free.into_inner(), 4);
    });
}

#[test]
fn p10_a_claim_is_undone_although_a_tokio_runtime_that_undoes_others_is_not_driven() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let parked = runtime();
    let driven = runtime();
    let (idempotency, faults) = faulty(&MemoryStore::new());
    // Longer than the test waits: a key is free before that only if its claim was undone.
    let call = |key: &'static str| idempotency.operation("op").key(key).lease(LONG * 10);
    for _ in 0..4 {
        faults.next(Step::Claim, Fault::LoseReply);
    }
    faults.next(Step::Release, Fault::LoseRequest);
    parked
        .block_on(call("parked").run(async || Res::Ok(1)))
        .unwrap_err();
    driven.block_on(async {
        call("driven").run(async || Res::Ok(2)).await.unwrap_err();
        for key in ["driven", "parked"] {
            let free =
                tokio::time::timeout(LONG, call(key).wait(LONG * 2).run(async || Res::Ok(3)))
                    .await
                    .unwrap();
            assert_eq!(free.unwrap().into_inner(), 3);
        }
    });
    drop(parked);
}

/// A tokio runtime with a clock of its own, which stands while there is something to do.
fn paused() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}

/// The first claim on a tokio runtime starts the keeper there. A task that is spawned by the thread
/// of the body waits for that thread.
#[test]
fn p1_the_first_body_of_a_tokio_runtime_blocks_its_thread_and_its_lease_is_renewed() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    let (idempotency, faults) = faulty(&MemoryStore::new());
    let body = async move || {
        for _ in 0..2_000 {
            if faults.calls(Step::Renew) >= 2 {
                return Res::Ok(7);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it is not renewed")
    };
    let call = idempotency.operation("edges").key("blocks");
    let call = runtime.spawn(call.lease(LEASE * 6).run(body));
    let outcome = runtime.block_on(call).unwrap();
    assert_eq!(outcome.unwrap().into_inner(), 7);
}

#[test]
fn p8_a_caller_whose_detached_body_ended_with_its_tokio_runtime_is_told_that_the_lease_is_lost() {
    let stays = paused();
    let idempotency = Idempotency::new(MemoryStore::new());
    for key in ["k", ""] {
        let ends = paused();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let call = idempotency.operation("op").key(key);
        let call = call
            .missing_key(MissingKey::Run)
            .run_detached(async move || {
                begun.send(()).unwrap();
                pending::<Res>().await
            });
        let mut call = Box::pin(call);
        ends.block_on(async {
            tokio::select! {
                ended = &mut call => panic!("it never ends: {ended:?}"),
                begun = begins => begun.unwrap(),
            }
        });
        drop(ends);
        let told = stays.block_on(async { tokio::time::timeout(LONG, call).await });
        if key.is_empty() {
            assert!(told.is_err(), "without a record nothing is known: {told:?}");
        } else {
            assert!(
                matches!(told, Ok(Err(Error::LeaseLost { attempt: 1, .. }))),
                "{told:?}"
            );
        }
    }
}

#[test]
fn p9_a_commit_that_moves_to_another_tokio_runtime_has_no_ten_leases_again() {
    let ends = paused();
    let stays = paused();
    let store = Commits::default();
    let idempotency = Idempotency::new(store.clone());
    let call = |key: &'static str| idempotency.operation("op").key(key).lease(LEASE);
    stays.block_on(async {
        call("stays").run(async || Res::Ok(0)).await.unwrap();
        tokio::time::advance(LEASE * 20).await;
    });
    store.take(Takes::Nothing);
    ends.block_on(call("moves").run(async || Res::Ok(1)))
        .unwrap();
    drop(ends);
    let before = store.tries.load(SeqCst);
    stays.block_on(idempotency.shutdown(LONG)).unwrap();
    // One more with the outcome, and one without.
    assert_eq!(store.tries.load(SeqCst) - before, 2);
}

#[test]
fn p12_an_outcome_that_was_left_out_on_a_tokio_runtime_that_has_ended_is_reported() {
    let ends = paused();
    let stays = paused();
    let store = Commits::default();
    let idempotency = Idempotency::new(store.clone());
    let decisions: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = decisions.clone();
    let _logging = logging(AtEachEvent::new(move |event| {
        event.record(&mut Decisions(&seen));
    }));
    let call = |key: &'static str| idempotency.operation("op").key(key).lease(LEASE);
    stays
        .block_on(call("stays").run(async || Res::Ok(0)))
        .unwrap();
    store.take(Takes::NoOutcomeAndHangs);
    ends.block_on(async {
        call("moves").run(async || Res::Ok(1)).await.unwrap();
        store.hangs.notified().await;
    });
    store.take(Takes::NoOutcome);
    drop(ends);
    stays.block_on(async {
        idempotency.shutdown(LONG).await.unwrap();
        let found = call("moves").inspect().await.unwrap();
        assert_eq!(found.map(|found| found.state), Some(RecordState::Done));
    });
    let decisions = decisions.lock().unwrap();
    let left_out = decisions.iter().filter(|one| *one == "not_encoded");
    assert_eq!(left_out.count(), 1, "{decisions:?}");
}

/// Left out is what was sent for ten leases without an answer: it may have arrived.
#[tokio::test(start_paused = true)]
async fn p12_an_outcome_that_was_recorded_although_no_answer_came_is_found_after_it_was_left_out() {
    let lost = || Fault::LoseReply;
    let too_large = || Fault::Fail(StoreErrorKind::TooLarge);
    for (name, takes, commits, looks) in [
        ("a look", Takes::AllSilently, vec![], vec![]),
        ("a refusal", Takes::OutcomeSilently, vec![], vec![lost()]),
        ("a second look", Takes::AllSilently, vec![], vec![lost()]),
        ("too large", Takes::All, vec![lost(), too_large()], vec![]),
    ] {
        let store = Commits::default();
        store.take(takes);
        let faulty = FaultStore::new(store);
        for fault in commits {
            faulty.faults().next(Step::Commit, fault);
        }
        for fault in looks {
            faulty.faults().next(Step::Inspect, fault);
        }
        let idempotency = Idempotency::new(faulty);
        let decisions: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = decisions.clone();
        let _logging = logging(AtEachEvent::new(move |event| {
            event.record(&mut Decisions(&seen));
        }));
        let call = || idempotency.operation("op").key("k").lease(LEASE);
        call().run(async || Res::Ok(1)).await.unwrap();
        idempotency.shutdown(LONG).await.unwrap();
        assert_eq!(
            *decisions.lock().unwrap(),
            ["commit_delayed", "executed"],
            "{name}"
        );
        let again = call().run(async || Res::Ok(2)).await.unwrap();
        assert_eq!(again.into_inner(), 1, "{name}");
    }
}

/// A store that does not take all commits.
#[derive(Clone, Default)]
struct Commits {
    store: MemoryStore,
    takes: Arc<Mutex<Takes>>,
    tries: Arc<AtomicU32>,
    /// A commit without an outcome hangs.
    hangs: Arc<Notify>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Takes {
    #[default]
    All,
    NoOutcome,
    NoOutcomeAndHangs,
    Nothing,
    /// The replies get lost.
    AllSilently,
    /// The replies to commits with an outcome get lost.
    OutcomeSilently,
}

impl Commits {
    fn take(&self, takes: Takes) {
        *self.takes.lock().unwrap() = takes;
    }
}

impl Store for Commits {
    async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
        self.tries.fetch_add(1, SeqCst);
        let takes = *self.takes.lock().unwrap();
        match takes {
            Takes::NoOutcomeAndHangs if commit.outcome.is_none() => {
                self.hangs.notify_one();
                pending().await
            }
            Takes::All => self.store.commit(commit).await,
            Takes::NoOutcome | Takes::OutcomeSilently if commit.outcome.is_none() => {
                self.store.commit(commit).await
            }
            Takes::AllSilently | Takes::OutcomeSilently => {
                self.store.commit(commit).await?;
                Err(StoreError::new(StoreErrorKind::Unavailable, "lost"))
            }
            _ => Err(StoreError::new(StoreErrorKind::Unavailable, "not now")),
        }
    }
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.store.claim(claim).await
    }
    async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
        self.store.release(release).await
    }
    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        self.store.renew(renewals).await
    }
    async fn wait(&self, id: &RecordId, attempt: u64, limit: Duration) -> Result<(), StoreError> {
        self.store.wait(id, attempt, limit).await
    }
    async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        self.store.inspect(id).await
    }
    async fn remove(&self, id: &RecordId) -> Result<Removed, StoreError> {
        self.store.remove(id).await
    }
    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        self.store.issue(issues).await
    }
}

/// Collects the decisions of events.
struct Decisions<'a>(&'a Mutex<Vec<String>>);

impl Visit for Decisions<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "decision" {
            self.0.lock().unwrap().push(value.to_owned());
        }
    }
    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}
