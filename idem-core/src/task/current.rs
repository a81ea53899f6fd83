//! Which call a body is in.
//!
//! The call follows the task. A task that a body spawns is outside of the call, unless the body is
//! `detached`.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt as _;
use uuid::Uuid;

use crate::lease::term::Term;
use crate::record::{Origin, Owner, RecordId};
use crate::runtime::Runtime;
use crate::task::companion::Companion;
use crate::task::outcome_writer::OutcomeWriter;
use crate::task::request::Request;

tokio::task_local! {
    /// Where the code that is running is.
    static AROUND: Around;
}

/// The bodies around the code that is running.
#[derive(Clone, Default)]
pub(crate) struct Around {
    /// The innermost call with a key.
    pub(crate) call: Option<Call>,
    /// How many bodies without a key are inside of that.
    pub(crate) keyless: u32,
}

impl Around {
    pub(crate) fn here() -> Self {
        AROUND.try_with(Clone::clone).unwrap_or_default()
    }

    /// That of the body of a call without a key.
    pub(crate) fn keyless() -> Self {
        let here = Self::here();
        Self {
            keyless: here.keyless + 1,
            ..here
        }
    }

    pub(crate) fn body_of(call: Call) -> Self {
        let call = Some(call);
        Self { call, keyless: 0 }
    }

    /// Runs a future there.
    pub(crate) fn run<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        AROUND.scope(self, future)
    }

    /// Whether both are in the same body.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let is_same_call = match (&self.call, &other.call) {
            (Some(one), Some(other)) => one.is(other),
            (one, other) => one.is_none() && other.is_none(),
        };
        is_same_call && self.keyless == other.keyless
    }
}

/// Returns the call whose body is running. `None` outside a body, in a task that a body spawned,
/// under [`Idempotency::disabled`](crate::Idempotency::disabled), and in a call without a key under
/// `missing_key = run`.
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
    let Around { call, keyless } = Around::here();
    call.filter(|_| keyless == 0)
}

/// Marks the body around a guarded call that fails with an error of `idem`. An error of that body
/// is not kept, because it may contain the error of `idem`.
pub(crate) fn taint() {
    if let Some(call) = innermost() {
        call.taint();
    }
}

/// Whether the body of a call with a key is running.
pub(crate) fn is_inside() -> bool {
    innermost().is_some()
}

/// The innermost call with a key whose body is running.
fn innermost() -> Option<Call> {
    Around::here().call
}

/// The call whose body is running: see [`current`].
#[derive(Clone)]
pub struct Call(Arc<Guarded>);

/// A call with a key, while its body runs.
pub(crate) struct Guarded {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) request: Request,
    pub(crate) held_by: HeldBy,
    /// Most calls have none.
    pub(crate) companion: OnceLock<Box<dyn Companion>>,
    /// The events of the body so far: [`TAINTED`] and the bits after it.
    progress: AtomicU8,
    outer: Option<Call>,
}

/// The holder of a call's record while its body runs.
pub(crate) enum HeldBy {
    /// Nobody: the body runs without a record.
    Nobody,
    /// Nobody yet: in observe mode, a call in a transaction claims its key after the body.
    Unclaimed,
    Lease {
        term: Arc<Term>,
        origin: Origin,
    },
    /// It is a row of a transaction, which may be rolled back.
    Row {
        attempt: u64,
        owner: Owner,
        origin: Origin,
        /// The address of the transaction.
        address: usize,
        /// Nobody else can write while it is open.
        is_only_writer: bool,
    },
}

/// A guarded call of the body has failed with an error of `idem`, which the body's own error may
/// contain.
pub(crate) const TAINTED: u8 = 1;
/// The body does not want its value recorded.
pub(crate) const OMITS: u8 = 1 << 1;
/// A transaction of the body has recorded the outcome, or tried to.
pub(crate) const RECORDED: u8 = 1 << 2;
/// The body has ended. Tasks that it began may still run.
const OVER: u8 = 1 << 3;
/// The body has asked what became of an earlier attempt. A later try does not ask again.
const ASKED: u8 = 1 << 4;
/// The body must ask that, and has no answer. If it fails or panics now, there will be none.
pub(crate) const UNRECONCILED: u8 = 1 << 5;
/// The body returned the result of an earlier attempt.
pub(crate) const RECONCILED: u8 = 1 << 6;

impl Call {
    /// Makes the call that a body sees. It is built in one piece: each part that is added to a call
    /// behind its pointer costs three atomic operations.
    pub(crate) fn new(runtime: &Arc<Runtime>, request: &Request, held_by: HeldBy) -> Self {
        let mut call = Guarded {
            runtime: runtime.clone(),
            request: request.clone(),
            held_by,
            companion: OnceLock::new(),
            progress: AtomicU8::new(0),
            outer: innermost(),
        };
        let reconciles = request.settings.reconciles && call.lease().is_some();
        *call.progress.get_mut() = match call.held_by {
            HeldBy::Nobody => OVER,
            // It would ask, but runs without asking.
            _ if reconciles && call.observes() => ASKED,
            _ if reconciles && call.origin() == Origin::Abandoned => UNRECONCILED,
            _ => 0,
        };
        Self(Arc::new(call))
    }

    pub(crate) fn id(&self) -> &RecordId {
        self.guarded().id()
    }

    /// The call and its record, without the methods for applications.
    pub(crate) fn guarded(&self) -> &Guarded {
        &self.0
    }

    /// The same, if the call's outcome is recorded, so that what its body does can be too.
    pub(crate) fn held(&self) -> Option<&Guarded> {
        let is_held = |guarded: &&Guarded| {
            matches!(guarded.held_by, HeldBy::Lease { .. } | HeldBy::Row { .. })
        };
        Some(self.guarded()).filter(is_held)
    }

    /// Whether this is a call around the body that is being polled, and is not over itself.
    pub(crate) fn is_around(&self) -> bool {
        innermost().is_some_and(|here| here.outwards().any(|call| call.is(self))) && !self.has(OVER)
    }

    /// This call and those around it, from the inside outwards.
    fn outwards(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |call| call.0.outer.as_ref())
    }

    /// The lease whose loss stops the body. In observe mode nothing stops it.
    pub(crate) fn stops_with(&self) -> Option<&Arc<Term>> {
        let guarded = self.guarded();
        guarded.lease().filter(|_| !guarded.observes())
    }

    /// Whether both are the same call.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The operation's name.
    pub fn operation(&self) -> &str {
        self.id().name()
    }

    /// Returns the attempt: 1 for the first claim of this key, one more for each later claim. It is
    /// also a fencing number, which a downstream system can compare. 0 if the body runs without a
    /// record: after a failure of the store (`store_failure = run`), or in observe mode.
    pub fn attempt(&self) -> u64 {
        self.guarded().attempt()
    }

    /// Returns whether the attempt before this one was cut off, so that the result of its work is
    /// unknown.
    pub fn after_abandoned(&self) -> bool {
        self.guarded().origin() == Origin::Abandoned
    }

    /// Returns a key for a call to another service, which accepts it as an idempotency key. It is
    /// the same whenever the body runs for this call's key, and differs for each name.
    ///
    /// It is a UUID (version 8), made from a digest of operation, key and name, so it does not
    /// reveal the key. It does not depend on the attempt: after a crash, the body sends the same
    /// child key again.
    ///
    /// Inside of a [step](crate::step) it is that of the step, and the same in each attempt of the
    /// call's run; after an outcome or a [`forget`](crate::Operation::forget) it is another one.
    pub fn child_key(&self, name: &str) -> String {
        let mut digest = [0; 16];
        blake3::Hasher::new_derive_key("idem 2026 child key")
            .update(self.id().as_str().as_bytes())
            .update(b" ")
            .update(name.as_bytes())
            .finalize_xof()
            .fill(&mut digest);
        Uuid::new_v8(digest).to_string()
    }

    /// Records the call as done, without the value that its body returns.
    ///
    /// Use it for values that are too large to record, or that the store must not have. The caller
    /// gets its value, and a duplicate gets [`Error::AlreadyDone`](crate::Error::AlreadyDone). It
    /// holds for this try of the body, and for a [`commit_in`](Self::commit_in) after it. Kept
    /// errors are recorded all the same.
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
        self.note(OMITS, true);
    }

    /// Whether an event of the body has happened.
    pub(crate) fn has(&self, event: u8) -> bool {
        self.0.progress.load(Ordering::Relaxed) & event != 0
    }

    /// Notes whether an event of the body has happened. Returns whether it had before.
    pub(crate) fn note(&self, event: u8, has_happened: bool) -> bool {
        let progress = &self.0.progress;
        let before = if has_happened {
            progress.fetch_or(event, Ordering::Relaxed)
        } else {
            progress.fetch_and(!event, Ordering::Relaxed)
        };
        before & event != 0
    }

    /// Whether the body must ask now what became of an earlier attempt.
    pub(crate) fn begin_reconcile(&self) -> bool {
        self.after_abandoned() && !self.note(ASKED, true)
    }

    /// Notes the answer.
    pub(crate) fn was_answered(&self, found: bool) {
        self.note(UNRECONCILED, false);
        self.note(RECONCILED, found);
    }

    /// Marks the body around this call, which gets this call's result.
    pub(crate) fn pass_on_taint(&self) {
        if let Some(outer) = self.0.outer.as_ref().filter(|_| self.has(TAINTED)) {
            outer.taint();
        }
    }

    /// Marks the nearest call that may keep its error: an unguarded one keeps nothing.
    fn taint(&self) {
        let keeps = |call: &&Self| !matches!(call.guarded().held_by, HeldBy::Nobody);
        if let Some(call) = self.outwards().find(keeps) {
            call.note(TAINTED, true);
        }
    }

    /// Runs a future as the body of this call. The call is over when the future has ended or is
    /// dropped.
    pub(crate) fn around<F: Future>(&self, body: F) -> impl Future<Output = F::Output> {
        struct Over<'a>(&'a Call);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.note(OVER, true);
            }
        }
        // The question counts for all tries.
        self.note(TAINTED | OMITS | RECORDED | OVER, false);
        if let Some(companion) = self.0.companion.get() {
            companion.begin_try();
        }
        let over = Over(self);
        // An `async` block would hold the body's future twice.
        Around::body_of(self.clone()).run(body).map(move |output| {
            drop(over);
            output
        })
    }
}

impl Guarded {
    pub(crate) fn id(&self) -> &RecordId {
        &self.request.id
    }

    /// 0 if nobody holds the record.
    pub(crate) fn attempt(&self) -> u64 {
        match &self.held_by {
            HeldBy::Nobody | HeldBy::Unclaimed => 0,
            HeldBy::Lease { term, .. } => term.attempt,
            HeldBy::Row { attempt, .. } => *attempt,
        }
    }

    /// The record that the claim found.
    pub(crate) fn origin(&self) -> Origin {
        match self.held_by {
            HeldBy::Nobody | HeldBy::Unclaimed => Origin::Nothing,
            HeldBy::Lease { origin, .. } | HeldBy::Row { origin, .. } => origin,
        }
    }

    pub(crate) fn lease(&self) -> Option<&Arc<Term>> {
        match &self.held_by {
            HeldBy::Lease { term, .. } => Some(term),
            _ => None,
        }
    }

    pub(crate) fn observes(&self) -> bool {
        self.request.settings.observes
    }

    /// Returns what encodes the outcome.
    pub(crate) fn writer(&self) -> OutcomeWriter<'_> {
        OutcomeWriter {
            runtime: &self.runtime,
            request: &self.request,
            attempt: self.attempt(),
            label: self.request.type_label(),
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("id", self.id())
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}

/// Whether a call with this key, in this runtime, would wait for itself.
pub(crate) fn is_reentrant(id: &RecordId, runtime: usize) -> bool {
    innermost().is_some_and(|here| {
        here.outwards().any(|call| {
            let is_here = call.guarded().runtime.identity() == runtime && call.id() == id;
            is_here && !call.has(OVER)
        })
    })
}
