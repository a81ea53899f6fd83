//! The functions that generated code calls. Do not call them: they change without notice.

use std::borrow::Cow;
use std::future::Future;
use std::marker::PhantomData;

use futures_util::future::FutureExt as _;

pub use crate::api::operation::Operation;
use crate::call::bodies::{Again, Bodies, Once, Repeated};
use crate::call::judge::Handling;
pub use crate::call::keeping::{ErrorCodec, Keepable, KeepsErrors, Opaque, Policy};
use crate::call::prepared::{NOT_INSTALLED, Prepared};
pub use crate::call::witness::{
    ConditionalPolicy, FromIdempotency, NoPolicy, OtherParameter, Returned, Witness, outcome_of,
};
pub use crate::encoding::key::{CanBeMissing, KeyOf, NeverMissing, PerhapsMissing};
use crate::encoding::key::{KeyPart, KeyWriter};
use crate::error::Error;
pub use crate::error::disposition::{
    ConditionalDisposition, HasDisposition, Inside, NoDisposition, comes_again,
};
use crate::layers::transactions::bodies::OneThreadOnce;
use crate::layers::transactions::call::InTransaction;
use crate::layers::transactions::driver::Transaction;
pub use crate::macros::lent::{Lent, Taken};
pub use crate::macros::site::{Name, Site, checked_name};
use crate::observe::Observer;
pub use crate::observe::catch_user_panic;
use crate::outcome::Outcome;
pub use crate::outcome::Storable;
use crate::policy::errors::ErrorAction;
pub use crate::policy::errors::{DispositionByPolicy, RunsOnce};
use crate::runtime::handle::Idempotency;
use crate::store::Store;
use crate::task::scope;

/// Begins the call of an annotated function, on the default runtime.
#[inline]
pub fn operation(site: &'static Site, name: Name) -> Operation<'static> {
    if let Some(runtime) = scope::default_runtime() {
        return operation_of(site, name, &runtime);
    }
    Observer::decided_without_key(NOT_INSTALLED, name.label());
    Operation::failing(
        name.label(),
        Error::NotInstalled {
            operation: name.label().into(),
        },
    )
}

/// Like [`operation`], but `None` where the runtime is disabled: what is switched off must cost
/// nothing.
#[inline]
pub fn operation_unless_disabled(site: &'static Site, name: Name) -> Option<Operation<'static>> {
    (!scope::is_disabled_by_default()).then(|| operation(site, name))
}

/// Like [`operation_of`], but `None` where the runtime is disabled.
#[inline]
pub fn operation_of_unless_disabled(
    site: &'static Site,
    name: Name,
    runtime: &Idempotency,
) -> Option<Operation<'static>> {
    (!runtime.is_disabled()).then(|| operation_of(site, name, runtime))
}

/// Begins the call of an annotated function, on a runtime of its own.
#[inline]
pub fn operation_of(site: &'static Site, name: Name, runtime: &Idempotency) -> Operation<'static> {
    let label = name.label();
    if runtime.is_disabled() {
        return runtime.operation(label);
    }
    match site.check(name) {
        Ok(()) => runtime.operation(label),
        Err(reason) => Operation::failing(
            label,
            Error::Config {
                operation: label.into(),
                reason: reason.into(),
            },
        ),
    }
}

/// A call that is ready to be carried out.
pub struct PreparedCall(Prepared<'static>);

/// Prepares the call of an annotated function. `None` if the runtime is disabled.
#[inline]
pub fn prepare(operation: Option<Operation<'static>>) -> Option<PreparedCall> {
    operation.map(|operation| PreparedCall(operation.draft.prepare()))
}

/// Carries out the call of an annotated function. `None` is a call under a disabled runtime.
#[inline]
pub fn run<'a, R, T, E, P, F, Body>(
    call: Option<&'a PreparedCall>,
    witness: Witness<R, T, E>,
    policy: Policy<P, E>,
    body: F,
    types: &'a mut PhantomData<Body>,
) -> impl Future<Output = R> + use<'a, R, T, E, P, F, Body>
where
    P: Fn(&E) -> ErrorAction,
    F: FnOnce() -> Body,
    Body: Future<Output = R>,
{
    const DISABLED: &Prepared<'static> = &Prepared::Unguarded(Cow::Borrowed(""), None);
    let prepared = call.map_or(DISABLED, |call| &call.0);
    let join = witness.join;
    let bodies = Once(Some(|| Box::pin(body())));
    let answer = move |outcome: Result<Outcome<T>, E>| join(outcome.map(Outcome::into_inner));
    Handling { witness, policy }.run(prepared, bodies, answer, types)
}

/// Carries out the call of an annotated function whose body has a task of its own.
pub fn run_detached<R, T, E, P, Body>(
    operation: Operation<'_>,
    witness: Witness<R, T, E>,
    policy: Policy<P, E>,
    body: Body,
) -> impl Future<Output = R>
where
    R: Send + 'static,
    T: Send + 'static,
    E: Send + 'static,
    P: Fn(&E) -> ErrorAction + Send + 'static,
    Body: Future<Output = R> + Send + 'static,
{
    // In a box at once: each future that it is moved through would contain it.
    let body = body.boxed();
    detached(operation, witness, policy, Once(Some(|| body)))
}

/// Carries out the call of an annotated function whose errors may be tried again.
pub async fn run_again<R, T, E, P, Body>(
    operation: Operation<'_>,
    witness: Witness<R, T, E>,
    policy: Policy<P, E>,
    make: impl FnMut() -> Body,
) -> R
where
    P: Fn(&E) -> ErrorAction,
    Body: Future<Output = R>,
{
    let mut types = PhantomData::<Body>;
    let join = witness.join;
    let make = Again::new(make);
    let start = || {
        let make = make.clone();
        Box::pin(async move { make.call().await })
    };
    let prepared = operation.draft.prepare();
    let answer = |outcome: Result<Outcome<T>, E>| join(outcome.map(Outcome::into_inner));
    let handling = Handling { witness, policy };
    handling
        .run(&prepared, Repeated(start), answer, &mut types)
        .await
}

/// Like [`run_again`], with the body in a task of its own.
pub fn run_detached_again<R, T, E, P, Body>(
    operation: Operation<'_>,
    witness: Witness<R, T, E>,
    policy: Policy<P, E>,
    make: impl FnMut() -> Body + Send + 'static,
) -> impl Future<Output = R>
where
    R: Send + 'static,
    T: Send + 'static,
    E: Send + 'static,
    P: Fn(&E) -> ErrorAction + Send + 'static,
    Body: Future<Output = R> + Send + 'static,
{
    let make = Again::new(make);
    let start = move || {
        let make = make.clone();
        async move { make.call().await }.boxed()
    };
    detached(operation, witness, policy, Repeated(start))
}

/// Carries out a call with a detached body.
async fn detached<R, T, E, P, B>(
    operation: Operation<'_>,
    witness: Witness<R, T, E>,
    policy: Policy<P, E>,
    bodies: B,
) -> R
where
    R: Send + 'static,
    T: Send + 'static,
    E: Send + 'static,
    P: Fn(&E) -> ErrorAction + Send + 'static,
    B: Bodies<Body: Future<Output = R> + Send> + Send + 'static,
{
    let join = witness.join;
    let handling = Handling { witness, policy };
    let outcome = handling.run_detached(operation.draft.prepare(), bodies);
    join(outcome.await.map(Outcome::into_inner))
}

/// Carries out the call of an annotated function in the caller's transaction.
pub fn run_in<R, T, E, P, X, S, F>(
    operation: Operation<'_>,
    witness: Witness<R, T, E>,
    policy: Policy<P, E>,
    tx: &mut X,
    body: F,
) -> impl Future<Output = R>
where
    P: Fn(&E) -> ErrorAction,
    X: Transaction<S>,
    S: Store,
    F: AsyncFnOnce(&mut X) -> R,
{
    let prepared = operation.draft.prepare();
    let join = witness.join;
    let call = InTransaction::new(prepared, Handling { witness, policy });
    async move {
        join(
            call.run_in(tx, OneThreadOnce(Some(body)))
                .await
                .map(Outcome::into_inner),
        )
    }
}

/// A part of a key.
#[derive(Debug)]
pub struct Part<'a, K: ?Sized> {
    part: &'a K,
    write: fn(&K, &mut KeyWriter<'_>),
}

/// A part of a key, as a type that surely is one: what is wrong with it is said once, not of the
/// whole key as well.
pub fn part<K: KeyPart + ?Sized>(part: &K) -> Part<'_, K> {
    Part {
        part,
        write: K::write_to,
    }
}

impl<K: ?Sized> KeyPart for Part<'_, K> {
    fn write_to(&self, key: &mut KeyWriter<'_>) {
        (self.write)(self.part, key);
    }
}

/// The argument of a retried body, for one of its tries.
pub fn again<T: UsedAgain>(argument: &T) -> T {
    argument.clone()
}

/// A function that makes the outcome of an annotated function out of an earlier version of it.
pub fn upgrades<R: Returned, Old, F: Fn(Old) -> R::Ok>(upgrade: F) -> F {
    upgrade
}

/// An argument of a retried body.
#[diagnostic::on_unimplemented(
    message = "an argument of type `{Self}` is not `Clone`, and a retry runs the body again",
    label = "each try needs arguments of its own",
    note = "take an argument that is `Clone` (a type parameter has the bound `Clone`), such as an \
        `Arc`, or a reference, shared or exclusive; or handle the error in the body"
)]
pub trait UsedAgain: Clone {}

#[diagnostic::do_not_recommend]
impl<T: Clone> UsedAgain for T {}

/// Whether the body must ask first what became of an earlier one.
pub fn must_reconcile() -> bool {
    crate::call::reconcile::must_reconcile()
}

/// The future that asks. Opaque, so that a value other than a future is one mistake and not two.
pub fn question<F: Asks>(future: F) -> impl Future<Output = F::Output> {
    future
}

/// The argument of `reconcile`.
#[diagnostic::on_unimplemented(
    message = "`reconcile` takes an expression that gives a future, not `{Self}`",
    label = "is no future",
    note = "write the call of an async function without its `.await`: `abandoned = \
        reconcile(\"lookup(&req)\")`"
)]
pub trait Asks: Future {}

#[diagnostic::do_not_recommend]
impl<F: Future> Asks for F {}

/// Returns the body's result instead, when it has asked.
pub fn reconciled<T, E>(asked: Result<Option<T>, E>) -> Option<Result<T, E>> {
    crate::call::reconcile::reconciled(asked)
}
