//! The right to record an outcome, and the effect of a repeated commit.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use idem_core::record::{AsClaimed, Claimed, Origin, Owner, Ownership, RecordState};

use super::trials;
use crate::bench::{Bench, LONG, abandon, claim, commit, outcome};
use crate::check::{Verdict, broken, matches_or_broken, same};
use crate::trial::Trial;

pub(super) const TRIALS: &[Trial] = trials!(
    commit,
    [
        by_the_owner_is_held,
        by_a_stranger_is_lost,
        by_the_owner_of_another_key_is_lost,
        by_an_owner_whose_lease_ran_out_is_held,
        by_an_owner_who_gave_up_to_abandoned_is_held,
        by_an_owner_who_knows_its_record_badly_is_held,
        of_nothing_is_lost_and_leaves_nothing,
        of_a_released_record_is_lost,
        of_a_committed_record_with_another_outcome_is_lost,
        of_a_done_record_by_another_attempt_is_lost,
        without_an_outcome_of_a_committed_record_is_lost,
        sent_again_is_held,
        sent_again_without_an_outcome_is_held,
        sent_again_after_its_ttl_is_held,
        sent_again_does_not_extend_the_ttl,
        sent_again_by_another_handle_is_held,
        a_dropped_one_can_be_sent_again,
        of_a_later_attempt_says_which,
        sets_ttl_and_remember_in_place_of_the_hold,
        without_an_outcome_is_done_for_as_long_as_remembered,
        after_a_renewal_is_held,
    ]
);

async fn by_the_owner_is_held(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    same("the owner's commit", t.store.commit(&given.commit).await?, Ownership::Held)?;
    same("the state then", t.state(&given.id).await?, Some(RecordState::Committed))
}

async fn by_a_stranger_is_lost(t: &Bench) -> Verdict {
    for state in [RecordState::InFlight, RecordState::Abandoned] {
        let given = t.given(state).await?;
        let before = t.look(&given.id).await?;
        let stranger = given.commit.clone().with_owner(Owner::generate());
        same("a stranger's commit", t.store.commit(&stranger).await?, Ownership::Lost)?;
        let remembered = stranger.clone().with_remember(stranger.ttl);
        same("a stranger's commit for its ttl alone", t.store.commit(&remembered).await?, Ownership::Lost)?;
        let without = stranger.with_outcome(None);
        same("a stranger's commit without an outcome", t.store.commit(&without).await?, Ownership::Lost)?;
        t.unchanged(&format!("a record that is {state:?} then"), &given.id, &before).await?;
    }
    Ok(())
}

async fn by_the_owner_of_another_key_is_lost(t: &Bench) -> Verdict {
    let (one, other) = (t.given(RecordState::InFlight).await?, t.given(RecordState::InFlight).await?);
    let crossed = one.commit.with_owner(other.claim.owner);
    same("a commit by the owner of another key", t.store.commit(&crossed).await?, Ownership::Lost)
}

async fn by_an_owner_whose_lease_ran_out_is_held(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    same("a commit before any take-over", t.store.commit(&given.commit).await?, Ownership::Held)?;
    let answer = t.store.claim(&claim(&given.id)).await?;
    matches_or_broken!("a claim then", answer, Claimed::Committed { attempt: 1, .. })
}

async fn by_an_owner_who_gave_up_to_abandoned_is_held(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    t.store.release(&abandon(&given.claim)).await?;
    same("the owner's commit", t.store.commit(&given.commit).await?, Ownership::Held)
}

async fn by_an_owner_who_knows_its_record_badly_is_held(t: &Bench) -> Verdict {
    let wrong = AsClaimed::new(Origin::Released, LONG * 3, LONG * 4);
    for as_claimed in [None, Some(wrong)] {
        for remember in [LONG, LONG * 2] {
            let given = t.given(RecordState::InFlight).await?;
            let commit = given.commit.with_remember(remember).with_as_claimed(as_claimed);
            same(&format!("a commit that says {as_claimed:?}"), t.store.commit(&commit).await?, Ownership::Held)?;
            same("the state then", t.state(&given.id).await?, Some(RecordState::Committed))?;
        }
    }
    Ok(())
}

async fn of_nothing_is_lost_and_leaves_nothing(t: &Bench) -> Verdict {
    let commit = commit(&claim(&t.id()?), 1);
    same("a commit of nothing", t.store.commit(&commit).await?, Ownership::Lost)?;
    let without = commit.with_outcome(None);
    same("a commit of nothing without an outcome", t.store.commit(&without).await?, Ownership::Lost)?;
    same("the state then", t.state(&without.id).await?, None)
}

async fn of_a_released_record_is_lost(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Released).await?;
    let before = t.look(&given.id).await?;
    same("a commit after one's own release", t.store.commit(&given.commit).await?, Ownership::Lost)?;
    t.unchanged("the released record then", &given.id, &before).await
}

async fn of_a_committed_record_with_another_outcome_is_lost(t: &Bench) -> Verdict {
    for given in t.both_committed(None).await? {
        let other = given.commit.clone().with_outcome(Some(outcome(b"\"other\"")));
        same("another commit by the same owner", t.store.commit(&other).await?, Ownership::Lost)?;
        let answer = t.store.claim(&claim(&given.id)).await?;
        let first = given.commit.outcome.ok_or_else(|| broken("no outcome: a mistake in the suite"))?;
        same("a claim then", answer, Claimed::Committed { attempt: 1, outcome: first })?;
    }
    Ok(())
}

async fn of_a_done_record_by_another_attempt_is_lost(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Done).await?;
    let before = t.look(&given.id).await?;
    for outcome in [Some(outcome(b"\"other\"")), None] {
        let other = given.commit.clone().with_outcome(outcome).with_owner(Owner::generate()).with_attempt(2);
        same("a commit by another attempt", t.store.commit(&other).await?, Ownership::Lost)?;
    }
    t.unchanged("the record then", &given.id, &before).await
}

async fn without_an_outcome_of_a_committed_record_is_lost(t: &Bench) -> Verdict {
    for given in t.both_committed(None).await? {
        let before = t.look(&given.id).await?;
        let without = given.commit.clone().with_outcome(None);
        same("a commit without an outcome", t.store.commit(&without).await?, Ownership::Lost)?;
        t.unchanged("the record then", &given.id, &before).await?;
    }
    Ok(())
}

async fn sent_again_is_held(t: &Bench) -> Verdict {
    for given in t.both_committed(None).await? {
        same("the same commit again", t.store.commit(&given.commit).await?, Ownership::Held)?;
    }
    Ok(())
}

async fn sent_again_without_an_outcome_is_held(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Done).await?;
    same("the same commit again", t.store.commit(&given.commit).await?, Ownership::Held)
}

async fn sent_again_after_its_ttl_is_held(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    let commit = given.commit.with_ttl(t.unit());
    t.store.commit(&commit).await?;
    t.pass_until(t.unit(), &given.id, Some(RecordState::Done)).await?;
    let before = t.look(&given.id).await?;
    same("the same commit when its outcome has expired", t.store.commit(&commit).await?, Ownership::Held)?;
    t.unchanged("the record then", &given.id, &before).await
}

async fn sent_again_does_not_extend_the_ttl(t: &Bench) -> Verdict {
    let [one, two] = t.both_committed(None).await?;
    for given in [one, two, t.given(RecordState::Done).await?] {
        let before = t.look(&given.id).await?;
        t.pass(t.unit() / 2).await;
        t.store.commit(&given.commit).await?;
        t.unchanged("the record after the same commit again", &given.id, &before).await?;
    }
    Ok(())
}

async fn sent_again_by_another_handle_is_held(t: &Bench) -> Verdict {
    for given in t.both_committed(None).await? {
        same("the same commit by another handle", t.second().await?.commit(&given.commit).await?, Ownership::Held)?;
    }
    Ok(())
}

async fn a_dropped_one_can_be_sent_again(t: &Bench) -> Verdict {
    for polls in 0..4 {
        let given = t.given(RecordState::InFlight).await?;
        {
            let mut dropped = pin!(t.store.commit(&given.commit));
            for _ in 0..polls {
                if poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context))).await.is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        let what = format!("a commit that was dropped after {polls} polls and sent again");
        same(&what, t.store.commit(&given.commit).await?, Ownership::Held)?;
    }
    Ok(())
}

async fn of_a_later_attempt_says_which(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Released).await?;
    let second = claim(&given.id);
    t.own(&second).await?;
    t.store.commit(&commit(&second, 2)).await?;
    let answer = t.store.claim(&claim(&given.id)).await?;
    matches_or_broken!("a claim then", answer, Claimed::Committed { attempt: 2, .. })
}

async fn sets_ttl_and_remember_in_place_of_the_hold(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    t.pass(t.unit() / 4).await;
    let (committed, _) = t.timed(t.store.commit(&given.commit.with_ttl(LONG * 5).with_remember(LONG * 9))).await?;
    let seen = t.look(&given.id).await?;
    let left = seen.info.map_or(Duration::ZERO, |info| info.expires_in);
    t.counted_down("the time until the committed record is done", left, (LONG * 5, committed), seen.at)
}

async fn without_an_outcome_is_done_for_as_long_as_remembered(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    t.pass(t.unit() / 4).await;
    let commit = given.commit.with_outcome(None).with_ttl(LONG).with_remember(LONG * 9);
    let (committed, _) = t.timed(t.store.commit(&commit)).await?;
    let seen = t.look(&given.id).await?;
    let found = seen.info.map(|info| (info.state, info.expires_in));
    same("the state", found.map(|(state, _)| state), Some(RecordState::Done))?;
    let left = found.map_or(Duration::ZERO, |(_, left)| left);
    t.counted_down("the time until it is forgotten", left, (LONG * 9, committed), seen.at)
}

async fn after_a_renewal_is_held(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    t.store.renew(crate::bench::renewal(&given.claim)).await?;
    same("the owner's commit", t.store.commit(&given.commit).await?, Ownership::Held)
}
