//! Records that can be removed, and a fresh start after that.

use idem_core::record::Ownership::{Held, Lost};
use idem_core::record::RecordState::{Abandoned, Committed, Done, InFlight, Released};
use idem_core::record::{Claimed, Origin, Ownership, RecordState, Removed};

use crate::bench::{LONG, abandon, claim, commit, outcome, renewal};
use crate::check::{broken, matches_or_broken, same};
use crate::script::Answer::{FindsDone, Owned};
use crate::script::Line::{Claims, Commits, Given, GivenWith, GivesUp, IsGone, Removes, Renews};
use crate::script::With::{Elsewhere, NoOutcome, Print};
use crate::script::{A, B, C};
use crate::trial::{Trial, code, lines};

pub(super) const TRIALS: &[Trial] = &[
    lines(
        "remove::nothing_is_nothing",
        &[Removes(A, Removed::Nothing)],
    ),
    code(
        "remove::in_flight_is_left_with_what_is_left_of_the_lease",
        |t| {
            Box::pin(async move {
                let claim = claim(&t.id()?);
                let (claimed, _) = t.timed(t.own(&claim)).await?;
                let before = t.look(&claim.id).await?;
                t.pass(t.unit() / 2).await;
                let (removed, answer) = t.timed(t.store.remove(&claim.id)).await?;
                let Removed::InFlight { lease_left } = answer else {
                    return Err(broken(format!(
                        "a removal of a record in flight: wanted InFlight, got {answer:?}"
                    )));
                };
                t.counted_down("lease_left", lease_left, (LONG, claimed), removed)?;
                t.unchanged("the record then", &claim.id, &before).await?;
                same(
                    "the owner's renewal",
                    t.store.renew(renewal(&claim)).await?,
                    Ownership::Held,
                )
            })
        },
    ),
    lines(
        "remove::released_is_removed_and_begins_at_attempt_one",
        &[
            Given(&[Released]),
            Removes(B, Removed::Removed),
            IsGone,
            Removes(B, Removed::Nothing),
            Claims(B, Owned(1, Origin::Nothing)),
        ],
    ),
    lines(
        "remove::abandoned_is_removed_and_begins_at_attempt_one",
        &[
            Given(&[Abandoned]),
            Removes(B, Removed::Removed),
            IsGone,
            Removes(B, Removed::Nothing),
            Claims(B, Owned(1, Origin::Nothing)),
        ],
    ),
    lines(
        "remove::given_up_is_removed",
        &[
            Given(&[InFlight]),
            GivesUp(A, Held),
            Removes(B, Removed::Removed),
        ],
    ),
    lines(
        "remove::committed_is_removed_and_begins_at_attempt_one",
        &[
            Given(&[Committed]),
            Removes(B, Removed::Removed),
            IsGone,
            Removes(B, Removed::Nothing),
            Claims(B, Owned(1, Origin::Nothing)),
        ],
    ),
    lines(
        "remove::done_is_removed_and_begins_at_attempt_one",
        &[
            Given(&[Done]),
            Removes(B, Removed::Removed),
            IsGone,
            Removes(B, Removed::Nothing),
            Claims(B, Owned(1, Origin::Nothing)),
        ],
    ),
    lines(
        "remove::a_late_owner_cannot_bring_it_back",
        &[
            Given(&[Abandoned]),
            Removes(B, Removed::Removed),
            Commits(A, Lost),
            Renews(A, Lost),
            GivesUp(A, Lost),
            IsGone,
        ],
    ),
    code(
        "remove::a_late_owner_changes_nothing_in_the_next_life",
        |t| {
            Box::pin(async move {
                for remember in [LONG, LONG * 2] {
                    let late = t.given(RecordState::Abandoned).await?;
                    let late_commit = late.commit.with_remember(remember);
                    t.store.remove(&late.id).await?;
                    let next = claim(&late.id);
                    same("the first attempt of the next life", t.own(&next).await?, 1)?;
                    let before = t.look(&late.id).await?;
                    let answer = t.store.commit(&late_commit).await?;
                    same(
                        "the late owner's commit while the next owner's body runs",
                        answer,
                        Ownership::Lost,
                    )?;
                    same(
                        "the late owner's renewal",
                        t.store.renew(renewal(&late.claim)).await?,
                        Ownership::Lost,
                    )?;
                    same(
                        "the late owner's giving up",
                        t.store.release(&abandon(&late.claim)).await?,
                        Ownership::Lost,
                    )?;
                    t.unchanged("the next owner's record", &late.id, &before)
                        .await?;

                    let commit = commit(&next, 1)
                        .with_remember(remember)
                        .with_outcome(Some(outcome(b"\"the next life\"")));
                    same(
                        "the next owner's commit",
                        t.store.commit(&commit).await?,
                        Ownership::Held,
                    )?;
                    let before = t.look(&late.id).await?;
                    same(
                        "the late owner's commit then",
                        t.store.commit(&late_commit).await?,
                        Ownership::Lost,
                    )?;
                    // Of an equal outcome a store may take it for the next owner's commit, sent
                    // again.
                    let equal = late_commit.with_outcome(commit.outcome.clone());
                    let _: Ownership = t.store.commit(&equal).await?;
                    t.unchanged("the committed record", &late.id, &before)
                        .await?;
                    let answer = t.store.claim(&claim(&late.id)).await?;
                    matches_or_broken!(
                        "a claim then",
                        answer,
                        Claimed::Committed { attempt: 1, outcome }
                            if Some(&outcome) == commit.outcome.as_ref(),
                    )?;
                }
                Ok(())
            })
        },
    ),
    lines(
        "remove::the_fingerprint_goes_with_it",
        &[
            GivenWith("one", &[Committed]),
            Removes(B, Removed::Removed),
            Claims(B.with(&[Print("two")]), Owned(1, Origin::Nothing)),
        ],
    ),
    lines(
        "remove::the_outcome_goes_with_it",
        &[
            Given(&[Committed]),
            Removes(B, Removed::Removed),
            Claims(B, Owned(1, Origin::Nothing)),
            // If a part of the outcome is left somewhere, a record without one finds it.
            Commits(B.with(&[NoOutcome]), Held),
            Claims(C, FindsDone(1)),
        ],
    ),
    lines(
        "remove::by_another_handle",
        &[
            Given(&[Committed]),
            Removes(B.with(&[Elsewhere]), Removed::Removed),
            IsGone,
        ],
    ),
];
