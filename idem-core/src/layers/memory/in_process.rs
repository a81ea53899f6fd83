//! The store as a runtime holds it.

use futures_util::future::{Either, ready};
use tokio::time::Instant;

use super::MemoryStore;
use crate::adapter::engine::{DynStore, FirstSent, StepAnswer};
use crate::record::{Claim, Claimed, Commit, Owner, Ownership, Release};

/// The store as a runtime holds it. The steps of a call need no boxes, because each is done when it
/// is called.
pub(super) struct InProcess(pub(super) MemoryStore);

impl DynStore for InProcess {
    fn inside(&self) -> &dyn DynStore {
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
}
