//! Keys issued for one use: their time, and the effect of a claim that does or does not need one.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use idem_core::record::{Claim, Claimed, Issue, Issued, Origin, Ownership, RecordId, RecordState, Removed};

use super::concurrency::{MANY, together};
use super::trials;
use crate::bench::{Bench, LONG, Moment, abandon, claim, claim_issued, commit, issue, print, release, renewal, undo};
use crate::check::{Failure, Verdict, broken, holds, matches_or_broken, same};
use crate::handle::soon;
use crate::suite::Trial;

pub(super) const TRIALS: &[Trial] = trials!(
    issue,
    [
        of_nothing_is_issued,
        is_issued_for_its_ttl_then_expired_for_its_grace_then_nothing,
        is_claimed_until_its_ttl_has_passed_and_known_until_its_grace_has,
        without_a_grace_is_forgotten_after_its_ttl,
        of_years_is_kept,
        sent_again_is_recognised,
        sent_again_with_parts_of_milliseconds_is_recognised,
        sent_again_does_not_extend_its_time,
        sent_again_when_it_has_expired_does_not_revive_it,
        that_was_dropped_can_be_sent_again,
        with_another_grace_is_taken_and_changes_nothing,
        of_any_other_state_is_taken_and_changes_nothing,
        of_what_was_issued_and_claimed_is_taken,
        of_an_empty_batch_answers_nothing,
        of_many_answers_in_order_each_on_its_own,
        of_one_key_twice_answers_twice,
        by_another_handle_is_seen,
        of_one_key_does_not_let_another_be_claimed,
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

/// A claim of an issued key, and one that asks for that.
fn both_claims(id: &RecordId) -> [Claim; 2] {
    [claim(id), claim_issued(id)]
}

/// An issue whose time the trial lets run out, and when it was made.
async fn short_issue(t: &Bench) -> Result<(Issue, Moment), Failure> {
    let issue = Issue { ttl: t.unit(), ..issue(&t.id()?) };
    let (issued, answer) = t.timed(t.store.issue(&issue)).await?;
    same("an issue of nothing", answer, Issued::Issued)?;
    Ok((issue, issued))
}

async fn expired(t: &Bench) -> Result<Issue, Failure> {
    let (issue, _) = short_issue(t).await?;
    t.pass_until(issue.ttl, &issue.id, Some(RecordState::Expired)).await?;
    Ok(issue)
}

fn owned() -> Claimed {
    Claimed::Owned { attempt: 1, from: Origin::Issued }
}

async fn of_nothing_is_issued(t: &Bench) -> Verdict {
    let issue = Issue { ttl: LONG * 7, ..issue(&t.id()?) };
    let (issued, answer) = t.timed(t.store.issue(&issue)).await?;
    same("an issue of nothing", answer, Issued::Issued)?;
    t.pass(t.unit() / 2).await;
    let seen = t.look(&issue.id).await?;
    let info = seen.info.ok_or_else(|| broken("what was issued is not there"))?;
    same("the state", (info.state, info.attempt), (RecordState::Issued, 0))?;
    let rest = (info.fingerprint, info.is_error, info.lease_age, info.lease_left);
    same("what else is known of it", rest, (None, false, None, None))?;
    t.counted_down("expires_in", info.expires_in, (LONG * 7, issued), seen.at)
}

async fn is_issued_for_its_ttl_then_expired_for_its_grace_then_nothing(t: &Bench) -> Verdict {
    let issue = Issue { ttl: t.unit(), grace: t.unit() * 2, ..issue(&t.id()?) };
    let (issued, _) = t.timed(t.store.issue(&issue)).await?;
    let rest = t.pass_nearly(t.unit()).await;
    let seen = t.look(&issue.id).await?;
    let before = seen.info.map(|info| (info.state, info.expires_in));
    t.within(t.unit(), issued, same("the state", before.map(|found| found.0), Some(RecordState::Issued)))?;
    if let Some((RecordState::Issued, left)) = before {
        t.counted_down("the time until it has expired", left, (issue.ttl, issued), seen.at)?;
    }
    t.pass(rest).await;
    let seen = t.look(&issue.id).await?;
    let after = seen.info.map(|info| (info.state, info.attempt, info.expires_in));
    let state = after.map(|found| (found.0, found.1));
    t.within(t.unit() * 3, issued, same("the state after the ttl", state, Some((RecordState::Expired, 0))))?;
    if let Some((.., left)) = after {
        t.counted_down("the time until it is gone", left, (t.unit() * 3, issued), seen.at)?;
    }
    t.pass_until(t.unit() * 2, &issue.id, None).await
}

/// Each moment is asked of keys of its own, by the claim alone: no inspection comes before.
async fn is_claimed_until_its_ttl_has_passed_and_known_until_its_grace_has(t: &Bench) -> Verdict {
    let of = |id| Issue { id, ttl: t.unit(), grace: t.unit() };
    let all = [of(t.id()?), of(t.id()?), of(t.id()?)];
    let (issued, _) = t.timed(t.store.issue_all(&all)).await?;
    let [before, between, after] = &all;
    let rest = t.pass_nearly(t.unit()).await;
    let answer = t.store.claim(&claim_issued(&before.id)).await?;
    t.within(t.unit(), issued, same("a claim before the end of the ttl", answer, owned()))?;
    t.pass(rest).await;
    let answer = t.store.claim(&claim_issued(&between.id)).await?;
    t.within(t.unit() * 2, issued, same("a claim after the ttl", answer, Claimed::IssueExpired))?;
    t.pass(t.unit()).await;
    for issue in [between, after] {
        let answer = t.store.claim(&claim_issued(&issue.id)).await?;
        same("a claim after the grace", answer, Claimed::NotIssued)?;
    }
    Ok(())
}

async fn without_a_grace_is_forgotten_after_its_ttl(t: &Bench) -> Verdict {
    let of = |id| Issue { id, ttl: t.unit(), grace: Duration::ZERO };
    let all = [of(t.id()?), of(t.id()?), of(t.id()?)];
    let (issued, _) = t.timed(t.store.issue_all(&all)).await?;
    let [seen, claimed, left] = &all;
    let rest = t.pass_nearly(t.unit()).await;
    let state = t.state(&seen.id).await?;
    t.within(t.unit(), issued, same("the state", state, Some(RecordState::Issued)))?;
    let answer = t.store.claim(&claim_issued(&claimed.id)).await?;
    t.within(t.unit(), issued, same("a claim before the end of the ttl", answer, owned()))?;
    t.pass_until(rest, &seen.id, None).await?;
    same("a claim after it", t.store.claim(&claim_issued(&left.id)).await?, Claimed::NotIssued)
}

async fn of_years_is_kept(t: &Bench) -> Verdict {
    let years = Duration::from_secs(10 * 365 * 24 * 60 * 60);
    for grace in [Duration::ZERO, years] {
        let issue = Issue { ttl: years * 9, grace, ..issue(&t.id()?) };
        let (issued, _) = t.timed(t.store.issue(&issue)).await?;
        let seen = t.look(&issue.id).await?;
        let found = seen.info.map(|info| (info.state, info.expires_in));
        same("the state", found.map(|found| found.0), Some(RecordState::Issued))?;
        let left = found.unwrap_or((RecordState::Issued, Duration::ZERO)).1;
        t.counted_down("expires_in of what was issued", left, (years * 9, issued), seen.at)?;
        same("a claim", t.store.claim(&claim_issued(&issue.id)).await?, owned())?;
    }
    Ok(())
}

async fn sent_again_is_recognised(t: &Bench) -> Verdict {
    for grace in [Duration::ZERO, LONG] {
        let issue = Issue { grace, ..issue(&t.id()?) };
        for _ in 0..3 {
            same("the same issue again", t.store.issue(&issue).await?, Issued::Issued)?;
        }
        same("by another handle", t.second().await?.issue(&issue).await?, Issued::Issued)?;
        same("a claim then", t.store.claim(&claim_issued(&issue.id)).await?, owned())?;
    }
    Ok(())
}

async fn sent_again_with_parts_of_milliseconds_is_recognised(t: &Bench) -> Verdict {
    for grace in [Duration::from_micros(300), LONG + Duration::from_micros(1500)] {
        let issue = Issue { grace, ttl: LONG + Duration::from_nanos(1), ..issue(&t.id()?) };
        for _ in 0..2 {
            same("the same issue again", t.store.issue(&issue).await?, Issued::Issued)?;
            same("the state", t.state(&issue.id).await?, Some(RecordState::Issued))?;
        }
        same("a claim then", t.store.claim(&claim_issued(&issue.id)).await?, owned())?;
    }
    Ok(())
}

async fn sent_again_does_not_extend_its_time(t: &Bench) -> Verdict {
    let issue = t.issued().await?;
    let before = t.look(&issue.id).await?;
    t.pass(t.unit() / 2).await;
    t.store.issue(&issue).await?;
    t.unchanged("what was issued, after the same issue again", &issue.id, &before).await
}

async fn sent_again_when_it_has_expired_does_not_revive_it(t: &Bench) -> Verdict {
    let issue = expired(t).await?;
    let before = t.look(&issue.id).await?;
    same("the same issue again", t.store.issue(&issue).await?, Issued::Issued)?;
    t.unchanged("what has expired, after the same issue again", &issue.id, &before).await?;
    same("a claim then", t.store.claim(&claim_issued(&issue.id)).await?, Claimed::IssueExpired)
}

async fn that_was_dropped_can_be_sent_again(t: &Bench) -> Verdict {
    for polls in 0..4 {
        let issue = issue(&t.id()?);
        {
            let mut dropped = pin!(t.store.issue(&issue));
            for _ in 0..polls {
                if poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context))).await.is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        let what = format!("an issue that was dropped after {polls} polls and sent again");
        same(&what, t.store.issue(&issue).await?, Issued::Issued)?;
        same("a claim then", t.store.claim(&claim_issued(&issue.id)).await?, owned())?;
    }
    Ok(())
}

async fn with_another_grace_is_taken_and_changes_nothing(t: &Bench) -> Verdict {
    for (first, second) in [(LONG, LONG * 2), (LONG, Duration::ZERO), (Duration::ZERO, LONG)] {
        let one = Issue { grace: first, ..issue(&t.id()?) };
        same("an issue of nothing", t.store.issue(&one).await?, Issued::Issued)?;
        let before = t.look(&one.id).await?;
        t.pass(t.unit() / 8).await;
        let other = Issue { grace: second, ttl: LONG * 9, ..one.clone() };
        same("an issue with another grace", t.store.issue(&other).await?, Issued::Taken)?;
        t.unchanged("what was issued before", &one.id, &before).await?;
    }
    Ok(())
}

async fn of_any_other_state_is_taken_and_changes_nothing(t: &Bench) -> Verdict {
    let states = [RecordState::InFlight, RecordState::Released, RecordState::Abandoned, RecordState::Done];
    let mut all = Vec::new();
    for state in states {
        all.push(t.given(state).await?);
    }
    all.extend(t.both_committed(None).await?);
    for given in all {
        let before = t.look(&given.id).await?;
        t.pass(t.unit() / 8).await;
        let what = format!("a record that is {:?}", before.info.as_ref().map(|info| info.state));
        for grace in [Duration::ZERO, LONG] {
            let issue = Issue { grace, ttl: LONG * 9, ..issue(&given.id) };
            same(&format!("an issue of {what}"), t.store.issue(&issue).await?, Issued::Taken)?;
        }
        t.unchanged(&what, &given.id, &before).await?;
    }
    Ok(())
}

async fn of_what_was_issued_and_claimed_is_taken(t: &Bench) -> Verdict {
    let issue = t.issued().await?;
    let first = claim_issued(&issue.id);
    t.own(&first).await?;
    same("the same issue again", t.store.issue(&issue).await?, Issued::Taken)?;
    t.store.commit(&commit(&first, 1)).await?;
    same("the same issue after the commit", t.store.issue(&issue).await?, Issued::Taken)?;
    let answer = t.store.claim(&claim_issued(&issue.id)).await?;
    matches_or_broken!("a claim then", answer, Claimed::Committed { attempt: 1, .. })
}

async fn of_an_empty_batch_answers_nothing(t: &Bench) -> Verdict {
    same("the number of answers", t.store.issue_all(&[]).await?.len(), 0)
}

/// Among free keys there are those in flight, and those that were issued before, with the same
/// grace or another: each answer stands where its issue does.
async fn of_many_answers_in_order_each_on_its_own(t: &Bench) -> Verdict {
    let mut issues = Vec::new();
    for _ in 0..1200 {
        issues.push(issue(&t.id()?));
    }
    let is_claimed = |number: usize| number % 17 == 3;
    let is_other = |number: usize| number % 13 == 5;
    let was_sent = |number: usize| number % 11 == 7;
    let before: Vec<Issue> = issues
        .iter()
        .enumerate()
        .filter_map(|(number, issue)| match number {
            _ if is_claimed(number) => None,
            _ if is_other(number) => Some(Issue { grace: LONG * 2, ..issue.clone() }),
            _ => was_sent(number).then(|| issue.clone()),
        })
        .collect();
    for answer in t.store.issue_all(&before).await? {
        same("an issue of nothing", answer?, Issued::Issued)?;
    }
    let mut claims = Vec::new();
    for (_, issue) in issues.iter().enumerate().filter(|(number, _)| is_claimed(*number)) {
        let (store, claim) = (t.store.clone(), claim(&issue.id));
        claims.push(async move { store.claim(&claim).await });
    }
    together(claims).await?;
    let answers = t.store.issue_all(&issues).await?.into_iter().collect::<Result<Vec<_>, _>>()?;
    same("the number of answers", answers.len(), issues.len())?;
    for (number, answer) in answers.into_iter().enumerate() {
        let wanted = if is_claimed(number) || is_other(number) { Issued::Taken } else { Issued::Issued };
        same(&format!("the answer to issue {number}"), answer, wanted)?;
    }
    // Not each: that would take longer than all the rest.
    for (number, issue) in issues.iter().enumerate().filter(|(number, _)| number % 23 == 0 || *number > 1190) {
        let wanted = if is_claimed(number) { RecordState::InFlight } else { RecordState::Issued };
        same(&format!("the state of key {number}"), t.state(&issue.id).await?, Some(wanted))?;
    }
    Ok(())
}

async fn of_one_key_twice_answers_twice(t: &Bench) -> Verdict {
    let (one, other) = (issue(&t.id()?), issue(&t.id()?));
    let longer = Issue { grace: LONG * 2, ..other.clone() };
    let issues = [one.clone(), one, other.clone(), longer, other];
    let answers = t.store.issue_all(&issues).await?.into_iter().collect::<Result<Vec<_>, _>>()?;
    same("the answers", answers, vec![Issued::Issued, Issued::Issued, Issued::Issued, Issued::Taken, Issued::Issued])
}

async fn by_another_handle_is_seen(t: &Bench) -> Verdict {
    let (issue, second) = (t.issued().await?, t.second().await?);
    let state = second.inspect(&issue.id).await?.map(|info| info.state);
    same("the state", state, Some(RecordState::Issued))?;
    same("a claim", second.claim(&claim_issued(&issue.id)).await?, owned())?;
    let answer = t.store.claim(&claim_issued(&issue.id)).await?;
    matches_or_broken!("a claim by the first handle", answer, Claimed::InFlight { attempt: 1, .. })
}

async fn of_one_key_does_not_let_another_be_claimed(t: &Bench) -> Verdict {
    let issue = issue(&t.id_of("", "a")?);
    same("an issue of nothing", t.store.issue(&issue).await?, Issued::Issued)?;
    for other in [t.id_of("", "A")?, t.id_of("", "a ")?, t.id_of(".other", "a")?, t.id_of("", &("a", "a"))?] {
        let answer = t.store.claim(&claim_issued(&other)).await?;
        same(&format!("a claim of {:?}", other.as_str()), answer, Claimed::NotIssued)?;
    }
    same("a claim of what was issued", t.store.claim(&claim_issued(&issue.id)).await?, owned())
}

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
            let claim = Claim { hold, must_be_issued, ..claim(&issue.id) };
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
        let first = Claim { fingerprint: print("one")?, must_be_issued, ..claim(&issue.id) };
        same("a claim of an issued key", t.store.claim(&first).await?, owned())?;
        let found = t.store.inspect(&issue.id).await?.and_then(|info| info.fingerprint);
        same("the fingerprint", found, first.fingerprint)?;
        let other = Claim { fingerprint: print("two")?, ..claim_issued(&issue.id) };
        same("a claim with another fingerprint", t.store.claim(&other).await?, Claimed::Mismatch)?;
    }
    Ok(())
}

async fn claimed_is_recognised_when_the_claim_is_sent_again(t: &Bench) -> Verdict {
    for must_be_issued in [false, true] {
        let issue = t.issued().await?;
        let first = Claim { must_be_issued, max_attempts: Some(1), ..claim(&issue.id) };
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
        let first = Claim { must_be_issued, ..claim(&issue.id) };
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
            let claim = Claim { max_attempts: Some(1), ..claim };
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
        let none = Claim { max_attempts: Some(0), must_be_issued, ..claim(&issue.id) };
        same("a claim of an issued key", t.store.claim(&none).await?, Claimed::Exhausted { attempts: 0 })?;
        t.unchanged("what was issued", &issue.id, &before).await?;
        same("a claim that allows more", t.store.claim(&claim_issued(&issue.id)).await?, owned())?;
    }
    let none = Claim { max_attempts: Some(0), ..claim_issued(&t.id()?) };
    same("a claim of nothing", t.store.claim(&none).await?, Claimed::NotIssued)
}

async fn is_owned_where_one_attempt_is_allowed(t: &Bench) -> Verdict {
    for must_be_issued in [false, true] {
        let issue = t.issued().await?;
        let only = Claim { max_attempts: Some(1), must_be_issued, ..claim(&issue.id) };
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
    let answer = t.store.claim(&Claim { take_over: false, ..claim_issued(&given.id) }).await?;
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
        let answer = t.store.claim(&Claim { max_attempts: Some(max), ..claim_issued(&given.id) }).await?;
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
        let other = Claim { fingerprint: print("two")?, ..claim_issued(&given.id) };
        same("a claim with another fingerprint", t.store.claim(&other).await?, Claimed::Mismatch)?;
    }
    Ok(())
}

async fn is_lost_to_a_strangers_commit(t: &Bench) -> Verdict {
    let issue = t.issued().await?;
    let before = t.look(&issue.id).await?;
    for stranger in both_claims(&issue.id) {
        let with = commit(&stranger, 1);
        for commit in [idem_core::record::Commit { outcome: None, ..with.clone() }, with] {
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
