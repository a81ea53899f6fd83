//! The right to release a key, and the data that stays.

use std::time::Duration;

use idem_core::record::{Claimed, Origin, Owner, Ownership, RecordState, Release, ReleaseTo};

use super::trials;
use crate::bench::{Bench, Given, LONG, abandon, claim, release, renewal, undo};
use crate::check::{Verdict, broken, same};
use crate::trial::Trial;

pub(super) const TRIALS: &[Trial] = trials!(
    release,
    [
        by_the_owner_is_held_and_frees_the_key,
        by_the_owner_to_abandoned_is_held_and_frees_the_key,
        by_a_stranger_is_lost,
        by_a_stranger_to_abandoned_is_lost,
        by_an_owner_whose_lease_ran_out_is_held,
        of_nothing_is_lost_and_leaves_nothing,
        of_a_released_record_is_lost,
        of_a_committed_record_is_lost,
        of_a_done_record_is_lost,
        keeps_the_attempt_for_as_long_as_said,
        again_and_again_keeps_counting,
        by_an_earlier_owner_after_the_next_claim_is_lost,
        to_abandoned_keeps_attempt_fingerprint_and_expiry,
        to_abandoned_is_not_claimed_where_nothing_is_taken_over,
        to_abandoned_is_not_revived_by_a_renewal,
        to_undone_of_a_claim_of_nothing_is_nothing,
        to_undone_of_a_claim_of_a_released_key_is_released_as_before,
        to_undone_of_a_take_over_is_abandoned_as_before,
        to_undone_of_a_take_over_that_was_renewed_is_abandoned_as_before,
        to_undone_sent_again_undoes_nothing_more,
        to_undone_after_the_lease_ran_out_is_held,
        to_undone_by_a_stranger_is_lost,
        by_another_handle_is_held,
    ]
);

async fn by_the_owner_is_held_and_frees_the_key(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    same("the owner's release", t.store.release(&release(&given.claim)).await?, Ownership::Held)?;
    same("the state then", t.state(&given.id).await?, Some(RecordState::Released))?;
    let answer = t.store.claim(&claim(&given.id)).await?;
    same("a claim then", answer, Claimed::Owned { attempt: 2, from: Origin::Released })
}

async fn by_the_owner_to_abandoned_is_held_and_frees_the_key(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    same("the owner's giving up", t.store.release(&abandon(&given.claim)).await?, Ownership::Held)?;
    same("the state then", t.state(&given.id).await?, Some(RecordState::Abandoned))?;
    let answer = t.store.claim(&claim(&given.id)).await?;
    same("a claim then", answer, Claimed::Owned { attempt: 2, from: Origin::Abandoned })
}

async fn by_a_stranger_is_lost(t: &Bench) -> Verdict {
    strangers(t, ReleaseTo::Released { keep: LONG }).await
}

async fn by_a_stranger_to_abandoned_is_lost(t: &Bench) -> Verdict {
    strangers(t, ReleaseTo::Abandoned).await
}

async fn strangers(t: &Bench, to: ReleaseTo) -> Verdict {
    for state in [RecordState::InFlight, RecordState::Abandoned] {
        let given = t.given(state).await?;
        let before = t.look(&given.id).await?;
        let stranger = Release::new(given.id.clone(), Owner::generate(), to);
        same("a stranger's release", t.store.release(&stranger).await?, Ownership::Lost)?;
        t.unchanged(&format!("a record that is {state:?} then"), &given.id, &before).await?;
    }
    Ok(())
}

async fn by_an_owner_whose_lease_ran_out_is_held(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    same("a release before any take-over", t.store.release(&release(&given.claim)).await?, Ownership::Held)?;
    let answer = t.store.claim(&claim(&given.id)).await?;
    same("a claim then", answer, Claimed::Owned { attempt: 2, from: Origin::Released })
}

async fn of_nothing_is_lost_and_leaves_nothing(t: &Bench) -> Verdict {
    let claim = claim(&t.id()?);
    for release in [release(&claim), abandon(&claim), undo(&claim)] {
        same("a release of nothing", t.store.release(&release).await?, Ownership::Lost)?;
    }
    same("the state then", t.state(&claim.id).await?, None)
}

async fn of_a_released_record_is_lost(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Released).await?;
    lost(t, &given).await
}

async fn of_a_committed_record_is_lost(t: &Bench) -> Verdict {
    for given in t.both_committed(None).await? {
        lost(t, &given).await?;
    }
    Ok(())
}

async fn of_a_done_record_is_lost(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Done).await?;
    lost(t, &given).await
}

async fn lost(t: &Bench, given: &Given) -> Verdict {
    let before = t.look(&given.id).await?;
    t.pass(t.unit() / 4).await;
    for release in [release(&given.claim), abandon(&given.claim), undo(&given.claim)] {
        same("the release", t.store.release(&release).await?, Ownership::Lost)?;
    }
    t.unchanged("the record then", &given.id, &before).await
}

async fn keeps_the_attempt_for_as_long_as_said(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    let to = ReleaseTo::Released { keep: LONG * 7 };
    let (released, _) = t.timed(t.store.release(&release(&given.claim).with_to(to))).await?;
    let seen = t.look(&given.id).await?;
    let info = seen.info.ok_or_else(|| broken("a released record is gone at once"))?;
    same("the record then", (info.state, info.attempt), (RecordState::Released, 1))?;
    t.counted_down("the time until it is forgotten", info.expires_in, (LONG * 7, released), seen.at)
}

async fn again_and_again_keeps_counting(t: &Bench) -> Verdict {
    let id = t.id()?;
    for attempt in 1..=5 {
        let claim = claim(&id);
        same("the attempt", t.own(&claim).await?, attempt)?;
        t.store.release(&release(&claim)).await?;
        let kept = t.store.inspect(&id).await?.map(|info| (info.state, info.attempt));
        same("the record then", kept, Some((RecordState::Released, attempt)))?;
    }
    Ok(())
}

async fn by_an_earlier_owner_after_the_next_claim_is_lost(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Released).await?;
    t.own(&claim(&given.id)).await?;
    lost(t, &given).await
}

async fn to_abandoned_keeps_attempt_fingerprint_and_expiry(t: &Bench) -> Verdict {
    let claim = claim(&t.id()?).with_fingerprint(crate::bench::print("one")?).with_hold(LONG * 7);
    let (claimed, _) = t.timed(t.own(&claim)).await?;
    t.pass(t.unit() / 2).await;
    t.store.release(&abandon(&claim)).await?;
    let seen = t.look(&claim.id).await?;
    let info = seen.info.ok_or_else(|| broken("a record that was given up is gone"))?;
    let found = (info.state, info.attempt, info.fingerprint, info.lease_left);
    same("the record then", found, (RecordState::Abandoned, 1, claim.fingerprint, None))?;
    t.counted_down("its expiry", info.expires_in, (LONG * 7, claimed), seen.at)
}

async fn to_abandoned_is_not_claimed_where_nothing_is_taken_over(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    t.store.release(&abandon(&given.claim)).await?;
    let answer = t.store.claim(&claim(&given.id).with_take_over(false)).await?;
    same("a claim that does not take over", answer, Claimed::Abandoned { attempt: 1 })
}

/// A renewal that was under way while the owner gave up does not bring its lease back: the lease's
/// length is zero now.
async fn to_abandoned_is_not_revived_by_a_renewal(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    t.store.release(&abandon(&given.claim)).await?;
    same("a renewal of it", t.store.renew(renewal(&given.claim)).await?, Ownership::Held)?;
    t.pass(Duration::from_millis(1)).await;
    same("the state then", t.state(&given.id).await?, Some(RecordState::Abandoned))
}

async fn to_undone_of_a_claim_of_nothing_is_nothing(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    same("undoing a claim of nothing", t.store.release(&undo(&given.claim)).await?, Ownership::Held)?;
    same("the state then", t.state(&given.id).await?, None)?;
    let answer = t.store.claim(&claim(&given.id)).await?;
    same("a claim then", answer, Claimed::Owned { attempt: 1, from: Origin::Nothing })
}

async fn to_undone_of_a_claim_of_a_released_key_is_released_as_before(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Released).await?;
    let second = claim(&given.id);
    t.own(&second).await?;
    let undo = undo(&second).with_to(ReleaseTo::Undone { keep: LONG * 7 });
    let (undone, answer) = t.timed(t.store.release(&undo)).await?;
    same("undoing a claim of a released key", answer, Ownership::Held)?;
    let seen = t.look(&given.id).await?;
    let info = seen.info.ok_or_else(|| broken("the released record that the claim found is gone"))?;
    same("the record then", (info.state, info.attempt), (RecordState::Released, 1))?;
    t.counted_down("the time until it is forgotten", info.expires_in, (LONG * 7, undone), seen.at)?;
    let answer = t.store.claim(&claim(&given.id)).await?;
    same("a claim then", answer, Claimed::Owned { attempt: 2, from: Origin::Released })
}

async fn to_undone_of_a_take_over_is_abandoned_as_before(t: &Bench) -> Verdict {
    undone_take_over(t, false).await
}

async fn to_undone_of_a_take_over_that_was_renewed_is_abandoned_as_before(t: &Bench) -> Verdict {
    undone_take_over(t, true).await
}

async fn undone_take_over(t: &Bench, renewed: bool) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let second = claim(&given.id).with_hold(LONG * 7);
    t.own(&second).await?;
    if renewed {
        t.store.renew(renewal(&second)).await?;
    }
    let (undone, answer) = t.timed(t.store.release(&undo(&second))).await?;
    same("undoing a take-over", answer, Ownership::Held)?;
    let seen = t.look(&given.id).await?;
    let info = seen.info.ok_or_else(|| broken("the abandoned record that the claim found is gone"))?;
    same("the record then", (info.state, info.attempt), (RecordState::Abandoned, 1))?;
    t.counted_down("its expiry", info.expires_in, (given.claim.hold, undone), seen.at)?;
    let answer = t.store.claim(&claim(&given.id).with_take_over(false)).await?;
    same("a claim that does not take over", answer, Claimed::Abandoned { attempt: 1 })?;
    let answer = t.store.claim(&claim(&given.id)).await?;
    same("a claim that does", answer, Claimed::Owned { attempt: 2, from: Origin::Abandoned })
}

/// A reply that got lost makes the owner send it again; the attempt goes back once all the same.
async fn to_undone_sent_again_undoes_nothing_more(t: &Bench) -> Verdict {
    for state in [RecordState::Released, RecordState::Abandoned] {
        let given = t.given(state).await?;
        let second = claim(&given.id);
        t.own(&second).await?;
        t.store.release(&undo(&second)).await?;
        let before = t.look(&given.id).await?;
        t.store.release(&undo(&second)).await?;
        t.unchanged(&format!("a claim of what was {state:?}, undone twice"), &given.id, &before).await?;
    }
    Ok(())
}

async fn to_undone_after_the_lease_ran_out_is_held(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    same("undoing a claim before any take-over", t.store.release(&undo(&given.claim)).await?, Ownership::Held)?;
    same("the state then", t.state(&given.id).await?, None)
}

async fn to_undone_by_a_stranger_is_lost(t: &Bench) -> Verdict {
    strangers(t, ReleaseTo::Undone { keep: LONG }).await
}

async fn by_another_handle_is_held(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    let second = t.second().await?;
    same("the owner's release", second.release(&release(&given.claim)).await?, Ownership::Held)?;
    same("the state then", t.state(&given.id).await?, Some(RecordState::Released))
}
