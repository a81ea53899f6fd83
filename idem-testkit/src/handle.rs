//! A handle on the store under test, as the trials see it: of one type, with a limit on every wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use idem_core::record::{
    Claim, Claimed, Commit, Issue, Issued, Ownership, RecordId, RecordInfo, Release, Removed,
    Renewal,
};
use idem_core::store::admin::{Counts, Cursor, Intervened, Intervention, Listing, Page};
use idem_core::store::{AdminStore, StoreHandle};
use idem_core::{Store, StoreError};

use crate::check::{Failure, broken};

/// The time allowed for a step that has nothing to wait for, and the meaning of *soon* in the
/// contract.
const SOON: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(10);
/// The time allowed in addition for each record of a step on many. A store may keep each in a file
/// of its own.
const EACH: Duration = Duration::from_millis(10);

/// Waits for something that must happen soon.
///
/// Counts ticks instead of looking at a clock: while this machine stands still, the store is not
/// blamed for it.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> Result<F::Output, Failure> {
    soon_after(what, Duration::ZERO, future).await
}

/// Waits for a step on so many records.
async fn soon_for<F: Future>(what: &str, records: usize, step: F) -> Result<F::Output, Failure> {
    let also = EACH.saturating_mul(u32::try_from(records).unwrap_or(u32::MAX));
    soon_after(what, also, step).await
}

async fn soon_after<F: Future>(
    what: &str,
    also: Duration,
    future: F,
) -> Result<F::Output, Failure> {
    tokio::select! {
        biased;
        output = future => Ok(output),
        () = ticks(also.saturating_add(SOON)) => {
            Err(broken(format!("{what} did not come to its end in time")))
        }
    }
}

async fn ticks(mut left: Duration) {
    while !left.is_zero() {
        tokio::time::sleep(TICK).await;
        left = left.saturating_sub(TICK);
    }
}

/// A handle. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Handle(StoreHandle, Option<Arc<dyn DynAdmin>>);

impl Handle {
    pub(crate) fn new(store: impl Store) -> Self {
        Self(store.into_handle(), None)
    }

    /// A handle for the trials of [`AdminStore`] too: of two handles on the same data.
    pub(crate) fn of_admin(store: impl Store, admin: impl AdminStore) -> Self {
        Self(store.into_handle(), Some(Arc::new(admin)))
    }

    pub(crate) async fn list(&self, listing: &Listing) -> Result<Page, Failure> {
        Ok(self.try_list(listing).await??)
    }

    pub(crate) async fn try_list(
        &self,
        listing: &Listing,
    ) -> Result<Result<Page, StoreError>, Failure> {
        soon("a listing", self.admin()?.list(listing)).await
    }

    pub(crate) async fn count(&self, after: Option<&Cursor>) -> Result<Option<Counts>, Failure> {
        Ok(soon("a count", self.admin()?.count(after)).await??)
    }

    pub(crate) async fn intervene(
        &self,
        intervention: &Intervention,
    ) -> Result<Intervened, Failure> {
        Ok(soon("an intervention", self.admin()?.intervene(intervention)).await??)
    }

    fn admin(&self) -> Result<&dyn DynAdmin, Failure> {
        self.1.as_deref().ok_or_else(|| {
            broken("the store is tried as one that cannot list: a mistake in the suite")
        })
    }

    pub(crate) async fn claim(&self, claim: &Claim) -> Result<Claimed, Failure> {
        Ok(self.try_claim(claim).await??)
    }

    pub(crate) async fn issue(&self, issue: &Issue) -> Result<Issued, Failure> {
        match self
            .issue_all(std::slice::from_ref(issue))
            .await?
            .as_slice()
        {
            [answer] => Ok(answer.clone()?),
            answers => Err(broken(format!("one issue got {} answers", answers.len()))),
        }
    }

    pub(crate) async fn issue_all(
        &self,
        issues: &[Issue],
    ) -> Result<Vec<Result<Issued, StoreError>>, Failure> {
        soon_for("an issue", issues.len(), self.0.issue(issues)).await
    }

    pub(crate) async fn commit(&self, commit: &Commit) -> Result<Ownership, Failure> {
        Ok(self.try_commit(commit).await??)
    }

    pub(crate) async fn release(&self, release: &Release) -> Result<Ownership, Failure> {
        Ok(self.try_release(release).await??)
    }

    pub(crate) async fn renew(&self, renewal: Renewal) -> Result<Ownership, Failure> {
        match self.renew_all(&[renewal]).await?.as_slice() {
            [answer] => Ok(answer.clone()?),
            answers => Err(broken(format!("one renewal got {} answers", answers.len()))),
        }
    }

    pub(crate) async fn renew_all(
        &self,
        renewals: &[Renewal],
    ) -> Result<Vec<Result<Ownership, StoreError>>, Failure> {
        soon_for("a renewal", renewals.len(), self.0.renew(renewals)).await
    }

    pub(crate) async fn wait(
        &self,
        id: &RecordId,
        attempt: u64,
        limit: Duration,
    ) -> Result<(), Failure> {
        Ok(self.try_wait(id, attempt, limit).await??)
    }

    pub(crate) async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, Failure> {
        Ok(self.try_inspect(id).await??)
    }

    pub(crate) async fn remove(&self, id: &RecordId) -> Result<Removed, Failure> {
        Ok(self.try_remove(id).await??)
    }

    // The same with the store's own failures, for the trials of those.

    pub(crate) async fn try_claim(
        &self,
        claim: &Claim,
    ) -> Result<Result<Claimed, StoreError>, Failure> {
        soon("a claim", self.0.claim(claim)).await
    }

    pub(crate) async fn try_commit(
        &self,
        commit: &Commit,
    ) -> Result<Result<Ownership, StoreError>, Failure> {
        soon("a commit", self.0.commit(commit)).await
    }

    pub(crate) async fn try_release(
        &self,
        release: &Release,
    ) -> Result<Result<Ownership, StoreError>, Failure> {
        soon("a release", self.0.release(release)).await
    }

    pub(crate) async fn try_wait(
        &self,
        id: &RecordId,
        attempt: u64,
        limit: Duration,
    ) -> Result<Result<(), StoreError>, Failure> {
        soon_after("a wait", limit, self.0.wait(id, attempt, limit)).await
    }

    pub(crate) async fn try_inspect(
        &self,
        id: &RecordId,
    ) -> Result<Result<Option<RecordInfo>, StoreError>, Failure> {
        soon("an inspection", self.0.inspect(id)).await
    }

    pub(crate) async fn try_remove(
        &self,
        id: &RecordId,
    ) -> Result<Result<Removed, StoreError>, Failure> {
        soon("a removal", self.0.remove(id)).await
    }
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// An [`AdminStore`] behind a pointer.
trait DynAdmin: Send + Sync {
    fn list<'a>(&'a self, listing: &'a Listing) -> Answer<'a, Page>;
    fn count<'a>(&'a self, after: Option<&'a Cursor>) -> Answer<'a, Option<Counts>>;
    fn intervene<'a>(&'a self, intervention: &'a Intervention) -> Answer<'a, Intervened>;
}

impl<S: AdminStore> DynAdmin for S {
    fn list<'a>(&'a self, listing: &'a Listing) -> Answer<'a, Page> {
        Box::pin(AdminStore::list(self, listing))
    }

    fn count<'a>(&'a self, after: Option<&'a Cursor>) -> Answer<'a, Option<Counts>> {
        Box::pin(AdminStore::count(self, after))
    }

    fn intervene<'a>(&'a self, intervention: &'a Intervention) -> Answer<'a, Intervened> {
        Box::pin(AdminStore::intervene(self, intervention))
    }
}
