//! The effect of a claim on each state. Take-overs and fingerprints have their own files.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use idem_core::record::Ownership::Held;
use idem_core::record::RecordState::{Abandoned, Committed, Done, InFlight, Released};
use idem_core::record::{Claimed, Origin, Ownership};

use crate::bench::{Bench, LONG, claim, commit};
use crate::check::{Verdict, broken, holds, same};
use crate::script::Answer::{Exhausted, FindsCommitted, FindsDone, FindsInFlight, Owned};
use crate::script::Line::{Claims, Commits, Given, Is, Look, Releases, Renews, Unchanged};
use crate::script::With::{AtMost, Elsewhere, Hold, Lease};
use crate::script::{A, B, C};
use crate::script::{EIGHTFOLD, TWICE};
use crate::trial::{Trial, code, lines};

pub(super) const TRIALS: &[Trial] = &[
    lines(
        "claim::nothing_is_owned_as_attempt_one",
        &[Claims(A, Owned(1, Origin::Nothing))],
    ),
    lines(
        "claim::released_is_owned_as_the_next_attempt",
        &[
            Given(&[Released]),
            Claims(B, Owned(2, Origin::Released)),
            Is(InFlight),
        ],
    ),
    code(
        "claim::in_flight_is_in_flight_with_what_is_left_of_the_lease",
        |t| {
            Box::pin(async move {
                let first = claim(&t.id()?);
                let (claimed, _) = t.timed(t.own(&first)).await?;
                t.pass(t.unit() / 4).await;
                let (asked, answer) = t.timed(t.store.claim(&claim(&first.id))).await?;
                let Claimed::InFlight {
                    attempt: 1,
                    lease_left,
                } = answer
                else {
                    return Err(broken(format!(
                        "a claim of a key in flight: wanted InFlight, attempt 1, got {answer:?}"
                    )));
                };
                t.counted_down("lease_left", lease_left, (LONG, claimed), asked)
            })
        },
    ),
    lines(
        "claim::in_flight_by_a_later_attempt_says_which",
        &[
            Given(&[Released]),
            Claims(B, Owned(2, Origin::Released)),
            Claims(C, FindsInFlight(2)),
        ],
    ),
    lines(
        "claim::in_flight_is_left_as_it_is",
        &[
            Given(&[InFlight]),
            Look,
            Claims(B.with(&[Lease(TWICE), Hold(EIGHTFOLD)]), FindsInFlight(1)),
            Unchanged,
            Commits(A, Held),
        ],
    ),
    lines(
        "claim::committed_gives_the_outcome",
        &[Given(&[Committed]), Claims(B, FindsCommitted(1))],
    ),
    lines(
        "claim::committed_is_left_as_it_is",
        &[
            Given(&[Committed]),
            Look,
            Claims(B.with(&[Hold(EIGHTFOLD)]), FindsCommitted(1)),
            Unchanged,
        ],
    ),
    lines(
        "claim::done_gives_no_outcome",
        &[Given(&[Done]), Claims(B, FindsDone(1))],
    ),
    lines(
        "claim::done_is_left_as_it_is",
        &[
            Given(&[Done]),
            Look,
            Claims(B.with(&[Hold(EIGHTFOLD)]), FindsDone(1)),
            Unchanged,
        ],
    ),
    lines(
        "claim::ones_own_sent_again_is_recognised",
        &[
            Given(&[InFlight]),
            Claims(A, Owned(1, Origin::Nothing)),
            Claims(A, Owned(1, Origin::Nothing)),
            Commits(A, Held),
        ],
    ),
    lines(
        "claim::ones_own_of_a_later_attempt_is_recognised",
        &[
            Given(&[Released]),
            Claims(B, Owned(2, Origin::Released)),
            Claims(B, Owned(2, Origin::Released)), // A renewal keeps the origin of the claim.
            Renews(B, Held),
            Claims(B, Owned(2, Origin::Released)),
        ],
    ),
    lines(
        "claim::ones_own_is_recognised_by_another_handle",
        &[
            Given(&[InFlight]),
            Claims(A.with(&[Elsewhere]), Owned(1, Origin::Nothing)),
        ],
    ),
    lines(
        "claim::ones_own_is_recognised_after_its_lease_ran_out",
        &[
            Given(&[Abandoned]),
            Claims(A, Owned(1, Origin::Nothing)),
            Is(Abandoned),
        ],
    ),
    lines(
        "claim::ones_own_sent_again_does_not_renew_the_lease",
        &[
            Given(&[InFlight]),
            Look,
            Claims(A, Owned(1, Origin::Nothing)),
            Unchanged,
        ],
    ),
    lines(
        "claim::ones_own_sent_again_is_not_exhausted",
        &[
            Claims(A.with(&[AtMost(1)]), Owned(1, Origin::Nothing)),
            Claims(A, Owned(1, Origin::Nothing)),
        ],
    ),
    code("claim::a_dropped_one_can_be_sent_again", |t| {
        Box::pin(async move {
            for polls in 0..4 {
                let claim = claim(&t.id()?);
                {
                    let mut dropped = pin!(t.store.claim(&claim));
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
                let answer = t.store.claim(&claim).await?;
                let what = format!("a claim that was dropped after {polls} polls and sent again");
                same(
                    &what,
                    answer,
                    Claimed::Owned {
                        attempt: 1,
                        from: Origin::Nothing,
                    },
                )?;
                same(
                    "then a commit",
                    t.store.commit(&commit(&claim, 1)).await?,
                    Ownership::Held,
                )?;
            }
            Ok(())
        })
    }),
    lines(
        "claim::released_is_exhausted_at_max_attempts",
        &[
            Claims(A.with(&[AtMost(2)]), Owned(1, Origin::Nothing)),
            Releases(A, Held),
            Claims(B.with(&[AtMost(2)]), Owned(2, Origin::Released)),
            Releases(B, Held),
            Claims(C.with(&[AtMost(2)]), Exhausted(2)),
        ],
    ),
    lines(
        "claim::exhausted_is_left_as_it_is",
        &[
            Given(&[Released]),
            Look,
            Claims(B.with(&[AtMost(1)]), Exhausted(1)),
            Unchanged,
            Claims(B.with(&[AtMost(2)]), Owned(2, Origin::Released)),
        ],
    ),
    lines(
        "claim::max_attempts_does_not_matter_to_what_cannot_be_claimed",
        &[
            Given(&[InFlight]),
            Claims(B.with(&[AtMost(1)]), FindsInFlight(1)),
            Given(&[Committed]),
            Claims(B.with(&[AtMost(1)]), FindsCommitted(1)),
            Given(&[Done]),
            Claims(B.with(&[AtMost(1)]), FindsDone(1)),
        ],
    ),
    lines(
        "claim::max_attempts_of_one_allows_the_first",
        &[Claims(A.with(&[AtMost(1)]), Owned(1, Origin::Nothing))],
    ),
    lines(
        "claim::sees_what_another_handle_claimed",
        &[
            Given(&[InFlight]),
            Claims(B.with(&[Elsewhere]), FindsInFlight(1)),
            Commits(A.with(&[Elsewhere]), Held),
            Claims(B, FindsCommitted(1)),
        ],
    ),
    code("claim::keys_of_one_operation_do_not_collide", |t| {
        Box::pin(async move {
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
        })
    }),
    code("claim::keys_of_two_operations_do_not_collide", |t| {
        Box::pin(async move {
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
        })
    }),
    code(
        "claim::keys_of_any_length_and_characters_are_kept_apart",
        |t| {
            Box::pin(async move {
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
            })
        },
    ),
];

/// Claims each, then commits each with an outcome of its own, and finds them all as they were
/// committed.
async fn all_apart(t: &Bench, ids: &[idem_core::record::RecordId]) -> Verdict {
    let mut commits = Vec::new();
    for (index, id) in ids.iter().enumerate() {
        let claim = claim(id);
        let answer = t.store.claim(&claim).await?;
        let what = format!("the claim of {:?}, which no other claim has", id.as_str());
        same(
            &what,
            answer,
            Claimed::Owned {
                attempt: 1,
                from: Origin::Nothing,
            },
        )?;
        let outcome = Some(crate::bench::outcome(index.to_string().as_bytes()));
        commits.push(commit(&claim, 1).with_outcome(outcome));
    }
    for commit in &commits {
        same("the commit", t.store.commit(commit).await?, Ownership::Held)?;
    }
    for commit in commits {
        let answer = t.store.claim(&claim(&commit.id)).await?;
        let what = format!("the outcome of {:?}", commit.id.as_str());
        let right = matches!(
            &answer,
            Claimed::Committed { outcome, .. } if Some(outcome) == commit.outcome.as_ref(),
        );
        holds(&format!("{what}: wanted its own, got {answer:?}"), right)?;
        let seen = t
            .store
            .inspect(&commit.id)
            .await?
            .and_then(|info| info.outcome);
        same(&format!("{what}, inspected"), seen, commit.outcome)?;
    }
    Ok(())
}
