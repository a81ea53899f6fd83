//! A guarded call in the caller's own transaction: the record is a row of that transaction.
//!
//! Such calls use neither leases nor flights nor the local cache. The database's locks replace the
//! lease, and nothing outside the transaction may replay an outcome that is not committed yet.

use std::error::Error as StdError;
use std::fmt::Display;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::FutureExt as _;
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::base::clock;
use crate::call::body;
use crate::call::holder::unstopped;
use crate::call::in_transaction::ClaimAfterBody;
use crate::call::judge::{Answer, Ending, Handling, RETRIED, StepLeft, give};
use crate::call::open_transaction::{
    BegunClaim, ClaimedRow, CommittedBy, LeaseMet, OpenTransaction, PAUSES, TransactionClaim,
    TransactionStart, begin_claiming,
};
use crate::call::prepared::{MISCONFIGURED, Prepared};
use crate::call::recorded::Recorded;
use crate::call::start::Pause;
use crate::call::transaction_body::Body;
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::observe::{self, Observer};
use crate::outcome::Outcome;
use crate::policy::errors::{ErrorAction, Then};
use crate::record::{Claimed, RecordId};
use crate::runtime::Runtime;
use crate::runtime::rejected::{Rejected, STORE_FAILED};
use crate::store::{Store, Transaction, Transactions};
use crate::task::current::{self, Around, Call, Guarded, HeldBy};
use crate::task::request::Request;
use crate::task::watch::{self, Seen};

/// How often a transaction with a conflict is run again.
const RERUNS: u32 = 20;

/// One call in a transaction.
pub(crate) struct InTransaction<'a, R, T, E, P, S> {
    pub(crate) prepared: &'a Prepared<'a>,
    pub(crate) handling: Handling<R, T, E, P>,
    pub(crate) store: PhantomData<fn() -> S>,
}

/// The result of a call in one transaction.
enum TransactionOutcome<'p, T, E> {
    /// The caller commits, or the library does. Then the steps of the call are of no use.
    Done {
        outcome: Outcome<T>,
        steps: Vec<RecordId>,
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
    /// The result of a body that has run. If it panicked, so does this. Whether its error is
    /// recorded was `carried_out`.
    fn of(answer: Answer<T, E>, carried_out: Result<bool, Error>, call: Option<&Call>) -> Self {
        if let (Ok(Err(_)), Some(call)) = (&answer, call) {
            // The error goes to the body around this call.
            Call::pass_on_taint(call);
        }
        match (give(answer), carried_out) {
            (_, Err(error)) => Self::Refused(error),
            (Ok(value), Ok(_)) => Self::Done {
                outcome: Outcome::executed(value),
                steps: call
                    .and_then(Call::steps)
                    .map(Guarded::take_steps)
                    .unwrap_or_default(),
            },
            (Err(error), Ok(true)) => Self::Kept(error),
            (Err(error), Ok(false)) => Self::Failed(error),
        }
    }
}

/// The end of a transaction that the library began.
enum TransactionEnd<'p, T, E> {
    /// It is committed.
    Committed {
        /// What the caller gets.
        result: Result<Outcome<T>, E>,
        /// The steps of the call, which are of no use any more.
        steps: Vec<RecordId>,
    },
    /// It is rolled back: the body returned this error.
    Failed(E),
    /// It is rolled back: the call could not run its body, or not record its outcome.
    Refused(Error),
    /// It is rolled back, because a lease holds the key.
    Met(LeaseMet<'p>),
    /// It could not begin or commit.
    StoreFailed(StoreError),
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
        match self
            .attempt(tx, &mut body, TransactionStart::OF_CALLER)
            .await
        {
            // Whether the caller commits is not seen, so the steps are left to expire.
            TransactionOutcome::Done { outcome, .. } => Ok(outcome),
            TransactionOutcome::Kept(error) | TransactionOutcome::Failed(error) => Err(error),
            TransactionOutcome::Refused(error) => Err(self.handling.refuse(error)),
            TransactionOutcome::Met(lease) => Err(self.handling.refuse(lease.reject())),
        }
    }

    /// Begins transactions until one is committed, or fails for another reason than a conflict.
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
        let mut rounds = 0;
        let mut pauses = PAUSES;
        let mut waits = Pause::new();
        // The end of a wait that continues in the next transaction.
        let mut until = None;
        loop {
            rounds += 1;
            let may_rerun = rounds <= RERUNS;
            let end = self
                .in_one_transaction(begins, &mut body, committed_by, until.take())
                .await;
            match end {
                TransactionEnd::Committed { result, steps } => {
                    if let Prepared::Guarded(runtime, request) = self.prepared {
                        runtime.remove_steps(&request.id, 0, steps);
                    }
                    return result;
                }
                TransactionEnd::Met(met) => {
                    met.wait(&mut waits).await;
                    until = Some(met.until);
                    // A wait is no conflict, so it does not count.
                    rounds -= 1;
                    continue;
                }
                TransactionEnd::Failed(error) => {
                    if !may_rerun || !rerun(&error) {
                        return Err(error);
                    }
                    self.runs_again(&"the body met another transaction");
                }
                TransactionEnd::Refused(Error::Store { source, .. })
                    if may_rerun && is_conflict::<S, B>(&source) =>
                {
                    self.runs_again(&source);
                }
                TransactionEnd::Refused(error) => {
                    if let Error::Store { source, .. } = &error {
                        self.gives_up(source);
                    }
                    return Err(self.handling.refuse(error));
                }
                TransactionEnd::StoreFailed(failure) => {
                    if !may_rerun || !is_conflict::<S, B>(&failure) {
                        self.gives_up(&failure);
                        return Err(self.handling.refuse(self.store_failed(failure)));
                    }
                    self.runs_again(&failure);
                }
            }
            tokio::time::sleep(pauses.next_pause()).await;
        }
    }

    /// Begins a transaction, makes the call in it, and ends it.
    async fn in_one_transaction<B, F>(
        &self,
        begins: &B,
        body: &mut F,
        committed_by: CommittedBy,
        until: Option<Instant>,
    ) -> TransactionEnd<'_, T, E>
    where
        B: Transactions<S>,
        F: Body<B::Transaction, R>,
    {
        if let Prepared::Refused(error) = self.prepared {
            // Before it would wait for the writer's lock.
            self.prepared.announce();
            return TransactionEnd::Refused(error.clone());
        }
        if let Some(end) = self.recorded_before(begins).await {
            return end;
        }
        match self.begin(begins).await {
            Err(error) => TransactionEnd::StoreFailed(error),
            Ok((mut tx, begun)) => {
                let start = TransactionStart {
                    committed_by,
                    until,
                    begun,
                };
                let outcome = self.attempt(&mut tx, body, start).await;
                end_transaction::<S, B, T, E>(tx, outcome).await
            }
        }
    }

    async fn begin<B: Transactions<S>>(
        &self,
        begins: &B,
    ) -> Result<(B::Transaction, Option<BegunClaim>), StoreError> {
        if let Some((runtime, request, store)) = self.unchecked() {
            let claim = request.claim(runtime.store.owner(clock::now()));
            return begin_claiming(begins, store, &claim).await;
        }
        let begun = match self.guarded_by() {
            Some((_, request, store)) => begins.begin_for(store, &request.id).boxed().await,
            None => begins.begin().boxed().await,
        };
        Ok((begun?, None))
    }

    /// The runtime, the request and the store of a call that claims its key before its body.
    fn guarded_by(&self) -> Option<(&Arc<Runtime>, &Request, &S)> {
        match self.prepared {
            Prepared::Guarded(runtime, request) if !request.settings.observes => {
                let store = runtime.store.of::<S>()?;
                Some((runtime, request, store))
            }
            _ => None,
        }
    }

    /// As [`guarded_by`](Self::guarded_by), of a call that is checked for nothing before its claim.
    fn unchecked(&self) -> Option<(&Arc<Runtime>, &Request, &S)> {
        self.guarded_by().filter(|(runtime, request, _)| {
            request.submission.is_none() && !current::is_reentrant(&request.id, runtime.identity())
        })
    }

    /// Replays an outcome that is committed already, if the driver expects one: without a
    /// transaction. Anything else that is found is left to the claim in a transaction. Without a
    /// connection, there is none.
    async fn recorded_before<B>(&self, begins: &B) -> Option<TransactionEnd<'_, T, E>>
    where
        B: Transactions<S>,
    {
        let (runtime, request, store) = self.unchecked()?;
        let claim = request.claim(runtime.store.owner(clock::now()));
        let (attempt, outcome) = match begins.find_outcome(store, &claim).boxed().await {
            Ok(Some(Claimed::Committed { attempt, outcome })) => (attempt, outcome),
            Ok(_) => return None,
            Err(error) => return Some(TransactionEnd::StoreFailed(error)),
        };
        let (span, _) = runtime.observer.span(&request.id);
        let replayed = span.in_scope(|| {
            runtime
                .replay_or_reject(request, Rejected::Committed { attempt, outcome })
                .map(|recorded| self.handling.replay(&recorded))
        });
        Some(match replayed.and_then(|handled| handled) {
            Ok(result) => TransactionEnd::Committed {
                result: result.map(Outcome::replayed),
                steps: Vec::new(),
            },
            Err(error) => TransactionEnd::Refused(error),
        })
    }

    /// The call in one transaction.
    async fn attempt<X, B>(
        &self,
        tx: &mut X,
        body: &mut B,
        start: TransactionStart,
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
                Observer::observed_without_key(MISCONFIGURED, request.id.name());
                return self.unguarded(tx, body).await;
            };
            let open = OpenTransaction::new(tx, runtime, request);
            return self
                .observe(open, body, start.committed_by, store)
                .instrument(span)
                .await;
        }
        async {
            let Some(store) = store else {
                return TransactionOutcome::Refused(Error::other_store::<S>(request.id.name()));
            };
            let mut open = OpenTransaction::new(tx, runtime, request);
            let claimed = match open.claim(store, start).await {
                Ok(TransactionClaim::Owner(claimed)) => claimed,
                Ok(TransactionClaim::Replay(recorded)) => return self.replay(&recorded),
                Ok(TransactionClaim::Met(lease, until)) => {
                    return TransactionOutcome::Met(LeaseMet {
                        runtime,
                        request,
                        lease,
                        until,
                    });
                }
                Err(error) => return TransactionOutcome::Refused(error),
            };
            if is_traced {
                observe::span_has_attempt(claimed.attempt);
            }
            self.run_claimed(open, store, body, claimed).await
        }
        .instrument(span)
        .await
    }

    /// Runs the body of a call that owns its row.
    async fn run_claimed<X, B>(
        &self,
        mut open: OpenTransaction<'_, X, S>,
        store: &S,
        body: &mut B,
        claimed: ClaimedRow,
    ) -> TransactionOutcome<'_, T, E>
    where
        X: Transaction<S>,
        B: Body<X, R>,
    {
        watch::note(Seen::Executed);
        if self.handling.policy.error_codec.is_some()
            && let Err(error) = open.savepoint().await
        {
            return TransactionOutcome::Refused(open.failed(error).await);
        }
        let runtime = open.runtime;
        let held_by = HeldBy::Row {
            attempt: claimed.attempt,
            owner: claimed.owner,
            origin: claimed.from,
            address: std::ptr::from_ref(&*open.tx).addr(),
            is_only_writer: X::ONE_WRITER,
        };
        let call = Call::new(runtime, open.request, held_by);
        let end = open.run_body(&call, body).await;
        let (answer, plan) = {
            let attempt = claimed.attempt;
            let handling = &self.handling;
            let report = |decision, why: Option<&dyn Display>| open.report(decision, attempt, why);
            let unlisted = runtime.config.unlisted;
            let (ending, answer) = handling.judge_once(Some(&call), unlisted, end, &report);
            let writer = open.writer(attempt);
            let plan = handling.encode(&call, &writer, ending, &answer, &report);
            (answer, plan)
        };
        let carried_out = open.carry_out(store, &call, claimed.owner, plan).await;
        TransactionOutcome::of(answer, carried_out, Some(&call))
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
        // If the library ends the transaction, nothing of a failed body is committed with its
        // error. If the caller does, the caller decides, as without `idem`.
        if !committed_by.is_caller()
            && self.handling.policy.error_codec.is_some()
            && let Err(error) = open.savepoint().await
        {
            return TransactionOutcome::Refused(open.failed(error).await);
        }
        let runtime = open.runtime;
        let call = Call::new(runtime, open.request, HeldBy::Unclaimed);
        let end = open.run_body(&call, body).await;
        let (ending, answer) = {
            let report = |decision, why: Option<&dyn Display>| open.report(decision, 0, why);
            let unlisted = runtime.config.unlisted;
            self.handling
                .judge_once(Some(&call), unlisted, end, &report)
        };
        let mut is_error_kept = matches!(ending, Ending::KeepError { .. });
        // A body that panicked may have left any state, so nothing is claimed after it.
        let mut claimed = None;
        if answer.is_ok() {
            let decode = |recorded: &Recorded| drop(self.handling.decoded(recorded));
            claimed = Some(open.claim_after_body(store, is_error_kept, decode).await);
        }
        let plan = match claimed {
            Some(ClaimAfterBody::Owned { attempt, .. }) => {
                let report =
                    |decision, why: Option<&dyn Display>| open.report(decision, attempt, why);
                let writer = open.writer(attempt);
                self.handling
                    .encode(&call, &writer, ending, &answer, &report)
            }
            _ => None,
        };
        is_error_kept &= !matches!(plan, Some(StepLeft::GiveUp(_)));
        let carried_out = open.carry_out_observed(store, claimed, plan).await;
        TransactionOutcome::of(answer, carried_out.map(|()| is_error_kept), Some(&call))
    }

    /// Runs the body alone, without a record.
    async fn unguarded<X, B: Body<X, R>>(
        &self,
        tx: &mut X,
        body: &mut B,
    ) -> TransactionOutcome<'_, T, E> {
        let end = {
            let mut running = pin!(Some(body.run(&mut *tx)));
            let running = Around::keyless().run(body::run(None, running.as_mut()));
            unstopped(running.await).await
        };
        let report = |_, _: Option<&dyn Display>| {};
        let (_, answer) = self.handling.judge_once(None, Then::Release, end, &report);
        TransactionOutcome::of(answer, Ok(false), None)
    }

    fn replay(&self, recorded: &Recorded) -> TransactionOutcome<'_, T, E> {
        match self.handling.replay(recorded) {
            Ok(Ok(value)) => TransactionOutcome::Done {
                outcome: Outcome::replayed(value),
                steps: Vec::new(),
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

    /// Reports a conflict that stayed through all reruns.
    fn gives_up(&self, failure: &StoreError) {
        if let Prepared::Guarded(runtime, request) = self.prepared
            && failure.kind() == StoreErrorKind::Conflict
        {
            runtime
                .observer
                .report(STORE_FAILED, &request.id, 0, Some(failure));
        }
    }

    fn runs_again(&self, why: &dyn std::fmt::Display) {
        if let Prepared::Guarded(runtime, request) = self.prepared {
            runtime.observer.report(RETRIED, &request.id, 0, Some(why));
        }
    }
}

/// Commits or rolls back the transaction of a call, as its outcome asks.
async fn end_transaction<S, B, T, E>(
    tx: B::Transaction,
    outcome: TransactionOutcome<'_, T, E>,
) -> TransactionEnd<'_, T, E>
where
    S: Store,
    B: Transactions<S>,
{
    let mut begun = Vec::new();
    let result = match outcome {
        TransactionOutcome::Done { outcome, steps } => {
            begun = steps;
            Ok(outcome)
        }
        // Only the record of the error is written: the body's rows are rolled back already.
        TransactionOutcome::Kept(error) => Err(error),
        TransactionOutcome::Failed(error) => {
            B::roll_back(tx).boxed().await;
            return TransactionEnd::Failed(error);
        }
        TransactionOutcome::Refused(error) => {
            B::roll_back(tx).boxed().await;
            return TransactionEnd::Refused(error);
        }
        TransactionOutcome::Met(lease) => {
            B::roll_back(tx).boxed().await;
            return TransactionEnd::Met(lease);
        }
    };
    match B::commit(tx).boxed().await {
        Ok(()) => TransactionEnd::Committed {
            result,
            steps: begun,
        },
        Err(error) => TransactionEnd::StoreFailed(error),
    }
}

fn is_conflict<S: Store, B: Transactions<S>>(error: &StoreError) -> bool {
    sources(Some(error), B::is_conflict)
}

/// Whether `is_so` holds for an error or one of its sources.
pub(crate) fn sources(
    first: Option<&(dyn StdError + 'static)>,
    is_so: impl Fn(&(dyn StdError + 'static)) -> bool,
) -> bool {
    /// Longer than any real chain, and an end for one that is a circle.
    const MOST: usize = 100;
    std::iter::successors(first, |error| (*error).source())
        .take(MOST)
        .any(is_so)
}
