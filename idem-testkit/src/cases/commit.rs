//! The right to record an outcome, and the effect of a repeated commit.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use idem_core::record::Ownership::{Held, Lost};
use idem_core::record::RecordState::{Abandoned, Committed, Done, InFlight, Released};
use idem_core::record::{AsClaimed, Origin, Ownership, RecordState};

use crate::bench::LONG;
use crate::check::same;
use crate::script::Answer::{FindsCommitted, Owned};
use crate::script::Line::{Claims, Commits, Given, GivesUp, Is, IsGone, Look, Renews, Unchanged};
use crate::script::With::{Attempt, Elsewhere, NoOutcome, Outcome, RememberForTtl};
use crate::script::{A, B, C};
use crate::trial::{Trial, code, lines};

pub(super) const TRIALS: &[Trial] = &[
    lines(
        "commit::by_the_owner_is_held",
        &[Given(&[InFlight]), Commits(A, Held), Is(Committed)],
    ),
    lines(
        "commit::by_a_stranger_is_lost",
        &[
            Given(&[InFlight, Abandoned]),
            Look,
            Commits(B, Lost),
            Commits(B.with(&[RememberForTtl]), Lost),
            Commits(B.with(&[NoOutcome]), Lost),
            Unchanged,
        ],
    ),
    code("commit::by_the_owner_of_another_key_is_lost", |t| {
        Box::pin(async move {
            let one = t.given(RecordState::InFlight).await?;
            let other = t.given(RecordState::InFlight).await?;
            let crossed = one.commit.with_owner(other.claim.owner);
            same(
                "a commit by the owner of another key",
                t.store.commit(&crossed).await?,
                Ownership::Lost,
            )
        })
    }),
    lines(
        "commit::by_an_owner_whose_lease_ran_out_is_held",
        &[
            Given(&[Abandoned]),
            Commits(A, Held),
            Claims(B, FindsCommitted(1)),
        ],
    ),
    lines(
        "commit::by_an_owner_who_gave_up_to_abandoned_is_held",
        &[Given(&[InFlight]), GivesUp(A, Held), Commits(A, Held)],
    ),
    code(
        "commit::by_an_owner_who_knows_its_record_badly_is_held",
        |t| {
            Box::pin(async move {
                let wrong = AsClaimed::new(Origin::Released, LONG * 3, LONG * 4);
                for as_claimed in [None, Some(wrong)] {
                    for remember in [LONG, LONG * 2] {
                        let given = t.given(RecordState::InFlight).await?;
                        let commit = given
                            .commit
                            .with_remember(remember)
                            .with_as_claimed(as_claimed);
                        same(
                            &format!("a commit that says {as_claimed:?}"),
                            t.store.commit(&commit).await?,
                            Ownership::Held,
                        )?;
                        t.then(&given.id, Some(RecordState::Committed)).await?;
                    }
                }
                Ok(())
            })
        },
    ),
    lines(
        "commit::of_nothing_is_lost_and_leaves_nothing",
        &[
            Commits(A, Lost),
            Commits(A.with(&[NoOutcome]), Lost),
            IsGone,
        ],
    ),
    lines(
        "commit::of_a_released_record_is_lost",
        &[Given(&[Released]), Look, Commits(A, Lost), Unchanged],
    ),
    lines(
        "commit::of_a_committed_record_with_another_outcome_is_lost",
        &[
            Given(&[Committed]),
            Commits(A.with(&[Outcome("other")]), Lost),
            Claims(B, FindsCommitted(1)),
        ],
    ),
    lines(
        "commit::of_a_done_record_by_another_attempt_is_lost",
        &[
            Given(&[Done]),
            Look,
            Commits(B.with(&[Attempt(2), Outcome("other")]), Lost),
            Commits(B.with(&[Attempt(2), NoOutcome]), Lost),
            Unchanged,
        ],
    ),
    lines(
        "commit::without_an_outcome_of_a_committed_record_is_lost",
        &[
            Given(&[Committed]),
            Look,
            Commits(A.with(&[NoOutcome]), Lost),
            Unchanged,
        ],
    ),
    lines(
        "commit::sent_again_is_held",
        &[Given(&[Committed]), Commits(A, Held)],
    ),
    lines(
        "commit::sent_again_without_an_outcome_is_held",
        &[Given(&[Done]), Commits(A, Held)],
    ),
    code("commit::sent_again_after_its_ttl_is_held", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            let commit = given.commit.with_ttl(t.unit());
            t.store.commit(&commit).await?;
            t.pass_until(t.unit(), &given.id, Some(RecordState::Done))
                .await?;
            let before = t.look(&given.id).await?;
            same(
                "the same commit when its outcome has expired",
                t.store.commit(&commit).await?,
                Ownership::Held,
            )?;
            t.unchanged("the record then", &given.id, &before).await
        })
    }),
    lines(
        "commit::sent_again_does_not_extend_the_ttl",
        &[Given(&[Committed, Done]), Look, Commits(A, Held), Unchanged],
    ),
    lines(
        "commit::sent_again_by_another_handle_is_held",
        &[Given(&[Committed]), Commits(A.with(&[Elsewhere]), Held)],
    ),
    code("commit::a_dropped_one_can_be_sent_again", |t| {
        Box::pin(async move {
            for polls in 0..4 {
                let given = t.given(RecordState::InFlight).await?;
                {
                    let mut dropped = pin!(t.store.commit(&given.commit));
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
                let what = format!("a commit that was dropped after {polls} polls and sent again");
                same(&what, t.store.commit(&given.commit).await?, Ownership::Held)?;
            }
            Ok(())
        })
    }),
    lines(
        "commit::of_a_later_attempt_says_which",
        &[
            Given(&[Released]),
            Claims(B, Owned(2, Origin::Released)),
            Commits(B, Held),
            Claims(C, FindsCommitted(2)),
        ],
    ),
    code("commit::sets_ttl_and_remember_in_place_of_the_hold", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            t.pass(t.unit() / 4).await;
            let (committed, _) = t
                .timed(
                    t.store
                        .commit(&given.commit.with_ttl(LONG * 5).with_remember(LONG * 9)),
                )
                .await?;
            let seen = t.look(&given.id).await?;
            let left = seen.info.map_or(Duration::ZERO, |info| info.expires_in);
            t.counted_down(
                "the time until the committed record is done",
                left,
                (LONG * 5, committed),
                seen.at,
            )
        })
    }),
    code(
        "commit::without_an_outcome_is_done_for_as_long_as_remembered",
        |t| {
            Box::pin(async move {
                let given = t.given(RecordState::InFlight).await?;
                t.pass(t.unit() / 4).await;
                let commit = given
                    .commit
                    .with_outcome(None)
                    .with_ttl(LONG)
                    .with_remember(LONG * 9);
                let (committed, _) = t.timed(t.store.commit(&commit)).await?;
                let seen = t.look(&given.id).await?;
                let found = seen.info.map(|info| (info.state, info.expires_in));
                same(
                    "the state",
                    found.map(|(state, _)| state),
                    Some(RecordState::Done),
                )?;
                let left = found.map_or(Duration::ZERO, |(_, left)| left);
                t.counted_down(
                    "the time until it is forgotten",
                    left,
                    (LONG * 9, committed),
                    seen.at,
                )
            })
        },
    ),
    lines(
        "commit::after_a_renewal_is_held",
        &[Given(&[InFlight]), Renews(A, Held), Commits(A, Held)],
    ),
];
