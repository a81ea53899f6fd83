//! The handle that applications hold, and how it is made.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::background::{Background, Unfinished};
use crate::codec::{AnyCodec, Codec};
use crate::error::ConfigError;
use crate::error_policy::{ErrorAction, Then};
use crate::flight::Flights;
use crate::keeper::Keepers;
use crate::local_cache::LocalCache;
use crate::observe::Observer;
use crate::operation::Operation;
use crate::policy::{Abandoned, Duplicate, InFlight, MissingKey, Settings, StoreFailure};
use crate::store::{AnyStore, Store};
use crate::throttle::Throttle;
use crate::trace::TraceContext;
use crate::undo::Undoing;

/// A runtime: a store, the defaults of all operations, and the leases of this process.
///
/// Cheap to clone; clones are the same runtime. It needs a tokio runtime with the time driver
/// around its calls.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # use idem::{Error, Idempotency, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// let idempotency = Idempotency::new(MemoryStore::new());
///
/// let charge = || async { Ok::<_, Error>("receipt 1".to_owned()) };
/// let first = idempotency.operation("orders.charge").key("o-1").run(charge).await?;
/// let second = idempotency.operation("orders.charge").key("o-1").run(charge).await?;
/// assert!(!first.is_replayed() && second.is_replayed());
/// assert_eq!(first.into_inner(), second.into_inner());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Idempotency {
    /// `None`: disabled.
    pub(crate) runtime: Option<Arc<Runtime>>,
}

/// What is behind the handle.
pub(crate) struct Runtime {
    pub(crate) store: AnyStore,
    pub(crate) settings: Settings,
    pub(crate) codec: AnyCodec,
    pub(crate) observer: Observer,
    pub(crate) flights: Arc<Flights>,
    /// The local cache of outcomes, if enabled.
    pub(crate) cache: Option<LocalCache>,
    /// The subjects that sent too many invalid tokens, if that is limited.
    pub(crate) throttle: Option<Throttle>,
    pub(crate) keepers: Keepers,
    pub(crate) background: Arc<Background>,
    pub(crate) undoing: Arc<Undoing>,
    /// Gives the trace context of the current call, if records keep it.
    pub(crate) trace: Option<TraceContext>,
    /// Each operation must state its fingerprint.
    pub(crate) is_strict: bool,
    /// The action on unlisted errors.
    pub(crate) unlisted: Then,
    /// A setting that cannot be: every call is refused.
    pub(crate) problem: Option<ConfigError>,
}

impl Idempotency {
    /// A runtime with the built-in defaults: `ttl` a day, `lease` 30 s, `wait` 5 s.
    pub fn new(store: impl Store) -> Self {
        Self::builder(store).build()
    }

    /// A runtime with defaults of your own.
    pub fn builder(store: impl Store) -> Builder {
        Builder {
            store: AnyStore::new(store),
            settings: Settings::DEFAULT,
            codec: AnyCodec::default(),
            observer: Observer::default(),
            local_cache: 0,
            throttle: None,
            trace: None,
            strict: false,
            default_error: None,
            is_abandoned_said: false,
        }
    }

    /// A runtime that runs every body, unguarded: a switch for tests and emergencies.
    pub fn disabled() -> Self {
        Self { runtime: None }
    }

    /// Returns the lease of operations that set none of their own; `None` where this runtime is
    /// disabled.
    pub fn lease(&self) -> Option<Duration> {
        self.runtime.as_ref().map(|runtime| runtime.settings.lease)
    }

    /// Whether this runtime runs every body, unguarded.
    pub fn is_disabled(&self) -> bool {
        self.runtime.is_none()
    }

    /// A call of an operation, by the operation's stable name: letters, digits and `_ - . / # @ +`,
    /// in segments that may be joined by `::`, 128 bytes at most. A name that is none is
    /// [`Error::Config`](crate::Error::Config) when the call is made.
    pub fn operation<'a>(&self, name: impl Into<std::borrow::Cow<'a, str>>) -> Operation<'a> {
        Operation::new(self.clone(), name.into())
    }

    /// Waits for the background work of this runtime: until [detached](Operation::run_detached)
    /// bodies have ended, and every outcome and release that the store did not accept at once is
    /// accepted or given up. For the end of a process, after it has stopped taking requests. Then,
    /// or after `timeout`, the process can end.
    ///
    /// Nothing is stopped or refused: bodies that have callers are their callers' to wait for, and
    /// the runtime can be used on. New background work is waited for too.
    ///
    /// # Errors
    ///
    /// Says how much was still under way after `timeout`. It goes on as long as the process does.
    /// What is cut then is abandoned, as in a crash.
    ///
    /// # Cancellation safety
    ///
    /// Dropped, it changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use std::time::Duration;
    /// # use idem::{Idempotency, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// // The server has stopped.
    /// if let Err(unfinished) = idempotency.shutdown(Duration::from_secs(10)).await {
    ///     eprintln!("{unfinished}");
    /// }
    /// # }
    /// ```
    pub async fn shutdown(&self, timeout: Duration) -> Result<(), Unfinished> {
        match &self.runtime {
            Some(runtime) => runtime.background.finished(timeout).await,
            None => Ok(()),
        }
    }

    pub(crate) fn checked(&self) -> Result<(), ConfigError> {
        self.runtime.as_ref().and_then(|runtime| runtime.problem.clone()).map_or(Ok(()), Err)
    }
}

impl fmt::Debug for Idempotency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.runtime {
            Some(runtime) => f
                .debug_struct("Idempotency")
                .field("settings", &runtime.settings)
                .field("codec", &runtime.codec)
                .finish_non_exhaustive(),
            None => f.write_str("Idempotency(disabled)"),
        }
    }
}

impl Runtime {
    /// Identifies this runtime among others in the process.
    pub(crate) fn identity(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }
}

/// Makes an [`Idempotency`]: each setting is the default of all operations, and can be set again
/// for each.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// use std::time::Duration;
/// use idem::{Idempotency, MemoryStore};
///
/// let idempotency = Idempotency::builder(MemoryStore::new())
///     .ttl(Duration::from_secs(3_600))
///     .lease(Duration::from_secs(10))
///     .build();
/// ```
pub struct Builder {
    store: AnyStore,
    settings: Settings,
    codec: AnyCodec,
    observer: Observer,
    local_cache: usize,
    throttle: Option<(u32, Duration)>,
    trace: Option<TraceContext>,
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
    ///   `fingerprint = none` where there is none; by hand [`fingerprint`](Operation::fingerprint)
    ///   or [`no_fingerprint`](Operation::no_fingerprint). A call that states neither is
    ///   [`Error::Config`](crate::Error::Config), so the first call of an operation finds it.
    ///   `inspect`, `lookup`, `settle` and `forget` need none.
    /// - Unlisted errors [`Abandon`](ErrorAction::Abandon) the record: their outcome is unknown.
    /// - After a crash the record is not run again: [`Abandoned::Reject`].
    ///
    /// An explicit statement wins, whichever is written first:
    /// [`default_error`](Self::default_error) and [`abandoned`](Self::abandoned) of this builder,
    /// and on an operation `abandoned = rerun` or `reconcile`, and each error that is listed. A
    /// panic still releases the key.
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
    /// idempotency.operation("payments.charge").key("p-1").fingerprint(&(100, "EUR")).run(charge).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Sets the action on unlisted errors: of a function or a call without a policy, and of a
    /// variant that `#[derive(ErrorPolicy)]` finds without an action. Default:
    /// [`ErrorAction::Release`]; under [`strict`](Self::strict), [`ErrorAction::Abandon`].
    ///
    /// It is one of these two. Keeping an error or running a body again asks something of the
    /// error's type or the body's arguments, which only the function itself can say;
    /// [`build`](Self::build) refuses them. What is listed is as it is listed, `_ => release` too.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// use idem::{ErrorAction, Idempotency, MemoryStore};
    ///
    /// let idempotency = Idempotency::builder(MemoryStore::new()).default_error(ErrorAction::Abandon).build();
    /// ```
    #[must_use]
    pub fn default_error(mut self, action: ErrorAction) -> Self {
        self.default_error = Some(action);
        self
    }

    /// How long a committed outcome is kept, from the commit. Default: 24 hours. At least 1 ms.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.set_ttl(ttl);
        self
    }

    /// How long it is known, from the commit, that there was an outcome; after `ttl` a duplicate
    /// gets [`Error::AlreadyDone`](crate::Error::AlreadyDone). Default: no longer than `ttl`. Not
    /// shorter than `ttl`.
    #[must_use]
    pub fn remember(mut self, remember: Duration) -> Self {
        self.settings.set_remember(remember);
        self
    }

    /// Sets how long a silent owner keeps its key; renewed while the body runs. Default: 30 s. At
    /// least 100 ms. Make it much longer than the store's time limits: if renewal fails, the body
    /// is stopped.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.set_lease(lease);
        self
    }

    /// How long a duplicate waits for a call in flight. Default: 5 s.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.settings.set_wait(wait);
        self
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
        (self.settings.abandoned, self.is_abandoned_said) = (abandoned, true);
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

    /// How long an unsettled record protects its key, where abandoned records are rejected or asked
    /// about. Default: 30 days. See [`Operation::hold`](crate::Operation::hold).
    #[must_use]
    pub fn hold(mut self, hold: Duration) -> Self {
        self.settings.set_hold(hold);
        self
    }

    /// How many attempts a key may have in all, after releases and crashes alike. Default: any
    /// number. At least 1.
    #[must_use]
    pub fn max_attempts(mut self, max_attempts: u64) -> Self {
        self.settings.set_max_attempts(Some(max_attempts));
        self
    }

    /// Only observes, for the first days in production: every body runs, and every caller gets what
    /// its own body returned. What a guarded call would have decided is the event `observed`, with
    /// the decision in `would`, and the counter `idem_observed_total`. Default: off.
    ///
    /// Everything else happens: keys are claimed, leases renewed, outcomes committed by the call
    /// that owns the key. A call that does not become the owner (a duplicate, a mismatch, a call
    /// while another one is in flight) runs its body at once beside the record, and records
    /// nothing. So the record holds the outcome of its owner, and a call that guards finds what it
    /// would find otherwise. No call fails with an error of `idem`, a store that fails and a wrong
    /// setting included; see [`Operation::observe`](crate::Operation::observe).
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
    ///     let outcome = idempotency.operation("orders.charge").key("o-1").run(|| async { Ok::<_, Error>(receipt) }).await?;
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

    /// How outcomes are written. Default: JSON.
    #[must_use]
    pub fn codec(mut self, codec: impl Codec) -> Self {
        self.codec = AnyCodec::Other(Arc::new(codec));
        self
    }

    /// Also keeps up to `max_entries` of this process's own outcomes in memory. A duplicate in the
    /// same process then gets its answer without asking the store. Default: 0, none.
    ///
    /// An outcome stays for nine tenths of its `ttl` at most, and is given to no call with another
    /// fingerprint; one above 64 KiB is left to the store. Other processes' outcomes are read from
    /// the store each time, because their age is not known here.
    ///
    /// If *another* runtime, here or in another process, [forgets](Operation::forget) a record, or
    /// it is removed from the store by hand, it stays known here: duplicates get the old outcome
    /// until its time is over. If a store loses confirmed records (a restart without its data, a
    /// failover), this process still replays outcomes that others would run again. A
    /// [`MemoryStore`](crate::MemoryStore) is in the process already and needs no cache.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # fn example(store: impl idem::Store) {
    /// let idempotency = idem::Idempotency::builder(store).local_cache(100_000).build();
    /// # }
    /// ```
    #[must_use]
    pub fn local_cache(mut self, max_entries: usize) -> Self {
        self.local_cache = max_entries;
        self
    }

    /// Limits invalid tokens. Once a subject has sent `max` invalid tokens (unknown, forged or
    /// another's; not expired ones), each submission gets
    /// [`Error::Throttled`](crate::Error::Throttled), until `window` has passed since the first of
    /// these. Default: no limit.
    ///
    /// 128 random bits prevent guessing, with or without a limit. The limit keeps a trying client
    /// from costing the store a command each time, and makes it visible. So each process counts for
    /// itself and for each operation, without the store, and remembers the last 65,536 such
    /// subjects. Concurrent calls are not held back. The caller must not choose the subject, and
    /// other sites must not be able to send its forms (a cookie with `SameSite`). Otherwise others
    /// can lock the subject out.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use std::time::Duration;
    /// # fn example(store: impl idem::Store) {
    /// let idempotency = idem::Idempotency::builder(store).limit_token_failures(10, Duration::from_secs(60)).build();
    /// # }
    /// ```
    #[must_use]
    pub fn limit_token_failures(mut self, max: u32, window: Duration) -> Self {
        self.throttle = Some((max, window));
        self
    }

    /// Keeps the trace of the call that runs in its record: while it is in flight, if it is
    /// abandoned, and with its outcome. The event `replayed` then names it as its `detail`, and
    /// `inspect` gives it as [`RecordInfo::trace`](crate::RecordInfo::trace). Default: off.
    ///
    /// `current` is called once for each call that claims, in the call's span. It returns a
    /// `traceparent` as the W3C recommendation Trace Context has it (version 00); anything else is
    /// left out. With the feature `opentelemetry`, use `opentelemetry()` instead: it also links
    /// replays.
    ///
    /// Records with a trace are written in the third version of the format: first deploy a version
    /// of `idem` that knows it to all processes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, Idempotency, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # fn current_traceparent() -> Option<String> { Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()) }
    /// let idempotency = Idempotency::builder(MemoryStore::new()).trace_context(current_traceparent).build();
    ///
    /// let call = || idempotency.operation("orders.charge").key("o-1");
    /// call().run(|| async { Ok::<_, Error>(42) }).await?;
    /// let record = call().inspect().await?.expect("it ran");
    /// assert!(record.trace.is_some_and(|trace| trace.starts_with("00-0af7651916cd43dd8448eb211c80319c-")));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn trace_context(mut self, current: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        self.trace = Some(Arc::new(current));
        self
    }

    /// Keeps the trace of the call that runs in its record, as
    /// [`trace_context`](Self::trace_context) does, and takes it from the layer of
    /// `tracing-opentelemetry`. The span of each replay links to the span of the call that ran.
    /// Default: off.
    ///
    /// The span is `idempotent` (target `idem`, level DEBUG) or, where that is disabled, the
    /// caller's. The subscriber needs the layer of the very version of `tracing-opentelemetry` that
    /// this crate depends on (0.34): another version has no effect. A replay also links in a
    /// runtime without this setting, if the outcome has a trace.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # fn example(store: impl idem::Store) {
    /// let idempotency = idem::Idempotency::builder(store).opentelemetry().build();
    /// # }
    /// ```
    #[cfg(feature = "opentelemetry")]
    #[cfg_attr(docsrs, doc(cfg(feature = "opentelemetry")))]
    #[must_use]
    pub fn opentelemetry(self) -> Self {
        self.trace_context(crate::trace::current)
    }

    /// Writes keys into events and spans as text, instead of a digest. They may be personal data.
    /// Characters that are not printable, such as those that reverse or hide text, are
    /// percent-encoded.
    #[must_use]
    pub fn log_keys(mut self) -> Self {
        self.observer.plain_keys = true;
        self
    }

    /// The runtime. With a setting that cannot be (a `lease` of zero, `remember` shorter than
    /// `ttl`) it refuses to be installed and refuses every call, with
    /// [`Error::Config`](crate::Error::Config); [`try_build`](Self::try_build) says so at once.
    pub fn build(self) -> Idempotency {
        let problem = self.check().err();
        if let Some(problem) = &problem {
            tracing::error!(target: "idem", %problem, "the idempotency runtime refuses every call because of a setting that cannot be");
        }
        let unlisted = self.unlisted().unwrap_or(Then::Abandon);
        let Self {
            store, mut settings, codec, observer, local_cache, throttle, trace, strict, is_abandoned_said, ..
        } = self;
        if strict && !is_abandoned_said {
            settings.abandoned = Abandoned::Reject;
        }
        settings.remember_is_default = true;
        let keepers = Keepers::new(store.clone(), observer);
        let runtime = Runtime {
            undoing: Arc::new(Undoing::new(store.clone(), observer, &keepers)),
            keepers,
            cache: (local_cache > 0 && !store.is_local()).then(|| LocalCache::new(local_cache)),
            throttle: throttle.map(|(max, window)| Throttle::new(max, window)),
            flights: Arc::new(Flights::new()),
            background: Arc::default(),
            store,
            settings,
            codec,
            observer,
            trace,
            is_strict: strict,
            unlisted,
            problem,
        };
        Idempotency { runtime: Some(Arc::new(runtime)) }
    }

    /// The runtime, if its settings can be.
    ///
    /// # Errors
    ///
    /// Says which setting cannot be, and what to write.
    pub fn try_build(self) -> Result<Idempotency, ConfigError> {
        self.check()?;
        Ok(self.build())
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.throttle.is_some_and(|(max, window)| max == 0 || window.is_zero()) {
            return Err(ConfigError::new(
                "`limit_token_failures` is given a zero; allow at least one failure, in a window of some seconds or minutes",
            ));
        }
        self.unlisted()?;
        self.settings.check()
    }

    fn unlisted(&self) -> Result<Then, ConfigError> {
        match self.default_error {
            None if self.strict => Ok(Then::Abandon),
            None | Some(ErrorAction::Release) => Ok(Then::Release),
            Some(ErrorAction::Abandon) => Ok(Then::Abandon),
            Some(other) => Err(ConfigError::new(format!(
                "`default_error` is given `{other:?}`; for unlisted errors it is `ErrorAction::Release` or `ErrorAction::Abandon`; list those that are kept or retried, with `errors(..)` or `#[derive(ErrorPolicy)]`"
            ))),
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("settings", &self.settings).finish_non_exhaustive()
    }
}
