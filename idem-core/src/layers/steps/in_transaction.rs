//! Steps in a transaction: of the body, or of their own.

use std::future::Future;

use futures_util::future::FutureExt as _;

use super::Step;
use super::scope::Scope;
use crate::api::operation::Operation;
use crate::layers::transactions::api::InTransactionPolicy;
use crate::layers::transactions::bodies::{RunsAgain, TransactionBody};
use crate::layers::transactions::driver::{Transaction, Transactions};
use crate::layers::transactions::open::other_store;
use crate::record::{Owner, RecordInfo};
use crate::{Error, Outcome, StepName, Storable, Store};

impl<N: StepName + Send, P: Send> Step<N, (), P> {
    /// Runs the step in a transaction of the caller's, which records it together with the rows of
    /// the body: as [`Operation::run_in`]. The caller commits.
    ///
    /// # Errors
    ///
    /// Like [`Operation::run_in`] and [`step`](crate::step).
    ///
    /// # Cancellation safety
    ///
    /// Like [`Operation::run_in`].
    #[allow(
        clippy::manual_async_fn,
        reason = "it states that the future is `Send`"
    )]
    pub fn run_in<X, S, T, E, F, Via>(
        self,
        tx: &mut X,
        body: F,
    ) -> impl Future<Output = Result<T, E>> + Send
    where
        X: Transaction<S>,
        S: Store,
        P: InTransactionPolicy<E> + Send,
        F: AsyncFnOnce(&mut X) -> Result<T, E>
            + for<'t> TransactionBody<&'t mut X, Result<T, E>>
            + Send,
        T: Storable<Via> + Send,
        E: From<Error> + Send,
    {
        async move {
            let outcome = begin_in(self, tx).await.run_in(tx, body).await;
            outcome.map(Outcome::into_inner)
        }
    }

    /// Begins a transaction, runs the step in it and commits: as [`Operation::transaction`]. The
    /// rows of the step and its record are committed together.
    ///
    /// # Errors
    ///
    /// Like [`Operation::transaction`] and [`step`](crate::step).
    ///
    /// # Cancellation safety
    ///
    /// Like [`Operation::transaction`].
    #[allow(
        clippy::manual_async_fn,
        reason = "it states that the future is `Send`"
    )]
    pub fn transaction<B, S, T, E, F, Via>(
        self,
        begins: &B,
        body: F,
    ) -> impl Future<Output = Result<T, E>> + Send
    where
        B: Transactions<S>,
        S: Store,
        P: InTransactionPolicy<E> + Send,
        F: AsyncFnOnce(&mut B::Transaction) -> Result<T, E>
            + for<'t> TransactionBody<&'t mut B::Transaction, Result<T, E>>
            + RunsAgain
            + Send,
        T: Storable<Via> + Send,
        E: From<Error> + Send + std::error::Error + 'static,
    {
        async move {
            let operation = self.begin().await;
            let outcome = operation.transaction(begins, body).await;
            outcome.map(Outcome::into_inner)
        }
    }
}

/// The operation of a step in a transaction of the caller's. Begun again in this try of the body, it
/// may run if the transaction before was rolled back, but not replay.
async fn begin_in<N, P, X, S>(step: Step<N, (), P>, tx: &mut X) -> Operation<'static, (), P>
where
    N: StepName,
    X: Transaction<S>,
    S: Store,
{
    let placed = step.placed();
    let is_inside = placed.scope().is_some_and(|scope| scope.is_in(tx));
    let run = match placed.scope() {
        None => return placed.operation,
        Some(scope) if is_inside => run_inside(&scope, tx).await,
        Some(scope) if scope.must_be_inside() => Err(placed.must_be_inside()),
        Some(scope) => run_in(&scope, tx).await,
    };
    placed.of_run(run, is_inside)
}

/// Returns the run of a step in a transaction of the body. If that has the only connection that
/// there is, the run is read in it. That is the second choice: it may lock the record, or keep the
/// transaction from becoming the writer.
async fn run_in<X, S>(scope: &Scope<'_>, tx: &mut X) -> Result<Owner, Error>
where
    X: Transaction<S>,
    S: Store,
{
    let found = scope.run_of_steps(true).await;
    if let (Err(Error::Store { .. }), Some(store)) = (&found, scope.runtime.store.downcast::<S>())
        && scope.is_run_unknown()
    {
        let record = inspect(scope, tx, store).await?;
        if let Some(run) = scope.run_of_record(record) {
            return run;
        }
    }
    found
}

/// Returns the run of a step in the transaction that has the record of the call.
async fn run_inside<X, S>(scope: &Scope<'_>, tx: &mut X) -> Result<Owner, Error>
where
    X: Transaction<S>,
    S: Store,
{
    if let Some(run) = scope.run_inside() {
        return run;
    }
    let Some(store) = scope.runtime.store.downcast::<S>() else {
        return Err(other_store::<S>(scope.id().name()));
    };
    scope.run_inside_by(inspect(scope, tx, store).await?)
}

async fn inspect<X, S>(
    scope: &Scope<'_>,
    tx: &mut X,
    store: &S,
) -> Result<Option<RecordInfo>, Error>
where
    X: Transaction<S>,
    S: Store,
{
    let found = tx.inspect(store, scope.id()).boxed().await;
    found.map_err(|error| scope.runtime.failed(scope.id(), error))
}
