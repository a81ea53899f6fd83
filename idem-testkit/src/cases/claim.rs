//! The effect of a claim on each state. Take-overs and fingerprints have their own files.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use idem_core::record::{Claimed, Origin, Ownership, RecordState};

use super::trials;
use crate::bench::{Bench, Given, LONG, claim, commit, release, renewal};
use crate::check::{Verdict, broken, holds, matches_or_broken, same};
use crate::trial::Trial;

pub(super) const TRIALS: &[Trial] = trials!(
    claim,
    [
        nothing_is_owned_as_attempt_one,
        released_is_owned_as_the_next_attempt,
        in_flight_is_in_flight_with_what_is_left_of_the_lease,
        in_flight_by_a_later_attempt_says_which,
        in_flight_is_left_as_it_is,
        committed_gives_the_outcome,
        committed_is_left_as_it_is,
        done_gives_no_outcome,
        done_is_left_as_it_is,
        ones_own_sent_again_is_recognised,
        ones_own_of_a_later_attempt_is_recognised,
        ones_own_is_recognised_by_another_handle,
        ones_own_is_recognised_after_its_lease_ran_out,
        ones_own_sent_again_does_not_renew_the_lease,
        ones_own_sent_again_is_not_exhausted,
        a_dropped_one_can_be_sent_again,
        released_is_exhausted_at_max_attempts,
        exhausted_is_left_as_it_is,
        max_attempts_does_not_matter_to_what_cannot_be_claimed,
        max_attempts_of_one_allows_the_first,
        sees_what_another_handle_claimed,
        keys_of_one_operation_do_not_collide,
        keys_of_two_operations_do_not_collide,
        keys_of_any_length_and_characters_are_kept_apart,
    ]
);

async fn nothing_is_owned_as_attempt_one(t: &Bench) -> Verdict {
    let answer = t.store.claim(&claim(&t.id()?)).await?;
    same("a claim of nothing", answer, Claimed::Owned { attempt: 1, from: Origin::Nothing })
}

async fn released_is_owned_as_the_next_attempt(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Released).await?;
    let answer = t.store.claim(&claim(&given.id)).await?;
    same("a claim of a released key", answer, Claimed::Owned { attempt: 2, from: Origin::Released })?;
    same("then", t.state(&given.id).await?, Some(RecordState::InFlight))
}

async fn in_flight_is_in_flight_with_what_is_left_of_the_lease(t: &Bench) -> Verdict {
    let first = claim(&t.id()?);
    let (claimed, _) = t.timed(t.own(&first)).await?;
    t.pass(t.unit() / 4).await;
    let (asked, answer) = t.timed(t.store.claim(&claim(&first.id))).await?;
    let Claimed::InFlight { attempt: 1, lease_left } = answer else {
        return Err(broken(format!("a claim of a key in flight: wanted InFlight, attempt 1, got {answer:?}")));
    };
    t.counted_down("lease_left", lease_left, (LONG, claimed), asked)
}

async fn in_flight_by_a_later_attempt_says_which(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Released).await?;
    t.own(&claim(&given.id)).await?;
    let answer = t.store.claim(&claim(&given.id)).await?;
    matches_or_broken!("a claim of a key in flight", answer, Claimed::InFlight { attempt: 2, .. })
}

async fn in_flight_is_left_as_it_is(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    let before = t.look(&given.id).await?;
    t.pass(t.unit() / 4).await;
    t.store.claim(&claim(&given.id).with_lease(LONG * 2).with_hold(LONG * 4)).await?;
    t.unchanged("a record in flight after a stranger's claim", &given.id, &before).await?;
    same("the owner's commit", t.store.commit(&given.commit).await?, Ownership::Held)
}

async fn committed_gives_the_outcome(t: &Bench) -> Verdict {
    for given in t.both_committed(None).await? {
        let outcome = given.commit.outcome.clone().ok_or_else(|| broken("no outcome: a mistake in the suite"))?;
        let answer = t.store.claim(&claim(&given.id)).await?;
        same("a claim of a committed key", answer, Claimed::Committed { attempt: 1, outcome })?;
    }
    Ok(())
}

async fn committed_is_left_as_it_is(t: &Bench) -> Verdict {
    for given in t.both_committed(None).await? {
        left_as_it_is(t, &given).await?;
    }
    Ok(())
}

async fn done_gives_no_outcome(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Done).await?;
    let answer = t.store.claim(&claim(&given.id)).await?;
    same("a claim of a key that is done", answer, Claimed::Done { attempt: 1 })
}

async fn done_is_left_as_it_is(t: &Bench) -> Verdict {
    left_as_it_is(t, &t.given(RecordState::Done).await?).await
}

async fn left_as_it_is(t: &Bench, given: &Given) -> Verdict {
    let before = t.look(&given.id).await?;
    t.pass(t.unit() / 4).await;
    t.store.claim(&claim(&given.id).with_hold(LONG * 8)).await?;
    t.unchanged("the record after a claim", &given.id, &before).await
}

async fn ones_own_sent_again_is_recognised(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    for _ in 0..2 {
        let answer = t.store.claim(&given.claim).await?;
        same("the same claim again", answer, Claimed::Owned { attempt: 1, from: Origin::Nothing })?;
    }
    same("then a commit", t.store.commit(&given.commit).await?, Ownership::Held)
}

async fn ones_own_of_a_later_attempt_is_recognised(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Released).await?;
    let second = claim(&given.id);
    t.own(&second).await?;
    let owned = Claimed::Owned { attempt: 2, from: Origin::Released };
    same("the same claim again", t.store.claim(&second).await?, owned.clone())?;
    // A renewal keeps the origin of the claim.
    t.store.renew(renewal(&second)).await?;
    same("the same claim again after a renewal", t.store.claim(&second).await?, owned)
}

async fn ones_own_is_recognised_by_another_handle(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    let answer = t.second().await?.claim(&given.claim).await?;
    same("the same claim by another handle", answer, Claimed::Owned { attempt: 1, from: Origin::Nothing })
}

async fn ones_own_is_recognised_after_its_lease_ran_out(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let answer = t.store.claim(&given.claim).await?;
    same("the same claim again", answer, Claimed::Owned { attempt: 1, from: Origin::Nothing })?;
    same("then", t.state(&given.id).await?, Some(RecordState::Abandoned))
}

async fn ones_own_sent_again_does_not_renew_the_lease(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    let before = t.look(&given.id).await?;
    t.pass(t.unit() / 2).await;
    t.store.claim(&given.claim).await?;
    t.unchanged("the record after its own claim was sent again", &given.id, &before).await
}

async fn ones_own_sent_again_is_not_exhausted(t: &Bench) -> Verdict {
    let only = claim(&t.id()?).with_max_attempts(Some(1));
    t.own(&only).await?;
    let answer = t.store.claim(&only).await?;
    same("the same claim again", answer, Claimed::Owned { attempt: 1, from: Origin::Nothing })
}

async fn a_dropped_one_can_be_sent_again(t: &Bench) -> Verdict {
    for polls in 0..4 {
        let claim = claim(&t.id()?);
        {
            let mut dropped = pin!(t.store.claim(&claim));
            for _ in 0..polls {
                if poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context))).await.is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        let answer = t.store.claim(&claim).await?;
        let what = format!("a claim that was dropped after {polls} polls and sent again");
        same(&what, answer, Claimed::Owned { attempt: 1, from: Origin::Nothing })?;
        same("then a commit", t.store.commit(&commit(&claim, 1)).await?, Ownership::Held)?;
    }
    Ok(())
}

async fn released_is_exhausted_at_max_attempts(t: &Bench) -> Verdict {
    let id = t.id()?;
    for attempt in 1..=2 {
        let claim = claim(&id).with_max_attempts(Some(2));
        same("the attempt", t.own(&claim).await?, attempt)?;
        t.store.release(&release(&claim)).await?;
    }
    let answer = t.store.claim(&claim(&id).with_max_attempts(Some(2))).await?;
    same("the claim after the last attempt", answer, Claimed::Exhausted { attempts: 2 })
}

async fn exhausted_is_left_as_it_is(t: &Bench) -> Verdict {
    let given = t.given(RecordState::Released).await?;
    let before = t.look(&given.id).await?;
    t.pass(t.unit() / 4).await;
    t.store.claim(&claim(&given.id).with_max_attempts(Some(1))).await?;
    t.unchanged("a released record after a claim that was exhausted", &given.id, &before).await?;
    let answer = t.store.claim(&claim(&given.id).with_max_attempts(Some(2))).await?;
    same("a claim that allows more", answer, Claimed::Owned { attempt: 2, from: Origin::Released })
}

async fn max_attempts_does_not_matter_to_what_cannot_be_claimed(t: &Bench) -> Verdict {
    for state in [RecordState::InFlight, RecordState::Committed, RecordState::Done] {
        let given = t.given(state).await?;
        let answer = t.store.claim(&claim(&given.id).with_max_attempts(Some(1))).await?;
        let what = format!("a claim of a record that is {state:?}: wanted that answer, got {answer:?}");
        let right = match state {
            RecordState::InFlight => matches!(answer, Claimed::InFlight { .. }),
            RecordState::Committed => matches!(answer, Claimed::Committed { .. }),
            _ => matches!(answer, Claimed::Done { .. }),
        };
        holds(&what, right)?;
    }
    Ok(())
}

async fn max_attempts_of_one_allows_the_first(t: &Bench) -> Verdict {
    let answer = t.store.claim(&claim(&t.id()?).with_max_attempts(Some(1))).await?;
    same("the first claim", answer, Claimed::Owned { attempt: 1, from: Origin::Nothing })
}

async fn sees_what_another_handle_claimed(t: &Bench) -> Verdict {
    let given = t.given(RecordState::InFlight).await?;
    let second = t.second().await?;
    let answer = second.claim(&claim(&given.id)).await?;
    matches_or_broken!("a claim by another handle", answer, Claimed::InFlight { attempt: 1, .. })?;
    same("the owner's commit by another handle", second.commit(&given.commit).await?, Ownership::Held)?;
    let answer = t.store.claim(&claim(&given.id)).await?;
    matches_or_broken!("a claim by the first handle", answer, Claimed::Committed { attempt: 1, .. })
}

async fn keys_of_one_operation_do_not_collide(t: &Bench) -> Verdict {
    let ids = [
        t.id_of("", &("a", "bc"))?,
        t.id_of("", &("ab", "c"))?,
        t.id_of("", "a:bc")?,
        t.id_of("", "A:bc")?,
        t.id_of("", &(("a", "b"), "c"))?,
        t.id_of("", &("a", ("b", "c")))?,
        t.id_of("", "abc")?,
        t.id_of("", "abc ")?,
        t.id_of("", "abc*")?,
        t.id_of("", "{abc}")?,
    ];
    all_apart(t, &ids).await
}

async fn keys_of_two_operations_do_not_collide(t: &Bench) -> Verdict {
    let ids = [
        t.id_of("", &("a", "b"))?,
        t.id_of("::a", "b")?,
        t.id_of(".a", "b")?,
        t.id_of("::a", "a:b")?,
        t.id_of("::A", "b")?,
        t.id_of("/a", "b")?,
        t.id_of("::a::b", "b")?,
    ];
    all_apart(t, &ids).await
}

async fn keys_of_any_length_and_characters_are_kept_apart(t: &Bench) -> Verdict {
    let ids = [
        t.id_of("", &"x".repeat(255))?,
        t.id_of("", &"x".repeat(256))?,
        t.id_of("", &"x".repeat(257))?,
        t.id_of("", &"x".repeat(1 << 16))?,
        t.id_of("", "Zoë-日本-🦀")?,
        t.id_of("", "Zoe\u{308}-日本-🦀")?,
        t.id_of("", "\0")?,
        t.id_of("", "\0\0")?,
        t.id_of("", "a\r\nb\tc\u{7f}\u{85}")?,
        t.id_of("", "*?[a-z]\\ '\"`$;")?,
        t.id_of("::größe::注文", "1")?,
        t.id_of("::grösse", "1")?,
    ];
    all_apart(t, &ids).await
}

/// Claims each, then commits each with an outcome of its own, and finds them all as they were
/// committed.
async fn all_apart(t: &Bench, ids: &[idem_core::record::RecordId]) -> Verdict {
    let mut commits = Vec::new();
    for (index, id) in ids.iter().enumerate() {
        let claim = claim(id);
        let answer = t.store.claim(&claim).await?;
        let what = format!("the claim of {:?}, which no other claim has", id.as_str());
        same(&what, answer, Claimed::Owned { attempt: 1, from: Origin::Nothing })?;
        let outcome = Some(crate::bench::outcome(index.to_string().as_bytes()));
        commits.push(commit(&claim, 1).with_outcome(outcome));
    }
    for commit in &commits {
        same("the commit", t.store.commit(commit).await?, Ownership::Held)?;
    }
    for commit in commits {
        let answer = t.store.claim(&claim(&commit.id)).await?;
        let what = format!("the outcome of {:?}", commit.id.as_str());
        let right = matches!(&answer, Claimed::Committed { outcome, .. } if Some(outcome) == commit.outcome.as_ref());
        holds(&format!("{what}: wanted its own, got {answer:?}"), right)?;
        let seen = t.store.inspect(&commit.id).await?.and_then(|info| info.outcome);
        same(&format!("{what}, inspected"), seen, commit.outcome)?;
    }
    Ok(())
}
