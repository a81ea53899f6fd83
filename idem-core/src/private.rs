//! What the attribute's code calls. Not for people: it changes without notice.

use std::future::Future;
use std::pin::Pin;

use crate::context;
use crate::error::Error;
use crate::observe::{Decision, Observer};
pub use crate::operation::Operation;
use crate::outcome::Outcome;
pub use crate::outcome::{Returned, Storable, Witness, outcome_of};
use crate::runtime::Idempotency;
pub use crate::site::Site;

/// Begins the call of an annotated function.
pub fn operation(site: &'static Site, runtime: Option<&Idempotency>) -> Operation<'static> {
    let runtime = match runtime {
        Some(runtime) => Some(runtime.clone()),
        None => context::default_runtime(),
    };
    let Some(runtime) = runtime else {
        Observer::decided_without_key(Decision::NotInstalled, site.label());
        return Operation::failing(site.label(), Error::NotInstalled { operation: site.label().into() });
    };
    if runtime.is_disabled() {
        return runtime.operation(site.label());
    }
    match site.name() {
        Ok(name) => runtime.operation(name),
        Err(reason) => {
            let (operation, reason) = (site.label().into(), reason.into());
            Operation::failing(site.label(), Error::Config { operation, reason })
        }
    }
}

/// Carries out the call of an annotated function.
pub async fn run<R, T, E, Body>(operation: Operation<'_>, witness: Witness<R, T, E>, body: Pin<&mut Option<Body>>) -> R
where
    Body: Future<Output = R>,
{
    let join = witness.join;
    join(operation.execute(witness, body).await.map(Outcome::into_inner))
}

/// Carries out the call of an annotated function whose body has a task of its own.
pub async fn run_detached<R, T, E, Body>(operation: Operation<'_>, witness: Witness<R, T, E>, body: Body) -> R
where
    R: Send + 'static,
    T: Send + 'static,
    E: Send + 'static,
    Body: Future<Output = R> + Send + 'static,
{
    let join = witness.join;
    join(operation.execute_detached(witness, body).await.map(Outcome::into_inner))
}

/// Whether the body must ask first what became of an earlier one.
pub fn must_reconcile() -> bool {
    crate::operation::must_reconcile()
}

/// What the body returns instead, when it has asked.
pub fn reconciled<T, E>(asked: Result<Option<T>, E>) -> Option<Result<T, E>> {
    crate::operation::reconciled(asked)
}
