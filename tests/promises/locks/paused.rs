//! Locks under a clock that the test moves, over the store in memory.

use std::time::Duration;

use idem::{Error, ErrorAction, Idempotency, LockBuilder, MemoryStore, Outcome};
use idem_testkit::{Fault, FaultStore, Faults, Step};
use tokio::sync::oneshot;
use tokio::time::{Instant, advance, sleep};

use super::Res;

const SECOND: Duration = Duration::from_secs(1);

fn lock(idempotency: &Idempotency) -> LockBuilder<'static> {
    idempotency.lock("paused").key("k").lease("10s").wait("60s")
}

fn runtime() -> Idempotency {
    Idempotency::new(MemoryStore::new())
}

fn failing() -> (Idempotency, Faults) {
    let store = FaultStore::new(MemoryStore::new());
    let faults = store.faults();
    (Idempotency::new(store), faults)
}

#[tokio::test(start_paused = true)]
async fn p11_a_waiter_is_woken_by_the_release_and_by_nothing_before() {
    let idempotency = runtime();
    let held = lock(&idempotency).acquire().await.unwrap();
    let waiter = tokio::spawn({
        let idempotency = idempotency.clone();
        async move {
            let lock = lock(&idempotency).acquire().await.unwrap();
            (lock.fencing_number(), Instant::now())
        }
    });
    // Longer than the lease, which is renewed.
    sleep(45 * SECOND).await;
    assert!(!waiter.is_finished());
    held.release().await.unwrap();
    let released = Instant::now();
    let woken = waiter.await.unwrap();
    assert_eq!(woken, (2, released));
}

#[tokio::test(start_paused = true)]
async fn the_wait_is_as_long_as_it_says_for_one_key_and_for_all_of_them_together() {
    let (one, two) = (runtime(), runtime());
    let began = Instant::now();
    let _held = lock(&one).acquire().await.unwrap();
    let refused = tokio::spawn({
        let one = one.clone();
        async move { lock(&one).wait("3s").acquire().await }
    });
    assert!(matches!(
        refused.await.unwrap(),
        Err(Error::InFlight { .. })
    ));
    assert_eq!(began.elapsed().as_secs(), 3);
    // Each of the two is free for one second only after a wait.
    for (key, seconds) in [("a", 2), ("b", 4)] {
        let held = two
            .lock("paused")
            .key(key)
            .lease("10s")
            .acquire()
            .await
            .unwrap();
        tokio::spawn(async move {
            sleep(seconds * SECOND).await;
            held.release().await.unwrap();
        });
    }
    let all = |wait: &'static str| {
        let two = two.clone();
        tokio::spawn(async move {
            let began = Instant::now();
            let locks = two
                .lock("paused")
                .keys(["b", "a"])
                .lease("10s")
                .wait(wait)
                .acquire_all()
                .await;
            (locks.is_ok(), began.elapsed().as_secs())
        })
    };
    assert_eq!(all("3s").await.unwrap(), (false, 3));
    assert_eq!(all("3s").await.unwrap(), (true, 1));
}

#[tokio::test(start_paused = true)]
async fn the_fencing_number_grows_for_as_long_as_the_record_is_kept() {
    let idempotency = runtime();
    let next = async |keep: &'static str| {
        let lock = lock(&idempotency).keep(keep).acquire().await.unwrap();
        let number = lock.fencing_number();
        lock.release().await.unwrap();
        number
    };
    assert_eq!(next("30d").await, 1);
    advance(29 * 86_400 * SECOND).await;
    assert_eq!(next("1h").await, 2);
    advance(3_599 * SECOND).await;
    assert_eq!(next("1h").await, 3);
    advance(3_601 * SECOND).await;
    assert_eq!(next("1h").await, 1);
    // A holder that died is remembered for as long, and never for less than ten leases.
    for (keep, lease, passed) in [("30d", "30s", 29 * 86_400), ("1s", "30s", 299)] {
        let (idempotency, faults) = failing();
        let lock = || self::lock(&idempotency).keep(keep).lease(lease);
        faults.always(Step::Renew, Fault::LoseRequest);
        std::mem::forget(lock().acquire().await.unwrap());
        advance(passed * SECOND).await;
        assert_eq!(lock().acquire().await.unwrap().fencing_number(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn p1_a_body_is_stopped_when_the_lock_is_lost_and_the_next_holder_comes_later() {
    let (idempotency, faults) = failing();
    let began = Instant::now();
    faults.always(Step::Renew, Fault::LoseRequest);
    let lost = lock(&idempotency)
        .run(async |_| {
            sleep(60 * SECOND).await;
            Res::Ok(0)
        })
        .await;
    assert!(
        matches!(lost, Err(Error::LeaseLost { attempt: 1, .. })),
        "{lost:?}"
    );
    // Nine tenths of the lease.
    assert_eq!(began.elapsed().as_secs(), 9);
    let next = lock(&idempotency).acquire().await.unwrap();
    assert_eq!((next.fencing_number(), began.elapsed().as_secs()), (2, 10));
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_lost_while_acquire_all_waits_for_another_is_an_error() {
    let (idempotency, faults) = failing();
    let held = idempotency
        .lock("paused")
        .key("b")
        .lease("60s")
        .acquire()
        .await
        .unwrap();
    faults.always(Step::Renew, Fault::LoseRequest);
    tokio::spawn(async move {
        sleep(20 * SECOND).await;
        held.release().await.unwrap();
    });
    let all = tokio::spawn({
        let idempotency = idempotency.clone();
        async move {
            idempotency
                .lock("paused")
                .keys(["b", "a"])
                .lease("10s")
                .wait("60s")
                .acquire_all()
                .await
        }
    });
    let all = all.await.unwrap();
    assert!(matches!(all, Err(Error::LeaseLost { .. })), "{all:?}");
    // The other one was released.
    let other = idempotency
        .lock("paused")
        .key("b")
        .wait("0s")
        .acquire()
        .await;
    assert_eq!(other.unwrap().fencing_number(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_refused_acquire_all_has_released_its_locks_when_it_returns() {
    let (idempotency, faults) = failing();
    let merchants = || idempotency.lock("paused").lease("10s").wait("0s");
    let other_task = tokio::spawn(merchants().key("b").acquire());
    let held = other_task.await.unwrap().unwrap();
    let refused = merchants().keys(["b", "a"]).acquire_all().await;
    assert!(
        matches!(refused, Err(Error::InFlight { .. })),
        "{refused:?}"
    );
    assert_eq!(faults.calls(Step::Release), 1);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn several_locks_are_lost_when_one_of_them_is() {
    let (idempotency, faults) = failing();
    let began = Instant::now();
    let locks = idempotency
        .lock("paused")
        .keys(["a", "b"])
        .lease("10s")
        .acquire_all()
        .await
        .unwrap();
    faults.always(Step::Renew, Fault::LoseRequest);
    locks.lost().await;
    assert_eq!(began.elapsed().as_secs(), 9);
}

/// Waiters are not FIFO.
fn sorted<const N: usize>(mut numbers: [u64; N]) -> [u64; N] {
    numbers.sort_unstable();
    numbers
}

#[tokio::test(start_paused = true)]
async fn futures_of_one_task_wait_for_each_others_bodies() {
    let idempotency = runtime();
    let body = async || {
        lock(&idempotency)
            .run(async |lock| {
                sleep(SECOND).await;
                Res::Ok(lock.fencing_number())
            })
            .await
            .unwrap()
    };
    let (one, two, three) = tokio::join!(body(), body(), body());
    assert_eq!(sorted([one, two, three]), [1, 2, 3]);
    // Likewise the bodies of calls that hold a lock.
    let call = async |key: &'static str| {
        let body = async || {
            let lock = lock(&idempotency).acquire().await?;
            sleep(SECOND).await;
            Res::Ok(lock.fencing_number())
        };
        idempotency
            .operation("paused.call")
            .key(key)
            .run(body)
            .await
            .unwrap()
            .into_inner()
    };
    let (one, two) = tokio::join!(call("a"), call("b"));
    assert_eq!(sorted([one, two]), [4, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_lost_or_released_in_its_body_may_be_acquired_there_again() {
    let idempotency = runtime();
    let numbers = lock(&idempotency).run(async |outer| {
        outer.release().await?;
        let inner = lock(&idempotency).acquire().await?;
        Res::Ok((outer.fencing_number(), inner.fencing_number()))
    });
    assert_eq!(numbers.await.unwrap(), (1, 2));

    // A detached body goes on after its lock is lost.
    let (idempotency, faults) = failing();
    faults.always(Step::Renew, Fault::LoseRequest);
    let (tell, told) = oneshot::channel();
    let lost = lock(&idempotency).run(async |_| {
        let call = idempotency.operation("paused.call").key("k").lease("60s");
        let lock = lock(&idempotency);
        let body = async move || {
            sleep(11 * SECOND).await;
            let number = lock.acquire().await.map(|inner| inner.fencing_number());
            let _ = tell.send(number);
            Res::Ok(())
        };
        call.run_detached(body).await?;
        Res::Ok(())
    });
    assert!(matches!(lost.await, Err(Error::LeaseLost { .. })));
    assert_eq!(told.await.unwrap().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_released_is_not_released_again() {
    let store = FaultStore::new(MemoryStore::new());
    let faults = store.faults();
    let other = Idempotency::new(store.inner().clone());
    let idempotency = Idempotency::new(store);
    let first = lock(&idempotency).acquire().await.unwrap();
    // A release without an answer may be tried again.
    faults.next(Step::Release, Fault::Refuse);
    let refused = first.release().await;
    assert!(matches!(refused, Err(Error::Store { .. })), "{refused:?}");
    first.release().await.unwrap();
    let second = lock(&other).acquire().await.unwrap();
    first.release().await.unwrap();
    assert_eq!(faults.calls(Step::Release), 2);
    drop(first);
    idempotency.shutdown(SECOND).await.unwrap();
    assert_eq!(faults.calls(Step::Release), 2);
    second.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_lost_is_not_released_when_it_is_dropped() {
    let (idempotency, faults) = failing();
    faults.always(Step::Renew, Fault::LoseRequest);
    let lost = lock(&idempotency).acquire().await.unwrap();
    lost.lost().await;
    drop(lost);
    idempotency.shutdown(60 * SECOND).await.unwrap();
    assert_eq!(faults.calls(Step::Release), 0);
}

#[tokio::test(start_paused = true)]
async fn bad_input_is_a_clear_error() {
    let idempotency = runtime();
    let named = |name: &'static str| idempotency.lock(name).key("k");
    let none: [&str; 0] = [];
    let long = "x".repeat(119);
    let refused = [
        (named("a b").acquire().await, "name is not valid"),
        (named("").acquire().await, "name is not valid"),
        (idempotency.lock(long).key("k").acquire().await, "1 to 118"),
        (
            named("idem.lock/paused").acquire().await,
            "without `idem.lock/`",
        ),
        (
            lock(&idempotency).lease("30").acquire().await,
            "`lease`: `30` needs a unit",
        ),
        (
            lock(&idempotency).wait("soon").acquire().await,
            "`wait`: `soon` is not a duration",
        ),
        (
            lock(&idempotency).keep("1M").acquire().await,
            "`keep`: `M` has no fixed length",
        ),
        (
            lock(&idempotency).keep("0s").acquire().await,
            "`keep` is 0ns",
        ),
        (
            lock(&idempotency).lease("1ms").acquire().await,
            "`lease` is 1ms",
        ),
        (lock(&idempotency).key("l").acquire().await, "`acquire_all`"),
    ];
    for (answer, words) in refused {
        let error = answer.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let all = [
        (
            idempotency.lock("paused").keys(none).acquire_all().await,
            "no key",
        ),
        (idempotency.lock("paused").acquire_all().await, "no key"),
        (
            idempotency
                .lock("paused")
                .keys(["a", "b", "a"])
                .acquire_all()
                .await,
            "a key twice",
        ),
    ];
    for (answer, words) in all {
        let error = answer.unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    }
    for missing in [
        idempotency.lock("paused").acquire().await,
        idempotency.lock("paused").key("").acquire().await,
        idempotency.lock("paused").key(None::<u8>).acquire().await,
    ] {
        assert!(
            matches!(missing, Err(Error::MissingKey { .. })),
            "{missing:?}"
        );
    }
    let missing = idempotency
        .lock("paused")
        .keys(["a", ""])
        .acquire_all()
        .await;
    assert!(
        matches!(missing, Err(Error::MissingKey { .. })),
        "{missing:?}"
    );
    // Nothing was left behind.
    assert_eq!(
        lock(&idempotency).acquire().await.unwrap().fencing_number(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_a_lock_under_strict_and_in_observe_mode_and_none_where_all_is_disabled() {
    let store = MemoryStore::new();
    let strict = Idempotency::builder(store.clone()).strict().build();
    let observing = Idempotency::builder(store.clone()).observe().build();
    let first = lock(&strict).acquire().await.unwrap();
    let second = lock(&observing).wait("1s").acquire().await;
    assert!(matches!(second, Err(Error::InFlight { .. })), "{second:?}");
    drop(first);
    assert_eq!(
        lock(&observing).acquire().await.unwrap().fencing_number(),
        2
    );
    let disabled = Idempotency::disabled();
    let first = lock(&disabled).lease("nonsense").acquire().await.unwrap();
    let second = lock(&disabled).acquire().await.unwrap();
    assert_eq!((first.fencing_number(), second.fencing_number()), (0, 0));
    first.release().await.unwrap();
    assert_eq!(
        disabled
            .lock("paused")
            .keys(["a", "b"])
            .acquire_all()
            .await
            .unwrap()
            .len(),
        2
    );
    assert_eq!(lock(&disabled).run(async |_| Res::Ok(7)).await.unwrap(), 7);
    // A store that does not answer is not a reason to go on.
    let (idempotency, faults) = failing();
    faults.always(Step::Claim, Fault::Refuse);
    let refused = lock(&idempotency).acquire().await;
    assert!(matches!(refused, Err(Error::Store { .. })), "{refused:?}");
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Failed;

impl From<Error> for Failed {
    fn from(_: Error) -> Self {
        Self
    }
}

#[tokio::test(start_paused = true)]
async fn p6_a_locks_error_inside_of_a_body_is_not_kept() {
    let idempotency = runtime();
    let call = async |wait: &'static str| {
        let operation = idempotency.operation("paused.kept").key("k");
        let body = async || {
            let lock = lock(&idempotency).wait(wait).acquire().await?;
            Ok::<_, Failed>(lock.fencing_number())
        };
        let errors = operation.errors(|_: &Failed| ErrorAction::Keep);
        errors.run(body).await.map(Outcome::into_inner)
    };
    let held = lock(&idempotency).acquire().await.unwrap();
    assert!(call("1s").await.is_err());
    held.release().await.unwrap();
    assert_eq!(call("1s").await.unwrap(), 2);
}
