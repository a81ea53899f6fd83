//! Stores that break a promise, each in one way: a run that does not find them proves nothing.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clap::ValueEnum;
use idem_core::record::{
    Claim, Claimed, Commit, Encoded, Issue, Issued, Origin, Ownership, RecordId, RecordInfo,
    Release, ReleaseTo, Removed, Renewal, is_step,
};
use idem_core::{Store, StoreError};

use super::place::Raw;

/// How a store is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Flaw {
    /// A renewal is confirmed without asking: the owner never learns that it has lost the key.
    RenewalLies,
    /// The server gets a tenth of the lease that the owner counts, so the owner stops itself too
    /// late.
    ShortLease,
    /// Every claim succeeds, although another owner is busy with the key.
    ClaimAlways,
    /// A commit that was refused is written all the same, over anybody's record.
    CommitUnchecked,
    /// A commit is dropped, and confirmed.
    Forgets,
    /// A commit that failed gives the key up.
    ReleaseOnFailedCommit,
    /// A replay is that of another key.
    ReplaysAnother,
    /// A lease that is half over counts as run out.
    TakesOverEarly,
    /// If the store does not answer, the claim succeeds.
    StoreFailureRuns,
    /// A release forgets the attempts.
    AttemptForgotten,
    /// An error that is to be kept gives the key up.
    ErrorNotKept,
    /// The outcome is not stored, only that there was one.
    NoOutcome,
    /// A wait for another call never ends.
    WaitsForEver,
    /// What is abandoned stays in flight.
    NeverTakenOver,
    /// A waiter that gives up takes the record along.
    WaiterHarms,
    /// The value of a step is dropped, and confirmed.
    ForgetsSteps,
}

/// A store that is wrong in one way.
pub(crate) struct Mutant<S> {
    inner: S,
    flaw: Flaw,
    /// A way around the store, to the same server.
    raw: Raw,
    other: Mutex<Option<Encoded>>,
}

impl<S> Mutant<S> {
    pub(super) fn new(inner: S, flaw: Flaw, raw: Raw) -> Self {
        Self {
            inner,
            flaw,
            raw,
            other: Mutex::default(),
        }
    }

    /// The outcome that was asked for before this one.
    fn another(&self, outcome: Encoded) -> Encoded {
        let mut other = self.other.lock().unwrap_or_else(PoisonError::into_inner);
        other
            .replace(outcome.clone())
            .filter(|other| other.is_error == outcome.is_error)
            .unwrap_or(outcome)
    }
}

impl<S: Store> Mutant<S> {
    async fn wrong_claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let answer = self.inner.claim(claim).await;
        match (self.flaw, answer) {
            (Flaw::ClaimAlways, Ok(Claimed::InFlight { attempt, .. })) => Ok(Claimed::Owned {
                attempt,
                from: Origin::Abandoned,
            }),
            (Flaw::ReplaysAnother, Ok(Claimed::Committed { attempt, outcome })) => {
                Ok(Claimed::Committed {
                    attempt,
                    outcome: self.another(outcome),
                })
            }
            (Flaw::TakesOverEarly, Ok(Claimed::InFlight { lease_left, .. }))
                if lease_left < claim.lease / 2 =>
            {
                self.raw.erase(&claim.id).await;
                self.inner.claim(claim).await
            }
            (Flaw::StoreFailureRuns, Err(_)) => Ok(Claimed::Owned {
                attempt: 1,
                from: Origin::Nothing,
            }),
            (Flaw::NeverTakenOver, Ok(Claimed::Abandoned { attempt })) => Ok(Claimed::InFlight {
                attempt,
                lease_left: claim.lease,
            }),
            (_, answer) => answer,
        }
    }
}

impl<S: Store> Store for Mutant<S> {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        match self.flaw {
            Flaw::ShortLease => {
                self.inner
                    .claim(&claim.clone().with_lease(claim.lease / 10))
                    .await
            }
            Flaw::NeverTakenOver => self.wrong_claim(&claim.clone().with_take_over(false)).await,
            _ => self.wrong_claim(claim).await,
        }
    }

    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        self.inner.issue(issues).await
    }

    async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
        let is_error = commit
            .outcome
            .as_ref()
            .is_some_and(|outcome| outcome.is_error);
        let given_up = || {
            Release::new(
                commit.id.clone(),
                commit.owner,
                ReleaseTo::Released {
                    keep: commit.ttl.max(Duration::from_secs(1)),
                },
            )
        };
        match self.flaw {
            Flaw::Forgets => return Ok(Ownership::Held),
            Flaw::ForgetsSteps if is_step(commit.id.operation()) => return Ok(Ownership::Held),
            Flaw::ErrorNotKept if is_error => return self.inner.release(&given_up()).await,
            Flaw::NoOutcome => return self.inner.commit(&commit.clone().with_outcome(None)).await,
            _ => {}
        }
        let answer = self.inner.commit(commit).await;
        match (self.flaw, &answer) {
            (Flaw::CommitUnchecked, Ok(Ownership::Lost)) => {
                self.raw.overwrite(commit).await;
                return Ok(Ownership::Held);
            }
            (Flaw::ReleaseOnFailedCommit, Err(_)) => {
                for _ in 0..3 {
                    if self.inner.release(&given_up()).await.is_ok() {
                        break;
                    }
                }
            }
            _ => {}
        }
        answer
    }

    async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
        let answer = self.inner.release(release).await;
        let released = matches!(release.to, ReleaseTo::Released { .. })
            && matches!(answer, Ok(Ownership::Held));
        if self.flaw == Flaw::AttemptForgotten && released {
            self.raw.erase(&release.id).await;
        }
        answer
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        if self.flaw == Flaw::RenewalLies {
            return renewals.iter().map(|_| Ok(Ownership::Held)).collect();
        }
        self.inner.renew(renewals).await
    }

    async fn wait(&self, id: &RecordId, attempt: u64, limit: Duration) -> Result<(), StoreError> {
        let answer = self.inner.wait(id, attempt, limit).await;
        match self.flaw {
            Flaw::WaitsForEver => std::future::pending().await,
            Flaw::WaiterHarms => self.raw.erase(id).await,
            _ => {}
        }
        answer
    }

    async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        self.inner.inspect(id).await
    }

    async fn remove(&self, id: &RecordId) -> Result<Removed, StoreError> {
        self.inner.remove(id).await
    }
}
