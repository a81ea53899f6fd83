//! P5: an unsettled record protects its key for its hold, whatever the retention is; questions
//! without an answer use up no attempts.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_core::{
    Abandoned, Begin, Error, ErrorAction, Idempotency, MemoryStore, Operation, Outcome, RecordState,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::subscriber;

const DAY: Duration = Duration::from_secs(86_400);
const TTL: Duration = Duration::from_secs(300);

/// The decisions that were logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn count(&self, decision: &str) -> usize {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|logged| *logged == decision)
            .count()
    }
}

impl Visit for &Log {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "decision" {
            self.0.lock().unwrap().push(value.to_owned());
        }
    }
    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "idem"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut &*self);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn operation(idempotency: &Idempotency) -> Operation<'_> {
    idempotency
        .operation("payments.charge")
        .key("o-1")
        .ttl(TTL)
        .abandoned(Abandoned::Reject)
}

/// An owner that is cut off in its body.
async fn crash(operation: Operation<'_>) {
    let Begin::Execute(lease) = operation.begin().await.unwrap() else {
        panic!("the key is free")
    };
    drop(lease);
}

async fn run(operation: Operation<'_>) -> Result<Outcome<u64>, Error> {
    operation
        .run(|| async { Ok::<_, Error>(idem_core::current().unwrap().attempt()) })
        .await
}

#[tokio::test(start_paused = true)]
async fn p5_a_rejected_record_protects_for_its_hold_and_not_for_its_retention() {
    let log = Log::default();
    let idempotency = Idempotency::new(MemoryStore::new());
    let _log = subscriber::of_this_thread(log.clone());
    crash(operation(&idempotency)).await;
    tokio::time::advance(Duration::from_secs(40)).await;
    for _ in 0..29 {
        let rejected = run(operation(&idempotency)).await;
        assert!(
            matches!(rejected, Err(Error::Abandoned { attempt: 1, .. })),
            "{rejected:?}"
        );
        tokio::time::advance(DAY).await;
    }
    assert_eq!(log.count("hold_ended"), 0);
    tokio::time::advance(DAY).await;
    assert_eq!(
        run(operation(&idempotency)).await.unwrap().into_inner(),
        2,
        "as the next attempt"
    );
    assert_eq!((log.count("hold_ended"), log.count("taken_over")), (1, 1));
    // A commit counts its own times.
    tokio::time::advance(TTL).await;
    assert!(operation(&idempotency).inspect().await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn p5_a_hold_is_set_on_the_builder_and_on_the_operation() {
    let idempotency = Idempotency::builder(MemoryStore::new()).hold(DAY).build();
    for (hold, longer) in [(DAY, None), (DAY * 90, Some(DAY * 90))] {
        let operation = || match longer {
            Some(hold) => operation(&idempotency).hold(hold),
            None => operation(&idempotency),
        };
        crash(operation()).await;
        tokio::time::advance(hold - Duration::from_secs(1)).await;
        assert!(matches!(
            run(operation()).await,
            Err(Error::Abandoned { .. })
        ));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(run(operation()).await.unwrap().into_inner(), 2);
        operation().forget().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn p5_what_an_error_abandons_is_protected_as_well() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let failed: Result<Outcome<u64>, Failure> = operation(&idempotency)
        .errors(|_: &Failure| ErrorAction::Abandon)
        .run(|| async { Err(Failure::Unknown) })
        .await;
    assert!(matches!(failed, Err(Failure::Unknown)));
    tokio::time::advance(DAY * 29).await;
    assert!(matches!(
        run(operation(&idempotency)).await,
        Err(Error::Abandoned { attempt: 1, .. })
    ));
    operation(&idempotency).settle(&7_u64).await.unwrap();
    assert_eq!(run(operation(&idempotency)).await.unwrap().into_inner(), 7);
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum Failure {
    Unknown,
    #[serde(skip)]
    Idempotency(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Idempotency(error.to_string())
    }
}

/// Asks with an answer, runs the body if that is none, and says how often it was asked and run.
async fn ask(
    idempotency: &Idempotency,
    answer: Result<Option<u64>, Failure>,
    runs: &AtomicU32,
) -> Result<Outcome<u64>, Failure> {
    idempotency
        .operation("payments.charge")
        .key("o-1")
        .ttl(TTL)
        .max_attempts(2)
        .reconcile(|| async { answer })
        .run(|| async {
            runs.fetch_add(1, Ordering::Relaxed);
            Ok(idem_core::current().unwrap().attempt())
        })
        .await
}

#[tokio::test(start_paused = true)]
async fn p5_a_record_is_asked_about_for_its_hold_and_not_for_its_retention() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let runs = AtomicU32::new(0);
    let first = idempotency
        .operation("payments.charge")
        .key("o-1")
        .ttl(TTL)
        .reconcile(|| async { Ok(None) });
    let cut = first.run(std::future::pending::<Result<u64, Failure>>);
    assert!(
        tokio::time::timeout(Duration::from_secs(1), cut)
            .await
            .is_err()
    );
    tokio::time::advance(DAY * 29).await;
    let outcome = ask(&idempotency, Ok(Some(9)), &runs).await.unwrap();
    assert_eq!((outcome.into_inner(), runs.load(Ordering::Relaxed)), (9, 0));
}

#[tokio::test(start_paused = true)]
async fn questions_that_fail_use_up_no_attempts() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let runs = AtomicU32::new(0);
    crash(operation(&idempotency)).await;
    tokio::time::advance(Duration::from_secs(40)).await;
    for _ in 0..4 {
        let failed = ask(&idempotency, Err(Failure::Unknown), &runs).await;
        assert!(matches!(failed, Err(Failure::Unknown)), "{failed:?}");
    }
    let info = operation(&idempotency).inspect().await.unwrap().unwrap();
    assert_eq!(
        (info.state, info.attempt),
        (RecordState::Abandoned, 5),
        "attempts grow with each claim"
    );
    assert_eq!(
        ask(&idempotency, Ok(None), &runs)
            .await
            .unwrap()
            .into_inner(),
        6
    );
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn attempts_that_began_a_body_are_still_counted_between_questions() {
    let idempotency = Idempotency::new(MemoryStore::new());
    let runs = AtomicU32::new(0);
    crash(operation(&idempotency)).await;
    tokio::time::advance(Duration::from_secs(40)).await;
    assert!(
        ask(&idempotency, Err(Failure::Unknown), &runs)
            .await
            .is_err()
    );
    // A second body, which is cut off as well.
    crash(idempotency.operation("payments.charge").key("o-1")).await;
    tokio::time::advance(Duration::from_secs(40)).await;
    let failed = ask(&idempotency, Ok(None), &runs).await;
    assert!(
        matches!(&failed, Err(Failure::Idempotency(text)) if text.contains('2')),
        "{failed:?}"
    );
    assert_eq!(runs.load(Ordering::Relaxed), 0);
}
