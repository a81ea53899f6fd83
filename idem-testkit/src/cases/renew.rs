//! The right to renew a lease, for how long, and batches of renewals.

use idem_core::record::Origin;
use idem_core::record::Ownership::{Held, Lost};
use idem_core::record::RecordState::{Abandoned, Committed, Done, InFlight, Released};
use idem_core::record::{Claimed, Owner, Ownership, RecordState};

use crate::bench::{LONG, Task, claim, commit, release, renewal};
use crate::check::{broken, matches_or_broken, same};
use crate::script::Answer::Owned;
use crate::script::EIGHTFOLD;
use crate::script::Line::{
    Claims, Commits, Given, GivenWith, HasPrint, Is, IsAt, IsGone, Look, Renews, Unchanged,
};
use crate::script::With::{Elsewhere, Hold};
use crate::script::{A, B};
use crate::trial::{Trial, code, lines};

pub(super) const TRIALS: &[Trial] = &[
    code("renew::starts_the_lease_anew", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            t.pass(t.unit() / 2).await;
            let (renewed, answer) = t.timed(t.store.renew(renewal(&given.claim))).await?;
            same("the owner's renewal", answer, Ownership::Held)?;
            let seen = t.look(&given.id).await?;
            let info = seen
                .info
                .ok_or_else(|| broken("a renewed record is gone"))?;
            let (Some(age), Some(left)) = (info.lease_age, info.lease_left) else {
                return Err(broken(format!("a renewed record has no lease: {info:?}")));
            };
            t.counted_up("lease_age", age, renewed, seen.at)?;
            t.counted_down("lease_left", left, (LONG, renewed), seen.at)
        })
    }),
    code("renew::sets_the_expiry_to_the_hold", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            t.pass(t.unit() / 2).await;
            let (renewed, _) = t.timed(t.store.renew(renewal(&given.claim))).await?;
            let seen = t.look(&given.id).await?;
            let left = seen.info.map(|info| info.expires_in).unwrap_or_default();
            t.counted_down("expires_in", left, (given.claim.hold, renewed), seen.at)
        })
    }),
    code(
        "renew::with_another_hold_keeps_the_lease_as_long_as_it_was",
        |t| {
            Box::pin(async move {
                // The second is shorter than the claim's, which the record keeps.
                for (hold, kept) in [(LONG * 5, LONG * 5), (LONG * 3 / 2, LONG * 2)] {
                    let given = t.given(RecordState::InFlight).await?;
                    t.pass(t.unit() / 2).await;
                    let (renewed, _) = t
                        .timed(t.store.renew(renewal(&given.claim).with_hold(hold)))
                        .await?;
                    let seen = t.look(&given.id).await?;
                    let info = seen
                        .info
                        .ok_or_else(|| broken("a renewed record is gone"))?;
                    t.counted_down(
                        "lease_left",
                        info.lease_left.unwrap_or_default(),
                        (LONG, renewed),
                        seen.at,
                    )?;
                    t.counted_down("expires_in", info.expires_in, (kept, renewed), seen.at)?;
                }
                Ok(())
            })
        },
    ),
    // A record may be kept for longer than its operation asks for: where its run has steps.
    code(
        "renew::with_a_shorter_hold_does_not_shorten_the_expiry",
        |t| {
            Box::pin(async move {
                let first = claim(&t.id()?).with_hold(LONG * 9);
                t.own(&first).await?;
                let other = t.given(RecordState::InFlight).await?;
                let renewals = [
                    renewal(&first).with_hold(LONG),
                    renewal(&other.claim).with_hold(LONG * 5),
                ];
                // Again: the record has not got the shorter one either.
                for _ in 0..2 {
                    t.pass(t.unit() / 2).await;
                    let (renewed, answers) = t.timed(t.store.renew_all(&renewals)).await?;
                    let answers = answers.into_iter().collect::<Result<Vec<_>, _>>()?;
                    same("the answers", answers, vec![Ownership::Held; 2])?;
                    for (claim, kept) in [(&first, LONG * 9), (&other.claim, LONG * 5)] {
                        let seen = t.look(&claim.id).await?;
                        let info = seen
                            .info
                            .ok_or_else(|| broken("a renewed record is gone"))?;
                        t.counted_down("expires_in", info.expires_in, (kept, renewed), seen.at)?;
                        let age = info.lease_age.unwrap_or_default();
                        t.counted_up("lease_age", age, renewed, seen.at)?;
                    }
                }
                same(
                    "the owner's commit",
                    t.store.commit(&commit(&first, 1)).await?,
                    Ownership::Held,
                )
            })
        },
    ),
    code("renew::keeps_a_lease_alive_for_longer_than_it_is", |t| {
        Box::pin(async move {
            let claim = claim(&t.id()?).with_lease(t.unit() * 2).with_hold(LONG);
            let (mut kept, _) = t.timed(t.own(&claim)).await?;
            for _ in 0..3 {
                t.pass(t.unit()).await;
                let (renewed, answer) = t.timed(t.store.renew(renewal(&claim))).await?;
                same("the owner's renewal", answer, Ownership::Held)?;
                t.still(claim.lease, kept)?;
                kept = renewed;
            }
            let answer = t.store.claim(&crate::bench::claim(&claim.id)).await?;
            let verdict = matches_or_broken!(
                "a claim of a lease that was renewed",
                answer,
                Claimed::InFlight { attempt: 1, .. }
            );
            t.within(claim.lease, kept, verdict)?;
            t.pass_until(claim.lease, &claim.id, Some(RecordState::Abandoned))
                .await
        })
    }),
    lines(
        "renew::by_a_stranger_is_lost",
        &[
            Given(&[InFlight, Abandoned]),
            Look,
            Renews(B, Lost),
            Unchanged,
        ],
    ),
    lines(
        "renew::of_nothing_is_lost_and_leaves_nothing",
        &[Renews(A, Lost), IsGone],
    ),
    lines(
        "renew::of_a_released_record_is_lost",
        &[
            Given(&[Released]),
            Look,
            Renews(A.with(&[Hold(EIGHTFOLD)]), Lost),
            Unchanged,
        ],
    ),
    lines(
        "renew::of_a_committed_record_is_lost",
        &[
            Given(&[Committed]),
            Look,
            Renews(A.with(&[Hold(EIGHTFOLD)]), Lost),
            Unchanged,
        ],
    ),
    lines(
        "renew::of_a_done_record_is_lost",
        &[
            Given(&[Done]),
            Look,
            Renews(A.with(&[Hold(EIGHTFOLD)]), Lost),
            Unchanged,
        ],
    ),
    code("renew::of_an_abandoned_record_revives_it", |t| {
        Box::pin(async move {
            let first = claim(&t.id()?).with_lease(t.unit()).with_hold(LONG);
            t.own(&first).await?;
            t.pass_until(t.unit(), &first.id, Some(RecordState::Abandoned))
                .await?;
            let (renewed, answer) = t.timed(t.store.renew(renewal(&first))).await?;
            same("a renewal before any take-over", answer, Ownership::Held)?;
            let answer = t.store.claim(&claim(&first.id)).await?;
            let verdict =
                matches_or_broken!("a claim then", answer, Claimed::InFlight { attempt: 1, .. });
            t.within(t.unit(), renewed, verdict)
        })
    }),
    lines(
        "renew::keeps_attempt_and_fingerprint",
        &[
            GivenWith("one", &[InFlight]),
            Renews(A, Held),
            IsAt(InFlight, 1),
            HasPrint(Some("one")),
            Commits(A, Held),
        ],
    ),
    lines(
        "renew::of_a_later_attempt_is_held",
        &[
            Given(&[Released]),
            Claims(B, Owned(2, Origin::Released)),
            Renews(B, Held),
            IsAt(InFlight, 2),
        ],
    ),
    code("renew::of_an_empty_batch_answers_nothing", |t| {
        Box::pin(async move {
            same(
                "the number of answers",
                t.store.renew_all(&[]).await?.len(),
                0,
            )
        })
    }),
    // Among owners there are strangers, released and missing records: each answer stands where its
    // renewal does.
    code("renew::of_five_hundred_answers_in_order", |t| {
        Box::pin(async move {
            let mut tasks = Vec::new();
            for number in 0..500 {
                let store = t.store.clone();
                let claim = claim(&t.id()?);
                tasks.push(Task::spawn(async move {
                    if number % 7 != 3 {
                        store.claim(&claim).await?;
                    }
                    if number % 11 == 5 {
                        store.release(&release(&claim)).await?;
                    }
                    let owner = if number % 5 == 2 {
                        Owner::generate()
                    } else {
                        claim.owner
                    };
                    let held = number % 7 != 3 && number % 11 != 5 && number % 5 != 2;
                    Ok((
                        renewal(&claim).with_owner(owner),
                        if held {
                            Ownership::Held
                        } else {
                            Ownership::Lost
                        },
                    ))
                }));
            }
            let (renewals, wanted): (Vec<_>, Vec<_>) = Task::all_end_soon("a claim", tasks)
                .await?
                .into_iter()
                .unzip();
            let answers = t
                .store
                .renew_all(&renewals)
                .await?
                .into_iter()
                .collect::<Result<Vec<_>, _>>()?;
            same("the number of answers", answers.len(), wanted.len())?;
            let wrong = answers
                .iter()
                .zip(&wanted)
                .position(|(answer, wanted)| answer != wanted);
            match wrong {
                None => Ok(()),
                Some(at) => same(
                    &format!("the answer to renewal {at}"),
                    answers.get(at),
                    wanted.get(at),
                ),
            }
        })
    }),
    code("renew::of_one_record_twice_answers_twice", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            let renewal = renewal(&given.claim);
            let answers = t
                .store
                .renew_all(&[renewal.clone(), renewal])
                .await?
                .into_iter()
                .collect::<Result<Vec<_>, _>>()?;
            same(
                "the answers",
                answers,
                vec![Ownership::Held, Ownership::Held],
            )
        })
    }),
    code("renew::of_two_owners_of_one_record_tells_them_apart", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::Abandoned).await?;
            let second = claim(&given.id);
            t.own(&second).await?;
            let renewals = [
                renewal(&given.claim),
                renewal(&second),
                renewal(&given.claim),
            ];
            let answers = t
                .store
                .renew_all(&renewals)
                .await?
                .into_iter()
                .collect::<Result<Vec<_>, _>>()?;
            same(
                "the answers",
                answers,
                vec![Ownership::Lost, Ownership::Held, Ownership::Lost],
            )
        })
    }),
    lines(
        "renew::by_another_handle_is_held",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            Renews(B.with(&[Elsewhere]), Held),
            Is(InFlight),
        ],
    ),
];
