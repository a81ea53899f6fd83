//! Records that can be removed, and a fresh start after that.

use idem_core::record::{Claimed, Origin, Ownership, RecordState, Removed};

use super::trials;
use crate::bench::{Bench, Given, LONG, abandon, claim, commit, outcome, print, renewal};
use crate::check::{Verdict, broken, matches_or_broken, same};
use crate::trial::Trial;

pub(super) const TRIALS: &[Trial] = trials!(
    remove,
    [
        nothing_is_nothing,
        in_flight_is_left_with_what_is_left_of_the_lease,
        released_is_removed_and_begins_at_attempt_one,
        abandoned_is_removed_and_begins_at_attempt_one,
        given_up_is_removed,
        committed_is_removed_and_begins_at_attempt_one,
        done_is_removed_and_begins_at_attempt_one,
        a_late_owner_cannot_bring_it_back,
        a_late_owner_changes_nothing_in_the_next_life,
        the_fingerprint_goes_with_it,
        the_outcome_goes_with_it,
        by_another_handle,
    ]
);

async fn nothing_is_nothing(t: &Bench) -> Verdict {
    same("a removal of nothing", t.store.remove(&t.id()?).await?, Removed::Nothing)
}

async fn in_flight_is_left_with_what_is_left_of_the_lease(t: &Bench) -> Verdict {
    let claim = claim(&t.id()?);
    let (claimed, _) = t.timed(t.own(&claim)).await?;
    let before = t.look(&claim.id).await?;
    t.pass(t.unit() / 2).await;
    let (removed, answer) = t.timed(t.store.remove(&claim.id)).await?;
    let Removed::InFlight { lease_left } = answer else {
        return Err(broken(format!("a removal of a record in flight: wanted InFlight, got {answer:?}")));
    };
    t.counted_down("lease_left", lease_left, (LONG, claimed), removed)?;
    t.unchanged("the record then", &claim.id, &before).await?;
    same("the owner's renewal", t.store.renew(renewal(&claim)).await?, Ownership::Held)
}

async fn released_is_removed_and_begins_at_attempt_one(t: &Bench) -> Verdict {
    begins_anew(t, &t.given(RecordState::Released).await?).await
}

async fn abandoned_is_removed_and_begins_at_attempt_one(t: &Bench) -> Verdict {
    begins_anew(t, &t.given(RecordState::Abandoned).await?).await
}

async fn committed_is_removed_and_begins_at_attempt_one(t: &Bench) -> Verdict {
    for given in t.both_committed(None).await? {
        begins_anew(t, &given).await?;
    }
    Ok(())
}

async fn done_is_removed_and_begins_at_attempt_one(t: &Bench) -> Verdict {
    begins_anew(t, &t.given(RecordState::Done).await?).await
}

async fn begins_anew(t: &Bench, given: &Given) -> Verdict {
    same("the removal", t.store.remove(&given.id).await?, Removed::Removed)?;
    same("the state then", t.state(&given.id).await?, None)?;
    same("a second removal", t.store.remove(&given.id).await?, Removed::Nothing)?;
    let answer = t.store.claim(&claim(&given.id)).await?;
    same("a claim then", answer, Claimed::Owned { attempt: 1, from: Origin::Nothing })
}

async fn given_up_is_removed(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    t.store.release(&abandon(&given.claim)).await?;
    same("the removal", t.store.remove(&given.id).await?, Removed::Removed)
}

async fn a_late_owner_cannot_bring_it_back(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    t.store.remove(&given.id).await?;
    same("the late owner's commit", t.store.commit(&given.commit).await?, Ownership::Lost)?;
    same("the late owner's renewal", t.store.renew(renewal(&given.claim)).await?, Ownership::Lost)?;
    same("the late owner's giving up", t.store.release(&abandon(&given.claim)).await?, Ownership::Lost)?;
    same("the state then", t.state(&given.id).await?, None)
}

async fn a_late_owner_changes_nothing_in_the_next_life(t: &Bench) -> Verdict {
    for remember in [LONG, LONG * 2] {
        let late = t.given(RecordState::Abandoned).await?;
        let late_commit = late.commit.with_remember(remember);
        t.store.remove(&late.id).await?;
        let next = claim(&late.id);
        same("the first attempt of the next life", t.own(&next).await?, 1)?;
        let before = t.look(&late.id).await?;
        let answer = t.store.commit(&late_commit).await?;
        same("the late owner's commit while the next owner's body runs", answer, Ownership::Lost)?;
        same("the late owner's renewal", t.store.renew(renewal(&late.claim)).await?, Ownership::Lost)?;
        same("the late owner's giving up", t.store.release(&abandon(&late.claim)).await?, Ownership::Lost)?;
        t.unchanged("the next owner's record", &late.id, &before).await?;

        let commit = commit(&next, 1).with_remember(remember).with_outcome(Some(outcome(b"\"the next life\"")));
        same("the next owner's commit", t.store.commit(&commit).await?, Ownership::Held)?;
        let before = t.look(&late.id).await?;
        same("the late owner's commit then", t.store.commit(&late_commit).await?, Ownership::Lost)?;
        // Of an equal outcome a store may take it for the next owner's commit, sent again.
        let equal = late_commit.with_outcome(commit.outcome.clone());
        let _: Ownership = t.store.commit(&equal).await?;
        t.unchanged("the committed record", &late.id, &before).await?;
        let answer = t.store.claim(&claim(&late.id)).await?;
        matches_or_broken!("a claim then", answer, Claimed::Committed { attempt: 1, outcome } if Some(&outcome) == commit.outcome.as_ref())?;
    }
    Ok(())
}

async fn the_fingerprint_goes_with_it(t: &Bench) -> Verdict {
    for given in t.both_committed(print("one")?).await? {
        t.store.remove(&given.id).await?;
        let answer = t.store.claim(&claim(&given.id).with_fingerprint(print("two")?)).await?;
        matches_or_broken!("a claim with another fingerprint then", answer, Claimed::Owned { attempt: 1, .. })?;
    }
    Ok(())
}

async fn the_outcome_goes_with_it(t: &Bench) -> Verdict {
    for given in t.both_committed(None).await? {
        t.store.remove(&given.id).await?;
        let again = claim(&given.id);
        t.own(&again).await?;
        // Were a part of the outcome left somewhere, a record that has none would find it.
        let without = commit(&again, 1).with_outcome(None);
        same("a commit without an outcome then", t.store.commit(&without).await?, Ownership::Held)?;
        let answer = t.store.claim(&claim(&given.id)).await?;
        same("a claim of what has no outcome", answer, Claimed::Done { attempt: 1 })?;
    }
    Ok(())
}

async fn by_another_handle(t: &Bench) -> Verdict {
    for given in t.both_committed(None).await? {
        same("the removal", t.second().await?.remove(&given.id).await?, Removed::Removed)?;
        same("the state then", t.state(&given.id).await?, None)?;
    }
    Ok(())
}
