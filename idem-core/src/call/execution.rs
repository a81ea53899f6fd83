//! The flow of every guarded call, annotated or by hand: claim the key, then run the body or replay
//! its outcome.

use std::fmt::Display;
use std::future::{Future, pending};
use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::Instrument as _;

use crate::call::judge::{Handling, Reruns, Ruling, give};
use crate::call::owned::{ClaimedLease, Owned};
use crate::call::prepared::Prepared;
use crate::call::run::Holder;
use crate::call::start::CallStart;
use crate::error::Error;
use crate::observe;
use crate::outcome::Outcome;
use crate::policy::errors::{ErrorAction, Then, Tries};
use crate::runtime::Runtime;
use crate::task::current::Call;
use crate::task::guarded::{Guarded, HeldBy};
use crate::task::inherited::Inherited;
use crate::task::watch::{self, Seen};

/// How a call is carried out: what happens to the body's result, and where its body comes from.
pub(crate) struct Execution<R, T, E, P, B> {
    pub(crate) handling: Handling<R, T, E, P>,
    pub(crate) bodies: B,
}

/// Makes the body of a call, which is in a box.
///
/// A future that contained its body would contain all calls in it. The compiler looks through such
/// types, and at 128 levels it gives up: after six calls with `#[tracing::instrument]`.
pub(crate) trait Bodies {
    type Body: Future + Unpin;
    /// Whether the body can run more than once.
    const REPEATS: bool;

    /// Returns the body of the next try.
    fn next(&mut self) -> Option<Self::Body>;
}

/// A body that runs once.
pub(crate) struct Once<F>(pub(crate) Option<F>);

impl<F: FnOnce() -> Body, Body: Future + Unpin> Bodies for Once<F> {
    type Body = Body;
    const REPEATS: bool = false;

    fn next(&mut self) -> Option<Body> {
        self.0.take().map(|make| make())
    }
}

/// A body that runs again if its error policy says so.
pub(crate) struct Repeated<F>(pub(crate) F);

impl<F: FnMut() -> Body, Body: Future + Unpin> Bodies for Repeated<F> {
    type Body = Body;
    const REPEATS: bool = true;

    fn next(&mut self) -> Option<Body> {
        Some(self.0())
    }
}

impl<R, T, E, P, B> Execution<R, T, E, P, B>
where
    P: Fn(&E) -> ErrorAction,
    B: Bodies<Body: Future<Output = R>>,
{
    /// Runs the call. The body is dropped as soon as it has ended or must stop.
    ///
    /// `answer` converts the result here, because each future around this one is one level more
    /// for the compiler. `_body` is the type of the body, and is held by the future around this
    /// one. The compiler looks at the types that a future holds in their order, and remembers the
    /// answers. So it finds the body by that path, which is shorter than the one through here.
    #[allow(
        clippy::manual_async_fn,
        reason = "the future of an `async fn` holds its arguments twice"
    )]
    pub(crate) fn run<'a, O, A: FnOnce(Result<Outcome<T>, E>) -> O, Body>(
        mut self,
        prepared: &'a Prepared<'a>,
        answer: A,
        _body: &'a mut PhantomData<Body>,
    ) -> impl Future<Output = O> + use<'a, R, T, E, P, B, O, A, Body> {
        async move {
            prepared.announce();
            let (runtime, request) = match prepared {
                Prepared::Refused(error) => {
                    return answer(Err(self.handling.refuse(error.clone())));
                }
                Prepared::Unguarded(operation, _) | Prepared::Observed(operation, _) => {
                    let holder = Holder::Nobody {
                        operation,
                        call: None,
                    };
                    return answer(self.carry_out(holder, Then::Release).await);
                }
                Prepared::Guarded(runtime, request) => (runtime, request),
            };
            let (span, is_traced) = runtime.observer.span(&request.id);
            // A reference, because this future would contain what moves into that one twice.
            let this = &mut self;
            request.returns::<T>();
            let guarded = async move {
                let mut record = match started(&this.handling, runtime.begin(request).await) {
                    Ok(owned) => owned.map(|owned| Owned::new(runtime, request, owned)),
                    Err(over) => return over,
                };
                watch::note(Seen::Executed);
                let (holder, unlisted) = match &mut record {
                    None => (Holder::without_record(runtime, request), Then::Release),
                    Some(record) => {
                        if is_traced {
                            observe::span_has_attempt(record.term().attempt);
                        }
                        (Holder::Lease(record), runtime.config.unlisted)
                    }
                };
                this.carry_out(holder, unlisted).await
            };
            answer(guarded.instrument(span).await)
        }
    }

    /// Runs the body, once more if its policy says so, and records its outcome. A body that can run
    /// only once has no next try.
    async fn carry_out(&mut self, mut holder: Holder<'_>, unlisted: Then) -> Result<Outcome<T>, E> {
        let Self { handling, bodies } = self;
        let reruns = if B::REPEATS {
            Reruns::Can
        } else {
            Reruns::Never
        };
        let mut tries = Tries::new(unlisted);
        let mut body = bodies.next();
        let answer = loop {
            let end = holder.run_body(Pin::new(&mut body)).await;
            let (ruling, answer) = {
                let report = |decision, why: Option<&dyn Display>| holder.report(decision, why);
                handling.judge(holder.call(), reruns, &mut tries, end, &report)
            };
            match ruling {
                Ruling::Over(ending) => {
                    holder.end(handling, ending, &answer);
                    break answer;
                }
                Ruling::Retry { pause, give_up, .. } => {
                    // Boxed, because few calls come here, and the future of every call would be
                    // larger.
                    let goes_on = Box::pin(holder.pause(pause, give_up));
                    if !goes_on.await {
                        break answer;
                    }
                    drop(answer);
                    body = bodies.next();
                }
            }
        };
        holder.settle().await;
        if let (Ok(Err(_)), Some(call)) = (&answer, holder.call()) {
            // The error goes to the body around this call.
            Call::pass_on_taint(call);
        }
        give(answer).map(Outcome::executed)
    }
}

impl<R, T, E, P, B> Execution<R, T, E, P, B>
where
    P: Fn(&E) -> ErrorAction + Send + 'static,
    B: Bodies<Body: Future<Output = R> + Send> + Send + 'static,
    R: Send + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    /// Runs the call with its body in a task of its own.
    pub(crate) async fn run_detached(mut self, prepared: Prepared<'_>) -> Result<Outcome<T>, E> {
        prepared.announce();
        let fail = self.handling.witness.fail;
        let (runtime, request) = match &prepared {
            Prepared::Refused(error) => return Err(self.handling.refuse(error.clone())),
            Prepared::Unguarded(operation, runtime) => {
                let operation = operation.clone().into_owned();
                return self
                    .unguarded_and_detached(operation, None, runtime.as_ref())
                    .await;
            }
            Prepared::Observed(operation, _) => {
                let operation = operation.clone().into_owned();
                return self.unguarded_and_detached(operation, None, None).await;
            }
            Prepared::Guarded(runtime, request) => (runtime, request),
        };
        let (span, is_traced) = runtime.observer.span(&request.id);
        request.returns::<T>();
        async {
            let record = match started(&self.handling, runtime.begin(request).await) {
                Ok(owned) => owned.map(|owned| Owned::new(runtime, request, owned)),
                Err(over) => return over,
            };
            watch::note(Seen::Executed);
            let Some(record) = record else {
                let operation = request.id.name().to_owned();
                let call = Call::new(Guarded::new(runtime, request, HeldBy::Nobody));
                return self
                    .unguarded_and_detached(operation, Some(call), Some(runtime))
                    .await;
            };
            if is_traced {
                observe::span_has_attempt(record.term().attempt);
            }
            let lost = record.term().lost_error();
            let unlisted = runtime.config.unlisted;
            let counted = runtime.background.body();
            let owning = async move {
                // Dropped after the record, whose step may continue in the background, so that
                // `shutdown` always sees one of the two.
                let _counted = counted;
                let mut record = record;
                self.carry_out(Holder::Lease(&mut record), unlisted).await
            };
            // Only a tokio runtime that shuts down stops the task.
            detached(owning).await.unwrap_or_else(|| Err(fail(lost)))
        }
        .instrument(span)
        .await
    }

    async fn unguarded_and_detached(
        mut self,
        operation: String,
        call: Option<Call>,
        runtime: Option<&Arc<Runtime>>,
    ) -> Result<Outcome<T>, E> {
        let counted = runtime.map(|runtime| runtime.background.body());
        let running = async move {
            let _counted = counted;
            let holder = Holder::Nobody {
                operation: &operation,
                call,
            };
            self.carry_out(holder, Then::Release).await
        };
        match detached(running).await {
            Some(returned) => returned,
            // The tokio runtime is shutting down, and drops this future too.
            None => pending().await,
        }
    }
}

/// Returns the lease of an owner, or none for a body that runs without. `Err`: the call is over.
fn started<R, T, E, P: Fn(&E) -> ErrorAction>(
    handling: &Handling<R, T, E, P>,
    start: Result<CallStart, Error>,
) -> Result<Option<ClaimedLease>, Result<Outcome<T>, E>> {
    match start {
        Ok(CallStart::Owner(owned)) => Ok(Some(owned)),
        Ok(CallStart::Unguarded(would)) => {
            // Decodes an outcome only to report one that could not be replayed.
            if let Some(recorded) = would {
                observe::catch_user_panic(|| drop(handling.decoded(&recorded)));
            }
            Ok(None)
        }
        Ok(CallStart::Replay(recorded)) => Err(match handling.replay(&recorded) {
            Ok(replayed) => replayed.map(Outcome::replayed),
            Err(error) => Err(handling.refuse(error)),
        }),
        Err(error) => Err(Err(handling.refuse(error))),
    }
}

/// The closure that creates a retryable body. All tries share it. It is called where the body runs,
/// so that its panic counts as a panic of the body.
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

/// Runs a future in a task of its own, with the state that follows a task. Returns `None` if the
/// task was stopped.
fn detached<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = Option<T>> + Send {
    // Spawned here: an `async` block would contain the whole future besides its handle.
    let task =
        tokio::spawn(watch::inherit_watch(Inherited::here().around(future)).in_current_span());
    async {
        match task.await {
            Ok(value) => Some(value),
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => None,
            },
        }
    }
}
