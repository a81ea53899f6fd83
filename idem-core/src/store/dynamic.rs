//! The private twin of [`Store`] that can be a trait object: people implement the one with futures, users hold a cheap handle.

use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};

use super::Store;
use crate::error::StoreError;
use crate::record::{Claim, Claimed, Commit, Ownership, RecordId, RecordInfo, Release, Removed, Renewal};

/// A [`Store`] behind a pointer. Implemented for every store, by nobody else.
pub(crate) trait DynStore: Send + Sync + 'static {
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed, StoreError>>;
    fn commit<'a>(&'a self, commit: &'a Commit) -> BoxFuture<'a, Result<Ownership, StoreError>>;
    fn release<'a>(&'a self, release: &'a Release) -> BoxFuture<'a, Result<Ownership, StoreError>>;
    fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> BoxFuture<'a, Vec<Result<Ownership, StoreError>>>;
    fn wait<'a>(&'a self, id: &'a RecordId, attempt: u64, limit: Duration) -> BoxFuture<'a, Result<(), StoreError>>;
    fn inspect<'a>(&'a self, id: &'a RecordId) -> BoxFuture<'a, Result<Option<RecordInfo>, StoreError>>;
    fn remove<'a>(&'a self, id: &'a RecordId) -> BoxFuture<'a, Result<Removed, StoreError>>;
}

impl<S: Store> DynStore for S {
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed, StoreError>> {
        Store::claim(self, claim).boxed()
    }

    fn commit<'a>(&'a self, commit: &'a Commit) -> BoxFuture<'a, Result<Ownership, StoreError>> {
        Store::commit(self, commit).boxed()
    }

    fn release<'a>(&'a self, release: &'a Release) -> BoxFuture<'a, Result<Ownership, StoreError>> {
        Store::release(self, release).boxed()
    }

    fn renew<'a>(&'a self, renewals: &'a [Renewal]) -> BoxFuture<'a, Vec<Result<Ownership, StoreError>>> {
        Store::renew(self, renewals).boxed()
    }

    fn wait<'a>(&'a self, id: &'a RecordId, attempt: u64, limit: Duration) -> BoxFuture<'a, Result<(), StoreError>> {
        Store::wait(self, id, attempt, limit).boxed()
    }

    fn inspect<'a>(&'a self, id: &'a RecordId) -> BoxFuture<'a, Result<Option<RecordInfo>, StoreError>> {
        Store::inspect(self, id).boxed()
    }

    fn remove<'a>(&'a self, id: &'a RecordId) -> BoxFuture<'a, Result<Removed, StoreError>> {
        Store::remove(self, id).boxed()
    }
}
