//! The flow of every guarded call, annotated or by hand: claim the key, then run the body or replay
//! its outcome.

use std::fmt::Display;
use std::future::{Future, pending};
use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;

use tokio::task::JoinError;
use tracing::Instrument as _;

use crate::call::bodies::Bodies;
use crate::call::holder::Holder;
use crate::call::judge::{Handling, Ruling, give};
use crate::call::owned::Owned;
use crate::call::prepared::Prepared;
use crate::call::start::CallStart;
use crate::observe;
use crate::outcome::Outcome;
use crate::policy::errors::{ErrorAction, Then, Tries};
use crate::runtime::Runtime;
use crate::task::current::Call;
use crate::task::inherited::Inherited;
use crate::task::watch::{self, Seen};

impl<R, T, E, P: Fn(&E) -> ErrorAction> Handling<R, T, E, P> {
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
    pub(crate) fn run<'a, O, A: FnOnce(Result<Outcome<T>, E>) -> O, B, Body>(
        mut self,
        prepared: &'a Prepared<'a>,
        mut bodies: B,
        answer: A,
        _body: &'a mut PhantomData<Body>,
    ) -> impl Future<Output = O> + use<'a, R, T, E, P, O, A, B, Body>
    where
        B: Bodies<Body: Future<Output = R>>,
    {
        async move {
            let (span, is_traced) = prepared.span();
            // References, because this future would contain what moves into that one twice.
            let (this, bodies) = (&mut self, &mut bodies);
            let guarded = async move {
                let mut holder = match this.start(prepared, is_traced).await {
                    Ok(holder) => holder,
                    Err(over) => return over,
                };
                this.carry_out(&mut holder, bodies).await
            };
            answer(guarded.instrument(span).await)
        }
    }

    /// Claims the key, and makes the holder of a call whose body runs. `Err`: the call is over.
    async fn start<'a>(
        &self,
        prepared: &'a Prepared<'a>,
        is_traced: bool,
    ) -> Result<Holder<'a>, Result<Outcome<T>, E>> {
        prepared.announce();
        let (runtime, request) = match prepared {
            Prepared::Refused(error) => return Err(Err(self.refuse(error.clone()))),
            Prepared::Unguarded(operation, _) | Prepared::Observed(operation, _) => {
                return Ok(Holder::keyless(operation));
            }
            Prepared::Guarded(runtime, request) => (runtime, request),
        };
        request.returns::<T>();
        let holder = match runtime.begin(request).await {
            Ok(CallStart::Owner(owned)) => {
                if is_traced {
                    observe::span_has_attempt(owned.enrolled.term.attempt);
                }
                Holder::Lease(Owned::new(runtime, request, owned))
            }
            Ok(CallStart::Unguarded(would)) => {
                // Decodes an outcome only to report one that could not be replayed.
                if let Some(recorded) = would {
                    observe::catch_user_panic(|| drop(self.decoded(&recorded)));
                }
                Holder::without_record(runtime, request)
            }
            Ok(CallStart::Replay(recorded)) => {
                return Err(match self.replay(&recorded) {
                    Ok(replayed) => replayed.map(Outcome::replayed),
                    Err(error) => Err(self.refuse(error)),
                });
            }
            Err(error) => return Err(Err(self.refuse(error))),
        };
        watch::note(Seen::Executed);
        Ok(holder)
    }

    /// Runs the body, once more if its policy says so, and records its outcome. A body that can run
    /// only once has no next try.
    async fn carry_out<B: Bodies<Body: Future<Output = R>>>(
        &mut self,
        holder: &mut Holder<'_>,
        bodies: &mut B,
    ) -> Result<Outcome<T>, E> {
        let unlisted = holder.owned().map(|owned| owned.runtime().config.unlisted);
        let mut tries = Tries::new(unlisted.unwrap_or(Then::Release));
        let mut body = bodies.next();
        let answer = loop {
            let exit = holder.run_body(Pin::new(&mut body)).await;
            let (ruling, answer) = {
                let report = |decision, why: Option<&dyn Display>| holder.report(decision, why);
                self.judge(holder.call(), B::RERUNS, &mut tries, exit, &report)
            };
            match ruling {
                Ruling::Over(ending) => {
                    holder.end(self, ending, &answer);
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

impl<R, T, E, P> Handling<R, T, E, P>
where
    P: Fn(&E) -> ErrorAction + Send + 'static,
    R: Send + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    /// Runs the call with its body in a task of its own.
    pub(crate) async fn run_detached<B>(
        self,
        prepared: Prepared<'_>,
        bodies: B,
    ) -> Result<Outcome<T>, E>
    where
        B: Bodies<Body: Future<Output = R> + Send> + Send + 'static,
    {
        let (span, is_traced) = prepared.span();
        async {
            let holder = match self.start(&prepared, is_traced).await {
                Ok(holder) => holder.into_owned(),
                Err(over) => return over,
            };
            self.detach(holder, bodies, prepared.runtime()).await
        }
        .instrument(span)
        .await
    }

    /// Carries the call out in a task of its own, which is spawned at once.
    fn detach<B>(
        mut self,
        mut holder: Holder<'static>,
        mut bodies: B,
        runtime: Option<&Arc<Runtime>>,
    ) -> impl Future<Output = Result<Outcome<T>, E>> + use<R, T, E, P, B>
    where
        B: Bodies<Body: Future<Output = R> + Send> + Send + 'static,
    {
        let fail = self.witness.fail;
        let lost = holder.owned().map(|owned| owned.term().lost_error());
        let counted = runtime.and_then(|runtime| runtime.background.body());
        let carried_out = async move {
            let answer = self.carry_out(&mut holder, &mut bodies).await;
            // The record's step may continue in the background, so `shutdown` always sees one of
            // the two.
            drop(holder);
            drop(counted);
            answer
        };
        // Spawned here: an `async` block would contain the whole future besides its handle.
        let inherits = watch::inherit_watch(Inherited::here().around(carried_out));
        let task = tokio::spawn(inherits.in_current_span());
        async move {
            match (task.await.map_err(JoinError::try_into_panic), lost) {
                (Ok(returned), _) => returned,
                (Err(Ok(panic)), _) => resume_unwind(panic),
                // Only a tokio runtime that shuts down stops the task.
                (Err(Err(_)), Some(lost)) => Err(fail(lost)),
                // It drops this future too.
                (Err(Err(_)), None) => pending().await,
            }
        }
    }
}
