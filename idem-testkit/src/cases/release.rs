//! The right to release a key, and the data that stays.

use idem_core::record::Ownership::{Held, Lost};
use idem_core::record::RecordState::{Abandoned, Committed, Done, InFlight, Released};
use idem_core::record::{Claimed, Origin, Ownership, RecordState, ReleaseTo};

use crate::bench::{Bench, LONG, abandon, claim, release, renewal, undo};
use crate::check::{Verdict, broken, same};
use crate::script::Answer::{FindsAbandoned, Owned};
use crate::script::Line::{
    Claims, Given, GivesUp, Is, IsGone, Look, Pass, Releases, Renews, Unchanged, Undoes,
};
use crate::script::With::{Elsewhere, NoTakeOver};
use crate::script::{A, B};
use crate::trial::{Trial, code, lines};

pub(super) const TRIALS: &[Trial] = &[
    lines(
        "release::by_the_owner_is_held_and_frees_the_key",
        &[
            Given(&[InFlight]),
            Releases(A, Held),
            Is(Released),
            Claims(B, Owned(2, Origin::Released)),
        ],
    ),
    lines(
        "release::by_the_owner_to_abandoned_is_held_and_frees_the_key",
        &[
            Given(&[InFlight]),
            GivesUp(A, Held),
            Is(Abandoned),
            Claims(B, Owned(2, Origin::Abandoned)),
        ],
    ),
    lines(
        "release::by_a_stranger_is_lost",
        &[
            Given(&[InFlight, Abandoned]),
            Look,
            Releases(B, Lost),
            Unchanged,
        ],
    ),
    lines(
        "release::by_a_stranger_to_abandoned_is_lost",
        &[
            Given(&[InFlight, Abandoned]),
            Look,
            GivesUp(B, Lost),
            Unchanged,
        ],
    ),
    lines(
        "release::by_an_owner_whose_lease_ran_out_is_held",
        &[
            Given(&[Abandoned]),
            Releases(A, Held),
            Claims(B, Owned(2, Origin::Released)),
        ],
    ),
    lines(
        "release::of_nothing_is_lost_and_leaves_nothing",
        &[Releases(A, Lost), GivesUp(A, Lost), Undoes(A, Lost), IsGone],
    ),
    lines(
        "release::of_a_released_record_is_lost",
        &[
            Given(&[Released]),
            Look,
            Releases(A, Lost),
            GivesUp(A, Lost),
            Undoes(A, Lost),
            Unchanged,
        ],
    ),
    lines(
        "release::of_a_committed_record_is_lost",
        &[
            Given(&[Committed]),
            Look,
            Releases(A, Lost),
            GivesUp(A, Lost),
            Undoes(A, Lost),
            Unchanged,
        ],
    ),
    lines(
        "release::of_a_done_record_is_lost",
        &[
            Given(&[Done]),
            Look,
            Releases(A, Lost),
            GivesUp(A, Lost),
            Undoes(A, Lost),
            Unchanged,
        ],
    ),
    code("release::keeps_the_attempt_for_as_long_as_said", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            let to = ReleaseTo::Released { keep: LONG * 7 };
            let (released, _) = t
                .timed(t.store.release(&release(&given.claim).with_to(to)))
                .await?;
            let seen = t.look(&given.id).await?;
            let info = seen
                .info
                .ok_or_else(|| broken("a released record is gone at once"))?;
            same(
                "the record then",
                (info.state, info.attempt),
                (RecordState::Released, 1),
            )?;
            t.counted_down(
                "the time until it is forgotten",
                info.expires_in,
                (LONG * 7, released),
                seen.at,
            )
        })
    }),
    code("release::again_and_again_keeps_counting", |t| {
        Box::pin(async move {
            let id = t.id()?;
            for attempt in 1..=5 {
                let claim = claim(&id);
                same("the attempt", t.own(&claim).await?, attempt)?;
                t.store.release(&release(&claim)).await?;
                let kept = t
                    .store
                    .inspect(&id)
                    .await?
                    .map(|info| (info.state, info.attempt));
                same(
                    "the record then",
                    kept,
                    Some((RecordState::Released, attempt)),
                )?;
            }
            Ok(())
        })
    }),
    lines(
        "release::by_an_earlier_owner_after_the_next_claim_is_lost",
        &[
            Given(&[Released]),
            Claims(B, Owned(2, Origin::Released)),
            Look,
            Releases(A, Lost),
            GivesUp(A, Lost),
            Undoes(A, Lost),
            Unchanged,
        ],
    ),
    code(
        "release::to_abandoned_keeps_attempt_fingerprint_and_expiry",
        |t| {
            Box::pin(async move {
                let claim = claim(&t.id()?)
                    .with_fingerprint(crate::bench::print("one")?)
                    .with_hold(LONG * 7);
                let (claimed, _) = t.timed(t.own(&claim)).await?;
                t.pass(t.unit() / 2).await;
                t.store.release(&abandon(&claim)).await?;
                let seen = t.look(&claim.id).await?;
                let info = seen
                    .info
                    .ok_or_else(|| broken("a record that was given up is gone"))?;
                let found = (info.state, info.attempt, info.fingerprint, info.lease_left);
                same(
                    "the record then",
                    found,
                    (RecordState::Abandoned, 1, claim.fingerprint, None),
                )?;
                t.counted_down("its expiry", info.expires_in, (LONG * 7, claimed), seen.at)
            })
        },
    ),
    lines(
        "release::to_abandoned_is_not_claimed_where_nothing_is_taken_over",
        &[
            Given(&[InFlight]),
            GivesUp(A, Held),
            Claims(B.with(&[NoTakeOver]), FindsAbandoned(1)),
        ],
    ),
    // A renewal that was under way while the owner gave up does not bring its lease back: the
    // lease's length is zero now.
    lines(
        "release::to_abandoned_is_not_revived_by_a_renewal",
        &[
            Given(&[InFlight]),
            GivesUp(A, Held),
            Renews(A, Held),
            Pass,
            Is(Abandoned),
        ],
    ),
    lines(
        "release::to_undone_of_a_claim_of_nothing_is_nothing",
        &[
            Given(&[InFlight]),
            Undoes(A, Held),
            IsGone,
            Claims(B, Owned(1, Origin::Nothing)),
        ],
    ),
    code(
        "release::to_undone_of_a_claim_of_a_released_key_is_released_as_before",
        |t| {
            Box::pin(async move {
                let given = t.given(RecordState::Released).await?;
                let second = claim(&given.id);
                t.own(&second).await?;
                let undo = undo(&second).with_to(ReleaseTo::Undone { keep: LONG * 7 });
                let (undone, answer) = t.timed(t.store.release(&undo)).await?;
                same("undoing a claim of a released key", answer, Ownership::Held)?;
                let seen = t.look(&given.id).await?;
                let info = seen
                    .info
                    .ok_or_else(|| broken("the released record that the claim found is gone"))?;
                same(
                    "the record then",
                    (info.state, info.attempt),
                    (RecordState::Released, 1),
                )?;
                t.counted_down(
                    "the time until it is forgotten",
                    info.expires_in,
                    (LONG * 7, undone),
                    seen.at,
                )?;
                let answer = t.store.claim(&claim(&given.id)).await?;
                same(
                    "a claim then",
                    answer,
                    Claimed::Owned {
                        attempt: 2,
                        from: Origin::Released,
                    },
                )
            })
        },
    ),
    code(
        "release::to_undone_of_a_take_over_is_abandoned_as_before",
        |t| Box::pin(undone_take_over(t, false)),
    ),
    code(
        "release::to_undone_of_a_take_over_that_was_renewed_is_abandoned_as_before",
        |t| Box::pin(undone_take_over(t, true)),
    ),
    // A reply that got lost makes the owner send it again; the attempt goes back once all the same.
    code("release::to_undone_sent_again_undoes_nothing_more", |t| {
        Box::pin(async move {
            for state in [RecordState::Released, RecordState::Abandoned] {
                let given = t.given(state).await?;
                let second = claim(&given.id);
                t.own(&second).await?;
                t.store.release(&undo(&second)).await?;
                let before = t.look(&given.id).await?;
                t.store.release(&undo(&second)).await?;
                t.unchanged(
                    &format!("a claim of what was {state:?}, undone twice"),
                    &given.id,
                    &before,
                )
                .await?;
            }
            Ok(())
        })
    }),
    lines(
        "release::to_undone_after_the_lease_ran_out_is_held",
        &[Given(&[Abandoned]), Undoes(A, Held), IsGone],
    ),
    lines(
        "release::to_undone_by_a_stranger_is_lost",
        &[
            Given(&[InFlight, Abandoned]),
            Look,
            Undoes(B, Lost),
            Unchanged,
        ],
    ),
    lines(
        "release::by_another_handle_is_held",
        &[
            Given(&[InFlight]),
            Releases(A.with(&[Elsewhere]), Held),
            Is(Released),
        ],
    ),
];

async fn undone_take_over(t: &Bench, renewed: bool) -> Verdict {
    let given = t.given(RecordState::Abandoned).await?;
    let second = claim(&given.id).with_hold(LONG * 7);
    t.own(&second).await?;
    if renewed {
        t.store.renew(renewal(&second)).await?;
    }
    let (undone, answer) = t.timed(t.store.release(&undo(&second))).await?;
    same("undoing a take-over", answer, Ownership::Held)?;
    let seen = t.look(&given.id).await?;
    let info = seen
        .info
        .ok_or_else(|| broken("the abandoned record that the claim found is gone"))?;
    same(
        "the record then",
        (info.state, info.attempt),
        (RecordState::Abandoned, 1),
    )?;
    t.counted_down(
        "its expiry",
        info.expires_in,
        (given.claim.hold, undone),
        seen.at,
    )?;
    let answer = t
        .store
        .claim(&claim(&given.id).with_take_over(false))
        .await?;
    same(
        "a claim that does not take over",
        answer,
        Claimed::Abandoned { attempt: 1 },
    )?;
    let answer = t.store.claim(&claim(&given.id)).await?;
    same(
        "a claim that does",
        answer,
        Claimed::Owned {
            attempt: 2,
            from: Origin::Abandoned,
        },
    )
}
