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

/// The length of a lease that is to run out at once.
pub(crate) const MOMENT: Duration = Duration::from_millis(1);

/// A handle. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Handle {
    store: StoreHandle,
    admin: Option<Arc<dyn DynAdmin>>,
    /// Whether the store's time is that of a clock.
    is_real: bool,
}

impl Handle {
    pub(crate) fn new(store: impl Store, is_real: bool) -> Self {
        Self {
            store: store.into_handle(),
            admin: None,
            is_real,
        }
    }

    /// A handle for the trials of [`AdminStore`] too: of two handles on the same data.
    pub(crate) fn with_admin(mut self, admin: impl AdminStore) -> Self {
        self.admin = Some(Arc::new(admin));
        self
    }

    /// The answer of a step, unless it is that no more than a moment is left of a lease. While it is
    /// unsure of its server's clock, a store may find one alive that a look has seen run out. On a
    /// real clock, the trial is tried again.
    fn sure<T>(&self, answer: T, lease_left: Option<Duration>) -> Result<T, Failure> {
        match lease_left {
            Some(left) if left <= MOMENT && self.is_real => Err(Failure::delayed()),
            _ => Ok(answer),
        }
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
        let answer = soon("an intervention", self.admin()?.intervene(intervention)).await??;
        let left = match answer {
            Intervened::Alive { lease_left, .. } => Some(lease_left),
            _ => None,
        };
        self.sure(answer, left)
    }

    fn admin(&self) -> Result<&dyn DynAdmin, Failure> {
        self.admin.as_deref().ok_or_else(|| {
            broken("the store is tried as one that cannot list: a mistake in the suite")
        })
    }

    pub(crate) async fn claim(&self, claim: &Claim) -> Result<Claimed, Failure> {
        let answer = self.try_claim(claim).await??;
        let left = match answer {
            Claimed::InFlight { lease_left, .. } => Some(lease_left),
            _ => None,
        };
        self.sure(answer, left)
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
        soon_for("an issue", issues.len(), self.store.issue(issues)).await
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
        soon_for("a renewal", renewals.len(), self.store.renew(renewals)).await
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
        let answer = self.try_remove(id).await??;
        let left = match answer {
            Removed::InFlight { lease_left } => Some(lease_left),
            _ => None,
        };
        self.sure(answer, left)
    }

    // The same with the store's own failures, for the trials of those.

    pub(crate) async fn try_claim(
        &self,
        claim: &Claim,
    ) -> Result<Result<Claimed, StoreError>, Failure> {
        soon("a claim", self.store.claim(claim)).await
    }

    pub(crate) async fn try_commit(
        &self,
        commit: &Commit,
    ) -> Result<Result<Ownership, StoreError>, Failure> {
        soon("a commit", self.store.commit(commit)).await
    }

    pub(crate) async fn try_release(
        &self,
        release: &Release,
    ) -> Result<Result<Ownership, StoreError>, Failure> {
        soon("a release", self.store.release(release)).await
    }

    pub(crate) async fn try_wait(
        &self,
        id: &RecordId,
        attempt: u64,
        limit: Duration,
    ) -> Result<Result<(), StoreError>, Failure> {
        soon_after("a wait", limit, self.store.wait(id, attempt, limit)).await
    }

    pub(crate) async fn try_inspect(
        &self,
        id: &RecordId,
    ) -> Result<Result<Option<RecordInfo>, StoreError>, Failure> {
        soon("an inspection", self.store.inspect(id)).await
    }

    pub(crate) async fn try_remove(
        &self,
        id: &RecordId,
    ) -> Result<Result<Removed, StoreError>, Failure> {
        soon("a removal", self.store.remove(id)).await
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use idem_core::record::Owner;
    use idem_core::{Key, MemoryStore};

    use super::*;
    use crate::clock::ManualClock;

    #[tokio::test]
    async fn a_moment_that_is_left_of_a_lease_is_no_answer_on_a_real_clock() {
        for is_real in [false, true] {
            // Nobody moves its clock, so the lease does not run out.
            let handle = Handle::new(MemoryStore::with_clock(ManualClock::new()), is_real);
            let id = RecordId::new("orders", &Key::encode("k").unwrap()).unwrap();
            let claim = || Claim::new(id.clone(), Owner::generate(), MOMENT, MOMENT);
            handle.claim(&claim()).await.unwrap();
            for answer in [
                handle.claim(&claim()).await.map(drop),
                handle.remove(&id).await.map(drop),
            ] {
                assert_eq!(answer.is_err_and(|failure| failure.is_delay()), is_real);
            }
        }
    }
}
