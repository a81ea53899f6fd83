//! A guarded call without the attribute. Code that the attribute generates uses the same calls.

mod draft;
mod run;
mod sources;

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

pub(crate) use self::draft::Draft;
use crate::base::duration::IntoDuration;
use crate::call::keeping::{ErrorCodec, KeepsErrors, Policy};
use crate::call::reconcile::Reconcile;
use crate::encoding::fingerprint::{Fingerprint, FingerprintError, FingerprintPart};
use crate::encoding::key::{KeyDigest, KeyPart};
use crate::error::Error;
use crate::policy::errors::{Action, ErrorAction, ErrorPolicy};
use crate::policy::settings::{Abandoned, Duplicate, InFlight, MissingKey, Settings, StoreFailure};
use crate::record::RecordId;
use crate::runtime::handle::Idempotency;

/// One call of an operation: its key, its fingerprint, and its settings.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use idem::{Error, Idempotency, MemoryStore};
/// use std::time::Duration;
///
/// /// Charges an order once, however often it is called.
/// async fn charge(
///     idempotency: &Idempotency,
///     order: &str,
///     cents: u64,
/// ) -> Result<String, Error> {
///     let outcome = idempotency
///         .operation("orders.charge")
///         .key(order)
///         .fingerprint(&cents) // the same order with other cents is an error
///         .ttl(Duration::from_secs(86_400))
///         .run(|| async move { Ok::<_, Error>(format!("receipt for {order}")) })
///         .await?;
///     Ok(outcome.into_inner())
/// }
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() -> Result<(), Error> {
///     let idempotency = Idempotency::new(MemoryStore::new());
///     let first = charge(&idempotency, "o-1", 1999).await?;
///     assert_eq!(charge(&idempotency, "o-1", 1999).await?, first); // replayed
///
///     let other = charge(&idempotency, "o-1", 2999).await;
///     assert!(matches!(other, Err(Error::FingerprintMismatch { .. })));
///     Ok(())
/// }
/// ```
///
/// # The common calls
///
/// | to | call |
/// | --- | --- |
/// | name the call | [`Idempotency::operation`], then [`key`](Self::key) and [`fingerprint`](Self::fingerprint) |
/// | run a closure as the body | [`run`](Self::run); [`run_detached`](Self::run_detached) if a dropped caller must not stop it |
/// | claim, and work step by step | [`begin`](Self::begin) |
/// | say which errors are answers | [`errors`](Self::errors), [`errors_by_type`](Self::errors_by_type) |
/// | write rows and record in one transaction | [`transaction`](Self::transaction), [`run_in`](Self::run_in) |
/// | ask for the outcome without running anything | [`lookup`](Self::lookup) |
/// | settle or remove a record as an operator | [`settle`](Self::settle), [`release`](Self::release), [`forget`](Self::forget) |
/// | issue a one-time token | [`issue`](Self::issue), [`issue_many`](Self::issue_many) |
///
/// Every setting has a default, which [`Builder`](crate::Builder) changes for all calls.
///
/// Times are a `Duration` or a text such as `"5m"`. An invalid text is
/// [`Error::Config`](crate::Error::Config) when the call is carried out.
///
/// Key and fingerprint are computed once, when they are set. `Q` is the type of
/// [`reconcile`](Self::reconcile)'s closure, and `P` that of the [policy](Self::errors) for errors;
/// both are `()` by default.
#[must_use = "nothing happens until it is run"]
pub struct Operation<'a, Q = (), P = ()> {
    pub(crate) draft: Draft<'a>,
    question: Q,
    pub(crate) policy: P,
}

/// See [`Operation::times`].
#[doc(hidden)]
#[derive(Debug)]
pub struct Times<'a, Q, P>(Operation<'a, Q, P>);

#[doc(hidden)]
impl<'a, Q, P> Times<'a, Q, P> {
    #[inline]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.0 = self.0.ttl(ttl);
        self
    }

    #[inline]
    pub fn remember(mut self, remember: Duration) -> Self {
        self.0 = self.0.remember(remember);
        self
    }

    #[inline]
    pub fn hold(mut self, hold: Duration) -> Self {
        self.0 = self.0.hold(hold);
        self
    }

    #[inline]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.0 = self.0.lease(lease);
        self
    }

    #[inline]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.0 = self.0.wait(wait);
        self
    }

    #[inline]
    pub fn into_operation(self) -> Operation<'a, Q, P> {
        self.0
    }
}

/// The policy of an error's type.
pub(crate) type ActionOf<E> = fn(&E) -> ErrorAction;

/// The policy of [`Operation::errors`]: `P` gives an `A` for each `E`.
pub struct Errors<P, E, A = ErrorAction> {
    policy: P,
    error_codec: Option<ErrorCodec<E>>,
    gives: PhantomData<fn() -> A>,
}

impl<P: Fn(&E) -> A, E, A: Action> Errors<P, E, A> {
    pub(crate) fn into_policy(self) -> Policy<impl Fn(&E) -> ErrorAction, E> {
        let Self {
            policy,
            error_codec,
            ..
        } = self;
        Policy {
            action: move |error: &E| policy(error).into_action(),
            error_codec,
        }
    }
}

impl<P, E, A> fmt::Debug for Errors<P, E, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Errors")
            .field("keeps", &self.error_codec.is_some())
            .finish_non_exhaustive()
    }
}

impl Idempotency {
    /// Begins a call of the operation with this name.
    ///
    /// A name consists of letters, digits and `_ - . / # @ +`, in segments that may be joined by
    /// `::`. It has 1 to 128 bytes. With an invalid name, or with `idem.audit`, which is reserved,
    /// the call fails with [`Error::Config`](crate::Error::Config).
    pub fn operation<'a>(&self, name: impl Into<Cow<'a, str>>) -> Operation<'a> {
        Operation::new(self.clone(), name.into())
    }
}

impl<'a> Operation<'a> {
    #[inline]
    pub(crate) fn new(idempotency: Idempotency, name: Cow<'a, str>) -> Self {
        let runtime = idempotency.runtime;
        let settings = runtime
            .as_ref()
            .map_or(Settings::DEFAULT, |runtime| runtime.settings.clone());
        let mut draft = Draft {
            runtime,
            name,
            settings,
            id: None,
            fingerprint: None,
            has_no_fingerprint: false,
            admission: None,
            versions: None,
            audit: None,
            steps: Vec::new(),
            again: None,
            problem: None,
        };
        if let Some(problem) = draft
            .runtime
            .as_ref()
            .and_then(|runtime| runtime.config.problem.clone())
        {
            draft.misconfigured(problem.0);
        }
        Self {
            draft,
            question: (),
            policy: (),
        }
    }

    /// A call that will fail.
    pub(crate) fn failing(name: &'a str, problem: Error) -> Self {
        let mut operation = Self::new(Idempotency::disabled(), Cow::Borrowed(name));
        operation.draft.problem = Some(problem);
        operation
    }
}

/// # Key and settings
impl<'a, Q, P> Operation<'a, Q, P> {
    /// Sets the key, which identifies this call among all calls of the operation. If it has more
    /// than 256 bytes, the store has a digest of it.
    #[inline]
    pub fn key<K: KeyPart + ?Sized>(mut self, key: &K) -> Self {
        if self.draft.wants_key(self.draft.admission.is_some()) {
            self.draft.id = RecordId::encode(&self.draft.name, key);
        }
        self
    }

    /// Returns the digest by which logs and errors name the key; `None` if the key is missing.
    pub fn digest(&self) -> Option<KeyDigest> {
        self.draft.id.as_ref().map(RecordId::digest)
    }

    /// Sets the value that must be equal when the key comes again: the request, or a part of it. If
    /// it differs, the call gets [`Error::FingerprintMismatch`].
    ///
    /// The value is digested in each call: see [what that costs](Fingerprint#cost).
    #[inline]
    pub fn fingerprint<T: FingerprintPart + ?Sized>(self, value: &T) -> Self {
        self.fingerprinted(|| Fingerprint::of(value))
    }

    #[inline]
    fn fingerprinted(
        mut self,
        fingerprint: impl FnOnce() -> Result<Fingerprint, FingerprintError>,
    ) -> Self {
        if self.draft.runtime.is_some() && self.draft.problem.is_none() {
            match fingerprint() {
                Ok(fingerprint) => self.draft.fingerprint = Some(fingerprint),
                Err(error) => self.draft.misconfigured(error.to_string()),
            }
        }
        self
    }

    /// States that this operation has no fingerprint, because the key alone describes the request.
    /// [`Builder::strict`](crate::Builder::strict) requires either this or a
    /// [fingerprint](Self::fingerprint).
    #[inline]
    pub fn no_fingerprint(mut self) -> Self {
        (self.draft.fingerprint, self.draft.has_no_fingerprint) = (None, true);
        self
    }

    /// Sets how long the outcome is kept, from the commit. Default: that of the runtime, 24 hours.
    /// At least 1 ms, at most 100 years.
    #[inline]
    pub fn ttl(self, ttl: impl IntoDuration) -> Self {
        self.set("ttl", ttl, Settings::set_ttl)
    }

    /// Sets how long the store remembers, from the commit, that there was an outcome. Default: that
    /// of the runtime, as `ttl`. At least `ttl`, at most 100 years.
    #[inline]
    pub fn remember(self, remember: impl IntoDuration) -> Self {
        self.set("remember", remember, Settings::set_remember)
    }

    /// Sets how long an unsettled record protects its key, if abandoned records are
    /// [rejected](Abandoned::Reject) or [asked about](Self::reconcile). It counts from the owner's
    /// claim or last renewal. Default: 30 days. From 1 ms to 100 years; the record is never kept
    /// for less than `ttl`, `remember` and two leases.
    ///
    /// With `reject`, the first call after the hold runs the body as the next attempt, and logs
    /// `hold_ended`. With `reconcile`, each call asks for as long as the record exists. The record
    /// ends after twice the hold. After a commit, `ttl` and `remember` apply instead.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::policy::Abandoned;
    /// # use idem::{Error, Idempotency, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// let outcome = idempotency
    ///     .operation("payments.charge")
    ///     .key("o-1")
    ///     .abandoned(Abandoned::Reject)
    ///     .hold("90d")
    ///     .run(|| async { Ok::<_, Error>(42) })
    ///     .await?;
    /// # assert_eq!(outcome.into_inner(), 42);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn hold(self, hold: impl IntoDuration) -> Self {
        self.set("hold", hold, Settings::set_hold)
    }

    /// Sets how long a crashed owner blocks the key. Default: that of the runtime, 30 s. At least
    /// 100 ms, at most 100 years.
    #[inline]
    pub fn lease(self, lease: impl IntoDuration) -> Self {
        self.set("lease", lease, Settings::set_lease)
    }

    /// Waits for a call in flight, for at most this long. Default: that of the runtime, 5 s.
    #[inline]
    pub fn wait(mut self, wait: impl IntoDuration) -> Self {
        self.draft.settings.in_flight = InFlight::Wait;
        self.set("wait", wait, Settings::set_wait)
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

    /// Sets what a call does if an earlier owner was cut off. Default: that of the runtime, which
    /// runs the body again (under `strict`, rejects the call).
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

    /// Enables observe mode for this operation: its body runs whatever the record says, and the
    /// caller gets the result of its own body. The event `observed` and the counter
    /// `idem_observed_total` report what a guarded call would have decided.
    /// [`Builder::observe`](crate::Builder::observe) does this for all operations of a runtime.
    ///
    /// - The owner of the key commits and releases as always. If its lease is lost, its body
    ///   continues, and the commit is refused if another caller has claimed the key.
    /// - Any other call runs its body immediately and records nothing. [`current`](crate::current)
    ///   has its key, with attempt 0.
    /// - If the store fails, the key is missing, a token is invalid or a setting is invalid, the
    ///   body runs.
    /// - [`reconcile`](Self::reconcile) is not called. Errors are kept, released and retried as the
    ///   policy says.
    /// - [`begin`](Self::begin) always returns a lease.
    ///
    /// A call still waits for the store's answer to its claim. So if the store is down, each call
    /// takes the store's time limit longer.
    #[inline]
    pub fn observe(mut self) -> Self {
        self.draft.settings.observes = true;
        self
    }

    /// Sets how many attempts of the key may begin a body, after releases and crashes alike.
    /// Default: any number. At least 1. An attempt whose [`reconcile`](Self::reconcile) failed does
    /// not count. An attempt that was cut off during `reconcile` counts.
    #[inline]
    pub fn max_attempts(mut self, max_attempts: u64) -> Self {
        self.draft.settings.set_max_attempts(Some(max_attempts));
        self
    }

    /// Sets a closure that finds out what an earlier owner did before it was cut off. It returns a
    /// future of `Result<Option<T>, E>`, and replaces an earlier [`abandoned`](Self::abandoned). It
    /// is called before the body would run again. If it returns `Some`, that value is committed and
    /// returned. If it returns `None`, the body runs. If it returns an `Err`, the caller gets it,
    /// and the next call asks again; the attempt does not count towards `max_attempts`.
    pub fn reconcile<R, Asked>(self, reconcile: R) -> Operation<'a, Reconcile<R>, P>
    where
        R: FnOnce() -> Asked,
    {
        let Self { draft, policy, .. } = self.abandoned(Abandoned::Rerun).asks_first();
        Operation {
            draft,
            question: Reconcile(reconcile),
            policy,
        }
    }

    /// The body itself asks what became of an abandoned attempt.
    #[doc(hidden)]
    pub fn asks_first(mut self) -> Self {
        self.draft.settings.reconciles = true;
        self
    }

    /// Sets the policy for errors that the body returns. Without a policy, every error is
    /// [unlisted](crate::Builder::default_error): by default, it releases the key.
    ///
    /// A policy that returns [`ErrorAction`] may keep errors, so `E` must be `Serialize +
    /// DeserializeOwned`. A policy that returns [`UnkeptAction`](crate::policy::UnkeptAction) keeps
    /// none, and works with any `E`. With `run` and `run_detached`, the body must be a closure that
    /// can be called several times: it must not consume its captures.
    /// [`errors_by_type`](Self::errors_by_type) uses the policy of the type.
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
    /// # use idem::policy::UnkeptAction;
    /// # use idem::{Error, Idempotency, MemoryStore, Retry};
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
        self.with_policy(policy, A::Keeps::error_codec())
    }

    /// Uses the policy of the error's type, its [`ErrorPolicy`].
    ///
    /// `E` must be `Serialize + DeserializeOwned` if its policy keeps errors.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::bounds::Never;
    /// # use idem::{Error, ErrorAction, ErrorPolicy, Idempotency, MemoryStore};
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
    /// let call = idempotency
    ///     .operation("orders.create")
    ///     .key("o-1")
    ///     .errors_by_type::<OrderError>();
    /// assert_eq!(call.run(|| async { Ok(42) }).await?.into_inner(), 42);
    /// # Ok(())
    /// # }
    /// ```
    pub fn errors_by_type<E>(self) -> Operation<'a, Q, Errors<ActionOf<E>, E>>
    where
        E: ErrorPolicy<Keeps: KeepsErrors<E>>,
    {
        self.with_policy(E::action as ActionOf<E>, E::Keeps::error_codec())
    }

    fn with_policy<F, E, A>(
        self,
        policy: F,
        error_codec: Option<ErrorCodec<E>>,
    ) -> Operation<'a, Q, Errors<F, E, A>> {
        let Self {
            draft, question, ..
        } = self;
        Operation {
            draft,
            question,
            policy: Errors {
                policy,
                error_codec,
                gives: PhantomData,
            },
        }
    }
}

// Below: rustdoc shows methods in the order of the modules, and these are not the common ones.
mod look;
mod times;
mod versions;
