//! The flow of every guarded call, annotated or by hand: claim, then run the body, or give what it
//! gave before.

use std::any::Any;
use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tracing::Instrument as _;

use crate::base::race::first;
use crate::call::body::{self, End};
use crate::call::claiming::Begun;
use crate::call::held::Held;
use crate::call::keeping::Policy;
use crate::call::prepared::Prepared;
use crate::call::recorded::Recorded;
use crate::call::request::Request;
use crate::call::witness::Witness;
use crate::error::Error;
use crate::lease::term::Term;
use crate::observe::{self, BodyWatch, Decision, Observer};
use crate::outcome::Outcome;
use crate::outcome::codec::{CodecContext, CodecFailure, caught};
use crate::policy::errors::{ErrorAction, Next, Then, Tries};
use crate::policy::settings::Settings;
use crate::record::{Encoded, RecordId};
use crate::runtime::Runtime;
use crate::task::current::{self, AskMode, Call};
use crate::task::inherited::Inherited;
use crate::task::unguarded;
use crate::task::watch::{self, Seen};

/// How a call is carried out: what is done with what its body returns, and where the next try comes
/// from.
pub(crate) struct Execution<R, T, E, P, G> {
    pub(crate) witness: Witness<R, T, E>,
    pub(crate) policy: Policy<P, E>,
    /// Gives the body once more, where it can be run more than once.
    pub(crate) again: Option<G>,
}

impl<R, T, E, P, G, Body> Execution<R, T, E, P, G>
where
    P: Fn(&E) -> ErrorAction,
    G: FnMut() -> Body,
    Body: Future<Output = R>,
{
    /// The body is a future that is not moved, and dropped as soon as it has ended or may not go
    /// on.
    ///
    /// It takes references, since what an `async fn` is given is in its future twice.
    pub(crate) async fn run(&mut self, prepared: &Prepared<'_>, body: Pin<&mut Option<Body>>) -> Result<Outcome<T>, E> {
        prepared.announce();
        let (runtime, request) = match prepared {
            Prepared::Refused(error) => return Err(self.refuse(error.clone())),
            Prepared::Unguarded(operation, _) | Prepared::Observed(operation, _) => {
                return self.unguarded(operation, None, body).await;
            }
            Prepared::Guarded(runtime, request) => (runtime, request),
        };
        let (span, is_traced) = runtime.observer.span(&request.id);
        async move {
            let mut held = match self.begin(runtime, request).await {
                Err(error) => return Err(self.refuse(error)),
                Ok(Begun::Replay(recorded)) => return self.replay(&recorded),
                Ok(Begun::Unguarded) => None,
                Ok(Begun::Owner(owned)) => Some(Held::new(runtime, request, owned)),
            };
            watch::saw(Seen::Executed);
            match &mut held {
                None => self.unguarded(request.id.operation(), Some(&request.id), body).await,
                Some(held) => {
                    if is_traced {
                        observe::span_has_attempt(held.term().attempt);
                    }
                    self.own(runtime, Manner::of(&request.settings), held, body).await
                }
            }
        }
        .instrument(span)
        .await
    }

    /// As `run`, with the body in a task of its own.
    pub(crate) async fn run_detached(mut self, prepared: Prepared<'_>, body: Body) -> Result<Outcome<T>, E>
    where
        Self: Send + 'static,
        R: Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
        Body: Send + 'static,
    {
        prepared.announce();
        let fail = self.witness.fail;
        let (runtime, request) = match &prepared {
            Prepared::Refused(error) => return Err(self.refuse(error.clone())),
            Prepared::Unguarded(operation, runtime) => {
                let operation = operation.clone().into_owned();
                return self.unguarded_and_detached(operation, None, runtime.as_ref(), body).await;
            }
            Prepared::Observed(operation, _) => {
                let operation = operation.clone().into_owned();
                return self.unguarded_and_detached(operation, None, None, body).await;
            }
            Prepared::Guarded(runtime, request) => (runtime, request),
        };
        let (span, is_traced) = runtime.observer.span(&request.id);
        async {
            let held = match self.begin(runtime, request).await {
                Err(error) => return Err(self.refuse(error)),
                Ok(Begun::Replay(recorded)) => return self.replay(&recorded),
                Ok(Begun::Unguarded) => None,
                Ok(Begun::Owner(owned)) => Some(Held::new(runtime, request, owned)),
            };
            watch::saw(Seen::Executed);
            let Some(held) = held else {
                let (operation, id) = (request.id.operation().to_owned(), request.id.clone());
                return self.unguarded_and_detached(operation, Some(id), Some(runtime), body).await;
            };
            if is_traced {
                observe::span_has_attempt(held.term().attempt);
            }
            let lost = held.term().lost_error();
            let (manner, runtime) = (Manner::of(&request.settings), runtime.clone());
            let counted = runtime.background.body();
            let owning = async move {
                // Dropped after what is held, which may leave a step behind: `shutdown` sees the
                // one or the other.
                let _counted = counted;
                let mut held = held;
                self.own(&runtime, manner, &mut held, pin!(Some(body))).await
            };
            // Only a tokio runtime that shuts down stops the task.
            detached(owning).await.unwrap_or_else(|| Err(fail(lost)))
        }
        .instrument(span)
        .await
    }

    /// Fails with an error of ours, which a body around this call may pass on.
    fn fail(&self, error: Error) -> E {
        current::trouble();
        (self.witness.fail)(error)
    }

    /// Fails without a body or a recorded outcome.
    fn refuse(&self, error: Error) -> E {
        watch::saw(Seen::Failed);
        self.fail(error)
    }

    /// Claims the key, or learns what to do instead. A call that only observes is given nothing
    /// that would keep its body from running.
    async fn begin(&self, runtime: &Arc<Runtime>, request: &Request) -> Result<Begun, Error> {
        if !request.settings.observes {
            return runtime.begin(request).await;
        }
        match runtime.observe(request).await {
            Begun::Replay(recorded) => {
                // Reports an outcome that could not have been replayed.
                observe::outward(|| drop(self.decoded(&recorded)));
                Ok(Begun::Unguarded)
            }
            begun => Ok(begun),
        }
    }

    fn decoded(&self, recorded: &Recorded) -> Result<Result<T, E>, Error> {
        match &self.policy.keeper {
            Some(keeper) if recorded.is_error() => (keeper.decode)(recorded).map(Err),
            _ => (self.witness.decode)(recorded).map(Ok),
        }
    }

    fn replay(&self, recorded: &Recorded) -> Result<Outcome<T>, E> {
        match self.decoded(recorded) {
            Ok(replayed) => {
                watch::saw(Seen::Replayed);
                replayed.map(Outcome::replayed)
            }
            Err(error) => Err(self.refuse(error)),
        }
    }

    /// Runs the body as the owner, and records what came of it.
    fn own<'a>(
        &'a mut self,
        runtime: &'a Arc<Runtime>,
        Manner { asks, observes }: Manner,
        held: &'a mut Held,
        mut body: Pin<&'a mut Option<Body>>,
    ) -> impl Future<Output = Result<Outcome<T>, E>> + use<'a, R, T, E, P, G, Body> {
        let term = held.term().clone();
        let call = Call::new(term.id.clone(), term.attempt, held.after_abandoned(), asks, runtime.identity())
            .recording(held.recording(observes))
            .stopped_by((!observes).then_some(&term));
        async move {
            let mut tries = Tries::new(runtime.unlisted);
            let end = loop {
                let watch = BodyWatch::start();
                let stops_with = (!observes).then_some(&*term);
                let end = call.around(body::run(stops_with, body.as_mut())).await;
                watch.stop(&term.id);
                match self.ended(runtime, held, &call, &mut tries, end) {
                    AfterTry::For(end) => break end,
                    AfterTry::UntilNextTry { pause, error } => {
                        // A transaction of this try may have recorded the outcome. Then no body
                        // runs again, and what remains to be done is refused.
                        if call.is_recorded() && !observes && !Box::pin(held.is_in_flight()).await {
                            break Answer::Gives(Err(error));
                        }
                        if observes {
                            tokio::time::sleep(pause).await;
                        } else if !Box::pin(pause_under(&term, pause)).await {
                            // No body is cut: the remaining step is tried, and refused if another
                            // caller is the owner now.
                            runtime.observer.decided_because(
                                Decision::LeaseLost,
                                &term.id,
                                term.attempt,
                                &term.why_lost(),
                            );
                            break Answer::Gives(Err(error));
                        }
                        drop(error);
                        held.goes_on();
                        body.set(self.again.as_mut().map(|again| again()));
                    }
                }
            };
            if observes && term.is_lost() {
                let observer = runtime.observer.observing(true);
                observer.decided_because(Decision::LeaseLost, &term.id, term.attempt, &term.why_lost());
            }
            if !held.carry_out().await {
                watch::saw(Seen::Unrecorded);
            }
            match end {
                Answer::Gives(returned) => {
                    if returned.is_err() {
                        call.passes_on_trouble();
                    }
                    returned
                }
                Answer::Panics(panic) => resume_unwind(panic),
            }
        }
    }

    /// Says what is to be recorded, and what the caller gets.
    fn ended(
        &mut self,
        runtime: &Runtime,
        held: &mut Held,
        call: &Call,
        tries: &mut Tries,
        end: End<R>,
    ) -> AfterTry<T, E> {
        let (observer, term) = (runtime.observer, held.term().clone());
        // An earlier try of this call may have an unknown outcome.
        let unknown = tries.is_outcome_unknown();
        let panicked = |held: &mut Held, panic| {
            observer.decided(Decision::Panicked, &term.id, term.attempt);
            if call.is_unreconciled() {
                held.plan_unanswered();
            } else {
                held.plan_release(unknown);
            }
            AfterTry::For(Answer::Panics(panic))
        };
        let error = match end {
            End::Returned(returned) => match (self.witness.split)(returned) {
                Ok(value) => {
                    if call.is_reconciled() {
                        observer.decided(Decision::Reconciled, &term.id, term.attempt);
                    }
                    if call.is_recorded() {
                        held.mark_recorded_in_transaction();
                    } else if call.omits_outcome() {
                        held.plan_commit_without_outcome();
                    } else {
                        let encoded = (self.witness.encode)(&runtime.codec, held.value_context(), &value);
                        held.plan_commit(encoded);
                    }
                    return AfterTry::For(Answer::Gives(Ok(Outcome::executed(value))));
                }
                Err(error) => error,
            },
            End::Lost => return AfterTry::For(Answer::Gives(Err(self.fail(held.lost())))),
            End::Panicked(panic) => return panicked(held, panic),
        };
        if call.is_unreconciled() {
            // Not the body's own error: the record stays abandoned, whatever is said of such an
            // error.
            held.plan_unanswered();
            return AfterTry::For(Answer::Gives(Err(error)));
        }
        let action = match catch_unwind(AssertUnwindSafe(|| (self.policy.action)(&error))) {
            Ok(action) => action,
            // A guard of the author's: to the caller it is the same.
            Err(panic) => return panicked(held, panic),
        };
        // Between two tries no body is cut: if this call goes no further, this is what is left to
        // do.
        held.plan_release(unknown);
        let then = match tries.next(action) {
            Next::Then(then) => then,
            Next::Retry { then, .. } if self.again.is_none() => then,
            Next::Retry { pause, then } => {
                held.plan_release(unknown || then == Then::Abandon);
                let what = format!("try {} in {pause:.0?}", tries.count());
                observer.decided_because(Decision::Retried, &term.id, term.attempt, &what);
                return AfterTry::UntilNextTry { pause, error };
            }
        };
        match then {
            // As it stands.
            Then::Release => {}
            Then::Abandon => held.plan_release(true),
            Then::Keep(ttl) => match self.encoded(runtime, held.error_context(), call, &error) {
                Ok(encoded) => held.plan_kept_error(encoded, ttl),
                Err(failure) => {
                    observer.decided_because(Decision::ErrorNotKept, &term.id, term.attempt, &failure);
                }
            },
        }
        AfterTry::For(Answer::Gives(Err(error)))
    }

    fn encoded(
        &self,
        runtime: &Runtime,
        context: CodecContext<'_>,
        call: &Call,
        error: &E,
    ) -> Result<Encoded, CodecFailure> {
        let Some(keeper) = &self.policy.keeper else {
            return Err("its policy says that no error of this type is kept".into());
        };
        if call.is_troubled() {
            return Err("a guarded call inside of it failed with an error of idem, which is never kept".into());
        }
        caught(|| {
            if (keeper.has_ours)(error) {
                return Err("an error of idem is among its sources, and is never kept".into());
            }
            (keeper.encode)(&runtime.codec, context, error)
        })
    }

    /// Runs the body without a record: an error can be tried again, and there is nothing to keep or
    /// to give up.
    async fn unguarded(
        &mut self,
        operation: &str,
        id: Option<&RecordId>,
        mut body: Pin<&mut Option<Body>>,
    ) -> Result<Outcome<T>, E> {
        let mut tries = Tries::default();
        loop {
            let returned = match body.as_mut().as_pin_mut() {
                Some(running) => unguarded::unguarded(id, running).await,
                // Callers pass a body, and none takes it out before.
                None => return pending().await,
            };
            body.set(None);
            let error = match (self.witness.split)(returned) {
                Ok(value) => return Ok(Outcome::executed(value)),
                Err(error) => error,
            };
            let Next::Retry { pause, .. } = tries.next((self.policy.action)(&error)) else { return Err(error) };
            if self.again.is_none() {
                return Err(error);
            }
            Observer::decided_without_key(Decision::Retried, operation);
            drop(error);
            tokio::time::sleep(pause).await;
            body.set(self.again.as_mut().map(|again| again()));
        }
    }

    async fn unguarded_and_detached(
        mut self,
        operation: String,
        id: Option<RecordId>,
        runtime: Option<&Arc<Runtime>>,
        body: Body,
    ) -> Result<Outcome<T>, E>
    where
        Self: Send + 'static,
        R: Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
        Body: Send + 'static,
    {
        let counted = runtime.map(|runtime| runtime.background.body());
        let running = async move {
            let _counted = counted;
            self.unguarded(&operation, id.as_ref(), pin!(Some(body))).await
        };
        match detached(running).await {
            Some(returned) => returned,
            // The tokio runtime is shutting down, and this future with it.
            None => pending().await,
        }
    }
}

/// How an owner runs its body.
#[derive(Clone, Copy)]
struct Manner {
    asks: AskMode,
    /// It runs to its end, whatever becomes of the lease.
    observes: bool,
}

impl Manner {
    fn of(settings: &Settings) -> Self {
        let observes = settings.observes;
        let asks = match (settings.reconciles, observes) {
            (false, _) => AskMode::Nothing,
            (true, false) => AskMode::First,
            (true, true) => AskMode::Skips,
        };
        Self { asks, observes }
    }
}

/// The step after the end of one try.
enum AfterTry<T, E> {
    /// The call is over, but for what is to be recorded.
    For(Answer<T, E>),
    /// The body is tried again.
    UntilNextTry { pause: Duration, error: E },
}

/// The caller's result.
enum Answer<T, E> {
    Gives(Result<Outcome<T>, E>),
    Panics(Box<dyn Any + Send>),
}

/// The closure that creates a retryable body, shared with each try. It is called where the body
/// runs, so that a panic in it is a panic of the body.
pub(crate) struct Again<F>(Arc<Mutex<F>>);

impl<F> Again<F> {
    pub(crate) fn new(make: F) -> Self {
        Self(Arc::new(Mutex::new(make)))
    }

    pub(crate) fn call<Body>(&self) -> Body
    where
        F: FnMut() -> Body,
    {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)()
    }
}

impl<F> Clone for Again<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Waits, unless the lease is lost meanwhile. Says whether it is still held.
async fn pause_under(term: &Term, pause: Duration) -> bool {
    first(term.lost(), tokio::time::sleep(pause)).await;
    !term.is_lost()
}

/// Runs a future in a task of its own, with what follows the task. `None` where the task was
/// stopped.
async fn detached<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Option<T> {
    let task = tokio::spawn(watch::along(Inherited::here().around(future)).in_current_span());
    match task.await {
        Ok(value) => Some(value),
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => None,
        },
    }
}
