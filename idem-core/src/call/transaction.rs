//! A guarded call in the caller's own transaction: the record is a row of that transaction.
//!
//! Such calls use neither leases nor flights nor the local cache. The database's locks replace the
//! lease, and nothing outside the transaction may replay an outcome that is not committed yet.

mod body;
mod observing;
mod open;

use std::error::Error as StdError;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument as _;

use crate::call::claiming::Pause;
use crate::call::keeping::Policy;
use crate::call::prepared::Prepared;
use crate::call::recorded::Recorded;
use crate::call::rejected::Rejected;
use crate::call::request::Request;
use crate::call::witness::Witness;
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::observe::{self, BodyWatch, Decision, Observer};
use crate::outcome::Outcome;
use crate::outcome::codec::{CodecContext, CodecFailure, caught};
use crate::policy::errors::{ErrorAction, Next, Then, Tries};
use crate::policy::settings::{keep_for, seconds};
use crate::record::{Commit, Encoded, Origin, Owner};
use crate::runtime::Runtime;
use crate::store::{Store, Transaction, Transactions};
use crate::task::current::{self, AskMode, Call};
use crate::task::unguarded;
use crate::task::watch::{self, Seen};

pub(crate) use self::body::{AnyThread, AnyThreadOnce, Body, OneThread, OneThreadOnce};
pub use self::body::{RunsAgain, TransactionBody};
use self::open::{Backoff, Began, Ends, Open};

/// A transaction that meets others is run again at most so often.
const RERUNS: u32 = 20;

/// One call in a transaction.
pub(crate) struct InTransaction<'a, R, T, E, P, S> {
    pub(crate) prepared: &'a Prepared<'a>,
    pub(crate) witness: Witness<R, T, E>,
    pub(crate) policy: Policy<P, E>,
    pub(crate) store: PhantomData<fn() -> S>,
}

/// The result of a call.
enum Ran<'p, T, E> {
    /// The caller commits.
    Done(Outcome<T>),
    /// The error is recorded, or was before: the caller commits.
    Kept(E),
    /// The body's error. Nothing is written.
    Failed(E),
    /// An error of ours. Nothing is written.
    Refused(Error),
    /// A lease holds the key, and the call may wait for it, but not in this transaction. Nothing is
    /// written.
    Met(LeaseMet<'p>),
}

/// A lease that holds the key.
struct LeaseMet<'p> {
    runtime: &'p Arc<Runtime>,
    request: &'p Request,
    attempt: u64,
    left: Duration,
    /// Until when the call may wait for it.
    until: Instant,
}

impl LeaseMet<'_> {
    fn reject(&self) -> Error {
        self.runtime.reject(self.request, &Rejected::InFlight(self.left))
    }

    /// Waits until it may have ended. No transaction may be open, nor its connection in use.
    async fn wait(&self, pause: &mut Pause) {
        pause.before_waiting_again(self.attempt).await;
        self.runtime.wait_for(self.request, self.attempt, self.until, self.left).await;
    }
}

impl<R, T, E, P, S> InTransaction<'_, R, T, E, P, S>
where
    S: Store,
    P: Fn(&E) -> ErrorAction,
{
    /// Runs the body in a transaction of the caller's.
    pub(crate) async fn run_in<X, B>(&self, tx: &mut X, mut body: B) -> Result<Outcome<T>, E>
    where
        X: Transaction<S>,
        B: Body<X, R>,
    {
        match self.attempt(tx, &mut body, Ends::Caller, None).await {
            Ran::Done(outcome) => Ok(outcome),
            Ran::Kept(error) | Ran::Failed(error) => Err(error),
            Ran::Refused(error) => Err(self.fail(error)),
            Ran::Met(lease) => Err(self.fail(lease.reject())),
        }
    }

    /// Begins transactions until one is committed, or fails for a reason of its own.
    pub(crate) async fn run<B, F>(&self, begins: &B, mut body: F, rerun: impl Fn(&E) -> bool) -> Result<Outcome<T>, E>
    where
        B: Transactions<S>,
        F: Body<B::Transaction, R>,
    {
        let ends = Ends::Library { one_writer: B::ONE_WRITER };
        let (mut pause, mut waits) = (Backoff::default(), Pause::default());
        // The end of a wait that goes on.
        let mut until = None;
        loop {
            pause.rounds += 1;
            let may_rerun = pause.rounds <= RERUNS;
            let failure = match begins.begin().await {
                Err(error) => error,
                Ok(mut tx) => match self.attempt(&mut tx, &mut body, ends, until.take()).await {
                    Ran::Done(outcome) => match B::commit(tx).await {
                        Ok(()) => return Ok(outcome),
                        Err(error) => error,
                    },
                    // The error is what is written, and nothing else.
                    Ran::Kept(kept) => match B::commit(tx).await {
                        Ok(()) => return Err(kept),
                        Err(error) => error,
                    },
                    Ran::Met(lease) => {
                        B::roll_back(tx).await;
                        lease.wait(&mut waits).await;
                        until = Some(lease.until);
                        pause.rounds -= 1;
                        continue;
                    }
                    Ran::Failed(error) => {
                        B::roll_back(tx).await;
                        if !may_rerun || !rerun(&error) {
                            return Err(error);
                        }
                        self.runs_again(&"the body met another transaction");
                        pause.take().await;
                        continue;
                    }
                    Ran::Refused(error) => {
                        B::roll_back(tx).await;
                        match error {
                            Error::Store { source, .. } if may_rerun && is_conflict::<S, B>(&source) => source,
                            error => {
                                if let Error::Store { source, .. } = &error {
                                    self.gives_up(source);
                                }
                                return Err(self.fail(error));
                            }
                        }
                    }
                },
            };
            if !may_rerun || !is_conflict::<S, B>(&failure) {
                self.gives_up(&failure);
                return Err(self.fail(self.store_failed(failure)));
            }
            self.runs_again(&failure);
            pause.take().await;
        }
    }

    /// The call in one transaction.
    async fn attempt<X, B>(&self, tx: &mut X, body: &mut B, ends: Ends, until: Option<Instant>) -> Ran<'_, T, E>
    where
        X: Transaction<S>,
        B: Body<X, R>,
    {
        self.prepared.announce();
        let (runtime, request) = match self.prepared {
            Prepared::Refused(error) => return Ran::Refused(error.clone()),
            Prepared::Unguarded(..) | Prepared::Observed(..) => return self.unguarded(tx, body).await,
            Prepared::Guarded(runtime, request) => (runtime, request),
        };
        let (span, is_traced) = runtime.observer.span(&request.id);
        let store = runtime.store.of::<S>();
        if request.settings.observes {
            let Some(store) = store else {
                Observer::observed_without_key(Decision::Misconfigured, request.id.operation());
                return self.unguarded(tx, body).await;
            };
            return self.observe(tx, body, ends, (runtime, request, store)).instrument(span).await;
        }
        async {
            let Some(store) = store else {
                return Ran::Refused(Error::other_store::<S>(request.id.operation()));
            };
            let mut open = Open::new(tx, runtime, request);
            let (attempt, owner, from) = match open.claim(store, ends, until).await {
                Ok(Began::Owner { attempt, owner, from }) => (attempt, owner, from),
                Ok(Began::Replay(recorded)) => return self.replay(&recorded),
                Ok(Began::Met { attempt, left, until }) => {
                    return Ran::Met(LeaseMet { runtime, request, attempt, left, until });
                }
                Err(error) => return Ran::Refused(error),
            };
            watch::saw(Seen::Executed);
            if is_traced {
                observe::span_has_attempt(attempt);
            }
            if self.policy.keeper.is_some()
                && let Err(error) = open.savepoint().await
            {
                return Ran::Refused(open.failed(error).await);
            }
            let call =
                Call::new(request.id.clone(), attempt, from == Origin::Abandoned, AskMode::Nothing, runtime.identity());
            open.attempt = Some(attempt);
            let watch = BodyWatch::start();
            let returned = call.around(body.run(&mut *open.tx)).await;
            watch.stop(&request.id);
            let error = match (self.witness.split)(returned) {
                Ok(value) => {
                    open.attempt = None;
                    let outcome = self.encoded(runtime, request, &call, attempt, &value);
                    return match open.commit(store, &commit_of(request, owner, attempt, outcome, None)).await {
                        Ok(()) => {
                            runtime.observer.decided(Decision::Executed, &request.id, attempt);
                            Ran::Done(Outcome::executed(value))
                        }
                        Err(error) => Ran::Refused(error),
                    };
                }
                Err(error) => error,
            };
            call.passes_on_trouble();
            let kept = self.kept(runtime, request, &call, &error);
            open.attempt = None;
            if let Some((encoded, own)) = kept {
                if let Err(error) = open.roll_back_body().await {
                    return Ran::Refused(error);
                }
                return match open.commit(store, &commit_of(request, owner, attempt, Some(encoded), own)).await {
                    Ok(()) => {
                        runtime.observer.decided(Decision::ErrorKept, &request.id, attempt);
                        Ran::Kept(error)
                    }
                    Err(error) => Ran::Refused(error),
                };
            }
            open.roll_back().await;
            runtime.observer.decided(Decision::Released, &request.id, attempt);
            Ran::Failed(error)
        }
        .instrument(span)
        .await
    }

    /// The body alone, without a record.
    async fn unguarded<X, B: Body<X, R>>(&self, tx: &mut X, body: &mut B) -> Ran<'_, T, E> {
        let returned = unguarded::unguarded(None, body.run(tx)).await;
        match (self.witness.split)(returned) {
            Ok(value) => Ran::Done(Outcome::executed(value)),
            Err(error) => Ran::Failed(error),
        }
    }

    fn replay(&self, recorded: &Recorded) -> Ran<'_, T, E> {
        let replayed = match &self.policy.keeper {
            Some(keeper) if recorded.is_error() => (keeper.decode)(recorded).map(Ran::Kept),
            _ => (self.witness.decode)(recorded).map(|value| Ran::Done(Outcome::replayed(value))),
        };
        match replayed {
            Ok(replayed) => {
                watch::saw(Seen::Replayed);
                replayed
            }
            Err(error) => Ran::Refused(error),
        }
    }

    /// The value as it is recorded; `None` if it is left out, or cannot be written.
    fn encoded(&self, runtime: &Runtime, request: &Request, call: &Call, attempt: u64, value: &T) -> Option<Encoded> {
        if call.omits_outcome() {
            return None;
        }
        let context = CodecContext::of_value(&request.id, attempt, request.type_label());
        let encoded = (self.witness.encode)(&runtime.codec, context, value).map(|encoded| request.traced(encoded));
        let not_encoded = |failure: &CodecFailure| {
            runtime.observer.decided_because(Decision::NotEncoded, &request.id, attempt, failure);
        };
        encoded.inspect_err(not_encoded).ok()
    }

    /// The error as it is recorded, and for how long if that has a time of its own; `None` if it is
    /// not kept. A panic of the policy ends the call as a panic of the body does.
    fn kept(
        &self,
        runtime: &Runtime,
        request: &Request,
        call: &Call,
        error: &E,
    ) -> Option<(Encoded, Option<Duration>)> {
        // Without a lease, nothing is left to be tried again in place or to be abandoned: both are
        // a release.
        let Next::Then(Then::Keep(own)) = Tries::new(Then::Release).next((self.policy.action)(error)) else {
            return None;
        };
        let keeper = self.policy.keeper.as_ref()?;
        let encoded = if call.is_troubled() {
            Err("a guarded call inside of it failed with an error of idem, which is never kept".into())
        } else {
            caught(|| {
                if (keeper.has_ours)(error) {
                    return Err("an error of idem is among its sources, and is never kept".into());
                }
                let context = CodecContext::of_error(&request.id, call.attempt(), request.type_label());
                (keeper.encode)(&runtime.codec, context, error)
            })
        };
        match encoded {
            Ok(encoded) => Some((request.traced(encoded), own)),
            Err(failure) => {
                runtime.observer.decided_because(Decision::ErrorNotKept, &request.id, 0, &failure);
                None
            }
        }
    }

    /// Fails with an error of ours, which a body around this call may pass on.
    fn fail(&self, error: Error) -> E {
        watch::saw(Seen::Failed);
        current::trouble();
        (self.witness.fail)(error)
    }

    /// The error of a transaction that failed before or after the call.
    fn store_failed(&self, error: StoreError) -> Error {
        match self.prepared {
            Prepared::Guarded(runtime, request) => runtime.failed(&request.id, error),
            Prepared::Unguarded(operation, _) | Prepared::Observed(operation, _) => {
                Error::store(operation, "unguarded", error)
            }
            Prepared::Refused(error) => error.clone(),
        }
    }

    /// A conflict that does not pass is one that someone should look at.
    fn gives_up(&self, failure: &StoreError) {
        if let Prepared::Guarded(runtime, request) = self.prepared
            && failure.kind() == StoreErrorKind::Conflict
        {
            runtime.observer.decided_because(Decision::StoreFailed, &request.id, 0, failure);
        }
    }

    fn runs_again(&self, why: &dyn std::fmt::Display) {
        if let Prepared::Guarded(runtime, request) = self.prepared {
            runtime.observer.decided_because(Decision::Retried, &request.id, 0, why);
        }
    }
}

/// The commit of an attempt. An error may be kept for a time of its own.
fn commit_of(request: &Request, owner: Owner, attempt: u64, outcome: Option<Encoded>, own: Option<Duration>) -> Commit {
    let settings = &request.settings;
    // With a time of its own it is remembered for no longer, but for as long as a token is valid.
    let with_own = |own| (keep_for(own), keep_for(own).max(seconds(settings.least_secs)));
    let (ttl, remember) = own.map_or((settings.ttl(), settings.remember()), with_own);
    Commit {
        id: request.id.clone(),
        owner,
        attempt,
        fingerprint: request.fingerprint,
        outcome,
        ttl,
        remember,
        as_claimed: None,
        trace: None,
    }
}

fn is_conflict<S: Store, B: Transactions<S>>(error: &StoreError) -> bool {
    sources(Some(error), B::is_conflict)
}

/// Whether it is so of an error, or of one of its sources.
pub(crate) fn sources(
    first: Option<&(dyn StdError + 'static)>,
    is_so: impl Fn(&(dyn StdError + 'static)) -> bool,
) -> bool {
    /// No chain is longer, but for one that is a circle.
    const MOST: usize = 100;
    std::iter::successors(first, |error| (*error).source()).take(MOST).any(is_so)
}
