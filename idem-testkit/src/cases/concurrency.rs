//! Steps at the same time: each is atomic, so that their answers fit one order of them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use idem_core::record::{Claim, Claimed, Origin, Ownership, RecordState, Removed, Renewal};
use tokio::sync::Barrier;

use crate::bench::{Bench, Given, LONG, Task, abandon, claim, commit, print, release, renewal};
use crate::check::{Failure, Verdict, broken, holds, same};
use crate::handle::{Handle, soon};
use crate::trial::{Trial, code};

pub(super) const TRIALS: &[Trial] = &[
    code("concurrency::of_many_claims_of_nothing_one_is_owned", |t| {
        Box::pin(async move {
            for _ in 0..4 {
                let id = t.id()?;
                let claims = (0..MANY).map(|_| claim(&id)).collect();
                one_is_owned(std::slice::from_ref(&t.store), claims, 1, Origin::Nothing).await?;
            }
            Ok(())
        })
    }),
    code(
        "concurrency::of_many_claims_of_a_released_key_one_is_owned",
        |t| {
            Box::pin(async move {
                for _ in 0..4 {
                    let given = t.given(RecordState::Released).await?;
                    let claims = (0..MANY).map(|_| claim(&given.id)).collect();
                    one_is_owned(std::slice::from_ref(&t.store), claims, 2, Origin::Released)
                        .await?;
                }
                Ok(())
            })
        },
    ),
    code("concurrency::of_many_take_overs_one_is_owned", |t| {
        Box::pin(async move {
            for _ in 0..4 {
                let given = t.given(RecordState::Abandoned).await?;
                let claims = (0..MANY).map(|_| claim(&given.id)).collect();
                one_is_owned(std::slice::from_ref(&t.store), claims, 2, Origin::Abandoned).await?;
            }
            Ok(())
        })
    }),
    code("concurrency::of_claims_by_two_handles_one_is_owned", |t| {
        Box::pin(async move {
            let handles = [t.store.clone(), t.second().await?];
            let new = t.id()?;
            let old = t.given(RecordState::Abandoned).await?;
            one_is_owned(
                &handles,
                (0..MANY).map(|_| claim(&new)).collect(),
                1,
                Origin::Nothing,
            )
            .await?;
            one_is_owned(
                &handles,
                (0..MANY).map(|_| claim(&old.id)).collect(),
                2,
                Origin::Abandoned,
            )
            .await
        })
    }),
    code(
        "concurrency::of_claims_with_two_fingerprints_one_is_owned",
        |t| {
            Box::pin(async move {
                let id = t.id()?;
                let one = print("one")?;
                let two = print("two")?;
                let step = |number: usize| {
                    let claim = claim(&id).with_fingerprint(if number.is_multiple_of(2) {
                        one
                    } else {
                        two
                    });
                    let store = t.store.clone();
                    async move { Ok((claim.fingerprint, store.claim(&claim).await?)) }
                };
                let answers = together((0..MANY).map(step)).await?;
                let owned: Vec<_> = answers
                    .iter()
                    .filter(|(_, answer)| matches!(answer, Claimed::Owned { .. }))
                    .collect();
                let [(winner, _)] = owned.as_slice() else {
                    return Err(broken(format!(
                        "those that own the key: wanted one, got {owned:?}"
                    )));
                };
                let mismatches = |(print, answer): &&(_, Claimed)| {
                    print != winner && *answer == Claimed::Mismatch
                };
                same(
                    "how many mismatch",
                    answers.iter().filter(mismatches).count(),
                    MANY / 2,
                )
            })
        },
    ),
    code(
        "concurrency::ones_own_claim_sent_twice_is_owned_twice",
        |t| {
            Box::pin(async move {
                for round in 0..ROUNDS {
                    let claim = claim(&t.id()?);
                    let one = t.store.clone();
                    let two = t.store.clone();
                    let same_claim = claim.clone();
                    let sent = both(round, async move { one.claim(&claim).await }, async move {
                        two.claim(&same_claim).await
                    });
                    let owned = Claimed::Owned {
                        attempt: 1,
                        from: Origin::Nothing,
                    };
                    same(
                        "the answers to one claim, sent twice",
                        sent.await?,
                        (owned.clone(), owned),
                    )?;
                }
                Ok(())
            })
        },
    ),
    code(
        "concurrency::claims_beside_a_commit_see_the_lease_or_the_outcome",
        |t| {
            Box::pin(async move {
                for _ in 0..10 {
                    let given = t.given(RecordState::InFlight).await?;
                    let outcome = given.commit.outcome.clone();
                    let step = |number: usize| {
                        let store = t.store.clone();
                        let claim = claim(&given.id);
                        let commit = given.commit.clone();
                        async move {
                            if number == 8 {
                                same("the commit", store.commit(&commit).await?, Ownership::Held)?;
                            }
                            store.claim(&claim).await
                        }
                    };
                    for answer in together((0..16).map(step)).await? {
                        let right = match &answer {
                            Claimed::InFlight { attempt: 1, .. } => true,
                            Claimed::Committed {
                                attempt: 1,
                                outcome: found,
                            } => Some(found) == outcome.as_ref(),
                            _ => false,
                        };
                        holds(
                            &format!("wanted InFlight or the outcome, got {answer:?}"),
                            right,
                        )?;
                    }
                }
                Ok(())
            })
        },
    ),
    code("concurrency::a_commit_or_a_take_over_wins", |t| {
        Box::pin(async move {
            for (round, Given { commit, .. }) in abandoned(t, Duration::from_millis(1))
                .await?
                .into_iter()
                .enumerate()
            {
                let one = t.store.clone();
                let two = t.store.clone();
                let second = claim(&commit.id);
                let id = commit.id.clone();
                let (committed, claimed) = both(
                    round,
                    async move { one.commit(&commit).await },
                    async move { two.claim(&second).await },
                )
                .await?;
                let (right, then) = match (committed, &claimed) {
                    (Ownership::Held, Claimed::Committed { attempt: 1, .. }) => {
                        (true, RecordState::Committed)
                    }
                    (Ownership::Lost, Claimed::Owned { attempt: 2, .. }) => {
                        (true, RecordState::InFlight)
                    }
                    _ => (false, RecordState::InFlight),
                };
                holds(
                    &format!("a commit beside a take-over: {committed:?} and {claimed:?}"),
                    right,
                )?;
                t.then(&id, Some(then)).await?;
            }
            Ok(())
        })
    }),
    code("concurrency::a_renewal_or_a_take_over_wins", |t| {
        Box::pin(async move {
            for (
                round,
                Given {
                    id, claim: first, ..
                },
            ) in abandoned(t, t.unit()).await?.into_iter().enumerate()
            {
                let one = t.store.clone();
                let two = t.store.clone();
                let second = claim(&id);
                let steps = both(
                    round,
                    async move { renewed(&one, renewal(&first)).await },
                    async move { two.claim(&second).await },
                );
                let (raced, (renewed, claimed)) = t.timed(steps).await?;
                let right = match renewed {
                    Ownership::Held => matches!(claimed, Claimed::InFlight { attempt: 1, .. }),
                    Ownership::Lost => matches!(claimed, Claimed::Owned { attempt: 2, .. }),
                };
                let what = format!("a renewal beside a take-over: {renewed:?} and {claimed:?}");
                t.within(t.unit(), raced, holds(&what, right))?;
            }
            Ok(())
        })
    }),
    code("concurrency::a_renewal_or_a_removal_wins", |t| {
        Box::pin(async move {
            for (
                round,
                Given {
                    id, claim: first, ..
                },
            ) in abandoned(t, t.unit()).await?.into_iter().enumerate()
            {
                let one = t.store.clone();
                let two = t.store.clone();
                let steps = both(
                    round,
                    async move { renewed(&one, renewal(&first)).await },
                    async move { two.remove(&id).await },
                );
                let (raced, (renewed, removed)) = t.timed(steps).await?;
                let right = match renewed {
                    Ownership::Held => matches!(removed, Removed::InFlight { .. }),
                    Ownership::Lost => removed == Removed::Removed,
                };
                let what = format!("a renewal beside a removal: {renewed:?} and {removed:?}");
                t.within(t.unit(), raced, holds(&what, right))?;
            }
            Ok(())
        })
    }),
    code("concurrency::a_release_or_a_take_over_wins", |t| {
        Box::pin(async move {
            for (
                round,
                Given {
                    id, claim: first, ..
                },
            ) in abandoned(t, Duration::from_millis(1))
                .await?
                .into_iter()
                .enumerate()
            {
                let one = t.store.clone();
                let two = t.store.clone();
                let second = claim(&id);
                let (released, claimed) = both(
                    round,
                    async move { one.release(&release(&first)).await },
                    async move { two.claim(&second).await },
                )
                .await?;
                // The claim is owned in both orders, and what it found tells which it was.
                let found = if released == Ownership::Held {
                    Origin::Released
                } else {
                    Origin::Abandoned
                };
                let what = format!("a claim beside a release that was {released:?}");
                same(
                    &what,
                    claimed,
                    Claimed::Owned {
                        attempt: 2,
                        from: found,
                    },
                )?;
                t.then(&id, Some(RecordState::InFlight)).await?;
            }
            Ok(())
        })
    }),
    code(
        "concurrency::a_removal_and_a_take_over_come_one_after_the_other",
        |t| {
            Box::pin(async move {
                for (round, Given { id, .. }) in abandoned(t, Duration::from_millis(1))
                    .await?
                    .into_iter()
                    .enumerate()
                {
                    let one = t.store.clone();
                    let two = t.store.clone();
                    let second = claim(&id);
                    let (removed, claimed) =
                        both(round, async move { one.remove(&id).await }, async move {
                            two.claim(&second).await
                        })
                        .await?;
                    let right = match removed {
                        Removed::Removed => {
                            claimed
                                == Claimed::Owned {
                                    attempt: 1,
                                    from: Origin::Nothing,
                                }
                        }
                        Removed::InFlight { .. } => {
                            claimed
                                == Claimed::Owned {
                                    attempt: 2,
                                    from: Origin::Abandoned,
                                }
                        }
                        Removed::Nothing => false,
                    };
                    holds(
                        &format!("a removal beside a take-over: {removed:?} and {claimed:?}"),
                        right,
                    )?;
                }
                Ok(())
            })
        },
    ),
    code("concurrency::a_commit_sent_twice_is_held_twice", |t| {
        Box::pin(async move {
            for round in 0..ROUNDS {
                let given = t.given(RecordState::InFlight).await?;
                let one = t.store.clone();
                let two = t.store.clone();
                let again = given.commit.clone();
                let sent = both(
                    round,
                    async move { one.commit(&given.commit).await },
                    async move { two.commit(&again).await },
                );
                same(
                    "the answers to one commit, sent twice",
                    sent.await?,
                    (Ownership::Held, Ownership::Held),
                )?;
            }
            Ok(())
        })
    }),
    code(
        "concurrency::a_wait_beside_a_commit_loses_no_wake_up",
        |t| {
            Box::pin(async move {
                let end =
                    async |store: &Handle, claim: &Claim| store.commit(&commit(claim, 1)).await;
                no_wake_up_is_lost(t, end).await
            })
        },
    ),
    code(
        "concurrency::a_wait_beside_a_release_loses_no_wake_up",
        |t| {
            Box::pin(async move {
                let end =
                    async |store: &Handle, claim: &Claim| store.release(&release(claim)).await;
                no_wake_up_is_lost(t, end).await
            })
        },
    ),
    code(
        "concurrency::a_wait_beside_a_release_to_abandoned_loses_no_wake_up",
        |t| {
            Box::pin(async move {
                let end =
                    async |store: &Handle, claim: &Claim| store.release(&abandon(claim)).await;
                no_wake_up_is_lost(t, end).await
            })
        },
    ),
];

/// How many callers there are at once.
pub(super) const MANY: usize = 64;
/// How often a race of two is run.
const ROUNDS: usize = 100;

/// Carries out steps at the same time, in tasks of their own.
pub(super) async fn together<T, F>(steps: impl IntoIterator<Item = F>) -> Result<Vec<T>, Failure>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Failure>> + Send + 'static,
{
    let steps: Vec<F> = steps.into_iter().collect();
    let start = Arc::new(Barrier::new(steps.len()));
    let task = |step: F| {
        let start = Arc::clone(&start);
        Task::spawn(async move {
            start.wait().await;
            step.await
        })
    };
    let tasks = steps.into_iter().map(task).collect();
    Task::all_end_soon("one of several steps at the same time", tasks).await
}

/// Carries out two steps at the same time; each round lets one begin a little earlier or later than
/// the other.
async fn both<A, B>(
    round: usize,
    one: impl Future<Output = Result<A, Failure>> + Send + 'static,
    two: impl Future<Output = Result<B, Failure>> + Send + 'static,
) -> Result<(A, B), Failure>
where
    A: Send + 'static,
    B: Send + 'static,
{
    let one = Task::spawn(async move {
        yield_for(round % 5).await;
        one.await
    });
    let two = Task::spawn(async move {
        yield_for(round / 5 % 5).await;
        two.await
    });
    Ok((
        one.ends_soon("a step").await?,
        two.ends_soon("a step at the same time").await?,
    ))
}

async fn yield_for(times: usize) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

/// Renews, and again while the step at the same time keeps the record locked: a renewal may say so
/// instead of waiting, since the keeper sends it again.
async fn renewed(store: &Handle, renewal: Renewal) -> Result<Ownership, Failure> {
    let until_answered = async {
        loop {
            match store.renew(renewal.clone()).await {
                Err(failure) if failure.is_unavailable() => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                answer => return answer,
            }
        }
    };
    soon("a renewal beside another step", until_answered).await?
}

/// Claims, of which one must be owned as an attempt; all others find it in flight.
async fn one_is_owned(
    handles: &[Handle],
    claims: Vec<Claim>,
    attempt: u64,
    from: Origin,
) -> Verdict {
    let step = |(number, claim): (usize, Claim)| {
        let handle = handles[number % handles.len()].clone();
        async move { handle.claim(&claim).await }
    };
    let answers = together(claims.into_iter().enumerate().map(step)).await?;
    let owned: Vec<_> = answers
        .iter()
        .filter(|answer| matches!(answer, Claimed::Owned { .. }))
        .collect();
    same(
        "those that own the key",
        owned,
        vec![&Claimed::Owned { attempt, from }],
    )?;
    let others = answers
        .iter()
        .filter(|answer| matches!(answer, Claimed::InFlight { attempt: of, .. } if *of == attempt));
    same(
        "how many of the others find it in flight",
        others.count(),
        answers.len() - 1,
    )
}

/// Records whose leases are of a length, all abandoned.
async fn abandoned(t: &Bench, lease: Duration) -> Result<Vec<Given>, Failure> {
    let mut all = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let claim = claim(&t.id()?).with_lease(lease);
        t.own(&claim).await?;
        all.push(Given {
            id: claim.id.clone(),
            commit: commit(&claim, 1),
            claim,
        });
    }
    t.pass(lease).await;
    Ok(all)
}

/// Hundreds of waits, each of which begins a little earlier or later beside what must wake it.
async fn no_wake_up_is_lost(
    t: &Bench,
    end: impl AsyncFn(&Handle, &Claim) -> Result<Ownership, Failure>,
) -> Verdict {
    for round in 0..ROUNDS * 3 {
        let claim = claim(&t.id()?);
        t.own(&claim).await?;
        let store = t.store.clone();
        let id = claim.id.clone();
        let waiter = Task::spawn(async move { store.wait(&id, 1, LONG).await });
        yield_for(round % 16).await;
        if round % 50 == 49 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        same(
            "the end of the attempt",
            end(&t.store, &claim).await?,
            Ownership::Held,
        )?;
        waiter
            .ends_soon(&format!("the wait of round {round}"))
            .await?;
    }
    Ok(())
}
