//! Keys that were given out for one use: what a claim makes of them, and of a key that must have
//! been given out.

use idem_core::record::Ownership::{Held, Lost};
use idem_core::record::RecordState::{Abandoned, Committed, Done, Expired, InFlight, Released};
use idem_core::record::{Claimed, Issued, Origin, RecordState, Removed};

use super::concurrency::{MANY, together};
use super::issue::owned;
use crate::bench::{LONG, claim, claim_issued};
use crate::check::{broken, matches_or_broken, same};
use crate::handle::soon;
use crate::script::Answer::{
    Exhausted, FindsAbandoned, FindsCommitted, FindsDone, FindsInFlight, IssueExpired, Mismatch,
    NotIssued, Owned,
};
use crate::script::Line::{
    Claims, Commits, Given, GivenWith, GivesUp, HasPrint, IsAt, IsGone, Issues, Look, Releases,
    Removes, Renews, Unchanged, Undoes,
};
use crate::script::With::{AtMost, Elsewhere, MustBeIssued, NoOutcome, NoTakeOver, Print};
use crate::script::{A, B, C, D, E, F};
use crate::trial::{Trial, code, lines};

pub(super) const TRIALS: &[Trial] = &[
    lines(
        "issue::is_owned_as_attempt_one",
        &[
            Given(&[RecordState::Issued]),
            Claims(A, Owned(1, Origin::Issued)),
            IsAt(InFlight, 1),
            Claims(B, FindsInFlight(1)),
            Claims(C.with(&[MustBeIssued]), FindsInFlight(1)),
            Renews(A, Held),
            Commits(A, Held),
            Claims(D.with(&[MustBeIssued]), FindsCommitted(1)),
        ],
    ),
    lines(
        "issue::is_owned_as_attempt_one_where_it_must_be_issued",
        &[
            Given(&[RecordState::Issued]),
            Claims(A.with(&[MustBeIssued]), Owned(1, Origin::Issued)),
            IsAt(InFlight, 1),
            Claims(B, FindsInFlight(1)),
            Claims(C.with(&[MustBeIssued]), FindsInFlight(1)),
            Renews(A, Held),
            Commits(A, Held),
            Claims(D.with(&[MustBeIssued]), FindsCommitted(1)),
        ],
    ),
    code(
        "issue::of_many_claims_of_one_that_must_be_issued_one_is_owned",
        |t| {
            Box::pin(async move {
                let handles = [t.store.clone(), t.second().await?];
                for _ in 0..10 {
                    let issue = t.issued().await?;
                    let claims = (0..MANY).zip(handles.iter().cycle()).map(|(_, store)| {
                        let store = store.clone();
                        let claim = claim_issued(&issue.id);
                        async move { store.claim(&claim).await }
                    });
                    let mut owners = 0;
                    for answer in together(claims.collect::<Vec<_>>()).await? {
                        if answer == owned() {
                            owners += 1;
                        } else {
                            matches_or_broken!(
                                "one of many claims",
                                answer,
                                Claimed::InFlight { attempt: 1, .. }
                            )?;
                        }
                    }
                    same("the number of owners", owners, 1)?;
                }
                Ok(())
            })
        },
    ),
    code("issue::claimed_has_the_expiry_of_the_claim", |t| {
        Box::pin(async move {
            for hold in [LONG * 2, LONG * 11] {
                for must_be_issued in [false, true] {
                    let issue = t.issued().await?;
                    let claim = claim(&issue.id)
                        .with_hold(hold)
                        .with_must_be_issued(must_be_issued);
                    let (claimed, _) = t.timed(t.own(&claim)).await?;
                    let seen = t.look(&issue.id).await?;
                    let info = seen
                        .info
                        .ok_or_else(|| broken("what was claimed is gone"))?;
                    t.counted_down("expires_in", info.expires_in, (hold, claimed), seen.at)?;
                    let left = info.lease_left.unwrap_or_default();
                    t.counted_down("lease_left", left, (LONG, claimed), seen.at)?;
                }
            }
            Ok(())
        })
    }),
    lines(
        "issue::claimed_has_the_fingerprint_of_the_claim",
        &[
            Given(&[RecordState::Issued]),
            Claims(A.with(&[Print("one")]), Owned(1, Origin::Issued)),
            HasPrint(Some("one")),
            Claims(B.with(&[MustBeIssued, Print("two")]), Mismatch),
            Given(&[RecordState::Issued]),
            Claims(
                A.with(&[Print("one"), MustBeIssued]),
                Owned(1, Origin::Issued),
            ),
            HasPrint(Some("one")),
            Claims(B.with(&[MustBeIssued, Print("two")]), Mismatch),
        ],
    ),
    lines(
        "issue::claimed_is_recognised_when_the_claim_is_sent_again",
        &[
            Given(&[RecordState::Issued]),
            Claims(A.with(&[AtMost(1)]), Owned(1, Origin::Issued)),
            Claims(A, Owned(1, Origin::Issued)),
            Claims(A, Owned(1, Origin::Issued)), // A renewal keeps the origin of the claim.
            Renews(A, Held),
            Claims(A.with(&[Elsewhere]), Owned(1, Origin::Issued)),
            Commits(A, Held),
            Given(&[RecordState::Issued]),
            Claims(A.with(&[AtMost(1), MustBeIssued]), Owned(1, Origin::Issued)),
            Claims(A, Owned(1, Origin::Issued)),
            Claims(A, Owned(1, Origin::Issued)), // A renewal keeps the origin of the claim.
            Renews(A, Held),
            Claims(A.with(&[Elsewhere]), Owned(1, Origin::Issued)),
            Commits(A, Held),
        ],
    ),
    lines(
        "issue::claimed_and_undone_is_issued_with_no_attempt",
        &[
            Given(&[RecordState::Issued]),
            Claims(A, Owned(1, Origin::Issued)),
            Undoes(A, Held),
            IsAt(RecordState::Issued, 0),
            Look,
            Undoes(A, Lost),
            Unchanged,
            Commits(A, Lost),
            Given(&[RecordState::Issued]),
            Claims(A.with(&[MustBeIssued]), Owned(1, Origin::Issued)),
            Undoes(A, Held),
            IsAt(RecordState::Issued, 0),
            Look,
            Undoes(A, Lost),
            Unchanged,
            Commits(A, Lost),
        ],
    ),
    lines(
        "issue::claimed_and_undone_can_be_claimed_again",
        &[
            Given(&[RecordState::Issued]),
            Claims(A.with(&[AtMost(1)]), Owned(1, Origin::Issued)),
            Undoes(A, Held),
            Claims(B.with(&[AtMost(1), MustBeIssued]), Owned(1, Origin::Issued)),
            Undoes(B, Held),
            Claims(C.with(&[AtMost(1)]), Owned(1, Origin::Issued)),
            Undoes(C, Held),
            Claims(D.with(&[AtMost(1), MustBeIssued]), Owned(1, Origin::Issued)),
            Undoes(D, Held),
            Claims(E.with(&[AtMost(1)]), Owned(1, Origin::Issued)),
            Undoes(E, Held),
            Claims(F.with(&[AtMost(1), MustBeIssued]), Owned(1, Origin::Issued)),
            Undoes(F, Held),
        ],
    ),
    lines(
        "issue::claimed_and_released_is_owned_as_the_next_attempt",
        &[
            Given(&[RecordState::Issued]),
            Claims(A.with(&[MustBeIssued]), Owned(1, Origin::Issued)),
            Releases(A, Held),
            Claims(B.with(&[MustBeIssued]), Owned(2, Origin::Released)),
        ],
    ),
    lines(
        "issue::is_exhausted_where_no_attempt_is_allowed",
        &[
            Given(&[RecordState::Issued]),
            Look,
            Claims(A.with(&[AtMost(0)]), Exhausted(0)),
            Unchanged,
            Claims(B.with(&[MustBeIssued]), Owned(1, Origin::Issued)),
            Given(&[RecordState::Issued]),
            Look,
            Claims(A.with(&[AtMost(0), MustBeIssued]), Exhausted(0)),
            Unchanged,
            Claims(B.with(&[MustBeIssued]), Owned(1, Origin::Issued)),
            Given(&[]),
            Claims(A.with(&[AtMost(0), MustBeIssued]), NotIssued),
        ],
    ),
    lines(
        "issue::is_owned_where_one_attempt_is_allowed",
        &[
            Given(&[RecordState::Issued]),
            Claims(A.with(&[AtMost(1)]), Owned(1, Origin::Issued)),
            Given(&[RecordState::Issued]),
            Claims(A.with(&[AtMost(1), MustBeIssued]), Owned(1, Origin::Issued)),
        ],
    ),
    lines(
        "issue::nothing_that_must_be_issued_is_not_issued_and_stays_nothing",
        &[
            Claims(A.with(&[MustBeIssued]), NotIssued),
            IsGone,
            Claims(A, NotIssued),
            IsGone,
            Issues(Issued::Issued),
        ],
    ),
    lines(
        "issue::expired_that_must_be_issued_is_expired_and_left_as_it_is",
        &[
            Given(&[Expired]),
            Look,
            Claims(A.with(&[MustBeIssued]), IssueExpired),
            Unchanged,
            Claims(A, IssueExpired),
            Unchanged,
        ],
    ),
    lines(
        "issue::expired_is_owned_by_a_claim_that_does_not_ask",
        &[
            Given(&[Expired]),
            Claims(A, Owned(1, Origin::Issued)),
            IsAt(InFlight, 1),
            Claims(B, FindsInFlight(1)),
            Claims(C.with(&[MustBeIssued]), FindsInFlight(1)),
            Renews(A, Held),
            Commits(A, Held),
            Claims(D.with(&[MustBeIssued]), FindsCommitted(1)),
        ],
    ),
    code("issue::in_flight_that_must_be_issued_is_in_flight", |t| {
        Box::pin(async move {
            let first = claim(&t.id()?);
            let (claimed, _) = t.timed(t.own(&first)).await?;
            let before = t.look(&first.id).await?;
            t.pass(t.unit() / 4).await;
            let (asked, answer) = t.timed(t.store.claim(&claim_issued(&first.id))).await?;
            let Claimed::InFlight {
                attempt: 1,
                lease_left,
            } = answer
            else {
                return Err(broken(format!(
                    "a claim of a key in flight: wanted InFlight, attempt 1, got {answer:?}"
                )));
            };
            t.counted_down("lease_left", lease_left, (LONG, claimed), asked)?;
            t.unchanged("the record in flight", &first.id, &before)
                .await
        })
    }),
    lines(
        "issue::abandoned_that_must_be_issued_is_taken_over",
        &[
            Given(&[Abandoned]),
            Claims(B.with(&[MustBeIssued]), Owned(2, Origin::Abandoned)),
        ],
    ),
    lines(
        "issue::abandoned_that_must_be_issued_is_not_taken_over_where_nothing_is",
        &[
            Given(&[Abandoned]),
            Look,
            Claims(B.with(&[MustBeIssued, NoTakeOver]), FindsAbandoned(1)),
            Unchanged,
        ],
    ),
    lines(
        "issue::released_that_must_be_issued_is_owned_as_the_next_attempt",
        &[
            Given(&[Released]),
            Claims(B.with(&[MustBeIssued]), Owned(2, Origin::Released)),
        ],
    ),
    lines(
        "issue::released_that_must_be_issued_is_exhausted_at_max_attempts",
        &[
            Given(&[Released]),
            Claims(B.with(&[MustBeIssued, AtMost(0)]), Exhausted(1)),
            Claims(B.with(&[AtMost(1)]), Exhausted(1)),
        ],
    ),
    lines(
        "issue::committed_that_must_be_issued_gives_the_outcome",
        &[
            Given(&[Committed]),
            Look,
            Claims(B.with(&[MustBeIssued]), FindsCommitted(1)),
            Unchanged,
        ],
    ),
    lines(
        "issue::done_that_must_be_issued_gives_no_outcome",
        &[
            Given(&[Done]),
            Claims(B.with(&[MustBeIssued]), FindsDone(1)),
        ],
    ),
    lines(
        "issue::another_fingerprint_mismatches_in_every_state_that_must_be_issued",
        &[
            GivenWith("one", &[InFlight, Abandoned, Done, Committed]),
            Claims(B.with(&[MustBeIssued, Print("two")]), Mismatch),
        ],
    ),
    lines(
        "issue::is_lost_to_a_strangers_commit",
        &[
            Given(&[RecordState::Issued]),
            Look,
            Commits(A.with(&[NoOutcome]), Lost),
            Commits(A, Lost),
            Unchanged,
        ],
    ),
    lines(
        "issue::is_lost_to_a_strangers_renewal",
        &[
            Given(&[RecordState::Issued]),
            Look,
            Renews(A, Lost),
            Unchanged,
        ],
    ),
    lines(
        "issue::is_lost_to_a_strangers_release",
        &[
            Given(&[RecordState::Issued]),
            Look,
            Releases(A, Lost),
            GivesUp(A, Lost),
            Undoes(A, Lost),
            Unchanged,
        ],
    ),
    code("issue::is_not_waited_for", |t| {
        Box::pin(async move {
            let issue = t.issued().await?;
            let before = t.look(&issue.id).await?;
            for attempt in [0, 1] {
                soon(
                    "a wait for an issued key",
                    t.store.wait(&issue.id, attempt, LONG),
                )
                .await??;
            }
            t.unchanged("what was issued", &issue.id, &before).await?;
            same(
                "a claim then",
                t.store.claim(&claim_issued(&issue.id)).await?,
                owned(),
            )
        })
    }),
    lines(
        "issue::removed_is_gone_and_not_issued",
        &[
            Given(&[RecordState::Issued, Expired]),
            Removes(A, Removed::Removed),
            IsGone,
            Removes(A, Removed::Nothing),
            Claims(A.with(&[MustBeIssued]), NotIssued),
            Issues(Issued::Issued),
        ],
    ),
];
