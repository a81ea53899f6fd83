//! A call that is carried out step by step.

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::call::judge::{GiveUp, StepLeft};
use crate::call::keeping::Keepable;
use crate::call::owned::{LEASE_LOST, Owned};
use crate::call::recorded::Recorded;
use crate::error::Error;
use crate::lease::term::Term;
use crate::outcome::Storable;
use crate::runtime::Runtime;
use crate::task::current;

/// The next step of a call by hand. From [`Operation::begin`](crate::Operation::begin).
///
/// No variant will be added, so you may match it without a wildcard.
#[derive(Debug)]
#[must_use = "a lease that is dropped is abandoned"]
pub enum Begin {
    /// This caller owns the key: do the work, then [commit](Lease::commit) or
    /// [release](Lease::release).
    Execute(Lease),
    /// An earlier call did the work; this is its outcome.
    Replay(Recorded),
}

/// The right to do the work of a key. It is renewed until you commit, release or drop it. If you
/// drop it, the record is abandoned when the lease ends, as after a crash.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # use idem::{Begin, Error, Idempotency, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # let idempotency = Idempotency::new(MemoryStore::new());
/// # async fn charge() -> u32 { 42 }
/// let receipt = match idempotency.operation("orders.create").key("o-1").begin().await? {
///     Begin::Execute(lease) => {
///         let receipt = tokio::select! {
///             biased;
///             () = lease.lost() => panic!("another caller may be charging now"),
///             receipt = charge() => receipt,
///         };
///         lease.commit(&receipt).await?;
///         receipt
///     }
///     Begin::Replay(recorded) => recorded.decode()?,
/// };
/// # assert_eq!(receipt, 42);
/// # Ok(())
/// # }
/// ```
#[must_use = "a lease that is dropped is abandoned"]
pub struct Lease {
    /// `None`: unguarded.
    pub(crate) guarded: Option<Box<Guard>>,
}

pub(crate) struct Guard {
    pub(crate) term: Arc<Term>,
    pub(crate) runtime: Arc<Runtime>,
    /// One step at a time, even if two tasks share the lease.
    pub(crate) held: Mutex<Owned>,
    /// Observe mode: the work continues even if the lease is lost.
    observes: bool,
}

impl Guard {
    /// Reports a step's result and returns it. In observe mode, the caller gets no error of `idem`.
    fn answered(&self, answer: Result<(), Error>) -> Result<(), Error> {
        if self.observes {
            return Ok(());
        }
        answer.inspect_err(|_| current::taint())
    }
}

impl Lease {
    pub(crate) fn new(held: Owned) -> Self {
        let term = held.term().clone();
        let runtime = held.runtime().clone();
        Self {
            guarded: Some(Box::new(Guard {
                term,
                runtime,
                held: Mutex::new(held),
                observes: false,
            })),
        }
    }

    /// Sets observe mode.
    pub(crate) fn observing(mut self, observes: bool) -> Self {
        if let Some(guarded) = &mut self.guarded {
            guarded.observes = observes;
        }
        self
    }

    /// Makes a lease that owns nothing: the runtime is disabled, or the store failed and the
    /// operation runs anyway.
    pub(crate) fn unguarded() -> Self {
        Self { guarded: None }
    }

    /// The term of the lease; `None` if nothing is held.
    pub(crate) fn term(&self) -> Option<&Arc<Term>> {
        self.guarded.as_ref().map(|guarded| &guarded.term)
    }

    /// The identity of the runtime; `None` if nothing is held.
    pub(crate) fn runtime(&self) -> Option<usize> {
        self.guarded
            .as_ref()
            .map(|guarded| guarded.runtime.identity())
    }

    /// Has the key released once the lease is dropped, unless the lease has ended.
    pub(crate) fn release_when_dropped(&mut self) {
        if let Some(guarded) = &mut self.guarded {
            guarded.held.get_mut().pend_release();
        }
    }

    /// Returns the attempt: 1 for the first claim of the key, one more for each later claim. It is
    /// also a fencing number. 0 if the call is unguarded.
    pub fn attempt(&self) -> u64 {
        self.guarded
            .as_ref()
            .map_or(0, |guarded| guarded.term.attempt)
    }

    /// Resolves when the lease is lost. The work must then stop, because another caller may begin
    /// it. Cancel safe.
    ///
    /// It checks the lease at each poll. Put it first in a `select!` with `biased`, as in the
    /// example above. Then a process that was paused for longer than its lease does not poll the
    /// work once more. In [observe mode](crate::Operation::observe) it never resolves.
    pub async fn lost(&self) {
        match &self.guarded {
            Some(guarded) if !guarded.observes => {
                let mut lost = pin!(guarded.term.lost());
                poll_fn(|context| {
                    if guarded.term.is_lost() {
                        Poll::Ready(())
                    } else {
                        lost.as_mut().poll(context)
                    }
                })
                .await;
                let Guard { term, runtime, .. } = &**guarded;
                runtime
                    .observer
                    .report(LEASE_LOST, &term.id, term.attempt, Some(&term.why_lost()));
            }
            Some(_) | None => std::future::pending().await,
        }
    }

    /// Records the outcome.
    ///
    /// # Errors
    ///
    /// [`Error::LeaseLost`] if another caller is the owner now: nothing was recorded.
    /// [`Error::Store`] if the store did not answer: the outcome may have been recorded, and you
    /// may call this again. [`Error::Codec`] if the value at the key is unreadable. If the value
    /// fails to encode, or is too large for the store, the call is recorded as done, without it,
    /// and the result is `Ok`.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped, the commit continues in the background once the lease is dropped.
    pub async fn commit<T: Storable<Via>, Via>(&self, value: &T) -> Result<(), Error> {
        match &self.guarded {
            Some(guarded) => {
                let mut held = guarded.held.lock().await;
                let outcome = held.call().guarded().writer().value(value);
                held.pend(StepLeft::Commit {
                    outcome,
                    kept_for: None,
                });
                guarded.answered(held.settle_by_hand().await)
            }
            None => Ok(()),
        }
    }

    /// Records an error as the outcome, so that duplicates get an equal error. It does what
    /// [`ErrorAction::Keep`](crate::ErrorAction::Keep) and, with a `ttl`,
    /// [`ErrorAction::KeepFor`](crate::ErrorAction::KeepFor) do. A duplicate decodes it with
    /// [`Recorded::decode_error`].
    ///
    /// # Errors
    ///
    /// Like [`commit`](Self::commit), and [`Error::Config`] if the error fails to encode: then
    /// nothing was recorded.
    ///
    /// # Cancellation safety
    ///
    /// Like [`commit`](Self::commit).
    pub async fn commit_error<E: Keepable>(
        &self,
        error: &E,
        ttl: Option<Duration>,
    ) -> Result<(), Error> {
        let Some(guarded) = &self.guarded else {
            return Ok(());
        };
        let mut held = guarded.held.lock().await;
        let encoded = held
            .call()
            .guarded()
            .writer()
            .error(error)
            .map_err(|failure| Error::Config {
                operation: guarded.term.id.name().into(),
                reason: format!("the error to keep cannot be written: {failure}").into(),
            });
        let outcome = encoded.inspect_err(|_| current::taint())?;
        held.pend(StepLeft::Commit {
            outcome: Some(outcome),
            kept_for: ttl,
        });
        guarded.answered(held.settle_by_hand().await)
    }

    /// Like [`release`](Self::release), but does nothing if that was done: another holder may have
    /// the key since.
    pub(crate) async fn release_once(&self) -> Result<(), Error> {
        let Some(guarded) = &self.guarded else {
            return Ok(());
        };
        let mut held = guarded.held.lock().await;
        if held.is_over() {
            return Ok(());
        }
        held.pend(StepLeft::GiveUp(GiveUp::Release));
        guarded.answered(held.settle_by_hand().await)
    }

    /// Releases the key, so that a later call does the work.
    ///
    /// # Errors
    ///
    /// Like [`commit`](Self::commit).
    ///
    /// # Cancellation safety
    ///
    /// Like [`commit`](Self::commit).
    pub async fn release(&self) -> Result<(), Error> {
        match &self.guarded {
            Some(guarded) => {
                let mut held = guarded.held.lock().await;
                held.pend(StepLeft::GiveUp(GiveUp::Release));
                guarded.answered(held.settle_by_hand().await)
            }
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}
