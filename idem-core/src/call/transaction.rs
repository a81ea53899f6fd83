//! A guarded call in the caller's own transaction: the record is a row of that transaction.
//!
//! Such calls use neither leases nor flights nor the local cache. The database's locks replace the
//! lease, and nothing outside the transaction may replay an outcome that is not committed yet.

use std::error::Error as StdError;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument as _;

use crate::call::finish::Handling;
use crate::call::open_transaction::{Backoff, CommittedBy, OpenTransaction, TransactionClaim};
use crate::call::ownership::in_transaction::ClaimedInTransaction;
use crate::call::ownership::observed_in_transaction::ObservedInTransaction;
use crate::call::ownership::unguarded::UnguardedInTransaction;
use crate::call::plan::RecordPlan;
use crate::call::prepared::Prepared;
use crate::call::recorded::Recorded;
use crate::call::rejected::Rejected;
use crate::call::request::Request;
use crate::call::run::{Finished, run};
use crate::call::start::Pause;
use crate::call::transaction_body::Body;
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::observe::{self, Decision, Observer};
use crate::outcome::Outcome;
use crate::policy::errors::{ErrorAction, Then, Tries};
use crate::policy::step_settings::{CallTimes, StepSettings};
use crate::record::Origin;
use crate::runtime::Runtime;
use crate::runtime::steps::StepsToRemove;
use crate::store::{Store, Transaction, Transactions};
use crate::task::current::{AskMode, Call};
use crate::task::steps::{BegunSteps, StepScope};
use crate::task::watch::{self, Seen};

/// A transaction that meets others is run again at most so often.
const RERUNS: u32 = 20;

/// One call in a transaction.
pub(crate) struct InTransaction<'a, R, T, E, P, S> {
    pub(crate) prepared: &'a Prepared<'a>,
    pub(crate) handling: Handling<R, T, E, P>,
    pub(crate) store: PhantomData<fn() -> S>,
}

/// The result of a call.
enum TransactionOutcome<'p, T, E> {
    /// The caller commits, or the library, which then removes the steps of the call.
    Done {
        outcome: Outcome<T>,
        steps: Option<Box<BegunSteps>>,
    },
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

impl<T, E> TransactionOutcome<'_, T, E> {
    /// The result of a body that has run. If it panicked, so does this.
    fn of(finished: Finished<T, E>, steps: Option<Box<BegunSteps>>) -> Self {
        match (finished.answer.give(), finished.carried_out) {
            (_, Err(error)) => Self::Refused(error),
            (Ok(value), Ok(())) => Self::Done {
                outcome: Outcome::executed(value),
                steps,
            },
            (Err(error), Ok(())) if finished.is_error_kept => Self::Kept(error),
            (Err(error), Ok(())) => Self::Failed(error),
        }
    }
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
        self.runtime
            .reject(self.request, &Rejected::InFlight(self.left))
    }

    /// Waits until it may have ended. No transaction may be open, nor its connection in use.
    async fn wait(&self, pause: &mut Pause) {
        pause.before_waiting_again(self.attempt).await;
        self.runtime
            .wait_for(self.request, self.attempt, self.until, self.left)
            .await;
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
        match self.attempt(tx, &mut body, CommittedBy::Caller, None).await {
            // The caller may roll back, so the steps stay until they expire.
            TransactionOutcome::Done { outcome, .. } => Ok(outcome),
            TransactionOutcome::Kept(error) | TransactionOutcome::Failed(error) => Err(error),
            TransactionOutcome::Refused(error) => Err(self.handling.refuse(error)),
            TransactionOutcome::Met(lease) => Err(self.handling.refuse(lease.reject())),
        }
    }

    /// Begins transactions until one is committed, or fails for a reason of its own.
    pub(crate) async fn run<B, F>(
        &self,
        begins: &B,
        mut body: F,
        rerun: impl Fn(&E) -> bool,
    ) -> Result<Outcome<T>, E>
    where
        B: Transactions<S>,
        F: Body<B::Transaction, R>,
    {
        let committed_by = CommittedBy::Library {
            one_writer: B::ONE_WRITER,
        };
        let (mut pause, mut waits) = (Backoff::default(), Pause::default());
        // The end of a wait that goes on.
        let mut until = None;
        loop {
            pause.rounds += 1;
            let may_rerun = pause.rounds <= RERUNS;
            let failure = match begins.begin().await {
                Err(error) => error,
                Ok(mut tx) => match self
                    .attempt(&mut tx, &mut body, committed_by, until.take())
                    .await
                {
                    TransactionOutcome::Done { outcome, steps } => match B::commit(tx).await {
                        Ok(()) => {
                            self.remove_steps(steps);
                            return Ok(outcome);
                        }
                        Err(error) => error,
                    },
                    // The error is what is written, and nothing else.
                    TransactionOutcome::Kept(kept) => match B::commit(tx).await {
                        Ok(()) => return Err(kept),
                        Err(error) => error,
                    },
                    TransactionOutcome::Met(lease) => {
                        B::roll_back(tx).await;
                        lease.wait(&mut waits).await;
                        until = Some(lease.until);
                        pause.rounds -= 1;
                        continue;
                    }
                    TransactionOutcome::Failed(error) => {
                        B::roll_back(tx).await;
                        if !may_rerun || !rerun(&error) {
                            return Err(error);
                        }
                        self.runs_again(&"the body met another transaction");
                        pause.take().await;
                        continue;
                    }
                    TransactionOutcome::Refused(error) => {
                        B::roll_back(tx).await;
                        match error {
                            Error::Store { source, .. }
                                if may_rerun && is_conflict::<S, B>(&source) =>
                            {
                                source
                            }
                            error => {
                                if let Error::Store { source, .. } = &error {
                                    self.gives_up(source);
                                }
                                return Err(self.handling.refuse(error));
                            }
                        }
                    }
                },
            };
            if !may_rerun || !is_conflict::<S, B>(&failure) {
                self.gives_up(&failure);
                return Err(self.handling.refuse(self.store_failed(failure)));
            }
            self.runs_again(&failure);
            pause.take().await;
        }
    }

    /// The call in one transaction.
    async fn attempt<X, B>(
        &self,
        tx: &mut X,
        body: &mut B,
        committed_by: CommittedBy,
        until: Option<Instant>,
    ) -> TransactionOutcome<'_, T, E>
    where
        X: Transaction<S>,
        B: Body<X, R>,
    {
        self.prepared.announce();
        let (runtime, request) = match self.prepared {
            Prepared::Refused(error) => return TransactionOutcome::Refused(error.clone()),
            Prepared::Unguarded(..) | Prepared::Observed(..) => {
                return self.unguarded(tx, body).await;
            }
            Prepared::Guarded(runtime, request) => (runtime, request),
        };
        let (span, is_traced) = runtime.observer.span(&request.id);
        let store = runtime.store.of::<S>();
        if request.settings.observes {
            let Some(store) = store else {
                Observer::observed_without_key(Decision::Misconfigured, request.id.operation());
                return self.unguarded(tx, body).await;
            };
            let open = OpenTransaction::new(tx, runtime, request);
            return self
                .observe(open, body, committed_by, store)
                .instrument(span)
                .await;
        }
        async {
            let Some(store) = store else {
                return TransactionOutcome::Refused(Error::other_store::<S>(
                    request.id.operation(),
                ));
            };
            let mut open = OpenTransaction::new(tx, runtime, request);
            let (attempt, owner, from) = match open.claim(store, committed_by, until).await {
                Ok(TransactionClaim::Owner {
                    attempt,
                    owner,
                    from,
                }) => (attempt, owner, from),
                Ok(TransactionClaim::Replay(recorded)) => return self.replay(&recorded),
                Ok(TransactionClaim::Met {
                    attempt,
                    left,
                    until,
                }) => {
                    return TransactionOutcome::Met(LeaseMet {
                        runtime,
                        request,
                        attempt,
                        left,
                        until,
                    });
                }
                Err(error) => return TransactionOutcome::Refused(error),
            };
            watch::note(Seen::Executed);
            if is_traced {
                observe::span_has_attempt(attempt);
            }
            if self.handling.policy.error_codec.is_some()
                && let Err(error) = open.savepoint().await
            {
                return TransactionOutcome::Refused(open.failed(error).await);
            }
            let call = Self::call(&open, attempt, from == Origin::Abandoned);
            let steps_of = call.clone();
            let owner = ClaimedInTransaction {
                open,
                store,
                body,
                call,
                owner,
                plan: RecordPlan::Nothing,
                is_error_kept: false,
            };
            let finished = run(
                &self.handling,
                owner,
                Tries::new(runtime.unlisted),
                None::<fn(&mut _)>,
            )
            .await;
            TransactionOutcome::of(finished, steps_of.take_steps())
        }
        .instrument(span)
        .await
    }

    /// Runs the body whatever the record says, and then says what a guarded call would have done.
    async fn observe<X, B>(
        &self,
        mut open: OpenTransaction<'_, X, S>,
        body: &mut B,
        committed_by: CommittedBy,
        store: &S,
    ) -> TransactionOutcome<'_, T, E>
    where
        X: Transaction<S>,
        B: Body<X, R>,
    {
        watch::note(Seen::Executed);
        // Where the library ends the transaction, nothing of a failed body is committed with its
        // error. Where the caller does, that is up to the caller, as without `idem`.
        if !committed_by.is_caller()
            && self.handling.policy.error_codec.is_some()
            && let Err(error) = open.savepoint().await
        {
            return TransactionOutcome::Refused(open.failed(error).await);
        }
        let runtime = open.runtime;
        let call = Self::call(&open, 0, false);
        let steps_of = call.clone();
        let owner = ObservedInTransaction {
            call,
            open,
            store,
            body,
            decode: |recorded: &Recorded| drop(self.handling.decoded(recorded)),
            claimed: None,
            plan: RecordPlan::Nothing,
            is_error_kept: false,
        };
        let finished = run(
            &self.handling,
            owner,
            Tries::new(runtime.unlisted),
            None::<fn(&mut _)>,
        )
        .await;
        TransactionOutcome::of(finished, steps_of.take_steps())
    }

    /// Runs the body alone, without a record.
    async fn unguarded<X, B: Body<X, R>>(
        &self,
        tx: &mut X,
        body: &mut B,
    ) -> TransactionOutcome<'_, T, E> {
        let owner = UnguardedInTransaction { tx, body };
        let finished = run(
            &self.handling,
            owner,
            Tries::new(Then::Release),
            None::<fn(&mut _)>,
        )
        .await;
        TransactionOutcome::of(finished, None)
    }

    fn call<X: Transaction<S>>(
        open: &OpenTransaction<'_, X, S>,
        attempt: u64,
        after: bool,
    ) -> Call {
        let OpenTransaction {
            runtime, request, ..
        } = open;
        let id = request.id.clone();
        let settings = &request.settings;
        let steps = StepScope::new(
            Arc::clone(runtime),
            StepSettings::of(settings),
            CallTimes::of(settings),
            request.fingerprint,
        );
        Call::new(id, attempt, after, AskMode::Nothing, runtime.identity())
            .with_steps(steps.only_writer(X::ONE_WRITER))
    }

    fn replay(&self, recorded: &Recorded) -> TransactionOutcome<'_, T, E> {
        match self.handling.replay(recorded) {
            Ok(Ok(value)) => TransactionOutcome::Done {
                outcome: Outcome::replayed(value),
                steps: None,
            },
            Ok(Err(error)) => TransactionOutcome::Kept(error),
            Err(error) => TransactionOutcome::Refused(error),
        }
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
            runtime
                .observer
                .decided_because(Decision::StoreFailed, &request.id, 0, failure);
        }
    }

    fn remove_steps(&self, steps: Option<Box<BegunSteps>>) {
        if let (Prepared::Guarded(runtime, request), Some(steps)) = (self.prepared, steps) {
            runtime.remove_steps(StepsToRemove {
                call: request.id.clone(),
                attempt: 0,
                steps: steps.into_ids(),
                ttl: request.settings.ttl(),
                is_unsure: false,
            });
        }
    }

    fn runs_again(&self, why: &dyn std::fmt::Display) {
        if let Prepared::Guarded(runtime, request) = self.prepared {
            runtime
                .observer
                .decided_because(Decision::Retried, &request.id, 0, why);
        }
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
    std::iter::successors(first, |error| (*error).source())
        .take(MOST)
        .any(is_so)
}
