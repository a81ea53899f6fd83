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

use crate::adapter::engine::watch::{self, Seen};
use crate::adapter::engine::{
    Answer, Around, Ending, Handling, Held, HeldBy, MISCONFIGURED, Observer, Pause, Prepared,
    RETRIED, Request, Runtime, STORE_FAILED, StepLeft, Then, body, clock, give, observe,
};
use crate::adapter::{Round, Rounds, run_rounds};
use crate::layers::transactions::bodies::Body;
use crate::layers::transactions::driver::{Began, Opened, OwnRow, Transaction, Transactions, Wish};
use crate::layers::transactions::open::{
    ClaimedRow, OpenTransaction, PAUSES, claimed_row, found_in_transaction, is_long_ago,
    longest_wait, other_store,
};
use crate::{Call, Error, ErrorAction, Outcome, Recorded, Store, StoreError, StoreErrorKind};

/// How often a transaction with a conflict is run again.
const RERUNS: u32 = 20;

/// One call in a transaction.
pub(crate) struct InTransaction<'a, R, T, E, P, S> {
    prepared: Prepared<'a>,
    handling: Handling<R, T, E, P>,
    store: PhantomData<fn() -> S>,
}

impl<'a, R, T, E, P, S> InTransaction<'a, R, T, E, P, S> {
    pub(crate) fn new(prepared: Prepared<'a>, handling: Handling<R, T, E, P>) -> Self {
        Self {
            prepared,
            handling,
            store: PhantomData,
        }
    }
}

/// How a call has ended in its transaction, which is still open.
enum CallEnd<T, E> {
    /// The outcome is written, or was before: a value, or an error that is kept. Whoever ends the
    /// transaction commits. Then what is recorded beside the call is of no use.
    Recorded {
        result: Result<Outcome<T>, E>,
        call: Option<Call>,
    },
    /// The body's error. Nothing is written.
    Failed(E),
    /// An error of ours. Nothing is written.
    Refused(Error),
}

impl<T, E> CallEnd<T, E> {
    /// The end of a body that has run. If it panicked, so does this. Whether its error is recorded
    /// was `carried_out`.
    fn after_body(
        answer: Answer<T, E>,
        carried_out: Result<bool, Error>,
        call: Option<&Call>,
    ) -> Self {
        if let (Ok(Err(_)), Some(call)) = (&answer, call) {
            // The error goes to the body around this call.
            Call::pass_on_taint(call);
        }
        match (give(answer), carried_out) {
            (_, Err(error)) => Self::Refused(error),
            (Ok(value), Ok(_)) => Self::Recorded {
                result: Ok(Outcome::executed(value)),
                call: call.cloned(),
            },
            // Only the record of the error is written: the body's rows are rolled back already.
            (Err(error), Ok(true)) => Self::Recorded {
                result: Err(error),
                call: None,
            },
            (Err(error), Ok(false)) => Self::Failed(error),
        }
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
        match self.in_transaction(tx, &mut body, true).await {
            // Whether the caller commits is not seen, so what is recorded beside the call is left to expire.
            CallEnd::Recorded { result, .. } => result,
            CallEnd::Failed(error) => Err(error),
            CallEnd::Refused(error) => Err(self.handling.refuse(error)),
        }
    }

    /// The call in one transaction, which has claimed nothing yet.
    async fn in_transaction<X, B>(
        &self,
        tx: &mut X,
        body: &mut B,
        is_of_caller: bool,
    ) -> CallEnd<T, E>
    where
        X: Transaction<S>,
        B: Body<X, R>,
    {
        self.prepared.announce();
        let (runtime, request) = match &self.prepared {
            Prepared::Refused(error) => return CallEnd::Refused(error.clone()),
            Prepared::Unguarded(..) | Prepared::Observed(..) => {
                return self.unguarded(tx, body).await;
            }
            Prepared::Guarded(runtime, request) => (runtime, request),
        };
        let Some(store) = runtime.store.downcast::<S>() else {
            if request.settings.observes {
                Observer::observed_without_key(MISCONFIGURED, request.id.name());
                return self.unguarded(tx, body).await;
            }
            return CallEnd::Refused(other_store::<S>(request.id.name()));
        };
        let (span, is_traced) = runtime.observer.span(&request.id);
        let mut open = OpenTransaction::new(tx, runtime, request);
        async {
            if request.settings.observes {
                return self.observe(open, body, is_of_caller, store).await;
            }
            match open.claim(store).await {
                Ok(claimed) => {
                    self.run_claimed(open, store, body, claimed, is_traced)
                        .await
                }
                Err(found) => match self.replay(found) {
                    Ok(result) => CallEnd::Recorded { result, call: None },
                    Err(error) => CallEnd::Refused(error),
                },
            }
        }
        .instrument(span)
        .await
    }

    /// Begins transactions until one is committed, or fails for another reason than a conflict.
    pub(crate) async fn run<B, F>(
        &self,
        begins: &B,
        body: F,
        rerun: impl Fn(&E) -> bool,
    ) -> Result<Outcome<T>, E>
    where
        B: Transactions<S>,
        F: Body<B::Transaction, R>,
    {
        let rounds = CallRounds {
            call: self,
            begins,
            body,
            rerun,
            may_rerun: true,
            waits: Pause::new(),
            until: None,
        };
        run_rounds(PAUSES, rounds).await
    }

    /// Runs the body of a call that owns its row.
    async fn run_claimed<X, B>(
        &self,
        mut open: OpenTransaction<'_, X, S>,
        store: &S,
        body: &mut B,
        ClaimedRow { owner, row }: ClaimedRow,
        is_traced: bool,
    ) -> CallEnd<T, E>
    where
        X: Transaction<S>,
        B: Body<X, R>,
    {
        if is_traced {
            observe::span_has_attempt(row.attempt);
        }
        watch::note(Seen::Executed);
        if self.handling.policy.error_codec.is_some()
            && let Err(error) = open.savepoint().await
        {
            return CallEnd::Refused(open.failed(error).await);
        }
        let runtime = open.runtime;
        let held_by = HeldBy::Row {
            attempt: row.attempt,
            owner,
            origin: row.from,
            address: std::ptr::from_ref(&*open.tx).addr(),
            is_only_writer: X::ONE_WRITER,
        };
        let call = Call::new(runtime, open.request, held_by);
        let end = open.run_body(&call, body).await;
        let (answer, plan) = {
            let attempt = row.attempt;
            let handling = &self.handling;
            let report = |decision, why: Option<&dyn Display>| open.report(decision, attempt, why);
            let unlisted = runtime.config.unlisted;
            let (ending, answer) = handling.judge_once(Some(&call), unlisted, end, &report);
            let writer = open.writer(attempt);
            let plan = handling.encode(&call, &writer, ending, &answer, &report);
            (answer, plan)
        };
        let carried_out = open.carry_out(store, &call, owner, plan).await;
        CallEnd::after_body(answer, carried_out, Some(&call))
    }

    /// Runs the body whatever the record says, and then says what a guarded call would have done.
    async fn observe<X, B>(
        &self,
        mut open: OpenTransaction<'_, X, S>,
        body: &mut B,
        is_of_caller: bool,
        store: &S,
    ) -> CallEnd<T, E>
    where
        X: Transaction<S>,
        B: Body<X, R>,
    {
        watch::note(Seen::Executed);
        // If the library ends the transaction, nothing of a failed body is committed with its
        // error. If the caller does, the caller decides, as without `idem`.
        if !is_of_caller
            && self.handling.policy.error_codec.is_some()
            && let Err(error) = open.savepoint().await
        {
            return CallEnd::Refused(open.failed(error).await);
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
        let mut claimed = Ok(None);
        if answer.is_ok() {
            let decode = |recorded: &Recorded| drop(self.handling.decoded(recorded));
            claimed = open.claim_after_body(store, is_error_kept, decode).await;
        }
        let plan = match &claimed {
            Ok(Some(claimed)) => {
                let attempt = claimed.row.attempt;
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
        CallEnd::after_body(answer, carried_out.map(|()| is_error_kept), Some(&call))
    }

    /// Runs the body alone, without a record.
    async fn unguarded<X, B: Body<X, R>>(&self, tx: &mut X, body: &mut B) -> CallEnd<T, E> {
        let end = {
            let mut running = pin!(Some(body.run(&mut *tx)));
            Around::keyless()
                .run(body::run(None, running.as_mut()))
                .await
        };
        let report = |_, _: Option<&dyn Display>| {};
        let (_, answer) = self.handling.judge_once(None, Then::Release, end, &report);
        CallEnd::after_body(answer, Ok(false), None)
    }

    /// Returns the result of a call that is not the owner of its key.
    fn replay(&self, found: Result<Recorded, Error>) -> Result<Result<Outcome<T>, E>, Error> {
        let replayed = self.handling.replay(&found?)?;
        Ok(replayed.map(Outcome::replayed))
    }

    /// The error of a transaction that failed before or after the call.
    fn store_failed(&self, error: StoreError) -> Error {
        match &self.prepared {
            Prepared::Guarded(runtime, request) => runtime.failed(&request.id, error),
            Prepared::Unguarded(operation, _) | Prepared::Observed(operation, _) => {
                Error::store(operation, "unguarded", error)
            }
            Prepared::Refused(error) => error.clone(),
        }
    }

    /// Reports a conflict that stayed through all reruns.
    fn gives_up(&self, failure: &StoreError) {
        if let Prepared::Guarded(runtime, request) = &self.prepared
            && failure.kind() == StoreErrorKind::Conflict
        {
            runtime
                .observer
                .report(STORE_FAILED, &request.id, 0, Some(failure));
        }
    }

    fn runs_again(&self, why: &dyn std::fmt::Display) {
        if let Prepared::Guarded(runtime, request) = &self.prepared {
            runtime.observer.report(RETRIED, &request.id, 0, Some(why));
        }
    }
}

/// The transactions of one call, which run again after a conflict.
struct CallRounds<'c, 'p, R, T, E, P, S, B, F, W> {
    call: &'c InTransaction<'p, R, T, E, P, S>,
    begins: &'c B,
    body: F,
    /// After which errors of the body all of it runs again.
    rerun: W,
    /// This is not the last round.
    may_rerun: bool,
    waits: Pause,
    /// The end of a wait that continues in the next transaction.
    until: Option<Instant>,
}

impl<R, T, E, P, S, B, F, W> Rounds<Result<Outcome<T>, E>>
    for CallRounds<'_, '_, R, T, E, P, S, B, F, W>
where
    S: Store,
    P: Fn(&E) -> ErrorAction,
    B: Transactions<S>,
    F: Body<B::Transaction, R>,
    W: Fn(&E) -> bool,
{
    /// Begins a transaction, makes the call in it, and ends it.
    async fn round(&mut self, number: u32) -> Round<Result<Outcome<T>, E>> {
        self.may_rerun = number <= RERUNS;
        match &self.call.prepared {
            // Before it would wait for the writer's lock.
            Prepared::Refused(error) => {
                self.call.prepared.announce();
                self.refused(error.clone())
            }
            Prepared::Guarded(runtime, request) if !request.settings.observes => {
                self.call.prepared.announce();
                let Some(store) = runtime.store.downcast::<S>() else {
                    let error = other_store::<S>(request.id.name());
                    return self.refused(error);
                };
                let (span, is_traced) = runtime.observer.span(&request.id);
                self.guarded(runtime, request, store, is_traced)
                    .instrument(span)
                    .await
            }
            _ => self.unclaimed().await,
        }
    }
}

impl<R, T, E, P, S, B, F, W> CallRounds<'_, '_, R, T, E, P, S, B, F, W>
where
    S: Store,
    P: Fn(&E) -> ErrorAction,
    B: Transactions<S>,
    F: Body<B::Transaction, R>,
    W: Fn(&E) -> bool,
{
    /// A round of a call that claims its key before its body.
    async fn guarded(
        &mut self,
        runtime: &Arc<Runtime>,
        request: &Request,
        store: &S,
        is_traced: bool,
    ) -> Round<Result<Outcome<T>, E>> {
        // One owner for all claims of this round. The claims of an earlier one are rolled back, and
        // must not be taken for those of this one.
        let now = clock::now();
        if let Err(why) = runtime.admit_call(request, now) {
            return self.refused(runtime.reject(request, why));
        }
        let owner = runtime.store.owner(now);
        let claim = request.claim(owner);
        let wish = Wish::new(store, &claim, longest_wait(request), self.until.take());
        let began = match begin_claimed(self.begins, &wish).await {
            Ok(began) => began,
            // The claim has met another transaction.
            Err(error) if error.kind() == StoreErrorKind::Conflict => {
                return self.refused(runtime.failed(&request.id, error));
            }
            Err(error) => return self.store_failed(error),
        };
        if let Began::LeaseHolds { attempt, left } = began
            && clock::now() < wish.until()
        {
            let until = wish.until();
            let lease = Held::new(attempt, left);
            self.waits.before_waiting_again(attempt).await;
            runtime.wait_for(request, lease, until).await;
            self.until = Some(until);
            return Round::Waited;
        }
        if let Some(since) = wish.began().filter(|since| is_long_ago(*since))
            && !longest_wait(request).is_zero()
        {
            runtime.waited(request, since);
        }
        let (mut tx, row) = match began.unless_rejected() {
            Ok(opened) => opened,
            Err(why) => {
                return match self
                    .call
                    .replay(found_in_transaction(runtime, request, why))
                {
                    Ok(result) => Round::Over(result),
                    Err(error) => self.refused(error),
                };
            }
        };
        let claimed = claimed_row(runtime, request, owner, row);
        let open = OpenTransaction::new(&mut tx, runtime, request);
        let end = self
            .call
            .run_claimed(open, store, &mut self.body, claimed, is_traced)
            .await;
        self.end(tx, end).await
    }

    /// A round of a call that has no record, or claims its key after its body.
    async fn unclaimed(&mut self) -> Round<Result<Outcome<T>, E>> {
        let began = self.begins.begin(None).boxed().await;
        match began.and_then(Began::without_claim) {
            Ok(mut tx) => {
                let end = self.call.in_transaction(&mut tx, &mut self.body, false);
                let end = end.await;
                self.end(tx, end).await
            }
            Err(error) => self.store_failed(error),
        }
    }

    /// Commits or rolls back, as the end of the call asks.
    async fn end(
        &mut self,
        tx: B::Transaction,
        end: CallEnd<T, E>,
    ) -> Round<Result<Outcome<T>, E>> {
        match end {
            CallEnd::Recorded { result, call } => match B::commit(tx).boxed().await {
                Ok(()) => {
                    let call = call.as_ref().map(Call::guarded);
                    if let Prepared::Guarded(runtime, request) = &self.call.prepared
                        && let Some(companion) = call.and_then(|call| call.companion.get())
                    {
                        companion.recorded(runtime, &request.id, 0);
                    }
                    Round::Over(result)
                }
                Err(error) => self.store_failed(error),
            },
            CallEnd::Failed(error) => {
                roll_back(tx).await;
                if !self.may_rerun || !(self.rerun)(&error) {
                    return Round::Over(Err(error));
                }
                self.call.runs_again(&"the body met another transaction");
                Round::Conflict
            }
            CallEnd::Refused(error) => {
                roll_back(tx).await;
                self.refused(error)
            }
        }
    }

    /// The end of a call that could not run its body, or not record its outcome.
    fn refused(&self, error: Error) -> Round<Result<Outcome<T>, E>> {
        if let Error::Store { source, .. } = &error {
            if self.may_rerun && is_conflict::<S, B>(source) {
                self.call.runs_again(source);
                return Round::Conflict;
            }
            self.call.gives_up(source);
        }
        Round::Over(Err(self.call.handling.refuse(error)))
    }

    /// The end of a transaction that could not begin or commit.
    fn store_failed(&self, error: StoreError) -> Round<Result<Outcome<T>, E>> {
        if self.may_rerun && is_conflict::<S, B>(&error) {
            self.call.runs_again(&error);
            return Round::Conflict;
        }
        self.call.gives_up(&error);
        let error = self.call.store_failed(error);
        Round::Over(Err(self.call.handling.refuse(error)))
    }
}

/// Begins a transaction that owns the key of a wish. With any other answer, none is open.
async fn begin_claimed<S: Store, B: Transactions<S>>(
    begins: &B,
    wish: &Wish<'_, S>,
) -> Result<Began<(B::Transaction, OwnRow)>, StoreError> {
    let mut tx = match begins.begin(Some(wish)).boxed().await? {
        Began::Owner(Opened { transaction, row }) => match row {
            Some(row) => return Ok(Began::Owner((transaction, row))),
            None => transaction,
        },
        Began::Answered(claimed) => return Ok(Began::Answered(claimed)),
        Began::LeaseHolds { attempt, left } => return Ok(Began::LeaseHolds { attempt, left }),
    };
    let claimed = tx.claim(wish.store, wish.claim, wish.wait()).boxed().await;
    if !matches!(claimed, Ok(Began::Owner(_))) {
        let _ = tx.roll_back().boxed().await;
    }
    Ok(claimed?.map(|row| (tx, row)))
}

async fn roll_back<S: Store, X: Transaction<S>>(mut tx: X) {
    // If this fails, the connection is lost, and the transaction with it.
    let _ = tx.roll_back().boxed().await;
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
