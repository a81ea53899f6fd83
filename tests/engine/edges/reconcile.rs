//! P5: `reconcile` together with other options, with calls at once, and with questions that end in
//! every way.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use futures_util::future::join_all;
use idem::{Builder, Error, ErrorAction, Idempotency, MemoryStore, RecordState};
use idem_testkit::{Fault, FaultStore, Step};
use tokio::sync::Notify;

use crate::support::{Bodies, Failure, LEASE, LONG, World, eventually};

type Res<T = u32> = Result<T, Failure>;

fn over(store: &MemoryStore) -> Builder {
    // Not a store of one process, so that calls share flights.
    Idempotency::builder(FaultStore::new(store.clone()))
}

fn call<'a>(idempotency: &Idempotency, key: &'static str) -> idem::Operation<'a> {
    idempotency
        .operation("reconcile")
        .key(key)
        .no_fingerprint()
        .lease(LEASE)
        .wait(LONG)
}

async fn is_abandoned(idempotency: &Idempotency, key: &'static str) {
    eventually("it is abandoned", async || {
        let info = call(idempotency, key).inspect().await.unwrap();
        info.is_some_and(|info| info.state == RecordState::Abandoned)
    })
    .await;
}

async fn crash(idempotency: &Idempotency, key: &'static str) {
    let begun = call(idempotency, key).lease(LEASE * 3).begin().await;
    drop(begun.unwrap());
    is_abandoned(idempotency, key).await;
}

async fn asks_at_once(world: World) {
    let processes = [world.process().await, world.process().await];
    crash(&processes[0], "at once").await;
    let questions = Bodies::default();
    let bodies = Bodies::default();
    // The first two questions have no answer; the third is that nothing was done.
    let answers = AtomicU32::new(0);
    let all = (0..12).map(|n| {
        let call = call(&processes[n % 2], "at once").lease(LONG);
        let asking = call.reconcile(async || {
            let _asking = questions.begin();
            tokio::task::yield_now().await;
            match answers.fetch_add(1, SeqCst) {
                0 | 1 => Err(Failure::Asked("bank is down")),
                _ => Ok(None),
            }
        });
        asking.run(async || {
            let _running = bodies.begin();
            Res::Ok(7)
        })
    });
    let (ran, asked): (Vec<_>, Vec<_>) = join_all(all).await.into_iter().partition(Result::is_ok);
    assert!(
        asked
            .iter()
            .all(|failed| matches!(failed, Err(Failure::Asked("bank is down")))),
        "{asked:?}"
    );
    assert!(
        ran.into_iter()
            .all(|outcome| outcome.unwrap().into_inner() == 7)
    );
    assert_eq!(
        (
            asked.len(),
            questions.begun(),
            questions.most_at_once(),
            bodies.begun()
        ),
        (2, 3, 1, 1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_of_many_calls_in_two_processes_one_asks_at_a_time_and_one_body_runs() {
    asks_at_once(World::memory()).await;
    asks_at_once(World::redis().await).await;
}

#[tokio::test(start_paused = true)]
async fn p5_a_question_that_outlasts_a_lease_which_is_not_renewed_is_dropped_and_asked_again() {
    struct Dropped(Arc<AtomicU32>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let store = MemoryStore::new();
    let fragile = FaultStore::new(store.clone());
    let faults = fragile.faults();
    let dropped = Arc::new(AtomicU32::new(0));
    let idempotency = Idempotency::new(fragile);
    crash(&idempotency, "hangs").await;
    // With its renewals, a question may take longer than a lease.
    let slow = call(&idempotency, "hangs").reconcile(async || {
        tokio::time::sleep(LEASE * 3).await;
        Err(Failure::Asked("late"))
    });
    assert!(matches!(
        slow.run(async || Res::Ok(1)).await,
        Err(Failure::Asked("late"))
    ));
    faults.always(Step::Renew, Fault::LoseRequest);
    let hangs = call(&idempotency, "hangs").reconcile(async || {
        let _dropped = Dropped(dropped.clone());
        pending::<Res<Option<u32>>>().await
    });
    let lost = hangs.run(async || Res::Ok(1)).await;
    assert!(
        matches!(
            lost,
            Err(Failure::Idempotency(Error::LeaseLost { attempt: 3, .. }))
        ),
        "{lost:?}"
    );
    assert_eq!(dropped.load(SeqCst), 1);
    let other = over(&store).build();
    let asked = call(&other, "hangs")
        .reconcile(async || Ok(Some(7)))
        .run(async || Res::Ok(1))
        .await;
    assert_eq!(asked.unwrap().into_inner(), 7);
}

#[tokio::test(start_paused = true)]
async fn p5_p8_a_question_whose_caller_is_gone_is_asked_again_and_a_detached_one_goes_on() {
    let idempotency = over(&MemoryStore::new()).build();
    crash(&idempotency, "gone").await;
    let begun = Notify::new();
    let asking = call(&idempotency, "gone").reconcile(async || {
        begun.notify_one();
        pending::<Res<Option<u32>>>().await
    });
    tokio::select! { _ = asking.run(async || Res::Ok(1)) => panic!(), () = begun.notified() => {} }
    is_abandoned(&idempotency, "gone").await;
    let begun = Arc::new(Notify::new());
    let goes_on = Arc::new(Notify::new());
    let detached = {
        let begun = begun.clone();
        let goes_on = goes_on.clone();
        let asking = call(&idempotency, "gone").reconcile(move || async move {
            begun.notify_one();
            goes_on.notified().await;
            Ok(Some(8))
        });
        asking.run_detached(async || Res::Ok(1))
    };
    tokio::select! { _ = detached => panic!(), () = begun.notified() => {} }
    goes_on.notify_one();
    assert_eq!(
        call(&idempotency, "gone")
            .run(async || Res::Ok(1))
            .await
            .unwrap()
            .into_inner(),
        8
    );
}

#[tokio::test(start_paused = true)]
async fn p5_under_the_strict_profile_a_question_is_asked_and_what_is_unknown_stays_so() {
    let idempotency = over(&MemoryStore::new()).strict().build();
    let asked = AtomicU32::new(0);
    let ask = async |answer: Res<Option<u32>>, body: Res| {
        let asking = call(&idempotency, "strict").reconcile(async || {
            asked.fetch_add(1, SeqCst);
            answer
        });
        asking
            .run(async || body)
            .await
            .map(idem::Outcome::into_inner)
    };
    crash(&idempotency, "strict").await;
    // Neither error releases: not that of the question, and not the unlisted one of the body.
    assert!(matches!(
        ask(Err(Failure::Asked("down")), Ok(1)).await,
        Err(Failure::Asked("down"))
    ));
    is_abandoned(&idempotency, "strict").await;
    assert!(matches!(
        ask(Ok(None), Err(Failure::Declined)).await,
        Err(Failure::Declined)
    ));
    is_abandoned(&idempotency, "strict").await;
    // Without a question it is a person's.
    let rejected = call(&idempotency, "strict").run(async || Res::Ok(1)).await;
    assert!(
        matches!(
            rejected,
            Err(Failure::Idempotency(Error::Abandoned { attempt: 3, .. }))
        ),
        "{rejected:?}"
    );
    assert_eq!(ask(Ok(Some(9)), Ok(1)).await.unwrap(), 9);
    assert_eq!(asked.load(SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn p5_a_ttl_shorter_than_the_lease_forgets_no_question_and_keeps_what_it_found_for_its_time()
{
    let idempotency = over(&MemoryStore::new()).build();
    let ttl = LEASE / 10;
    let remember = LEASE * 100;
    let call = || call(&idempotency, "short").ttl(ttl).remember(remember);
    let crashes = call()
        .reconcile(async || panic!("nothing was cut off"))
        .run(pending::<Res>);
    assert!(tokio::time::timeout(LEASE * 3, crashes).await.is_err());
    // Long after all these times.
    tokio::time::sleep(remember * 2).await;
    let found = call()
        .reconcile(async || Ok(Some(7)))
        .run(async || Res::Ok(1))
        .await
        .unwrap();
    assert_eq!(found.into_inner(), 7);
    assert!(call().run(async || Res::Ok(1)).await.unwrap().is_replayed());
    tokio::time::sleep(ttl * 2).await;
    let late = call()
        .reconcile(async || panic!("it is settled"))
        .run(async || Res::Ok(1))
        .await;
    assert!(matches!(
        late,
        Err(Failure::Idempotency(Error::AlreadyDone { .. }))
    ));
}

#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Kept(String);

impl From<Error> for Kept {
    fn from(error: Error) -> Self {
        Self(error.code().to_owned())
    }
}

#[tokio::test(start_paused = true)]
async fn p5_p6_a_question_that_fails_is_neither_kept_nor_tried_again_nor_counted() {
    let idempotency = over(&MemoryStore::new()).build();
    let call = || call(&idempotency, "policy").max_attempts(2);
    crash(&idempotency, "policy").await;
    let asked = AtomicU32::new(0);
    for policy in [
        ErrorAction::Keep,
        ErrorAction::Retry(idem::Retry::new(3)),
        ErrorAction::Release,
    ] {
        let asking = call().errors(move |_: &Kept| policy).reconcile(async || {
            asked.fetch_add(1, SeqCst);
            // A question about itself would wait for itself.
            call().run(async || Ok::<u32, Kept>(0)).await.map(|_| None)
        });
        assert_eq!(
            asking.run(async || Ok(1)).await.unwrap_err(),
            Kept("reentrant".into())
        );
        is_abandoned(&idempotency, "policy").await;
    }
    assert_eq!(asked.load(SeqCst), 3);
    let last = call()
        .reconcile(async || Ok(None))
        .run(async || Res::Ok(idem::current().unwrap().attempt()));
    assert_eq!(last.await.unwrap().into_inner(), 5);
}
