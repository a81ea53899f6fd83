//! The private twin of [`Store`] that can be a trait object. Authors of stores implement the trait
//! with futures; users hold a cheap handle.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, FutureExt as _, Ready};
use tokio::time::Instant;

use super::Store;
use crate::encoding::fingerprint::Fingerprint;
use crate::error::StoreError;
use crate::record::{
    Claim, Claimed, Commit, Encoded, Issue, Issued, Owner, Ownership, RecordId, RecordInfo,
    Release, Removed, Renewal,
};

/// A store as a runtime holds it: what [`Store::into_handle`] returns.
#[derive(Clone)]
pub struct StoreHandle(pub(crate) AnyStore);

impl StoreHandle {
    /// Puts a store behind a pointer.
    ///
    /// The futures of its steps are compiled where this is called. A crate with a store calls it in
    /// its own [`into_handle`](Store::into_handle), so that no program compiles them again.
    pub fn new(store: impl Store) -> Self {
        Self::from_dyn(store)
    }

    /// Like [`new`](Self::new), for a store whose records can be listed.
    pub fn with_admin<S: Store>(store: S) -> Self {
        Self::new(store)
    }

    pub(crate) fn from_dyn(store: impl DynStore) -> Self {
        Self(Arc::new(store))
    }
}

impl Store for StoreHandle {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.0.claim(claim.clone()).await
    }

    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        self.0.issue(issues).await
    }

    async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
        self.0.commit(commit.clone(), &mut None).await
    }

    async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
        self.0.release(release.clone()).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        self.0.renew(renewals).await
    }

    async fn wait(&self, id: &RecordId, attempt: u64, limit: Duration) -> Result<(), StoreError> {
        self.0.wait(id, attempt, limit).await
    }

    async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        self.0.inspect(id).await
    }

    async fn remove(&self, id: &RecordId) -> Result<Removed, StoreError> {
        self.0.remove(id).await
    }

    /// It is one.
    fn into_handle(self) -> StoreHandle {
        self
    }
}

impl std::fmt::Debug for StoreHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreHandle").finish_non_exhaustive()
    }
}

/// Any store, or a store around one.
pub(crate) type AnyStore = Arc<dyn DynStore>;

/// The answer of a step, now or later.
pub(crate) type StepAnswer<'a, T> =
    Either<Ready<Result<T, StoreError>>, BoxFuture<'a, Result<T, StoreError>>>;

impl dyn DynStore {
    /// The store itself, if it is of this type.
    pub(crate) fn downcast<S: Store>(&self) -> Option<&S> {
        self.as_any().downcast_ref()
    }
}

/// The first time that a commit was sent, as a store around another one has noted it.
#[derive(Clone, Copy)]
pub(crate) struct FirstSent {
    pub(crate) at: Instant,
    /// A count of the store that noted it.
    pub(crate) mark: u64,
}

/// A [`Store`] behind a pointer, or a store around one, which passes on what it does not change.
pub(crate) trait DynStore: Send + Sync + 'static {
    /// The store that this one is around. A [`Store`] is around none.
    fn inside(&self) -> &dyn DynStore;

    /// The [`Store`] itself, whatever is around it.
    fn as_any(&self) -> &dyn Any {
        self.inside().as_any()
    }

    /// Whether the store is in this process, so that asking it less often saves nothing.
    fn is_local(&self) -> bool {
        false
    }

    /// A new owner for a claim at this store.
    fn owner(&self, _now: Instant) -> Owner {
        Owner::generate()
    }

    fn claim(&self, claim: Claim) -> StepAnswer<'_, Claimed> {
        self.inside().claim(claim)
    }

    /// `first_sent` stays with the sender, which may send the commit again: the outcome's retention
    /// may have begun with the first time.
    fn commit(
        &self,
        commit: Commit,
        first_sent: &mut Option<FirstSent>,
    ) -> StepAnswer<'_, Ownership>;

    fn release(&self, release: Release) -> StepAnswer<'_, Ownership> {
        self.inside().release(release)
    }

    fn issue<'a>(&'a self, issues: &'a [Issue]) -> BoxFuture<'a, Vec<Result<Issued, StoreError>>> {
        self.inside().issue(issues)
    }

    fn renew<'a>(
        &'a self,
        renewals: &'a [Renewal],
    ) -> BoxFuture<'a, Vec<Result<Ownership, StoreError>>> {
        self.inside().renew(renewals)
    }

    fn wait<'a>(
        &'a self,
        id: &'a RecordId,
        attempt: u64,
        limit: Duration,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inside().wait(id, attempt, limit)
    }

    fn inspect<'a>(
        &'a self,
        id: &'a RecordId,
    ) -> BoxFuture<'a, Result<Option<RecordInfo>, StoreError>> {
        self.inside().inspect(id)
    }

    fn remove<'a>(&'a self, id: &'a RecordId) -> BoxFuture<'a, Result<Removed, StoreError>> {
        self.inside().remove(id)
    }

    /// Returns the outcome of a key and its attempt, for a call with this fingerprint, if no
    /// request is needed for it.
    fn known(
        &self,
        _id: &RecordId,
        _fingerprint: Option<Fingerprint>,
        _now: Instant,
    ) -> Option<(u64, Encoded)> {
        None
    }

    /// Forgets what is known of a key whose record is about to be changed by hand.
    fn forget_known(&self, _id: &RecordId) {}
}

impl<S: Store> DynStore for S {
    fn inside(&self) -> &dyn DynStore {
        self
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn claim(&self, claim: Claim) -> StepAnswer<'_, Claimed> {
        Either::Right(async move { Store::claim(self, &claim).await }.boxed())
    }

    fn commit(&self, commit: Commit, _: &mut Option<FirstSent>) -> StepAnswer<'_, Ownership> {
        Either::Right(async move { Store::commit(self, &commit).await }.boxed())
    }

    fn release(&self, release: Release) -> StepAnswer<'_, Ownership> {
        Either::Right(async move { Store::release(self, &release).await }.boxed())
    }

    fn issue<'a>(&'a self, issues: &'a [Issue]) -> BoxFuture<'a, Vec<Result<Issued, StoreError>>> {
        Store::issue(self, issues).boxed()
    }

    fn renew<'a>(
        &'a self,
        renewals: &'a [Renewal],
    ) -> BoxFuture<'a, Vec<Result<Ownership, StoreError>>> {
        Store::renew(self, renewals).boxed()
    }

    fn wait<'a>(
        &'a self,
        id: &'a RecordId,
        attempt: u64,
        limit: Duration,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Store::wait(self, id, attempt, limit).boxed()
    }

    fn inspect<'a>(
        &'a self,
        id: &'a RecordId,
    ) -> BoxFuture<'a, Result<Option<RecordInfo>, StoreError>> {
        Store::inspect(self, id).boxed()
    }

    fn remove<'a>(&'a self, id: &'a RecordId) -> BoxFuture<'a, Result<Removed, StoreError>> {
        Store::remove(self, id).boxed()
    }
}
