//! Another payload never gets this answer: where fingerprints are compared, where not, and that it
//! comes first.

use idem_core::record::{Claimed, Origin, RecordState};

use super::trials;
use crate::bench::{Bench, claim, commit, print};
use crate::check::{Verdict, holds, matches_or_broken, same};
use crate::trial::Trial;

pub(super) const TRIALS: &[Trial] = trials!(
    fingerprint,
    [
        another_mismatches_in_flight_before_any_conflict,
        another_mismatches_abandoned_and_does_not_take_over,
        another_mismatches_committed_and_gets_no_outcome,
        another_mismatches_done,
        another_mismatches_before_attempts_are_exhausted,
        another_mismatches_where_nothing_is_taken_over,
        a_mismatch_changes_nothing,
        the_same_matches_in_every_state,
        none_on_the_call_matches_in_every_state,
        none_on_the_record_matches_in_every_state,
        a_released_record_has_none,
        a_take_over_brings_its_own,
        is_kept_through_commit_and_ttl,
    ]
);

/// The states whose records have a fingerprint.
const WITH_ONE: [RecordState; 4] =
    [RecordState::InFlight, RecordState::Abandoned, RecordState::Committed, RecordState::Done];

async fn another_mismatches_in_flight_before_any_conflict(t: &Bench) -> Verdict {
    another_mismatches(t, RecordState::InFlight).await
}

async fn another_mismatches_abandoned_and_does_not_take_over(t: &Bench) -> Verdict {
    another_mismatches(t, RecordState::Abandoned).await
}

async fn another_mismatches_committed_and_gets_no_outcome(t: &Bench) -> Verdict {
    for given in t.both_committed(print("one")?).await? {
        let answer = t.store.claim(&claim(&given.id).with_fingerprint(print("two")?)).await?;
        same("a claim with another fingerprint", answer, Claimed::Mismatch)?;
    }
    Ok(())
}

async fn another_mismatches_done(t: &Bench) -> Verdict {
    another_mismatches(t, RecordState::Done).await
}

async fn another_mismatches(t: &Bench, state: RecordState) -> Verdict {
    let given = t.given_with(state, print("one")?).await?;
    let answer = t.store.claim(&claim(&given.id).with_fingerprint(print("two")?)).await?;
    same("a claim with another fingerprint", answer, Claimed::Mismatch)
}

async fn another_mismatches_before_attempts_are_exhausted(t: &Bench) -> Verdict {
    let given = t.given_with(RecordState::Abandoned, print("one")?).await?;
    let other = claim(&given.id).with_fingerprint(print("two")?).with_max_attempts(Some(1));
    same("a claim with another fingerprint, which is the last", t.store.claim(&other).await?, Claimed::Mismatch)
}

async fn another_mismatches_where_nothing_is_taken_over(t: &Bench) -> Verdict {
    let given = t.given_with(RecordState::Abandoned, print("one")?).await?;
    let other = claim(&given.id).with_fingerprint(print("two")?).with_take_over(false);
    same("a claim with another fingerprint, not to take over", t.store.claim(&other).await?, Claimed::Mismatch)
}

async fn a_mismatch_changes_nothing(t: &Bench) -> Verdict {
    for state in WITH_ONE {
        let given = t.given_with(state, print("one")?).await?;
        let before = t.look(&given.id).await?;
        t.store.claim(&claim(&given.id).with_fingerprint(print("two")?)).await?;
        t.unchanged(&format!("a record that is {state:?} after a mismatch"), &given.id, &before).await?;
    }
    Ok(())
}

async fn the_same_matches_in_every_state(t: &Bench) -> Verdict {
    none_mismatches(t, Some("one"), Some("one")).await
}

async fn none_on_the_call_matches_in_every_state(t: &Bench) -> Verdict {
    none_mismatches(t, Some("one"), None).await
}

async fn none_on_the_record_matches_in_every_state(t: &Bench) -> Verdict {
    none_mismatches(t, None, Some("two")).await
}

async fn none_mismatches(t: &Bench, record: Option<&str>, call: Option<&str>) -> Verdict {
    let print = |text: Option<&str>| text.map_or(Ok(None), print);
    for state in WITH_ONE {
        let given = t.given_with(state, print(record)?).await?;
        let answer = t.store.claim(&claim(&given.id).with_fingerprint(print(call)?)).await?;
        let right = match state {
            RecordState::InFlight => matches!(answer, Claimed::InFlight { attempt: 1, .. }),
            RecordState::Abandoned => answer == Claimed::Owned { attempt: 2, from: Origin::Abandoned },
            RecordState::Committed => matches!(answer, Claimed::Committed { attempt: 1, .. }),
            _ => answer == Claimed::Done { attempt: 1 },
        };
        holds(&format!("a claim of a record that is {state:?}: wanted no mismatch, got {answer:?}"), right)?;
    }
    Ok(())
}

async fn a_released_record_has_none(t: &Bench) -> Verdict {
    let given = t.given_with(RecordState::Released, print("one")?).await?;
    let info = t.store.inspect(&given.id).await?;
    same("the fingerprint of a released record", info.and_then(|info| info.fingerprint), None)?;
    let second = claim(&given.id).with_fingerprint(print("two")?);
    let answer = t.store.claim(&second).await?;
    same("a claim with another fingerprint", answer, Claimed::Owned { attempt: 2, from: Origin::Released })?;
    let answer = t.store.claim(&claim(&given.id).with_fingerprint(print("one")?)).await?;
    same("a claim with the old one", answer, Claimed::Mismatch)
}

async fn a_take_over_brings_its_own(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    t.own(&claim(&given.id).with_fingerprint(print("one")?)).await?;
    let answer = t.store.claim(&claim(&given.id).with_fingerprint(print("two")?)).await?;
    same("a claim with another fingerprint than the second owner's", answer, Claimed::Mismatch)
}

async fn is_kept_through_commit_and_ttl(t: &Bench) -> Verdict {
    let first = claim(&t.id()?).with_fingerprint(print("one")?);
    t.own(&first).await?;
    let commit = commit(&first, 1).with_ttl(t.unit());
    let (committed, _) = t.timed(t.store.commit(&commit)).await?;
    let info = t.store.inspect(&first.id).await?.map(|info| (info.state, info.fingerprint));
    let wanted = Some((RecordState::Committed, first.fingerprint));
    t.within(t.unit(), committed, same("the committed record", info, wanted))?;
    t.pass_until(t.unit(), &first.id, Some(RecordState::Done)).await?;
    let info = t.store.inspect(&first.id).await?.and_then(|info| info.fingerprint);
    same("the fingerprint of the record that is done", info, first.fingerprint)?;
    let answer = t.store.claim(&claim(&first.id).with_fingerprint(print("two")?)).await?;
    matches_or_broken!("a claim with another fingerprint", answer, Claimed::Mismatch)
}
