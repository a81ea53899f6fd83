//! A value at the key that is not a record: an error from every method, and left untouched.

use std::fmt::Debug;

use idem_core::record::RecordId;
use idem_core::{StoreError, StoreErrorKind};

use crate::bench::{
    Bench, LONG, abandon, claim, claim_issued, commit, issue, release, renewal, undo,
};
use crate::check::{Verdict, broken, same};
use crate::handle::soon;
use crate::trial::{Trial, code};

pub(super) const TRIALS: &[Trial] = &[
    code("foreign::is_unreadable_to_a_claim", |t| {
        Box::pin(async move {
            for id in planted(t).await? {
                unreadable("a claim", t.store.try_claim(&claim(&id)).await?)?;
                untouched(t, &id).await?;
            }
            Ok(())
        })
    }),
    code(
        "foreign::is_unreadable_to_a_claim_that_must_be_issued",
        |t| {
            Box::pin(async move {
                for id in planted(t).await? {
                    unreadable("a claim", t.store.try_claim(&claim_issued(&id)).await?)?;
                    untouched(t, &id).await?;
                }
                Ok(())
            })
        },
    ),
    code("foreign::is_unreadable_to_an_issue", |t| {
        Box::pin(async move {
            for id in planted(t).await? {
                for answer in t.store.issue_all(&[issue(&id)]).await? {
                    unreadable("an issue", answer)?;
                }
                untouched(t, &id).await?;
            }
            Ok(())
        })
    }),
    code("foreign::is_unreadable_to_a_commit", |t| {
        Box::pin(async move {
            for id in planted(t).await? {
                unreadable(
                    "a commit",
                    t.store.try_commit(&commit(&claim(&id), 1)).await?,
                )?;
                untouched(t, &id).await?;
            }
            Ok(())
        })
    }),
    code("foreign::is_unreadable_to_a_release", |t| {
        Box::pin(async move {
            for id in planted(t).await? {
                let claim = claim(&id);
                unreadable("a release", t.store.try_release(&release(&claim)).await?)?;
                unreadable(
                    "a release to abandoned",
                    t.store.try_release(&abandon(&claim)).await?,
                )?;
                unreadable(
                    "a release to undone",
                    t.store.try_release(&undo(&claim)).await?,
                )?;
                untouched(t, &id).await?;
            }
            Ok(())
        })
    }),
    code("foreign::is_unreadable_to_a_renewal", |t| {
        Box::pin(async move {
            for id in planted(t).await? {
                let answers = t.store.renew_all(&[renewal(&claim(&id))]).await?;
                for answer in answers {
                    unreadable("a renewal", answer)?;
                }
                untouched(t, &id).await?;
            }
            Ok(())
        })
    }),
    code("foreign::is_unreadable_to_a_wait", |t| {
        Box::pin(async move {
            for id in planted(t).await? {
                unreadable(
                    "a wait",
                    soon(
                        "a wait for what is no record",
                        t.store.try_wait(&id, 1, LONG),
                    )
                    .await??,
                )?;
                untouched(t, &id).await?;
            }
            Ok(())
        })
    }),
    code("foreign::is_unreadable_to_an_inspection", |t| {
        Box::pin(async move {
            for id in planted(t).await? {
                untouched(t, &id).await?;
            }
            Ok(())
        })
    }),
    code("foreign::is_unreadable_to_a_removal", |t| {
        Box::pin(async move {
            for id in planted(t).await? {
                unreadable("a removal", t.store.try_remove(&id).await?)?;
                untouched(t, &id).await?;
            }
            Ok(())
        })
    }),
    code("foreign::does_not_spoil_a_batch_of_renewals", |t| {
        Box::pin(async move {
            let one = claim(&t.id()?);
            let other = claim(&t.id()?);
            t.own(&one).await?;
            t.own(&other).await?;
            let foreign = t.id()?;
            t.plant(&foreign, b"hello").await?;
            let answers = t
                .store
                .renew_all(&[renewal(&one), renewal(&claim(&foreign)), renewal(&other)])
                .await?;
            let kinds = answers
                .into_iter()
                .map(|answer| answer.map_err(|error| error.kind()))
                .collect::<Vec<_>>();
            let held = Ok(idem_core::record::Ownership::Held);
            same(
                "the answers",
                kinds,
                vec![held, Err(StoreErrorKind::Unreadable), held],
            )
        })
    }),
    code("foreign::does_not_spoil_a_batch_of_issues", |t| {
        Box::pin(async move {
            let foreign = t.id()?;
            t.plant(&foreign, b"hello").await?;
            let answers = t
                .store
                .issue_all(&[issue(&t.id()?), issue(&foreign), issue(&t.id()?)])
                .await?;
            let kinds = answers
                .into_iter()
                .map(|answer| answer.map_err(|error| error.kind()))
                .collect::<Vec<_>>();
            let issued = Ok(idem_core::record::Issued::Issued);
            same(
                "the answers",
                kinds,
                vec![issued, Err(StoreErrorKind::Unreadable), issued],
            )
        })
    }),
];

/// Somebody else's data, an empty value, and records that are cut short or of a later version.
const VALUES: [&[u8]; 5] = [
    b"hello",
    b"",
    b"{\"a\":1}",
    b"\xff\x00\xfe",
    b"i9z the future",
];

/// Ids at which foreign values stand.
async fn planted(t: &Bench) -> Result<Vec<RecordId>, crate::check::Failure> {
    let mut ids = Vec::new();
    for value in VALUES {
        let id = t.id()?;
        t.plant(&id, value).await?;
        ids.push(id);
    }
    Ok(ids)
}

fn unreadable<T: Debug>(what: &str, answer: Result<T, StoreError>) -> Verdict {
    match answer {
        Err(error) if error.kind() == StoreErrorKind::Unreadable => Ok(()),
        other => Err(broken(format!("{what}: wanted Unreadable, got {other:?}"))),
    }
}

async fn untouched(t: &Bench, id: &RecordId) -> Verdict {
    unreadable("the value then", t.store.try_inspect(id).await?)
}
