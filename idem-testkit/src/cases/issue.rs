//! Keys that are given out for one use: what an issue answers, and for how long it holds.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use idem_core::record::Ownership::Held;
use idem_core::record::{Claimed, Issue, Issued, Origin, RecordState};

use super::concurrency::together;
use crate::bench::{LONG, claim, claim_issued, issue};
use crate::check::{broken, matches_or_broken, same};
use crate::script::Answer::{FindsCommitted, Owned};
use crate::script::Line::{Claims, Commits, Given, Issues};
use crate::script::With::MustBeIssued;
use crate::script::{A, B};
use crate::trial::{Trial, code, lines};

pub(super) const TRIALS: &[Trial] = &[
    code("issue::of_nothing_is_issued", |t| {
        Box::pin(async move {
            let issue = issue(&t.id()?).with_ttl(LONG * 7);
            let (issued, answer) = t.timed(t.store.issue(&issue)).await?;
            same("an issue of nothing", answer, Issued::Issued)?;
            t.pass(t.unit() / 2).await;
            let seen = t.look(&issue.id).await?;
            let info = seen
                .info
                .ok_or_else(|| broken("what was issued is not there"))?;
            same(
                "the state",
                (info.state, info.attempt),
                (RecordState::Issued, 0),
            )?;
            let rest = (
                info.fingerprint,
                info.is_error,
                info.lease_age,
                info.lease_left,
            );
            same("what else is known of it", rest, (None, false, None, None))?;
            t.counted_down("expires_in", info.expires_in, (LONG * 7, issued), seen.at)
        })
    }),
    code(
        "issue::is_issued_for_its_ttl_then_expired_for_its_grace_then_nothing",
        |t| {
            Box::pin(async move {
                let issue = issue(&t.id()?).with_ttl(t.unit()).with_grace(t.unit() * 2);
                let (issued, _) = t.timed(t.store.issue(&issue)).await?;
                let rest = t.pass_nearly(t.unit()).await;
                let seen = t.look(&issue.id).await?;
                let before = seen.info.map(|info| (info.state, info.expires_in));
                t.within(
                    t.unit(),
                    issued,
                    same(
                        "the state",
                        before.map(|found| found.0),
                        Some(RecordState::Issued),
                    ),
                )?;
                if let Some((RecordState::Issued, left)) = before {
                    t.counted_down(
                        "the time until it has expired",
                        left,
                        (issue.ttl, issued),
                        seen.at,
                    )?;
                }
                t.pass(rest).await;
                let seen = t.look(&issue.id).await?;
                let after = seen
                    .info
                    .map(|info| (info.state, info.attempt, info.expires_in));
                let state = after.map(|found| (found.0, found.1));
                t.within(
                    t.unit() * 3,
                    issued,
                    same(
                        "the state after the ttl",
                        state,
                        Some((RecordState::Expired, 0)),
                    ),
                )?;
                if let Some((.., left)) = after {
                    t.counted_down(
                        "the time until it is gone",
                        left,
                        (t.unit() * 3, issued),
                        seen.at,
                    )?;
                }
                t.pass_until(t.unit() * 2, &issue.id, None).await
            })
        },
    ),
    // Each moment is asked of keys of its own, by the claim alone: no inspection comes before.
    code(
        "issue::is_claimed_until_its_ttl_has_passed_and_known_until_its_grace_has",
        |t| {
            Box::pin(async move {
                let of = |id| Issue::new(id, t.unit()).with_grace(t.unit());
                let all = [of(t.id()?), of(t.id()?), of(t.id()?)];
                let (issued, _) = t.timed(t.store.issue_all(&all)).await?;
                let [before, between, after] = &all;
                let rest = t.pass_nearly(t.unit()).await;
                let answer = t.store.claim(&claim_issued(&before.id)).await?;
                t.within(
                    t.unit(),
                    issued,
                    same("a claim before the end of the ttl", answer, owned()),
                )?;
                t.pass(rest).await;
                let answer = t.store.claim(&claim_issued(&between.id)).await?;
                t.within(
                    t.unit() * 2,
                    issued,
                    same("a claim after the ttl", answer, Claimed::IssueExpired),
                )?;
                t.pass(t.unit()).await;
                for issue in [between, after] {
                    let answer = t.store.claim(&claim_issued(&issue.id)).await?;
                    same("a claim after the grace", answer, Claimed::NotIssued)?;
                }
                Ok(())
            })
        },
    ),
    code("issue::without_a_grace_is_forgotten_after_its_ttl", |t| {
        Box::pin(async move {
            let of = |id| Issue::new(id, t.unit());
            let all = [of(t.id()?), of(t.id()?), of(t.id()?)];
            let (issued, _) = t.timed(t.store.issue_all(&all)).await?;
            let [seen, claimed, left] = &all;
            let rest = t.pass_nearly(t.unit()).await;
            let state = t.state(&seen.id).await?;
            t.within(
                t.unit(),
                issued,
                same("the state", state, Some(RecordState::Issued)),
            )?;
            let answer = t.store.claim(&claim_issued(&claimed.id)).await?;
            t.within(
                t.unit(),
                issued,
                same("a claim before the end of the ttl", answer, owned()),
            )?;
            t.pass_until(rest, &seen.id, None).await?;
            same(
                "a claim after it",
                t.store.claim(&claim_issued(&left.id)).await?,
                Claimed::NotIssued,
            )
        })
    }),
    code("issue::of_years_is_kept", |t| {
        Box::pin(async move {
            let years = Duration::from_secs(10 * 365 * 24 * 60 * 60);
            for grace in [Duration::ZERO, years] {
                let issue = issue(&t.id()?).with_ttl(years * 9).with_grace(grace);
                let (issued, _) = t.timed(t.store.issue(&issue)).await?;
                let seen = t.look(&issue.id).await?;
                let found = seen.info.map(|info| (info.state, info.expires_in));
                same(
                    "the state",
                    found.map(|found| found.0),
                    Some(RecordState::Issued),
                )?;
                let left = found.unwrap_or((RecordState::Issued, Duration::ZERO)).1;
                t.counted_down(
                    "expires_in of what was issued",
                    left,
                    (years * 9, issued),
                    seen.at,
                )?;
                same(
                    "a claim",
                    t.store.claim(&claim_issued(&issue.id)).await?,
                    owned(),
                )?;
            }
            Ok(())
        })
    }),
    code("issue::sent_again_is_recognised", |t| {
        Box::pin(async move {
            for grace in [Duration::ZERO, LONG] {
                let issue = issue(&t.id()?).with_grace(grace);
                for _ in 0..3 {
                    same(
                        "the same issue again",
                        t.store.issue(&issue).await?,
                        Issued::Issued,
                    )?;
                }
                same(
                    "by another handle",
                    t.second().await?.issue(&issue).await?,
                    Issued::Issued,
                )?;
                same(
                    "a claim then",
                    t.store.claim(&claim_issued(&issue.id)).await?,
                    owned(),
                )?;
            }
            Ok(())
        })
    }),
    code(
        "issue::sent_again_with_parts_of_milliseconds_is_recognised",
        |t| {
            Box::pin(async move {
                for grace in [
                    Duration::from_micros(300),
                    LONG + Duration::from_micros(1500),
                ] {
                    let issue = issue(&t.id()?)
                        .with_grace(grace)
                        .with_ttl(LONG + Duration::from_nanos(1));
                    for _ in 0..2 {
                        same(
                            "the same issue again",
                            t.store.issue(&issue).await?,
                            Issued::Issued,
                        )?;
                        same(
                            "the state",
                            t.state(&issue.id).await?,
                            Some(RecordState::Issued),
                        )?;
                    }
                    same(
                        "a claim then",
                        t.store.claim(&claim_issued(&issue.id)).await?,
                        owned(),
                    )?;
                }
                Ok(())
            })
        },
    ),
    code("issue::sent_again_does_not_extend_its_time", |t| {
        Box::pin(async move {
            let issue = t.issued().await?;
            let before = t.look(&issue.id).await?;
            t.pass(t.unit() / 2).await;
            t.store.issue(&issue).await?;
            t.unchanged(
                "what was issued, after the same issue again",
                &issue.id,
                &before,
            )
            .await
        })
    }),
    code(
        "issue::sent_again_when_it_has_expired_does_not_revive_it",
        |t| {
            Box::pin(async move {
                let issue = t.expired().await?;
                let before = t.look(&issue.id).await?;
                same(
                    "the same issue again",
                    t.store.issue(&issue).await?,
                    Issued::Issued,
                )?;
                t.unchanged(
                    "what has expired, after the same issue again",
                    &issue.id,
                    &before,
                )
                .await?;
                same(
                    "a claim then",
                    t.store.claim(&claim_issued(&issue.id)).await?,
                    Claimed::IssueExpired,
                )
            })
        },
    ),
    code("issue::that_was_dropped_can_be_sent_again", |t| {
        Box::pin(async move {
            for polls in 0..4 {
                let issue = issue(&t.id()?);
                {
                    let mut dropped = pin!(t.store.issue(&issue));
                    for _ in 0..polls {
                        if poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context)))
                            .await
                            .is_ready()
                        {
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                }
                let what = format!("an issue that was dropped after {polls} polls and sent again");
                same(&what, t.store.issue(&issue).await?, Issued::Issued)?;
                same(
                    "a claim then",
                    t.store.claim(&claim_issued(&issue.id)).await?,
                    owned(),
                )?;
            }
            Ok(())
        })
    }),
    code(
        "issue::with_another_grace_is_taken_and_changes_nothing",
        |t| {
            Box::pin(async move {
                for (first, second) in [
                    (LONG, LONG * 2),
                    (LONG, Duration::ZERO),
                    (Duration::ZERO, LONG),
                ] {
                    let one = issue(&t.id()?).with_grace(first);
                    same(
                        "an issue of nothing",
                        t.store.issue(&one).await?,
                        Issued::Issued,
                    )?;
                    let before = t.look(&one.id).await?;
                    t.pass(t.unit() / 8).await;
                    let other = one.clone().with_grace(second).with_ttl(LONG * 9);
                    same(
                        "an issue with another grace",
                        t.store.issue(&other).await?,
                        Issued::Taken,
                    )?;
                    t.unchanged("what was issued before", &one.id, &before)
                        .await?;
                }
                Ok(())
            })
        },
    ),
    code(
        "issue::of_any_other_state_is_taken_and_changes_nothing",
        |t| {
            Box::pin(async move {
                let states = [
                    RecordState::InFlight,
                    RecordState::Released,
                    RecordState::Abandoned,
                    RecordState::Done,
                ];
                let mut all = Vec::new();
                for state in states {
                    all.push(t.given(state).await?);
                }
                all.extend(t.both_committed(None).await?);
                for given in all {
                    let before = t.look(&given.id).await?;
                    t.pass(t.unit() / 8).await;
                    let what = format!(
                        "a record that is {:?}",
                        before.info.as_ref().map(|info| info.state)
                    );
                    for grace in [Duration::ZERO, LONG] {
                        let issue = issue(&given.id).with_grace(grace).with_ttl(LONG * 9);
                        same(
                            &format!("an issue of {what}"),
                            t.store.issue(&issue).await?,
                            Issued::Taken,
                        )?;
                    }
                    t.unchanged(&what, &given.id, &before).await?;
                }
                Ok(())
            })
        },
    ),
    lines(
        "issue::of_what_was_issued_and_claimed_is_taken",
        &[
            Given(&[RecordState::Issued]),
            Claims(A.with(&[MustBeIssued]), Owned(1, Origin::Issued)),
            Issues(Issued::Taken),
            Commits(A, Held),
            Issues(Issued::Taken),
            Claims(B.with(&[MustBeIssued]), FindsCommitted(1)),
        ],
    ),
    code("issue::of_an_empty_batch_answers_nothing", |t| {
        Box::pin(async move {
            same(
                "the number of answers",
                t.store.issue_all(&[]).await?.len(),
                0,
            )
        })
    }),
    // Among free keys there are those in flight, and those that were issued before, with the same
    // grace or another: each answer stands where its issue does.
    code("issue::of_many_answers_in_order_each_on_its_own", |t| {
        Box::pin(async move {
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
                    _ if is_other(number) => Some(issue.clone().with_grace(LONG * 2)),
                    _ => was_sent(number).then(|| issue.clone()),
                })
                .collect();
            for answer in t.store.issue_all(&before).await? {
                same("an issue of nothing", answer?, Issued::Issued)?;
            }
            let mut claims = Vec::new();
            for (_, issue) in issues
                .iter()
                .enumerate()
                .filter(|(number, _)| is_claimed(*number))
            {
                let store = t.store.clone();
                let claim = claim(&issue.id);
                claims.push(async move { store.claim(&claim).await });
            }
            together(claims).await?;
            let answers = t
                .store
                .issue_all(&issues)
                .await?
                .into_iter()
                .collect::<Result<Vec<_>, _>>()?;
            same("the number of answers", answers.len(), issues.len())?;
            for (number, answer) in answers.into_iter().enumerate() {
                let wanted = if is_claimed(number) || is_other(number) {
                    Issued::Taken
                } else {
                    Issued::Issued
                };
                same(&format!("the answer to issue {number}"), answer, wanted)?;
            }
            // Not each: that would take longer than all the rest.
            for (number, issue) in issues
                .iter()
                .enumerate()
                .filter(|(number, _)| number % 23 == 0 || *number > 1190)
            {
                let wanted = if is_claimed(number) {
                    RecordState::InFlight
                } else {
                    RecordState::Issued
                };
                same(
                    &format!("the state of key {number}"),
                    t.state(&issue.id).await?,
                    Some(wanted),
                )?;
            }
            Ok(())
        })
    }),
    code("issue::of_one_key_twice_answers_twice", |t| {
        Box::pin(async move {
            let one = issue(&t.id()?);
            let other = issue(&t.id()?);
            let longer = other.clone().with_grace(LONG * 2);
            let issues = [one.clone(), one, other.clone(), longer, other];
            let answers = t
                .store
                .issue_all(&issues)
                .await?
                .into_iter()
                .collect::<Result<Vec<_>, _>>()?;
            same(
                "the answers",
                answers,
                vec![
                    Issued::Issued,
                    Issued::Issued,
                    Issued::Issued,
                    Issued::Taken,
                    Issued::Issued,
                ],
            )
        })
    }),
    code("issue::by_another_handle_is_seen", |t| {
        Box::pin(async move {
            let issue = t.issued().await?;
            let second = t.second().await?;
            let state = second.inspect(&issue.id).await?.map(|info| info.state);
            same("the state", state, Some(RecordState::Issued))?;
            same(
                "a claim",
                second.claim(&claim_issued(&issue.id)).await?,
                owned(),
            )?;
            let answer = t.store.claim(&claim_issued(&issue.id)).await?;
            matches_or_broken!(
                "a claim by the first handle",
                answer,
                Claimed::InFlight { attempt: 1, .. }
            )
        })
    }),
    code("issue::of_one_key_does_not_let_another_be_claimed", |t| {
        Box::pin(async move {
            let issue = issue(&t.id_of("", "a")?);
            same(
                "an issue of nothing",
                t.store.issue(&issue).await?,
                Issued::Issued,
            )?;
            for other in [
                t.id_of("", "A")?,
                t.id_of("", "a ")?,
                t.id_of(".other", "a")?,
                t.id_of("", &("a", "a"))?,
            ] {
                let answer = t.store.claim(&claim_issued(&other)).await?;
                same(
                    &format!("a claim of {:?}", other.as_str()),
                    answer,
                    Claimed::NotIssued,
                )?;
            }
            same(
                "a claim of what was issued",
                t.store.claim(&claim_issued(&issue.id)).await?,
                owned(),
            )
        })
    }),
];

pub(super) fn owned() -> Claimed {
    Claimed::Owned {
        attempt: 1,
        from: Origin::Issued,
    }
}
