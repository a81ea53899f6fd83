//! The store as a runtime holds it.

use std::any::Any;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, ready};
use tokio::time::Instant;

use super::MemoryStore;
use crate::StoreError;
use crate::adapter::engine::{DynStore, FirstSent, StepAnswer};
use crate::record::{
    Claim, Claimed, Commit, Issue, Issued, Owner, Ownership, RecordId, RecordInfo, Release,
    Removed, Renewal,
};

/// The store as a runtime holds it. The steps of a call need no boxes, because each is done when it
/// is called.
pub(super) struct InProcess(pub(super) MemoryStore);

impl DynStore for InProcess {
    fn as_any(&self) -> &dyn Any {
        &self.0
    }

    fn is_local(&self) -> bool {
        true
    }

    /// No other process or machine has these records, not even after a fork or a clone.
    fn owner(&self, now: Instant) -> Owner {
        Owner::within_process(now)
    }

    fn claim(&self, claim: Claim) -> StepAnswer<'_, Claimed> {
        Either::Left(ready(self.0.claim_now(&claim)))
    }

    fn commit(&self, commit: Commit, _: &mut Option<FirstSent>) -> StepAnswer<'_, Ownership> {
        Either::Left(ready(Ok(self.0.commit_now(&commit))))
    }

    fn release(&self, release: Release) -> StepAnswer<'_, Ownership> {
        Either::Left(ready(Ok(self.0.release_now(&release))))
    }

    fn issue<'a>(&'a self, issues: &'a [Issue]) -> BoxFuture<'a, Vec<Result<Issued, StoreError>>> {
        DynStore::issue(&self.0, issues)
    }

    fn renew<'a>(
        &'a self,
        renewals: &'a [Renewal],
    ) -> BoxFuture<'a, Vec<Result<Ownership, StoreError>>> {
        DynStore::renew(&self.0, renewals)
    }

    fn wait<'a>(
        &'a self,
        id: &'a RecordId,
        attempt: u64,
        limit: Duration,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        DynStore::wait(&self.0, id, attempt, limit)
    }

    fn inspect<'a>(
        &'a self,
        id: &'a RecordId,
    ) -> BoxFuture<'a, Result<Option<RecordInfo>, StoreError>> {
        DynStore::inspect(&self.0, id)
    }

    fn remove<'a>(&'a self, id: &'a RecordId) -> BoxFuture<'a, Result<Removed, StoreError>> {
        DynStore::remove(&self.0, id)
    }
}
