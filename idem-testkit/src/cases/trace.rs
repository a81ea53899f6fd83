//! What a claim says of its call stays in the record until the commit, and decides nothing.

use std::sync::Arc;

use idem_core::record::{Claim, Metadata, Origin, Ownership, RecordId, RecordState};

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
                    Some(said(1)),
                )?;
                for hold in [LONG * 2, LONG * 3] {
                    let kept = t.store.renew(renewal(&first).with_hold(hold)).await?;
                    same("a renewal", kept, Ownership::Held)?;
                    same(
                        "the trace after a renewal",
                        seen(t, &first.id).await?,
                        Some(said(1)),
                    )?;
                }
                same(
                    "giving it up",
                    t.store.release(&abandon(&first)).await?,
                    Ownership::Held,
                )?;
                let info = t.store.inspect(&first.id).await?;
                let info = info.map(|info| (info.state, info.trace, info.fingerprint));
                let trace = said(1).trace.clone();
                same(
                    "the record then",
                    info,
                    Some((RecordState::Abandoned, trace, first.fingerprint)),
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
                    (Some(said(1)), Some(said(2))),
                    (Some(said(1)), None),
                    (None, Some(said(2))),
                ] {
                    let first = claim(&t.id()?).with_metadata(one.clone());
                    t.own(&first).await?;
                    t.store.release(&abandon(&first)).await?;
                    let second = claim(&first.id).with_metadata(two.clone());
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
            for (as_claimed, metadata) in [
                (None, None),
                (Some(Origin::Nothing), first.metadata.clone()),
                (Some(Origin::Nothing), None),
            ] {
                let claim = first.clone().with_id(t.id()?);
                t.own(&claim).await?;
                let commit = commit(&claim, 1)
                    .with_as_claimed(as_claimed.map(|origin| claim.as_claimed(origin)));
                same(
                    "a commit",
                    t.store
                        .commit(&commit.with_claim_metadata(metadata))
                        .await?,
                    Ownership::Held,
                )?;
                t.then(&claim.id, Some(RecordState::Committed)).await?;
            }
            t.own(&first).await?;
            same(
                "a release",
                t.store.release(&release(&first)).await?,
                Ownership::Held,
            )?;
            t.then(&first.id, Some(RecordState::Released)).await?;
            same(
                "the trace of a released record",
                seen(t, &first.id).await?,
                None,
            )?;
            let next = traced(&first.id, 2);
            same("the next attempt", t.own(&next).await?, 2)?;
            holds(
                "the record has the trace of the next",
                seen(t, &first.id).await? == Some(said(2)),
            )
        })
    }),
];

/// The trace of a call and the type `Receipt` of its outcome.
fn said(number: u8) -> Arc<Metadata> {
    let trace = format!("t00-0af7651916cd43dd8448eb211c80319c-b7ad6b71692033{number:02x}-01");
    Arc::new(Metadata::parse(&format!("{trace},nUmVjZWlwdA")).unwrap_or_default())
}

fn traced(id: &RecordId, number: u8) -> Claim {
    claim(id).with_metadata(Some(said(number)))
}

async fn seen(t: &Bench, id: &RecordId) -> Result<Option<Arc<Metadata>>, crate::check::Failure> {
    let mut seen = Metadata::default();
    if let Some(info) = t.store.inspect(id).await? {
        (seen.trace, seen.type_name) = (info.trace, info.outcome_type);
    }
    Ok((!seen.is_empty()).then(|| Arc::new(seen)))
}
