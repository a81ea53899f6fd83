//! The private twin of [`Store`] that can be a trait object. Authors of stores implement the trait
//! with futures; users hold a cheap handle.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, FutureExt as _, Ready, ready};
use tokio::time::Instant;

use super::admin::AdminStore;
use super::{MemoryStore, Store};
use crate::encoding::fingerprint::Fingerprint;
use crate::error::StoreError;
use crate::record::{
    Claim, Claimed, Commit, Encoded, Issue, Issued, Owner, Ownership, RecordId, RecordInfo,
    Release, Removed, Renewal,
};

/// A store as a runtime holds it: what [`Store::into_handle`] returns.
#[derive(Clone)]
pub struct StoreHandle(AnyStore);

impl StoreHandle {
    /// Puts a store behind a pointer.
    ///
    /// The futures of its steps are compiled where this is called. A crate with a store calls it in
    /// its own [`into_handle`](Store::into_handle), so that no program compiles them again.
    pub fn new(store: impl Store) -> Self {
        Self(AnyStore::Other(Arc::new(store)))
    }

    /// As [`new`](Self::new), for a store whose records can be listed.
    pub fn with_admin<S: AdminStore>(store: S) -> Self {
        Self::new(store)
    }

    /// The store in the process, without boxes.
    pub(crate) fn memory(store: MemoryStore) -> Self {
        Self(AnyStore::Memory(store))
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

/// Any store. Cheap to clone.
///
/// The memory store has a variant of its own. Its steps need no boxes, because each is done when it
/// is called. Its calls need no flights, because they share the store itself.
#[derive(Clone)]
pub(crate) enum AnyStore {
    Memory(MemoryStore),
    Other(Arc<dyn DynStore>),
}

/// The answer of a step, now or later.
pub(crate) type StepAnswer<'a, T> =
    Either<Ready<Result<T, StoreError>>, BoxFuture<'a, Result<T, StoreError>>>;

impl AnyStore {
    pub(crate) fn new(store: impl Store) -> Self {
        store.into_handle().0
    }

    /// The same store as users hold it.
    pub(crate) fn handle(&self) -> StoreHandle {
        StoreHandle(self.clone())
    }

    /// The store itself, if it is of this type.
    pub(crate) fn of<S: Store>(&self) -> Option<&S> {
        match self {
            Self::Memory(memory) => (memory as &dyn Any).downcast_ref(),
            Self::Other(store) => store.as_any().downcast_ref(),
        }
    }

    /// Puts another store around this one, unless it is in this process.
    pub(crate) fn around<S: DynStore>(self, wrap: impl FnOnce(Arc<dyn DynStore>) -> S) -> Self {
        match self {
            Self::Memory(_) => self,
            Self::Other(inside) => Self::Other(Arc::new(wrap(inside))),
        }
    }

    /// Whether the store is in this process, so that asking it less often saves nothing.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    /// A new owner for a claim at this store.
    pub(crate) fn owner(&self, now: Instant) -> Owner {
        match self {
            // No other process or machine has these records, not even after a fork or a clone.
            Self::Memory(_) => Owner::within_process(now),
            Self::Other(..) => Owner::generate(),
        }
    }

    pub(crate) fn claim(&self, claim: Claim) -> StepAnswer<'_, Claimed> {
        match self {
            Self::Memory(store) => Either::Left(ready(store.claim_now(&claim))),
            Self::Other(store) => Either::Right(store.claim(claim)),
        }
    }

    pub(crate) fn commit(
        &self,
        commit: Commit,
        first_sent: &mut Option<FirstSent>,
    ) -> StepAnswer<'_, Ownership> {
        match self {
            Self::Memory(store) => Either::Left(ready(Ok(store.commit_now(&commit)))),
            Self::Other(store) => Either::Right(store.commit(commit, first_sent)),
        }
    }

    pub(crate) fn known(
        &self,
        id: &RecordId,
        fingerprint: Option<Fingerprint>,
        now: Instant,
    ) -> Option<(u64, Encoded)> {
        match self {
            Self::Memory(_) => None,
            Self::Other(store) => store.known(id, fingerprint, now),
        }
    }

    pub(crate) fn forget_known(&self, id: &RecordId) {
        if let Self::Other(store) = self {
            store.forget_known(id);
        }
    }

    pub(crate) fn release(&self, release: Release) -> StepAnswer<'_, Ownership> {
        match self {
            Self::Memory(store) => Either::Left(ready(Ok(store.release_now(&release)))),
            Self::Other(store) => Either::Right(store.release(release)),
        }
    }

    pub(crate) async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        match self {
            Self::Memory(store) => Store::issue(store, issues).await,
            Self::Other(store) => store.issue(issues).await,
        }
    }

    pub(crate) async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        match self {
            Self::Memory(store) => Store::renew(store, renewals).await,
            Self::Other(store) => store.renew(renewals).await,
        }
    }

    pub(crate) async fn wait(
        &self,
        id: &RecordId,
        attempt: u64,
        limit: Duration,
    ) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => Store::wait(store, id, attempt, limit).await,
            Self::Other(store) => store.wait(id, attempt, limit).await,
        }
    }

    pub(crate) async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        match self {
            Self::Memory(store) => Store::inspect(store, id).await,
            Self::Other(store) => store.inspect(id).await,
        }
    }

    pub(crate) async fn remove(&self, id: &RecordId) -> Result<Removed, StoreError> {
        match self {
            Self::Memory(store) => Store::remove(store, id).await,
            Self::Other(store) => store.remove(id).await,
        }
    }
}

/// The first time that a commit was sent, as a store around another one has noted it.
#[derive(Clone, Copy)]
pub(crate) struct FirstSent {
    pub(crate) at: Instant,
    /// A count of the store that noted it.
    pub(crate) mark: u64,
}

/// A [`Store`] behind a pointer, or a store around one.
pub(crate) trait DynStore: Send + Sync + 'static {
    /// The [`Store`] itself, whatever is around it.
    fn as_any(&self) -> &dyn Any;
    fn claim(&self, claim: Claim) -> BoxFuture<'_, Result<Claimed, StoreError>>;
    /// `first_sent` stays with the sender, which may send the commit again: the outcome's retention
    /// may have begun with the first time.
    fn commit(
        &self,
        commit: Commit,
        first_sent: &mut Option<FirstSent>,
    ) -> BoxFuture<'_, Result<Ownership, StoreError>>;
    fn release(&self, release: Release) -> BoxFuture<'_, Result<Ownership, StoreError>>;
    fn issue<'a>(&'a self, issues: &'a [Issue]) -> BoxFuture<'a, Vec<Result<Issued, StoreError>>>;
    fn renew<'a>(
        &'a self,
        renewals: &'a [Renewal],
    ) -> BoxFuture<'a, Vec<Result<Ownership, StoreError>>>;
    fn wait<'a>(
        &'a self,
        id: &'a RecordId,
        attempt: u64,
        limit: Duration,
    ) -> BoxFuture<'a, Result<(), StoreError>>;
    fn inspect<'a>(
        &'a self,
        id: &'a RecordId,
    ) -> BoxFuture<'a, Result<Option<RecordInfo>, StoreError>>;
    fn remove<'a>(&'a self, id: &'a RecordId) -> BoxFuture<'a, Result<Removed, StoreError>>;

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
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn claim(&self, claim: Claim) -> BoxFuture<'_, Result<Claimed, StoreError>> {
        async move { Store::claim(self, &claim).await }.boxed()
    }

    fn commit(
        &self,
        commit: Commit,
        _: &mut Option<FirstSent>,
    ) -> BoxFuture<'_, Result<Ownership, StoreError>> {
        async move { Store::commit(self, &commit).await }.boxed()
    }

    fn release(&self, release: Release) -> BoxFuture<'_, Result<Ownership, StoreError>> {
        async move { Store::release(self, &release).await }.boxed()
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
