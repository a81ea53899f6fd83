//! The end of a process: what goes on without a caller is waited for, and what is left is said.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::support::{LEASE, LONG, World, eventually};
use idem::{Error, Idempotency, RecordState};
use idem_testkit::{Fault, Gate, Step};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

type Res<T = u64> = Result<T, Error>;

const SOON: Duration = Duration::from_millis(50);

/// A waker that asks whether nothing is under way any more. Woken whenever something has ended, it
/// looks at once whether all has.
struct Looks {
    idempotency: Idempotency,
    handle: Handle,
    finished: AtomicBool,
}

impl Looks {
    fn new(idempotency: &Idempotency) -> (Arc<Self>, Waker) {
        let looks = Arc::new(Self {
            idempotency: idempotency.clone(),
            handle: Handle::current(),
            finished: AtomicBool::default(),
        });
        (looks.clone(), Waker::from(looks))
    }
}

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        let _entered = self.handle.enter();
        let looked =
            pin!(self.idempotency.shutdown(LONG)).poll(&mut Context::from_waker(Waker::noop()));
        self.finished.fetch_or(looked.is_ready(), SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn p9_an_outcome_that_the_store_does_not_take_is_waited_for() {
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.build();
    let operation = || {
        idempotency
            .operation("shutdown.commit")
            .key("k")
            .lease(LEASE)
    };
    for _ in 0..3 {
        faults.next(Step::Commit, Fault::Refuse);
    }
    let value = operation().run(async || Res::Ok(7)).await.unwrap();
    assert!(!value.is_replayed());
    idempotency.shutdown(LONG).await.unwrap();
    let info = operation().inspect().await.unwrap().unwrap();
    assert_eq!(info.state, RecordState::Committed);
}

#[tokio::test(start_paused = true)]
async fn p9_there_is_no_moment_at_which_a_detached_body_that_leaves_its_commit_behind_is_not_counted()
 {
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.build();
    faults.always(Step::Commit, Fault::Refuse);
    let begun = Arc::new(Semaphore::new(0));
    let go = Arc::new(Semaphore::new(0));
    let call = tokio::spawn(
        idempotency
            .operation("shutdown.leaves")
            .key("k")
            .run_detached({
                let begun = begun.clone();
                let go = go.clone();
                async move || {
                    begun.add_permits(1);
                    go.acquire().await.unwrap().forget();
                    Res::Ok(7)
                }
            }),
    );
    begun.acquire().await.unwrap().forget();
    let (looks, waker) = Looks::new(&idempotency);
    let mut shutdown = pin!(idempotency.shutdown(LONG));
    assert!(
        shutdown
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    go.add_permits(1);
    call.await.unwrap().unwrap();
    eventually("the body is not counted", async || {
        idempotency
            .shutdown(SOON)
            .await
            .is_err_and(|left| left.bodies == 0)
    })
    .await;
    assert!(
        !looks.finished.load(SeqCst),
        "it was finished, and the commit was not"
    );
    faults.clear();
    idempotency.shutdown(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn p9_there_is_no_moment_at_which_a_commit_that_leaves_steps_to_remove_is_not_counted() {
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.build();
    let gate = Gate::new();
    // The commit of the step, and the first try of that of its call.
    for fault in [Fault::Pass, Fault::Refuse] {
        faults.next(Step::Commit, fault);
    }
    faults.next(Step::Remove, Fault::Hang(gate.clone()));
    let call = idempotency.operation("shutdown.steps").key("k");
    call.run(async || idem::step("charge", async || Res::Ok(7)).await)
        .await
        .unwrap();
    let (looks, waker) = Looks::new(&idempotency);
    let mut shutdown = pin!(idempotency.shutdown(LONG));
    assert!(
        shutdown
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    gate.reached().await;
    assert!(
        !looks.finished.load(SeqCst),
        "it was finished, and the step was not removed"
    );
    let left = idempotency.shutdown(SOON).await.unwrap_err();
    assert_eq!((left.steps, left.removals), (0, 1), "{left}");
    gate.open();
    idempotency.shutdown(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_left_after_the_time_is_said_and_goes_on() {
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.build();
    let operation = || idempotency.operation("shutdown.late").key("k").lease(LEASE);
    faults.always(Step::Commit, Fault::Refuse);
    operation().run(async || Res::Ok(7)).await.unwrap();
    let unfinished = idempotency.shutdown(SOON).await.unwrap_err();
    assert_eq!(
        (unfinished.bodies, unfinished.steps),
        (0, 1),
        "{unfinished}"
    );
    assert!(unfinished.to_string().contains("1 commits"), "{unfinished}");
    faults.clear();
    eventually("it is recorded", async || {
        operation()
            .inspect()
            .await
            .unwrap()
            .is_some_and(|info| info.state == RecordState::Committed)
    })
    .await;
    idempotency.shutdown(LONG).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn p10_a_claim_that_never_arrived_is_waited_for_until_the_store_has_said_so() {
    let (builder, faults) = World::memory().faulty().await;
    let idempotency = builder.build();
    for _ in 0..2 {
        faults.next(Step::Claim, Fault::LoseRequest);
    }
    faults.next(Step::Release, Fault::Refuse);
    let failed = idempotency
        .operation("shutdown.claim")
        .key("k")
        .run(async || Res::Ok(7))
        .await;
    assert!(matches!(failed, Err(Error::Store { .. })), "{failed:?}");
    let unfinished = idempotency.shutdown(Duration::ZERO).await.unwrap_err();
    assert_eq!(
        (unfinished.bodies, unfinished.steps, unfinished.claims),
        (0, 0, 1),
        "{unfinished}"
    );
    // Not for a lease, in which it may still arrive.
    idempotency.shutdown(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn with_nothing_under_way_it_is_over_at_once_and_calls_go_on() {
    let idempotency = World::memory().process().await;
    idempotency.shutdown(Duration::ZERO).await.unwrap();
    let value = idempotency
        .operation("shutdown.on")
        .key("k")
        .run(async || Res::Ok(7))
        .await
        .unwrap();
    assert_eq!(value.into_inner(), 7);
    idem::Idempotency::disabled()
        .shutdown(Duration::ZERO)
        .await
        .unwrap();
}
