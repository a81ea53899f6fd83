//! Claims that take over only what has been abandoned for long.

use std::time::Duration;

use idem_core::record::{Claim, Claimed, Origin, Ownership, RecordId, RecordState};

use super::trials;
use crate::bench::{Bench, LONG, abandon, claim, print, renewal, undo};
use crate::check::{Verdict, matches_or_broken, same};
use crate::trial::Trial;

pub(super) const TRIALS: &[Trial] = trials!(
    hold,
    [
        of_what_was_abandoned_for_less_leaves_it_abandoned,
        of_what_was_abandoned_for_longer_is_owned_as_the_next_attempt,
        of_what_was_given_up_is_counted_from_the_claim,
        is_counted_from_the_last_renewal,
        is_counted_again_after_a_claim_that_was_undone,
        of_the_living_is_in_flight,
        of_another_fingerprint_mismatches,
        of_the_exhausted_leaves_it_abandoned,
        of_what_was_taken_over_can_be_undone,
    ]
);

const MOMENT: Duration = Duration::from_millis(1);

/// A claim that takes over what nothing was heard of for so long.
fn after(id: &RecordId, silent: Duration) -> Claim {
    claim(id).with_take_over(false).with_take_over_after(Some(silent))
}

async fn of_what_was_abandoned_for_less_leaves_it_abandoned(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let before = t.look(&given.id).await?;
    let answer = t.store.claim(&after(&given.id, LONG)).await?;
    same("a claim before the time", answer, Claimed::Abandoned { attempt: 1 })?;
    t.unchanged("the record then", &given.id, &before).await
}

async fn of_what_was_abandoned_for_longer_is_owned_as_the_next_attempt(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    t.pass(t.unit()).await;
    let next = after(&given.id, t.unit());
    let answer = t.store.claim(&next).await?;
    same("a claim after the time", answer, Claimed::Owned { attempt: 2, from: Origin::Abandoned })?;
    let answer = t.store.claim(&next).await?;
    same("the same sent again", answer, Claimed::Owned { attempt: 2, from: Origin::Abandoned })?;
    same("the state then", t.state(&given.id).await?, Some(RecordState::InFlight))
}

async fn of_what_was_given_up_is_counted_from_the_claim(t: &Bench) -> Verdict {
    let first = claim(&t.id()?);
    let (claimed, _) = t.timed(t.own(&first)).await?;
    t.store.release(&abandon(&first)).await?;
    let answer = t.store.claim(&after(&first.id, t.unit())).await?;
    t.within(t.unit(), claimed, same("a claim at once", answer, Claimed::Abandoned { attempt: 1 }))?;
    t.pass(t.unit()).await;
    let answer = t.store.claim(&after(&first.id, t.unit())).await?;
    same("a claim after the time", answer, Claimed::Owned { attempt: 2, from: Origin::Abandoned })
}

async fn is_counted_from_the_last_renewal(t: &Bench) -> Verdict {
    let first = claim(&t.id()?).with_lease(MOMENT);
    t.own(&first).await?;
    t.pass(t.unit()).await;
    let (renewed, answer) = t.timed(t.store.renew(renewal(&first))).await?;
    same("the renewal", answer, Ownership::Held)?;
    t.pass(t.unit() / 4).await;
    let answer = t.store.claim(&after(&first.id, t.unit())).await?;
    t.within(t.unit(), renewed, same("a claim soon after", answer, Claimed::Abandoned { attempt: 1 }))?;
    t.pass(t.unit()).await;
    let answer = t.store.claim(&after(&first.id, t.unit())).await?;
    same("a claim after the time", answer, Claimed::Owned { attempt: 2, from: Origin::Abandoned })
}

async fn is_counted_again_after_a_claim_that_was_undone(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    t.pass(t.unit()).await;
    let second = claim(&given.id);
    t.own(&second).await?;
    let (undone, _) = t.timed(t.store.release(&undo(&second))).await?;
    let answer = t.store.claim(&after(&given.id, t.unit())).await?;
    t.within(t.unit(), undone, same("a claim soon after", answer, Claimed::Abandoned { attempt: 1 }))
}

async fn of_the_living_is_in_flight(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    let answer = t.store.claim(&after(&given.id, Duration::ZERO)).await?;
    matches_or_broken!("a claim of what is alive", answer, Claimed::InFlight { attempt: 1, .. })
}

async fn of_another_fingerprint_mismatches(t: &Bench) -> Verdict {
    let given = t.given_with(RecordState::Abandoned, print("one")?).await?;
    let claim = after(&given.id, Duration::ZERO).with_fingerprint(print("two")?);
    same("a claim with another fingerprint", t.store.claim(&claim).await?, Claimed::Mismatch)
}

async fn of_the_exhausted_leaves_it_abandoned(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let claim = after(&given.id, Duration::ZERO).with_max_attempts(Some(1));
    same("a claim that allows no more", t.store.claim(&claim).await?, Claimed::Abandoned { attempt: 1 })
}

async fn of_what_was_taken_over_can_be_undone(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let second = after(&given.id, Duration::ZERO);
    same("the attempt", t.own(&second).await?, 2)?;
    same("undoing it", t.store.release(&undo(&second)).await?, Ownership::Held)?;
    same("the commit of the first", t.store.commit(&given.commit).await?, Ownership::Held)
}
