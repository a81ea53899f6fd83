//! `MemoryStore` as a store at whose keys other people's data can stand, which one of its steps may
//! take for something else.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_core::record::{
    Claim, Claimed, Commit, Issue, Issued, Ownership, RecordId, RecordInfo, Release, Removed,
    Renewal,
};
use idem_core::{MemoryStore, Store, StoreError, StoreErrorKind};
use idem_testkit::{BoxError, Step, Subject};

#[derive(Clone)]
pub(crate) struct Foreign {
    inner: MemoryStore,
    planted: Arc<Mutex<HashSet<RecordId>>>,
    /// The step that does not look whether it finds a record.
    blind: Option<Step>,
    /// Whether one foreign value fails a whole batch.
    spoils: bool,
}

impl Foreign {
    pub(crate) fn new(blind: Option<Step>, spoils: bool) -> Self {
        Self {
            inner: MemoryStore::new(),
            planted: Arc::default(),
            blind,
            spoils,
        }
    }

    fn look(&self, id: &RecordId, step: Step) -> Result<(), StoreError> {
        let mut planted = self.planted.lock().unwrap();
        if self.blind == Some(step)
            && matches!(
                step,
                Step::Claim | Step::Issue | Step::Commit | Step::Remove
            )
        {
            // Written over.
            planted.remove(id);
        }
        if self.blind != Some(step) && planted.contains(id) {
            return Err(StoreError::new(
                StoreErrorKind::Unreadable,
                "the value was not written by idem",
            ));
        }
        Ok(())
    }
}

impl Subject for Foreign {
    type Store = Self;

    async fn store(&self) -> Result<Self, BoxError> {
        Ok(self.clone())
    }

    async fn plant(&self, id: &RecordId, _value: &[u8]) -> Result<bool, BoxError> {
        Ok(self.planted.lock().unwrap().insert(id.clone()))
    }
}

impl Store for Foreign {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.look(&claim.id, Step::Claim)?;
        self.inner.claim(claim).await
    }

    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        let mut answers = self.inner.issue(issues).await;
        let looked: Vec<_> = issues
            .iter()
            .map(|issue| self.look(&issue.id, Step::Issue))
            .collect();
        let spoilt = looked
            .iter()
            .find_map(|look| look.clone().err())
            .filter(|_| self.spoils);
        for (answer, look) in answers.iter_mut().zip(looked) {
            if let Err(error) = spoilt.clone().map_or(look, Err) {
                *answer = Err(error);
            }
        }
        answers
    }

    async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
        self.look(&commit.id, Step::Commit)?;
        self.inner.commit(commit).await
    }

    async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
        self.look(&release.id, Step::Release)?;
        self.inner.release(release).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        let mut answers = self.inner.renew(renewals).await;
        let looked: Vec<_> = renewals
            .iter()
            .map(|renewal| self.look(&renewal.id, Step::Renew))
            .collect();
        let spoilt = looked
            .iter()
            .find_map(|look| look.clone().err())
            .filter(|_| self.spoils);
        for (answer, look) in answers.iter_mut().zip(looked) {
            if let Err(error) = spoilt.clone().map_or(look, Err) {
                *answer = Err(error);
            }
        }
        answers
    }

    async fn wait(&self, id: &RecordId, attempt: u64, limit: Duration) -> Result<(), StoreError> {
        self.look(id, Step::Wait)?;
        self.inner.wait(id, attempt, limit).await
    }

    async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        self.look(id, Step::Inspect)?;
        self.inner.inspect(id).await
    }

    async fn remove(&self, id: &RecordId) -> Result<Removed, StoreError> {
        self.look(id, Step::Remove)?;
        self.inner.remove(id).await
    }
}
