//! A guarded call without the attribute, which itself is written with nothing else.

mod draft;
mod records;
mod run;
mod transaction;
mod versions;

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

pub(crate) use self::draft::Draft;
pub use self::transaction::{InTransactionPolicy, RerunWhen};
use crate::call::keeping::{Keeper, KeepsErrors, Policy, has_ours};
use crate::call::reconcile::Reconcile;
use crate::encoding::fingerprint::{Fingerprint, FingerprintError, FingerprintPart};
use crate::encoding::key::{KeyDigest, KeyPart};
use crate::error::Error;
use crate::policy::errors::{Action, ErrorAction, ErrorPolicy};
use crate::policy::settings::{Abandoned, Duplicate, InFlight, MissingKey, Settings, StoreFailure};
use crate::record::RecordId;
use crate::runtime::handle::Idempotency;
use crate::token::{AsToken, Submission};

/// One call of an operation: its key, its fingerprint, and what differs from the runtime's
/// defaults. From [`Idempotency::operation`].
///
/// Key and fingerprint are computed when they are given, once. `Q` is what it
/// [asks](Self::reconcile) of an abandoned record, and `P` its [policy](Self::errors) for errors;
/// both are `()` unless they are given.
#[must_use = "nothing happens until it is run"]
pub struct Operation<'a, Q = (), P = ()> {
    pub(crate) draft: Draft<'a>,
    question: Q,
    policy: P,
}

/// The policy of an error's type.
type ActionOf<E> = fn(&E) -> ErrorAction;

/// The policy of [`Operation::errors`]: `P` gives an `A` for each `E`.
pub struct Errors<P, E, A = ErrorAction> {
    policy: P,
    keeper: Option<Keeper<E>>,
    gives: PhantomData<fn() -> A>,
}

impl<P: Fn(&E) -> A, E, A: Action> Errors<P, E, A> {
    fn into_policy(self) -> Policy<impl Fn(&E) -> ErrorAction, E> {
        let Self { policy, keeper, .. } = self;
        Policy { action: move |error: &E| policy(error).into_action(), keeper }
    }
}

impl<P, E, A> fmt::Debug for Errors<P, E, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Errors").field("keeps", &self.keeper.is_some()).finish_non_exhaustive()
    }
}

impl Idempotency {
    /// A call of an operation, by the operation's stable name: letters, digits and `_ - . / # @ +`,
    /// in segments that may be joined by `::`, 128 bytes at most. A name that is none is
    /// [`Error::Config`](crate::Error::Config) when the call is made.
    pub fn operation<'a>(&self, name: impl Into<Cow<'a, str>>) -> Operation<'a> {
        Operation::new(self.clone(), name.into())
    }
}

impl<'a> Operation<'a> {
    #[inline]
    pub(crate) fn new(idempotency: Idempotency, name: Cow<'a, str>) -> Self {
        let runtime = idempotency.runtime;
        let settings = runtime.as_ref().map_or(Settings::DEFAULT, |runtime| runtime.settings.clone());
        let mut draft = Draft {
            runtime,
            name,
            settings,
            id: None,
            fingerprint: None,
            has_no_fingerprint: false,
            submission: None,
            versions: None,
            audit: None,
            problem: None,
        };
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

    /// Instead of a key: a token that was [issued](Self::issue) for this operation, and the subject
    /// that it was issued to. The call is the submission that the token stands for.
    ///
    /// The body runs for the first submission alone. Later ones are duplicates, as with a key. A
    /// token that is unknown, expired, forged or another's makes the call fail with
    /// [`Error::UnknownToken`], which does not tell these apart; events do. The subject is what the
    /// server knows of the caller, never a field of the form.
    ///
    /// A call with a token never runs without the store: `store_failure` is `reject`, whatever it
    /// is set to. A subject that is `None` or empty is [`Error::MissingSubject`]. The outcome is
    /// [remembered](Self::remember) for at least as long as the token was issued for.
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

    /// Sets the value that must be equal when the key comes again: the request, or a part of it.
    /// With another one, a call gets [`Error::FingerprintMismatch`].
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

    /// Says that there is nothing that must be equal when the key comes again: the key alone says
    /// all of the request. Under [`Builder::strict`](crate::Builder::strict) a call says either
    /// this or its [fingerprint](Self::fingerprint).
    #[inline]
    pub fn no_fingerprint(mut self) -> Self {
        (self.draft.fingerprint, self.draft.has_no_fingerprint) = (None, true);
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

    /// Sets how long an unsettled record protects its key, if abandoned records are
    /// [rejected](Abandoned::Reject) or [asked about](Self::reconcile). It counts from the owner's
    /// claim or last renewal. Default: 30 days. From 1 ms to 100 years; the record is never kept
    /// for less than `ttl`, `remember` and two leases.
    ///
    /// With `reject`, the first call after that runs the body, as the next attempt, with the event
    /// `hold_ended`. With `reconcile`, each call asks for as long as there is a record. It ends
    /// after twice this time, and nothing is known of the key then. A commit counts its own times.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Abandoned, Error, Idempotency, MemoryStore};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// let outcome = idempotency
    ///     .operation("payments.charge")
    ///     .key("o-1")
    ///     .abandoned(Abandoned::Reject)
    ///     .hold(Duration::from_secs(90 * 86_400))
    ///     .run(|| async { Ok::<_, Error>(42) })
    ///     .await?;
    /// # assert_eq!(outcome.into_inner(), 42);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn hold(mut self, hold: Duration) -> Self {
        self.draft.settings.set_hold(hold);
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
        self.draft.settings.set_wait(wait);
        self.draft.settings.in_flight = InFlight::Wait;
        self
    }

    /// Sets what a call does while another call with this key is in flight.
    #[inline]
    pub fn in_flight(mut self, in_flight: InFlight) -> Self {
        self.draft.settings.in_flight = in_flight;
        self
    }

    /// Sets what a duplicate gets.
    #[inline]
    pub fn duplicate(mut self, duplicate: Duplicate) -> Self {
        self.draft.settings.duplicate = duplicate;
        self
    }

    /// Sets what a call does if an earlier owner was cut off.
    #[inline]
    pub fn abandoned(mut self, abandoned: Abandoned) -> Self {
        self.draft.settings.abandoned = abandoned;
        self
    }

    /// Sets what a call does if the store cannot answer the claim.
    #[inline]
    pub fn store_failure(mut self, store_failure: StoreFailure) -> Self {
        self.draft.settings.store_failure = store_failure;
        self
    }

    /// Sets what a call does if the key is missing.
    #[inline]
    pub fn missing_key(mut self, missing_key: MissingKey) -> Self {
        self.draft.settings.missing_key = missing_key;
        self
    }

    /// Only observes this operation: its body runs whatever the record says, and the caller gets
    /// what its own body returned. What a guarded call would have decided is the event `observed`
    /// and the counter `idem_observed_total`. [`Builder::observe`](crate::Builder::observe) says it
    /// for all operations of a runtime.
    ///
    /// - The owner of the key commits and releases as always. Its body is not stopped if its lease
    ///   is lost; the commit is refused then, if another caller has claimed the key since.
    /// - Any other call runs its body at once, without a wait, and records nothing.
    ///   [`current`](crate::current) knows its key, with attempt 0.
    /// - If the store fails, the key is missing, a token is invalid or a setting is invalid, the
    ///   body runs.
    /// - A [question](Self::reconcile) is not asked. Errors are kept, released and tried again as
    ///   the policy says.
    /// - [`begin`](Self::begin) always gives a lease.
    ///
    /// A call still waits for the store's answer to its claim, so a store that is down costs it the
    /// store's time limit.
    #[inline]
    pub fn observe(mut self) -> Self {
        self.draft.settings.observes = true;
        self
    }

    /// How many attempts the key may have in all, after releases and crashes alike. An attempt
    /// whose [question](Self::reconcile) failed is not counted; one that was cut off while it asked
    /// is.
    #[inline]
    pub fn max_attempts(mut self, max_attempts: u64) -> Self {
        self.draft.settings.set_max_attempts(Some(max_attempts));
        self
    }

    /// To ask what became of the work of an owner that was cut off, before the body runs again:
    /// `Some` is committed and given, `None` runs the body. An `Err` reaches the caller, and the
    /// next call asks again, as the next attempt, which does not count towards `max_attempts`.
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

    /// Sets what becomes of the call when the body returns an error. Without this, each error is
    /// [unlisted](crate::Builder::default_error), and releases the key.
    ///
    /// A policy that returns [`ErrorAction`] may keep errors, so `E` must be
    /// `Serialize + DeserializeOwned`. One that returns [`UnkeptAction`](crate::UnkeptAction) keeps
    /// none, and requires nothing of `E`. The body must be a closure that can be called again: it
    /// must not consume its captures. [`errors_by_type`](Self::errors_by_type) uses the policy of
    /// the type.
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
    ///
    /// An error that is never kept need not be serialisable:
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, Idempotency, MemoryStore, Retry, UnkeptAction};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// let outcome = idempotency
    ///     .operation("orders.create")
    ///     .key("o-1")
    ///     .errors(|error: &Error| match error {
    ///         Error::Store { .. } => UnkeptAction::Retry(Retry::new(3)),
    ///         _ => UnkeptAction::Release,
    ///     })
    ///     .run(|| async { Ok(42) })
    ///     .await?;
    /// # assert_eq!(outcome.into_inner(), 42);
    /// # Ok(())
    /// # }
    /// ```
    pub fn errors<E, A, F>(self, policy: F) -> Operation<'a, Q, Errors<F, E, A>>
    where
        F: Fn(&E) -> A,
        A: Action<Keeps: KeepsErrors<E>>,
    {
        self.with_policy(policy, A::Keeps::keeper())
    }

    /// Sets what becomes of the call when the body returns an error, as the error's type says with
    /// [`ErrorPolicy`].
    ///
    /// `E` must be `Serialize + DeserializeOwned` if its policy keeps errors.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, ErrorAction, ErrorPolicy, Idempotency, MemoryStore, Never};
    /// # #[derive(Debug)] struct OrderError;
    /// # impl From<Error> for OrderError { fn from(_: Error) -> Self { Self } }
    /// impl ErrorPolicy for OrderError {
    ///     type Keeps = Never;
    ///     type Retries = Never;
    ///
    ///     fn action(&self) -> ErrorAction {
    ///         ErrorAction::Abandon
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), OrderError> {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// let call = idempotency.operation("orders.create").key("o-1").errors_by_type::<OrderError>();
    /// assert_eq!(call.run(|| async { Ok(42) }).await?.into_inner(), 42);
    /// # Ok(())
    /// # }
    /// ```
    pub fn errors_by_type<E>(self) -> Operation<'a, Q, Errors<ActionOf<E>, E>>
    where
        E: ErrorPolicy<Keeps: KeepsErrors<E>>,
    {
        self.with_policy(E::action as ActionOf<E>, E::Keeps::keeper())
    }

    fn with_policy<F, E, A>(self, policy: F, keeper: Option<Keeper<E>>) -> Operation<'a, Q, Errors<F, E, A>> {
        let Self { draft, question, .. } = self;
        Operation { draft, question, policy: Errors { policy, keeper, gives: PhantomData } }
    }
}

impl<Q, P, E: std::error::Error, A> Operation<'_, Q, Errors<P, E, A>> {
    /// Keeps no error that has an [`Error`] among its [sources](std::error::Error::source): the key
    /// is released, with the event `error_not_kept`.
    ///
    /// An annotated function does so by itself. A call by hand has to ask, because `errors` takes
    /// every error type. It matters if a guarded call fails outside of this body, such as in a
    /// spawned task, and its error is passed in. (One that fails inside of the body is noticed
    /// without this.) An `Error` under thiserror's `#[error(transparent)]` does not count as a
    /// source: mark that variant `#[serde(skip)]`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, ErrorAction, Idempotency, MemoryStore};
    /// # use std::fmt;
    /// #[derive(Debug, serde::Serialize, serde::Deserialize)]
    /// struct Failed {
    ///     #[serde(skip)]
    ///     because: Option<Error>,
    /// }
    /// # impl fmt::Display for Failed { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str("failed") } }
    /// # impl From<Error> for Failed { fn from(error: Error) -> Self { Self { because: Some(error) } } }
    ///
    /// impl std::error::Error for Failed {
    ///     fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
    ///         self.because.as_ref().map(|error| error as _)
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// let stock = Error::in_flight("stock.reserve", "o-1", std::time::Duration::from_secs(1)); // failed elsewhere
    /// let order = || idempotency.operation("orders.create").key("o-1");
    /// let failed = order()
    ///     .errors(|_: &Failed| ErrorAction::Keep)
    ///     .check_sources()
    ///     .run(|| async { Err::<u32, _>(Failed { because: Some(stock.clone()) }) })
    ///     .await;
    /// assert!(failed.is_err());
    /// assert_eq!(order().run(|| async { Ok::<_, Error>(42) }).await.unwrap().into_inner(), 42); // not kept
    /// # }
    /// ```
    pub fn check_sources(mut self) -> Self {
        if let Some(keeper) = &mut self.policy.keeper {
            keeper.has_ours = has_ours;
        }
        self
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
