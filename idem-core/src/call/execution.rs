//! The flow of every guarded call, annotated or by hand: claim the key, then run the body or replay
//! its outcome.

use std::future::{Future, pending};
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::Instrument as _;

use crate::call::finish::Handling;
use crate::call::owned_record::OwnedRecord;
use crate::call::ownership::leased::{Leased, RunMode};
use crate::call::ownership::unguarded::Unguarded;
use crate::call::prepared::Prepared;
use crate::call::recorded::Recorded;
use crate::call::request::Request;
use crate::call::run::{Finished, run};
use crate::call::start::CallStart;
use crate::error::Error;
use crate::observe;
use crate::outcome::Outcome;
use crate::policy::errors::{ErrorAction, Tries};
use crate::record::RecordId;
use crate::runtime::Runtime;
use crate::task::inherited::Inherited;
use crate::task::watch::{self, Seen};

/// How a call is carried out: what happens to the body's result, and where the next try comes from.
pub(crate) struct Execution<R, T, E, P, G> {
    pub(crate) handling: Handling<R, T, E, P>,
    /// Makes the body of the next try, if the body can run more than once.
    pub(crate) again: Option<G>,
}

impl<R, T, E, P, G, Body> Execution<R, T, E, P, G>
where
    P: Fn(&E) -> ErrorAction,
    G: FnMut() -> Body,
    Body: Future<Output = R>,
{
    /// Runs the call. The body is a future that is not moved, and is dropped as soon as it has
    /// ended or must stop.
    ///
    /// It takes references, because the future of an `async fn` holds its arguments twice.
    pub(crate) async fn run(
        &mut self,
        prepared: &Prepared<'_>,
        body: Pin<&mut Option<Body>>,
    ) -> Result<Outcome<T>, E> {
        prepared.announce();
        let (runtime, request) = match prepared {
            Prepared::Refused(error) => return Err(self.handling.refuse(error.clone())),
            Prepared::Unguarded(operation, _) | Prepared::Observed(operation, _) => {
                return self.unguarded(operation, None, body).await;
            }
            Prepared::Guarded(runtime, request) => (runtime, request),
        };
        let (span, is_traced) = runtime.observer.span(&request.id);
        async move {
            let mut record = match self.begin(runtime, request).await {
                Err(error) => return Err(self.handling.refuse(error)),
                Ok(CallStart::Replay(recorded)) => return self.replay(&recorded),
                Ok(CallStart::Unguarded) => None,
                Ok(CallStart::Owner(owned)) => Some(OwnedRecord::new(runtime, request, owned)),
            };
            watch::note(Seen::Executed);
            match &mut record {
                None => {
                    // In a box: few calls come here, and the future of each would have room for it.
                    let id = &request.id;
                    Box::pin(self.unguarded(id.name(), Some(id), body)).await
                }
                Some(record) => {
                    if is_traced {
                        observe::span_has_attempt(record.term().attempt);
                    }
                    self.own(runtime, RunMode::of(&request.settings), record, body)
                        .await
                        .give()
                }
            }
        }
        .instrument(span)
        .await
    }

    /// Runs the call with its body in a task of its own.
    pub(crate) async fn run_detached(
        mut self,
        prepared: Prepared<'_>,
        body: Body,
    ) -> Result<Outcome<T>, E>
    where
        Self: Send + 'static,
        Handling<R, T, E, P>: Send,
        G: Send,
        R: Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
        Body: Send + 'static,
    {
        prepared.announce();
        let fail = self.handling.witness.fail;
        let (runtime, request) = match &prepared {
            Prepared::Refused(error) => return Err(self.handling.refuse(error.clone())),
            Prepared::Unguarded(operation, runtime) => {
                let operation = operation.clone().into_owned();
                return self
                    .unguarded_and_detached(operation, None, runtime.as_ref(), body)
                    .await;
            }
            Prepared::Observed(operation, _) => {
                let operation = operation.clone().into_owned();
                return self
                    .unguarded_and_detached(operation, None, None, body)
                    .await;
            }
            Prepared::Guarded(runtime, request) => (runtime, request),
        };
        let (span, is_traced) = runtime.observer.span(&request.id);
        async {
            let record = match self.begin(runtime, request).await {
                Err(error) => return Err(self.handling.refuse(error)),
                Ok(CallStart::Replay(recorded)) => return self.replay(&recorded),
                Ok(CallStart::Unguarded) => None,
                Ok(CallStart::Owner(owned)) => Some(OwnedRecord::new(runtime, request, owned)),
            };
            watch::note(Seen::Executed);
            let Some(record) = record else {
                let operation = request.id.name().to_owned();
                let id = request.id.clone();
                return self
                    .unguarded_and_detached(operation, Some(id), Some(runtime), body)
                    .await;
            };
            if is_traced {
                observe::span_has_attempt(record.term().attempt);
            }
            let lost = record.term().lost_error();
            let mode = RunMode::of(&request.settings);
            let runtime = runtime.clone();
            let counted = runtime.background.body();
            let owning = async move {
                // Dropped after the record, whose step may continue in the background, so that
                // `shutdown` always sees one of the two.
                let _counted = counted;
                let mut record = record;
                self.own(&runtime, mode, &mut record, pin!(Some(body)))
                    .await
                    .give()
            };
            // Only a tokio runtime that shuts down stops the task.
            detached(owning).await.unwrap_or_else(|| Err(fail(lost)))
        }
        .instrument(span)
        .await
    }

    /// Claims the key, or returns what to do instead. In observe mode, nothing that is returned
    /// keeps the body from running.
    async fn begin(&self, runtime: &Arc<Runtime>, request: &Request) -> Result<CallStart, Error> {
        if !request.settings.observes {
            return runtime.begin(request).await;
        }
        match runtime.observe(request).await {
            CallStart::Replay(recorded) => {
                // Decodes the outcome only to report one that could not be replayed.
                observe::catch_user_panic(|| drop(self.handling.decoded(&recorded)));
                Ok(CallStart::Unguarded)
            }
            start => Ok(start),
        }
    }

    fn replay(&self, recorded: &Recorded) -> Result<Outcome<T>, E> {
        match self.handling.replay(recorded) {
            Ok(replayed) => replayed.map(Outcome::replayed),
            Err(error) => Err(self.handling.refuse(error)),
        }
    }

    /// Runs the body as the owner, and records its outcome.
    fn own<'a>(
        &'a mut self,
        runtime: &'a Arc<Runtime>,
        mode: RunMode,
        record: &'a mut OwnedRecord,
        body: Pin<&'a mut Option<Body>>,
    ) -> impl Future<Output = Finished<T, E>> + use<'a, R, T, E, P, G, Body> {
        let Self { handling, again } = self;
        let owner = Leased::new(runtime, mode, record, body);
        let begin_next_try = again
            .as_mut()
            .map(|again| |owner: &mut Leased<'a, Body>| owner.begin_next_try(again()));
        run(
            &mut *handling,
            owner,
            Tries::new(runtime.config.unlisted),
            begin_next_try,
        )
    }

    /// Runs the body without a record.
    async fn unguarded(
        &mut self,
        operation: &str,
        id: Option<&RecordId>,
        body: Pin<&mut Option<Body>>,
    ) -> Result<Outcome<T>, E> {
        let Self { handling, again } = self;
        let owner = Unguarded {
            operation,
            id,
            body,
        };
        let begin_next_try = again
            .as_mut()
            .map(|again| |owner: &mut Unguarded<'_, Body>| owner.body.set(Some(again())));
        run(&mut *handling, owner, Tries::default(), begin_next_try)
            .await
            .give()
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
        Handling<R, T, E, P>: Send,
        G: Send,
        R: Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
        Body: Send + 'static,
    {
        let counted = runtime.map(|runtime| runtime.background.body());
        let running = async move {
            let _counted = counted;
            self.unguarded(&operation, id.as_ref(), pin!(Some(body)))
                .await
        };
        match detached(running).await {
            Some(returned) => returned,
            // The tokio runtime is shutting down, and drops this future too.
            None => pending().await,
        }
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
async fn detached<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let task =
        tokio::spawn(watch::inherit_watch(Inherited::here().around(future)).in_current_span());
    match task.await {
        Ok(value) => Some(value),
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => None,
        },
    }
}
