//! A claim that is undone leaves what it found: an abandoned record with its fingerprint, its owner
//! and its time.

use std::time::Duration;

use idem_core::record::Ownership::{Held, Lost};
use idem_core::record::RecordState::Abandoned;
use idem_core::record::{Claim, Claimed, Origin, Ownership, RecordState};

use crate::bench::{Bench, LONG, claim, commit, print, undo};
use crate::check::{Failure, broken, matches_or_broken, same};
use crate::script::Answer::{FindsCommitted, Mismatch, Owned};
use crate::script::Line::{
    Claims, Commits, Given, GivenWith, HasPrint, Is, Pass, Releases, Renews, Undoes,
};
use crate::script::With::{From, Print};
use crate::script::{A, B, C, D};
use crate::trial::{Trial, code, lines};

pub(super) const TRIALS: &[Trial] = &[
    lines(
        "undo::restores_the_fingerprint",
        &[
            GivenWith("one", &[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            Undoes(B, Held),
            HasPrint(Some("one")),
            Claims(C.with(&[Print("two")]), Mismatch),
            Claims(D.with(&[Print("one")]), Owned(2, Origin::Abandoned)),
        ],
    ),
    lines(
        "undo::restores_that_there_was_no_fingerprint",
        &[
            Given(&[Abandoned]),
            Claims(B.with(&[Print("two")]), Owned(2, Origin::Abandoned)),
            Undoes(B, Held),
            Claims(C.with(&[Print("one")]), Owned(2, Origin::Abandoned)),
        ],
    ),
    // The commit of a body that has ended is tried again for long after its lease.
    lines(
        "undo::restores_the_owner_who_commits",
        &[
            GivenWith("one", &[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            Commits(A, Lost),
            Undoes(B, Held),
            Commits(A, Held),
            Claims(C.with(&[Print("one")]), FindsCommitted(1)),
        ],
    ),
    lines(
        "undo::restores_the_owner_who_gives_up",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            Undoes(B, Held),
            Releases(A, Held),
            Claims(C, Owned(2, Origin::Released)),
        ],
    ),
    lines(
        "undo::restores_the_owner_who_is_recognised",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            Undoes(B, Held),
            Claims(A, Owned(1, Origin::Nothing)),
        ],
    ),
    // An abandoned record may be waiting for an operator, so it stays at least as long as before.
    code("undo::restores_the_expiry", |t| {
        Box::pin(async move {
            let first = brief(&claim(&t.id()?)).with_hold(LONG * 9);
            t.own(&first).await?;
            t.pass_until(first.lease, &first.id, Some(RecordState::Abandoned))
                .await?;
            let second = claim(&first.id).with_hold(LONG * 2);
            t.own(&second).await?;
            let (undone, _) = t.timed(t.store.release(&undo(&second))).await?;
            let seen = t.look(&first.id).await?;
            let info = seen
                .info
                .ok_or_else(|| broken("the abandoned record is gone"))?;
            t.counted_down("its expiry", info.expires_in, (first.hold, undone), seen.at)
        })
    }),
    lines(
        "undo::restores_no_lease",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            Undoes(B, Held),
            Is(Abandoned),
            Renews(A, Held),
            Pass,
            Is(Abandoned),
        ],
    ),
    // Its own claim may be one that is being undone.
    code(
        "undo::of_the_restored_owner_leaves_what_that_one_found",
        |t| {
            Box::pin(async move {
                let given = t.given(RecordState::Released).await?;
                let second = brief(&given.claim);
                same("the attempt", t.own(&second).await?, 2)?;
                t.pass_until(second.lease, &given.id, Some(RecordState::Abandoned))
                    .await?;
                let third = claim(&given.id);
                t.own(&third).await?;
                t.store.release(&undo(&third)).await?;
                same(
                    "undoing the claim before it",
                    t.store.release(&undo(&second)).await?,
                    Ownership::Held,
                )?;
                let info = t
                    .store
                    .inspect(&given.id)
                    .await?
                    .map(|info| (info.state, info.attempt));
                same("the record then", info, Some((RecordState::Released, 1)))
            })
        },
    ),
    code("undo::one_after_the_other_restores_each", |t| {
        Box::pin(async move {
            let claims = chain(t, 4).await?;
            for attempt in (1..4).rev() {
                let [before, last] = &claims[attempt - 1..=attempt] else {
                    continue;
                };
                same(
                    "undoing a claim",
                    t.store.release(&undo(last)).await?,
                    Ownership::Held,
                )?;
                let info = t
                    .store
                    .inspect(&last.id)
                    .await?
                    .map(|info| (info.state, info.attempt, info.fingerprint));
                same(
                    "the record then",
                    info,
                    Some((RecordState::Abandoned, attempt as u64, before.fingerprint)),
                )?;
            }
            let [first, ..] = claims.as_slice() else {
                return Ok(());
            };
            same(
                "the commit of the first",
                t.store.commit(&commit(first, 1)).await?,
                Ownership::Held,
            )
        })
    }),
    code(
        "undo::of_more_than_are_remembered_leaves_an_abandoned_record",
        |t| {
            Box::pin(async move {
                let claims = chain(t, 6).await?;
                for last in claims[1..].iter().rev() {
                    t.store.release(&undo(last)).await?;
                    t.then(&last.id, Some(RecordState::Abandoned)).await?;
                }
                let answer = t
                    .store
                    .claim(&claim(&claims[0].id).with_take_over(false))
                    .await?;
                matches_or_broken!(
                    "a claim that does not take over",
                    answer,
                    Claimed::Abandoned { .. }
                )
            })
        },
    ),
    lines(
        "undo::leaves_the_late_owner_nothing_once_another_claims",
        &[
            Given(&[Abandoned]),
            Claims(B, Owned(2, Origin::Abandoned)),
            Undoes(B, Held),
            Claims(C, Owned(2, Origin::Abandoned)),
            Commits(A, Lost),
            Commits(C.with(&[From(Origin::Abandoned)]), Held),
        ],
    ),
];

/// A claim whose lease is over at once.
fn brief(of: &Claim) -> Claim {
    claim(&of.id).with_lease(Duration::from_millis(1))
}

/// Claims one after the other, each of which found the one before abandoned; the last is alive.
async fn chain(t: &Bench, length: u64) -> Result<Vec<Claim>, Failure> {
    let mut claims: Vec<Claim> = Vec::new();
    let id = t.id()?;
    for attempt in 1..=length {
        let next = brief(&claim(&id)).with_fingerprint(print("one")?);
        same("the attempt", t.own(&next).await?, attempt)?;
        claims.push(next);
        if attempt < length {
            t.pass_until(Duration::from_millis(1), &id, Some(RecordState::Abandoned))
                .await?;
        }
    }
    Ok(claims)
}
