//! Which runtime a call uses, and which call a body is in.
//!
//! Both follow the task: a body that spawns a task of its own does not take them along, unless it
//! is `detached`.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt as _;
use uuid::Uuid;

use crate::codec::{CodecContext, CodecFailure};
use crate::error::{ConfigError, Error};
use crate::fingerprint::Fingerprint;
use crate::lease::Term;
use crate::observe::Decision;
use crate::outcome::Storable;
use crate::record::{Commit, Encoded, Ownership, RecordId};
use crate::runtime::{Idempotency, Runtime};
use crate::store::{Store, Transaction};
use crate::trace::CallTrace;
use crate::watch;

static INSTALLED: OnceLock<Idempotency> = OnceLock::new();

tokio::task_local! {
    static SCOPED: Idempotency;
    static CALL: Call;
    static LONGEST_WAIT: Duration;
}

/// Makes a runtime the process's default, for good.
///
/// # Errors
///
/// If there is one already, or if the runtime was built with a setting that cannot be.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # fn main() -> Result<(), idem::ConfigError> {
/// use idem::{Idempotency, MemoryStore};
///
/// idem::install(Idempotency::new(MemoryStore::new()))?;
/// assert!(idem::install(Idempotency::disabled()).is_err());
/// # Ok(())
/// # }
/// ```
pub fn install(idempotency: Idempotency) -> Result<(), ConfigError> {
    idempotency.checked()?;
    INSTALLED.set(idempotency).map_err(|_| {
        ConfigError::new(
            "an idempotency runtime is installed already; install one, at start-up, or use `idem::scope(..)`",
        )
    })
}

/// Makes a runtime the default inside one future: for tests, and for tenants.
///
/// It follows the task. A task that is spawned inside has the installed runtime again, unless it is
/// given this one.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), idem::Error> {
/// use idem::{Idempotency, MemoryStore};
///
/// let idempotency = Idempotency::new(MemoryStore::new());
/// idem::scope(idempotency, async {
///     // Annotated functions that are called here use it.
/// })
/// .await;
/// # Ok(())
/// # }
/// ```
pub async fn scope<F: Future>(idempotency: Idempotency, future: F) -> F::Output {
    SCOPED.scope(idempotency, future).await
}

/// The call whose body is running: `None` outside, in a task that a body spawned, and where a body
/// runs without its key being known (under [`Idempotency::disabled`], and with
/// `missing_key = run`).
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # use idem::{Error, Idempotency, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// let idempotency = Idempotency::new(MemoryStore::new());
/// idempotency
///     .operation("orders.create")
///     .key("o-1")
///     .run(|| async {
///         let call = idem::current().expect("inside a body");
///         assert_eq!((call.operation(), call.attempt()), ("orders.create", 1));
///         Ok::<_, Error>(())
///     })
///     .await?;
/// assert!(idem::current().is_none());
/// # Ok(())
/// # }
/// ```
pub fn current() -> Option<Call> {
    innermost().filter(|call| !call.0.hidden)
}

/// Bounds how long the guarded calls of a future wait for one in flight: a call that waits holds
/// what its caller has few of. The bodies themselves are not limited, and neither are the waits of
/// their inner calls.
pub async fn waiting_at_most<F: Future>(longest: Duration, future: F) -> F::Output {
    LONGEST_WAIT.scope(longest, future).await
}

/// How long a call waits here.
pub(crate) fn bounded_wait(wait: Duration) -> Duration {
    match LONGEST_WAIT.try_with(|longest| wait.min(*longest)) {
        Ok(bounded) if !is_inside() => bounded,
        _ => wait,
    }
}

/// A guarded call, or a step of one by hand, fails with an error of `idem`: the body around it must
/// not be kept with that inside.
pub(crate) fn trouble() {
    if let Some(call) = innermost() {
        call.trouble();
    }
}

/// Whether a body is running.
pub(crate) fn is_inside() -> bool {
    CALL.try_with(|_| ()).is_ok()
}

/// The call whose body is running, or the mark of an unguarded body inside one.
pub(crate) fn innermost() -> Option<Call> {
    CALL.try_with(Clone::clone).ok()
}

/// Runs a body that nothing guards, with its key where that is known. A call around it is not its
/// own, but is still known for what would wait for itself.
pub(crate) async fn unguarded<F: Future>(id: Option<&RecordId>, body: F) -> F::Output {
    let outer = innermost();
    let hidden = id.is_none();
    let Some(id) = id.or(outer.as_ref().map(|outer| &outer.0.id)).cloned() else {
        return if watch::is_watched() { Box::pin(watch::inside(body)).await } else { body.await };
    };
    let inner = Inner {
        id,
        hidden,
        attempt: 0,
        after_abandoned: false,
        troubled: AtomicBool::new(false),
        asks: false,
        question: AtomicU8::new(NOT_ASKED),
        omits: AtomicBool::new(false),
        recorded: AtomicBool::new(false),
        recording: None,
        over: AtomicBool::new(true),
        runtime: 0,
        outer,
    };
    CALL.scope(Call(Arc::new(inner)), body).await
}

/// The process's default runtime, if one was [installed](install).
pub fn installed() -> Option<Idempotency> {
    INSTALLED.get().cloned()
}

/// The runtime that a call without one of its own uses.
pub(crate) fn default_runtime() -> Option<Idempotency> {
    SCOPED.try_with(Clone::clone).ok().or_else(installed)
}

/// Whether that runtime is disabled.
#[inline]
pub(crate) fn is_disabled_by_default() -> bool {
    let scoped = SCOPED.try_with(Idempotency::is_disabled);
    scoped.unwrap_or_else(|_| INSTALLED.get().is_some_and(Idempotency::is_disabled))
}

/// The call whose body is running: see [`current`].
#[derive(Clone)]
pub struct Call(Arc<Inner>);

struct Inner {
    id: RecordId,
    attempt: u64,
    after_abandoned: bool,
    /// A guarded call of the body has failed with an error of `idem`.
    troubled: AtomicBool,
    /// The body asks first what became of an earlier attempt.
    asks: bool,
    /// How far the body is with asking what became of an earlier attempt.
    question: AtomicU8,
    /// The body has said that its outcome is not to be recorded.
    omits: AtomicBool,
    /// The body has had a transaction record its outcome.
    recorded: AtomicBool,
    /// What such a transaction needs; `None` where no lease holds the record.
    recording: Option<Recording>,
    /// The body has ended, though what it began may go on.
    over: AtomicBool,
    /// No call of its own: the mark of an unguarded body whose key is not known.
    hidden: bool,
    /// The address of the runtime: keys of two runtimes have nothing to do with each other.
    runtime: usize,
    outer: Option<Call>,
}

/// Whether a body asks what became of an attempt that was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    /// There is nothing that it would ask.
    Nothing,
    /// It asks before anything else.
    First,
    /// It would ask, and runs all the same.
    Skips,
}

/// No answer, nor will there be one if the body fails or panics now.
const NOT_ASKED: u8 = 0;
const ASKED: u8 = 1;
const UNKNOWN: u8 = 2;
const FOUND: u8 = 3;

impl Call {
    pub(crate) fn new(id: RecordId, attempt: u64, after_abandoned: bool, asks: Asks, runtime: usize) -> Self {
        let question = AtomicU8::new(if asks == Asks::Skips { UNKNOWN } else { NOT_ASKED });
        Self(Arc::new(Inner {
            id,
            attempt,
            after_abandoned,
            troubled: AtomicBool::new(false),
            asks: after_abandoned && asks == Asks::First,
            question,
            omits: AtomicBool::new(false),
            recorded: AtomicBool::new(false),
            recording: None,
            over: AtomicBool::new(false),
            hidden: false,
            runtime,
            outer: innermost(),
        }))
    }

    /// With what a transaction needs to record the outcome. Before the call is shared with anybody.
    pub(crate) fn recording(mut self, recording: Option<Recording>) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.recording = recording;
        }
        self
    }

    /// Whether both are the same call.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The operation's name.
    pub fn operation(&self) -> &str {
        self.0.id.operation()
    }

    /// 1 for the first claim of this key, +1 for each later one: also a fencing number, which a
    /// sink can compare. 0 where the body runs unguarded, because the store failed
    /// (`store_failure = run`).
    pub fn attempt(&self) -> u64 {
        self.0.attempt
    }

    /// Whether the attempt before this one was cut off, so that what became of its work is unknown.
    pub fn after_abandoned(&self) -> bool {
        self.0.after_abandoned
    }

    /// Returns a key for a call to a downstream service: the same each time this body runs for this
    /// key, another for each name. Send it as that service's idempotency key.
    ///
    /// It is a UUID (version 8) made from a digest of operation, key and name, so it tells nothing
    /// of the key. It does not depend on the attempt: a body that runs again after a crash sends
    /// the same key again.
    pub fn child_key(&self, name: &str) -> String {
        let mut digest = [0; 16];
        blake3::Hasher::new_derive_key("idem 2026 child key")
            .update(self.0.id.as_str().as_bytes())
            .update(b" ")
            .update(name.as_bytes())
            .finalize_xof()
            .fill(&mut digest);
        Uuid::new_v8(digest).to_string()
    }

    /// Has the call recorded as done, without the value that its body returns.
    ///
    /// For values that are too large to record, or that the store must not hold. The caller gets
    /// its value, a duplicate gets [`Error::AlreadyDone`](crate::Error::AlreadyDone). It holds for
    /// this try of the body; errors that are kept are recorded all the same.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, Idempotency, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// let export = || {
    ///     idempotency.operation("exports.create").key("e-1").run(|| async {
    ///         if let Some(call) = idem::current() {
    ///             call.omit_outcome();
    ///         }
    ///         Ok::<_, Error>("a very long text".to_owned())
    ///     })
    /// };
    /// assert_eq!(export().await.unwrap().into_inner(), "a very long text");
    /// assert!(matches!(export().await, Err(Error::AlreadyDone { .. })));
    /// # }
    /// ```
    pub fn omit_outcome(&self) {
        self.0.omits.store(true, Ordering::Relaxed);
    }

    /// Records the outcome in a transaction of the body, together with the rows that it has written
    /// there. The body then commits, and returns the value.
    ///
    /// For bodies with effects outside of the database, which a lease guards. When the transaction
    /// commits, the record is committed, and waiters wake; nothing is recorded once more when the
    /// body returns. If the transaction is rolled back, the record is still in flight, and the
    /// lease decides: return an error then, which releases the key.
    ///
    /// Commit soon: while the transaction is open it locks the record, and the lease cannot be
    /// renewed. Does nothing where the body runs unguarded.
    ///
    /// # Errors
    ///
    /// [`Error::LeaseLost`] if somebody else is the owner now, and [`Error::Store`] if the database
    /// failed. Nothing of this transaction is written then: what it has done is rolled back at
    /// once. [`Error::Config`] if the runtime has another store than the transaction's database, or
    /// if the call is [in a transaction](crate::Operation::run_in) itself.
    ///
    /// # Cancellation safety
    ///
    /// Dropped, roll the transaction back.
    ///
    /// # Examples
    ///
    /// ```ignore
    /// let mut tx = pool.begin().await?;
    /// sqlx::query("INSERT INTO payments ..").execute(&mut *tx).await?;
    /// idem::current().unwrap().commit_in(&mut tx, &receipt).await?;
    /// tx.commit().await?;
    /// Ok(receipt)
    /// ```
    pub async fn commit_in<X, S, T, Via>(&self, tx: &mut X, value: &T) -> Result<(), Error>
    where
        X: Transaction<S>,
        S: Store,
        T: Storable<Via>,
    {
        let Some(recording) = &self.0.recording else {
            if self.0.attempt == 0 {
                return Ok(());
            }
            let why = "the call is in a transaction already, which records its outcome; leave `commit_in` out";
            return Err(Error::config(self.operation(), why));
        };
        recording.commit_in(tx, value).await?;
        self.0.recorded.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether a transaction of the body has recorded the outcome, or was to.
    pub(crate) fn is_recorded(&self) -> bool {
        self.0.recorded.load(Ordering::Relaxed)
    }

    /// Whether the value is left out of the record.
    pub(crate) fn omits_outcome(&self) -> bool {
        self.0.omits.load(Ordering::Relaxed)
    }

    /// Whether the body must ask first what became of an earlier attempt, which it now does. A body
    /// that is tried again has asked.
    pub(crate) fn asks(&self) -> bool {
        let question = &self.0.question;
        self.0.after_abandoned
            && question.compare_exchange(NOT_ASKED, ASKED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// It was told.
    pub(crate) fn was_answered(&self, found: bool) {
        self.0.question.store(if found { FOUND } else { UNKNOWN }, Ordering::Relaxed);
    }

    /// Whether the body returned the result of an earlier attempt.
    pub(crate) fn is_reconciled(&self) -> bool {
        self.0.question.load(Ordering::Relaxed) == FOUND
    }

    /// The body was to ask, and was not told.
    pub(crate) fn is_unreconciled(&self) -> bool {
        self.0.asks && matches!(self.0.question.load(Ordering::Relaxed), NOT_ASKED | ASKED)
    }

    /// A guarded call of the body has failed with an error of `idem`, which may be inside of what
    /// the body returns.
    pub(crate) fn is_troubled(&self) -> bool {
        self.0.troubled.load(Ordering::Relaxed)
    }

    /// The body's result goes to the body around it.
    pub(crate) fn passes_on_trouble(&self) {
        if let Some(outer) = self.0.outer.as_ref().filter(|_| self.is_troubled()) {
            outer.trouble();
        }
    }

    /// Marks the nearest call that has a record: an unguarded one keeps nothing.
    fn trouble(&self) {
        let mut calls = std::iter::successors(Some(self), |call| call.0.outer.as_ref());
        if let Some(call) = calls.find(|call| call.0.attempt > 0) {
            call.0.troubled.store(true, Ordering::Relaxed);
        }
    }

    /// Runs a future as the body of this call, which is over when that has ended or was dropped.
    pub(crate) fn around<F: Future>(&self, body: F) -> impl Future<Output = F::Output> {
        struct Over<'a>(&'a Call);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.0.over.store(true, Ordering::Relaxed);
            }
        }
        self.0.over.store(false, Ordering::Relaxed);
        self.0.troubled.store(false, Ordering::Relaxed);
        self.0.omits.store(false, Ordering::Relaxed);
        self.0.recorded.store(false, Ordering::Relaxed);
        let over = Over(self);
        // Not awaited in an `async` block, which would hold the body's future twice.
        CALL.scope(self.clone(), body).map(move |output| {
            drop(over);
            output
        })
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("id", &self.0.id).field("attempt", &self.attempt()).finish_non_exhaustive()
    }
}

/// Whether a call of this key, in this runtime, would wait for itself.
pub(crate) fn is_reentrant(id: &RecordId, runtime: usize) -> bool {
    let is_reentrant = |call: &Call| {
        std::iter::successors(Some(call), |call| call.0.outer.as_ref())
            .any(|Call(inner)| !inner.over.load(Ordering::Relaxed) && inner.runtime == runtime && inner.id == *id)
    };
    CALL.try_with(is_reentrant).unwrap_or(false)
}

/// The task-local state that a task spawned for a body must inherit.
pub(crate) struct Inherited {
    runtime: Option<Idempotency>,
    call: Option<Call>,
}

impl Inherited {
    pub(crate) fn here() -> Self {
        Self { runtime: SCOPED.try_with(Clone::clone).ok(), call: innermost() }
    }

    pub(crate) async fn around<F: Future>(self, future: F) -> F::Output {
        match (self.runtime, self.call) {
            (Some(runtime), Some(call)) => SCOPED.scope(runtime, CALL.scope(call, future)).await,
            (Some(runtime), None) => SCOPED.scope(runtime, future).await,
            (None, Some(call)) => CALL.scope(call, future).await,
            (None, None) => future.await,
        }
    }
}

/// What the owner of a key needs to record its outcome.
pub(crate) struct Recording {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) term: Arc<Term>,
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) ttl: Duration,
    pub(crate) remember: Duration,
    /// Of the outcome's type.
    pub(crate) version: u32,
    pub(crate) trace: Option<Arc<CallTrace>>,
}

impl Recording {
    /// Writes the outcome in a transaction, if the record still is the owner's. If it is not,
    /// nothing of the transaction is ever written.
    pub(crate) async fn commit_in<X, S, T, Via>(&self, tx: &mut X, value: &T) -> Result<(), Error>
    where
        X: Transaction<S>,
        S: Store,
        T: Storable<Via>,
    {
        let encoded =
            self.runtime.codec.encode(CodecContext::of_value(&self.term.id, self.term.attempt), &value.to_stored());
        let encoded = encoded.map(|mut encoded| {
            if let Some(trace) = &self.trace {
                trace.add_to(&mut encoded);
            }
            encoded.of_version(self.version)
        });
        self.try_commit_in(tx, encoded).await.inspect_err(|_| trouble())
    }

    async fn try_commit_in<X, S>(&self, tx: &mut X, encoded: Result<Encoded, CodecFailure>) -> Result<(), Error>
    where
        X: Transaction<S>,
        S: Store,
    {
        let Self { runtime, term, fingerprint, ttl, remember, .. } = self;
        let Some(store) = runtime.store.of::<S>() else {
            return Err(Error::other_store::<S>(term.id.operation()));
        };
        let not_encoded = |failure: &CodecFailure| {
            runtime.observer.decided_because(Decision::NotEncoded, &term.id, term.attempt, failure);
        };
        let commit = Commit {
            id: term.id.clone(),
            owner: term.owner,
            attempt: term.attempt,
            fingerprint: *fingerprint,
            outcome: encoded.inspect_err(not_encoded).ok(),
            ttl: *ttl,
            remember: *remember,
            as_claimed: None,
            trace: None,
        };
        match tx.commit(store, &commit).await {
            Ok(Ownership::Held) => Ok(()),
            Ok(Ownership::Lost) => {
                // Where even this fails, the connection is lost, and with it the transaction.
                let _ = tx.doom().await;
                let why = "the transaction that was to record it is rolled back";
                runtime.observer.decided_because(Decision::CommitRefused, &term.id, term.attempt, &why);
                Err(term.lost_error())
            }
            Err(error) => {
                let _ = tx.doom().await;
                Err(runtime.failed(&term.id, error))
            }
        }
    }
}
