//! The effect of time alone on a record.

use std::time::Duration;

use idem_core::record::{Claim, Claimed, Origin, Ownership, RecordState, ReleaseTo, Removed};

use crate::bench::{Bench, LONG, Moment, abandon, claim, commit, release, renewal};
use crate::check::{Failure, matches_or_broken, same};
use crate::handle::soon;
use crate::trial::{Trial, code};

pub(super) const TRIALS: &[Trial] = &[
    code(
        "time::a_claim_finds_a_lease_alive_until_it_has_run_out",
        |t| {
            Box::pin(async move {
                let (first, claimed) = short_lease(t).await?;
                let rest = t.pass_nearly(t.unit()).await;
                let answer = t.store.claim(&claim(&first.id)).await?;
                let verdict = matches_or_broken!(
                    "a claim before the lease has run out",
                    answer,
                    Claimed::InFlight { .. }
                );
                t.within(t.unit(), claimed, verdict)?;
                t.pass(rest).await;
                // Asked of the claim itself, at once: no inspection comes before.
                let answer = t.store.claim(&claim(&first.id)).await?;
                let is_alive = matches!(answer, Claimed::InFlight { .. });
                let owned = Claimed::Owned {
                    attempt: 2,
                    from: Origin::Abandoned,
                };
                t.unless_alive(is_alive, same("a claim after it has", answer, owned))
            })
        },
    ),
    code(
        "time::an_inspection_finds_a_lease_alive_until_it_has_run_out",
        |t| {
            Box::pin(async move {
                let (first, claimed) = short_lease(t).await?;
                let rest = t.pass_nearly(t.unit()).await;
                let state = t.state(&first.id).await?;
                t.within(
                    t.unit(),
                    claimed,
                    same(
                        "before the lease has run out",
                        state,
                        Some(RecordState::InFlight),
                    ),
                )?;
                t.pass(rest).await;
                same(
                    "after it has",
                    t.state(&first.id).await?,
                    Some(RecordState::Abandoned),
                )
            })
        },
    ),
    code(
        "time::a_removal_finds_a_lease_alive_until_it_has_run_out",
        |t| {
            Box::pin(async move {
                let (first, claimed) = short_lease(t).await?;
                let rest = t.pass_nearly(t.unit()).await;
                let answer = t.store.remove(&first.id).await?;
                let verdict = matches_or_broken!(
                    "a removal before the lease has run out",
                    answer,
                    Removed::InFlight { .. }
                );
                t.within(t.unit(), claimed, verdict)?;
                t.pass(rest).await;
                let answer = t.store.remove(&first.id).await?;
                let is_alive = matches!(answer, Removed::InFlight { .. });
                let verdict = same("a removal after it has", answer, Removed::Removed);
                t.unless_alive(is_alive, verdict)
            })
        },
    ),
    code("time::a_wait_finds_a_lease_that_has_run_out", |t| {
        Box::pin(async move {
            let (first, _) = short_lease(t).await?;
            t.pass(t.unit()).await;
            soon(
                "a wait for a lease that has run out",
                t.store.wait(&first.id, 1, LONG),
            )
            .await?
        })
    }),
    code("time::a_record_in_flight_is_gone_after_its_hold", |t| {
        Box::pin(async move {
            let first = claim(&t.id()?).with_lease(t.unit() / 2).with_hold(t.unit());
            t.own(&first).await?;
            t.pass(t.unit()).await;
            let answer = t.store.claim(&claim(&first.id)).await?;
            same(
                "a claim after the hold",
                answer,
                Claimed::Owned {
                    attempt: 1,
                    from: Origin::Nothing,
                },
            )
        })
    }),
    code(
        "time::an_abandoned_record_stays_until_its_hold_is_over",
        |t| {
            Box::pin(async move {
                let first = claim(&t.id()?).with_lease(t.unit() / 4).with_hold(t.unit());
                let (claimed, _) = t.timed(t.own(&first)).await?;
                let rest = t.pass_nearly(t.unit()).await;
                let state = t.state(&first.id).await?;
                t.within(
                    t.unit(),
                    claimed,
                    same(
                        "before the hold is over",
                        state,
                        Some(RecordState::Abandoned),
                    ),
                )?;
                t.pass_until(rest, &first.id, None).await
            })
        },
    ),
    code("time::a_late_owner_finds_nothing_after_the_hold", |t| {
        Box::pin(async move {
            let first = claim(&t.id()?).with_lease(t.unit() / 2).with_hold(t.unit());
            t.own(&first).await?;
            t.pass(t.unit()).await;
            same(
                "the late owner's commit",
                t.store.commit(&commit(&first, 1)).await?,
                Ownership::Lost,
            )?;
            same(
                "the late owner's renewal",
                t.store.renew(renewal(&first)).await?,
                Ownership::Lost,
            )?;
            same(
                "the late owner's release",
                t.store.release(&release(&first)).await?,
                Ownership::Lost,
            )?;
            t.then(&first.id, None).await?;
            same(
                "a removal",
                t.store.remove(&first.id).await?,
                Removed::Nothing,
            )
        })
    }),
    code("time::a_given_up_record_is_gone_after_its_hold", |t| {
        Box::pin(async move {
            let first = claim(&t.id()?).with_lease(t.unit() / 2).with_hold(t.unit());
            let (claimed, _) = t.timed(t.own(&first)).await?;
            let rest = t.pass_nearly(t.unit()).await;
            t.store.release(&abandon(&first)).await?;
            let state = t.state(&first.id).await?;
            t.within(
                t.unit(),
                claimed,
                same(
                    "before the hold is over",
                    state,
                    Some(RecordState::Abandoned),
                ),
            )?;
            t.pass_until(rest, &first.id, None).await
        })
    }),
    code("time::a_renewed_record_stays_for_another_hold", |t| {
        Box::pin(async move {
            let first = claim(&t.id()?)
                .with_lease(t.unit() / 2)
                .with_hold(t.unit() * 2);
            let (claimed, _) = t.timed(t.own(&first)).await?;
            t.pass(t.unit()).await;
            let renewal = renewal(&first).with_hold(t.unit() * 3);
            let (renewed, answer) = t.timed(t.store.renew(renewal)).await?;
            t.within(
                first.hold,
                claimed,
                same("the renewal", answer, Ownership::Held),
            )?;
            t.pass(t.unit() * 3 / 2).await;
            let state = t.state(&first.id).await?;
            t.within(
                t.unit() * 3,
                renewed,
                same("after the first hold", state, Some(RecordState::Abandoned)),
            )?;
            t.pass_until(t.unit() * 3 / 2, &first.id, None).await
        })
    }),
    code(
        "time::an_outcome_is_kept_for_its_ttl_then_done_then_nothing",
        |t| {
            Box::pin(async move {
                let given = t.given(RecordState::InFlight).await?;
                let ttl = t.unit();
                let remember = t.unit() * 3;
                let (committed, _) = t
                    .timed(
                        t.store
                            .commit(&given.commit.with_ttl(ttl).with_remember(remember)),
                    )
                    .await?;
                let rest = t.pass_nearly(ttl).await;
                let answer = t.store.claim(&claim(&given.id)).await?;
                let verdict = matches_or_broken!(
                    "a claim before the end of the ttl",
                    answer,
                    Claimed::Committed { .. }
                );
                t.within(ttl, committed, verdict)?;
                t.pass(rest).await;
                let answer = t.store.claim(&claim(&given.id)).await?;
                t.within(
                    remember,
                    committed,
                    same(
                        "a claim after the ttl",
                        answer,
                        Claimed::Done { attempt: 1 },
                    ),
                )?;
                t.pass(remember.saturating_sub(ttl)).await;
                let answer = t.store.claim(&claim(&given.id)).await?;
                same(
                    "a claim when nothing is remembered",
                    answer,
                    Claimed::Owned {
                        attempt: 1,
                        from: Origin::Nothing,
                    },
                )
            })
        },
    ),
    code(
        "time::an_outcome_with_nothing_more_to_remember_is_gone_after_its_ttl",
        |t| {
            Box::pin(async move {
                let given = t.given(RecordState::InFlight).await?;
                let commit = given.commit.with_ttl(t.unit()).with_remember(t.unit());
                let (committed, _) = t.timed(t.store.commit(&commit)).await?;
                let state = t.state(&given.id).await?;
                t.within(
                    t.unit(),
                    committed,
                    same("after the commit", state, Some(RecordState::Committed)),
                )?;
                t.pass(t.unit()).await;
                same("after the ttl", t.state(&given.id).await?, None)
            })
        },
    ),
    code(
        "time::no_outcome_is_done_until_nothing_is_remembered",
        |t| {
            Box::pin(async move {
                let given = t.given(RecordState::InFlight).await?;
                let commit = given
                    .commit
                    .with_outcome(None)
                    .with_ttl(t.unit() / 2)
                    .with_remember(t.unit() * 2);
                let (committed, _) = t.timed(t.store.commit(&commit)).await?;
                let rest = t.pass_nearly(commit.remember).await;
                let answer = t.store.claim(&claim(&given.id)).await?;
                t.within(
                    commit.remember,
                    committed,
                    same("a claim before", answer, Claimed::Done { attempt: 1 }),
                )?;
                t.pass_until(rest, &given.id, None).await
            })
        },
    ),
    code("time::a_commit_keeps_the_record_beyond_the_hold", |t| {
        Box::pin(async move {
            let first = claim(&t.id()?).with_lease(t.unit() / 2).with_hold(t.unit());
            let (claimed, _) = t.timed(t.own(&first)).await?;
            let answer = t.store.commit(&commit(&first, 1)).await?;
            t.within(
                first.hold,
                claimed,
                same("the commit", answer, Ownership::Held),
            )?;
            t.pass(t.unit() * 2).await;
            same(
                "after the hold",
                t.state(&first.id).await?,
                Some(RecordState::Committed),
            )
        })
    }),
    code(
        "time::a_commit_of_a_short_ttl_does_not_keep_the_hold",
        |t| {
            Box::pin(async move {
                let given = t.given(RecordState::InFlight).await?;
                let commit = given.commit.with_ttl(t.unit() / 2).with_remember(t.unit());
                t.store.commit(&commit).await?;
                t.pass_until(t.unit(), &given.id, None).await
            })
        },
    ),
    code("time::a_released_record_is_forgotten_after_its_keep", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            let to = ReleaseTo::Released { keep: t.unit() };
            let (released, _) = t
                .timed(t.store.release(&release(&given.claim).with_to(to)))
                .await?;
            let rest = t.pass_nearly(t.unit()).await;
            let state = t.state(&given.id).await?;
            t.within(
                t.unit(),
                released,
                same("before", state, Some(RecordState::Released)),
            )?;
            t.pass(rest).await;
            let answer = t.store.claim(&claim(&given.id)).await?;
            same(
                "a claim after",
                answer,
                Claimed::Owned {
                    attempt: 1,
                    from: Origin::Nothing,
                },
            )
        })
    }),
    code("time::a_released_record_outlives_the_hold", |t| {
        Box::pin(async move {
            let first = claim(&t.id()?).with_lease(t.unit() / 2).with_hold(t.unit());
            let (claimed, _) = t.timed(t.own(&first)).await?;
            let answer = t.store.release(&release(&first)).await?;
            t.within(
                first.hold,
                claimed,
                same("the release", answer, Ownership::Held),
            )?;
            t.pass(t.unit() * 2).await;
            let answer = t.store.claim(&claim(&first.id)).await?;
            same(
                "a claim after the hold",
                answer,
                Claimed::Owned {
                    attempt: 2,
                    from: Origin::Released,
                },
            )
        })
    }),
    code("time::lengths_of_years_are_kept", |t| {
        Box::pin(async move {
            let years = Duration::from_secs(10 * 365 * 24 * 60 * 60);
            let claim = claim(&t.id()?).with_lease(years / 2).with_hold(years);
            let (claimed, _) = t.timed(t.own(&claim)).await?;
            let seen = t.look(&claim.id).await?;
            let found = seen
                .info
                .map(|info| (info.lease_left.unwrap_or_default(), info.expires_in))
                .unwrap_or_default();
            t.counted_down("lease_left", found.0, (years / 2, claimed), seen.at)?;
            t.counted_down(
                "expires_in of a record in flight",
                found.1,
                (years, claimed),
                seen.at,
            )?;
            let (committed, _) = t
                .timed(
                    t.store
                        .commit(&commit(&claim, 1).with_ttl(years).with_remember(years * 2)),
                )
                .await?;
            let seen = t.look(&claim.id).await?;
            let left = seen.info.map(|info| info.expires_in).unwrap_or_default();
            t.counted_down(
                "expires_in of a committed record",
                left,
                (years, committed),
                seen.at,
            )
        })
    }),
];

/// A claim with a lease that the trial lets run out, and when it was made.
async fn short_lease(t: &Bench) -> Result<(Claim, Moment), Failure> {
    let claim = claim(&t.id()?).with_lease(t.unit());
    let (claimed, _) = t.timed(t.own(&claim)).await?;
    Ok((claim, claimed))
}
