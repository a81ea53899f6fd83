//! A guarded call without the attribute, which itself is written with nothing else.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tracing::Instrument as _;

use crate::body::{self, End};
use crate::by_hand::{Begin, Lease};
use crate::clock;
use crate::context::{self, Call, Inherited};
use crate::engine::{Begun, Request};
use crate::error::Error;
use crate::fingerprint::{Fingerprint, FingerprintError};
use crate::held::Held;
use crate::key::{Key, KeyDigest, KeyPart};
use crate::observe::{self, Decision, Observer};
use crate::outcome::{Outcome, Storable, Witness, outcome_of};
use crate::policy::{Abandoned, Duplicate, InFlight, MissingKey, Settings, StoreFailure};
use crate::record::{RecordId, RecordInfo, Removed};
use crate::runtime::{Idempotency, Runtime};

/// One call of an operation: its key, its fingerprint, and what differs from the runtime's defaults. From
/// [`Idempotency::operation`].
///
/// Key and fingerprint are computed when they are given, once.
#[must_use = "nothing happens until it is run"]
pub struct Operation<'a> {
    runtime: Option<Arc<Runtime>>,
    name: Cow<'a, str>,
    settings: Settings,
    id: Option<RecordId>,
    fingerprint: Option<Fingerprint>,
    /// The first thing that was wrong: the call will fail with it.
    problem: Option<Error>,
}

impl<'a> Operation<'a> {
    pub(crate) fn new(idempotency: Idempotency, name: Cow<'a, str>) -> Self {
        let runtime = idempotency.runtime;
        let settings = runtime.as_ref().map_or(Settings::DEFAULT, |runtime| runtime.settings.clone());
        let mut operation = Self { runtime, name, settings, id: None, fingerprint: None, problem: None };
        if let Some(problem) = operation.runtime.as_ref().and_then(|runtime| runtime.problem.clone()) {
            operation.misconfigured(problem.0);
        }
        operation
    }

    /// A call that will fail.
    pub(crate) fn failing(name: &'a str, problem: Error) -> Self {
        let mut operation = Self::new(Idempotency::disabled(), Cow::Borrowed(name));
        operation.problem = Some(problem);
        operation
    }

    fn misconfigured(&mut self, reason: impl Into<Arc<str>>) {
        if self.problem.is_none() {
            self.problem = Some(Error::Config { operation: (*self.name).into(), reason: reason.into() });
        }
    }

    /// The key: what identifies this call among all calls of the operation.
    pub fn key<K: KeyPart + ?Sized>(mut self, key: &K) -> Self {
        // A disabled runtime asks nobody, so it needs no key.
        if self.runtime.is_some() && self.problem.is_none() {
            self.id = None;
            if let Some(key) = Key::encode(key) {
                self.id = RecordId::new(&self.name, &key);
                if self.id.is_none() {
                    self.misconfigured("its name is not valid: a name is 1 to 128 letters, digits and `_ - . / # @ +`, in segments that may be joined by `::`");
                }
            }
        }
        self
    }

    /// The digest by which logs and errors name the key; `None` where it is missing.
    pub fn digest(&self) -> Option<KeyDigest> {
        self.id.as_ref().map(RecordId::digest)
    }

    /// What must be equal when the key comes again: the request, or the part of it that matters. With another one, a call gets
    /// [`Error::FingerprintMismatch`].
    pub fn fingerprint<T: Serialize + ?Sized>(self, value: &T) -> Self {
        self.fingerprinted(|| Fingerprint::of(value))
    }

    fn fingerprinted(mut self, fingerprint: impl FnOnce() -> Result<Fingerprint, FingerprintError>) -> Self {
        if self.runtime.is_some() && self.problem.is_none() {
            match fingerprint() {
                Ok(fingerprint) => self.fingerprint = Some(fingerprint),
                Err(error) => self.misconfigured(error.to_string()),
            }
        }
        self
    }

    /// How long the outcome is kept, from the commit.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.set_ttl(ttl);
        self
    }

    /// How long it is known, from the commit, that there was an outcome. Not shorter than `ttl`.
    pub fn remember(mut self, remember: Duration) -> Self {
        self.settings.set_remember(remember);
        self
    }

    /// How long an owner that is not heard of keeps the key.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.set_lease(lease);
        self
    }

    /// To wait for a call in flight, for at most this long.
    pub fn wait(mut self, wait: Duration) -> Self {
        (self.settings.wait, self.settings.in_flight) = (wait, InFlight::Wait);
        self
    }

    /// What to do when another call with this key is in flight.
    pub fn in_flight(mut self, in_flight: InFlight) -> Self {
        self.settings.in_flight = in_flight;
        self
    }

    /// What to give when the call was carried out before.
    pub fn duplicate(mut self, duplicate: Duplicate) -> Self {
        self.settings.duplicate = duplicate;
        self
    }

    /// What to do when an earlier owner was cut off.
    pub fn abandoned(mut self, abandoned: Abandoned) -> Self {
        self.settings.abandoned = abandoned;
        self
    }

    /// What to do when the store cannot answer the claim.
    pub fn store_failure(mut self, store_failure: StoreFailure) -> Self {
        self.settings.store_failure = store_failure;
        self
    }

    /// What to do when the key is missing.
    pub fn missing_key(mut self, missing_key: MissingKey) -> Self {
        self.settings.missing_key = missing_key;
        self
    }

    /// How many attempts the key may have in all.
    pub fn max_attempts(mut self, max_attempts: u64) -> Self {
        self.settings.max_attempts = Some(max_attempts);
        self
    }

    /// To ask what became of the work of an owner that was cut off, before the body runs again: `Some` is committed and given,
    /// `None` runs the body. An `Err` reaches the caller, and the next call asks again, as the next attempt.
    pub fn reconcile<R, Asked>(self, reconcile: R) -> Reconciling<'a, R>
    where
        R: FnOnce() -> Asked,
    {
        Reconciling { operation: self.abandoned(Abandoned::Rerun), reconcile }
    }

    /// Runs the body, or gives what it gave before.
    ///
    /// The body runs if this call is the first of its key, or every earlier one failed. Then its `Ok` is recorded, and its `Err` gives the
    /// key up for the next call. It is stopped (its future is dropped) if the lease is lost.
    ///
    /// # Errors
    ///
    /// The body's own, or an [`Error`], turned into one.
    ///
    /// # Cancellation safety
    ///
    /// Dropped while the body runs, the record stays in flight until its lease runs out: the body was cut somewhere. Dropped after
    /// the body has ended, the outcome is recorded all the same, in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, Idempotency, MemoryStore, Outcome};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// for replayed in [false, true] {
    ///     let outcome: Outcome<u32> = idempotency
    ///         .operation("orders.create")
    ///         .key(&("tenant-1", 4711))
    ///         .fingerprint(&"two apples")
    ///         .ttl(Duration::from_secs(300))
    ///         .run(|| async { Ok::<_, Error>(42) })
    ///         .await?;
    ///     assert_eq!(outcome.is_replayed(), replayed);
    ///     assert_eq!(outcome.into_inner(), 42);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<T, E, F, Body, Via>(self, body: F) -> Result<Outcome<T>, E>
    where
        F: FnOnce() -> Body,
        Body: Future<Output = Result<T, E>>,
        T: Storable<Via>,
        E: From<Error>,
    {
        // The closure is the body's beginning: it is called where the body runs, or not at all.
        let body = pin!(Some(async move { body().await }));
        self.execute(outcome_of::<Result<T, E>, Via>(), body).await
    }

    /// As [`run`](Self::run), with the body in a task of its own: a caller that is dropped does not stop it. `scope` and
    /// [`current`](crate::current) go along.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub async fn run_detached<T, E, F, Body, Via>(self, body: F) -> Result<Outcome<T>, E>
    where
        F: FnOnce() -> Body + Send + 'static,
        Body: Future<Output = Result<T, E>> + Send + 'static,
        T: Storable<Via> + Send + 'static,
        E: From<Error> + Send + 'static,
        Via: 'static,
    {
        self.execute_detached(outcome_of::<Result<T, E>, Via>(), async move { body().await }).await
    }

    /// Claims the key for a call that is carried out step by step.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), but for the body's own. With `missing_key = run` a missing key is an error all the same.
    ///
    /// # Cancellation safety
    ///
    /// Dropped, it gives back what it may have claimed.
    pub async fn begin(mut self) -> Result<Begin, Error> {
        self.settings.missing_key = MissingKey::Reject;
        match self.prepare()? {
            Prepared::Unguarded => Ok(Begin::Execute(Lease::unguarded())),
            Prepared::Guarded(runtime, request) => match runtime.begin(&request).await? {
                Begun::Owner(held) => Ok(Begin::Execute(Lease::new(held, &runtime))),
                Begun::Replay(recorded) => Ok(Begin::Replay(recorded)),
                Begun::Unguarded => Ok(Begin::Execute(Lease::unguarded())),
            },
        }
    }

    /// Removes the record, so that the next call runs the body as the first attempt again. Says whether there was one.
    ///
    /// # Errors
    ///
    /// [`Error::InFlight`] if a call is in flight: nothing is removed under a running body. [`Error::Store`] and
    /// [`Error::MissingKey`].
    pub async fn forget(self) -> Result<bool, Error> {
        let Some((runtime, request)) = self.prepare_admin()? else { return Ok(false) };
        match runtime.store.remove(&request.id).await.map_err(|error| runtime.failed(&request, error))? {
            Removed::Removed => {
                runtime.observer.decided(Decision::Forgotten, &request.id, 0);
                Ok(true)
            }
            Removed::Nothing => Ok(false),
            Removed::InFlight { lease_left } => Err(request.in_flight(lease_left)),
        }
    }

    /// What is known of the record, `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`Error::Store`], [`Error::Codec`] and [`Error::MissingKey`].
    pub async fn inspect(self) -> Result<Option<RecordInfo>, Error> {
        let Some((runtime, request)) = self.prepare_admin()? else { return Ok(None) };
        runtime.store.inspect(&request.id).await.map_err(|error| runtime.failed(&request, error))
    }

    /// Commits an outcome by hand: for an abandoned record, once it is known what became of it. Also where there is no record, or a
    /// released one: to say that a call was carried out elsewhere.
    ///
    /// It knows nothing of an attribute: give it the operation's own [`ttl`](Self::ttl) and [`remember`](Self::remember), and a value of the
    /// function's outcome type, or later duplicates cannot read it. An abandoned record keeps its fingerprint; where there is none, give that too.
    ///
    /// # Errors
    ///
    /// [`Error::InFlight`] if a call is in flight, [`Error::Duplicate`] if there is an outcome, [`Error::AlreadyDone`] if there was
    /// one. After [`Error::Store`] it may be recorded all the same: it is tried again in the background. [`Error::Config`] if the value cannot be written. [`Error::Store`] and [`Error::MissingKey`].
    ///
    /// # Cancellation safety
    ///
    /// Dropped between its two steps, it leaves the record abandoned, one attempt later, after a lease.
    pub async fn settle<T: Storable<Via>, Via>(self, value: &T) -> Result<(), Error> {
        let Some((runtime, mut request)) = self.prepare_admin()? else { return Ok(()) };
        let outcome = runtime.codec.encode(value.to_stored()).map_err(|error| Error::Config {
            operation: request.id.operation().into(),
            reason: format!("the value to settle with cannot be written: {error}").into(),
        })?;
        (request.settings.abandoned, request.settings.max_attempts) = (Abandoned::Rerun, None);
        (request.settings.in_flight, request.settings.duplicate) = (InFlight::Reject, Duplicate::Reject);
        if request.fingerprint.is_none() {
            // What must be equal for later duplicates stays as it was.
            let info = runtime.store.inspect(&request.id).await.map_err(|error| runtime.failed(&request, error))?;
            request.fingerprint = info.and_then(|info| info.fingerprint);
        }
        request.settings.store_failure = StoreFailure::Reject;
        match runtime.begin(&request).await? {
            Begun::Owner(held) => held.settle(outcome).await,
            // Neither happens: duplicates and store failures are rejected above.
            Begun::Replay(_) | Begun::Unguarded => Ok(()),
        }
    }

    /// The flow of the attribute: the body is a future that is not moved, and dropped as soon as it has ended or may not go on.
    pub(crate) async fn execute<R, T, E, Body>(
        self,
        witness: Witness<R, T, E>,
        mut body: Pin<&mut Option<Body>>,
    ) -> Result<Outcome<T>, E>
    where
        Body: Future<Output = R>,
    {
        let (runtime, request) = match self.prepare() {
            Err(error) => return Err((witness.fail)(error)),
            Ok(Prepared::Unguarded) => return unguarded(&witness, body).await,
            Ok(Prepared::Guarded(runtime, request)) => (runtime, request),
        };
        let span = runtime.observer.span(&request.id);
        async {
            match runtime.begin(&request).await {
                Err(error) => Err((witness.fail)(error)),
                Ok(Begun::Unguarded) => unguarded(&witness, body).await,
                Ok(Begun::Replay(recorded)) => (witness.decode)(&recorded).map(Outcome::replayed).map_err(witness.fail),
                Ok(Begun::Owner(held)) => {
                    span.record("attempt", held.term().attempt);
                    own(&runtime, held, &witness, body.as_mut()).await
                }
            }
        }
        .instrument(span.clone())
        .await
    }

    pub(crate) async fn execute_detached<R, T, E, Body>(
        self,
        witness: Witness<R, T, E>,
        body: Body,
    ) -> Result<Outcome<T>, E>
    where
        R: Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
        Body: Future<Output = R> + Send + 'static,
    {
        let fail = witness.fail;
        let (runtime, request) = match self.prepare() {
            Err(error) => return Err(fail(error)),
            Ok(Prepared::Unguarded) => return unguarded_and_detached(&witness, body).await,
            Ok(Prepared::Guarded(runtime, request)) => (runtime, request),
        };
        let span = runtime.observer.span(&request.id);
        async {
            match runtime.begin(&request).await {
                Err(error) => Err(fail(error)),
                Ok(Begun::Unguarded) => unguarded_and_detached(&witness, body).await,
                Ok(Begun::Replay(recorded)) => (witness.decode)(&recorded).map(Outcome::replayed).map_err(fail),
                Ok(Begun::Owner(held)) => {
                    span.record("attempt", held.term().attempt);
                    let lost = held.term().lost_error();
                    let owning = async move { own(&runtime, held, &witness, pin!(Some(body))).await };
                    // Only a tokio runtime that shuts down stops the task.
                    detached(owning).await.unwrap_or_else(|| Err(fail(lost)))
                }
            }
        }
        .instrument(span.clone())
        .await
    }

    fn prepare(self) -> Result<Prepared, Error> {
        if let Some(problem) = self.problem {
            if matches!(problem, Error::Config { .. }) {
                Observer::decided_without_key(Decision::Misconfigured, &self.name);
            }
            return Err(problem);
        }
        let Some(runtime) = self.runtime else { return Ok(Prepared::Unguarded) };
        if let Err(reason) = self.settings.check() {
            Observer::decided_without_key(Decision::Misconfigured, &self.name);
            return Err(Error::Config { operation: (*self.name).into(), reason: reason.0 });
        }
        let Some(id) = self.id else {
            return match self.settings.missing_key {
                MissingKey::Run => {
                    Observer::decided_without_key(Decision::RanUnguarded, &self.name);
                    Ok(Prepared::Unguarded)
                }
                MissingKey::Reject => {
                    Observer::decided_without_key(Decision::RejectedMissingKey, &self.name);
                    Err(Error::MissingKey { operation: (*self.name).into() })
                }
            };
        };
        Ok(Prepared::Guarded(runtime, Request { id, fingerprint: self.fingerprint, settings: self.settings }))
    }

    /// For those who look at a record: a missing key is an error, a disabled runtime has no records.
    fn prepare_admin(mut self) -> Result<Option<(Arc<Runtime>, Request)>, Error> {
        self.settings.missing_key = MissingKey::Reject;
        match self.prepare()? {
            Prepared::Unguarded => Ok(None),
            Prepared::Guarded(runtime, request) => Ok(Some((runtime, request))),
        }
    }
}

impl fmt::Debug for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("name", &self.name)
            .field("id", &self.id)
            .field("fingerprint", &self.fingerprint)
            .field("settings", &self.settings)
            .field("problem", &self.problem)
            .finish_non_exhaustive()
    }
}

/// A call that asks first what became of an abandoned one. From [`Operation::reconcile`].
#[must_use = "nothing happens until it is run"]
#[derive(Debug)]
pub struct Reconciling<'a, R> {
    operation: Operation<'a>,
    reconcile: R,
}

impl<R> Reconciling<'_, R> {
    /// Runs the body, or gives what it gave before, or what became of it: see [`Operation::run`].
    ///
    /// # Errors
    ///
    /// As [`Operation::run`], and those of the question.
    pub async fn run<T, E, Asked, F, Body, Via>(self, body: F) -> Result<Outcome<T>, E>
    where
        R: FnOnce() -> Asked,
        Asked: Future<Output = Result<Option<T>, E>>,
        F: FnOnce() -> Body,
        Body: Future<Output = Result<T, E>>,
        T: Storable<Via>,
        E: From<Error>,
    {
        let Self { operation, reconcile } = self;
        let body = async {
            if must_reconcile()
                && let Some(settled) = reconciled(reconcile().await)
            {
                return settled;
            }
            body().await
        };
        operation.execute(outcome_of::<Result<T, E>, Via>(), pin!(Some(body))).await
    }
}

/// Whether the body that is running must ask first what became of an earlier one.
pub(crate) fn must_reconcile() -> bool {
    let call = context::current().filter(Call::after_abandoned);
    if let Some(call) = &call {
        call.asks();
    }
    call.is_some()
}

/// What the body that is running returns instead, when it has asked.
pub(crate) fn reconciled<T, E>(asked: Result<Option<T>, E>) -> Option<Result<T, E>> {
    if let (Ok(found), Some(call)) = (&asked, context::current()) {
        call.was_answered(found.is_some());
    }
    asked.transpose()
}

enum Prepared {
    Unguarded,
    Guarded(Arc<Runtime>, Request),
}

async fn unguarded<R, T, E, Body>(witness: &Witness<R, T, E>, body: Pin<&mut Option<Body>>) -> Result<Outcome<T>, E>
where
    Body: Future<Output = R>,
{
    match body.as_pin_mut() {
        Some(body) => (witness.split)(context::unguarded(body).await).map(Outcome::executed),
        // Callers pass a body: there is nothing to run only where it was taken, which nobody does.
        None => std::future::pending().await,
    }
}

async fn unguarded_and_detached<R, T, E, Body>(witness: &Witness<R, T, E>, body: Body) -> Result<Outcome<T>, E>
where
    R: Send + 'static,
    Body: Future<Output = R> + Send + 'static,
{
    match detached(context::unguarded(body)).await {
        Some(returned) => (witness.split)(returned).map(Outcome::executed),
        // The tokio runtime is shutting down, and this future with it.
        None => std::future::pending().await,
    }
}

/// Runs the body as the owner, and records what came of it.
async fn own<R, T, E, Body>(
    runtime: &Arc<Runtime>,
    held: Held,
    witness: &Witness<R, T, E>,
    body: Pin<&mut Option<Body>>,
) -> Result<Outcome<T>, E>
where
    Body: Future<Output = R>,
{
    let term = held.term().clone();
    let call = Call::new(term.id.clone(), term.attempt, held.after_abandoned(), runtime.identity());
    let begun = clock::now();
    let end = call.around(body::run(&term, body)).await;
    observe::body_took(&term.id, clock::now().saturating_duration_since(begun));
    match end {
        End::Returned(returned) => match (witness.split)(returned) {
            Ok(value) => {
                if call.is_reconciled() {
                    runtime.observer.decided(Decision::Reconciled, &term.id, term.attempt);
                }
                // A panic in the value's own code is no reason to forget that the body has run.
                let encode = AssertUnwindSafe(|| (witness.encode)(&runtime.codec, &value));
                let outcome = catch_unwind(encode).unwrap_or_else(|_| Err("it panicked while it was written".into()));
                held.commit(outcome).await;
                Ok(Outcome::executed(value))
            }
            Err(error) => {
                held.release(call.is_unreconciled()).await;
                Err(error)
            }
        },
        End::Lost => Err((witness.fail)(held.lost())),
        End::Panicked(panic) => {
            runtime.observer.decided(Decision::Panicked, &term.id, term.attempt);
            held.release(call.is_unreconciled()).await;
            std::panic::resume_unwind(panic)
        }
    }
}

/// Runs a future in a task of its own, with what follows the task. `None` where the task was stopped.
async fn detached<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Option<T> {
    let task = tokio::spawn(Inherited::here().around(future).in_current_span());
    match task.await {
        Ok(value) => Some(value),
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => None,
        },
    }
}
