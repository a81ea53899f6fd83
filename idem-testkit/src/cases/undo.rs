//! A claim that is undone leaves what it found: an abandoned record with its fingerprint, its owner
//! and its time.

use std::time::Duration;

use idem_core::record::{Claim, Claimed, Origin, Ownership, RecordState};

use super::trials;
use crate::bench::{Bench, LONG, claim, commit, print, release, renewal, undo};
use crate::check::{Failure, Verdict, broken, matches_or_broken, same};
use crate::trial::Trial;

pub(super) const TRIALS: &[Trial] = trials!(
    undo,
    [
        restores_the_fingerprint,
        restores_that_there_was_no_fingerprint,
        restores_the_owner_who_commits,
        restores_the_owner_who_gives_up,
        restores_the_owner_who_is_recognised,
        restores_the_expiry,
        restores_no_lease,
        of_the_restored_owner_leaves_what_that_one_found,
        one_after_the_other_restores_each,
        of_more_than_are_remembered_leaves_an_abandoned_record,
        leaves_the_late_owner_nothing_once_another_claims,
    ]
);

/// A claim whose lease is over at once.
fn brief(of: &Claim) -> Claim {
    claim(&of.id).with_lease(Duration::from_millis(1))
}

/// Claims one after the other, each of which found the one before abandoned; the last is alive.
async fn chain(t: &Bench, length: u64) -> Result<Vec<Claim>, Failure> {
    let mut claims: Vec<Claim> = Vec::new();
    let id = t.id()?;
    for attempt in 1..=length {
        let next = brief(&claim(&id)).with_fingerprint(print("one")?);
        same("the attempt", t.own(&next).await?, attempt)?;
        claims.push(next);
        if attempt < length {
            t.pass_until(Duration::from_millis(1), &id, Some(RecordState::Abandoned)).await?;
        }
    }
    Ok(claims)
}

async fn restores_the_fingerprint(t: &Bench) -> Verdict {
    let given = t.given_with(RecordState::Abandoned, print("one")?).await?;
    let second = claim(&given.id);
    t.own(&second).await?;
    t.store.release(&undo(&second)).await?;
    let seen = t.store.inspect(&given.id).await?.and_then(|info| info.fingerprint);
    same("the fingerprint then", seen, print("one")?)?;
    let answer = t.store.claim(&claim(&given.id).with_fingerprint(print("two")?)).await?;
    same("a claim with another then", answer, Claimed::Mismatch)?;
    let answer = t.store.claim(&claim(&given.id).with_fingerprint(print("one")?)).await?;
    same("a claim with the same", answer, Claimed::Owned { attempt: 2, from: Origin::Abandoned })
}

async fn restores_that_there_was_no_fingerprint(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let second = claim(&given.id).with_fingerprint(print("two")?);
    t.own(&second).await?;
    t.store.release(&undo(&second)).await?;
    let answer = t.store.claim(&claim(&given.id).with_fingerprint(print("one")?)).await?;
    same("a claim with any fingerprint", answer, Claimed::Owned { attempt: 2, from: Origin::Abandoned })
}

/// The commit of a body that has ended is tried again for long after its lease.
async fn restores_the_owner_who_commits(t: &Bench) -> Verdict {
    let given = t.given_with(RecordState::Abandoned, print("one")?).await?;
    let second = claim(&given.id);
    t.own(&second).await?;
    same("the commit while another owns it", t.store.commit(&given.commit).await?, Ownership::Lost)?;
    t.store.release(&undo(&second)).await?;
    same("the same then", t.store.commit(&given.commit).await?, Ownership::Held)?;
    let answer = t.store.claim(&claim(&given.id).with_fingerprint(print("one")?)).await?;
    matches_or_broken!("a claim then", answer, Claimed::Committed { attempt: 1, .. })
}

async fn restores_the_owner_who_gives_up(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let second = claim(&given.id);
    t.own(&second).await?;
    t.store.release(&undo(&second)).await?;
    same("a release by the owner", t.store.release(&release(&given.claim)).await?, Ownership::Held)?;
    let answer = t.store.claim(&claim(&given.id)).await?;
    same("a claim then", answer, Claimed::Owned { attempt: 2, from: Origin::Released })
}

async fn restores_the_owner_who_is_recognised(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let second = claim(&given.id);
    t.own(&second).await?;
    t.store.release(&undo(&second)).await?;
    let answer = t.store.claim(&given.claim).await?;
    same("its claim sent again", answer, Claimed::Owned { attempt: 1, from: Origin::Nothing })
}

/// An abandoned record may be waiting for an operator, so it stays at least as long as before.
async fn restores_the_expiry(t: &Bench) -> Verdict {
    let first = brief(&claim(&t.id()?)).with_hold(LONG * 9);
    t.own(&first).await?;
    t.pass_until(first.lease, &first.id, Some(RecordState::Abandoned)).await?;
    let second = claim(&first.id).with_hold(LONG * 2);
    t.own(&second).await?;
    let (undone, _) = t.timed(t.store.release(&undo(&second))).await?;
    let seen = t.look(&first.id).await?;
    let info = seen.info.ok_or_else(|| broken("the abandoned record is gone"))?;
    t.counted_down("its expiry", info.expires_in, (first.hold, undone), seen.at)
}

async fn restores_no_lease(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let second = claim(&given.id);
    t.own(&second).await?;
    t.store.release(&undo(&second)).await?;
    same("the state then", t.state(&given.id).await?, Some(RecordState::Abandoned))?;
    same("a renewal by its owner", t.store.renew(renewal(&given.claim)).await?, Ownership::Held)?;
    t.pass(Duration::from_millis(1)).await;
    same("the state after it", t.state(&given.id).await?, Some(RecordState::Abandoned))
}

/// Its own claim may be one that is being undone.
async fn of_the_restored_owner_leaves_what_that_one_found(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Released).await?;
    let second = brief(&given.claim);
    same("the attempt", t.own(&second).await?, 2)?;
    t.pass_until(second.lease, &given.id, Some(RecordState::Abandoned)).await?;
    let third = claim(&given.id);
    t.own(&third).await?;
    t.store.release(&undo(&third)).await?;
    same("undoing the claim before it", t.store.release(&undo(&second)).await?, Ownership::Held)?;
    let info = t.store.inspect(&given.id).await?.map(|info| (info.state, info.attempt));
    same("the record then", info, Some((RecordState::Released, 1)))
}

async fn one_after_the_other_restores_each(t: &Bench) -> Verdict {
    let claims = chain(t, 4).await?;
    for attempt in (1..4).rev() {
        let [before, last] = &claims[attempt - 1..=attempt] else { continue };
        same("undoing a claim", t.store.release(&undo(last)).await?, Ownership::Held)?;
        let info = t.store.inspect(&last.id).await?.map(|info| (info.state, info.attempt, info.fingerprint));
        same("the record then", info, Some((RecordState::Abandoned, attempt as u64, before.fingerprint)))?;
    }
    let [first, ..] = claims.as_slice() else { return Ok(()) };
    same("the commit of the first", t.store.commit(&commit(first, 1)).await?, Ownership::Held)
}

async fn of_more_than_are_remembered_leaves_an_abandoned_record(t: &Bench) -> Verdict {
    let claims = chain(t, 6).await?;
    for last in claims[1..].iter().rev() {
        t.store.release(&undo(last)).await?;
        same("the state then", t.state(&last.id).await?, Some(RecordState::Abandoned))?;
    }
    let answer = t.store.claim(&claim(&claims[0].id).with_take_over(false)).await?;
    matches_or_broken!("a claim that does not take over", answer, Claimed::Abandoned { .. })
}

async fn leaves_the_late_owner_nothing_once_another_claims(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let second = claim(&given.id);
    t.own(&second).await?;
    t.store.release(&undo(&second)).await?;
    let third = claim(&given.id);
    same("the attempt of the next claim", t.own(&third).await?, 2)?;
    same("the late owner's commit", t.store.commit(&given.commit).await?, Ownership::Lost)?;
    let commit = commit(&third, 2).with_as_claimed(Some(third.as_claimed(Origin::Abandoned)));
    same("the commit of the owner", t.store.commit(&commit).await?, Ownership::Held)
}
