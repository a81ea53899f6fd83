//! Code of the application that `idem` calls: subscribers, recorders, codecs, destructors. A panic
//! there, or a call back into `idem`, loses no outcome, runs no body twice, and locks no key.

mod codec;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::task::{Context, Poll};

use crate::support::events::AtEachEvent;
use crate::support::{LEASE, LONG, eventually};
use futures_util::FutureExt as _;
use idem::{
    Begin, Error, ErrorAction, Idempotency, InFlight, Lookup, MemoryStore, RecordState,
    StoreFailure,
};
use idem_testkit::{Fault, FaultStore, Faults, Step};
use serde::{Deserialize, Serialize};
use tracing::Event;

type Res<T = u32> = Result<T, Error>;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Declined;

impl From<Error> for Declined {
    fn from(error: Error) -> Self {
        panic!("{error}")
    }
}

/// A value that cannot be written.
#[derive(Debug, Deserialize)]
struct Touchy;

impl Serialize for Touchy {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("no"))
    }
}

fn faulty(store: &MemoryStore) -> (Idempotency, Faults) {
    let store = FaultStore::new(store.clone());
    let faults = store.faults();
    (Idempotency::new(store), faults)
}

/// Calls of each kind: their results, and how often their bodies run, do not change.
#[expect(clippy::too_many_lines, reason = "a paragraph for each kind of call")]
async fn calls_are_as_ever(idempotency: &Idempotency, faults: &Faults) {
    let call = |key: &'static str| idempotency.operation("callbacks").key(key).lease(LEASE);
    let runs = AtomicU32::new(0);
    let body = async || Res::Ok(runs.fetch_add(1, SeqCst));

    // Many duplicates at once.
    let all = futures_util::future::join_all((0..10).map(|_| call("many").run(body))).await;
    assert!(
        all.into_iter()
            .all(|outcome| outcome.unwrap().into_inner() == 0)
    );
    assert_eq!(runs.swap(0, SeqCst), 1);

    // An error that is kept, and one that is tried again.
    for key in ["kept", "kept", "retried"] {
        let tries = AtomicU32::new(0);
        let keeping = call(key).errors(|_: &Declined| {
            if key == "kept" {
                ErrorAction::Keep
            } else {
                ErrorAction::Retry(idem::Retry::new(1))
            }
        });
        let declining = keeping.run(async || {
            runs.fetch_add(1, SeqCst);
            if tries.fetch_add(1, SeqCst) == 1 {
                Ok(1)
            } else {
                Err(Declined)
            }
        });
        assert_eq!(
            declining.await.map(idem::Outcome::into_inner),
            if key == "kept" { Err(Declined) } else { Ok(1) }
        );
    }
    assert_eq!(runs.swap(0, SeqCst), 3);

    // A value that cannot be written.
    call("not_encoded")
        .run(async || Res::Ok(Touchy))
        .await
        .unwrap();
    assert!(matches!(
        call("not_encoded").run(async || Res::Ok(Touchy)).await,
        Err(Error::AlreadyDone { .. })
    ));

    // The call finds out what an earlier attempt did.
    drop(call("reconciled").begin().await.unwrap());
    tokio::time::sleep(LEASE).await;
    let asking = call("reconciled").reconcile(async || Res::Ok(Some(7)));
    assert_eq!(asking.run(body).await.unwrap().into_inner(), 7);
    assert_eq!(call("reconciled").run(body).await.unwrap().into_inner(), 7);

    // By hand.
    let Begin::Execute(lease) = call("by hand").begin().await.unwrap() else {
        panic!("nothing was there")
    };
    lease.commit(&1).await.unwrap();
    assert!(matches!(
        call("by hand").lookup().await.unwrap(),
        Lookup::Outcome(1)
    ));
    assert!(
        call("by hand")
            .audit("jane", "a test")
            .forget()
            .await
            .unwrap()
    );
    call("by hand")
        .audit("jane", "a test")
        .settle(&2)
        .await
        .unwrap();
    assert_eq!(call("by hand").run(body).await.unwrap().into_inner(), 2);

    // A body in a task of its own, one that is renewed, and one whose caller is dropped.
    assert_eq!(
        call("detached")
            .run_detached(async || Res::Ok(3))
            .await
            .unwrap()
            .into_inner(),
        3
    );
    let renewals = faults.calls(Step::Renew);
    call("renewed")
        .run(async || {
            faults.reached(Step::Renew, renewals + 2).await;
            Res::Ok(0)
        })
        .await
        .unwrap();
    drop(
        call("dropped")
            .run(std::future::pending::<Res>)
            .now_or_never(),
    );
    eventually("the lease runs out", async || {
        call("dropped")
            .inspect()
            .await
            .unwrap()
            .is_some_and(|info| info.state == RecordState::Abandoned)
    })
    .await;
    assert_eq!(
        call("dropped")
            .run(async || Res::Ok(4))
            .await
            .unwrap()
            .into_inner(),
        4
    );

    let token = idempotency
        .operation("callbacks.token")
        .issue("jane", LONG)
        .await
        .unwrap();
    let redeem = || {
        idempotency
            .operation("callbacks.token")
            .token(&token, "jane")
            .run(async || Res::Ok(5))
    };
    assert!(!redeem().await.unwrap().is_replayed() && redeem().await.unwrap().is_replayed());
    assert_eq!(runs.into_inner(), 0);
    idempotency.shutdown(LONG).await.unwrap();
}

/// Steps of the store that fail: the reaction does not change.
async fn faults_are_as_ever(idempotency: &Idempotency, faults: &Faults) {
    let call = |key: &'static str| {
        idempotency
            .operation("callbacks.faults")
            .key(key)
            .lease(LEASE)
    };
    let body = async || Res::Ok(1);

    // No body, or one without a record.
    faults.next(Step::Claim, Fault::Refuse);
    assert!(matches!(
        call("refused").run(body).await,
        Err(Error::Store { .. })
    ));
    faults.next(Step::Claim, Fault::Refuse);
    call("refused")
        .store_failure(StoreFailure::Run)
        .run(async || Res::Ok(0))
        .await
        .unwrap();

    // A claim and a commit that are sent again, the commit in the background.
    faults.next(Step::Claim, Fault::LoseReply);
    faults.next(Step::Commit, Fault::LoseRequest);
    call("again").run(body).await.unwrap();
    idempotency.shutdown(LONG).await.unwrap();
    assert!(call("again").run(body).await.unwrap().is_replayed());

    // A claim that is undone.
    for _ in 0..2 {
        faults.next(Step::Claim, Fault::LoseReply);
    }
    call("undone").run(body).await.unwrap_err();
    idempotency.shutdown(LONG).await.unwrap();
    call("undone")
        .in_flight(InFlight::Reject)
        .run(async || Res::Ok(0))
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn p12_a_subscriber_that_panics_at_each_event_changes_nothing_of_any_call() {
    let subscriber = AtEachEvent::new(|_| panic!("a subscriber that panics"));
    let _logging = crate::support::events::logging(subscriber.clone());
    let (idempotency, faults) = faulty(&MemoryStore::new());
    calls_are_as_ever(&idempotency, &faults).await;
    faults_are_as_ever(&idempotency, &faults).await;
    assert!(subscriber.count() > 20, "it was not asked");
}

#[tokio::test(start_paused = true)]
async fn p11_a_subscriber_that_calls_back_at_each_event_meets_no_lock() {
    let (idempotency, faults) = faulty(&MemoryStore::new());
    let inside = idempotency.clone();
    let claims = Arc::new(AtomicBool::new(true));
    let may_claim = claims.clone();
    let calls_back = move |_: &Event<'_>| {
        for key in ["many", "again", "renewed", "undone", "its own"] {
            let call = || {
                inside
                    .operation("callbacks")
                    .key(key)
                    .in_flight(InFlight::Reject)
            };
            // Polled once, since waiting would block the thread.
            drop(call().inspect().now_or_never());
            if key == "its own" && may_claim.load(SeqCst) {
                drop(call().run(async || Res::Ok(0)).now_or_never());
            }
        }
    };
    let subscriber = AtEachEvent::new(calls_back);
    let _logging = crate::support::events::logging(subscriber.clone());
    calls_are_as_ever(&idempotency, &faults).await;
    // From here on a claim would use up the fault of another.
    claims.store(false, SeqCst);
    faults_are_as_ever(&idempotency, &faults).await;
    assert!(subscriber.count() > 20, "it was not asked");
}

/// Panics where it is asked for a counter, a gauge or a histogram.
#[cfg(feature = "metrics")]
struct PanickingRecorder(AtomicU32);

#[cfg(feature = "metrics")]
impl PanickingRecorder {
    fn panics(&self) -> ! {
        self.0.fetch_add(1, SeqCst);
        panic!("a recorder that panics")
    }
}

#[cfg(feature = "metrics")]
impl metrics::Recorder for PanickingRecorder {
    fn describe_counter(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }
    fn describe_gauge(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }
    fn describe_histogram(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }
    fn register_counter(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        self.panics()
    }
    fn register_gauge(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        self.panics()
    }
    fn register_histogram(
        &self,
        _: &metrics::Key,
        _: &metrics::Metadata<'_>,
    ) -> metrics::Histogram {
        self.panics()
    }
}

#[cfg(feature = "metrics")]
#[test]
fn p12_a_recorder_that_panics_at_each_metric_changes_nothing_of_any_call() {
    let recorder = PanickingRecorder(AtomicU32::new(0));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let (idempotency, faults) = faulty(&MemoryStore::new());
            calls_are_as_ever(&idempotency, &faults).await;
            faults_are_as_ever(&idempotency, &faults).await;
        });
    });
    assert!(recorder.0.load(SeqCst) > 20, "it was not asked");
}

/// The outcome of a future that may panic.
async fn or_panic<F: Future>(future: F) -> Option<F::Output> {
    AssertUnwindSafe(future).catch_unwind().await.ok()
}

#[tokio::test(start_paused = true)]
async fn p1_p2_a_store_that_panics_in_any_step_leaves_a_key_that_can_be_used_and_an_outcome_that_is_kept()
 {
    for fault in [Fault::Panic, Fault::PanicAfter] {
        let (idempotency, faults) = faulty(&MemoryStore::new());
        let call = |key: &'static str| {
            idempotency
                .operation("callbacks.store")
                .key(key)
                .lease(LEASE)
                .wait(LONG)
        };
        let runs = AtomicU32::new(0);
        let body = async || Res::Ok(runs.fetch_add(1, SeqCst));
        let value = async |key| call(key).run(body).await.unwrap().into_inner();

        // No body has begun, and the next call need not wait for a lease.
        faults.next(Step::Claim, fault.clone());
        assert!(or_panic(call("claim").run(body)).await.is_none());
        idempotency.shutdown(LONG).await.unwrap();
        let next = call("claim").in_flight(InFlight::Reject).run(body);
        assert_eq!(
            (next.await.unwrap().into_inner(), runs.load(SeqCst)),
            (0, 1)
        );

        // The body has succeeded: its outcome is recorded in the background, at the third try.
        for _ in 0..2 {
            faults.next(Step::Commit, fault.clone());
        }
        assert!(or_panic(call("commit").run(body)).await.is_none());
        idempotency.shutdown(LONG).await.unwrap();
        assert_eq!((value("commit").await, runs.load(SeqCst)), (1, 2));

        // A waiter, of the same process and of another one.
        let Begin::Execute(lease) = call("wait").begin().await.unwrap() else {
            panic!("nothing was there")
        };
        faults.next(Step::Inspect, fault.clone());
        assert!(or_panic(call("wait").inspect()).await.is_none());
        let waits = async { tokio::join!(value("wait"), value("wait")) };
        let commits = async { lease.commit(&7).await.unwrap() };
        assert_eq!(tokio::join!(waits, commits).0, (7, 7));

        // A renewal.
        faults.next(Step::Renew, fault.clone());
        let renewals = faults.calls(Step::Renew);
        call("renew")
            .run(async || {
                faults.reached(Step::Renew, renewals + 3).await;
                Res::Ok(0)
            })
            .await
            .unwrap();

        // A release: the key is free at the latest when its lease has ended.
        faults.next(Step::Release, fault.clone());
        let fails = call("release")
            .errors(|_: &Declined| ErrorAction::Release)
            .run(async || Err::<u32, _>(Declined));
        assert!(or_panic(fails).await.is_none());
        assert_eq!(value("release").await, 2);

        // A removal, and the entry in the trail before it, which is a claim.
        for (step, key) in [(Step::Remove, "claim"), (Step::Claim, "commit")] {
            faults.next(step, fault.clone());
            assert!(
                or_panic(call(key).audit("jane", "a test").forget())
                    .await
                    .is_none(),
                "{step:?}"
            );
        }
        call("claim")
            .audit("jane", "a test")
            .forget()
            .await
            .unwrap();
        assert_eq!((value("claim").await, value("commit").await), (3, 1));
        idempotency.shutdown(LONG).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn p10_a_store_that_panics_whenever_a_claim_is_undone_leaves_it_to_its_lease() {
    let (idempotency, faults) = faulty(&MemoryStore::new());
    let call = || {
        idempotency
            .operation("callbacks.undo")
            .key("k")
            .lease(LEASE)
            .wait(LONG)
    };
    faults.always(Step::Claim, Fault::LoseReply);
    faults.always(Step::Release, Fault::Panic);
    assert!(call().run(async || Res::Ok(1)).await.is_err());
    idempotency.shutdown(LONG).await.unwrap();
    faults.clear();
    assert_eq!(
        call().run(async || Res::Ok(2)).await.unwrap().into_inner(),
        2
    );
}

/// A body that panics when it is dropped.
struct DropPanics(Option<Res>);

impl Future for DropPanics {
    type Output = Res;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Res> {
        self.0.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for DropPanics {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "a destructor that panics");
    }
}

#[tokio::test(start_paused = true)]
async fn p8_a_body_that_panics_when_it_is_dropped_has_panicked() {
    let (idempotency, _) = faulty(&MemoryStore::new());
    let call = || {
        idempotency
            .operation("callbacks.drop")
            .key("k")
            .in_flight(InFlight::Reject)
    };
    for ends in [
        Ok(1),
        Err(idempotency
            .operation("a name")
            .key("k")
            .run(async || Res::Ok(1))
            .await
            .unwrap_err()),
    ] {
        assert!(
            or_panic(call().run(|| DropPanics(Some(ends))))
                .await
                .is_none()
        );
        // As after each panic, the key is free.
        assert_eq!(
            call().inspect().await.unwrap().unwrap().state,
            RecordState::Released
        );
    }
    assert_eq!(
        call().run(async || Res::Ok(2)).await.unwrap().into_inner(),
        2
    );
}
