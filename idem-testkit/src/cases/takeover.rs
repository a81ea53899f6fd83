//! What is abandoned: who may take it over, as which attempt, and what is left to the late owner.

use std::time::Duration;

use idem_core::record::{Claim, Claimed, Origin, Ownership, RecordState};

use super::trials;
use crate::bench::{Bench, LONG, abandon, claim, commit, release, renewal, undo};
use crate::check::{Verdict, broken, matches_or_broken, same};
use crate::trial::Trial;

pub(super) const TRIALS: &[Trial] = trials!(
    takeover,
    [
        abandoned_is_owned_as_the_next_attempt,
        not_wanted_leaves_it_abandoned,
        is_exhausted_at_max_attempts,
        not_wanted_and_exhausted_is_abandoned,
        is_repeated_with_a_growing_attempt,
        counts_releases_and_crashes_alike,
        ones_own_sent_again_is_recognised,
        has_the_lease_and_hold_of_its_own_claim,
        starts_a_lease_that_is_alive,
        a_late_owner_cannot_commit,
        a_late_owner_cannot_release,
        a_late_owner_cannot_abandon,
        a_late_owner_cannot_renew,
        a_late_owner_is_in_flight_like_anybody,
        a_late_owner_cannot_commit_over_an_outcome,
        the_new_owner_commits,
        of_a_given_up_record_needs_no_waiting,
        of_a_lease_of_zero_needs_no_waiting,
        by_another_handle,
    ]
);

/// A record whose first owner is late, and the claim of the second.
async fn taken_over(t: &Bench) -> Result<(Claim, Claim), crate::check::Failure> {
    let first = t.given(RecordState::Abandoned).await?.claim;
    let second = claim(&first.id);
    same("the attempt of the take-over", t.own(&second).await?, 2)?;
    Ok((first, second))
}

async fn abandoned_is_owned_as_the_next_attempt(t: &Bench) -> Verdict {
    let first = claim(&t.id()?).with_lease(t.unit());
    t.own(&first).await?;
    t.pass_until(t.unit(), &first.id, Some(RecordState::Abandoned)).await?;
    let answer = t.store.claim(&claim(&first.id)).await?;
    same("a claim of an abandoned key", answer, Claimed::Owned { attempt: 2, from: Origin::Abandoned })?;
    let info = t.store.inspect(&first.id).await?.map(|info| (info.state, info.attempt));
    same("the record then", info, Some((RecordState::InFlight, 2)))
}

async fn not_wanted_leaves_it_abandoned(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let before = t.look(&given.id).await?;
    let answer = t.store.claim(&claim(&given.id).with_take_over(false)).await?;
    same("a claim that does not take over", answer, Claimed::Abandoned { attempt: 1 })?;
    t.unchanged("the record then", &given.id, &before).await
}

async fn is_exhausted_at_max_attempts(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let before = t.look(&given.id).await?;
    let answer = t.store.claim(&claim(&given.id).with_max_attempts(Some(1))).await?;
    same("a claim after the last attempt", answer, Claimed::Exhausted { attempts: 1 })?;
    t.unchanged("the record then", &given.id, &before).await?;
    let answer = t.store.claim(&claim(&given.id).with_max_attempts(Some(2))).await?;
    same("a claim that allows more", answer, Claimed::Owned { attempt: 2, from: Origin::Abandoned })
}

async fn not_wanted_and_exhausted_is_abandoned(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let answer = t.store.claim(&claim(&given.id).with_take_over(false).with_max_attempts(Some(1))).await?;
    same("a claim that would not take over anyway", answer, Claimed::Abandoned { attempt: 1 })
}

async fn is_repeated_with_a_growing_attempt(t: &Bench) -> Verdict {
    let id = t.id()?;
    for attempt in 1..=4 {
        let claim = claim(&id).with_lease(Duration::from_millis(1));
        same("the attempt", t.own(&claim).await?, attempt)?;
        t.pass_until(claim.lease, &id, Some(RecordState::Abandoned)).await?;
    }
    Ok(())
}

async fn counts_releases_and_crashes_alike(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    for (attempt, to) in [(2, release as fn(&Claim) -> _), (3, abandon), (4, release), (5, abandon)] {
        let claim = claim(&given.id);
        same("the attempt", t.own(&claim).await?, attempt)?;
        same("giving it up", t.store.release(&to(&claim)).await?, Ownership::Held)?;
    }
    Ok(())
}

async fn ones_own_sent_again_is_recognised(t: &Bench) -> Verdict {
    let (_, second) = taken_over(t).await?;
    let answer = t.store.claim(&second).await?;
    same("the same claim again", answer, Claimed::Owned { attempt: 2, from: Origin::Abandoned })
}

async fn has_the_lease_and_hold_of_its_own_claim(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let second = claim(&given.id).with_lease(LONG * 3).with_hold(LONG * 7);
    let (claimed, _) = t.timed(t.own(&second)).await?;
    let seen = t.look(&given.id).await?;
    let info = seen.info.ok_or_else(|| broken("the record is gone after a take-over"))?;
    let left = info.lease_left.ok_or_else(|| broken(format!("no lease after a take-over: {info:?}")))?;
    t.counted_down("lease_left", left, (second.lease, claimed), seen.at)?;
    t.counted_down("expires_in", info.expires_in, (second.hold, claimed), seen.at)
}

async fn starts_a_lease_that_is_alive(t: &Bench) -> Verdict {
    let (first, _) = taken_over(t).await?;
    let answer = t.store.claim(&claim(&first.id)).await?;
    matches_or_broken!("a third claim", answer, Claimed::InFlight { attempt: 2, .. })
}

async fn a_late_owner_cannot_commit(t: &Bench) -> Verdict {
    let (first, second) = taken_over(t).await?;
    let before = t.look(&first.id).await?;
    same("the late owner's commit", t.store.commit(&commit(&first, 1)).await?, Ownership::Lost)?;
    // Whatever attempt it says it is: the owner counts.
    same("the same as attempt 2", t.store.commit(&commit(&first, 2)).await?, Ownership::Lost)?;
    t.unchanged("the record then", &first.id, &before).await?;
    same("the owner's commit", t.store.commit(&commit(&second, 2)).await?, Ownership::Held)
}

async fn a_late_owner_cannot_release(t: &Bench) -> Verdict {
    let (first, _) = taken_over(t).await?;
    let before = t.look(&first.id).await?;
    same("the late owner's release", t.store.release(&release(&first)).await?, Ownership::Lost)?;
    t.unchanged("the record then", &first.id, &before).await
}

async fn a_late_owner_cannot_abandon(t: &Bench) -> Verdict {
    let (first, _) = taken_over(t).await?;
    let before = t.look(&first.id).await?;
    same("the late owner's giving up", t.store.release(&abandon(&first)).await?, Ownership::Lost)?;
    same("the late owner's undoing", t.store.release(&undo(&first)).await?, Ownership::Lost)?;
    t.unchanged("the record then", &first.id, &before).await
}

async fn a_late_owner_cannot_renew(t: &Bench) -> Verdict {
    let (first, _) = taken_over(t).await?;
    let before = t.look(&first.id).await?;
    t.pass(t.unit() / 4).await;
    same("the late owner's renewal", t.store.renew(renewal(&first)).await?, Ownership::Lost)?;
    t.unchanged("the record then", &first.id, &before).await
}

async fn a_late_owner_is_in_flight_like_anybody(t: &Bench) -> Verdict {
    let (first, _) = taken_over(t).await?;
    let answer = t.store.claim(&first).await?;
    matches_or_broken!("the late owner's claim", answer, Claimed::InFlight { attempt: 2, .. })
}

async fn a_late_owner_cannot_commit_over_an_outcome(t: &Bench) -> Verdict {
    let (first, second) = taken_over(t).await?;
    let commit_of_second = commit(&second, 2);
    t.store.commit(&commit_of_second).await?;
    same("the late owner's commit", t.store.commit(&commit(&first, 1)).await?, Ownership::Lost)?;
    let without = commit(&first, 1).with_outcome(None);
    same("the same without an outcome", t.store.commit(&without).await?, Ownership::Lost)?;
    let answer = t.store.claim(&claim(&first.id)).await?;
    let right = matches!(&answer, Claimed::Committed { attempt: 2, outcome } if Some(outcome) == commit_of_second.outcome.as_ref());
    crate::check::holds(&format!("the outcome: wanted that of attempt 2, got {answer:?}"), right)
}

async fn the_new_owner_commits(t: &Bench) -> Verdict {
    let (first, second) = taken_over(t).await?;
    same("the commit of attempt 2", t.store.commit(&commit(&second, 2)).await?, Ownership::Held)?;
    let answer = t.store.claim(&claim(&first.id)).await?;
    matches_or_broken!("a claim then", answer, Claimed::Committed { attempt: 2, .. })
}

async fn of_a_given_up_record_needs_no_waiting(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    t.store.release(&abandon(&given.claim)).await?;
    let answer = t.store.claim(&claim(&given.id)).await?;
    same("a claim of a record that was given up", answer, Claimed::Owned { attempt: 2, from: Origin::Abandoned })
}

async fn of_a_lease_of_zero_needs_no_waiting(t: &Bench) -> Verdict {
    let first = claim(&t.id()?).with_lease(Duration::ZERO);
    t.own(&first).await?;
    same("a lease of zero", t.state(&first.id).await?, Some(RecordState::Abandoned))?;
    let answer = t.store.claim(&claim(&first.id)).await?;
    same("a claim of it", answer, Claimed::Owned { attempt: 2, from: Origin::Abandoned })
}

async fn by_another_handle(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let answer = t.second().await?.claim(&claim(&given.id)).await?;
    same("a claim by another handle", answer, Claimed::Owned { attempt: 2, from: Origin::Abandoned })?;
    same("the late owner's commit", t.store.commit(&given.commit).await?, Ownership::Lost)
}
