//! The trace of the call that claimed stays in the record until the commit, and decides nothing.

use std::sync::Arc;

use idem_core::record::{Claim, Origin, Ownership, RecordId, RecordState};

use crate::bench::{Bench, LONG, abandon, claim, commit, print, release, renewal, undo};
use crate::check::{holds, same};
use crate::trial::{Trial, code};

pub(super) const TRIALS: &[Trial] = &[
    code(
        "trace::stays_through_renewals_and_what_leaves_the_record_abandoned",
        |t| {
            Box::pin(async move {
                let first = traced(&t.id()?, 1).with_fingerprint(print("one")?);
                t.own(&first).await?;
                same(
                    "the trace of a record in flight",
                    seen(t, &first.id).await?,
                    Some(trace(1)),
                )?;
                for hold in [LONG * 2, LONG * 3] {
                    let kept = t.store.renew(renewal(&first).with_hold(hold)).await?;
                    same("a renewal", kept, Ownership::Held)?;
                    same(
                        "the trace after a renewal",
                        seen(t, &first.id).await?,
                        Some(trace(1)),
                    )?;
                }
                same(
                    "giving it up",
                    t.store.release(&abandon(&first)).await?,
                    Ownership::Held,
                )?;
                let info = t.store.inspect(&first.id).await?;
                let info = info.map(|info| (info.state, info.trace, info.fingerprint));
                same(
                    "the record then",
                    info,
                    Some((RecordState::Abandoned, Some(trace(1)), first.fingerprint)),
                )?;
                // A record without a trace has none.
                let plain = claim(&t.id()?);
                t.own(&plain).await?;
                same(
                    "the trace of a claim without one",
                    seen(t, &plain.id).await?,
                    None,
                )
            })
        },
    ),
    code(
        "trace::is_that_of_the_owner_and_an_undone_claim_restores_the_one_before",
        |t| {
            Box::pin(async move {
                for (one, two) in [
                    (Some(trace(1)), Some(trace(2))),
                    (Some(trace(1)), None),
                    (None, Some(trace(2))),
                ] {
                    let first = claim(&t.id()?).with_trace(one.clone());
                    t.own(&first).await?;
                    t.store.release(&abandon(&first)).await?;
                    let second = claim(&first.id).with_trace(two.clone());
                    t.own(&second).await?;
                    same(
                        "the trace after a take-over",
                        seen(t, &first.id).await?,
                        two,
                    )?;
                    t.store.release(&undo(&second)).await?;
                    same(
                        "the trace after that was undone",
                        seen(t, &first.id).await?,
                        one,
                    )?;
                    same(
                        "the first owner's commit",
                        t.store.commit(&commit(&first, 1)).await?,
                        Ownership::Held,
                    )?;
                }
                Ok(())
            })
        },
    ),
    code("trace::changes_nothing_for_commits_and_releases", |t| {
        Box::pin(async move {
            let first = traced(&t.id()?, 1);
            for (as_claimed, trace) in [
                (None, None),
                (Some(Origin::Nothing), first.trace.clone()),
                (Some(Origin::Nothing), None),
            ] {
                let claim = first.clone().with_id(t.id()?);
                t.own(&claim).await?;
                let commit = commit(&claim, 1)
                    .with_as_claimed(as_claimed.map(|origin| claim.as_claimed(origin)));
                same(
                    "a commit",
                    t.store.commit(&commit.with_trace(trace)).await?,
                    Ownership::Held,
                )?;
                same(
                    "the state then",
                    t.state(&claim.id).await?,
                    Some(RecordState::Committed),
                )?;
            }
            t.own(&first).await?;
            same(
                "a release",
                t.store.release(&release(&first)).await?,
                Ownership::Held,
            )?;
            same(
                "the state then",
                t.state(&first.id).await?,
                Some(RecordState::Released),
            )?;
            same(
                "the trace of a released record",
                seen(t, &first.id).await?,
                None,
            )?;
            let next = traced(&first.id, 2);
            same("the next attempt", t.own(&next).await?, 2)?;
            holds(
                "the record has the trace of the next",
                seen(t, &first.id).await? == Some(trace(2)),
            )
        })
    }),
];

fn trace(number: u8) -> Arc<str> {
    format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b71692033{number:02x}-01").into()
}

fn traced(id: &RecordId, number: u8) -> Claim {
    claim(id).with_trace(Some(trace(number)))
}

async fn seen(t: &Bench, id: &RecordId) -> Result<Option<Arc<str>>, crate::check::Failure> {
    Ok(t.store.inspect(id).await?.and_then(|info| info.trace))
}
