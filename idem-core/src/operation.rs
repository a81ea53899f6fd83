//! A guarded call without the attribute, which itself is written with nothing else.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::by_hand::{Begin, Lease};
use crate::codec::CodecFailure;
use crate::context;
use crate::engine::{Begun, Request};
use crate::error::Error;
use crate::error_policy::{ErrorAction, Keepable, Policy, encode_error};
use crate::execute::{Again, Execution};
use crate::fingerprint::{Fingerprint, FingerprintError, FingerprintPart};
use crate::held::Held;
use crate::key::{KeyDigest, KeyPart};
use crate::observe::{Decision, Observer};
use crate::outcome::{Outcome, Storable, outcome_of};
use crate::policy::{Abandoned, Duplicate, InFlight, MissingKey, Settings, StoreFailure};
use crate::reconcile::{Question, Reconcile, asked};
use crate::record::{Encoded, RecordId, RecordInfo, Removed, is_valid_operation};
use crate::runtime::{Idempotency, Runtime};
use crate::token::{AsToken, Submission};
use crate::watch::{self, Seen};

/// One call of an operation: its key, its fingerprint, and what differs from the runtime's defaults. From
/// [`Idempotency::operation`].
///
/// Key and fingerprint are computed when they are given, once. `Q` is what it [asks](Self::reconcile) of an abandoned record, and
/// `P` its [policy](Self::errors) for errors; both are `()` unless they are given.
#[must_use = "nothing happens until it is run"]
pub struct Operation<'a, Q = (), P = ()> {
    pub(crate) draft: Draft<'a>,
    question: Q,
    policy: P,
}

/// A call as far as it is described.
pub(crate) struct Draft<'a> {
    runtime: Option<Arc<Runtime>>,
    name: Cow<'a, str>,
    settings: Settings,
    id: Option<RecordId>,
    fingerprint: Option<Fingerprint>,
    /// The key is that of a token.
    submission: Option<Box<Submission>>,
    /// The first thing that was wrong: the call will fail with it.
    problem: Option<Error>,
}

/// The policy of [`Operation::errors`].
#[derive(Debug)]
pub struct Errors<P>(P);

impl<'a> Operation<'a> {
    #[inline]
    pub(crate) fn new(idempotency: Idempotency, name: Cow<'a, str>) -> Self {
        let runtime = idempotency.runtime;
        let settings = runtime.as_ref().map_or(Settings::DEFAULT, |runtime| runtime.settings.clone());
        let mut draft = Draft { runtime, name, settings, id: None, fingerprint: None, submission: None, problem: None };
        if let Some(problem) = draft.runtime.as_ref().and_then(|runtime| runtime.problem.clone()) {
            draft.misconfigured(problem.0);
        }
        Self { draft, question: (), policy: () }
    }

    /// A call that will fail.
    pub(crate) fn failing(name: &'a str, problem: Error) -> Self {
        let mut operation = Self::new(Idempotency::disabled(), Cow::Borrowed(name));
        operation.draft.problem = Some(problem);
        operation
    }
}

impl<'a, Q, P> Operation<'a, Q, P> {
    /// The key: what identifies this call among all calls of the operation.
    #[inline]
    pub fn key<K: KeyPart + ?Sized>(mut self, key: &K) -> Self {
        if self.draft.wants_key(self.draft.submission.is_some()) {
            self.draft.id = RecordId::encode(&self.draft.name, key);
        }
        self
    }

    /// Instead of a key: a token that was [issued](Self::issue) for this operation, and the subject that it was issued to. The call is the
    /// submission that the token stands for.
    ///
    /// The body runs for the first submission alone. Later ones are duplicates, as with a key. A token that is unknown, expired, forged or
    /// another's makes the call fail with [`Error::UnknownToken`], which does not tell these apart; events do. The subject is what the server
    /// knows of the caller, never a field of the form.
    ///
    /// A call with a token never runs without the store: `store_failure` is `reject`, whatever it is set to. A subject that is `None` or
    /// empty is [`Error::MissingSubject`]. The outcome is [remembered](Self::remember) for at least as long as the token was issued for.
    pub fn token<T, S>(mut self, token: &T, subject: &S) -> Self
    where
        T: AsToken + ?Sized,
        S: KeyPart + ?Sized,
    {
        if self.draft.wants_key(self.draft.id.is_some() && self.draft.submission.is_none()) {
            if let Some((id, submission)) = Submission::of(&self.draft.name, token, subject) {
                self.draft.settings.least_secs = submission.ttl_secs;
                (self.draft.id, self.draft.submission) = (Some(id), Some(Box::new(submission)));
            } else {
                self.draft.problem = Some(Error::MissingSubject { operation: (*self.draft.name).into() });
            }
        }
        self
    }

    /// The digest by which logs and errors name the key; `None` where it is missing.
    pub fn digest(&self) -> Option<KeyDigest> {
        self.draft.id.as_ref().map(RecordId::digest)
    }

    /// What must be equal when the key comes again: the request, or the part of it that matters. With another one, a call gets
    /// [`Error::FingerprintMismatch`].
    #[inline]
    pub fn fingerprint<T: FingerprintPart + ?Sized>(self, value: &T) -> Self {
        self.fingerprinted(|| Fingerprint::of(value))
    }

    #[inline]
    fn fingerprinted(mut self, fingerprint: impl FnOnce() -> Result<Fingerprint, FingerprintError>) -> Self {
        if self.draft.runtime.is_some() && self.draft.problem.is_none() {
            match fingerprint() {
                Ok(fingerprint) => self.draft.fingerprint = Some(fingerprint),
                Err(error) => self.draft.misconfigured(error.to_string()),
            }
        }
        self
    }

    /// How long the outcome is kept, from the commit.
    #[inline]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.draft.settings.set_ttl(ttl);
        self
    }

    /// How long it is known, from the commit, that there was an outcome. Not shorter than `ttl`.
    #[inline]
    pub fn remember(mut self, remember: Duration) -> Self {
        self.draft.settings.set_remember(remember);
        self
    }

    /// How long an owner that is not heard of keeps the key.
    #[inline]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.draft.settings.set_lease(lease);
        self
    }

    /// To wait for a call in flight, for at most this long.
    #[inline]
    pub fn wait(mut self, wait: Duration) -> Self {
        (self.draft.settings.wait, self.draft.settings.in_flight) = (wait, InFlight::Wait);
        self
    }

    /// What to do when another call with this key is in flight.
    #[inline]
    pub fn in_flight(mut self, in_flight: InFlight) -> Self {
        self.draft.settings.in_flight = in_flight;
        self
    }

    /// What to give when the call was carried out before.
    #[inline]
    pub fn duplicate(mut self, duplicate: Duplicate) -> Self {
        self.draft.settings.duplicate = duplicate;
        self
    }

    /// What to do when an earlier owner was cut off.
    #[inline]
    pub fn abandoned(mut self, abandoned: Abandoned) -> Self {
        self.draft.settings.abandoned = abandoned;
        self
    }

    /// What to do when the store cannot answer the claim.
    #[inline]
    pub fn store_failure(mut self, store_failure: StoreFailure) -> Self {
        self.draft.settings.store_failure = store_failure;
        self
    }

    /// What to do when the key is missing.
    #[inline]
    pub fn missing_key(mut self, missing_key: MissingKey) -> Self {
        self.draft.settings.missing_key = missing_key;
        self
    }

    /// How many attempts the key may have in all.
    #[inline]
    pub fn max_attempts(mut self, max_attempts: u64) -> Self {
        self.draft.settings.max_attempts = Some(max_attempts);
        self
    }

    /// To ask what became of the work of an owner that was cut off, before the body runs again: `Some` is committed and given,
    /// `None` runs the body. An `Err` reaches the caller, and the next call asks again, as the next attempt.
    pub fn reconcile<R, Asked>(self, reconcile: R) -> Operation<'a, Reconcile<R>, P>
    where
        R: FnOnce() -> Asked,
    {
        let Self { draft, policy, .. } = self.abandoned(Abandoned::Rerun).asks_first();
        Operation { draft, question: Reconcile(reconcile), policy }
    }

    /// The body itself asks what became of an abandoned attempt.
    #[doc(hidden)]
    pub fn asks_first(mut self) -> Self {
        self.draft.settings.reconciles = true;
        self
    }

    /// What becomes of the call when the body returns an error: without this, each releases the key. A type's own policy is given as
    /// `.errors(OrderError::action)`.
    ///
    /// The error then is such that it can be kept, and the body such that it can be run again: a closure that does not use up what it
    /// captures.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, ErrorAction, Idempotency, MemoryStore, Outcome, Retry};
    /// # use serde::{Deserialize, Serialize};
    /// #[derive(Debug, PartialEq, Serialize, Deserialize)]
    /// enum OrderError {
    ///     CardDeclined { code: u16 },
    ///     GatewayTimeout,
    ///     #[serde(skip)]
    ///     Idempotency(String),
    /// }
    /// # impl From<Error> for OrderError { fn from(error: Error) -> Self { Self::Idempotency(error.to_string()) } }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// for _ in ["first", "duplicate"] {
    ///     let outcome: Result<Outcome<u32>, OrderError> = idempotency
    ///         .operation("orders.create")
    ///         .key("o-1")
    ///         .errors(|error: &OrderError| match error {
    ///             OrderError::CardDeclined { .. } => ErrorAction::Keep,
    ///             OrderError::GatewayTimeout => ErrorAction::Retry(Retry::new(3)),
    ///             OrderError::Idempotency(_) => ErrorAction::Release,
    ///         })
    ///         .run(|| async { Err(OrderError::CardDeclined { code: 51 }) })
    ///         .await;
    ///     assert_eq!(outcome, Err(OrderError::CardDeclined { code: 51 }));
    /// }
    /// # }
    /// ```
    pub fn errors<E, A>(self, policy: A) -> Operation<'a, Q, Errors<A>>
    where
        A: Fn(&E) -> ErrorAction,
    {
        let Self { draft, question, .. } = self;
        Operation { draft, question, policy: Errors(policy) }
    }
}

impl<Q> Operation<'_, Q> {
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
    pub fn run<T, E, F, Body, Via>(self, body: F) -> impl Future<Output = Result<Outcome<T>, E>>
    where
        Q: Question<T, E>,
        F: FnOnce() -> Body,
        Body: Future<Output = Result<T, E>>,
        T: Storable<Via>,
        E: From<Error>,
    {
        // No `async fn`, whose future would hold the whole description beside what is prepared of it.
        let (prepared, question) = (self.draft.prepare(), self.question);
        async move {
            // The closure is the body's beginning: it is called where the body runs, or not at all.
            let body = pin!(Some(async move {
                match asked(Some(question)).await {
                    Some(settled) => settled,
                    None => body().await,
                }
            }));
            let (witness, policy) = (outcome_of::<Result<T, E>, Via>(), Policy::releasing());
            Execution { witness, policy, again: None::<fn() -> _> }.run(&prepared, body).await
        }
    }

    /// As [`run`](Self::run), with the body in a task of its own: a caller that is dropped does not stop it. `scope` and
    /// [`current`](crate::current) go along.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub async fn run_detached<T, E, F, Body, Via>(self, body: F) -> Result<Outcome<T>, E>
    where
        Q: Question<T, E, Asked: Send> + Send + 'static,
        F: FnOnce() -> Body + Send + 'static,
        Body: Future<Output = Result<T, E>> + Send + 'static,
        T: Storable<Via> + Send + 'static,
        E: From<Error> + Send + 'static,
        Via: 'static,
    {
        let Self { draft, question, .. } = self;
        let body = async move {
            match asked(Some(question)).await {
                Some(settled) => settled,
                None => body().await,
            }
        };
        let (witness, policy) = (outcome_of::<Result<T, E>, Via>(), Policy::releasing());
        Execution { witness, policy, again: None::<fn() -> _> }.run_detached(draft.prepare(), body).await
    }
}

impl<Q, P> Operation<'_, Q, Errors<P>> {
    /// Runs the body, or gives what it gave before, its error included, if that was kept.
    ///
    /// What is said of [`run`](Operation::run) without a policy holds here too; only what becomes of an `Err` is as the policy says. The
    /// closure is called once for each try.
    ///
    /// # Errors
    ///
    /// The body's own, now or before, or an [`Error`], turned into one. The errors of a [question](Self::reconcile) are not asked of the
    /// policy.
    ///
    /// # Cancellation safety
    ///
    /// Dropped while the body runs, the record stays in flight until its lease runs out. Dropped between two tries, the key is given
    /// up: no body was cut. Dropped after the last one, its outcome is recorded all the same, in the background.
    pub async fn run<T, E, F, Body, Via>(self, body: F) -> Result<Outcome<T>, E>
    where
        P: Fn(&E) -> ErrorAction,
        Q: Question<T, E>,
        F: FnMut() -> Body,
        Body: Future<Output = Result<T, E>>,
        T: Storable<Via>,
        E: From<Error> + Keepable,
    {
        let Self { draft, question, policy } = self;
        let (body, mut question) = (Again::new(body), Some(question));
        let mut start = move || {
            let (question, body) = (question.take(), body.clone());
            async move {
                match asked(question).await {
                    Some(settled) => settled,
                    None => body.call().await,
                }
            }
        };
        let first = pin!(Some(start()));
        let (witness, policy) = (outcome_of::<Result<T, E>, Via>(), Policy::new(policy.0).keeping());
        Execution { witness, policy, again: Some(start) }.run(&draft.prepare(), first).await
    }

    /// As [`run`](Self::run), with the body in a task of its own: a caller that is dropped does not stop it. `scope` and
    /// [`current`](crate::current) go along.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub async fn run_detached<T, E, F, Body, Via>(self, body: F) -> Result<Outcome<T>, E>
    where
        P: Fn(&E) -> ErrorAction + Send + 'static,
        Q: Question<T, E, Asked: Send> + Send + 'static,
        F: FnMut() -> Body + Send + 'static,
        Body: Future<Output = Result<T, E>> + Send + 'static,
        T: Storable<Via> + Send + 'static,
        E: From<Error> + Keepable + Send + 'static,
        Via: 'static,
    {
        let Self { draft, question, policy } = self;
        let (body, mut question) = (Again::new(body), Some(question));
        let mut start = move || {
            let (question, body) = (question.take(), body.clone());
            async move {
                match asked(question).await {
                    Some(settled) => settled,
                    None => body.call().await,
                }
            }
        };
        let first = start();
        let (witness, policy) = (outcome_of::<Result<T, E>, Via>(), Policy::new(policy.0).keeping());
        Execution { witness, policy, again: Some(start) }.run_detached(draft.prepare(), first).await
    }
}

impl Operation<'_> {
    /// Claims the key for a call that is carried out step by step.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), but for the body's own. With `missing_key = run` a missing key is an error all the same.
    ///
    /// # Cancellation safety
    ///
    /// Dropped, it gives back what it may have claimed.
    pub async fn begin(self) -> Result<Begin, Error> {
        self.try_begin().await.inspect_err(|_| context::trouble())
    }

    async fn try_begin(self) -> Result<Begin, Error> {
        let Some((runtime, request)) = self.draft.prepare_by_hand()? else {
            return Ok(Begin::Execute(Lease::unguarded()));
        };
        Ok(match runtime.begin(&request).await? {
            Begun::Owner(owned) => Begin::Execute(Lease::new(Held::new(&runtime, &request, owned), &runtime)),
            Begun::Replay(recorded) => Begin::Replay(recorded),
            Begun::Unguarded => Begin::Execute(Lease::unguarded()),
        })
    }

    /// Removes the record, so that the next call runs the body as the first attempt again. Says whether there was one.
    ///
    /// # Errors
    ///
    /// [`Error::InFlight`] if a call is in flight: nothing is removed under a running body. [`Error::Store`] and
    /// [`Error::MissingKey`].
    pub async fn forget(self) -> Result<bool, Error> {
        self.try_forget().await.inspect_err(|_| context::trouble())
    }

    async fn try_forget(self) -> Result<bool, Error> {
        let Some((runtime, request)) = self.draft.prepare_by_hand()? else { return Ok(false) };
        let _removing = runtime.cache.as_ref().map(|cache| cache.removing(&request.id));
        match runtime.store.remove(&request.id).await.map_err(|error| runtime.failed(&request.id, error))? {
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
        self.try_inspect().await.inspect_err(|_| context::trouble())
    }

    async fn try_inspect(self) -> Result<Option<RecordInfo>, Error> {
        let Some((runtime, request)) = self.draft.prepare_by_hand()? else { return Ok(None) };
        runtime.store.inspect(&request.id).await.map_err(|error| runtime.failed(&request.id, error))
    }

    /// Commits an outcome by hand: for an abandoned record, once it is known what became of it. Also where there is no record, or a
    /// released one, or a token that was only issued: to say that a call was carried out elsewhere.
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
        let settled = self.settle_with(|runtime| runtime.codec.encode(&value.to_stored())).await;
        settled.inspect_err(|_| context::trouble())
    }

    /// As [`settle`](Self::settle), with an error: for a record whose work is known to have failed for good. Duplicates then get it as one
    /// that was kept.
    ///
    /// # Errors
    ///
    /// As [`settle`](Self::settle).
    ///
    /// # Cancellation safety
    ///
    /// As [`settle`](Self::settle).
    pub async fn settle_error<E: Keepable>(self, error: &E) -> Result<(), Error> {
        let settled = self.settle_with(|runtime| encode_error(&runtime.codec, error)).await;
        settled.inspect_err(|_| context::trouble())
    }

    async fn settle_with(self, encode: impl FnOnce(&Runtime) -> Result<Encoded, CodecFailure>) -> Result<(), Error> {
        let Some((runtime, mut request)) = self.draft.prepare_by_hand()? else { return Ok(()) };
        let outcome = encode(&runtime).map_err(|error| Error::Config {
            operation: request.id.operation().into(),
            reason: format!("the value to settle with cannot be written: {error}").into(),
        })?;
        (request.settings.abandoned, request.settings.max_attempts) = (Abandoned::Rerun, None);
        (request.settings.in_flight, request.settings.duplicate) = (InFlight::Reject, Duplicate::Reject);
        if request.fingerprint.is_none() {
            // What must be equal for later duplicates stays as it was.
            let info = runtime.store.inspect(&request.id).await.map_err(|error| runtime.failed(&request.id, error))?;
            request.fingerprint = info.and_then(|info| info.fingerprint);
        }
        request.settings.store_failure = StoreFailure::Reject;
        if let Some(submission) = &mut request.submission {
            submission.settles = true;
        }
        match runtime.begin(&request).await? {
            Begun::Owner(owned) => Held::new(&runtime, &request, owned).settle(outcome).await,
            // Neither happens: duplicates and store failures are rejected above.
            Begun::Replay(_) | Begun::Unguarded => Ok(()),
        }
    }
}

impl<'a> Draft<'a> {
    /// Whether a key is to be computed: a disabled runtime asks nobody, so it needs none.
    #[inline]
    fn wants_key(&mut self, has_the_other: bool) -> bool {
        if self.runtime.is_none() || self.problem.is_some() {
            return false;
        }
        self.check_name();
        if has_the_other {
            self.misconfigured("it is given both a `key` and a `token`; a call has one of them");
        }
        self.problem.is_none()
    }

    fn check_name(&mut self) {
        if !is_valid_operation(&self.name) {
            self.misconfigured("its name is not valid: a name is 1 to 128 letters, digits and `_ - . / # @ +`, in segments that may be joined by `::`");
        }
    }

    /// For those who want a token: the runtime, unless it is disabled, and the operation's name.
    pub(crate) fn into_issuer(mut self) -> Result<(Option<Arc<Runtime>>, Cow<'a, str>), Error> {
        self.check_name();
        if self.id.is_some() {
            self.misconfigured("a token that is issued is a key of its own: leave `key` and `token` out");
        }
        match self.problem {
            Some(problem) => Err(problem),
            None => Ok((self.runtime, self.name)),
        }
    }

    fn misconfigured(&mut self, reason: impl Into<Arc<str>>) {
        if self.problem.is_none() {
            self.problem = Some(Error::Config { operation: (*self.name).into(), reason: reason.into() });
        }
    }

    /// What is to be done. Says nothing yet, since a future that is not polled does nothing.
    #[inline]
    pub(crate) fn prepare(mut self) -> Prepared<'a> {
        if let Some(problem) = self.problem {
            return Prepared::Refused(problem);
        }
        let Some(runtime) = self.runtime else { return Prepared::Unguarded(self.name, None) };
        // Those of the runtime were checked when it was built.
        if self.settings != runtime.settings
            && let Err(reason) = self.settings.check()
        {
            return Prepared::Refused(Error::Config { operation: (*self.name).into(), reason: reason.0 });
        }
        if self.submission.is_some() {
            // Nobody else could say whether the token counts.
            self.settings.store_failure = StoreFailure::Reject;
        }
        match (self.id, self.settings.missing_key) {
            (Some(id), _) => {
                let Self { fingerprint, submission, settings, .. } = self;
                Prepared::Guarded(runtime, Request { id, fingerprint, submission, settings })
            }
            (None, MissingKey::Run) => Prepared::Unguarded(self.name, Some(runtime)),
            (None, MissingKey::Reject) => Prepared::Refused(Error::MissingKey { operation: (*self.name).into() }),
        }
    }

    /// For those who want a record: a missing key is an error, a disabled runtime has no records.
    fn prepare_by_hand(mut self) -> Result<Option<(Arc<Runtime>, Request)>, Error> {
        self.settings.missing_key = MissingKey::Reject;
        let prepared = self.prepare();
        prepared.announce();
        match prepared {
            Prepared::Refused(error) => Err(error),
            Prepared::Unguarded(..) => Ok(None),
            Prepared::Guarded(runtime, request) => Ok(Some((runtime, request))),
        }
    }
}

impl<Q, P> fmt::Debug for Operation<'_, Q, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Draft { name, settings, id, fingerprint, problem, .. } = &self.draft;
        f.debug_struct("Operation")
            .field("name", name)
            .field("id", id)
            .field("fingerprint", fingerprint)
            .field("settings", settings)
            .field("problem", problem)
            .finish_non_exhaustive()
    }
}

/// A call that is ready to be carried out, or cannot be.
pub(crate) enum Prepared<'a> {
    Refused(Error),
    /// The operation's name is that of the events. Without a runtime it is disabled, with one the key is missing.
    Unguarded(Cow<'a, str>, Option<Arc<Runtime>>),
    Guarded(Arc<Runtime>, Request),
}

impl Prepared<'_> {
    /// Reports what there is to say of a call without a record.
    pub(crate) fn announce(&self) {
        let (decision, operation) = match self {
            Self::Refused(error @ Error::Config { .. }) => (Decision::Misconfigured, error.operation()),
            Self::Refused(error @ (Error::MissingKey { .. } | Error::MissingSubject { .. })) => {
                (Decision::RejectedMissingKey, error.operation())
            }
            Self::Unguarded(operation, Some(_)) => {
                watch::saw(Seen::Executed);
                (Decision::RanUnguarded, &**operation)
            }
            // Where there was none to ask, it was said when the call was made.
            Self::Refused(_) | Self::Unguarded(_, None) | Self::Guarded(..) => return,
        };
        Observer::decided_without_key(decision, operation);
    }
}
