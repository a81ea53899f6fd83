//! P6: a body that is tried again, and what ends it between two tries.

use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem::{ErrorAction, Idempotency, Outcome, RecordState, Retry};
use idem_testkit::{Fault, Step};

use super::{OrderError, SHORT, Script, crash, order};
use crate::support::{LEASE, LONG, World, eventually};

#[tokio::test(start_paused = true)]
async fn p6_a_retry_runs_the_body_again_in_place_as_the_same_attempt() {
    let idempotency = World::memory().process().await;
    let script = Script::new([OrderError::Gateway, OrderError::Gateway]);
    assert_eq!(order(&idempotency, "retried", script.clone()).await, Ok(3));
    let info = idempotency
        .operation("p6.attribute")
        .key("retried")
        .inspect()
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (info.state, info.attempt, info.is_error),
        (RecordState::Committed, 1, false)
    );
}

#[tokio::test(start_paused = true)]
async fn p6_after_the_last_try_the_error_is_kept_or_released_as_the_arm_says() {
    let idempotency = World::memory().process().await;
    let kept = Script::new([
        OrderError::Gateway,
        OrderError::Gateway,
        OrderError::Gateway,
    ]);
    for _ in 0..2 {
        assert_eq!(
            order(&idempotency, "then-keep", kept.clone()).await,
            Err(OrderError::Gateway)
        );
    }
    assert_eq!(kept.runs(), 3);
    let limited = OrderError::RateLimited(SHORT);
    let released = Script::new([limited.clone(), limited.clone(), limited.clone()]);
    assert_eq!(
        order(&idempotency, "then-release", released.clone()).await,
        Err(limited)
    );
    assert_eq!(released.runs(), 2);
    assert_eq!(order(&idempotency, "then-release", released).await, Ok(4));
}

#[tokio::test(start_paused = true)]
async fn p6_between_two_tries_the_lease_is_renewed() {
    let world = World::memory();
    let one = world.process().await;
    let two = world.process().await;
    let script = Script::new([OrderError::Down]);
    let operation =
        |idempotency: &Idempotency| idempotency.operation("p6.pause").key("k").lease(LEASE);
    let retry = |_: &OrderError| {
        ErrorAction::Retry(Retry::new(1).backoff(LEASE * 4).max_backoff(LEASE * 4))
    };
    let other = async {
        eventually("the first try has failed", async || script.runs() == 1).await;
        // At least half of the pause is left: twice the lease.
        tokio::time::sleep(LEASE + LEASE / 2).await;
        let other: Result<Outcome<u32>, idem::Error> = operation(&two)
            .in_flight(idem::InFlight::Reject)
            .run(async || Ok(99))
            .await;
        assert!(
            matches!(other, Err(idem::Error::InFlight { .. })),
            "{other:?}"
        );
    };
    let (first, ()) = tokio::join!(
        operation(&one).errors(retry).run(async || script.run()),
        other
    );
    assert_eq!(first.unwrap().into_inner(), 2);
}

#[tokio::test(start_paused = true)]
async fn p6_a_call_dropped_between_two_tries_gives_the_key_up() {
    let world = World::memory();
    let one = world.process().await;
    let two = world.process().await;
    let script = Script::new([OrderError::Down]);
    let retry = |_: &OrderError| ErrorAction::Retry(Retry::new(1).backoff(LONG).max_backoff(LONG));
    let operation =
        |idempotency: &Idempotency| idempotency.operation("p6.drop").key("k").lease(LONG);
    tokio::select! {
        _ = operation(&one).errors(retry).run(async || script.run()) => {
            panic!("the pause is long")
        }
        () = eventually("the first try has failed", async || script.runs() == 1) => {}
    }
    // Not after the lease, which is long.
    let next = operation(&two).wait(LONG).run(async || script.run());
    let next = tokio::time::timeout(SHORT, next).await;
    let next = next.expect("the key is given up at once");
    assert_eq!(next.unwrap().into_inner(), 2);
}

#[tokio::test(start_paused = true)]
async fn p8_a_caller_dropped_in_a_later_try_is_a_crash_as_in_the_first() {
    let idempotency = World::memory().process().await;
    let tries = AtomicU32::new(0);
    let operation = || idempotency.operation("p8.later").key("k").lease(LEASE);
    let retry = Retry::new(1).backoff(SHORT);
    let body = || async {
        if tries.fetch_add(1, Ordering::SeqCst) > 0 {
            pending::<()>().await;
        }
        Err::<u32, _>(OrderError::Down)
    };
    tokio::select! {
        _ = operation().errors(move |_: &OrderError| ErrorAction::Retry(retry)).run(body) => {
            panic!("it never ends")
        }
        () = eventually("the second try runs", async || tries.load(Ordering::SeqCst) == 2) => {}
    }
    // The next call has to wait for the lease to run out, and knows why.
    let cut =
        async || Ok::<_, idem::Error>(idem::current().expect("inside a body").after_abandoned());
    assert!(operation().wait(LONG).run(cut).await.unwrap().into_inner());
}

#[tokio::test(start_paused = true)]
async fn p6_a_call_dropped_between_two_tries_whose_outcome_is_unknown_abandons_the_key() {
    let idempotency = World::memory().process().await;
    let script = Script::new([OrderError::Down]);
    let operation = || {
        idempotency
            .operation("p6.drop.unknown")
            .key("k")
            .lease(LONG)
    };
    let retry = Retry::new(1).backoff(LONG).max_backoff(LONG).then_abandon();
    tokio::select! {
        _ = operation().errors(move |_: &OrderError| ErrorAction::Retry(retry)).run(async || script.run()) => {
            panic!("the pause is long")
        }
        () = eventually("the first try has failed", async || script.runs() == 1) => {}
    }
    let state = || async { operation().inspect().await.unwrap().map(|info| info.state) };
    eventually("the key is abandoned", async || {
        state().await == Some(RecordState::Abandoned)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn p6_a_try_whose_outcome_is_unknown_is_not_forgotten_by_a_later_one() {
    let idempotency = World::memory().process().await;
    let script = Script::new([OrderError::Gateway, OrderError::Down]);
    let policy = |error: &OrderError| match error {
        OrderError::Gateway => ErrorAction::Retry(Retry::new(3).backoff(SHORT).then_abandon()),
        _ => ErrorAction::Release,
    };
    let operation = || idempotency.operation("p6.unknown").key("k");
    assert_eq!(
        operation()
            .errors(policy)
            .run(async || script.run())
            .await
            .unwrap_err(),
        OrderError::Down
    );
    assert_eq!(
        operation().inspect().await.unwrap().unwrap().state,
        RecordState::Abandoned
    );
}

#[tokio::test(start_paused = true)]
async fn p6_a_lease_lost_between_two_tries_ends_the_call_with_the_body_s_error() {
    let world = World::memory();
    let (builder, faults) = world.faulty().await;
    let one = builder.build();
    let two = world.process().await;
    faults.always(Step::Renew, Fault::LoseRequest);
    let script = Script::new([OrderError::Down]);
    let retry = |_: &OrderError| ErrorAction::Retry(Retry::new(1).backoff(LONG).max_backoff(LONG));
    let operation =
        |idempotency: &Idempotency| idempotency.operation("p6.lost").key("k").lease(LEASE);
    let first = operation(&one)
        .errors(retry)
        .run(async || script.run())
        .await;
    assert_eq!(first.unwrap_err(), OrderError::Down);
    // No body was cut, so no outcome is unknown.
    let second = operation(&two)
        .wait(LONG)
        .abandoned(idem::Abandoned::Reject)
        .run(async || script.run())
        .await
        .unwrap();
    assert_eq!((second.into_inner(), script.runs()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn p6_a_try_that_omitted_its_outcome_says_nothing_of_the_next_one() {
    let idempotency = World::memory().process().await;
    let script = Script::new([OrderError::Gateway]);
    let retry = |_: &OrderError| ErrorAction::Retry(Retry::new(1).backoff(SHORT));
    for _ in 0..2 {
        let operation = idempotency.operation("p6.omitted").key("k").errors(retry);
        let answer = operation.run(async || {
            if script.runs() == 0 {
                idem::current().expect("inside a body").omit_outcome();
            }
            script.run()
        });
        assert_eq!(answer.await.unwrap().into_inner(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn p6_a_retried_body_asks_only_once_what_became_of_an_earlier_one() {
    let idempotency = World::memory().process().await;
    let operation = || {
        idempotency
            .operation("p6.asked")
            .key("k")
            .lease(LEASE)
            .wait(LONG)
    };
    crash(operation()).await;
    let asked = AtomicU32::new(0);
    let script = Script::new([OrderError::Gateway, OrderError::Gateway]);
    let ask = async || {
        asked.fetch_add(1, Ordering::SeqCst);
        Ok(None)
    };
    let retry = |_: &OrderError| ErrorAction::Retry(Retry::new(5).backoff(SHORT));
    let answer = operation()
        .reconcile(ask)
        .errors(retry)
        .run(async || script.run())
        .await
        .unwrap();
    assert_eq!((answer.into_inner(), asked.load(Ordering::SeqCst)), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn p6_a_detached_body_is_retried_though_the_caller_is_gone() {
    let idempotency = World::memory().process().await;
    let script = Script::new([OrderError::Gateway, OrderError::Gateway]);
    let retry =
        |_: &OrderError| ErrorAction::Retry(Retry::new(5).backoff(Duration::from_millis(20)));
    let body = {
        let script = script.clone();
        move || {
            let script = script.clone();
            async move { script.run() }
        }
    };
    let call = idempotency
        .operation("p6.detached")
        .key("k")
        .errors(retry)
        .run_detached(body);
    tokio::select! {
        _ = call => panic!("two pauses are longer than a look"),
        () = eventually("the first try has failed", async || script.runs() > 0) => {}
    }
    let later = idempotency
        .operation("p6.detached")
        .key("k")
        .wait(LONG)
        .run(async || Ok::<_, idem::Error>(99))
        .await;
    let later = later.unwrap();
    assert_eq!(
        (later.is_replayed(), later.into_inner(), script.runs()),
        (true, 3, 3)
    );
}
