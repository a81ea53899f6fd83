//! How a runtime is made.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::duration::IntoDuration;
use crate::error::ConfigError;
use crate::lease::keeper::LeaseKeepers;
use crate::observe::{Observer, catch_user_panic};
use crate::outcome::codec::{AnyCodec, Codec};
use crate::policy::errors::{ErrorAction, Then};
use crate::policy::settings::{Abandoned, Duplicate, InFlight, MissingKey, Settings, StoreFailure};
use crate::runtime::flight::Flights;
use crate::runtime::handle::Idempotency;
use crate::runtime::trace::TraceContext;
use crate::runtime::undoing::Undoing;
use crate::runtime::{Runtime, RuntimeConfig};
use crate::store::{AnyStore, Store};

impl Idempotency {
    /// Creates a runtime with the built-in defaults: `ttl` 24 h, `lease` 30 s, `wait` 5 s.
    pub fn new(store: impl Store) -> Self {
        Self::builder(store).build()
    }

    /// Creates a builder, to set other defaults.
    pub fn builder(store: impl Store) -> Builder {
        Builder {
            store: store.into_handle().0,
            wrapped: None,
            settings: Settings::DEFAULT,
            codec: AnyCodec::default(),
            observer: Observer::default(),
            shared: Vec::new(),
            trace: None,
            checks_outcomes: false,
            profile: Profile::default(),
            problem: None,
        }
    }
}

/// Builds an [`Idempotency`]. Each setting is the default of all operations, and each operation can
/// override it.
///
/// Times are a `Duration` or a text such as `"5m"`. With an invalid text,
/// [`try_build`](Self::try_build) fails, and after [`build`](Self::build) every call is
/// [`Error::Config`](crate::Error::Config).
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use std::time::Duration;
/// use idem::{Idempotency, MemoryStore};
///
/// let idempotency = Idempotency::builder(MemoryStore::new())
///     .ttl("1h")
///     .lease(Duration::from_secs(10))
///     .build();
/// ```
pub struct Builder {
    pub(crate) store: AnyStore,
    /// The store that the runtime uses in place of that one.
    wrapped: Option<Wrapped>,
    settings: Settings,
    codec: AnyCodec,
    observer: Observer,
    shared: Vec<Arc<dyn Any + Send + Sync>>,
    trace: Option<TraceContext>,
    checks_outcomes: bool,
    profile: Profile,
    /// The first text that is not a duration.
    problem: Option<ConfigError>,
}

/// The store with that of a layer around it.
struct Wrapped {
    layer: &'static str,
    store: AnyStore,
}

/// The settings of [`Builder::strict`].
#[derive(Default)]
struct Profile {
    strict: bool,
    default_error: Option<ErrorAction>,
    /// Whether [`Builder::abandoned`] was called, whatever it was given.
    is_abandoned_said: bool,
}

impl Builder {
    /// Sets the profile for work that must not be done twice, such as payments: no default runs a
    /// body again, or returns the answer to another request.
    ///
    /// - Every operation states its fingerprint: `fingerprint = ".."` in the attribute, or
    ///   `fingerprint = none` where there is none; by hand
    ///   [`fingerprint`](crate::Operation::fingerprint) or
    ///   [`no_fingerprint`](crate::Operation::no_fingerprint). A call that states neither is
    ///   [`Error::Config`](crate::Error::Config), so the first call of an operation finds it.
    ///   `inspect`, `lookup`, `settle`, `settle_error`, `release`, `forget` and `issue` need none.
    /// - Unlisted errors [`Abandon`](ErrorAction::Abandon) the record: their outcome is unknown.
    /// - After a crash the record is not run again: [`Abandoned::Reject`].
    ///
    /// Explicit settings override the profile, in any order of the calls:
    /// [`default_error`](Self::default_error) and [`abandoned`](Self::abandoned) of this builder,
    /// and on an operation `abandoned = rerun` or `reconcile`, and each listed error. A panic still
    /// releases the key.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, Idempotency, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// let idempotency = Idempotency::builder(MemoryStore::new()).strict().build();
    ///
    /// let charge = || async { Ok::<_, Error>(42) };
    /// let careless = idempotency.operation("payments.charge").key("p-1").run(charge).await;
    /// assert!(matches!(careless, Err(Error::Config { .. })));
    ///
    /// idempotency
    ///     .operation("payments.charge")
    ///     .key("p-1")
    ///     .fingerprint(&(100, "EUR"))
    ///     .run(charge)
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn strict(mut self) -> Self {
        self.profile.strict = true;
        self
    }

    /// Sets the action on unlisted errors: of a function or a call without a policy, and of a
    /// variant that `#[derive(ErrorPolicy)]` finds without an action. Default:
    /// [`ErrorAction::Release`]; under [`strict`](Self::strict), [`ErrorAction::Abandon`].
    ///
    /// Only these two actions are possible; [`build`](Self::build) refuses others, because keeping
    /// errors and retrying bodies needs bounds on the function's types. A listed error keeps its
    /// own action, `_ => release` included.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// use idem::{ErrorAction, Idempotency, MemoryStore};
    ///
    /// let idempotency = Idempotency::builder(MemoryStore::new())
    ///     .default_error(ErrorAction::Abandon)
    ///     .build();
    /// ```
    #[must_use]
    pub fn default_error(mut self, action: ErrorAction) -> Self {
        self.profile.default_error = Some(action);
        self
    }

    /// Sets how long a committed outcome is kept, from the commit. Default: 24 hours. At least 1
    /// ms, at most 100 years.
    #[must_use]
    pub fn ttl(self, ttl: impl IntoDuration) -> Self {
        self.set("ttl", ttl, Settings::set_ttl)
    }

    /// Sets how long the store remembers, from the commit, that there was an outcome. After `ttl` a
    /// duplicate gets [`Error::AlreadyDone`](crate::Error::AlreadyDone). Default: as `ttl`. At
    /// least `ttl`, at most 100 years.
    #[must_use]
    pub fn remember(self, remember: impl IntoDuration) -> Self {
        self.set("remember", remember, Settings::set_remember)
    }

    /// Sets how long a crashed owner blocks its key. The lease is renewed while the body runs.
    /// Default: 30 s. At least 100 ms, at most 100 years. Make it much longer than the store's time
    /// limits: if renewal fails, the body is stopped.
    #[must_use]
    pub fn lease(self, lease: impl IntoDuration) -> Self {
        self.set("lease", lease, Settings::set_lease)
    }

    /// Sets how long a duplicate waits for a call in flight. Default: 5 s.
    #[must_use]
    pub fn wait(self, wait: impl IntoDuration) -> Self {
        self.set("wait", wait, Settings::set_wait)
    }

    /// Sets a time, or notes what is wrong with its text.
    fn set(
        mut self,
        name: &str,
        length: impl IntoDuration,
        set: fn(&mut Settings, Duration),
    ) -> Self {
        match length.into_duration() {
            Ok(length) => set(&mut self.settings, length),
            Err(reason) => self.note(format!("`{name}`: {reason}")),
        }
        self
    }

    /// Notes the first thing that is wrong.
    pub(crate) fn note(&mut self, reason: String) {
        self.problem.get_or_insert_with(|| ConfigError::new(reason));
    }

    /// Puts the store of a layer around the one that was given, or none. Two layers cannot: neither
    /// would see what the other one changes.
    pub(crate) fn wrap(&mut self, layer: &'static str, wrapped: Option<AnyStore>) {
        match &self.wrapped {
            Some(other) if other.layer != layer => self.note(format!(
                "`{layer}` cannot be with `{}`: each puts a store around the runtime's",
                other.layer
            )),
            _ => self.wrapped = wrapped.map(|store| Wrapped { layer, store }),
        }
    }

    /// Has the runtime keep a value of a layer, in place of an earlier one of this type.
    pub(crate) fn share<T: Any + Send + Sync>(&mut self, value: T) {
        self.shared.retain(|shared| !shared.is::<T>());
        self.shared.push(Arc::new(value));
    }

    /// Sets what a call does while another one with its key is in flight. Default: it waits.
    #[must_use]
    pub fn in_flight(mut self, in_flight: InFlight) -> Self {
        self.settings.in_flight = in_flight;
        self
    }

    /// Sets what a duplicate gets. Default: the outcome.
    #[must_use]
    pub fn duplicate(mut self, duplicate: Duplicate) -> Self {
        self.settings.duplicate = duplicate;
        self
    }

    /// Sets what a call does with an abandoned record. Default: it runs the body again.
    #[must_use]
    pub fn abandoned(mut self, abandoned: Abandoned) -> Self {
        self.settings.abandoned = abandoned;
        self.profile.is_abandoned_said = true;
        self
    }

    /// Sets what a call does if the store cannot answer its claim. Default: it fails.
    #[must_use]
    pub fn store_failure(mut self, store_failure: StoreFailure) -> Self {
        self.settings.store_failure = store_failure;
        self
    }

    /// Sets what a call without a key does. Default: it fails.
    #[must_use]
    pub fn missing_key(mut self, missing_key: MissingKey) -> Self {
        self.settings.missing_key = missing_key;
        self
    }

    /// Sets how long an unsettled record protects its key, if abandoned records are rejected or
    /// reconciled. Default: 30 days. See [`Operation::hold`](crate::Operation::hold).
    #[must_use]
    pub fn hold(self, hold: impl IntoDuration) -> Self {
        self.set("hold", hold, Settings::set_hold)
    }

    /// Sets how many attempts of a key may begin a body, after releases and crashes alike. Default:
    /// any number. At least 1.
    #[must_use]
    pub fn max_attempts(mut self, max_attempts: u64) -> Self {
        self.settings.set_max_attempts(Some(max_attempts));
        self
    }

    /// Enables observe mode, for the first days in production. Every body runs, and every caller
    /// gets the result of its own body. The event `observed` and the counter `idem_observed_total`
    /// report in `would` what a guarded call would have decided. Default: off.
    ///
    /// Keys are still claimed, leases renewed, and outcomes committed by the owner of the key. Any
    /// other call (a duplicate, a mismatch, a call while another one is in flight) runs its body
    /// immediately and records nothing. So guarding processes can share the store. No call fails
    /// with an error of `idem`, not even if the store fails or a setting is invalid, with two
    /// exceptions: a call whose transaction the database has ended
    /// ([`Error::Store`](crate::Error::Store)), and a `commit_error` of an error that fails to
    /// encode ([`Error::Config`](crate::Error::Config)). See
    /// [`Operation::observe`](crate::Operation::observe).
    ///
    /// Nothing is protected meanwhile: two bodies of one key may run at the same time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, Idempotency, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// let idempotency = Idempotency::builder(MemoryStore::new()).observe().build();
    ///
    /// for receipt in [1, 2] {
    ///     let outcome = idempotency
    ///         .operation("orders.charge")
    ///         .key("o-1")
    ///         .run(|| async { Ok::<_, Error>(receipt) })
    ///         .await?;
    ///     assert_eq!(outcome.into_inner(), receipt); // its own; the second call is reported as `would = "replayed"`
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn observe(mut self) -> Self {
        self.settings.observes = true;
        self
    }

    /// Sets how outcomes are encoded. Default: JSON.
    #[must_use]
    pub fn codec(mut self, codec: impl Codec) -> Self {
        self.codec = AnyCodec::Other(Arc::new(codec));
        self
    }

    /// Stores the trace context of the call that runs in its record: in flight, abandoned, and with
    /// its outcome. The event `replayed` then has it as its `detail`, and `inspect` returns it as
    /// [`RecordInfo::trace`](crate::RecordInfo::trace). Default: off.
    ///
    /// `current` is called once for each call that claims, in the call's span. It returns a
    /// `traceparent` of the W3C recommendation Trace Context (version 00); any other text is left
    /// out. With the feature `opentelemetry`, `opentelemetry()` does this and links replays.
    ///
    /// Records with a trace need the third version of the stored format. So first update `idem` in
    /// all processes, then enable this.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, Idempotency, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # fn current_traceparent() -> Option<String> { Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()) }
    /// let idempotency = Idempotency::builder(MemoryStore::new())
    ///     .trace_context(current_traceparent)
    ///     .build();
    ///
    /// let call = || idempotency.operation("orders.charge").key("o-1");
    /// call().run(|| async { Ok::<_, Error>(42) }).await?;
    /// let record = call().inspect().await?.expect("it ran");
    /// assert!(
    ///     record
    ///         .trace
    ///         .is_some_and(|trace| trace.starts_with("00-0af7651916cd43dd8448eb211c80319c-"))
    /// );
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn trace_context(
        mut self,
        current: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.trace = Some(Arc::new(current));
        self
    }

    /// Stores the trace context of the call that runs in its record, as
    /// [`trace_context`](Self::trace_context) does, taken from the layer of
    /// `tracing-opentelemetry`. The span of each replay links to the span of the call that ran.
    /// Default: off.
    ///
    /// The span is `idempotent` (target `idem`, level DEBUG) or, where that is disabled, the
    /// caller's. The subscriber needs the layer of the version of `tracing-opentelemetry` that this
    /// crate depends on (0.34). A layer of another version has no effect. A replay also links in a
    /// runtime without this setting, if the outcome has a trace.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// use opentelemetry::trace::TracerProvider as _;
    /// use tracing_subscriber::layer::SubscriberExt as _;
    ///
    /// # fn example(store: impl idem::Store, provider: opentelemetry_sdk::trace::SdkTracerProvider) -> Result<(), Box<dyn std::error::Error>> {
    /// let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("shop"));
    /// tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer))?;
    /// let idempotency = idem::Idempotency::builder(store).opentelemetry().build();
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "opentelemetry")]
    #[cfg_attr(docsrs, doc(cfg(feature = "opentelemetry")))]
    #[must_use]
    pub fn opentelemetry(self) -> Self {
        self.trace_context(crate::runtime::trace::current)
    }

    /// Reads back each outcome that is written, and reports one that is not read as it was written,
    /// as the event `not_read_back` with the outcome's type. Debug builds always do, and so do tests
    /// with `idem-testkit` (its feature `check-outcomes`). Other release builds do not, unless this
    /// is set, because each first execution decodes its outcome.
    ///
    /// Serde writes values that it cannot read, such as a field with `skip_serializing_if` and
    /// without `default`. Otherwise the first duplicate would find it. The check changes nothing for
    /// the caller: the body has run, and its outcome is recorded as it is. The
    /// [guide on the runtime](../idem/guide/runtime/index.html#outcomes-that-cannot-be-read-back)
    /// lists such types.
    #[must_use]
    pub fn check_outcomes(mut self) -> Self {
        self.checks_outcomes = true;
        self
    }

    /// Logs keys as text instead of digests, in events and spans. Keys may be personal data.
    /// Characters that are not printable, such as those that reverse or hide text, are
    /// percent-encoded.
    #[must_use]
    pub fn log_keys(mut self) -> Self {
        self.observer.plain_keys = true;
        self
    }

    /// Builds the runtime. If a setting is invalid (a `lease` of zero, a `remember` shorter than
    /// `ttl`), [`install`](crate::install) refuses the runtime, and every call fails with
    /// [`Error::Config`](crate::Error::Config). Use [`try_build`](Self::try_build) to get the error
    /// here.
    pub fn build(self) -> Idempotency {
        let problem = self.check().err();
        if let Some(problem) = &problem {
            catch_user_panic(|| {
                tracing::error!(target: "idem", %problem, "the idempotency runtime refuses every \
                    call because of an invalid setting");
            });
        }
        let unlisted = self.unlisted().unwrap_or(Then::Abandon);
        let Self {
            store,
            wrapped,
            mut settings,
            codec,
            observer,
            shared,
            trace,
            profile,
            checks_outcomes,
            ..
        } = self;
        if profile.strict && !profile.is_abandoned_said {
            settings.abandoned = Abandoned::Reject;
        }
        settings.times.remember_is_default = true;
        let store = wrapped.map_or(store, |wrapped| wrapped.store);
        let keepers = LeaseKeepers::new(store.clone(), observer);
        let runtime = Runtime {
            undoing: Arc::new(Undoing::new(store.clone(), observer, &keepers)),
            keepers,
            shared,
            flights: Arc::new(Flights::new()),
            background: Arc::default(),
            store,
            settings,
            config: RuntimeConfig {
                codec,
                checks_outcomes: checks_outcomes
                    || cfg!(any(debug_assertions, feature = "check-outcomes")),
                trace,
                is_strict: profile.strict,
                unlisted,
                problem,
            },
            observer,
        };
        Idempotency {
            runtime: Some(Arc::new(runtime)),
        }
    }

    /// Builds the runtime, or returns an error if a setting is invalid.
    ///
    /// # Errors
    ///
    /// The error says which setting is invalid, and what to write.
    pub fn try_build(self) -> Result<Idempotency, ConfigError> {
        self.check()?;
        Ok(self.build())
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.problem.clone().map_or(Ok(()), Err)?;
        self.unlisted()?;
        self.settings.check()
    }

    fn unlisted(&self) -> Result<Then, ConfigError> {
        match self.profile.default_error {
            None if self.profile.strict => Ok(Then::Abandon),
            None | Some(ErrorAction::Release) => Ok(Then::Release),
            Some(ErrorAction::Abandon) => Ok(Then::Abandon),
            Some(other) => Err(ConfigError::new(format!(
                "`default_error` is given `{other:?}`; for unlisted errors it is \
                 `ErrorAction::Release` or `ErrorAction::Abandon`; list those that are kept or \
                 retried, with `errors(..)` or `#[derive(ErrorPolicy)]`"
            ))),
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
