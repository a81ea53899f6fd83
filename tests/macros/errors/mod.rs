//! P6: errors as the author says, with the attribute and by hand, over `MemoryStore`.

mod by_type;
mod retried_arguments;
mod tries;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::{Bodies, LEASE, LONG, World, eventually};
use idem::{Begin, ErrorAction, ErrorPolicy, Idempotency, Outcome, RecordState, Retry, idempotent};
use idem_testkit::{Fault, Step};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
enum OrderError {
    #[error("declined: {code}")]
    Declined { code: u16, reason: Option<String> },
    #[error("rate limited")]
    RateLimited(Duration),
    #[error("gateway")]
    Gateway,
    #[error("down")]
    Down,
    #[error("unwritable")]
    #[serde(serialize_with = "unwritable")]
    Unwritable(String),
    #[error("{0}")]
    #[serde(skip)]
    Idempotency(String),
}

fn unwritable<S: serde::Serializer>(_: &str, _: S) -> Result<S::Ok, S::Error> {
    Err(serde::ser::Error::custom("no"))
}

impl From<idem::Error> for OrderError {
    fn from(error: idem::Error) -> Self {
        Self::Idempotency(error.to_string())
    }
}

impl OrderError {
    fn declined() -> Self {
        Self::Declined {
            code: 51,
            reason: Some("funds".into()),
        }
    }
}

const SHORT: Duration = Duration::from_millis(1);

/// Gives these errors, one after the other, and then how often it was asked.
#[derive(Debug, Default)]
struct Script {
    errors: Vec<OrderError>,
    runs: AtomicU32,
}

impl Script {
    fn new(errors: impl IntoIterator<Item = OrderError>) -> Arc<Self> {
        Arc::new(Self {
            errors: errors.into_iter().collect(),
            runs: AtomicU32::new(0),
        })
    }

    fn run(&self) -> Result<u32, OrderError> {
        let run = self.runs.fetch_add(1, Ordering::SeqCst);
        match self.errors.get(run as usize) {
            Some(error) => Err(error.clone()),
            None => Ok(run + 1),
        }
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

#[idempotent(
    key = operation,
    name = "p6.attribute",
    ttl = "5m",
    runtime = idempotency,
    errors(
        OrderError::Declined { code, .. } if *code == 51 => keep,
        OrderError::Declined { .. } => keep(ttl = "1ms"),
        OrderError::Gateway => retry(max = 2, backoff = "1ms", then = keep),
        OrderError::RateLimited(after) => retry(max = 1, backoff = *after, max_backoff = "1ms"),
        OrderError::Unwritable(_) => keep,
        _ => release,
    ),
)]
async fn order(
    idempotency: &Idempotency,
    operation: &str,
    script: Arc<Script>,
) -> Result<u32, OrderError> {
    script.run()
}

#[tokio::test(start_paused = true)]
async fn p6_a_kept_error_is_replayed_equal_and_the_body_runs_once() {
    let world = World::memory();
    let one = world.process().await;
    let two = world.process().await;
    let script = Script::new([OrderError::declined()]);
    for idempotency in [&one, &one, &two] {
        assert_eq!(
            order(idempotency, "kept", script.clone()).await,
            Err(OrderError::declined())
        );
    }
    assert_eq!(script.runs(), 1);
    let info = two
        .operation("p6.attribute")
        .key("kept")
        .inspect()
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (info.state, info.attempt, info.is_error),
        (RecordState::Committed, 1, true)
    );
}

#[tokio::test(start_paused = true)]
async fn p6_those_who_wait_get_the_kept_error_too() {
    let world = World::memory();
    let (builder, faults) = world.faulty().await;
    let one = world.process().await;
    let two = builder.build();
    let begun = Notify::new();
    let go = Notify::new();
    let bodies = Bodies::default();
    let call = |idempotency: Idempotency| {
        let begun = &begun;
        let go = &go;
        let bodies = &bodies;
        async move {
            let operation = idempotency.operation("p6.waiters").key("k").wait(LONG);
            let body = || {
                bodies.run(async {
                    begun.notify_one();
                    go.notified().await;
                    Err(OrderError::declined())
                })
            };
            operation
                .errors(|_: &OrderError| ErrorAction::Keep)
                .run(body)
                .await
                .map(Outcome::<u32>::into_inner)
        }
    };
    let others = async {
        begun.notified().await;
        let waiters = async { tokio::join!(call(one.clone()), call(two.clone())) };
        tokio::pin!(waiters);
        tokio::select! {
            _ = &mut waiters => panic!("answered before the body ended"),
            () = eventually("the other process waits", async || faults.calls(Step::Wait) > 0) => {
                go.notify_one();
            }
        }
        waiters.await
    };
    let (first, (second, third)) = tokio::join!(call(one.clone()), others);
    for answer in [first, second, third] {
        assert_eq!(answer, Err(OrderError::declined()));
    }
    assert_eq!(bodies.begun(), 1);
}

#[tokio::test(start_paused = true)]
async fn p6_a_released_error_lets_the_next_call_run() {
    let idempotency = World::memory().process().await;
    let script = Script::new([OrderError::Down]);
    assert_eq!(
        order(&idempotency, "released", script.clone()).await,
        Err(OrderError::Down)
    );
    assert_eq!(order(&idempotency, "released", script.clone()).await, Ok(2));
    assert_eq!(order(&idempotency, "released", script).await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn p6_an_error_that_is_kept_for_a_time_of_its_own_lets_a_later_call_run() {
    let idempotency = World::memory().process().await;
    let script = Script::new([OrderError::Declined {
        code: 1,
        reason: None,
    }]);
    assert!(order(&idempotency, "ttl", script.clone()).await.is_err());
    let info = || async {
        idempotency
            .operation("p6.attribute")
            .key("ttl")
            .inspect()
            .await
            .unwrap()
    };
    eventually("the kept error is forgotten", async || {
        info().await.is_none()
    })
    .await;
    assert_eq!(order(&idempotency, "ttl", script).await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn p6_the_time_of_a_kept_error_stands_in_place_of_ttl_and_remember() {
    let idempotency = World::memory().process().await;
    let operation = || {
        idempotency
            .operation("p6.remember")
            .key("k")
            .ttl(LONG)
            .remember(LONG * 100)
    };
    let keep = |_: &OrderError| ErrorAction::KeepFor(LONG * 3);
    let failed: Result<Outcome<u32>, _> = operation()
        .errors(keep)
        .run(async || Err(OrderError::Down))
        .await;
    assert_eq!(failed.unwrap_err(), OrderError::Down);
    let info = operation().inspect().await.unwrap().unwrap();
    assert!(
        info.expires_in <= LONG * 3 && info.expires_in > LONG * 2,
        "{info:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn p6_an_error_that_cannot_be_written_is_released_not_recorded() {
    let idempotency = World::memory().process().await;
    let script = Script::new([OrderError::Unwritable("x".into())]);
    assert_eq!(
        order(&idempotency, "unwritable", script.clone()).await,
        Err(OrderError::Unwritable("x".into()))
    );
    assert_eq!(order(&idempotency, "unwritable", script).await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn p6_an_idem_error_of_the_body_is_never_kept() {
    let idempotency = World::memory().process().await;
    let busy = idempotency
        .operation("p6.inner")
        .key("busy")
        .begin()
        .await
        .unwrap();
    let call = || {
        let operation = idempotency
            .operation("p6.outer")
            .key("k")
            .errors(|_: &OrderError| ErrorAction::Keep);
        operation.run(async || {
            let inner = idempotency
                .operation("p6.inner")
                .key("busy")
                .in_flight(idem::InFlight::Reject);
            Ok(inner
                .run(async || Ok::<_, idem::Error>(5))
                .await?
                .into_inner())
        })
    };
    let failed: Result<Outcome<u32>, OrderError> = call().await;
    assert!(matches!(failed, Err(OrderError::Idempotency(_))));
    let Begin::Execute(lease) = busy else {
        panic!("nobody else was there")
    };
    lease.release().await.unwrap();
    assert_eq!(call().await.unwrap().into_inner(), 5);
}

#[tokio::test(start_paused = true)]
async fn p6_an_error_that_may_hide_an_idem_error_is_never_kept() {
    let idempotency = World::memory().process().await;
    let busy = idempotency
        .operation("p6.hidden.inner")
        .key("busy")
        .begin()
        .await
        .unwrap();
    let innermost = || async {
        let inner = idempotency
            .operation("p6.hidden.inner")
            .key("busy")
            .in_flight(idem::InFlight::Reject);
        inner.run(async || Ok::<_, idem::Error>(5)).await
    };
    // Only its text is left of it, and it comes through another guarded call.
    let middle = || async {
        let declined = |error: idem::Error| OrderError::Declined {
            code: 1,
            reason: Some(error.to_string()),
        };
        let middle = idempotency.operation("p6.hidden.middle").key("k");
        let answer = middle
            .run(async || innermost().await.map(Outcome::into_inner).map_err(declined))
            .await;
        answer.map(Outcome::into_inner)
    };
    let outer = || {
        let operation = idempotency
            .operation("p6.hidden.outer")
            .key("k")
            .errors(|_: &OrderError| ErrorAction::Keep);
        operation.run(middle)
    };
    assert!(outer().await.is_err());
    // A call that got over it passes nothing on.
    let unmoved = idempotency
        .operation("p6.hidden.unmoved")
        .key("k")
        .errors(|_: &OrderError| ErrorAction::Keep);
    let body = || async {
        let over = idempotency.operation("p6.hidden.over").key("k");
        let zero = over
            .run(async || Ok::<_, idem::Error>(innermost().await.map_or(0, Outcome::into_inner)))
            .await?;
        assert_eq!(zero.into_inner(), 0);
        Err::<u32, _>(OrderError::declined())
    };
    assert_eq!(unmoved.run(body).await.unwrap_err(), OrderError::declined());
    let info = idempotency
        .operation("p6.hidden.unmoved")
        .key("k")
        .inspect()
        .await
        .unwrap()
        .unwrap();
    assert!(info.is_error);

    let Begin::Execute(lease) = busy else {
        panic!("nobody else was there")
    };
    lease.release().await.unwrap();
    assert_eq!(outer().await.unwrap().into_inner(), 5);
}

#[tokio::test(start_paused = true)]
async fn p6_what_idem_itself_says_is_not_asked_of_the_policy() {
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.build();
    faults.always(Step::Claim, Fault::Refuse);
    let asked = AtomicU32::new(0);
    let policy = |_: &OrderError| {
        asked.fetch_add(1, Ordering::SeqCst);
        ErrorAction::Retry(Retry::new(9))
    };
    let operation = idempotency.operation("p6.store").key("k").errors(policy);
    let failed: Result<Outcome<u32>, _> = operation.run(async || Ok(1)).await;
    assert!(matches!(failed, Err(OrderError::Idempotency(_))));
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn p6_an_abandoned_error_leaves_the_outcome_unknown_for_the_next_call_to_settle() {
    let idempotency = World::memory().process().await;
    let operation = |key: &'static str| idempotency.operation("p6.abandon").key(key).lease(LONG);
    let retry = Retry::new(1).backoff(SHORT).then_abandon();
    for (key, action) in [
        ("at-once", ErrorAction::Abandon),
        ("after-retries", ErrorAction::Retry(retry)),
    ] {
        let failing = operation(key)
            .errors(move |_: &OrderError| action)
            .run(async || Err::<u32, _>(OrderError::Down));
        assert_eq!(failing.await.unwrap_err(), OrderError::Down);
        let rejected = operation(key)
            .abandoned(idem::Abandoned::Reject)
            .run(async || Ok::<u32, idem::Error>(1))
            .await;
        assert!(
            matches!(rejected, Err(idem::Error::Abandoned { attempt: 1, .. })),
            "{rejected:?}"
        );
        let asked = operation(key)
            .reconcile(async || Ok(Some(7)))
            .run(async || Ok::<u32, idem::Error>(1))
            .await;
        assert_eq!(asked.unwrap().into_inner(), 7);
    }
}

#[tokio::test(start_paused = true)]
async fn p6_a_guard_that_panics_releases_as_a_body_that_panics() {
    let idempotency = World::memory().process().await;
    let call = tokio::spawn({
        let idempotency = idempotency.clone();
        async move {
            let operation = idempotency
                .operation("p6.panic")
                .key("k")
                .errors(|_: &OrderError| -> ErrorAction { panic!("a guard") });
            operation
                .run(async || Err::<u32, _>(OrderError::Down))
                .await
                .map(Outcome::into_inner)
        }
    });
    assert!(call.await.unwrap_err().is_panic());
    let next = idempotency
        .operation("p6.panic")
        .key("k")
        .run(async || Ok::<_, idem::Error>(1))
        .await
        .unwrap();
    assert!(!next.is_replayed());
}

#[tokio::test(start_paused = true)]
async fn p6_what_reconcile_fails_with_is_not_asked_of_the_policy() {
    let idempotency = World::memory().process().await;
    let operation = || {
        idempotency
            .operation("p6.reconcile")
            .key("k")
            .lease(LEASE)
            .wait(LONG)
    };
    crash(operation()).await;
    let keep = |_: &OrderError| ErrorAction::Keep;
    let ask = async || Err::<Option<u32>, _>(OrderError::Gateway);
    let unasked = operation()
        .errors(keep)
        .reconcile(ask)
        .run(async || Ok(1))
        .await;
    assert_eq!(unasked.unwrap_err(), OrderError::Gateway);
    let info = operation().inspect().await.unwrap().unwrap();
    assert_eq!((info.state, info.attempt), (RecordState::Abandoned, 2));
}

#[tokio::test(start_paused = true)]
async fn p6_a_duplicate_whose_function_does_not_keep_errors_gets_an_error_not_a_rerun() {
    let idempotency = World::memory().process().await;
    let operation = || idempotency.operation("p6.changed").key("k");
    let failed = operation()
        .errors(|_: &OrderError| ErrorAction::Keep)
        .run(async || Err::<u32, _>(OrderError::Down));
    assert_eq!(failed.await.unwrap_err(), OrderError::Down);
    let later = operation().run(async || Ok::<u32, idem::Error>(1)).await;
    assert!(matches!(later, Err(idem::Error::Codec { .. })), "{later:?}");
}

#[tokio::test(start_paused = true)]
async fn p6_step_by_step_an_error_is_kept_read_and_settled() {
    let idempotency = World::memory().process().await;
    let operation = |key: &'static str| {
        idempotency
            .operation("p6.hand")
            .key(key)
            .lease(LEASE)
            .wait(LONG)
    };
    let Begin::Execute(lease) = operation("commit").begin().await.unwrap() else {
        panic!("nothing was there")
    };
    lease
        .commit_error(&OrderError::declined(), None)
        .await
        .unwrap();
    crash(operation("settle")).await;
    eventually("the lease has run out", async || {
        operation("settle").inspect().await.unwrap().unwrap().state == RecordState::Abandoned
    })
    .await;
    operation("settle")
        .settle_error(&OrderError::declined())
        .await
        .unwrap();
    for key in ["commit", "settle"] {
        let Begin::Replay(recorded) = operation(key).begin().await.unwrap() else {
            panic!("it is done")
        };
        assert!(recorded.is_error());
        assert_eq!(
            recorded.decode_error::<OrderError>().unwrap(),
            OrderError::declined()
        );
        assert!(matches!(
            recorded.decode::<u32>(),
            Err(idem::Error::Codec { .. })
        ));
    }
}

/// Runs a call whose body is cut by dropping its future: as good as a crash.
async fn crash(operation: idem::Operation<'_>) {
    let begun = Notify::new();
    let body = async || {
        begun.notify_one();
        pending::<Result<u32, idem::Error>>().await
    };
    tokio::select! {
        _ = operation.run(body) => panic!("a body that never ends has ended"),
        () = begun.notified() => {}
    }
}
