//! Claims that take over only what has been abandoned for long.

use std::time::Duration;

use idem_core::record::Ownership::Held;
use idem_core::record::RecordState::{Abandoned, InFlight};
use idem_core::record::{Claim, Claimed, Origin, Ownership, RecordId, RecordState};

use crate::bench::{Bench, LONG, abandon, claim, renewal, undo};
use crate::check::{Verdict, same};
use crate::handle::MOMENT;
use crate::script::Answer::{FindsAbandoned, FindsInFlight, Mismatch, Owned};
use crate::script::Line::{Claims, Commits, Given, GivenWith, Look, Unchanged, Undoes};
use crate::script::With::{AtMost, Print, TakeOverAfter};
use crate::script::{A, B};
use crate::trial::{Trial, code, lines};

pub(super) const TRIALS: &[Trial] = &[
    lines(
        "hold::of_what_was_abandoned_for_less_leaves_it_abandoned",
        &[
            Given(&[Abandoned]),
            Look,
            Claims(B.with(&[TakeOverAfter(LONG)]), FindsAbandoned(1)),
            Unchanged,
        ],
    ),
    code(
        "hold::of_what_was_abandoned_for_longer_is_owned_as_the_next_attempt",
        |t| {
            Box::pin(async move {
                let given = t.given(RecordState::Abandoned).await?;
                t.pass(t.unit()).await;
                let next = after(&given.id, t.unit());
                let answer = t.store.claim(&next).await?;
                taken_over(t, answer)?;
                let answer = t.store.claim(&next).await?;
                same(
                    "the same sent again",
                    answer,
                    Claimed::Owned {
                        attempt: 2,
                        from: Origin::Abandoned,
                    },
                )?;
                t.then(&given.id, Some(RecordState::InFlight)).await
            })
        },
    ),
    code(
        "hold::of_what_was_given_up_is_counted_from_the_claim",
        |t| {
            Box::pin(async move {
                let first = claim(&t.id()?);
                let (claimed, _) = t.timed(t.own(&first)).await?;
                t.store.release(&abandon(&first)).await?;
                let answer = t.store.claim(&after(&first.id, t.unit())).await?;
                t.within(
                    t.unit(),
                    claimed,
                    same("a claim at once", answer, Claimed::Abandoned { attempt: 1 }),
                )?;
                t.pass(t.unit()).await;
                let answer = t.store.claim(&after(&first.id, t.unit())).await?;
                taken_over(t, answer)
            })
        },
    ),
    code("hold::is_counted_from_the_last_renewal", |t| {
        Box::pin(async move {
            let first = claim(&t.id()?).with_lease(MOMENT);
            t.own(&first).await?;
            t.pass(t.unit()).await;
            let (renewed, answer) = t.timed(t.store.renew(renewal(&first))).await?;
            same("the renewal", answer, Ownership::Held)?;
            t.pass(t.unit() / 4).await;
            let answer = t.store.claim(&after(&first.id, t.unit())).await?;
            t.within(t.unit(), renewed, left_abandoned(t, answer))?;
            t.pass(t.unit()).await;
            let answer = t.store.claim(&after(&first.id, t.unit())).await?;
            taken_over(t, answer)
        })
    }),
    code(
        "hold::is_counted_again_after_a_claim_that_was_undone",
        |t| {
            Box::pin(async move {
                let given = t.given(RecordState::Abandoned).await?;
                t.pass(t.unit()).await;
                let second = claim(&given.id);
                t.own(&second).await?;
                let (undone, _) = t.timed(t.store.release(&undo(&second))).await?;
                let answer = t.store.claim(&after(&given.id, t.unit())).await?;
                t.within(t.unit(), undone, left_abandoned(t, answer))
            })
        },
    ),
    lines(
        "hold::of_the_living_is_in_flight",
        &[
            Given(&[InFlight]),
            Claims(B.with(&[TakeOverAfter(Duration::ZERO)]), FindsInFlight(1)),
        ],
    ),
    lines(
        "hold::of_another_fingerprint_mismatches",
        &[
            GivenWith("one", &[Abandoned]),
            Claims(
                B.with(&[TakeOverAfter(Duration::ZERO), Print("two")]),
                Mismatch,
            ),
        ],
    ),
    lines(
        "hold::of_the_exhausted_leaves_it_abandoned",
        &[
            Given(&[Abandoned]),
            Claims(
                B.with(&[TakeOverAfter(Duration::ZERO), AtMost(1)]),
                FindsAbandoned(1),
            ),
        ],
    ),
    lines(
        "hold::of_what_was_taken_over_can_be_undone",
        &[
            Given(&[Abandoned]),
            Claims(
                B.with(&[TakeOverAfter(Duration::ZERO)]),
                Owned(2, Origin::Abandoned),
            ),
            Undoes(B, Held),
            Commits(A, Held),
        ],
    ),
];

/// A claim that takes over what nothing was heard of for so long.
fn after(id: &RecordId, silent: Duration) -> Claim {
    claim(id)
        .with_take_over(false)
        .with_take_over_after(Some(silent))
}

/// That a claim after the time takes the key over.
fn taken_over(t: &Bench, answer: Claimed) -> Verdict {
    let is_alive = matches!(answer, Claimed::InFlight { .. } | Claimed::Abandoned { .. });
    let owned = Claimed::Owned {
        attempt: 2,
        from: Origin::Abandoned,
    };
    t.unless_alive(is_alive, same("a claim after the time", answer, owned))
}

/// That a claim soon after a sign of life takes nothing over.
fn left_abandoned(t: &Bench, answer: Claimed) -> Verdict {
    let is_alive = matches!(answer, Claimed::InFlight { .. });
    let abandoned = Claimed::Abandoned { attempt: 1 };
    t.unless_alive(is_alive, same("a claim soon after", answer, abandoned))
}
