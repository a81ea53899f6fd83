//! What is abandoned: who may take it over, as which attempt, and what is left to the late owner.

use std::time::Duration;

use idem_core::record::Ownership::{Held, Lost};
use idem_core::record::RecordState::{Abandoned, InFlight};
use idem_core::record::{Origin, RecordState};

use crate::bench::{LONG, claim};
use crate::check::{broken, same};
use crate::script::Answer::{Exhausted, FindsAbandoned, FindsCommitted, FindsInFlight, Owned};
use crate::script::Line::{
    Claims, Commits, Given, GivesUp, Is, IsAt, Look, Releases, Renews, Unchanged, Undoes,
};
use crate::script::With::{AtMost, Attempt, Elsewhere, Lease, NoOutcome, NoTakeOver};
use crate::script::{A, B, C, D, E};
use crate::trial::{Trial, code, lines};

pub(super) const TRIALS: &[Trial] = &[
    lines(
        "takeover::abandoned_is_owned_as_the_next_attempt",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            IsAt(InFlight, 2),
        ],
    ),
    lines(
        "takeover::not_wanted_leaves_it_abandoned",
        &[
            Given(&[Abandoned]),
            Look,
            Claims(B.with(&[NoTakeOver]), FindsAbandoned(1)),
            Unchanged,
        ],
    ),
    lines(
        "takeover::is_exhausted_at_max_attempts",
        &[
            Given(&[Abandoned]),
            Look,
            Claims(B.with(&[AtMost(1)]), Exhausted(1)),
            Unchanged,
            Claims(B.with(&[AtMost(2)]), Owned(2, Origin::Abandoned)),
        ],
    ),
    lines(
        "takeover::not_wanted_and_exhausted_is_abandoned",
        &[
            Given(&[Abandoned]),
            Claims(B.with(&[NoTakeOver, AtMost(1)]), FindsAbandoned(1)),
        ],
    ),
    code("takeover::is_repeated_with_a_growing_attempt", |t| {
        Box::pin(async move {
            let id = t.id()?;
            for attempt in 1..=4 {
                let claim = claim(&id).with_lease(Duration::from_millis(1));
                same("the attempt", t.own(&claim).await?, attempt)?;
                t.pass_until(claim.lease, &id, Some(RecordState::Abandoned))
                    .await?;
            }
            Ok(())
        })
    }),
    lines(
        "takeover::counts_releases_and_crashes_alike",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            Releases(B, Held),
            Claims(C, Owned(3, Origin::Released)),
            GivesUp(C, Held),
            Claims(D, Owned(4, Origin::Abandoned)),
            Releases(D, Held),
            Claims(E, Owned(5, Origin::Released)),
            GivesUp(E, Held),
        ],
    ),
    lines(
        "takeover::ones_own_sent_again_is_recognised",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            Claims(B, Owned(2, Origin::Abandoned)),
        ],
    ),
    code("takeover::has_the_lease_and_hold_of_its_own_claim", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::Abandoned).await?;
            let second = claim(&given.id).with_lease(LONG * 3).with_hold(LONG * 7);
            let (claimed, _) = t.timed(t.own(&second)).await?;
            let seen = t.look(&given.id).await?;
            let info = seen
                .info
                .ok_or_else(|| broken("the record is gone after a take-over"))?;
            let left = info
                .lease_left
                .ok_or_else(|| broken(format!("no lease after a take-over: {info:?}")))?;
            t.counted_down("lease_left", left, (second.lease, claimed), seen.at)?;
            t.counted_down(
                "expires_in",
                info.expires_in,
                (second.hold, claimed),
                seen.at,
            )
        })
    }),
    lines(
        "takeover::starts_a_lease_that_is_alive",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            Claims(C, FindsInFlight(2)),
        ],
    ),
    lines(
        "takeover::a_late_owner_cannot_commit",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            Look,
            Commits(A, Lost), // Whatever attempt it says it is: the owner counts.
            Commits(A.with(&[Attempt(2)]), Lost),
            Unchanged,
            Commits(B, Held),
        ],
    ),
    lines(
        "takeover::a_late_owner_cannot_release",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            Look,
            Releases(A, Lost),
            Unchanged,
        ],
    ),
    lines(
        "takeover::a_late_owner_cannot_abandon",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            Look,
            GivesUp(A, Lost),
            Undoes(A, Lost),
            Unchanged,
        ],
    ),
    lines(
        "takeover::a_late_owner_cannot_renew",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            Look,
            Renews(A, Lost),
            Unchanged,
        ],
    ),
    lines(
        "takeover::a_late_owner_is_in_flight_like_anybody",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            Claims(A, FindsInFlight(2)),
        ],
    ),
    lines(
        "takeover::a_late_owner_cannot_commit_over_an_outcome",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            Commits(B, Held),
            Commits(A, Lost),
            Commits(A.with(&[NoOutcome]), Lost),
            Claims(C, FindsCommitted(2)),
        ],
    ),
    lines(
        "takeover::the_new_owner_commits",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            Commits(B, Held),
            Claims(C, FindsCommitted(2)),
        ],
    ),
    lines(
        "takeover::of_a_given_up_record_needs_no_waiting",
        &[
            Given(&[InFlight]),
            GivesUp(A, Held),
            Claims(B, Owned(2, Origin::Abandoned)),
        ],
    ),
    lines(
        "takeover::of_a_lease_of_zero_needs_no_waiting",
        &[
            Claims(A.with(&[Lease(Duration::ZERO)]), Owned(1, Origin::Nothing)),
            Is(Abandoned),
            Claims(B, Owned(2, Origin::Abandoned)),
        ],
    ),
    lines(
        "takeover::by_another_handle",
        &[
            Given(&[Abandoned]),
            Claims(B.with(&[Elsewhere]), Owned(2, Origin::Abandoned)),
            Commits(A, Lost),
        ],
    ),
];
