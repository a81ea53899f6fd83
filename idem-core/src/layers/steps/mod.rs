//! Steps: guarded calls inside the body of a guarded call, which record its progress.

mod begun;
mod in_transaction;
mod name;
mod of_step;
mod removal;
mod scope;
mod settings;

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::time::Duration;

pub use self::name::StepName;
use self::name::id_of_step;
use self::scope::Scope;
use crate::adapter::engine::{KeepsErrors, Question, current, is_disabled_by_default, shown_name};
use crate::api::operation::{ActionOf, Errors, Operation};
use crate::bounds::{Action, IntoDuration, Reconcile};
use crate::policy::Abandoned;
use crate::record::{Owner, RecordId, is_valid_operation};
use crate::{Call, Error, ErrorPolicy, Idempotency, Outcome, Storable};

/// Runs a step of the body of a guarded call, or returns its recorded value if an earlier attempt
/// has finished it.
///
/// A body with several effects runs again from its beginning after a crash, an error or a retry. A
/// step records the effect that succeeded, so that the next attempt goes on after it: the closure
/// of a finished step is not called.
///
/// `name` is a text, or a tuple that begins with one: see [`StepName`]. It is the same in each
/// attempt. `body` is an async closure that returns `Result<T, E>`, with the bounds of a guarded
/// function. Only an `Ok` is recorded; an error goes to the body of the call.
///
/// A step is a guarded call with a lease of its own, and with the fingerprint of its call. It belongs
/// to the run of its call: to the first attempt and all that go on after it, until an outcome is
/// recorded or the record is forgotten. The next call with the key sees no step of it.
///
/// Steps are kept for 30 days, or `hold` if that is longer, and the record of their call is kept at
/// least as long. After nine tenths of that time, no step of the run is begun or replayed any more.
/// [`step_with`] has more settings.
///
/// # Errors
///
/// The error of the body, or an [`Error`] converted into its type. [`Error::Config`]: the name is
/// invalid or was used before in this run of the body; or there is no body of a guarded call in
/// this task, as in a task that a body has spawned. [`Error::Abandoned`]: an earlier attempt was
/// cut off in this step, and its call has `abandoned = reject` or `reconcile`; or the run is too old.
/// [`Error::FingerprintMismatch`]: an earlier attempt with another request has begun this step.
///
/// Without a record, as under [`Idempotency::disabled`], the body of the step runs.
///
/// # Cancellation safety
///
/// The same as that of [`Operation::run`]: if the future is dropped while the step's body runs, the
/// next attempt waits until the lease of the step has ended, and runs it again.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # use idem::{Error, Idempotency, MemoryStore};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # let idempotency = Idempotency::new(MemoryStore::new());
/// # async fn charge() -> Result<u32, Error> { Ok(1) }
/// # async fn reserve(_: &str) -> Result<(), Error> { Ok(()) }
/// let place = || async {
///     let charge: u32 = idem::step("charge", async || charge().await).await?;
///     for sku in ["pen", "ink"] {
///         idem::step(("reserve", sku), async || reserve(sku).await).await?;
///     }
///     Ok::<_, Error>(charge)
/// };
/// let placed = idempotency.operation("orders.place").key("o-1").run(place).await?;
/// # assert_eq!(placed.into_inner(), 1);
/// # Ok(())
/// # }
/// ```
pub fn step<N, T, E, F, Via>(name: N, body: F) -> impl Future<Output = Result<T, E>>
where
    N: StepName,
    F: AsyncFnOnce() -> Result<T, E>,
    T: Storable<Via>,
    E: From<Error>,
{
    step_with(name).run(body)
}

/// Begins the description of a [`step`]: its lease, what is done with its errors, and how an
/// attempt that was cut off in it is found out about.
///
/// # Examples
///
/// ```
/// # use idem_core as idem;
/// # use idem::{Error, Idempotency, MemoryStore, Retry, UnkeptAction};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # let idempotency = Idempotency::new(MemoryStore::new());
/// # async fn send_parcel() -> Result<String, Error> { Ok("p-7".into()) }
/// # async fn find_parcel() -> Result<Option<String>, Error> { Ok(None) }
/// # let place = || async {
/// let parcel = idem::step_with("parcel")
///     .lease(Duration::from_secs(10))
///     .reconcile(async || find_parcel().await)
///     .errors(|_: &Error| UnkeptAction::Retry(Retry::new(3)))
///     .run(async || send_parcel().await)
///     .await?;
/// # Ok::<_, Error>(parcel)
/// # };
/// # let placed = idempotency.operation("orders.place").key("o-1").run(place).await?;
/// # assert_eq!(placed.into_inner(), "p-7");
/// # Ok(())
/// # }
/// ```
pub fn step_with<N: StepName>(name: N) -> Step<N> {
    Step {
        name,
        lease: None,
        call: None,
        operation: Idempotency::disabled().operation(""),
    }
}

impl Call {
    /// Runs a step of this call: as [`step`](crate::step), for code that has the `Call`.
    ///
    /// # Errors
    ///
    /// Like [`step`](crate::step), and [`Error::Config`] if this call is not around the body that
    /// is running in this task.
    ///
    /// # Cancellation safety
    ///
    /// Like [`step`](crate::step).
    ///
    /// # Examples
    ///
    /// ```
    /// # use idem_core as idem;
    /// # use idem::{Error, Idempotency, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
    /// # let idempotency = Idempotency::new(MemoryStore::new());
    /// let place = || async {
    ///     let call = idem::current().expect("inside a body");
    ///     call.step("charge", async || Ok::<_, Error>(7)).await
    /// };
    /// let placed = idempotency.operation("orders.place").key("o-1").run(place).await?;
    /// # assert_eq!(placed.into_inner(), 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn step<N, T, E, F, Via>(
        &self,
        name: N,
        body: F,
    ) -> impl Future<Output = Result<T, E>> + use<N, T, E, F, Via>
    where
        N: StepName,
        F: AsyncFnOnce() -> Result<T, E>,
        T: Storable<Via>,
        E: From<Error>,
    {
        let mut step = step_with(name);
        step.call = Some(self.clone());
        step.run(body)
    }
}

/// A step, described. From [`step_with`].
///
/// `Q` and `P` are as those of [`Operation`].
#[must_use = "nothing happens until it is run"]
pub struct Step<N, Q = (), P = ()> {
    name: N,
    lease: Option<Result<Duration, String>>,
    /// `None`: the call whose body runs.
    call: Option<Call>,
    /// The settings, for an operation that is known only inside of the body.
    operation: Operation<'static, Q, P>,
}

impl<N, Q, P> Step<N, Q, P> {
    /// Sets how long a process that was cut off in this step keeps the next attempt waiting.
    /// Default: the lease of the call. At least 100 ms, at most 100 years.
    pub fn lease(mut self, lease: impl IntoDuration) -> Self {
        self.lease = Some(lease.into_duration());
        self
    }

    /// Sets the policy for errors of the step: as [`Operation::errors`]. A kept error is replayed
    /// to the next attempt of the call.
    pub fn errors<E, A, F>(self, policy: F) -> Step<N, Q, Errors<F, E, A>>
    where
        F: Fn(&E) -> A,
        A: Action<Keeps: KeepsErrors<E>>,
    {
        self.map(|operation| operation.errors(policy))
    }

    /// Uses the policy of the error's type: as [`Operation::errors_by_type`].
    pub fn errors_by_type<E>(self) -> Step<N, Q, Errors<ActionOf<E>, E>>
    where
        E: ErrorPolicy<Keeps: KeepsErrors<E>>,
    {
        self.map(Operation::errors_by_type)
    }

    /// Sets a closure that finds out what an attempt did that was cut off in this step: as
    /// [`Operation::reconcile`]. With it, a call with `abandoned = reject` or `reconcile` goes on
    /// without an operator.
    pub fn reconcile<R, Asked>(self, reconcile: R) -> Step<N, Reconcile<R>, P>
    where
        R: FnOnce() -> Asked,
    {
        self.map(|operation| operation.reconcile(reconcile))
    }

    /// Sets the version of the value's type: as [`Operation::outcome_version`].
    pub fn outcome_version(self, version: u32) -> Self {
        self.map(|operation| operation.outcome_version(version))
    }

    /// Sets how a value of an earlier version becomes one of the current version: as
    /// [`Operation::upgrade`].
    pub fn upgrade<Old, New, Via>(
        self,
        from: u32,
        upgrade: impl Fn(Old) -> New + Send + Sync + 'static,
    ) -> Self
    where
        Old: serde::de::DeserializeOwned,
        New: Storable<Via>,
    {
        self.map(|operation| operation.upgrade(from, upgrade))
    }

    fn map<Q2, P2>(
        self,
        change: impl FnOnce(Operation<'static, Q, P>) -> Operation<'static, Q2, P2>,
    ) -> Step<N, Q2, P2> {
        let Self {
            name,
            lease,
            call,
            operation,
        } = self;
        Step {
            name,
            lease,
            call,
            operation: change(operation),
        }
    }
}

impl<N: StepName, Q> Step<N, Q> {
    /// Runs the step, or returns its recorded value: as [`step`](crate::step).
    ///
    /// # Errors
    ///
    /// Like [`step`](crate::step). An error of [`reconcile`](Self::reconcile) goes to the body of
    /// the call, and the next attempt asks again.
    ///
    /// # Cancellation safety
    ///
    /// Like [`step`](crate::step).
    pub async fn run<T, E, F, Via>(self, body: F) -> Result<T, E>
    where
        Q: Question<T, E>,
        F: AsyncFnOnce() -> Result<T, E>,
        T: Storable<Via>,
        E: From<Error>,
    {
        let operation = self.begin().await;
        let outcome = operation.run(move || async move { body().await }).await;
        outcome.map(Outcome::into_inner)
    }
}

impl<N, Q, P, E, A> Step<N, Q, Errors<P, E, A>>
where
    N: StepName,
    P: Fn(&E) -> A,
    A: Action,
{
    /// Runs the step, or returns its recorded value or kept error. The closure is called once for
    /// each try.
    ///
    /// # Errors
    ///
    /// Like [`step`](crate::step), or a kept error.
    ///
    /// # Cancellation safety
    ///
    /// Like [`Operation::run`] with a policy.
    pub async fn run<T, F, Body, Via>(self, body: F) -> Result<T, E>
    where
        Q: Question<T, E>,
        F: FnMut() -> Body,
        Body: Future<Output = Result<T, E>>,
        T: Storable<Via>,
        E: From<Error>,
    {
        let outcome = self.begin().await.run(body).await;
        outcome.map(Outcome::into_inner)
    }
}

impl<N, Q, P> fmt::Debug for Step<N, Q, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step")
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

/// The message for a step that no body runs.
const NO_BODY: &str = "a step runs inside the body of a guarded call, in the task of that body, \
    and this one does not: call it from a function with `#[idempotent]`, or from the body of \
    `Operation::run`, and not from a task that the body has spawned";

/// The message for a step that cannot be recorded beside the transaction of its body.
const MUST_BE_INSIDE: &str = "the body is in a transaction, and this step cannot be recorded beside \
    it, because nobody else can write in this database meanwhile, or because the body is that of a \
    step: run it by `step_with(..).run_in(tx, ..)`, or give the body around it a lease, without \
    `transaction`";

/// The message for the second use of a name.
const BEGUN_BEFORE: &str = "this run of the body has begun a step of the same name before; a loop \
    puts an id into the name, as in `(\"reserve\", &item.sku)`, and a step that is to \
    be tried again has `step_with(..).errors(..)`";

/// The message for a step beside the records of another layer.
const IS_TAKEN: &str = "something else keeps records beside that of the call around it, and a call \
    has room for one of them; begin a call of its own in the body, and the step in that";

/// The call that a step belongs to.
enum Place {
    Guarded(Call),
    /// Nothing is recorded of the body.
    Unguarded,
    /// No body runs.
    Nothing,
}

fn around(call: Option<Call>) -> Place {
    let call = match call {
        Some(call) if !call.is_around() && call.held().is_some() => return Place::Nothing,
        Some(call) => Some(call),
        None => current::current(),
    };
    match call {
        Some(call) if call.held().is_some() => Place::Guarded(call),
        Some(_) => Place::Unguarded,
        None if current::Around::here().keyless > 0 || is_disabled_by_default() => Place::Unguarded,
        None => Place::Nothing,
    }
}

/// A step in the body of its call, before its record is known.
struct Placed<N, Q, P> {
    name: N,
    /// `None`: the operation needs no record of a step, or is refused.
    call: Option<Call>,
    operation: Operation<'static, Q, P>,
}

impl<N: StepName, Q, P> Step<N, Q, P> {
    /// The operation of the step, in the body where it is polled first.
    async fn begin(self) -> Operation<'static, Q, P> {
        let placed = self.placed();
        let run = match placed.scope() {
            None => return placed.operation,
            Some(scope) if scope.must_be_inside() => Err(placed.must_be_inside()),
            Some(scope) => scope.run_of_steps(false).await,
        };
        let mut operation = placed.of_run(run, false);
        if let Some(error) = operation.draft.again.take() {
            operation.draft.refuse(*error);
        }
        operation
    }

    /// The step in the body around it.
    fn placed(self) -> Placed<N, Q, P> {
        let Self {
            name,
            lease,
            call,
            operation,
        } = self;
        let mut placed = Placed {
            name,
            call: None,
            operation,
        };
        match around(call) {
            Place::Guarded(call) if Scope::in_body_of(&call).is_none() => {
                let error = Error::config(&shown(placed.name.text()), IS_TAKEN);
                placed.operation.draft.refuse(error);
                return placed;
            }
            Place::Guarded(call) => placed.call = Some(call),
            Place::Unguarded => return placed,
            Place::Nothing => {
                let name = shown(placed.name.text());
                placed.operation.draft.refuse(Error::config(&name, NO_BODY));
                return placed;
            }
        }
        match lease.transpose() {
            Ok(lease) => placed.become_step(lease),
            Err(reason) => {
                placed.become_step(None);
                let error = placed.config(&format!("`lease`: {reason}"));
                placed.operation.draft.refuse(error);
                placed.call = None;
            }
        }
        placed
    }
}

impl<N: StepName, Q, P> Placed<N, Q, P> {
    fn scope(&self) -> Option<Scope<'_>> {
        self.call.as_ref().and_then(Scope::in_body_of)
    }

    fn become_step(&mut self, lease: Option<Duration>) {
        if let Some(scope) = self.call.as_ref().and_then(Scope::in_body_of) {
            let draft = &mut self.operation.draft;
            let asks_first = draft.settings.reconciles;
            draft.runtime = Some(scope.runtime.clone());
            draft.settings = scope.settings_of_step(lease);
            if asks_first {
                draft.settings.abandoned = Abandoned::Rerun;
                draft.settings.reconciles = true;
            }
            draft.fingerprint = scope.request.fingerprint;
            draft.has_no_fingerprint = true;
        }
    }

    /// The error of a step that cannot be recorded beside the transaction of its body.
    fn must_be_inside(&self) -> Error {
        self.config(MUST_BE_INSIDE)
    }

    fn config(&self, reason: &str) -> Error {
        let call = self.call.as_ref().map_or("", Call::operation);
        Error::config(&shown(&format!("{call}/{}", self.name.text())), reason)
    }

    /// The operation with the record of the step, noted if this try of the body has begun it before.
    fn of_run(mut self, run: Result<Owner, Error>, is_inside: bool) -> Operation<'static, Q, P> {
        match run.and_then(|run| self.id_of(run)) {
            Ok(id) => {
                let begins = |scope: Scope<'_>| scope.begin_step(&id, is_inside);
                if !self.scope().is_none_or(begins) {
                    self.operation.draft.again = Some(Box::new(self.config(BEGUN_BEFORE)));
                }
                self.operation.draft.identify(id);
            }
            Err(error) if self.operation.draft.goes_on_without(&error) => {}
            Err(error) => self.operation.draft.refuse(error),
        }
        self.operation
    }

    fn id_of(&self, run: Owner) -> Result<RecordId, Error> {
        let Some(call) = &self.call else {
            return Err(self.config(NO_BODY));
        };
        let id = id_of_step(call.id(), run, &self.name);
        id.map_err(|reason| self.config(reason))
    }
}

/// The name of a step, as errors and events have it.
fn shown(name: &str) -> Cow<'_, str> {
    if is_valid_operation(name) {
        Cow::Borrowed(name)
    } else {
        Cow::Owned(shown_name(name))
    }
}
