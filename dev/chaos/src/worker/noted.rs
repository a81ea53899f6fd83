//! A store that writes down what the one behind it gave: whose the key was, and until when.

use std::time::Duration;

use idem_core::record::{
    Claim, Claimed, Commit, Issue, Issued, Owner, Ownership, RecordId, RecordInfo, Release,
    Removed, Renewal,
};
use idem_core::{Store, StoreError};

use crate::clock;
use crate::history::{Event, Journal};

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
        self.inner.commit(commit).await
    }

    async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
        // Before it is sent: from here on the key may be anybody's.
        self.journal.write(Event::Releasing {
            key: release.id.key().to_owned(),
            owner: number(release.owner),
        });
        self.inner.release(release).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        let sent = clock::now();
        let answers = self.inner.renew(renewals).await;
        for (renewal, answer) in renewals.iter().zip(&answers) {
            if matches!(answer, Ok(Ownership::Held)) {
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

/// Enough of an owner to tell it from the others.
fn number(owner: Owner) -> u64 {
    owner
        .to_bytes()
        .into_iter()
        .take(8)
        .fold(0, |number, byte| number << 8 | u64::from(byte))
}
