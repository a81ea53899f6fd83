//! The right to renew a lease, for how long, and batches of renewals.

use idem_core::record::{Claimed, Owner, Ownership, RecordState};

use super::trials;
use crate::bench::{Bench, Given, LONG, Task, claim, print, release, renewal};
use crate::check::{Verdict, broken, holds, matches_or_broken, same};
use crate::trial::Trial;

pub(super) const TRIALS: &[Trial] = trials!(
    renew,
    [
        starts_the_lease_anew,
        sets_the_expiry_to_the_hold,
        with_another_hold_keeps_the_lease_as_long_as_it_was,
        keeps_a_lease_alive_for_longer_than_it_is,
        by_a_stranger_is_lost,
        of_nothing_is_lost_and_leaves_nothing,
        of_a_released_record_is_lost,
        of_a_committed_record_is_lost,
        of_a_done_record_is_lost,
        of_an_abandoned_record_revives_it,
        keeps_attempt_and_fingerprint,
        of_a_later_attempt_is_held,
        of_an_empty_batch_answers_nothing,
        of_five_hundred_answers_in_order,
        of_one_record_twice_answers_twice,
        of_two_owners_of_one_record_tells_them_apart,
        by_another_handle_is_held,
    ]
);

async fn starts_the_lease_anew(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    t.pass(t.unit() / 2).await;
    let (renewed, answer) = t.timed(t.store.renew(renewal(&given.claim))).await?;
    same("the owner's renewal", answer, Ownership::Held)?;
    let seen = t.look(&given.id).await?;
    let info = seen.info.ok_or_else(|| broken("a renewed record is gone"))?;
    let (Some(age), Some(left)) = (info.lease_age, info.lease_left) else {
        return Err(broken(format!("a renewed record has no lease: {info:?}")));
    };
    t.counted_up("lease_age", age, renewed, seen.at)?;
    t.counted_down("lease_left", left, (LONG, renewed), seen.at)
}

async fn sets_the_expiry_to_the_hold(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    t.pass(t.unit() / 2).await;
    let (renewed, _) = t.timed(t.store.renew(renewal(&given.claim))).await?;
    let seen = t.look(&given.id).await?;
    let left = seen.info.map(|info| info.expires_in).unwrap_or_default();
    t.counted_down("expires_in", left, (given.claim.hold, renewed), seen.at)
}

async fn with_another_hold_keeps_the_lease_as_long_as_it_was(t: &Bench) -> Verdict {
    for hold in [LONG * 5, LONG * 3 / 2] {
        let given = t.given(RecordState::InFlight).await?;
        t.pass(t.unit() / 2).await;
        let (renewed, _) = t.timed(t.store.renew(renewal(&given.claim).with_hold(hold))).await?;
        let seen = t.look(&given.id).await?;
        let info = seen.info.ok_or_else(|| broken("a renewed record is gone"))?;
        t.counted_down("lease_left", info.lease_left.unwrap_or_default(), (LONG, renewed), seen.at)?;
        t.counted_down("expires_in", info.expires_in, (hold, renewed), seen.at)?;
    }
    Ok(())
}

async fn keeps_a_lease_alive_for_longer_than_it_is(t: &Bench) -> Verdict {
    let claim = claim(&t.id()?).with_lease(t.unit() * 2).with_hold(LONG);
    let (mut kept, _) = t.timed(t.own(&claim)).await?;
    for _ in 0..3 {
        t.pass(t.unit()).await;
        let (renewed, answer) = t.timed(t.store.renew(renewal(&claim))).await?;
        same("the owner's renewal", answer, Ownership::Held)?;
        t.still(claim.lease, kept)?;
        kept = renewed;
    }
    let answer = t.store.claim(&crate::bench::claim(&claim.id)).await?;
    let verdict =
        matches_or_broken!("a claim of a lease that was renewed", answer, Claimed::InFlight { attempt: 1, .. });
    t.within(claim.lease, kept, verdict)?;
    t.pass_until(claim.lease, &claim.id, Some(RecordState::Abandoned)).await
}

async fn by_a_stranger_is_lost(t: &Bench) -> Verdict {
    for state in [RecordState::InFlight, RecordState::Abandoned] {
        let given = t.given(state).await?;
        let before = t.look(&given.id).await?;
        t.pass(t.unit() / 4).await;
        let stranger = renewal(&given.claim).with_owner(Owner::generate());
        same("a stranger's renewal", t.store.renew(stranger).await?, Ownership::Lost)?;
        t.unchanged(&format!("a record that is {state:?} then"), &given.id, &before).await?;
    }
    Ok(())
}

async fn of_nothing_is_lost_and_leaves_nothing(t: &Bench) -> Verdict {
    let claim = claim(&t.id()?);
    same("a renewal of nothing", t.store.renew(renewal(&claim)).await?, Ownership::Lost)?;
    same("the state then", t.state(&claim.id).await?, None)
}

async fn of_a_released_record_is_lost(t: &Bench) -> Verdict {
    lost(t, t.given(RecordState::Released).await?).await
}

async fn of_a_committed_record_is_lost(t: &Bench) -> Verdict {
    for given in t.both_committed(None).await? {
        lost(t, given).await?;
    }
    Ok(())
}

async fn of_a_done_record_is_lost(t: &Bench) -> Verdict {
    lost(t, t.given(RecordState::Done).await?).await
}

async fn lost(t: &Bench, given: Given) -> Verdict {
    let before = t.look(&given.id).await?;
    t.pass(t.unit() / 4).await;
    let renewal = renewal(&given.claim).with_hold(LONG * 8);
    same("the renewal", t.store.renew(renewal).await?, Ownership::Lost)?;
    t.unchanged("the record then", &given.id, &before).await
}

async fn of_an_abandoned_record_revives_it(t: &Bench) -> Verdict {
    let first = claim(&t.id()?).with_lease(t.unit()).with_hold(LONG);
    t.own(&first).await?;
    t.pass_until(t.unit(), &first.id, Some(RecordState::Abandoned)).await?;
    let (renewed, answer) = t.timed(t.store.renew(renewal(&first))).await?;
    same("a renewal before any take-over", answer, Ownership::Held)?;
    let answer = t.store.claim(&claim(&first.id)).await?;
    let verdict = matches_or_broken!("a claim then", answer, Claimed::InFlight { attempt: 1, .. });
    t.within(t.unit(), renewed, verdict)
}

async fn keeps_attempt_and_fingerprint(t: &Bench) -> Verdict {
    let given = t.given_with(RecordState::InFlight, print("one")?).await?;
    t.store.renew(renewal(&given.claim)).await?;
    let found = t.store.inspect(&given.id).await?.map(|info| (info.state, info.attempt, info.fingerprint));
    same("the record then", found, Some((RecordState::InFlight, 1, given.claim.fingerprint)))?;
    same("the owner's commit", t.store.commit(&given.commit).await?, Ownership::Held)
}

async fn of_a_later_attempt_is_held(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Released).await?;
    let second = claim(&given.id);
    t.own(&second).await?;
    same("the second owner's renewal", t.store.renew(renewal(&second)).await?, Ownership::Held)?;
    let attempt = t.store.inspect(&given.id).await?.map(|info| info.attempt);
    same("the attempt then", attempt, Some(2))
}

async fn of_an_empty_batch_answers_nothing(t: &Bench) -> Verdict {
    same("the number of answers", t.store.renew_all(&[]).await?.len(), 0)
}

/// Among owners there are strangers, released and missing records: each answer stands where its
/// renewal does.
async fn of_five_hundred_answers_in_order(t: &Bench) -> Verdict {
    let mut tasks = Vec::new();
    for number in 0..500 {
        let (store, claim) = (t.store.clone(), claim(&t.id()?));
        tasks.push(Task::spawn(async move {
            if number % 7 != 3 {
                store.claim(&claim).await?;
            }
            if number % 11 == 5 {
                store.release(&release(&claim)).await?;
            }
            let owner = if number % 5 == 2 { Owner::generate() } else { claim.owner };
            let held = number % 7 != 3 && number % 11 != 5 && number % 5 != 2;
            Ok((renewal(&claim).with_owner(owner), if held { Ownership::Held } else { Ownership::Lost }))
        }));
    }
    let (renewals, wanted): (Vec<_>, Vec<_>) = Task::all_end_soon("a claim", tasks).await?.into_iter().unzip();
    let answers = t.store.renew_all(&renewals).await?.into_iter().collect::<Result<Vec<_>, _>>()?;
    same("the number of answers", answers.len(), wanted.len())?;
    let wrong = answers.iter().zip(&wanted).position(|(answer, wanted)| answer != wanted);
    match wrong {
        None => Ok(()),
        Some(at) => same(&format!("the answer to renewal {at}"), answers.get(at), wanted.get(at)),
    }
}

async fn of_one_record_twice_answers_twice(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    let renewal = renewal(&given.claim);
    let answers = t.store.renew_all(&[renewal.clone(), renewal]).await?.into_iter().collect::<Result<Vec<_>, _>>()?;
    same("the answers", answers, vec![Ownership::Held, Ownership::Held])
}

async fn of_two_owners_of_one_record_tells_them_apart(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let second = claim(&given.id);
    t.own(&second).await?;
    let renewals = [renewal(&given.claim), renewal(&second), renewal(&given.claim)];
    let answers = t.store.renew_all(&renewals).await?.into_iter().collect::<Result<Vec<_>, _>>()?;
    same("the answers", answers, vec![Ownership::Lost, Ownership::Held, Ownership::Lost])
}

async fn by_another_handle_is_held(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let second = t.second().await?;
    let claim = claim(&given.id).with_lease(LONG);
    t.own(&claim).await?;
    same("the owner's renewal", second.renew(renewal(&claim)).await?, Ownership::Held)?;
    holds("it is in flight then", t.state(&given.id).await? == Some(RecordState::InFlight))
}
