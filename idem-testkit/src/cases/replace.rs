//! When an outcome that an operator has settled is replaced by another one, and what stays.

use std::sync::Arc;
use std::time::Duration;

use idem_core::record::{Claimed, Encoded, Metadata, Ownership, RecordId, RecordState};
use idem_core::store::admin::{Intervened, Intervention};

use crate::bench::{Bench, Given, LONG, Moment, Task, claim, outcome, print};
use crate::check::{Failure, broken, same};
use crate::trial::{Trial, code};

pub(super) const TRIALS: &[Trial] = &[
    code("replace::gives_later_duplicates_the_other_outcome", |t| {
        Box::pin(async move {
            for remember in [LONG, LONG * 2] {
                let Settled { given, seen, .. } = settled(t, LONG, remember).await?;
                let answer = t
                    .store
                    .intervene(&replace(&given.id, &seen).only_state(RecordState::Committed))
                    .await?;
                same("the replacement", answer, Intervened::Done { attempt: 1 })?;
                match t.store.claim(&claim(&given.id)).await? {
                    Claimed::Committed {
                        attempt: 1,
                        outcome: found,
                    } => {
                        same("the outcome", &found.payload[..], &b"\"right\""[..])?;
                        same("its version", found.version(), 1)?;
                    }
                    other => return Err(broken(format!("a claim then: {other:?}"))),
                }
                // The same again, as after a lost reply: the outcome that was seen is gone.
                let again = t.store.intervene(&replace(&given.id, &seen)).await?;
                same("the same again", again, Intervened::Changed { attempt: 1 })?;
                // A replaced outcome can be replaced once more.
                let seen = t
                    .store
                    .inspect(&given.id)
                    .await?
                    .and_then(|info| info.outcome);
                let seen = seen.ok_or_else(|| broken("the outcome is gone"))?;
                same(
                    "another one",
                    t.store.intervene(&replace(&given.id, &seen)).await?,
                    Intervened::Done { attempt: 1 },
                )?;
            }
            Ok(())
        })
    }),
    code("replace::keeps_attempt_fingerprint_trace_and_times", |t| {
        Box::pin(async move {
            for remember in [LONG, LONG * 2] {
                let Settled { given, seen, .. } = settled(t, LONG, remember).await?;
                t.pass_nearly(t.unit()).await;
                let before = t.look(&given.id).await?;
                let replacement = replace(&given.id, &seen).only_attempt(1).force(true);
                let (replaced, answer) = t.timed(t.store.intervene(&replacement)).await?;
                same("the replacement", answer, Intervened::Done { attempt: 1 })?;
                t.unchanged("the record then", &given.id, &before).await?;
                let after = t.look(&given.id).await?;
                let info = after.info.ok_or_else(|| broken("the record is gone"))?;
                same("the trace", info.trace.as_deref(), Some(&TRACE[1..]))?;
                let audit = info
                    .outcome
                    .as_ref()
                    .and_then(|outcome| outcome.metadata.as_ref()?.audit.clone());
                same(
                    "the operator",
                    audit.map(|audit| audit.who),
                    Some("joe".into()),
                )?;
                let age = info
                    .audit_age
                    .ok_or_else(|| broken("the audit has no age"))?;
                t.counted_up("the audit's age", age, replaced, after.at)?;
                let mismatch = claim(&given.id).with_fingerprint(print("two")?);
                same(
                    "a claim with other arguments",
                    t.store.claim(&mismatch).await?,
                    Claimed::Mismatch,
                )?;
            }
            Ok(())
        })
    }),
    code(
        "replace::leaves_a_record_that_is_done_after_its_time",
        |t| {
            Box::pin(async move {
                let ttl = t.unit();
                let Settled { given, seen, at } = settled(t, ttl, LONG).await?;
                let answer = t.store.intervene(&replace(&given.id, &seen)).await?;
                t.within(
                    ttl,
                    at,
                    same("the replacement", answer, Intervened::Done { attempt: 1 }),
                )?;
                t.pass_until(ttl, &given.id, Some(RecordState::Done))
                    .await?;
                // Its outcome is over: nothing is left to replace.
                let late = t.store.intervene(&replace(&given.id, &seen)).await?;
                same(
                    "a replacement then",
                    late,
                    Intervened::Changed { attempt: 1 },
                )?;
                same(
                    "a claim then",
                    t.store.claim(&claim(&given.id)).await?,
                    Claimed::Done { attempt: 1 },
                )
            })
        },
    ),
    code(
        "replace::of_another_outcome_than_was_seen_changes_nothing",
        |t| {
            Box::pin(async move {
                for remember in [LONG, LONG * 2] {
                    let Settled { given, seen, .. } = settled(t, LONG, remember).await?;
                    let before = t
                        .store
                        .inspect(&given.id)
                        .await?
                        .and_then(|info| info.outcome);
                    let mut others =
                        vec![by_hand(b"\"another\"")?, seen.clone().with_is_error(true)];
                    let later = Metadata::parse("v3,a1;amFuZQ;")
                        .ok_or_else(|| broken("a mistake in the suite"))?;
                    others.push(seen.clone().with_metadata(Some(Arc::new(later))));
                    for other in others {
                        let answer = t.store.intervene(&replace(&given.id, &other)).await?;
                        same(
                            "of another outcome",
                            answer,
                            Intervened::Changed { attempt: 1 },
                        )?;
                    }
                    for wish in [
                        replace(&given.id, &seen).only_attempt(2),
                        replace(&given.id, &seen).only_state(RecordState::Released),
                    ] {
                        let answer = t.store.intervene(&wish).await?;
                        same(
                            "of another attempt or state",
                            answer,
                            Intervened::Changed { attempt: 1 },
                        )?;
                    }
                    let after = t
                        .store
                        .inspect(&given.id)
                        .await?
                        .and_then(|info| info.outcome);
                    same("the outcome then", after, before)?;
                }
                Ok(())
            })
        },
    ),
    code("replace::of_what_nobody_settled_changes_nothing", |t| {
        Box::pin(async move {
            let seen = by_hand(b"\"wrong\"")?;
            let nothing = t.id()?;
            same(
                "of nothing",
                t.store.intervene(&replace(&nothing, &seen)).await?,
                Intervened::Nothing,
            )?;
            for state in [
                RecordState::InFlight,
                RecordState::Abandoned,
                RecordState::Released,
            ] {
                let given = t.given(state).await?;
                let before = t.look(&given.id).await?;
                let wanted = match state {
                    RecordState::Abandoned => RecordState::InFlight,
                    other => other,
                };
                let answer = t
                    .store
                    .intervene(&replace(&given.id, &seen).force(true))
                    .await?;
                same(
                    "of no outcome",
                    answer,
                    Intervened::NotAbandoned { state: wanted },
                )?;
                t.unchanged("the record then", &given.id, &before).await?;
            }
            // The outcome of a body.
            for given in t.both_committed(None).await? {
                let seen = t
                    .store
                    .inspect(&given.id)
                    .await?
                    .and_then(|info| info.outcome);
                let seen = seen.ok_or_else(|| broken("the outcome is gone"))?;
                let answer = t
                    .store
                    .intervene(&replace(&given.id, &seen).force(true))
                    .await?;
                same(
                    "of a body's outcome",
                    answer,
                    Intervened::NotAbandoned {
                        state: RecordState::Committed,
                    },
                )?;
                let after = t
                    .store
                    .inspect(&given.id)
                    .await?
                    .and_then(|info| info.outcome);
                same("the outcome then", after, Some(seen))?;
            }
            Ok(())
        })
    }),
    code("replace::of_several_at_once_carries_out_one", |t| {
        Box::pin(async move {
            for remember in [LONG, LONG * 2] {
                let Settled { given, seen, .. } = settled(t, LONG, remember).await?;
                let mut tasks = Vec::new();
                for number in 0..4 {
                    let store = t.second().await?;
                    let other = outcome(format!("{number}").as_bytes());
                    let replacement = Intervention::replace(given.id.clone(), seen.clone(), other)
                        .by("joe", "ticket 8");
                    tasks.push(Task::spawn(
                        async move { store.intervene(&replacement).await },
                    ));
                }
                let answers = Task::all_end_soon("a replacement", tasks).await?;
                let done = answers
                    .iter()
                    .filter(|answer| matches!(answer, Intervened::Done { attempt: 1 }))
                    .count();
                let changed = answers
                    .iter()
                    .filter(|answer| matches!(answer, Intervened::Changed { attempt: 1 }))
                    .count();
                same(
                    "how many were carried out, and refused",
                    (done, changed),
                    (1, 3),
                )?;
            }
            Ok(())
        })
    }),
];

const TRACE: &str = "t00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// An outcome that `amFuZQ` (jane) has settled, with the trace of the call that was cut off.
fn by_hand(payload: &[u8]) -> Result<Encoded, Failure> {
    let metadata = Metadata::parse(&format!("v3,{TRACE},a{};amFuZQ;", LONG.as_millis()));
    let metadata = metadata.ok_or_else(|| broken("a mistake in the suite"))?;
    Ok(outcome(payload).with_metadata(Some(Arc::new(metadata))))
}

/// A record with that outcome.
struct Settled {
    given: Given,
    seen: Encoded,
    at: Moment,
}

async fn settled(t: &Bench, ttl: Duration, remember: Duration) -> Result<Settled, Failure> {
    let given = t.given_with(RecordState::InFlight, print("one")?).await?;
    let outcome = by_hand(b"\"wrong\"")?;
    let commit = given
        .commit
        .clone()
        .with_outcome(Some(outcome))
        .with_ttl(ttl)
        .with_remember(remember);
    let (at, answer) = t.timed(t.store.commit(&commit)).await?;
    same("the commit", answer, Ownership::Held)?;
    let Some(seen) = t
        .store
        .inspect(&given.id)
        .await?
        .and_then(|info| info.outcome)
    else {
        t.still(ttl, at)?;
        return Err(broken("a committed record has no outcome"));
    };
    Ok(Settled { given, seen, at })
}

fn replace(id: &RecordId, seen: &Encoded) -> Intervention {
    Intervention::replace(id.clone(), seen.clone(), outcome(b"\"right\"")).by("joe", "ticket 8")
}
