//! Keys that were given out for one use: what a claim makes of them, and of a key that must have
//! been given out.

use idem_core::record::{Claim, Claimed, Issued, Origin, Ownership, RecordState, Removed};

use super::concurrency::{MANY, together};
use super::issue::{both_claims, expired, owned};
use super::trials;
use crate::bench::{Bench, LONG, abandon, claim, claim_issued, commit, issue, print, release, renewal, undo};
use crate::check::{Verdict, broken, holds, matches_or_broken, same};
use crate::handle::soon;
use crate::trial::Trial;

pub(super) const TRIALS: &[Trial] = trials!(
    issue,
    [
        is_owned_as_attempt_one,
        is_owned_as_attempt_one_where_it_must_be_issued,
        of_many_claims_of_one_that_must_be_issued_one_is_owned,
        claimed_has_the_expiry_of_the_claim,
        claimed_has_the_fingerprint_of_the_claim,
        claimed_is_recognised_when_the_claim_is_sent_again,
        claimed_and_undone_is_issued_with_no_attempt,
        claimed_and_undone_can_be_claimed_again,
        claimed_and_released_is_owned_as_the_next_attempt,
        is_exhausted_where_no_attempt_is_allowed,
        is_owned_where_one_attempt_is_allowed,
        nothing_that_must_be_issued_is_not_issued_and_stays_nothing,
        expired_that_must_be_issued_is_expired_and_left_as_it_is,
        expired_is_owned_by_a_claim_that_does_not_ask,
        in_flight_that_must_be_issued_is_in_flight,
        abandoned_that_must_be_issued_is_taken_over,
        abandoned_that_must_be_issued_is_not_taken_over_where_nothing_is,
        released_that_must_be_issued_is_owned_as_the_next_attempt,
        released_that_must_be_issued_is_exhausted_at_max_attempts,
        committed_that_must_be_issued_gives_the_outcome,
        done_that_must_be_issued_gives_no_outcome,
        another_fingerprint_mismatches_in_every_state_that_must_be_issued,
        is_lost_to_a_strangers_commit,
        is_lost_to_a_strangers_renewal,
        is_lost_to_a_strangers_release,
        is_not_waited_for,
        removed_is_gone_and_not_issued,
    ]
);

async fn is_owned_as_attempt_one(t: &Bench) -> Verdict {
    let issue = t.issued().await?;
    is_owned(t, &claim(&issue.id)).await
}

async fn is_owned_as_attempt_one_where_it_must_be_issued(t: &Bench) -> Verdict {
    let issue = t.issued().await?;
    is_owned(t, &claim_issued(&issue.id)).await
}

async fn is_owned(t: &Bench, first: &Claim) -> Verdict {
    same("a claim of an issued key", t.store.claim(first).await?, owned())?;
    let found = t.store.inspect(&first.id).await?.map(|info| (info.state, info.attempt));
    same("then", found, Some((RecordState::InFlight, 1)))?;
    for other in both_claims(&first.id) {
        let answer = t.store.claim(&other).await?;
        matches_or_broken!("another claim", answer, Claimed::InFlight { attempt: 1, .. })?;
    }
    same("the owner's renewal", t.store.renew(renewal(first)).await?, Ownership::Held)?;
    same("the owner's commit", t.store.commit(&commit(first, 1)).await?, Ownership::Held)?;
    let answer = t.store.claim(&claim_issued(&first.id)).await?;
    matches_or_broken!("a claim after the commit", answer, Claimed::Committed { attempt: 1, .. })
}

async fn of_many_claims_of_one_that_must_be_issued_one_is_owned(t: &Bench) -> Verdict {
    let handles = [t.store.clone(), t.second().await?];
    for _ in 0..10 {
        let issue = t.issued().await?;
        let claims = (0..MANY).zip(handles.iter().cycle()).map(|(_, store)| {
            let (store, claim) = (store.clone(), claim_issued(&issue.id));
            async move { store.claim(&claim).await }
        });
        let mut owners = 0;
        for answer in together(claims.collect::<Vec<_>>()).await? {
            if answer == owned() {
                owners += 1;
            } else {
                matches_or_broken!("one of many claims", answer, Claimed::InFlight { attempt: 1, .. })?;
            }
        }
        same("the number of owners", owners, 1)?;
    }
    Ok(())
}

async fn claimed_has_the_expiry_of_the_claim(t: &Bench) -> Verdict {
    for hold in [LONG * 2, LONG * 11] {
        for must_be_issued in [false, true] {
            let issue = t.issued().await?;
            let claim = claim(&issue.id).with_hold(hold).with_must_be_issued(must_be_issued);
            let (claimed, _) = t.timed(t.own(&claim)).await?;
            let seen = t.look(&issue.id).await?;
            let info = seen.info.ok_or_else(|| broken("what was claimed is gone"))?;
            t.counted_down("expires_in", info.expires_in, (hold, claimed), seen.at)?;
            let left = info.lease_left.unwrap_or_default();
            t.counted_down("lease_left", left, (LONG, claimed), seen.at)?;
        }
    }
    Ok(())
}

async fn claimed_has_the_fingerprint_of_the_claim(t: &Bench) -> Verdict {
    for must_be_issued in [false, true] {
        let issue = t.issued().await?;
        let first = claim(&issue.id).with_fingerprint(print("one")?).with_must_be_issued(must_be_issued);
        same("a claim of an issued key", t.store.claim(&first).await?, owned())?;
        let found = t.store.inspect(&issue.id).await?.and_then(|info| info.fingerprint);
        same("the fingerprint", found, first.fingerprint)?;
        let other = claim_issued(&issue.id).with_fingerprint(print("two")?);
        same("a claim with another fingerprint", t.store.claim(&other).await?, Claimed::Mismatch)?;
    }
    Ok(())
}

async fn claimed_is_recognised_when_the_claim_is_sent_again(t: &Bench) -> Verdict {
    for must_be_issued in [false, true] {
        let issue = t.issued().await?;
        let first = claim(&issue.id).with_must_be_issued(must_be_issued).with_max_attempts(Some(1));
        for _ in 0..3 {
            same("the same claim again", t.store.claim(&first).await?, owned())?;
        }
        // A renewal keeps the origin of the claim.
        t.store.renew(renewal(&first)).await?;
        same("the same claim by another handle", t.second().await?.claim(&first).await?, owned())?;
        same("then a commit", t.store.commit(&commit(&first, 1)).await?, Ownership::Held)?;
    }
    Ok(())
}

async fn claimed_and_undone_is_issued_with_no_attempt(t: &Bench) -> Verdict {
    for must_be_issued in [false, true] {
        let issue = t.issued().await?;
        let first = claim(&issue.id).with_must_be_issued(must_be_issued);
        t.own(&first).await?;
        same("undoing the claim", t.store.release(&undo(&first)).await?, Ownership::Held)?;
        let before = t.look(&issue.id).await?;
        let found = before.info.as_ref().map(|info| (info.state, info.attempt));
        same("the record then", found, Some((RecordState::Issued, 0)))?;
        same("undoing it again", t.store.release(&undo(&first)).await?, Ownership::Lost)?;
        t.unchanged("the record then", &issue.id, &before).await?;
        same("a late commit", t.store.commit(&commit(&first, 1)).await?, Ownership::Lost)?;
    }
    Ok(())
}

async fn claimed_and_undone_can_be_claimed_again(t: &Bench) -> Verdict {
    let issue = t.issued().await?;
    for _ in 0..3 {
        for claim in both_claims(&issue.id) {
            let claim = claim.with_max_attempts(Some(1));
            same("a claim of what was undone", t.store.claim(&claim).await?, owned())?;
            same("undoing it", t.store.release(&undo(&claim)).await?, Ownership::Held)?;
        }
    }
    Ok(())
}

async fn claimed_and_released_is_owned_as_the_next_attempt(t: &Bench) -> Verdict {
    let issue = t.issued().await?;
    let first = claim_issued(&issue.id);
    t.own(&first).await?;
    same("the release", t.store.release(&release(&first)).await?, Ownership::Held)?;
    let answer = t.store.claim(&claim_issued(&issue.id)).await?;
    same("a claim then", answer, Claimed::Owned { attempt: 2, from: Origin::Released })
}

async fn is_exhausted_where_no_attempt_is_allowed(t: &Bench) -> Verdict {
    for must_be_issued in [false, true] {
        let issue = t.issued().await?;
        let before = t.look(&issue.id).await?;
        let none = claim(&issue.id).with_max_attempts(Some(0)).with_must_be_issued(must_be_issued);
        same("a claim of an issued key", t.store.claim(&none).await?, Claimed::Exhausted { attempts: 0 })?;
        t.unchanged("what was issued", &issue.id, &before).await?;
        same("a claim that allows more", t.store.claim(&claim_issued(&issue.id)).await?, owned())?;
    }
    let none = claim_issued(&t.id()?).with_max_attempts(Some(0));
    same("a claim of nothing", t.store.claim(&none).await?, Claimed::NotIssued)
}

async fn is_owned_where_one_attempt_is_allowed(t: &Bench) -> Verdict {
    for must_be_issued in [false, true] {
        let issue = t.issued().await?;
        let only = claim(&issue.id).with_max_attempts(Some(1)).with_must_be_issued(must_be_issued);
        same("a claim of an issued key", t.store.claim(&only).await?, owned())?;
    }
    Ok(())
}

async fn nothing_that_must_be_issued_is_not_issued_and_stays_nothing(t: &Bench) -> Verdict {
    let id = t.id()?;
    for _ in 0..2 {
        same("a claim of nothing", t.store.claim(&claim_issued(&id)).await?, Claimed::NotIssued)?;
        same("the state then", t.state(&id).await?, None)?;
    }
    same("an issue then", t.store.issue(&issue(&id)).await?, Issued::Issued)
}

async fn expired_that_must_be_issued_is_expired_and_left_as_it_is(t: &Bench) -> Verdict {
    let issue = expired(t).await?;
    let before = t.look(&issue.id).await?;
    for _ in 0..2 {
        let answer = t.store.claim(&claim_issued(&issue.id)).await?;
        same("a claim of what has expired", answer, Claimed::IssueExpired)?;
        t.unchanged("what has expired", &issue.id, &before).await?;
    }
    Ok(())
}

async fn expired_is_owned_by_a_claim_that_does_not_ask(t: &Bench) -> Verdict {
    let issue = expired(t).await?;
    is_owned(t, &claim(&issue.id)).await
}

async fn in_flight_that_must_be_issued_is_in_flight(t: &Bench) -> Verdict {
    let first = claim(&t.id()?);
    let (claimed, _) = t.timed(t.own(&first)).await?;
    let before = t.look(&first.id).await?;
    t.pass(t.unit() / 4).await;
    let (asked, answer) = t.timed(t.store.claim(&claim_issued(&first.id))).await?;
    let Claimed::InFlight { attempt: 1, lease_left } = answer else {
        return Err(broken(format!("a claim of a key in flight: wanted InFlight, attempt 1, got {answer:?}")));
    };
    t.counted_down("lease_left", lease_left, (LONG, claimed), asked)?;
    t.unchanged("the record in flight", &first.id, &before).await
}

async fn abandoned_that_must_be_issued_is_taken_over(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let answer = t.store.claim(&claim_issued(&given.id)).await?;
    same("a claim that takes over", answer, Claimed::Owned { attempt: 2, from: Origin::Abandoned })
}

async fn abandoned_that_must_be_issued_is_not_taken_over_where_nothing_is(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let before = t.look(&given.id).await?;
    let answer = t.store.claim(&claim_issued(&given.id).with_take_over(false)).await?;
    same("a claim that does not take over", answer, Claimed::Abandoned { attempt: 1 })?;
    t.unchanged("the abandoned record", &given.id, &before).await
}

async fn released_that_must_be_issued_is_owned_as_the_next_attempt(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Released).await?;
    let answer = t.store.claim(&claim_issued(&given.id)).await?;
    same("a claim of a released key", answer, Claimed::Owned { attempt: 2, from: Origin::Released })
}

async fn released_that_must_be_issued_is_exhausted_at_max_attempts(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Released).await?;
    for max in [0, 1] {
        let answer = t.store.claim(&claim_issued(&given.id).with_max_attempts(Some(max))).await?;
        same("a claim of a released key", answer, Claimed::Exhausted { attempts: 1 })?;
    }
    Ok(())
}

async fn committed_that_must_be_issued_gives_the_outcome(t: &Bench) -> Verdict {
    for given in t.both_committed(None).await? {
        let before = t.look(&given.id).await?;
        let outcome = given.commit.outcome.clone().ok_or_else(|| broken("no outcome: a mistake in the suite"))?;
        let answer = t.store.claim(&claim_issued(&given.id)).await?;
        same("a claim of a committed key", answer, Claimed::Committed { attempt: 1, outcome })?;
        t.unchanged("the committed record", &given.id, &before).await?;
    }
    Ok(())
}

async fn done_that_must_be_issued_gives_no_outcome(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Done).await?;
    let answer = t.store.claim(&claim_issued(&given.id)).await?;
    same("a claim of a key that is done", answer, Claimed::Done { attempt: 1 })
}

async fn another_fingerprint_mismatches_in_every_state_that_must_be_issued(t: &Bench) -> Verdict {
    let mut all = Vec::new();
    for state in [RecordState::InFlight, RecordState::Abandoned, RecordState::Done] {
        all.push(t.given_with(state, print("one")?).await?);
    }
    all.extend(t.both_committed(print("one")?).await?);
    for given in all {
        let other = claim_issued(&given.id).with_fingerprint(print("two")?);
        same("a claim with another fingerprint", t.store.claim(&other).await?, Claimed::Mismatch)?;
    }
    Ok(())
}

async fn is_lost_to_a_strangers_commit(t: &Bench) -> Verdict {
    let issue = t.issued().await?;
    let before = t.look(&issue.id).await?;
    for stranger in both_claims(&issue.id) {
        let with = commit(&stranger, 1);
        for commit in [with.clone().with_outcome(None), with] {
            same("a commit", t.store.commit(&commit).await?, Ownership::Lost)?;
        }
    }
    t.unchanged("what was issued", &issue.id, &before).await
}

async fn is_lost_to_a_strangers_renewal(t: &Bench) -> Verdict {
    let issue = t.issued().await?;
    let before = t.look(&issue.id).await?;
    same("a renewal", t.store.renew(renewal(&claim(&issue.id))).await?, Ownership::Lost)?;
    t.unchanged("what was issued", &issue.id, &before).await
}

async fn is_lost_to_a_strangers_release(t: &Bench) -> Verdict {
    let issue = t.issued().await?;
    let before = t.look(&issue.id).await?;
    let stranger = claim(&issue.id);
    for release in [release(&stranger), abandon(&stranger), undo(&stranger)] {
        same("a release", t.store.release(&release).await?, Ownership::Lost)?;
    }
    t.unchanged("what was issued", &issue.id, &before).await
}

async fn is_not_waited_for(t: &Bench) -> Verdict {
    let issue = t.issued().await?;
    let before = t.look(&issue.id).await?;
    for attempt in [0, 1] {
        soon("a wait for an issued key", t.store.wait(&issue.id, attempt, LONG)).await??;
    }
    t.unchanged("what was issued", &issue.id, &before).await?;
    same("a claim then", t.store.claim(&claim_issued(&issue.id)).await?, owned())
}

async fn removed_is_gone_and_not_issued(t: &Bench) -> Verdict {
    for issue in [t.issued().await?, expired(t).await?] {
        same("the removal", t.store.remove(&issue.id).await?, Removed::Removed)?;
        holds("it is gone", t.state(&issue.id).await?.is_none())?;
        same("a second removal", t.store.remove(&issue.id).await?, Removed::Nothing)?;
        same("a claim then", t.store.claim(&claim_issued(&issue.id)).await?, Claimed::NotIssued)?;
        same("an issue then", t.store.issue(&issue).await?, Issued::Issued)?;
    }
    Ok(())
}
