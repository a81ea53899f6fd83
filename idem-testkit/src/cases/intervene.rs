//! The effect of an operator's decision on a record, and when it is refused.

use std::time::Duration;

use idem_core::record::{Claimed, Origin, Ownership, RecordId, RecordState};
use idem_core::store::admin::{Intervened, Intervention};

use crate::bench::{Bench, Given, LONG, Task, abandon, claim, outcome, print, release, renewal};
use crate::check::{Failure, Verdict, broken, same};
use crate::trial::{Trial, code};

pub(super) const TRIALS: &[Trial] = &[
    code("intervene::of_nothing_is_nothing", |t| {
        Box::pin(async move {
            let id = t.id()?;
            for wish in wishes(&id) {
                same(
                    "a decision about nothing",
                    t.store.intervene(&wish).await?,
                    Intervened::Nothing,
                )?;
                same(
                    "by force",
                    t.store.intervene(&wish.force(true)).await?,
                    Intervened::Nothing,
                )?;
            }
            t.then(&id, None).await
        })
    }),
    code(
        "intervene::to_settle_an_abandoned_record_commits_it_under_its_attempt",
        |t| {
            Box::pin(async move {
                let given = abandoned(t).await?;
                same(
                    "settling",
                    t.store.intervene(&settle(&given.id)).await?,
                    Intervened::Done { attempt: 1 },
                )?;
                let duplicate = claim(&given.id).with_fingerprint(print("one")?);
                let wanted = Claimed::Committed {
                    attempt: 1,
                    outcome: outcome(b"\"by hand\""),
                };
                same("a claim then", t.store.claim(&duplicate).await?, wanted)?;
                let mismatch = claim(&given.id).with_fingerprint(print("two")?);
                same(
                    "a claim with other arguments",
                    t.store.claim(&mismatch).await?,
                    Claimed::Mismatch,
                )?;
                late_owner_is_lost(t, &given).await?;
                let again = t.store.intervene(&settle(&given.id)).await?;
                same(
                    "settling again",
                    again,
                    Intervened::NotAbandoned {
                        state: RecordState::Committed,
                    },
                )
            })
        },
    ),
    code("intervene::to_settle_with_an_error_commits_an_error", |t| {
        Box::pin(async move {
            let given = abandoned(t).await?;
            let mut error = outcome(b"{\"code\":51}");
            error.is_error = true;
            let settled = t
                .store
                .intervene(&Intervention::settle(given.id.clone(), error.clone()))
                .await?;
            same("settling", settled, Intervened::Done { attempt: 1 })?;
            let answer = t.store.claim(&claim(&given.id)).await?;
            same(
                "a claim then",
                answer,
                Claimed::Committed {
                    attempt: 1,
                    outcome: error,
                },
            )
        })
    }),
    code(
        "intervene::to_settle_keeps_the_outcome_as_long_as_the_record_would_have_stayed",
        |t| {
            Box::pin(async move {
                let claim = claim(&t.id()?)
                    .with_lease(Duration::from_millis(1))
                    .with_hold(LONG * 9);
                t.own(&claim).await?;
                t.pass_until(claim.lease, &claim.id, Some(RecordState::Abandoned))
                    .await?;
                let (settled, _) = t.timed(t.store.intervene(&settle(&claim.id))).await?;
                let seen = t.look(&claim.id).await?;
                let Some(info) = seen.info else {
                    return Err(broken("the settled record is gone"));
                };
                same("the state then", info.state, RecordState::Committed)?;
                t.counted_down("expires_in", info.expires_in, (LONG * 9, settled), seen.at)
            })
        },
    ),
    code(
        "intervene::to_settle_keeps_the_outcome_for_as_long_as_said",
        |t| {
            Box::pin(async move {
                let given = abandoned(t).await?;
                let (settled, _) = t
                    .timed(t.store.intervene(&settle(&given.id).keep_for(LONG * 5)))
                    .await?;
                let seen = t.look(&given.id).await?;
                let Some(info) = seen.info else {
                    return Err(broken("the settled record is gone"));
                };
                t.counted_down("expires_in", info.expires_in, (LONG * 5, settled), seen.at)
            })
        },
    ),
    code(
        "intervene::to_settle_after_a_take_over_commits_the_later_attempt",
        |t| {
            Box::pin(async move {
                let given = abandoned(t).await?;
                let second = claim(&given.id).with_lease(Duration::from_millis(1));
                same("the attempt", t.own(&second).await?, 2)?;
                t.pass_until(second.lease, &given.id, Some(RecordState::Abandoned))
                    .await?;
                same(
                    "settling",
                    t.store.intervene(&settle(&given.id)).await?,
                    Intervened::Done { attempt: 2 },
                )?;
                let wanted = Claimed::Committed {
                    attempt: 2,
                    outcome: outcome(b"\"by hand\""),
                };
                same(
                    "a claim then",
                    t.store.claim(&claim(&given.id)).await?,
                    wanted,
                )
            })
        },
    ),
    code(
        "intervene::to_release_an_abandoned_record_keeps_its_attempt",
        |t| {
            Box::pin(async move {
                let given = abandoned(t).await?;
                let released = t
                    .store
                    .intervene(&Intervention::release(given.id.clone()))
                    .await?;
                same("releasing", released, Intervened::Done { attempt: 1 })?;
                t.then(&given.id, Some(RecordState::Released)).await?;
                late_owner_is_lost(t, &given).await?;
                // Not even the fingerprint is kept.
                let next = claim(&given.id)
                    .with_fingerprint(print("two")?)
                    .with_take_over(false);
                same(
                    "a claim then",
                    t.store.claim(&next).await?,
                    Claimed::Owned {
                        attempt: 2,
                        from: Origin::Released,
                    },
                )
            })
        },
    ),
    code("intervene::to_release_a_record_keeps_its_run", |t| {
        Box::pin(async move {
            let first = claim(&t.id()?);
            t.own(&first).await?;
            t.store.release(&abandon(&first)).await?;
            t.own(&claim(&first.id)).await?;
            let release = Intervention::release(first.id.clone()).force(true);
            t.store.intervene(&release).await?;
            t.own(&claim(&first.id)).await?;
            let run = t.store.inspect(&first.id).await?.and_then(|info| info.run);
            same("the run of the next attempt", run, Some(first.owner))
        })
    }),
    code(
        "intervene::to_forget_an_abandoned_record_begins_again",
        |t| {
            Box::pin(async move {
                let given = abandoned(t).await?;
                let forgotten = t
                    .store
                    .intervene(&Intervention::forget(given.id.clone()))
                    .await?;
                same("forgetting", forgotten, Intervened::Done { attempt: 1 })?;
                t.then(&given.id, None).await?;
                late_owner_is_lost(t, &given).await?;
                let answer = t.store.claim(&claim(&given.id)).await?;
                same(
                    "a claim then",
                    answer,
                    Claimed::Owned {
                        attempt: 1,
                        from: Origin::Nothing,
                    },
                )
            })
        },
    ),
    code(
        "intervene::of_a_record_that_is_alive_changes_nothing",
        |t| {
            Box::pin(async move {
                let given = t.given(RecordState::InFlight).await?;
                let before = t.look(&given.id).await?;
                for wish in wishes(&given.id) {
                    alive(t, &wish).await?;
                    t.unchanged("the record then", &given.id, &before).await?;
                }
                same(
                    "its owner's commit",
                    t.store.commit(&given.commit).await?,
                    Ownership::Held,
                )
            })
        },
    ),
    code(
        "intervene::of_a_record_that_its_late_owner_renewed_changes_nothing",
        |t| {
            Box::pin(async move {
                let claim = claim(&t.id()?).with_lease(t.unit());
                t.own(&claim).await?;
                t.pass_until(claim.lease, &claim.id, Some(RecordState::Abandoned))
                    .await?;
                let (renewed, kept) = t.timed(t.store.renew(renewal(&claim))).await?;
                same("the late owner's renewal", kept, Ownership::Held)?;
                for wish in wishes(&claim.id) {
                    let answer = t.store.intervene(&wish).await?;
                    let verdict = match answer {
                        Intervened::Alive { attempt: 1, .. } => Ok(()),
                        other => Err(broken(format!(
                            "a decision about a record that is alive again: got {other:?}"
                        ))),
                    };
                    t.within(claim.lease, renewed, verdict)?;
                }
                Ok(())
            })
        },
    ),
    code(
        "intervene::by_force_takes_a_record_from_its_living_owner",
        |t| {
            Box::pin(async move {
                for (index, state) in [
                    Some(RecordState::Committed),
                    Some(RecordState::Released),
                    None,
                ]
                .into_iter()
                .enumerate()
                {
                    let given = t.given(RecordState::InFlight).await?;
                    let wish = wishes(&given.id)[index].clone().force(true);
                    same(
                        "a decision by force",
                        t.store.intervene(&wish).await?,
                        Intervened::Done { attempt: 1 },
                    )?;
                    t.then(&given.id, state).await?;
                    late_owner_is_lost(t, &given).await?;
                }
                Ok(())
            })
        },
    ),
    code("intervene::by_force_wakes_who_waits", |t| {
        Box::pin(async move {
            for index in 0..3 {
                let given = t.given(RecordState::InFlight).await?;
                let waiter = t.second().await?;
                let id = given.id.clone();
                let waiting = Task::spawn(async move { waiter.wait(&id, 1, LONG).await });
                // A wait that begins only after the decision ends at once as well.
                tokio::task::yield_now().await;
                let _ = t
                    .store
                    .intervene(&wishes(&given.id)[index].clone().force(true))
                    .await?;
                waiting
                    .ends_soon("a wait for a record that was decided about")
                    .await?;
            }
            Ok(())
        })
    }),
    code("intervene::of_a_record_that_was_given_up_is_done", |t| {
        Box::pin(async move {
            let given = t.given(RecordState::InFlight).await?;
            let _ = t
                .store
                .release(&crate::bench::abandon(&given.claim))
                .await?;
            same(
                "settling",
                t.store.intervene(&settle(&given.id)).await?,
                Intervened::Done { attempt: 1 },
            )
        })
    }),
    // As where the attempts are exhausted, and the work was done after all.
    code(
        "intervene::to_settle_a_released_record_that_was_seen_commits_it_under_its_attempt",
        |t| {
            Box::pin(async move {
                for (ttl, kept) in [(None, DEFAULT_HOLD), (Some(LONG * 5), LONG * 5)] {
                    let given = t.given_with(RecordState::Released, print("one")?).await?;
                    let exhausted = claim(&given.id).with_max_attempts(Some(1));
                    same(
                        "a claim before",
                        t.store.claim(&exhausted).await?,
                        Claimed::Exhausted { attempts: 1 },
                    )?;
                    let seen = settle(&given.id)
                        .only_attempt(1)
                        .only_state(RecordState::Released)
                        .by("jane", "ticket 7");
                    let seen = ttl.into_iter().fold(seen, Intervention::keep_for);
                    let (settled, answer) = t.timed(t.store.intervene(&seen)).await?;
                    same("settling", answer, Intervened::Done { attempt: 1 })?;
                    let look = t.look(&given.id).await?;
                    let Some(info) = look.info else {
                        return Err(broken("the settled record is gone"));
                    };
                    same("the state then", info.state, RecordState::Committed)?;
                    t.counted_down("expires_in", info.expires_in, (kept, settled), look.at)?;
                    // A released record has no fingerprint, so that any arguments get the outcome.
                    let duplicate = exhausted.with_fingerprint(print("two")?);
                    let Claimed::Committed {
                        attempt: 1,
                        outcome: found,
                    } = t.store.claim(&duplicate).await?
                    else {
                        return Err(broken("a claim then did not find the outcome"));
                    };
                    same("the outcome", &found.payload[..], &b"\"by hand\""[..])?;
                    late_owner_is_lost(t, &given).await?;
                }
                Ok(())
            })
        },
    ),
    code(
        "intervene::of_a_released_record_that_was_claimed_meanwhile_changes_nothing",
        |t| {
            Box::pin(async move {
                let given = t.given(RecordState::Released).await?;
                same("the next attempt", t.own(&claim(&given.id)).await?, 2)?;
                let seen = settle(&given.id).only_state(RecordState::Released);
                same(
                    "settling",
                    t.store.intervene(&seen.clone()).await?,
                    Intervened::Changed { attempt: 2 },
                )?;
                same(
                    "by force",
                    t.store.intervene(&seen.force(true)).await?,
                    Intervened::Changed { attempt: 2 },
                )?;
                t.then(&given.id, Some(RecordState::InFlight)).await
            })
        },
    ),
    code(
        "intervene::of_what_is_not_in_flight_settles_and_releases_nothing",
        |t| {
            Box::pin(async move {
                let mut all = Vec::new();
                for state in [
                    RecordState::Released,
                    RecordState::Committed,
                    RecordState::Done,
                ] {
                    all.push((t.given(state).await?.id, state));
                }
                let [one, _] = t.both_committed(None).await?;
                all.push((one.id, RecordState::Committed));
                all.push((t.issued().await?.id, RecordState::Issued));
                for (id, state) in all {
                    let before = t.look(&id).await?;
                    for wish in [settle(&id), Intervention::release(id.clone())] {
                        let answer = t.store.intervene(&wish.force(true)).await?;
                        same("the decision", answer, Intervened::NotAbandoned { state })?;
                    }
                    t.unchanged(&format!("a record that is {state:?} then"), &id, &before)
                        .await?;
                }
                Ok(())
            })
        },
    ),
    code("intervene::to_forget_removes_what_is_not_in_flight", |t| {
        Box::pin(async move {
            let mut all = vec![t.issued().await?.id];
            for state in [
                RecordState::Released,
                RecordState::Committed,
                RecordState::Done,
            ] {
                all.push(t.given(state).await?.id);
            }
            for given in t.both_committed(None).await? {
                all.push(given.id);
            }
            for id in all {
                let before = t.store.inspect(&id).await?.map_or(0, |info| info.attempt);
                let forgotten = t.store.intervene(&Intervention::forget(id.clone())).await?;
                same(
                    "forgetting",
                    forgotten,
                    Intervened::Done { attempt: before },
                )?;
                let answer = t.store.claim(&claim(&id)).await?;
                same(
                    "a claim then",
                    answer,
                    Claimed::Owned {
                        attempt: 1,
                        from: Origin::Nothing,
                    },
                )?;
            }
            Ok(())
        })
    }),
    code(
        "intervene::of_another_attempt_than_was_looked_at_changes_nothing",
        |t| {
            Box::pin(async move {
                let given = abandoned(t).await?;
                let before = t.look(&given.id).await?;
                for wish in wishes(&given.id) {
                    let answer = t.store.intervene(&wish.force(true).only_attempt(2)).await?;
                    same("the decision", answer, Intervened::Changed { attempt: 1 })?;
                }
                t.unchanged("the record then", &given.id, &before).await?;
                let answer = t
                    .store
                    .intervene(&settle(&given.id).only_attempt(1))
                    .await?;
                same(
                    "of the very attempt",
                    answer,
                    Intervened::Done { attempt: 1 },
                )
            })
        },
    ),
    code(
        "intervene::of_another_state_than_was_looked_at_changes_nothing",
        |t| {
            Box::pin(async move {
                // As an operator who wants to remove what is abandoned, while its late owner
                // commits.
                for given in t.both_committed(None).await? {
                    let before = t.look(&given.id).await?;
                    let forget = Intervention::forget(given.id.clone()).only_attempt(1);
                    let answer = t
                        .store
                        .intervene(&forget.clone().only_state(RecordState::Abandoned))
                        .await?;
                    same("the decision", answer, Intervened::Changed { attempt: 1 })?;
                    t.unchanged("the record then", &given.id, &before).await?;
                    let answer = t
                        .store
                        .intervene(&forget.only_state(RecordState::Committed))
                        .await?;
                    same("in the very state", answer, Intervened::Done { attempt: 1 })?;
                }
                Ok(())
            })
        },
    ),
    code("intervene::of_several_at_once_carries_out_one", |t| {
        Box::pin(async move {
            let given = abandoned(t).await?;
            let mut tasks = Vec::new();
            for number in 0..4 {
                let store = t.second().await?;
                let id = given.id.clone();
                tasks.push(Task::spawn(async move {
                    let by_hand = outcome(format!("{number}").as_bytes());
                    store.intervene(&Intervention::settle(id, by_hand)).await
                }));
            }
            let answers = Task::all_end_soon("a decision", tasks).await?;
            let done = answers
                .iter()
                .filter(|answer| matches!(answer, Intervened::Done { attempt: 1 }))
                .count();
            let refused = answers
                .iter()
                .filter(|answer| matches!(answer, Intervened::NotAbandoned { .. }))
                .count();
            same(
                "how many were carried out, and refused",
                (done, refused),
                (1, 3),
            )
        })
    }),
    code("intervene::of_a_foreign_value_leaves_it", |t| {
        Box::pin(async move {
            let id = t.id()?;
            t.plant(&id, b"somebody else's").await?;
            for wish in wishes(&id) {
                match t.store.intervene(&wish.force(true)).await {
                    Err(_) => {}
                    Ok(answer) => {
                        return Err(broken(format!(
                            "a foreign value was decided about: {answer:?}"
                        )));
                    }
                }
            }
            match t.store.try_inspect(&id).await? {
                Err(error) => same(
                    "an inspection then",
                    error.kind(),
                    idem_core::StoreErrorKind::Unreadable,
                ),
                Ok(found) => Err(broken(format!("the foreign value is gone: {found:?}"))),
            }
        })
    }),
];

/// How long a released record that is settled is kept, where nothing else is said.
const DEFAULT_HOLD: Duration = Duration::from_secs(30 * 86_400);

fn settle(id: &RecordId) -> Intervention {
    Intervention::settle(id.clone(), outcome(b"\"by hand\""))
}

/// All that an operator can wish.
fn wishes(id: &RecordId) -> [Intervention; 3] {
    [
        settle(id),
        Intervention::release(id.clone()),
        Intervention::forget(id.clone()),
    ]
}

/// An abandoned record with a fingerprint, that stays for a time of its own.
async fn abandoned(t: &Bench) -> Result<Given, Failure> {
    t.given_with(RecordState::Abandoned, print("one")?).await
}

async fn late_owner_is_lost(t: &Bench, given: &Given) -> Verdict {
    same(
        "the late owner's commit",
        t.store.commit(&given.commit).await?,
        Ownership::Lost,
    )?;
    same(
        "its release",
        t.store.release(&release(&given.claim)).await?,
        Ownership::Lost,
    )?;
    same(
        "its renewal",
        t.store.renew(renewal(&given.claim)).await?,
        Ownership::Lost,
    )
}

async fn alive(t: &Bench, wish: &Intervention) -> Verdict {
    match t.store.intervene(wish).await? {
        Intervened::Alive {
            attempt: 1,
            lease_left,
        } if lease_left <= LONG && lease_left > LONG / 2 => Ok(()),
        other => Err(broken(format!(
            "a decision about a record that is alive: wanted Alive, got {other:?}"
        ))),
    }
}
