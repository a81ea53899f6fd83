//! Running the body of a call, or claiming its key for a call that is carried out step by step.

use std::convert::identity;
use std::future::Future;
use std::marker::PhantomData;

use futures_util::future::FutureExt as _;

use super::{Errors, Operation};
use crate::api::lease::{Begin, Lease};
use crate::call::bodies::{Again, Once, Repeated};
use crate::call::judge::Handling;
use crate::call::keeping::Policy;
use crate::call::owned::Owned;
use crate::call::prepared::Prepared;
use crate::call::reconcile::{Question, asked};
use crate::call::start::CallStart;
use crate::error::Error;
use crate::outcome::{Outcome, Storable};
use crate::policy::errors::Action;
use crate::task::current;

/// # Running a body
impl<Q> Operation<'_, Q> {
    /// Runs the body, or returns the recorded outcome of an earlier call.
    ///
    /// The body runs if no earlier call with the key has succeeded. An `Ok` is recorded. An `Err`
    /// releases the key, or does what [`Builder::default_error`](crate::Builder::default_error)
    /// says. If the lease is lost, the body is stopped: its future is dropped.
    ///
    /// # Errors
    ///
    /// The body's error, or an [`Error`] converted into the body's error type.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped before the body begins, a claim that it sent is undone.
    /// If the future is dropped while the body runs, the record stays in flight until its lease
    /// ends, as after a crash. If it is dropped after the body has ended, the outcome is still
    /// recorded, in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, Idempotency, MemoryStore, Outcome};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// for replayed in [false, true] {
    ///     let outcome: Outcome<u32> = idempotency
    ///         .operation("orders.create")
    ///         .key(&("tenant-1", 4711))
    ///         .fingerprint(&"two apples")
    ///         .ttl(Duration::from_secs(300))
    ///         .run(|| async { Ok::<_, Error>(42) })
    ///         .await?;
    ///     assert_eq!(outcome.is_replayed(), replayed);
    ///     assert_eq!(outcome.into_inner(), 42);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn run<T, E, F, Body, Via>(self, body: F) -> impl Future<Output = Result<Outcome<T>, E>>
    where
        Q: Question<T, E>,
        F: FnOnce() -> Body,
        Body: Future<Output = Result<T, E>>,
        T: Storable<Via>,
        E: From<Error>,
    {
        // Not in the `async` block, whose future would hold the whole description besides what is
        // prepared from it.
        let prepared = self.draft.prepare();
        let question = self.question;
        async move {
            let mut types = PhantomData::<Body>;
            // The closure is the first part of the body: it is called where the body runs, or not
            // at all.
            let body = || Box::pin(asking(Some(question), body));
            Handling::new::<Via>(Policy::unlisted())
                .run(&prepared, Once(Some(body)), identity, &mut types)
                .await
        }
    }

    /// Like [`run`](Self::run), with the body in a task of its own: a caller that is dropped does
    /// not stop it. `scope` and [`current`](crate::current) go along.
    ///
    /// # Errors
    ///
    /// Like [`run`](Self::run), and [`Error::LeaseLost`] if the tokio runtime ends before the body.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped before the body begins, a claim that it sent is undone. After that
    /// the body runs to its end, and its outcome is recorded.
    pub fn run_detached<T, E, F, Body, Via>(
        self,
        body: F,
    ) -> impl Future<Output = Result<Outcome<T>, E>>
    where
        Q: Question<T, E, Asked: Send> + Send + 'static,
        F: FnOnce() -> Body + Send + 'static,
        Body: Future<Output = Result<T, E>> + Send + 'static,
        T: Storable<Via> + Send + 'static,
        E: From<Error> + Send + 'static,
        Via: 'static,
    {
        let Self {
            draft, question, ..
        } = self;
        let body = asking(Some(question), body).boxed();
        Handling::new::<Via>(Policy::unlisted()).run_detached(draft.prepare(), Once(Some(|| body)))
    }
}

/// A body that asks first what became of an earlier attempt.
async fn asking<Q, T, E, Body>(question: Option<Q>, body: impl FnOnce() -> Body) -> Result<T, E>
where
    Q: Question<T, E>,
    Body: Future<Output = Result<T, E>>,
{
    match asked(question).await {
        Some(settled) => settled,
        None => body().await,
    }
}

/// # Running a body with a policy for its errors
impl<Q, P, E, A> Operation<'_, Q, Errors<P, E, A>>
where
    P: Fn(&E) -> A,
    A: Action,
{
    /// Runs the body, or returns the recorded outcome of an earlier call: a value or a kept error.
    ///
    /// It does the same as [`run`](Operation::run) without a policy, except that the policy decides
    /// about an `Err`. The closure is called once for each try.
    ///
    /// # Errors
    ///
    /// The body's error, a kept error of an earlier call, or an [`Error`] converted into the body's
    /// error type. Errors of [`reconcile`](Self::reconcile) do not go through the policy.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped before the body begins, a claim that it sent is undone.
    /// If the future is dropped while the body runs, the record stays in flight until its lease
    /// ends. If it is dropped between two tries, the key is released, because no body was running.
    /// If it is dropped after the last try, the outcome is still recorded, in the background.
    pub async fn run<T, F, Body, Via>(self, body: F) -> Result<Outcome<T>, E>
    where
        Q: Question<T, E>,
        F: FnMut() -> Body,
        Body: Future<Output = Result<T, E>>,
        T: Storable<Via>,
        E: From<Error>,
    {
        let Self {
            draft,
            question,
            policy,
        } = self;
        let mut types = PhantomData::<Body>;
        let (mut question, body) = (Some(question), Again::new(body));
        let start = move || {
            let body = body.clone();
            Box::pin(asking(question.take(), move || body.call()))
        };
        Handling::new::<Via>(policy.into_policy())
            .run(&draft.prepare(), Repeated(start), identity, &mut types)
            .await
    }

    /// Like [`run`](Self::run), with the body in a task of its own: a caller that is dropped does
    /// not stop it. `scope` and [`current`](crate::current) go along.
    ///
    /// # Errors
    ///
    /// Like [`run`](Self::run), and [`Error::LeaseLost`] if the tokio runtime ends before the body.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped before the body begins, a claim that it sent is undone. After that
    /// the body runs to its end, and its outcome is recorded.
    pub fn run_detached<T, F, Body, Via>(
        self,
        body: F,
    ) -> impl Future<Output = Result<Outcome<T>, E>>
    where
        P: Send + 'static,
        A: 'static,
        Q: Question<T, E, Asked: Send> + Send + 'static,
        F: FnMut() -> Body + Send + 'static,
        Body: Future<Output = Result<T, E>> + Send + 'static,
        T: Storable<Via> + Send + 'static,
        E: From<Error> + Send + 'static,
        Via: 'static,
    {
        let Self {
            draft,
            question,
            policy,
        } = self;
        let (mut question, body) = (Some(question), Again::new(body));
        let start = move || {
            let body = body.clone();
            asking(question.take(), move || body.call()).boxed()
        };
        Handling::new::<Via>(policy.into_policy()).run_detached(draft.prepare(), Repeated(start))
    }
}

/// # Step by step
impl Operation<'_> {
    /// Claims the key for a call that is carried out step by step.
    ///
    /// # Errors
    ///
    /// An [`Error`], as from [`run`](Self::run). A missing key is an error even with
    /// `missing_key = run`.
    ///
    /// # Cancellation safety
    ///
    /// If the future is dropped, a claim that it may have made is undone.
    pub async fn begin(self) -> Result<Begin, Error> {
        self.try_begin().await.inspect_err(|_| current::taint())
    }

    async fn try_begin(mut self) -> Result<Begin, Error> {
        let described = if self.draft.observes() {
            let prepared = self.draft.prepare();
            prepared.announce();
            match prepared {
                Prepared::Guarded(runtime, request) => Some((runtime, request)),
                _ => None,
            }
        } else {
            self.draft.check_profile();
            self.draft.prepare_by_hand().await?
        };
        let Some((runtime, request)) = described else {
            return Ok(Begin::Execute(Lease::unguarded()));
        };
        Ok(match runtime.begin(&request).await? {
            CallStart::Owner(owned) => {
                let lease = Lease::new(Owned::new(&runtime, &request, owned));
                Begin::Execute(lease.observing(request.settings.observes))
            }
            CallStart::Replay(recorded) => Begin::Replay(recorded),
            CallStart::Unguarded(_) => Begin::Execute(Lease::unguarded()),
        })
    }
}
