//! Attempts that began no body, because their question stayed without an answer: they grow the
//! attempt, and are not counted.

use idem_core::record::{Claim, Claimed, Origin, Owner, Ownership, RecordState};

use super::trials;
use crate::bench::{Bench, LONG, abandon, claim, print, release, renewal, unanswered, undo};
use crate::check::{Failure, Verdict, broken, same};
use crate::trial::Trial;

pub(super) const TRIALS: &[Trial] = trials!(
    question,
    [
        without_an_answer_leaves_an_abandoned_record,
        without_an_answer_grows_the_attempt,
        without_an_answer_keeps_attempt_fingerprint_and_expiry,
        is_not_counted,
        sent_again_is_counted_once,
        is_not_counted_after_a_release,
        is_not_counted_after_a_renewal,
        is_not_counted_after_a_claim_that_was_undone,
        by_a_stranger_is_lost,
    ]
);

/// A key whose first body was cut off, and about which `asked` claims asked in vain.
async fn asked(t: &Bench, asked: u64) -> Result<Claim, Failure> {
    let mut last = t.given(RecordState::Abandoned).await?.claim;
    for attempt in 2..asked + 2 {
        last = claim(&last.id);
        same("the attempt of a question", t.own(&last).await?, attempt)?;
        same("its end", t.store.release(&unanswered(&last)).await?, Ownership::Held)?;
    }
    Ok(last)
}

/// Returns the result of a claim that allows this many attempts.
async fn allowed(t: &Bench, of: &Claim, max: u64) -> Result<Claimed, Failure> {
    t.store.claim(&claim(&of.id).with_max_attempts(Some(max))).await
}

async fn without_an_answer_leaves_an_abandoned_record(t: &Bench) -> Verdict {
    let last = asked(t, 1).await?;
    same("the state then", t.state(&last.id).await?, Some(RecordState::Abandoned))?;
    let answer = t.store.claim(&claim(&last.id).with_take_over(false)).await?;
    same("a claim that does not take over", answer, Claimed::Abandoned { attempt: 2 })
}

async fn without_an_answer_grows_the_attempt(t: &Bench) -> Verdict {
    let last = asked(t, 3).await?;
    let answer = t.store.claim(&claim(&last.id)).await?;
    same("a claim then", answer, Claimed::Owned { attempt: 5, from: Origin::Abandoned })
}

async fn without_an_answer_keeps_attempt_fingerprint_and_expiry(t: &Bench) -> Verdict {
    let given = t.given_with(RecordState::Abandoned, print("one")?).await?;
    let last = claim(&given.id).with_fingerprint(print("one")?).with_hold(LONG * 7);
    let (claimed, _) = t.timed(t.own(&last)).await?;
    t.pass(t.unit() / 2).await;
    t.store.release(&unanswered(&last)).await?;
    let seen = t.look(&last.id).await?;
    let info = seen.info.ok_or_else(|| broken("the abandoned record is gone"))?;
    same("the record then", (info.attempt, info.fingerprint), (2, print("one")?))?;
    t.counted_down("its expiry", info.expires_in, (LONG * 7, claimed), seen.at)
}

async fn is_not_counted(t: &Bench) -> Verdict {
    let last = asked(t, 3).await?;
    same("a claim that allows one attempt", allowed(t, &last, 1).await?, Claimed::Exhausted { attempts: 1 })?;
    let answer = allowed(t, &last, 2).await?;
    same("one that allows two", answer, Claimed::Owned { attempt: 5, from: Origin::Abandoned })
}

async fn sent_again_is_counted_once(t: &Bench) -> Verdict {
    let last = asked(t, 1).await?;
    same("the same sent again", t.store.release(&unanswered(&last)).await?, Ownership::Held)?;
    let third = claim(&last.id);
    t.own(&third).await?;
    t.store.release(&abandon(&third)).await?;
    same("a claim that allows two attempts", allowed(t, &last, 2).await?, Claimed::Exhausted { attempts: 2 })
}

async fn is_not_counted_after_a_release(t: &Bench) -> Verdict {
    let third = claim(&asked(t, 1).await?.id);
    t.own(&third).await?;
    t.store.release(&release(&third)).await?;
    same("a claim that allows two attempts", allowed(t, &third, 2).await?, Claimed::Exhausted { attempts: 2 })?;
    let answer = allowed(t, &third, 3).await?;
    same("one that allows three", answer, Claimed::Owned { attempt: 4, from: Origin::Released })?;
    let fourth = claim(&third.id);
    same("one more", allowed(t, &fourth, 9).await.map(|answer| matches!(answer, Claimed::InFlight { .. }))?, true)
}

async fn is_not_counted_after_a_renewal(t: &Bench) -> Verdict {
    let third = claim(&asked(t, 1).await?.id);
    t.own(&third).await?;
    same("a renewal", t.store.renew(renewal(&third)).await?, Ownership::Held)?;
    same("one of another length", t.store.renew(renewal(&third.clone().with_hold(LONG * 9))).await?, Ownership::Held)?;
    t.store.release(&abandon(&third)).await?;
    same("a claim that allows two attempts", allowed(t, &third, 2).await?, Claimed::Exhausted { attempts: 2 })?;
    let answer = allowed(t, &third, 3).await?;
    same("one that allows three", answer, Claimed::Owned { attempt: 4, from: Origin::Abandoned })
}

async fn is_not_counted_after_a_claim_that_was_undone(t: &Bench) -> Verdict {
    let last = asked(t, 1).await?;
    let third = claim(&last.id);
    t.own(&third).await?;
    t.store.release(&undo(&third)).await?;
    same("a claim that allows one attempt", allowed(t, &last, 1).await?, Claimed::Exhausted { attempts: 1 })?;
    same("the owner's own release", t.store.release(&release(&last)).await?, Ownership::Held)?;
    let next = claim(&last.id);
    same("the attempt then", t.own(&next).await?, 3)?;
    t.store.release(&undo(&next)).await?;
    same("a claim of a released key", allowed(t, &last, 1).await?, Claimed::Exhausted { attempts: 1 })
}

async fn by_a_stranger_is_lost(t: &Bench) -> Verdict {
    for state in [RecordState::InFlight, RecordState::Abandoned, RecordState::Released, RecordState::Committed] {
        let given = t.given(state).await?;
        let before = t.look(&given.id).await?;
        let stranger = unanswered(&given.claim).with_owner(Owner::generate());
        same("a stranger's release", t.store.release(&stranger).await?, Ownership::Lost)?;
        t.unchanged(&format!("a record that is {state:?} then"), &given.id, &before).await?;
    }
    Ok(())
}
