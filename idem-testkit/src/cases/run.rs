//! The run that an attempt belongs to: what goes on with it, what ends it, and how long its record
//! is kept.

use std::time::Duration;

use idem_core::record::Ownership::{Held, Lost};
use idem_core::record::RecordState::{Abandoned, Committed, Done, InFlight, Issued, Released};
use idem_core::record::Removed::Removed;
use idem_core::record::{Claim, Origin, RecordId, RecordInfo, RecordState, ReleaseTo, STEPS_KEPT};

use crate::bench::{Bench, LONG, Moment, abandon, claim, commit, release, undo};
use crate::check::{Failure, Verdict, broken, same};
use crate::script::Answer::Owned;
use crate::script::Line::{
    Claims, Commits, GetsNoAnswer, Given, GivesUp, HasNoRun, HasRunOf, IsAt, IsGone, NamesRun,
    Releases, Removes, Renews, Undoes,
};
use crate::script::With::{Elsewhere, From, Said};
use crate::script::{A, B, C, D, E, F};
use crate::trial::{Trial, code, lines};

pub(super) const TRIALS: &[Trial] = &[
    lines(
        "run::of_a_first_attempt_is_its_owner",
        &[
            Claims(A, Owned(1, Origin::Nothing)),
            HasRunOf(A),
            Renews(A, Held),
            HasRunOf(A),
            GivesUp(A, Held),
            HasRunOf(A),
            Given(&[Issued]),
            HasNoRun,
            Claims(B, Owned(1, Origin::Issued)),
            HasRunOf(B),
            Given(&[Committed, Done]),
            HasNoRun,
        ],
    ),
    // A record in flight remembers some of those that were taken over, and later only the run.
    lines(
        "run::goes_on_through_take_overs",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            HasRunOf(A),
            GivesUp(B, Held),
            HasRunOf(A),
            Claims(C.with(&[TRACE, Elsewhere]), Owned(3, Origin::Abandoned)),
            HasRunOf(A),
            GetsNoAnswer(C, Held),
            HasRunOf(A),
            Claims(D, Owned(4, Origin::Abandoned)),
            Renews(D, Held),
            HasRunOf(A),
            GivesUp(D, Held),
            Claims(E.with(&[TRACE]), Owned(5, Origin::Abandoned)),
            HasRunOf(A),
            GetsNoAnswer(E, Held),
            HasRunOf(A),
            Claims(F, Owned(6, Origin::Abandoned)),
            HasRunOf(A),
            Renews(F, Held),
            HasRunOf(A),
            GivesUp(F, Held),
            HasRunOf(A),
        ],
    ),
    lines(
        "run::goes_on_after_take_overs_that_were_undone",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            GivesUp(B, Held),
            Claims(C.with(&[TRACE]), Owned(3, Origin::Abandoned)),
            GivesUp(C, Held),
            Claims(D, Owned(4, Origin::Abandoned)),
            GivesUp(D, Held),
            Claims(E.with(&[TRACE]), Owned(5, Origin::Abandoned)),
            GivesUp(E, Held),
            Claims(F, Owned(6, Origin::Abandoned)),
            Undoes(F, Held),
            IsAt(Abandoned, 5),
            HasRunOf(A),
            Undoes(E, Held),
            HasRunOf(A),
            Undoes(D, Held),
            IsAt(Abandoned, 3),
            HasRunOf(A),
            // The record does not remember the attempts before this one.
            Undoes(C, Held),
            IsAt(Abandoned, 2),
            HasRunOf(A),
            Undoes(B, Lost),
            HasRunOf(A),
            Claims(F, Owned(3, Origin::Abandoned)),
            HasRunOf(A),
            Releases(F, Held),
            HasRunOf(A),
        ],
    ),
    lines(
        "run::goes_on_after_a_release_that_names_it",
        &[
            Given(&[InFlight]),
            NamesRun(A, Held),
            IsAt(Released, 1),
            HasRunOf(A),
            Claims(B.with(&[Elsewhere]), Owned(2, Origin::Released)),
            HasRunOf(A),
            Renews(B, Held),
            HasRunOf(A),
            // It is named, because it did not begin with this attempt.
            Releases(B, Held),
            HasRunOf(A),
            Claims(C.with(&[TRACE]), Owned(3, Origin::Released)),
            HasRunOf(A),
            GivesUp(C, Held),
            HasRunOf(A),
            Claims(D, Owned(4, Origin::Abandoned)),
            HasRunOf(A),
            Undoes(D, Held),
            HasRunOf(A),
            NamesRun(C, Held),
            HasRunOf(A),
            Claims(E, Owned(4, Origin::Released)),
            HasRunOf(A),
            Commits(E.with(&[From(Origin::Released)]), Held),
            HasNoRun,
        ],
    ),
    lines(
        "run::goes_on_after_a_release_of_what_was_taken_over",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            Releases(B, Held),
            IsAt(Released, 2),
            HasRunOf(A),
            Claims(C, Owned(3, Origin::Released)),
            HasRunOf(A),
        ],
    ),
    lines(
        "run::begins_again_after_a_release_that_does_not_name_it",
        &[
            Given(&[InFlight, Abandoned]),
            Releases(A, Held),
            HasNoRun,
            Claims(B, Owned(2, Origin::Released)),
            HasRunOf(B),
            NamesRun(B, Held),
            HasRunOf(B),
            Claims(C, Owned(3, Origin::Released)),
            HasRunOf(B),
        ],
    ),
    lines(
        "run::of_a_released_key_is_as_before_after_a_claim_that_was_undone",
        &[
            Given(&[InFlight]),
            NamesRun(A, Held),
            Claims(B, Owned(2, Origin::Released)),
            Undoes(B, Held),
            IsAt(Released, 1),
            HasRunOf(A),
            Claims(C, Owned(2, Origin::Released)),
            HasRunOf(A),
            Given(&[Released]),
            Claims(B, Owned(2, Origin::Released)),
            Undoes(B, Held),
            HasNoRun,
            Claims(C, Owned(2, Origin::Released)),
            HasRunOf(C),
        ],
    ),
    lines(
        "run::ends_with_an_outcome_and_with_a_removal",
        &[
            Given(&[InFlight]),
            NamesRun(A, Held),
            Claims(B, Owned(2, Origin::Released)),
            Commits(B, Held),
            HasNoRun,
            Removes(C, Removed),
            IsGone,
            Claims(C, Owned(1, Origin::Nothing)),
            HasRunOf(C),
            Given(&[InFlight]),
            NamesRun(A, Held),
            Removes(B, Removed),
            Claims(B, Owned(1, Origin::Nothing)),
            HasRunOf(B),
            Given(&[Abandoned]),
            Removes(B, Removed),
            Claims(B, Owned(1, Origin::Nothing)),
            HasRunOf(B),
            // A claim that was undone leaves nothing either.
            Given(&[InFlight]),
            Undoes(A, Held),
            Claims(B, Owned(1, Origin::Nothing)),
            HasRunOf(B),
        ],
    ),
    code("run::ends_with_its_record", |t| {
        Box::pin(async move {
            let brief = |id: &RecordId| {
                let moment = Duration::from_millis(1);
                claim(id).with_lease(moment).with_hold(t.unit())
            };
            let abandoned = brief(&t.id()?);
            t.own(&abandoned).await?;
            let released = brief(&t.id()?);
            t.own(&released).await?;
            let to = ReleaseTo::Released { keep: t.unit() };
            t.store
                .release(&release(&released).with_to(to).with_run(true))
                .await?;
            let committed = brief(&t.id()?).with_hold(LONG);
            t.own(&committed).await?;
            let short = commit(&committed, 1)
                .with_ttl(t.unit())
                .with_remember(t.unit());
            t.store.commit(&short).await?;
            t.pass(t.unit()).await;
            for before in [&abandoned, &released, &committed] {
                t.pass_until(Duration::ZERO, &before.id, None).await?;
                let next = claim(&before.id);
                same("the attempt", t.own(&next).await?, 1)?;
                let run = info(t, &next.id).await?.0.run;
                same("the run of the next", run, Some(next.owner))?;
            }
            Ok(())
        })
    }),
    code(
        "run::that_a_release_names_is_kept_as_long_as_its_record_in_flight",
        |t| {
            Box::pin(async move {
                for (keep, kept) in [(LONG, LONG * 9), (LONG * 20, LONG * 20)] {
                    let first = claim(&t.id()?).with_hold(LONG * 9);
                    t.own(&first).await?;
                    t.pass(t.unit() / 2).await;
                    let to = ReleaseTo::Released { keep };
                    let (at, _) = t
                        .timed(t.store.release(&release(&first).with_to(to).with_run(true)))
                        .await?;
                    expires_in(t, "a released record", &first.id, (kept, at)).await?;
                }
                Ok(())
            })
        },
    ),
    code(
        "run::that_goes_on_after_a_release_is_kept_for_30_days",
        |t| {
            Box::pin(async move {
                for (hold, kept) in [(LONG * 2, STEPS_KEPT), (STEPS_KEPT * 2, STEPS_KEPT * 2)] {
                    let (second, at) = second(t, hold).await?;
                    expires_in(t, "the next claim's record", &second.id, (kept, at)).await?;
                    let (info, seen) = info(t, &second.id).await?;
                    let left = info.lease_left.unwrap_or_default();
                    t.counted_down("lease_left", left, (second.lease, at), seen)?;
                    let renewal = crate::bench::renewal(&second).with_hold(LONG * 2);
                    let (at, answer) = t.timed(t.store.renew(renewal)).await?;
                    same("a renewal", answer, Held)?;
                    expires_in(t, "a renewed record", &second.id, (kept, at)).await?;
                    let (at, answer) = t.timed(t.store.release(&undo(&second))).await?;
                    same("undoing it", answer, Held)?;
                    expires_in(t, "the released record then", &second.id, (kept, at)).await?;
                }
                // A run without steps is kept for as long as its own claim says.
                let given = t.given(RecordState::Released).await?;
                let next = claim(&given.id);
                let (at, _) = t.timed(t.own(&next)).await?;
                expires_in(t, "a run that begins", &next.id, (next.hold, at)).await
            })
        },
    ),
    code(
        "run::that_goes_on_with_a_take_over_is_kept_no_shorter_than_before",
        |t| {
            Box::pin(async move {
                let first = claim(&t.id()?).with_hold(LONG * 9);
                t.own(&first).await?;
                t.store.release(&abandon(&first)).await?;
                let second = claim(&first.id);
                let (at, attempt) = t.timed(t.own(&second)).await?;
                same("the attempt", attempt, 2)?;
                expires_in(t, "the next record", &first.id, (LONG * 9, at)).await?;
                let (info, seen) = info(t, &first.id).await?;
                let left = info.lease_left.unwrap_or_default();
                t.counted_down("lease_left", left, (second.lease, at), seen)?;
                t.counted_up("lease_age", info.lease_age.unwrap_or_default(), at, seen)?;
                t.store.release(&abandon(&second)).await?;
                let third = claim(&first.id).with_hold(LONG * 20);
                let (at, _) = t.timed(t.own(&third)).await?;
                expires_in(t, "a longer one", &first.id, (LONG * 20, at)).await
            })
        },
    ),
];

const TRACE: crate::script::With = Said("t00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");

/// A claim with this hold of a released key whose run is named, and when it was.
async fn second(t: &Bench, hold: Duration) -> Result<(Claim, Moment), Failure> {
    let first = claim(&t.id()?);
    t.own(&first).await?;
    t.store.release(&release(&first).with_run(true)).await?;
    let second = claim(&first.id).with_hold(hold);
    let (at, attempt) = t.timed(t.own(&second)).await?;
    same("the attempt", attempt, 2)?;
    Ok((second, at))
}

async fn info(t: &Bench, id: &RecordId) -> Result<(RecordInfo, Moment), Failure> {
    let seen = t.look(id).await?;
    let info = seen.info.ok_or_else(|| broken("the record is gone"))?;
    Ok((info, seen.at))
}

/// Checks the expiry of a record that was written to stay for a length.
async fn expires_in(
    t: &Bench,
    what: &str,
    id: &RecordId,
    (length, at): (Duration, Moment),
) -> Verdict {
    let (info, seen) = info(t, id).await?;
    let what = format!("{what}: expires_in");
    t.counted_down(&what, info.expires_in, (length, at), seen)
}
