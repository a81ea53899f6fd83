//! A store that fails on demand.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use idem_core::record::{
    Claim, Claimed, Commit, Issue, Issued, Ownership, RecordId, RecordInfo, Release, Removed,
    Renewal,
};
use idem_core::store::AdminStore;
use idem_core::store::admin::{Counts, Cursor, Intervened, Intervention, Listing, Page};
use idem_core::{Store, StoreError, StoreErrorKind};
use tokio::sync::watch;

/// A step that a store carries out: a method of [`Store`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// [`Store::claim`].
    Claim,
    /// [`Store::commit`].
    Commit,
    /// [`Store::release`].
    Release,
    /// [`Store::renew`]: one step for the whole batch.
    Renew,
    /// [`Store::wait`].
    Wait,
    /// [`Store::inspect`].
    Inspect,
    /// [`Store::remove`].
    Remove,
    /// [`Store::issue`]: one step for the whole batch.
    Issue,
}

/// The fault of one call.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing: lets a script leave out a call.
    Pass,
    /// The store refuses: not carried out, and [`Refused`](StoreErrorKind::Refused).
    Refuse,
    /// The request gets lost: not carried out, and [`Unavailable`](StoreErrorKind::Unavailable).
    LoseRequest,
    /// The reply gets lost: carried out, and [`Unavailable`](StoreErrorKind::Unavailable).
    LoseReply,
    /// Not carried out, and a failure of this kind.
    Fail(StoreErrorKind),
    /// Not carried out: the store panics.
    Panic,
    /// Carried out, and then the store panics.
    PanicAfter,
    /// Carried out after this time.
    Delay(Duration),
    /// Carried out at once, and answered after this time.
    DelayReply(Duration),
    /// Carried out once the gate is open.
    Hang(Gate),
    /// Carried out at once, and answered once the gate is open.
    HangReply(Gate),
}

/// Holds a call until the test opens it. Cheap to clone; clones are the same gate.
#[derive(Debug, Clone)]
pub struct Gate {
    open: Arc<watch::Sender<bool>>,
    arrived: Arc<watch::Sender<u64>>,
}

impl Gate {
    /// A gate that is shut.
    pub fn new() -> Self {
        Self {
            open: Arc::new(watch::Sender::new(false)),
            arrived: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Lets everyone through, those that come later too.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// Waits until a call hangs at this gate, or has gone through it.
    pub async fn reached(&self) {
        at_least(&self.arrived, 1).await;
    }

    pub(crate) async fn pass(&self) {
        self.arrived.send_modify(|arrived| *arrived += 1);
        // The sender is held here, so it is not gone.
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

/// The faults of a [`FaultStore`], which a test scripts. Cheap to clone; clones script the same
/// store.
///
/// Each fault from [`next`](Self::next) applies to one call, in order. Then the one from
/// [`always`](Self::always) applies.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<[Script; 8]>);

#[derive(Debug, Default)]
struct Script {
    faults: Mutex<(VecDeque<Fault>, Option<Fault>)>,
    /// How many calls have begun.
    calls: watch::Sender<u64>,
}

impl Faults {
    /// The next call of a step for which no other fault is scripted yet has this one.
    pub fn next(&self, step: Step, fault: Fault) {
        self.script(step).faults().0.push_back(fault);
    }

    /// Each call of a step has this fault, unless one is scripted for it.
    pub fn always(&self, step: Step, fault: Fault) {
        self.script(step).faults().1 = Some(fault);
    }

    /// Removes all faults from now on. Calls that hang do so until their [`Gate`] opens; the counts
    /// stay.
    pub fn clear(&self) {
        for script in self.0.iter() {
            *script.faults() = (VecDeque::new(), None);
        }
    }

    /// How many calls of a step have begun.
    pub fn calls(&self, step: Step) -> u64 {
        *self.script(step).calls.borrow()
    }

    /// Waits until so many calls of a step have begun, counted from the beginning: to put things in
    /// order without sleeping.
    pub async fn reached(&self, step: Step, calls: u64) {
        at_least(&self.script(step).calls, calls).await;
    }

    fn script(&self, step: Step) -> &Script {
        &self.0[step as usize]
    }

    fn begin(&self, step: Step) -> Fault {
        let script = self.script(step);
        let mut faults = script.faults();
        let fault = faults
            .0
            .pop_front()
            .or_else(|| faults.1.clone())
            .unwrap_or(Fault::Pass);
        // Counted under the lock, so that who sees the count scripts the next call, not this one.
        script.calls.send_modify(|calls| *calls += 1);
        fault
    }
}

#[allow(clippy::panic, reason = "it is what the test asked for")]
fn made_to_panic(step: Step) -> ! {
    panic!("the {step:?} step was made to panic by a test")
}

impl Script {
    fn faults(&self) -> MutexGuard<'_, (VecDeque<Fault>, Option<Fault>)> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A store around another that fails as its [`Faults`] say, and otherwise is as good as the other.
///
/// # Examples
///
/// ```
/// use idem_core::{MemoryStore, StoreErrorKind};
/// use idem_testkit::{Fault, FaultStore, Step};
///
/// let store = FaultStore::new(MemoryStore::new());
/// let faults = store.faults();
/// faults.next(Step::Claim, Fault::LoseReply);
/// faults.always(Step::Renew, Fault::Fail(StoreErrorKind::Timeout));
/// // Give `store` to the runtime under test, and go on scripting through `faults`.
/// ```
///
/// Two failures that a service should be tested against:
///
/// ```
/// use idem_core::{Error, Idempotency, MemoryStore, Outcome, StoreErrorKind};
/// use idem_testkit::{Fault, FaultStore, Step};
///
/// async fn charge(idempotency: &Idempotency, order: &str) -> Result<Outcome<u64>, Error> {
///     let operation = idempotency.operation("orders.charge").key(order);
///     operation.run(async || Ok::<_, Error>(1999)).await
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// let store = FaultStore::new(MemoryStore::new());
/// let faults = store.faults();
/// let idempotency = Idempotency::new(store);
///
/// // The store is down: the body does not run.
/// faults.next(Step::Claim, Fault::Fail(StoreErrorKind::Refused));
/// let refused = charge(&idempotency, "o-1").await;
/// assert!(matches!(refused, Err(Error::Store { .. })));
///
/// // The reply to the commit gets lost: the caller has its value, and the next call replays it.
/// faults.next(Step::Commit, Fault::LoseReply);
/// assert!(!charge(&idempotency, "o-1").await?.is_replayed());
/// assert!(charge(&idempotency, "o-1").await?.is_replayed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FaultStore<S> {
    inner: S,
    faults: Faults,
}

impl<S> FaultStore<S> {
    /// Around a store, without faults.
    pub fn new(inner: S) -> Self {
        Self {
            inner,
            faults: Faults::default(),
        }
    }

    /// Its faults.
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }

    /// The store that it is around, which does not fail.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    async fn carry_out<T>(
        &self,
        step: Step,
        inner: impl Future<Output = T>,
        failed: impl FnOnce(StoreError) -> T,
    ) -> T {
        let failed = |kind| {
            failed(StoreError::new(
                kind,
                format!("the {step:?} step was made to fail by a test"),
            ))
        };
        match self.faults.begin(step) {
            Fault::Pass => inner.await,
            Fault::Refuse => failed(StoreErrorKind::Refused),
            Fault::LoseRequest => failed(StoreErrorKind::Unavailable),
            Fault::LoseReply => {
                inner.await;
                failed(StoreErrorKind::Unavailable)
            }
            Fault::Fail(kind) => failed(kind),
            Fault::Panic => made_to_panic(step),
            Fault::PanicAfter => {
                inner.await;
                made_to_panic(step)
            }
            Fault::Delay(delay) => {
                tokio::time::sleep(delay).await;
                inner.await
            }
            Fault::DelayReply(delay) => {
                let answer = inner.await;
                tokio::time::sleep(delay).await;
                answer
            }
            Fault::Hang(gate) => {
                gate.pass().await;
                inner.await
            }
            Fault::HangReply(gate) => {
                let answer = inner.await;
                gate.pass().await;
                answer
            }
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for FaultStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultStore")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S: Store> Store for FaultStore<S> {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.carry_out(Step::Claim, self.inner.claim(claim), Err)
            .await
    }

    async fn commit(&self, commit: &Commit) -> Result<Ownership, StoreError> {
        self.carry_out(Step::Commit, self.inner.commit(commit), Err)
            .await
    }

    async fn release(&self, release: &Release) -> Result<Ownership, StoreError> {
        self.carry_out(Step::Release, self.inner.release(release), Err)
            .await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Ownership, StoreError>> {
        let failed = |error: StoreError| renewals.iter().map(|_| Err(error.clone())).collect();
        self.carry_out(Step::Renew, self.inner.renew(renewals), failed)
            .await
    }

    async fn wait(&self, id: &RecordId, attempt: u64, limit: Duration) -> Result<(), StoreError> {
        self.carry_out(Step::Wait, self.inner.wait(id, attempt, limit), Err)
            .await
    }

    async fn inspect(&self, id: &RecordId) -> Result<Option<RecordInfo>, StoreError> {
        self.carry_out(Step::Inspect, self.inner.inspect(id), Err)
            .await
    }

    async fn remove(&self, id: &RecordId) -> Result<Removed, StoreError> {
        self.carry_out(Step::Remove, self.inner.remove(id), Err)
            .await
    }

    async fn issue(&self, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
        let failed = |error: StoreError| issues.iter().map(|_| Err(error.clone())).collect();
        self.carry_out(Step::Issue, self.inner.issue(issues), failed)
            .await
    }
}

/// The operators' steps have no faults.
impl<S: AdminStore> AdminStore for FaultStore<S> {
    async fn list(&self, listing: &Listing) -> Result<Page, StoreError> {
        self.inner.list(listing).await
    }

    async fn count(&self, after: Option<&Cursor>) -> Result<Option<Counts>, StoreError> {
        self.inner.count(after).await
    }

    async fn intervene(&self, intervention: &Intervention) -> Result<Intervened, StoreError> {
        self.inner.intervene(intervention).await
    }
}

pub(crate) async fn at_least(count: &watch::Sender<u64>, least: u64) {
    // The sender is held by the caller, so it is not gone.
    let _ = count.subscribe().wait_for(|count| *count >= least).await;
}
