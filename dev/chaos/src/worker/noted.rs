//! A store that writes down what the one behind it gave: whose the key was, and until when. Of
//! steps it writes down only the values that were recorded; whether their leases were kept shows in
//! their closures.

use std::time::Duration;

use idem_core::record::{
    Claim, Claimed, Commit, Issue, Issued, Owner, Ownership, RecordId, RecordInfo, Release,
    Removed, Renewal, is_step,
};
use idem_core::{Store, StoreError};

use crate::clock;
use crate::history::{Event, Journal};
use crate::keys;

/// Around a store, which it does not change.
pub(crate) struct Noted<S> {
    inner: S,
    journal: Journal,
}

impl<S> Noted<S> {
    pub(crate) fn new(inner: S, journal: Journal) -> Self {
        Self { inner, journal }
    }
}

impl<S: Store> Store for Noted<S> {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let key = claim.id.key().to_owned();
        let owner = number(claim.owner);
        let sent = clock::now();
        let answer = self.inner.claim(claim).await;
        if is_step(claim.id.operation()) {
            return answer;
        }
        match &answer {
            Ok(Claimed::Owned { attempt, .. }) => {
                self.journal.write(Event::Claimed {
                    key,
                    owner,
                    attempt: *attempt,
                    sent,
                });
            }
            Err(_) => self.journal.write(Event::ClaimFailed { key, owner, sent }),
            Ok(_) => {}
        }
        answer
    }

    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        self.inner.issue(issues).await
    }

    async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
        let answer = self.inner.commit(commit).await;
        let outcome = commit.outcome.as_ref().filter(|_| is_held(&answer));
        if let (Some(step), Some(outcome)) = (step_of(&commit.id), outcome)
            && let Ok(receipt) = serde_json::from_slice(&outcome.payload)
        {
            self.journal.write(Event::Recorded { step, receipt });
        }
        answer
    }

    async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
        // Before it is sent: from here on the key may be anybody's.
        if !is_step(release.id.operation()) {
            self.journal.write(Event::Releasing {
                key: release.id.key().to_owned(),
                owner: number(release.owner),
            });
        }
        self.inner.release(release).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        let sent = clock::now();
        let answers = self.inner.renew(renewals).await;
        for (renewal, answer) in renewals.iter().zip(&answers) {
            if is_held(answer) && !is_step(renewal.id.operation()) {
                let key = renewal.id.key().to_owned();
                let owner = number(renewal.owner);
                self.journal.write(Event::Renewed { key, owner, sent });
            }
        }
        answers
    }

    async fn wait(&self, id: &RecordId, attempt: u64, limit: Duration) -> Result<(), StoreError> {
        self.inner.wait(id, attempt, limit).await
    }

    async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        self.inner.inspect(id).await
    }

    async fn remove(&self, id: &RecordId) -> Result<Removed, StoreError> {
        self.inner.remove(id).await
    }
}

fn is_held(answer: &Result<Ownership, StoreError>) -> bool {
    matches!(answer, Ok(Ownership::Held))
}

/// The name of the step whose record this is. The run is left out, because the checker must find
/// out by itself which steps belong to one run.
fn step_of(id: &RecordId) -> Option<String> {
    let (_, name) = id
        .name()
        .split_once('/')
        .filter(|_| is_step(id.operation()))?;
    let mut parts = id.key().splitn(3, ':');
    let key = parts.next()?;
    Some(keys::step(key, name, parts.nth(1)))
}

/// Enough of an owner to tell it from the others.
fn number(owner: Owner) -> u64 {
    owner
        .to_bytes()
        .into_iter()
        .take(8)
        .fold(0, |number, byte| number << 8 | u64::from(byte))
}
