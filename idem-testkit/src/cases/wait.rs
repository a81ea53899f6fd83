//! Waiting: when it returns at once, what wakes it, and that it does not disturb other callers.

use std::time::Duration;

use idem_core::record::{Claimed, Ownership, RecordId, RecordState, Removed};

use crate::bench::{Bench, Given, LONG, Task, abandon, claim, commit, release, renewal, undo};
use crate::check::{Failure, Verdict, matches_or_broken, same};
use crate::handle::{Handle, soon};
use crate::trial::{Trial, code};

/// More steps than a store needs to begin a wait.
const STEPS: usize = 8;

pub(super) const TRIALS: &[Trial] = &[
    code("wait::for_nothing_returns_at_once", |t| {
        Box::pin(async move {
            let id = t.id()?;
            returns_at_once(t, &id, 1).await?;
            t.then(&id, None).await
        })
    }),
    code("wait::for_a_released_record_returns_at_once", |t| {
        Box::pin(
            async move { returns_at_once(t, &t.given(RecordState::Released).await?.id, 1).await },
        )
    }),
    code("wait::for_an_abandoned_record_returns_at_once", |t| {
        Box::pin(
            async move { returns_at_once(t, &t.given(RecordState::Abandoned).await?.id, 1).await },
        )
    }),
    code("wait::for_a_committed_record_returns_at_once", |t| {
        Box::pin(async move {
            for given in t.both_committed(None).await? {
                returns_at_once(t, &given.id, 1).await?;
            }
            Ok(())
        })
    }),
    code("wait::for_a_done_record_returns_at_once", |t| {
        Box::pin(async move { returns_at_once(t, &t.given(RecordState::Done).await?.id, 1).await })
    }),
    code("wait::for_another_attempt_returns_at_once", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::Released).await?;
            t.own(&claim(&given.id)).await?;
            returns_at_once(t, &given.id, 1).await?;
            returns_at_once(t, &given.id, 3).await
        })
    }),
    code("wait::ends_at_its_limit", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            let limit = Duration::from_millis(50);
            let task = begun(&t.store, &given.id, 1, limit).await;
            t.pass(limit).await;
            task.ends_soon("a wait whose limit has passed").await?;
            t.then(&given.id, Some(RecordState::InFlight)).await
        })
    }),
    code("wait::of_no_length_ends", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            soon(
                "a wait of no length",
                t.store.wait(&given.id, 1, Duration::ZERO),
            )
            .await?
        })
    }),
    code("wait::that_gives_up_changes_nothing", |t| {
        Box::pin(async move {
            let given = t
                .given_with(RecordState::InFlight, crate::bench::print("one")?)
                .await?;
            let before = t.look(&given.id).await?;
            t.pass(t.unit() / 4).await;
            for _ in 0..3 {
                t.store
                    .wait(&given.id, 1, Duration::from_millis(10))
                    .await?;
            }
            t.unchanged("the record after waits that gave up", &given.id, &before)
                .await?;
            goes_on(t, &given).await
        })
    }),
    code("wait::that_is_dropped_changes_nothing", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            let before = t.look(&given.id).await?;
            t.pass(t.unit() / 4).await;
            waiter(&t.store, &given.id, 1).await?.ends_cut_off().await;
            settled(&t.store, &given.id).await?;
            t.unchanged(
                "the record after a wait that was dropped",
                &given.id,
                &before,
            )
            .await?;
            goes_on(t, &given).await
        })
    }),
    code("wait::is_woken_by_a_commit", |t| {
        Box::pin(async move {
            for remember in [LONG, LONG * 2] {
                let given = t.given(RecordState::InFlight).await?;
                let waiter = waiter(&t.store, &given.id, 1).await?;
                same(
                    "the commit",
                    t.store
                        .commit(&given.commit.with_remember(remember))
                        .await?,
                    Ownership::Held,
                )?;
                waiter.ends_soon("a wait after the commit").await?;
                let answer = t.store.claim(&claim(&given.id)).await?;
                matches_or_broken!(
                    "the waiter's claim",
                    answer,
                    Claimed::Committed { attempt: 1, .. }
                )?;
            }
            Ok(())
        })
    }),
    code("wait::is_woken_by_a_commit_without_an_outcome", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            let waiter = waiter(&t.store, &given.id, 1).await?;
            let without = given.commit.with_outcome(None);
            same(
                "the commit",
                t.store.commit(&without).await?,
                Ownership::Held,
            )?;
            waiter.ends_soon("a wait after the commit").await
        })
    }),
    code("wait::is_woken_by_a_release", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            let waiter = waiter(&t.store, &given.id, 1).await?;
            same(
                "the release",
                t.store.release(&release(&given.claim)).await?,
                Ownership::Held,
            )?;
            waiter.ends_soon("a wait after the release").await
        })
    }),
    code("wait::is_woken_by_a_release_to_abandoned", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            let waiter = waiter(&t.store, &given.id, 1).await?;
            same(
                "the release",
                t.store.release(&abandon(&given.claim)).await?,
                Ownership::Held,
            )?;
            waiter
                .ends_soon("a wait after the release to abandoned")
                .await
        })
    }),
    code("wait::is_woken_by_a_release_to_undone", |t| {
        Box::pin(async move {
            let released = t.given(RecordState::Released).await?;
            let abandoned = t.given(RecordState::Abandoned).await?;
            for id in [t.id()?, released.id, abandoned.id] {
                let claim = claim(&id);
                let attempt = t.own(&claim).await?;
                let waiter = waiter(&t.store, &id, attempt).await?;
                same(
                    "the release",
                    t.store.release(&undo(&claim)).await?,
                    Ownership::Held,
                )?;
                waiter
                    .ends_soon("a wait after the release to undone")
                    .await?;
            }
            Ok(())
        })
    }),
    code("wait::is_woken_across_handles", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            let second = t.second().await?;
            let third = t.second().await?;
            let waiters = vec![
                waiter(&t.store, &given.id, 1).await?,
                waiter(&second, &given.id, 1).await?,
            ];
            same(
                "the commit by a third handle",
                third.commit(&given.commit).await?,
                Ownership::Held,
            )?;
            Task::all_end_soon("a wait after the commit", waiters)
                .await
                .map(drop)
        })
    }),
    code("wait::is_woken_in_a_later_attempt", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            let first = waiter(&t.store, &given.id, 1).await?;
            t.store.release(&release(&given.claim)).await?;
            first.ends_soon("a wait for attempt 1").await?;
            let second = claim(&given.id);
            t.own(&second).await?;
            let waiter = waiter(&t.store, &given.id, 2).await?;
            same(
                "the commit",
                t.store.commit(&commit(&second, 2)).await?,
                Ownership::Held,
            )?;
            waiter.ends_soon("a wait for attempt 2").await
        })
    }),
    code("wait::is_woken_after_a_renewal", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            let waiter = waiter(&t.store, &given.id, 1).await?;
            same(
                "the renewal",
                t.store.renew(renewal(&given.claim)).await?,
                Ownership::Held,
            )?;
            same(
                "the commit",
                t.store.commit(&given.commit).await?,
                Ownership::Held,
            )?;
            waiter.ends_soon("a wait that began before a renewal").await
        })
    }),
    code("wait::is_woken_after_somebody_else_gave_up", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            let waiter = waiter(&t.store, &given.id, 1).await?;
            t.store
                .wait(&given.id, 1, Duration::from_millis(10))
                .await?;
            same(
                "the commit",
                t.store.commit(&given.commit).await?,
                Ownership::Held,
            )?;
            waiter.ends_soon("a wait beside one that gave up").await
        })
    }),
    code("wait::is_woken_after_somebody_else_was_dropped", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            let dropped = waiter(&t.store, &given.id, 1).await?;
            let stays = waiter(&t.store, &given.id, 1).await?;
            dropped.ends_cut_off().await;
            settled(&t.store, &given.id).await?;
            same(
                "the commit",
                t.store.commit(&given.commit).await?,
                Ownership::Held,
            )?;
            stays.ends_soon("a wait beside one that was dropped").await
        })
    }),
    code("wait::for_another_key_is_left_alone", |t| {
        Box::pin(async move {
            let one = t.given(RecordState::InFlight).await?;
            let other = t.given(RecordState::InFlight).await?;
            let waiter = waiter(&t.store, &one.id, 1).await?;
            same(
                "the commit of another key",
                t.store.commit(&other.commit).await?,
                Ownership::Held,
            )?;
            // It may return early, for no reason, but it must be woken by its own key still.
            same(
                "the commit of its key",
                t.store.commit(&one.commit).await?,
                Ownership::Held,
            )?;
            waiter.ends_soon("a wait after the commit of its key").await
        })
    }),
    code("wait::of_many_is_woken_for_all", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            let second = t.second().await?;
            let mut waiters = Vec::new();
            for number in 0..64 {
                let store = if number % 2 == 0 { &t.store } else { &second };
                waiters.push(begun(store, &given.id, 1, LONG).await);
            }
            for store in [&t.store, &second] {
                settled(store, &given.id).await?;
            }
            same(
                "the commit",
                t.store.commit(&given.commit).await?,
                Ownership::Held,
            )?;
            Task::all_end_soon("one of 64 waits after the commit", waiters)
                .await
                .map(drop)
        })
    }),
    code("wait::does_not_keep_the_owner_from_its_record", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            let _waiter = waiter(&t.store, &given.id, 1).await?;
            goes_on(t, &given).await
        })
    }),
    code("wait::does_not_let_a_stranger_in", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            let _waiter = waiter(&t.store, &given.id, 1).await?;
            let stranger = claim(&given.id);
            same(
                "a stranger's renewal",
                t.store.renew(renewal(&stranger)).await?,
                Ownership::Lost,
            )?;
            same(
                "a stranger's commit",
                t.store.commit(&commit(&stranger, 1)).await?,
                Ownership::Lost,
            )?;
            same(
                "a stranger's release",
                t.store.release(&release(&stranger)).await?,
                Ownership::Lost,
            )?;
            same(
                "a stranger's giving up",
                t.store.release(&abandon(&stranger)).await?,
                Ownership::Lost,
            )?;
            same(
                "the owner's commit",
                t.store.commit(&given.commit).await?,
                Ownership::Held,
            )
        })
    }),
    code("wait::is_not_seen_by_an_inspection", |t| {
        Box::pin(async move {
            let given = t
                .given_with(RecordState::InFlight, crate::bench::print("one")?)
                .await?;
            let before = t.look(&given.id).await?;
            t.pass(t.unit() / 4).await;
            let _waiter = waiter(&t.store, &given.id, 1).await?;
            t.unchanged("a record in flight with a waiter", &given.id, &before)
                .await
        })
    }),
    code(
        "wait::does_not_keep_an_abandoned_record_from_being_removed",
        |t| {
            Box::pin(async move {
                let first = claim(&t.id()?).with_lease(t.unit());
                t.own(&first).await?;
                let _waiter = waiter(&t.store, &first.id, 1).await?;
                t.pass_until(t.unit(), &first.id, Some(RecordState::Abandoned))
                    .await?;
                let answer = t.store.remove(&first.id).await?;
                let is_alive = matches!(answer, Removed::InFlight { .. });
                t.unless_alive(is_alive, same("the removal", answer, Removed::Removed))?;
                t.then(&first.id, None).await
            })
        },
    ),
    code("wait::does_not_keep_a_lease_from_running_out", |t| {
        Box::pin(async move {
            let first = claim(&t.id()?).with_lease(t.unit());
            t.own(&first).await?;
            let _waiter = waiter(&t.store, &first.id, 1).await?;
            t.pass_until(t.unit(), &first.id, Some(RecordState::Abandoned))
                .await?;
            let answer = t.store.claim(&claim(&first.id)).await?;
            let is_alive = matches!(answer, Claimed::InFlight { .. });
            let verdict =
                matches_or_broken!("a claim then", answer, Claimed::Owned { attempt: 2, .. });
            t.unless_alive(is_alive, verdict)
        })
    }),
];

/// A wait that would take longer than any trial, in a task of its own, once it has begun.
async fn waiter(store: &Handle, id: &RecordId, attempt: u64) -> Result<Task<()>, Failure> {
    let task = begun(store, id, attempt, LONG).await;
    settled(store, id).await?;
    Ok(task)
}

/// A wait that was polled, in a task of its own.
async fn begun(store: &Handle, id: &RecordId, attempt: u64, limit: Duration) -> Task<()> {
    let store = store.clone();
    let id = id.clone();
    Task::begun(async move { store.wait(&id, attempt, limit).await }).await
}

/// Gives a wait that was polled, or dropped, the time of some steps of the same store.
///
/// Nothing outside of a store tells that a server knows of a wait. A trial is right without that,
/// since a wait that begins late finds what it would have waited for; only it would try less then.
async fn settled(store: &Handle, id: &RecordId) -> Verdict {
    for _ in 0..STEPS {
        store.inspect(id).await?;
        tokio::task::yield_now().await;
    }
    Ok(())
}

async fn returns_at_once(t: &Bench, id: &RecordId, attempt: u64) -> Verdict {
    soon(
        "a wait with nothing to wait for",
        t.store.wait(id, attempt, LONG),
    )
    .await?
}

/// Checks that a record with waiters allows the same steps as one without.
async fn goes_on(t: &Bench, given: &Given) -> Verdict {
    let answer = t.store.claim(&claim(&given.id)).await?;
    matches_or_broken!(
        "a stranger's claim",
        answer,
        Claimed::InFlight { attempt: 1, .. }
    )?;
    let answer = t.store.claim(&given.claim).await?;
    matches_or_broken!(
        "the owner's claim again",
        answer,
        Claimed::Owned { attempt: 1, .. }
    )?;
    same(
        "the owner's renewal",
        t.store.renew(renewal(&given.claim)).await?,
        Ownership::Held,
    )?;
    same(
        "the owner's commit",
        t.store.commit(&given.commit).await?,
        Ownership::Held,
    )?;
    same(
        "the same commit again",
        t.store.commit(&given.commit).await?,
        Ownership::Held,
    )
}
