//! The store: each method one atomic step on the server.

mod admin;
pub(crate) mod builder;
mod check;
mod claim;
mod commit;
mod count;
mod issue;
mod keys;
mod look;
mod peek;
mod remove;
mod renew;
mod scan;
mod script;
pub(crate) mod survey;
mod unreadable;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use idem_core::record::{
    Claim, Claimed, Commit, Issue, Issued, Ownership, RecordId, RecordInfo, Release, ReleaseTo,
    Removed, Renewal,
};
use idem_core::store::admin::{Counts, Cursor, Intervened, Intervention, Listing, Page};
use idem_core::store::{AdminStore, StoreHandle};
use idem_core::wire;
use idem_core::{Store, StoreError};
use tokio::time::timeout;

use self::keys::Keys;
use self::look::{describe, look};
use self::remove::remove;
use self::script::{RELEASE, ownership};
use self::survey::Survey;
use crate::connection::command::millis;
use crate::connection::managed::ManagedConnection;
use crate::connection::step_runner::StepRunner;

/// Keeps records in Redis 7.0 or newer, or in Valkey: in one server, under Sentinel, or in a
/// cluster.
///
/// It is cheap to clone. All clones and calls share one connection, and from the first waiter on a
/// second one (in a cluster: both for each master). Connections live in the tokio runtime in which
/// the store was made, whichever tokio runtime a call comes from. If that one ends, or runs nothing
/// for three seconds, the connections are made again in the tokio runtime of a call. A lost
/// connection is replaced in the background; calls wait for it within their time limit.
///
/// Every step fails within the time limit: 900 ms by default, set by the [builder](Self::builder).
/// A wait is not limited by it, and a listing is several steps. A call that failed without an
/// answer, or whose future was dropped, may have been carried out. A dropped wait ends its
/// subscription.
///
/// # Examples
///
/// ```no_run
/// use idem_redis::RedisStore;
///
/// # async fn example() -> Result<(), idem_core::StoreError> {
/// let store = RedisStore::connect("redis://127.0.0.1/").await?;
/// # fn is_a_store(_: impl idem_core::Store) {}
/// # is_a_store(store);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore(Arc<Inner>);

struct Inner {
    runner: StepRunner,
    /// A second connection for wake-ups, where the first was given by the application.
    wake: Option<ManagedConnection>,
    keys: Keys,
}

impl RedisStore {
    /// Checks whether the server is suitable for records.
    /// [`connect`](crate::RedisStoreBuilder::connect) does this by itself.
    ///
    /// It logs a warning (target `idem`) if the server evicts keys, or does not let this user ask.
    /// It takes at most the time limit, or two with
    /// [`replicas`](crate::RedisStoreBuilder::replicas) or on an application's connection. It
    /// changes nothing.
    ///
    /// # Errors
    ///
    /// As [`connect`](crate::RedisStoreBuilder::connect), or as any step.
    pub async fn check(&self) -> Result<(), StoreError> {
        check::check(&self.0.runner, &self.0.keys).await
    }

    /// Asks each master for its version, settings, rights and clock: for programs such as
    /// `idem doctor`. [`check`](Self::check) is enough for a store.
    ///
    /// It takes at most the time limit for each master, and changes nothing. `ServerInfo` that this
    /// user may not ask for are left out.
    ///
    /// # Errors
    ///
    /// As every call.
    pub async fn survey(&self) -> Result<Vec<Survey>, StoreError> {
        survey::survey(&self.0.runner, &self.0.keys).await
    }

    pub(crate) fn new(runner: StepRunner, wake: Option<ManagedConnection>, keys: Keys) -> Self {
        Self(Arc::new(Inner { runner, wake, keys }))
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { runner, keys, .. } = &*self.0;
        f.debug_struct("RedisStore")
            .field("server", runner)
            .field("prefix", &keys.prefix())
            .field("time_limit", &runner.limit)
            .finish_non_exhaustive()
    }
}

impl Store for RedisStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let Inner { runner, keys, .. } = &*self.0;
        let claim = &*claim::as_sent(claim);
        let key = &keys.record(&claim.id);
        let fast_path = |fast_path| claim::claim_on_fast_path(fast_path, key, claim);
        let whole = |mut connection, found: Option<Option<_>>| async move {
            claim::claim(&mut connection, keys, claim, found.flatten()).await
        };
        runner.step_with_fast_path(key, fast_path, whole).await
    }

    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        let Inner { runner, keys, .. } = &*self.0;
        issue::issue(runner, keys, issues).await
    }

    async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
        let Inner { runner, keys, .. } = &*self.0;
        commit::commit(runner, keys, commit).await
    }

    async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
        let Inner { runner, keys, .. } = &*self.0;
        let key = keys.record(&release.id);
        let owner = wire::owner_prefix(release.owner);
        let (keep, undone): (_, &[u8]) = match release.to {
            ReleaseTo::Released { keep } => (millis(keep).to_string(), b""),
            ReleaseTo::Undone { keep } => (millis(keep).to_string(), b"1"),
            ReleaseTo::Abandoned => (String::new(), b""),
            ReleaseTo::Unanswered => (String::new(), b"2"),
        };
        let key = key.as_str();
        let names_run: &[u8] = if release.names_run { b"1" } else { b"" };
        let args = [owner.as_bytes(), keep.as_bytes(), names_run, undone];
        runner
            .step(key, |mut connection| async move {
                let answer = connection.script(&RELEASE, &[key], &args).await?;
                ownership(connection.server(), answer)
            })
            .await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        let Inner { runner, keys, .. } = &*self.0;
        renew::renew(runner, keys, renewals).await
    }

    async fn wait(&self, id: &RecordId, attempt: u64, limit: Duration) -> Result<(), StoreError> {
        let Inner { runner, wake, keys } = &*self.0;
        let key = keys.record(id);
        let waiting = wait::wait(runner, wake.as_ref(), &key, attempt);
        timeout(limit, waiting).await.unwrap_or(Ok(()))
    }

    async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        let Inner { runner, keys, .. } = &*self.0;
        let key = &keys.record(id);
        let aside = &keys.aside(id);
        let found = runner
            .step(key, |mut connection| async move {
                look(&mut connection, key, aside).await
            })
            .await?;
        found.as_ref().map(describe).transpose()
    }

    async fn remove(&self, id: &RecordId) -> Result<Removed, StoreError> {
        let Inner { runner, keys, .. } = &*self.0;
        let key = &keys.record(id);
        runner
            .step(key, |mut connection| async move {
                remove(&mut connection, key, &keys.aside(id)).await
            })
            .await
    }

    fn into_handle(self) -> StoreHandle {
        StoreHandle::with_admin(self)
    }
}

impl AdminStore for RedisStore {
    /// Sends up to 20 `SCAN`s of 100 to 1,000 keys, to one node at a time, until a record matches.
    /// The cursor names the server: after a restart or a failover, the listing goes through all
    /// keys of that server again, so records may come twice. While a slot is on its way from one
    /// node to another, its records may be missing. Needs the right to `INFO` if one `SCAN` does
    /// not reach all keys. Not through an application's connection to a cluster.
    async fn list(&self, listing: &Listing) -> Result<Page, StoreError> {
        admin::list(&self.0.runner, &self.0.keys, listing).await
    }

    /// Each part is up to 20 `SCAN`s of 1,000 keys, at one node at a time. If the server's table of
    /// keys shrinks during the count, records may be counted twice. After a restart or a failover
    /// of a server that is being counted the count fails, and must begin again. While a slot is on
    /// its way from one node to another, its records may be missing or counted twice. Not through
    /// an application's connection to a cluster.
    async fn count(&self, after: Option<&Cursor>) -> Result<Option<Counts>, StoreError> {
        let counts = count::count(&self.0.runner, &self.0.keys, after).await?;
        Ok(Some(counts))
    }

    async fn intervene(&self, intervention: &Intervention) -> Result<Intervened, StoreError> {
        let Inner { runner, keys, .. } = &*self.0;
        let key = &keys.record(&intervention.id);
        let aside = &keys.aside(&intervention.id);
        runner
            .step(key, |mut connection| async move {
                admin::intervene(&mut connection, key, aside, intervention).await
            })
            .await
    }
}
