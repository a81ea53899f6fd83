//! How a lock is acquired.

use std::borrow::Cow;
use std::fmt;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;

use super::{Lock, Locks};
use crate::adapter::engine::body::{self, BodyExit};
use crate::adapter::engine::{
    CallMetadata, MAX_LENGTH, Owned, Prepared, Rejected, Request, Runtime, Settings, clock,
    current, held_keys,
};
use crate::api::lease::Lease;
use crate::api::operation::{Draft, Operation};
use crate::bounds::IntoDuration;
use crate::policy::Duplicate;
use crate::record::{LOCK_PREFIX, RecordId, is_lock, is_valid_operation};
use crate::{Error, Idempotency, KeyPart};

/// A lock that is to be acquired: its name, its keys and its settings. [`Idempotency::lock`] begins
/// it.
#[must_use = "nothing is locked until it is acquired"]
pub struct LockBuilder<'a> {
    /// Named as the lock's record is.
    draft: Draft<'a>,
    /// `None` for a key that is missing.
    keys: Vec<Option<RecordId>>,
}

impl Idempotency {
    /// Begins to acquire a lock with this name.
    ///
    /// A name is as that of an [operation](Self::operation), with at most 118 bytes. The record of
    /// the lock has the operation `idem.lock/` and the name, so a lock and an operation of the same
    /// name never meet.
    ///
    /// [Observe mode](crate::Builder::observe) and [`strict`](crate::Builder::strict) change
    /// nothing about locks. Under [`Idempotency::disabled`] every lock is acquired at once, and
    /// nothing is locked.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, Idempotency, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// let lock = idempotency
    ///     .lock("disks.compact")
    ///     .key("sda")
    ///     .lease("30s")
    ///     .wait("60s")
    ///     .acquire()
    ///     .await?;
    /// assert_eq!(lock.fencing_number(), 1);
    /// lock.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock<'a>(&self, name: impl Into<Cow<'a, str>>) -> LockBuilder<'a> {
        LockBuilder::new(self, name.into())
    }
}

impl<'a> LockBuilder<'a> {
    fn new(idempotency: &Idempotency, name: Cow<'a, str>) -> Self {
        let operation = [LOCK_PREFIX, &*name].concat();
        let is_valid = is_valid_operation(&name) && is_valid_operation(&operation);
        let has_prefix = is_lock(&name);
        let shown = if is_valid { operation.into() } else { name };
        let draft = Operation::new(idempotency.clone(), shown).draft;
        let keys = Vec::new();
        let mut builder = Self { draft, keys };
        if let Some(runtime) = &builder.draft.runtime {
            builder.draft.settings = settings_of(&runtime.settings);
        }
        if has_prefix {
            builder.misconfigured(
                "the lock's name is written without `idem.lock/`, which its record has before it",
            );
        } else if !is_valid {
            builder.misconfigured(
                "the lock's name is not valid: a name is 1 to 118 letters, digits and \
                 `_ - . / # @ +`, in segments that may be joined by `::`",
            );
        }
        builder
    }

    /// Notes what is wrong. A disabled runtime locks nothing, whatever it is given.
    fn misconfigured(&mut self, reason: impl Into<Arc<str>>) {
        if self.draft.runtime.is_some() {
            self.draft.misconfigured(reason);
        }
    }

    /// Sets the key: what is locked. One part or a tuple of several, as a call's
    /// [key](crate::Operation::key).
    pub fn key<K: KeyPart>(self, key: K) -> Self {
        self.keys([key])
    }

    /// Sets several keys, for [`acquire_all`](Self::acquire_all). Each is locked by itself: a
    /// holder of one of them, from [`acquire`](Self::acquire) or `acquire_all`, keeps out all
    /// others.
    pub fn keys<I>(mut self, keys: I) -> Self
    where
        I: IntoIterator<Item: KeyPart>,
    {
        let Draft { name, runtime, .. } = &self.draft;
        let is_wanted = runtime.is_some() && self.draft.problem.is_none();
        let encode = |key| is_wanted.then(|| RecordId::encode(name, &key)).flatten();
        self.keys.extend(keys.into_iter().map(encode));
        self
    }

    /// Sets how long a holder that died blocks the key. The lease is renewed while the lock is
    /// held. Default: that of the runtime, 30 s. From 100 ms to 100 years; it should be several
    /// times the store's time limits.
    pub fn lease(mut self, lease: impl IntoDuration) -> Self {
        self.draft
            .set("lease", lease.into_duration(), Settings::set_lease);
        self
    }

    /// Sets how long to wait for another holder, at most: with several keys, for all of them
    /// together. Zero does not wait. Default: that of the runtime, 5 s. The waiter is woken by the
    /// release. Waiters are not FIFO.
    pub fn wait(mut self, wait: impl IntoDuration) -> Self {
        self.draft
            .set("wait", wait.into_duration(), Settings::set_wait);
        self
    }

    /// Sets how long the record of the lock is kept after its release, or after the death of its
    /// holder. Until then fencing numbers grow; after that they begin again at 1. Default: 30 days.
    /// From 1 ms to 100 years, and never less than ten leases.
    ///
    /// Make it longer than anything may act on an old number: a holder that is paused, a write that
    /// is in a queue. Each key takes room in the store for this long.
    pub fn keep(mut self, keep: impl IntoDuration) -> Self {
        match keep.into_duration() {
            Ok(keep) if keep.is_zero() || keep > MAX_LENGTH => self.misconfigured(format!(
                "`keep` is {keep:?}; it is from 1 ms to 100 years, and longer than anything may \
                 act on an old fencing number"
            )),
            keep => self.draft.set("keep", keep, Settings::set_ttl),
        }
        self
    }

    /// Acquires the lock, and waits for another holder if there is one.
    ///
    /// # Errors
    ///
    /// [`Error::InFlight`] if the key still has a holder after the [wait](Self::wait), whoever that
    /// is: also this task, which then waits for itself. [`Error::Reentrant`], at once, inside the
    /// body of [`run`](Self::run) with the same key.
    /// [`Error::MissingKey`] if a part of the key is `None` or empty. [`Error::Config`] if a name,
    /// a duration or the number of keys is invalid. [`Error::Store`] if the store did not answer,
    /// [`Error::LeaseLost`] if it took as long as the lease, and [`Error::Codec`] if the value at
    /// the key is unreadable.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped, a claim that it may have made is undone.
    pub async fn acquire(self) -> Result<Lock, Error> {
        let Some(wanted) = self.into_wanted()? else {
            return Ok(Lock::new(Lease::unguarded()));
        };
        let acquired = wanted.acquire(wanted.only_one()?).await;
        acquired.inspect_err(|_| current::taint())
    }

    /// Acquires the locks of all [keys](Self::keys), or of none.
    ///
    /// Everybody acquires them in one order, whatever the order in which they are given. So two
    /// callers with the same keys cannot deadlock. If one of them cannot be acquired,
    /// those that were are released before this returns.
    ///
    /// # Errors
    ///
    /// Like [`acquire`](Self::acquire). [`Error::Config`] if there is no key, or if two are equal.
    /// [`Error::LeaseLost`] if one of the locks was lost while this waited for another.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped, the locks that it acquired are released in the background, and a
    /// claim that it may have made is undone.
    pub async fn acquire_all(self) -> Result<Locks, Error> {
        let count = self.keys.len();
        let Some(wanted) = self.into_wanted()? else {
            let unguarded = (0..count).map(|_| Lock::new(Lease::unguarded()));
            return Ok(Locks::new(unguarded.collect()));
        };
        wanted.acquire_all().await.inspect_err(|_| current::taint())
    }

    /// Acquires the lock, runs the body, and releases the lock.
    ///
    /// If the lock is lost, the body is stopped: its future is dropped. The body gets the lock, for
    /// its [fencing number](Lock::fencing_number). If the body panics, the lock is released and the
    /// panic goes on. If the release fails, it is tried again in the background, and the caller
    /// gets the result of the body all the same.
    ///
    /// # Errors
    ///
    /// The body's error, or an [`Error`] as from [`acquire`](Self::acquire), converted into the
    /// body's error type. [`Error::LeaseLost`] if the body was stopped.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped, a claim that it may have made is undone. If it is dropped while
    /// the body runs, the body is dropped and the lock is released in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, Idempotency, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// let lines = idempotency
    ///     .lock("reports")
    ///     .key("2026-11-24")
    ///     .run(async |lock| Ok::<_, Error>(lock.fencing_number() + 41))
    ///     .await?;
    /// assert_eq!(lines, 42);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<T, E, F>(self, body: F) -> Result<T, E>
    where
        F: AsyncFnOnce(&Lock) -> Result<T, E>,
        E: From<Error>,
    {
        let lock = self.acquire().await?;
        let Some(held) = lock.held() else {
            return body(&lock).await;
        };
        let term = held.term.clone();
        let exit = {
            let running = pin!(Some(held_keys::inside(held, body(&lock))));
            body::run(Some(&*term), running).await
        };
        let returned = match exit {
            BodyExit::Returned(returned) => Ok(returned),
            BodyExit::Panicked(panic) => Err(panic),
            BodyExit::Lost(error) => {
                current::taint();
                return Err(error.into());
            }
        };
        // A release that fails continues when the lock is dropped.
        let _ = lock.release().await;
        returned.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Checks the whole. `None` under a disabled runtime.
    fn into_wanted(self) -> Result<Option<Wanted>, Error> {
        let Self { mut draft, keys } = self;
        if draft.runtime.is_some()
            && let Err(reason) = draft.settings.check()
        {
            draft.misconfigured(reason.0);
        }
        if let Some(problem) = draft.problem {
            return Err(announced(problem));
        }
        let Some(runtime) = draft.runtime else {
            return Ok(None);
        };
        let (operation, mut settings) = (draft.name.into_owned(), draft.settings);
        // Also after a death the record stays for ten leases.
        let least = settings.lease.saturating_mul(10).min(MAX_LENGTH);
        settings.set_ttl(settings.ttl().max(least));
        let metadata = CallMetadata::new(runtime.config.trace.as_ref(), &settings);
        let request = |id| Request {
            id,
            fingerprint: None,
            admission: None,
            settings: settings.clone(),
            versions: None,
            metadata: metadata.clone(),
            again: None,
        };
        let missing = || Error::MissingKey {
            operation: operation.as_str().into(),
        };
        let keys = keys.into_iter();
        let requests = keys.map(|key| key.map(request).ok_or_else(missing));
        Ok(Some(Wanted {
            requests: requests.collect::<Result<_, _>>().map_err(announced)?,
            runtime,
            operation,
        }))
    }
}

/// Returns the settings of a lock. Its record has no outcome, and `ttl` is how long its attempt is
/// kept.
fn settings_of(defaults: &Settings) -> Settings {
    let mut settings = Settings {
        lease: defaults.lease,
        duplicate: Duplicate::Reject,
        ..Settings::DEFAULT
    };
    settings.set_ttl(settings.hold());
    settings.set_wait(defaults.wait());
    settings
}

/// Reports a lock that is not even asked for.
fn announced(error: Error) -> Error {
    Prepared::Refused(error.clone()).announce();
    current::taint();
    error
}

/// Locks that are to be acquired.
struct Wanted {
    runtime: Arc<Runtime>,
    operation: String,
    requests: Vec<Request>,
}

impl Wanted {
    fn config(&self, reason: &str) -> Error {
        announced(Error::config(&self.operation, reason))
    }

    fn only_one(&self) -> Result<&Request, Error> {
        match self.requests.as_slice() {
            [request] => Ok(request),
            [] => Err(announced(Error::MissingKey {
                operation: self.operation.as_str().into(),
            })),
            _ => Err(self.config(
                "it is given several keys; acquire them with `acquire_all`, in one order for \
                 everybody",
            )),
        }
    }

    /// Refuses a key whose lock's body this is: it would wait for itself.
    fn check_reentry(&self, request: &Request) -> Result<(), Error> {
        if held_keys::is_inside(&request.id, self.runtime.identity()) {
            return Err(self.runtime.reject(request, Rejected::Reentrant));
        }
        Ok(())
    }

    async fn acquire(&self, request: &Request) -> Result<Lock, Error> {
        self.check_reentry(request)?;
        let owned = Owned::claim(&self.runtime, request).await?;
        Ok(Lock::new(Lease::new(owned)))
    }

    async fn acquire_all(&self) -> Result<Locks, Error> {
        let mut ordered: Vec<_> = self.requests.iter().enumerate().collect();
        ordered.sort_by(|(_, one), (_, other)| one.id.as_str().cmp(other.id.as_str()));
        if ordered.is_empty() {
            return Err(self.config("it is given no key; `acquire_all` needs at least one"));
        }
        if ordered.windows(2).any(|pair| match pair {
            [(_, one), (_, other)] => one.id == other.id,
            _ => false,
        }) {
            return Err(self.config("it is given a key twice, and would wait for itself"));
        }
        for request in &self.requests {
            self.check_reentry(request)?;
        }
        let mut acquired = Vec::with_capacity(ordered.len());
        if let Err(error) = self.acquire_each(&ordered, &mut acquired).await {
            let acquired = acquired.into_iter().map(|(_, lock)| lock).collect();
            // Dropped after this, a release that failed continues.
            let _ = Locks::new(acquired).release().await;
            return Err(error);
        }
        acquired.sort_by_key(|(place, _)| *place);
        let locks = acquired.into_iter().map(|(_, lock)| lock);
        Ok(Locks::new(locks.collect()))
    }

    /// Acquires one lock after the other, all of them within the time of one wait.
    async fn acquire_each(
        &self,
        ordered: &[(usize, &Request)],
        acquired: &mut Vec<(usize, Lock)>,
    ) -> Result<(), Error> {
        let began = clock::now();
        for (place, request) in ordered {
            let mut request = (*request).clone();
            let waited = clock::now().saturating_duration_since(began);
            let left = request.settings.wait().saturating_sub(waited);
            request.settings.set_wait(left);
            acquired.push((*place, self.acquire(&request).await?));
        }
        // Those at the beginning may have been lost during the wait for those at the end.
        acquired
            .iter()
            .find_map(|(_, lock)| lock.lost_error())
            .map_or(Ok(()), Err)
    }
}

impl fmt::Debug for LockBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockBuilder")
            .field("name", &self.draft.name)
            .field("keys", &self.keys)
            .field("problem", &self.draft.problem)
            .finish_non_exhaustive()
    }
}
