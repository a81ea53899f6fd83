//! The store: each method one atomic step on the server.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use idem_core::record::{
    Claim, Claimed, Commit, Issue, Issued, Ownership, Record, RecordId, RecordInfo, Release, ReleaseTo, Removed,
    Renewal,
};
use idem_core::store::admin::{Intervened, Intervention, Listing, Page};
use idem_core::store::{AdminStore, StoreHandle};
use idem_core::wire;
use idem_core::{Store, StoreError};
use redis::{Cmd, Value};
use tokio::time::timeout;

use crate::config::RedisStoreBuilder;
use crate::connection::Connection;
use crate::error::{failed, unexpected};
use crate::keys::Keys;
use crate::lane::Lane;
use crate::look::{describe, look};
use crate::own::Own;
use crate::quick::{Quick, is_refused};
use crate::remove::remove;
use crate::script::{COMMIT, RELEASE, evalsha, millis, ownership};
use crate::server::Server;
use crate::survey::Survey;
use crate::{admin, claim, connect, issue, renew, survey, wait};

/// Keeps records in Redis 7.0 or newer, or in Valkey: in one server, under Sentinel, or in a
/// cluster.
///
/// Cheap to clone; clones share one connection (in a cluster: one to each master), which all calls
/// use at once. They live in the tokio runtime in which the store was made, whichever runtime a
/// call comes from. When that runtime has ended, or has run nothing for three seconds, they are
/// made again in the runtime of a call. A connection that is lost is replaced in the background;
/// calls wait for it as long as their time limit allows.
///
/// Every call fails within the time limit: 900 ms by default, set by the [builder](Self::builder).
/// A call that failed without an answer, or whose future was dropped, may have been carried out. A
/// dropped wait ends its subscription.
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
    server: Server,
    /// A second connection for wake-ups, where the first was given by the application.
    wake: Option<Own>,
    keys: Keys,
}

impl RedisStore {
    /// Connects to the server that a URL names, and looks whether it can be used. For other
    /// settings there is [`builder`](Self::builder), whose [`url`](RedisStoreBuilder::url) and
    /// [`connect`](RedisStoreBuilder::connect) say more.
    ///
    /// Takes at most 2.9 s. Must be called in a tokio runtime. When the future is dropped, the
    /// connection is closed.
    ///
    /// # Errors
    ///
    /// As [`RedisStoreBuilder::connect`]. No error shows the password.
    pub async fn connect(url: impl Into<String>) -> Result<Self, StoreError> {
        Self::builder().url(url).connect().await
    }

    /// Creates a store on a connection that the application already has. That is a
    /// [`ConnectionManager`](redis::aio::ConnectionManager), a
    /// [`MultiplexedConnection`](redis::aio::MultiplexedConnection), or a
    /// `redis::cluster_async::ClusterConnection` (feature `cluster-connection`, in `idem-rs`
    /// `redis-cluster-connection`). For a cluster, a [`url`](RedisStoreBuilder::url) is better.
    /// redis-rs holds all commands back while one node is silent, and its own retries and timeouts
    /// (seconds by default) outlast the store's time limit.
    ///
    /// Nothing is sent yet, so nothing is known of the server: call [`check`](Self::check) once at
    /// start-up, or make the store with [`builder`](Self::builder),
    /// [`connection`](RedisStoreBuilder::connection) and [`connect`](RedisStoreBuilder::connect),
    /// which does. Waiters on such a store ask again and again instead of being woken, unless the
    /// builder is given a [`wake_url`](RedisStoreBuilder::wake_url). The connection's own timeouts
    /// hold beside the store's.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use idem_redis::{RedisStore, redis};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = redis::Client::open("redis://127.0.0.1/")?;
    /// let store = RedisStore::from_connection(client.get_connection_manager().await?);
    /// store.check().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_connection(connection: impl Into<Connection>) -> Self {
        RedisStoreBuilder::unchecked(connection.into())
    }

    /// All settings.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::new()
    }

    /// Asks the server what it is, and says whether records are safe there.
    /// [`connect`](RedisStoreBuilder::connect) has done it.
    ///
    /// Warns (tracing, target `idem`) of a server that evicts keys, and of one that does not let
    /// this user ask. Takes at most the time limit; changes nothing.
    ///
    /// # Errors
    ///
    /// As [`connect`](RedisStoreBuilder::connect); else as every call.
    pub async fn check(&self) -> Result<(), StoreError> {
        connect::check(&self.0.server, &self.0.keys).await
    }

    /// Asks each master what it says of itself: its version, settings, rights and clock. For
    /// programs that judge a server, such as `idem doctor`; [`check`](Self::check) judges what
    /// every store needs.
    ///
    /// Takes at most the time limit for each master; changes nothing. Facts that this user has no
    /// right to ask for are left out.
    ///
    /// # Errors
    ///
    /// As every call.
    pub async fn survey(&self) -> Result<Vec<Survey>, StoreError> {
        survey::survey(&self.0.server, &self.0.keys).await
    }

    pub(crate) fn new(server: Server, wake: Option<Own>, keys: Keys) -> Self {
        Self(Arc::new(Inner { server, wake, keys }))
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { server, keys, .. } = &*self.0;
        f.debug_struct("RedisStore")
            .field("server", server)
            .field("prefix", &keys.prefix())
            .field("time_limit", &server.limit)
            .finish_non_exhaustive()
    }
}

impl Store for RedisStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let Inner { server, keys, .. } = &*self.0;
        let claim = &*as_sent(claim);
        let key = &keys.record(&claim.id);
        let quick = |quick| claim::claim_quickly(quick, key, claim);
        let whole = |mut lane, found: Option<Option<_>>| async move {
            claim::claim(&mut lane, keys, claim, found.flatten()).await
        };
        server.step_quickly(key, quick, whole).await
    }

    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        let Inner { server, keys, .. } = &*self.0;
        issue::issue(server, keys, issues).await
    }

    async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
        let Inner { server, keys, .. } = &*self.0;
        let key = &keys.record(&commit.id);
        let written = &Written::new(keys, commit);
        let quick = async |quick: Quick| {
            let compared = if quick.compares() { written.compared(key, commit) } else { None };
            let is_compared = compared.is_some();
            match quick.send(compared.unwrap_or_else(|| written.command(key))).await {
                Ok(Value::Okay) if is_compared => Ok(Ok(Ownership::Held)),
                // Marked by a waiter, recorded before, another's, gone: the script knows.
                Ok(Value::Nil) if is_compared => Err(()),
                Ok(answer) if is_compared => Ok(Err(unexpected(quick.server(), &answer))),
                // Recorded in one piece perhaps, while its slot was on its way: the whole step
                // knows.
                Ok(Value::BulkString(_)) if written.aside.is_some() => Err(()),
                Ok(answer) => Ok(ownership(quick.server(), answer)),
                Err(error) if is_refused(&error) => {
                    if is_compared {
                        quick.refused_to_compare(&error);
                    }
                    Err(())
                }
                Err(error) => Ok(Err(failed(quick.server(), error))),
            }
        };
        let whole = |mut lane, _| async move { record_outcome(&mut lane, key, written).await };
        server.step_quickly(key, quick, whole).await
    }

    async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
        let Inner { server, keys, .. } = &*self.0;
        let key = keys.record(&release.id);
        let owner = wire::owner_prefix(release.owner);
        let (keep, undone): (_, &[u8]) = match release.to {
            ReleaseTo::Released { keep } => (millis(keep).to_string(), b""),
            ReleaseTo::Undone { keep } => (millis(keep).to_string(), b"1"),
            ReleaseTo::Abandoned => (String::new(), b""),
            ReleaseTo::Unanswered => (String::new(), b"2"),
        };
        let (key, owner, keep) = (key.as_str(), owner.as_bytes(), keep.as_bytes());
        server
            .step(key, |mut lane| async move {
                let answer = lane.script(&RELEASE, &[key], &[owner, keep, undone]).await?;
                ownership(lane.server(), answer)
            })
            .await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        let Inner { server, keys, .. } = &*self.0;
        renew::renew(server, keys, renewals).await
    }

    async fn wait(&self, id: &RecordId, attempt: u64, limit: Duration) -> Result<(), StoreError> {
        let Inner { server, wake, keys } = &*self.0;
        let key = keys.record(id);
        let waiting = wait::wait(server, wake.as_ref(), &key, attempt);
        timeout(limit, waiting).await.unwrap_or(Ok(()))
    }

    async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        let Inner { server, keys, .. } = &*self.0;
        let (key, aside) = (&keys.record(id), &keys.aside(id));
        let found = server.step(key, |mut lane| async move { look(&mut lane, key, aside).await }).await?;
        found.map(|(record, outcome)| describe(&record, outcome)).transpose()
    }

    async fn remove(&self, id: &RecordId) -> Result<Removed, StoreError> {
        let Inner { server, keys, .. } = &*self.0;
        let key = &keys.record(id);
        server.step(key, |mut lane| async move { remove(&mut lane, key, &keys.aside(id)).await }).await
    }

    fn into_handle(self) -> StoreHandle {
        StoreHandle::new(self)
    }
}

impl AdminStore for RedisStore {
    /// Sends one `SCAN` of 100 to 1,000 keys to one node at a time, and up to 20 of them until a
    /// record matches. In a cluster that fails over, or whose slots move, during the listing,
    /// records may be missing. Not through an application's connection to a cluster.
    async fn list(&self, listing: &Listing) -> Result<Page, StoreError> {
        admin::list(&self.0.server, &self.0.keys, listing).await
    }

    async fn intervene(&self, intervention: &Intervention) -> Result<Intervened, StoreError> {
        let Inner { server, keys, .. } = &*self.0;
        let key = &keys.record(&intervention.id);
        let aside = &keys.aside(&intervention.id);
        server.step(key, |mut lane| async move { admin::intervene(&mut lane, key, aside, intervention).await }).await
    }
}

/// The claim with lengths of time as the record can hold them: what is written and the expiry must
/// be the same number, or the lease's age would be wrong.
fn as_sent(claim: &Claim) -> Cow<'_, Claim> {
    let (lease, hold) = lengths_as_sent(claim.lease, claim.hold);
    if (lease, hold) == (claim.lease, claim.hold) {
        return Cow::Borrowed(claim);
    }
    Cow::Owned(claim.clone().with_lease(lease).with_hold(hold))
}

/// A lease and its hold, likewise.
fn lengths_as_sent(lease: Duration, hold: Duration) -> (Duration, Duration) {
    let sent = |length| Duration::from_millis(millis(length));
    // A lease may be zero, an expiry may not.
    (if lease.as_millis() == 0 { Duration::ZERO } else { sent(lease) }, sent(hold))
}

/// The data that a commit writes.
struct Written {
    /// The record as it was claimed, where that is known, else the owner's prefix.
    claimed: Vec<u8>,
    record: Vec<u8>,
    /// How long that stays, in ms.
    stays: String,
    /// Set if the outcome expires before its record and so has its own key: that record, the
    /// outcome's key, and how long the record stays.
    aside: Option<(Vec<u8>, String, String)>,
}

impl Written {
    fn new(keys: &Keys, commit: &Commit) -> Self {
        let (ttl, remember) = (millis(commit.ttl), millis(commit.remember.max(commit.ttl)));
        let (claimed, record) = (claimed(commit), wire::encode(&commit.record()));
        let (stays, aside) = if commit.outcome.is_none() {
            (remember, None)
        } else if remember > ttl {
            // The outcome's memory is freed in time, and the mark that there was one stays.
            let mark = wire::encode_aside(commit.attempt, commit.fingerprint);
            (ttl, Some((mark, keys.aside(&commit.id), remember.to_string())))
        } else {
            (ttl, None)
        };
        Self { claimed, record, stays: stays.to_string(), aside }
    }

    /// The plain command that writes it over the record as it was claimed, where that is known and
    /// one key is all there is to write.
    fn compared(&self, key: &str, commit: &Commit) -> Option<Cmd> {
        let Self { claimed, record, stays, aside: None } = self else { return None };
        commit.in_flight()?;
        let mut set = Cmd::with_capacity(7, 64 + key.len() + record.len() + claimed.len());
        set.arg("SET").arg(key).arg(record).arg("IFEQ").arg(claimed).arg("PX").arg(stays);
        Some(set)
    }

    /// The script that writes it, in one step.
    fn command(&self, key: &str) -> Cmd {
        let Self { claimed, record, stays, aside } = self;
        let stays = stays.as_bytes();
        match aside {
            None => evalsha(&COMMIT, &[key], &[claimed, record, stays]),
            Some((mark, aside, remember)) => {
                evalsha(&COMMIT, &[key, aside], &[claimed, mark, remember.as_bytes(), record, stays])
            }
        }
    }
}

/// The record that a commit writes over, as far as it is known.
fn claimed(commit: &Commit) -> Vec<u8> {
    let Some(found) = commit.in_flight() else { return wire::owner_prefix(commit.owner).into_bytes() };
    let (lease, hold) = lengths_as_sent(found.lease, found.hold);
    wire::encode(&Record::InFlight(found.with_lease(lease).with_hold(hold)))
}

async fn record_outcome(lane: &mut Lane, key: &str, written: &Written) -> Result<Ownership, StoreError> {
    let Written { claimed, record, stays, aside } = written;
    let stays = stays.as_bytes();
    let answer = match aside {
        None => lane.script(&COMMIT, &[key], &[claimed, record, stays]).await?,
        Some((mark, aside, remember)) => {
            let args = [claimed, mark, remember.as_bytes(), record, stays];
            match lane.script_on_all(&COMMIT, &[key, aside], &args).await? {
                // While its slot was on its way.
                Some(Value::BulkString(found)) if found == *record => Value::Int(1),
                Some(answer) => answer,
                None => record_whole(lane, key, aside, args).await?,
            }
        }
    };
    let outcome = ownership(lane.server(), answer)?;
    if outcome == Ownership::Held {
        lane.acknowledged().await?;
    }
    Ok(outcome)
}

/// Records an outcome while the slot of its two keys moves to another node. The record holds the
/// outcome, as in one step, and is kept for as long as the fact is remembered.
async fn record_whole(lane: &mut Lane, key: &str, aside: &str, args: [&[u8]; 5]) -> Result<Value, StoreError> {
    let [claimed, mark, remember, record, _] = args;
    match lane.script(&COMMIT, &[key], &[claimed, record, remember]).await? {
        // Recorded before the slot began to move; or the mark is another's, who had the same
        // attempt in another life of the key.
        Value::BulkString(found) if found == mark => match lane.send(redis::cmd("GET").arg(aside)).await? {
            Value::BulkString(kept) if kept != record => Ok(Value::Int(0)),
            _ => Ok(Value::Int(1)),
        },
        answer => Ok(answer),
    }
}
